/* Server of the endpoint contract over bare UDP (bare.h): one thread, one download at a time, waiting in poll. */
#define _GNU_SOURCE
#include "bare.h"

#include <errno.h>
#include <inttypes.h>
#include <netinet/udp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PERIODS = 2 }; /* of the content in memory: what begins in the first goes on in the second */

static struct {
    const struct options *options;
    int fd;
    struct protection sends, receives;
    char *content;
    /* the download, of which there is none where nothing is wanted */
    bool active, full; /* the socket takes no more */
    union address peer;
    socklen_t peer_length;
    uint64_t wanted, sent, told, datagrams, received;
    int64_t t_accept;
    struct rusage before;
    uint64_t count, failed;
} server;

static void finish(const char *error)
{
    const int64_t t_close = now_ns();
    struct rusage after;

    getrusage(RUSAGE_SELF, &after);
    event_begin("connection");
    event_integer("index", (int64_t)server.count++);
    event_boolean("ok", error == NULL);
    event_string("error", error);
    event_integer("t_accept", server.t_accept);
    event_integer("bytes_sent", (int64_t)server.sent);
    write_common(server.options, t_close, (int64_t)server.datagrams, (int64_t)server.received);
    write_cpu(&server.before, &after);
    event_end();
    server.failed += error != NULL;
    server.active = false;
}

/* Begins a download that a client asks for, unless it is the one that is served. */
static void asked(const union address *from, socklen_t length, const unsigned char *body, size_t body_length)
{
    char request[64], *end;
    const size_t command = strlen("GET /");

    if (server.active && length == server.peer_length && memcmp(from, &server.peer, length) == 0)
        return;
    if (body_length >= sizeof(request) || body_length <= command || memcmp(body, "GET /", command) != 0)
        return;
    memcpy(request, body, body_length);
    request[body_length] = '\0';
    errno = 0;
    if (server.active)
        finish("another client has asked");
    server.wanted = strtoull(request + command, &end, 10);
    if (errno != 0 || end == request + command || strcmp(end, "\r\n") != 0)
        return;
    server.active = true;
    server.full = false;
    server.peer = *from;
    server.peer_length = length;
    server.sent = server.told = server.datagrams = server.received = 0;
    server.t_accept = now_ns();
    getrusage(RUSAGE_SELF, &server.before);
}

/* Takes what clients say. */
static void take_all(void)
{
    static unsigned char buffer[LARGEST];
    union address from;
    socklen_t from_length;
    size_t segment, body_length;
    uint64_t number;
    ssize_t length;

    while ((length = receive(server.fd, buffer, &from, &from_length, &segment)) >= 0) {
        for (size_t at = 0; at < (size_t)length; at += segment) {
            const size_t left = (size_t)length - at;
            const unsigned char *body =
                open_datagram(&server.receives, buffer + at, segment < left ? segment : left, &number, &body_length);

            if (body == NULL)
                continue;
            if (number == 0)
                asked(&from, from_length, body, body_length);
            if (!server.active || from_length != server.peer_length || memcmp(&from, &server.peer, from_length) != 0)
                continue;
            server.received++;
            if (number > 0 && body_length == HEADER) {
                const uint64_t told = read_number(body);

                server.told = told > server.told && told <= server.sent ? told : server.told;
                if (server.told == server.wanted)
                    finish(NULL);
            }
        }
    }
}

/* Sends as many datagrams as go into one call; returns whether the socket took them. */
static bool send_some(void)
{
    static unsigned char buffer[SEGMENTS * DATAGRAM];
    const size_t most = DATAGRAM - overhead(&server.sends);
    const uint16_t segment = DATAGRAM;
    struct iovec part = {.iov_base = buffer};
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(uint16_t))];
    } control;
    struct msghdr message = {
        .msg_name = &server.peer,
        .msg_namelen = server.peer_length,
        .msg_iov = &part,
        .msg_iovlen = 1,
        .msg_control = &control,
        .msg_controllen = sizeof(control),
    };
    uint64_t sent = server.sent, number = server.datagrams;

    memset(&control, 0, sizeof(control));
    control.header.cmsg_level = IPPROTO_UDP;
    control.header.cmsg_type = UDP_SEGMENT;
    control.header.cmsg_len = CMSG_LEN(sizeof(segment));
    memcpy(CMSG_DATA(&control.header), &segment, sizeof(segment));
    for (int i = 0; i < SEGMENTS && (sent < server.wanted || server.wanted == 0); i++) {
        const uint64_t left = server.wanted - sent;
        const size_t length = left < most ? (size_t)left : most;

        part.iov_len += seal(&server.sends, buffer + part.iov_len, number++, server.content + sent % CONTENT_PERIOD,
                             length);
        sent += length;
        if (server.wanted == 0)
            break;
    }
    if (sendmsg(server.fd, &message, 0) < 0)
        return false;
    server.sent = sent;
    server.datagrams = number;
    return true;
}

static bool may_send(void)
{
    const bool left = server.sent < server.wanted || (server.wanted == 0 && server.datagrams == 0);

    return server.active && left && server.sent - server.told < WINDOW;
}

static void run(int signals)
{
    struct pollfd polled[] = {{.fd = server.fd}, {.fd = signals, .events = POLLIN}};

    while ((polled[1].revents & POLLIN) == 0) {
        polled[0].events = (short)(POLLIN | (may_send() ? POLLOUT : 0));
        if (poll(polled, COUNT(polled), -1) < 0)
            continue;
        if ((polled[0].revents & (POLLIN | POLLERR)) != 0)
            take_all();
        while (may_send() && send_some())
            ;
    }
    take_all(); /* a client may have said just before that it has all */
    if (server.active)
        finish("the server was stopped");
}

int main(int argc, char **argv)
{
    struct options options;
    const int fd = begin(&options, SERVER, argc, argv);
    union address address;
    socklen_t length = sizeof(address);
    const char *reason;
    int signals;

    if (fd < 0)
        return -1 - fd;
    server.options = &options;
    server.fd = fd;
    server.content = malloc((size_t)PERIODS * CONTENT_PERIOD);
    signals = stop_signals(0, NULL);
    if (server.content == NULL || signals < 0 || getsockname(fd, &address.any, &length) != 0)
        return give_up("error", EXIT_FAILED, strerror(errno));
    for (int i = 0; i < PERIODS; i++)
        memcpy(server.content + (size_t)i * CONTENT_PERIOD, content_period(), CONTENT_PERIOD);
    reason = protect(&server.sends, &options, true, true);
    if (reason == NULL)
        reason = protect(&server.receives, &options, false, false);
    if (reason != NULL)
        return give_up("error", EXIT_FAILED, reason);
    event_ready(&options, ntohs(address.v4.sin_port));
    run(signals);
    event_own_final(server.count, server.failed);
    EVP_CIPHER_CTX_free(server.sends.context);
    EVP_CIPHER_CTX_free(server.receives.context);
    free(server.content);
    return EXIT_SUCCESS;
}
