/* What the ways of datagrams share (io.c). */
#ifndef QUICBED_PICOQUIC_IO_H
#define QUICBED_PICOQUIC_IO_H

#include "library.h"

#include <poll.h>
#include <sys/uio.h>

enum {
    /* Datagrams of a batch (UDP_MAX_SEGMENTS), and those that are received at once. */
    MOST_DATAGRAMS = 64,
    /* Room for a datagram; picoquic takes none that are larger. */
    LONGEST_DATAGRAM = 2048,
};

/* A datagram that has been received. */
struct arrived {
    const void *from;
    socklen_t from_length;
    const uint8_t *bytes;
    size_t length;
};

/* The functions of the C library that this program puts its own before. */
ssize_t __real_sendto(int fd, const void *bytes, size_t length, int flags, const struct sockaddr *to, socklen_t room);
int __real_ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask);

/* xdp.c: datagrams past the kernel's stack. */

/* Begins it for a UDP socket that has its address; 0, or -1 with an error number. */
int xdp_begin(int udp);
/* Why it cannot begin where the program's peer, or its own address, is; NULL if it can. */
const char *xdp_cannot(void);
/* Sends a batch, all of it or nothing; 0: the peer's address on the link is not known yet, the kernel is to send it. */
int xdp_send(const struct sockaddr *to, const struct iovec *parts, unsigned int count);
bool xdp_next(struct arrived *arrived);
/* The file to wait for in place of the socket. */
int xdp_file(void);
/* Whether the kernel has not taken all frames yet; it is asked once more to. */
bool xdp_is_sending(void);

#endif
