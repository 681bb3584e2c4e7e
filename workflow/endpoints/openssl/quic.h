/* What the client and the server on OpenSSL's QUIC share. */
#ifndef QUICBED_QUIC_H
#define QUICBED_QUIC_H

#include "datagrams.h"
#include "openssl.h"

/* What both ends tell about a connection. */
struct observed {
    struct traffic handshake; /* up to t_handshake_complete */
    int64_t t_handshake_complete, t_handshake_confirmed, t_close;
    int hello_retry_request;
    struct negotiated negotiated;
};

/* A UDP socket with the buffers asked for, bound (server) or connected (client), or -1 with a reason. */
int open_socket(const struct options *options, const char **reason);

/*
 * Waits for the socket, for OpenSSL's next timer, for a readable `other` (-1: none), or until a time in CLOCK_MONOTONIC
 * nanoseconds (UNKNOWN: never).
 */
void wait_for_events(SSL *ssl, const struct datagrams *datagrams, int other, int64_t until_ns);

/* Whether the connection ends or has ended, and how, in one line; "" if both ends were content. */
bool is_closed(SSL *ssl, char *error, size_t room);

/*
 * The fields of a `connection` event that both programs write. peer may be NULL. Packet protection is as asked for, which
 * start_openssl() has made sure of.
 */
void write_observed(const struct observed *observed, const struct peer *peer, const struct options *options);

#endif
