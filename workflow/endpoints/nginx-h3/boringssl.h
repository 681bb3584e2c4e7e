/* BoringSSL for the client: one suite, one group, one signature algorithm, and what was negotiated. */
#ifndef QUICBED_BORINGSSL_H
#define QUICBED_BORINGSSL_H

#include "tls.h"

#include <openssl/ssl.h>

/* Offers only what was asked for; NULL, or what this BoringSSL does not have. */
const char *offer(SSL_CTX *context, const struct options *options);
void read_negotiated(const SSL *ssl, struct negotiated *negotiated);

#endif
