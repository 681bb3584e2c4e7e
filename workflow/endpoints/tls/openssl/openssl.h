/* What the programs on OpenSSL share: its start, connections as the command line asks for them, what was negotiated. */
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

/*
 * An SSL_CTX for one end, of QUIC or of TLS 1.3 over TCP as the library has it, or NULL with a reason. Its connections write
 * their secrets to --key-log and know nothing of earlier ones. In context.c, for programs that leave no part of this to
 * another library.
 */
SSL_CTX *make_context(const struct options *options, const char **reason);
void flush_key_log(void);

void read_negotiated(const SSL *ssl, struct negotiated *negotiated);

/* The oldest error of OpenSSL's queue as one line, or a default; empties the queue. */
const char *openssl_error(const char *otherwise);

#endif
