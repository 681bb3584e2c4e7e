/* Sockets of the client and the server over TCP. */
#define _GNU_SOURCE
#include "sockets.h"

#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

const char *configure_socket(const struct options *options, int fd)
{
    static char reason[256];

    if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, options->congestion_control,
                   (socklen_t)strlen(options->congestion_control))
        != 0) {
        snprintf(reason, sizeof(reason),
                 "the kernel refuses congestion control %s: %s; see net.ipv4.tcp_allowed_congestion_control",
                 options->congestion_control, strerror(errno));
        return reason;
    }
    return configure_buffers(options, fd);
}

int open_socket(const struct options *options, const char **reason)
{
    int family = strchr(options->address, ':') != NULL ? AF_INET6 : AF_INET;
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);

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
    static char name[16];
    socklen_t length = sizeof(name) - 1;

    memset(name, 0, sizeof(name));
    return getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length) == 0 ? name : NULL;
}
