/* What the programs on OpenSSL share: its start and what was negotiated. */
#ifndef QUICBED_OPENSSL_H
#define QUICBED_OPENSSL_H

#include "tls.h"

#include <openssl/ssl.h>

/*
 * Chooses the configuration of this build and loads it; the first call of OpenSSL. Returns NULL, or why OpenSSL does
 * not do what this build is for: a provider that is missing or made for another OpenSSL, or an AEAD or header protection
 * of the cipher suite that is not as asked for (options NULL: no connections, nothing is asked for).
 */
const char *start_openssl(const struct options *options);

/* Makes this signature algorithm the only one, of whatever key size and certificate size. */
bool allow_algorithms(SSL_CTX *context, const quicbed_signature *signature);

void read_negotiated(const SSL *ssl, struct negotiated *negotiated);

/* The oldest error of OpenSSL's queue as one line, or a default; empties the queue. */
const char *openssl_error(const char *otherwise);

#endif
