/*
 * A download over UDP with segmentation and receive offload (udp(7), UDP_SEGMENT and UDP_GRO) and nothing else: what any
 * library over UDP takes at least. There is no handshake, no retransmission and no congestion control; a datagram that
 * is lost ends the download with an error. With an AEAD, every datagram is sealed as a QUIC packet is, with a key that
 * everybody knows: it protects nothing, and takes the time of one that does.
 *
 * A datagram is a number of 8 bytes in network order, a body, and the tag of the AEAD. The client begins with number 0,
 * whose body is "GET /<n>\r\n", repeated until something comes. Its others, from 1, have the number of bytes received so
 * far, 8 bytes in network order. The server's, from 0, have the content, all but the last of the same size. It keeps at
 * most WINDOW bytes under way.
 */
#ifndef QUICBED_BARE_H
#define QUICBED_BARE_H

#include "openssl.h"

#include <netinet/in.h>

enum {
    HEADER = 8,
    TAG = 16,
    DATAGRAM = 1472,         /* what an MTU of 1500 bytes leaves of IPv4 */
    SEGMENTS = 44,           /* the most of them that UDP over IPv4 sends at once */
    LARGEST = 65535,
    WINDOW = 2 * 1024 * 1024, /* a socket buffer of 6.5 MiB holds it, whatever the kernel adds */
    BUFFER = 6815744,
};

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

/* The AEAD of one direction; without a context there is none. */
struct protection {
    EVP_CIPHER_CTX *context;
    bool from_server;
};

/* What begins both programs: the command line, the event `start`, OpenSSL. The socket, or the exit code as -1 - code. */
int begin(struct options *options, enum role role, int argc, char **argv);

/* NULL, or why there is no such AEAD. */
const char *protect(struct protection *protection, const struct options *options, bool from_server, bool sends);
/* Bytes of a datagram that are not its body. */
size_t overhead(const struct protection *protection);
/* Writes a datagram; returns its length, or 0 where OpenSSL fails. */
size_t seal(struct protection *protection, unsigned char *out, uint64_t number, const void *body, size_t length);
/* Opens a datagram in its place; returns its body, or NULL for one that is not of the other end. */
unsigned char *open_datagram(struct protection *protection, unsigned char *data, size_t length, uint64_t *number,
                             size_t *body_length);

/* Receives what has come, as many datagrams of `segment` bytes as there were in a row; as recvmsg(2). */
ssize_t receive(int fd, unsigned char *buffer, union address *from, socklen_t *from_length, size_t *segment);

uint64_t read_number(const unsigned char *data);
void write_number(unsigned char *out, uint64_t number);

/* What the events of both ends have in common. */
void write_common(const struct options *options, int64_t t_close, int64_t sent, int64_t received);
void write_cpu(const struct rusage *before, const struct rusage *after); /* NULL: not known */

#endif
