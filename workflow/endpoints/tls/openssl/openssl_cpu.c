/* What OpenSSL uses of the processor. */
#include "contract.h"

#include <inttypes.h>
#include <stdio.h>

#include <openssl/crypto.h>

int aes_hardware(void)
{
    /* OPENSSL_ia32cap(3): the capabilities in force, bit 57 being that of the AES instructions */
    const char *settings = OPENSSL_info(OPENSSL_INFO_CPU_SETTINGS);
    uint64_t capabilities;

    if (settings == NULL || sscanf(settings, "OPENSSL_ia32cap=%" SCNx64, &capabilities) != 1)
        return UNKNOWN;
    return (capabilities >> 57 & 1) != 0;
}
