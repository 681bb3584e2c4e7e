/* What the programs share whatever their TLS library is: what was negotiated, alerts. */
#ifndef QUICBED_TLS_H
#define QUICBED_TLS_H

#include "contract.h"

/* What a handshake agreed on; empty where unknown. */
struct negotiated {
    char cipher[64], group[64], signature[64], alpn[16], tls_version[16];
    /* By an earlier session, which leaves no signature, and with TLS 1.2 no group; requests before its end were accepted. */
    bool resumed, early_data;
};
/* The fields of a `connection` event. */
void write_negotiated(const struct negotiated *negotiated);
/* Says what was negotiated other than asked for; nothing if all is as asked. */
void contradiction(const struct negotiated *negotiated, const struct options *options, char *error, size_t room);

/* Whether a message of OpenSSL's message callback is a HelloRetryRequest. */
bool is_hello_retry_request(int type, const void *data, size_t length);

/* "received TLS alert 40 (handshake failure)" */
void describe_alert(char *text, size_t room, int alert, bool sent);

#endif
