/* Sockets of programs that run a library which opens none itself: every endpoint has its own. */
#ifndef QUICBED_SOCKETS_H
#define QUICBED_SOCKETS_H

#include "contract.h"

/* A socket with what was asked for, or -1 with a reason. */
int open_socket(const struct options *options, const char **reason);
/* Sets what was asked for on a socket; NULL, or why it is impossible. */
const char *configure_socket(const struct options *options, int fd);
/* The congestion control in force for a socket, of QUIC the library's; NULL if it cannot be told. */
const char *congestion_control_of(int fd);

#endif
