/* Client and server of a made-up library: blocking TCP sockets with OpenSSL, one connection at a time. */
#define _GNU_SOURCE
#include "openssl.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include <openssl/err.h>

const struct library library = {
    .name = "sockets", .congestion_controls = "cubic reno", .pacing = "library", .datagram = UNKNOWN,
    .no_header_protection = "TCP has no header protection",
    .no_retry = "TCP has no Retry packets",
};
static const char *const untold[] = {
    "t_handshake_confirmed", "hello_retry_request", "retry", "handshake_packets_sent", "handshake_packets_received",
    "handshake_bytes_sent", "handshake_bytes_received", "packets_sent", "packets_received", "packets_lost", "header_protection",
};
static struct options options;
static SSL_CTX *context;
static uint64_t count, failed;
static struct {
    SSL *ssl;
    int64_t complete, asked, first, last; /* ns, or UNKNOWN */
    uint64_t sent;
    struct negotiated negotiated;
    struct content_check content;
    const char *error;
} now; /* the connection there is */

/* A socket that is connected, or that listens; -1 with errno. */
static int open_socket(struct sockaddr_in *address)
{
    const bool client = options.role == CLIENT;
    const struct timeval most = {.tv_sec = client ? (time_t)options.timeout_seconds : 0, .tv_usec = client ? 1 : 900000};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    const char *control = options.congestion_control;
    socklen_t length = sizeof(*address);

    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)options.port)};
    inet_pton(AF_INET, options.address, &address->sin_addr);
    if (fd < 0 || configure_buffers(&options, fd) != NULL
        || setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) != 0
        || setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, control, (socklen_t)strlen(control)) != 0
        || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof(most)) != 0
        || (!client && bind(fd, (struct sockaddr *)address, length) != 0)
        || (client && connect(fd, (struct sockaddr *)address, length) != 0))
        return -1;
    return client || (listen(fd, 128) == 0 && getsockname(fd, (struct sockaddr *)address, &length) == 0) ? fd : -1;
}

/* Reads up to the empty line of HTTP; returns the bytes read, of which `*head` are up to it, 0 if there is none. */
static size_t read_head(char *text, size_t room, size_t *head)
{
    size_t length = 0, got;

    while (length < room - 1 && SSL_read_ex(now.ssl, text + length, room - 1 - length, &got) == 1) {
        length += got;
        text[length] = '\0';
        if (strstr(text, "\r\n\r\n") != NULL) {
            *head = (size_t)(strstr(text, "\r\n\r\n") + 4 - text);
            return length;
        }
    }
    return 0;
}

static void download(void)
{
    static char text[1 << 18];
    size_t head, length;

    now.error = "the answer is not of status 200";
    snprintf(text, sizeof(text), "GET /%s HTTP/1.1\r\nHost: %s\r\n\r\n", requested(&options), options.server_name);
    now.asked = now_ns();
    SSL_write_ex(now.ssl, text, strlen(text), &length);
    length = read_head(text, sizeof(text), &head);
    if (length == 0 || strncmp(text, "HTTP/1.1 200 ", 13) != 0)
        return;
    now.error = NULL;
    memmove(text, text + head, length -= head);
    while (length > 0 || (now.content.received < options.bytes && SSL_read_ex(now.ssl, text, sizeof(text), &length))) {
        now.first = now.first == UNKNOWN ? now_ns() : now.first;
        check_content(&now.content, text, length);
        length = 0;
    }
    now.last = now_ns();
}

static void answer(void)
{
    char text[2048], *end, *name = text + strlen("GET /");
    const struct file *file;
    uint64_t wanted;
    size_t moved;

    now.error = "the request is not \"GET /<n> HTTP/1.1\" nor for a file of --www";
    if (read_head(text, sizeof(text), &moved) == 0 || (end = strstr(text, " HTTP/1.1\r\n")) == NULL)
        return;
    *end = '\0';
    file = find_file(&options, name, strlen(name));
    if (strncmp(text, "GET /", 5) != 0 || (file == NULL && strspn(name, "0123456789") != strlen(name)))
        return;
    wanted = file == NULL ? strtoull(name, NULL, 10) : file->length;
    snprintf(text, sizeof(text), "HTTP/1.1 200 OK\r\nContent-Length: %llu\r\n\r\n", (unsigned long long)wanted);
    SSL_write_ex(now.ssl, text, strlen(text), &moved);
    for (moved = 1; now.sent < wanted && moved > 0; now.sent += moved) {
        const char *data = file == NULL ? content_period() + now.sent % CONTENT_PERIOD : file->data + now.sent;
        const size_t most = file == NULL ? CONTENT_PERIOD - now.sent % CONTENT_PERIOD : wanted - now.sent;

        moved = 0;
        SSL_write_ex(now.ssl, data, wanted - now.sent < most ? wanted - now.sent : most, &moved);
    }
    now.error = now.sent < wanted ? "the client closed the connection before the end" : NULL;
    SSL_shutdown(now.ssl);
    SSL_read_ex(now.ssl, text, sizeof(text), &moved); /* the client's end */
}

/* Serves or downloads once and writes the event. */
static void run(int fd)
{
    const bool client = options.role == CLIENT;
    int64_t begun = now_ns(), closed;
    struct rusage before, after;
    char text[512] = "";

    memset(&now, 0, sizeof(now));
    now.complete = now.asked = now.first = now.last = UNKNOWN;
    now.content.options = &options;
    now.ssl = SSL_new(context);
    getrusage(RUSAGE_SELF, &before);
    SSL_set_fd(now.ssl, fd);
    if (client && SSL_set_tlsext_host_name(now.ssl, options.server_name) == 1 && options.verify)
        SSL_set1_host(now.ssl, options.server_name);
    if (fd < 0 || (client ? SSL_connect : SSL_accept)(now.ssl) != 1) {
        now.error = fd < 0 ? strerror(errno) : openssl_error("the handshake was not complete");
    } else {
        now.complete = now_ns();
        read_negotiated(now.ssl, &now.negotiated);
        (client ? download : answer)();
    }
    getrusage(RUSAGE_SELF, &after);
    if (client && now.error == NULL && (now.error = content_problem(&now.content)) == NULL)
        contradiction(&now.negotiated, &options, text, sizeof(text));
    now.error = text[0] == '\0' ? now.error : text;
    SSL_free(now.ssl);
    close(fd);
    closed = now_ns();
    event_begin("connection");
    event_integer("index", (int64_t)count++);
    event_boolean("ok", now.error == NULL);
    event_string("error", now.error);
    event_integer(client ? "t_client_hello" : "t_accept", begun);
    event_integer("t_handshake_complete", now.complete);
    event_integer("t_close", closed);
    event_integer(client ? "bytes_received" : "bytes_sent", (int64_t)(client ? now.content.received : now.sent));
    if (client) {
        event_integer("t_request_sent", now.asked);
        event_integer("t_first_byte", now.first);
        event_integer("t_last_byte", now.last);
        event_integer("bytes_requested", (int64_t)content_requested(&now.content));
        event_boolean("content_ok", now.error == NULL);
    }
    write_negotiated(&now.negotiated);
    event_string("aead", now.complete == UNKNOWN ? NULL : "standard");
    for (size_t i = 0; i < COUNT(untold); i++)
        event_string(untold[i], NULL);
    event_integer("cpu_user_ns", user_ns(&after) - user_ns(&before));
    event_integer("cpu_system_ns", system_ns(&after) - system_ns(&before));
    event_end();
    flush_key_log();
    failed += now.error != NULL;
}

int run_program(enum role role, int argc, char **argv)
{
    struct sockaddr_in address;
    struct pollfd waited[2] = {{.events = POLLIN}, {.events = POLLIN}};
    const char *reason;

    parse_options(&options, role, argc, argv);
    events_open(options.events);
    reason = unsupported_reason(&options);
    waited[0].fd = role == CLIENT || reason != NULL ? socket(AF_INET, SOCK_STREAM, 0) : open_socket(&address);
    event_start(&options, waited[0].fd, options.congestion_control);
    if (reason != NULL)
        return give_up("unsupported", EXIT_UNSUPPORTED, reason);
    if (waited[0].fd < 0)
        return give_up("error", EXIT_FAILED, strerror(errno));
    reason = start_openssl(&options);
    context = reason == NULL ? make_context(&options, &reason) : NULL;
    if (context == NULL)
        return give_up("error", EXIT_FAILED, reason);
    signal(SIGPIPE, SIG_IGN);
    while (role == CLIENT && count < options.connections)
        run(open_socket(&address));
    if (role == SERVER) {
        waited[1].fd = stop_signals(0, NULL);
        event_ready(&options, ntohs(address.sin_port));
        while (poll(waited, 2, -1) > 0 && waited[1].revents == 0)
            run(accept4(waited[0].fd, NULL, NULL, SOCK_CLOEXEC));
    }
    event_own_final(count, failed);
    return role == CLIENT && failed > 0 ? EXIT_FAILED : EXIT_SUCCESS;
}
