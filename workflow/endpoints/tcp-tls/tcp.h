/* Sockets of the client and the server over TCP. */
#ifndef QUICBED_TCP_H
#define QUICBED_TCP_H

#include "contract.h"

/* A TCP socket with the asked-for congestion control and buffers, or -1 with a reason. */
int open_socket(const struct options *options, const char **reason);
/* Sets congestion control and buffers of a TCP socket; NULL, or why it is impossible. */
const char *configure_socket(const struct options *options, int fd);
/* Reads back the congestion control of a socket; NULL if it cannot be told. */
const char *congestion_control_of(int fd);

#endif
