/* Client of the endpoint contract over bare UDP (bare.h): one thread, waiting in poll. */
#define _GNU_SOURCE
#include "bare.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ASK_AGAIN_MS = 1000 };

struct download {
    const struct options *options;
    int fd;
    struct protection sends, receives;
    uint64_t told, sent, next; /* bytes that the server knows of; datagrams sent; the one that is to come */
    int64_t t_request_sent, t_first_byte, t_last_byte;
    struct rusage before, after;
    struct content_check content;
    char error[256];
};

static void fail(struct download *download, const char *reason)
{
    if (download->error[0] == '\0')
        snprintf(download->error, sizeof(download->error), "%s", reason);
}

static void send_body(struct download *download, uint64_t number, const void *body, size_t length)
{
    unsigned char datagram[DATAGRAM];
    const size_t size = seal(&download->sends, datagram, number, body, length);

    if (size == 0)
        fail(download, openssl_error("a datagram cannot be sealed"));
    else if (send(download->fd, datagram, size, 0) >= 0)
        download->sent++;
    else if (errno != EAGAIN && errno != ECONNREFUSED)
        fail(download, strerror(errno));
}

static void ask(struct download *download)
{
    char request[64];
    const int length = snprintf(request, sizeof(request), "GET /%s\r\n", requested(download->options));

    if (download->t_request_sent == UNKNOWN) {
        getrusage(RUSAGE_SELF, &download->before);
        download->t_request_sent = now_ns();
    }
    send_body(download, 0, request, (size_t)length);
}

static void tell(struct download *download)
{
    unsigned char count[HEADER];

    download->told = download->content.received;
    write_number(count, download->told);
    send_body(download, 1 + download->told, count, sizeof(count));
}

/* Takes one datagram. */
static void take(struct download *download, unsigned char *data, size_t length)
{
    uint64_t number;
    size_t body_length;
    unsigned char *body = open_datagram(&download->receives, data, length, &number, &body_length);

    if (body == NULL) {
        fail(download, "a datagram cannot be opened");
        return;
    }
    if (number != download->next) {
        snprintf(download->error, sizeof(download->error), "datagram %" PRIu64 " came instead of %" PRIu64, number,
                 download->next);
        return;
    }
    download->next++;
    if (download->t_first_byte == UNKNOWN)
        download->t_first_byte = now_ns();
    check_content(&download->content, (const char *)body, body_length);
}

static void take_all(struct download *download, unsigned char *buffer)
{
    const uint64_t wanted = download->options->bytes;
    size_t segment;
    ssize_t length;

    while (download->error[0] == '\0' && (length = receive(download->fd, buffer, NULL, NULL, &segment)) > 0) {
        for (size_t at = 0; at < (size_t)length && download->error[0] == '\0'; at += segment)
            take(download, buffer + at, segment < (size_t)length - at ? segment : (size_t)length - at);
        if (download->content.received >= wanted && download->t_last_byte == UNKNOWN) {
            download->t_last_byte = now_ns();
            getrusage(RUSAGE_SELF, &download->after);
        }
        if (download->content.received - download->told >= WINDOW / 4 || download->t_last_byte != UNKNOWN)
            tell(download);
        if (download->t_last_byte != UNKNOWN)
            return;
    }
}

static void transfer(struct download *download)
{
    static unsigned char buffer[LARGEST];
    const int64_t deadline = now_ns() + (int64_t)(download->options->timeout_seconds * 1e9);
    struct pollfd polled = {.fd = download->fd, .events = POLLIN};

    ask(download);
    while (download->error[0] == '\0' && download->t_last_byte == UNKNOWN) {
        if (poll(&polled, 1, ASK_AGAIN_MS) == 0 && download->next == 0)
            ask(download);
        take_all(download, buffer);
        if (now_ns() >= deadline)
            fail(download, "timed out, the answer is not complete");
    }
}

static bool run(const struct options *options, int fd, uint64_t index)
{
    struct download download = {
        .options = options,
        .fd = fd,
        .content = {.options = options},
        .t_request_sent = UNKNOWN,
        .t_first_byte = UNKNOWN,
        .t_last_byte = UNKNOWN,
    };
    const char *problem = protect(&download.sends, options, false, true);
    int64_t t_close;
    bool content_ok;

    if (problem == NULL)
        problem = protect(&download.receives, options, true, false);
    if (problem != NULL)
        fail(&download, problem);
    else
        transfer(&download);
    problem = content_problem(&download.content);
    content_ok = problem == NULL;
    if (problem != NULL)
        fail(&download, problem);
    t_close = now_ns();
    event_begin("connection");
    event_integer("index", (int64_t)index);
    event_boolean("ok", download.error[0] == '\0');
    event_string("error", download.error[0] == '\0' ? NULL : download.error);
    /* the first packet is the request */
    event_integer("t_client_hello", download.t_request_sent);
    event_integer("t_request_sent", download.t_request_sent);
    event_integer("t_first_byte", download.t_first_byte);
    event_integer("t_last_byte", download.t_last_byte);
    event_integer("bytes_requested", (int64_t)content_requested(&download.content));
    event_integer("bytes_received", (int64_t)download.content.received);
    event_boolean("content_ok", content_ok);
    write_common(options, t_close, (int64_t)download.sent, (int64_t)download.next);
    write_cpu(&download.before, download.t_last_byte == UNKNOWN ? NULL : &download.after);
    event_end();
    EVP_CIPHER_CTX_free(download.sends.context);
    EVP_CIPHER_CTX_free(download.receives.context);
    return download.error[0] == '\0';
}

int main(int argc, char **argv)
{
    struct options options;
    const int fd = begin(&options, CLIENT, argc, argv);
    uint64_t failed = 0, done = 0;

    if (fd < 0)
        return -1 - fd;
    for (; done < options.connections; done++)
        failed += !run(&options, fd, done);
    event_own_final(done, failed);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILED;
}
