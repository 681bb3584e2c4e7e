/* Compiled with liboqs 0.9, of which nothing but what is here can be seen from outside. */

#include "kem.h"

bool quicbed_older_kem(quicbed_kem *kem, const char *oqs_name) {
    OQS_init();
    return take(kem, oqs_name) && strcmp(kem->implementation, QUICBED_PORTABLE) != 0;
}
