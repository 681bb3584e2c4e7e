/* What the programs on OpenSSL share: its start, what was negotiated, alerts. */
#ifndef QUICBED_OPENSSL_H
#define QUICBED_OPENSSL_H

#include "contract.h"

#include <openssl/ssl.h>

/*
 * Chooses the configuration of this build and loads it; the first call of OpenSSL. Returns NULL, or why OpenSSL does
 * not do what this build is for: a provider that is missing or made for another OpenSSL, or an AEAD of `cipher` (NULL:
 * any) that is not as asked for.
 */
const char *start_openssl(const struct cipher *cipher, bool noop);

/* Makes this signature algorithm the only one, of whatever key size and certificate size. */
bool allow_algorithms(SSL_CTX *context, const quicbed_signature *signature);

/* What a handshake agreed on; empty where unknown. */
struct negotiated {
    char cipher[64], group[64], signature[64], alpn[16], tls_version[16];
};
void read_negotiated(const SSL *ssl, struct negotiated *negotiated);
/* The fields of a `connection` event. */
void write_negotiated(const struct negotiated *negotiated);
/* Says what was negotiated other than asked for; nothing if all is as asked. */
void contradiction(const struct negotiated *negotiated, const struct options *options, char *error, size_t room);

/* Whether a message of OpenSSL's message callback is a HelloRetryRequest. */
bool is_hello_retry_request(int type, const void *data, size_t length);

/* "received TLS alert 40 (handshake failure)" */
void describe_alert(char *text, size_t room, int alert, bool sent);

/* The oldest error of OpenSSL's queue as one line, or a default; empties the queue. */
const char *openssl_error(const char *otherwise);

#endif
