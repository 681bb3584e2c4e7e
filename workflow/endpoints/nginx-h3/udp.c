/* Sockets of the client and the server over UDP. */
#define _GNU_SOURCE
#include "sockets.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

const char *configure_socket(const struct options *options, int fd)
{
    return configure_buffers(options, fd);
}

int open_socket(const struct options *options, const char **reason)
{
    int family = strchr(options->address, ':') != NULL ? AF_INET6 : AF_INET;
    int fd = socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    if (fd < 0) {
        *reason = strerror(errno);
        return -1;
    }
    *reason = configure_socket(options, fd);
    if (*reason != NULL) {
        close(fd);
        return -1;
    }
    return fd;
}

const char *congestion_control_of(int fd)
{
    (void)fd;
    return "cubic"; /* the default of ngtcp2, and nginx has no other */
}
