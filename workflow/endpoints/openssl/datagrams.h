/*
 * The UDP socket under OpenSSL's QUIC: a BIO that sends and receives datagrams, with segmentation and receive offload
 * (udp(7), UDP_SEGMENT and UDP_GRO), which OpenSSL's own datagram BIO has not, and that counts what passes, which
 * OpenSSL does not tell.
 */
#ifndef QUICBED_DATAGRAMS_H
#define QUICBED_DATAGRAMS_H

#include "contract.h"

#include <netinet/in.h>
#include <openssl/bio.h>

struct traffic {
    /* QUIC packets, coalesced ones counted each (RFC 9000, 12.2), and bytes of UDP payload */
    int64_t packets_sent, packets_received, bytes_sent, bytes_received;
};

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

/* A remote address, and what was exchanged with it. */
struct peer {
    bool used, bound;
    union address address;
    struct traffic traffic;
    bool retry;                             /* a Retry packet was sent or received */
    int64_t t_first_sent, t_first_received; /* UNKNOWN before */
    struct rusage usage_first;              /* of the process at the first datagram */
    unsigned char first_id[20];             /* destination connection ID of the first Initial packet received */
    size_t first_id_length;
};

struct datagrams {
    int fd;
    bool server, gso, gro;
    union address remote; /* of a client */
    /* Who the last datagrams were sent to. */
    struct peer *last_sent_to;

    struct peer *peers;
    size_t peer_slots;
    /* What UDP_GRO brought in one piece and was not taken yet. */
    unsigned char *batch;
    size_t batch_at, batch_length, segment;
    union address batch_from;
};

/*
 * Begins to use a socket, which stays the caller's; NULL, or why it is impossible. `remote` is the address a client's
 * server has, NULL for a server.
 */
const char *datagrams_open(struct datagrams *datagrams, int fd, const union address *remote, bool gso, bool gro);
void datagrams_close(struct datagrams *datagrams);
/* A BIO for SSL_set_bio(3) that has to end before the datagrams do; NULL without memory. */
BIO *datagrams_bio(struct datagrams *datagrams);
/* Whether received datagrams wait outside the socket, where poll(2) does not see them. */
bool datagrams_pending(const struct datagrams *datagrams);
/* The only peer of a client. */
struct peer *datagrams_server(struct datagrams *datagrams);
/* Keeps the counts of a peer until it is released. */
void peer_bind(struct peer *peer);
void peer_release(struct peer *peer);

/* Parses an address of the options. */
union address make_address(const char *ip, int port, socklen_t *length);

#endif
