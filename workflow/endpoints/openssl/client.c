/*
 * Client of the endpoint contract on OpenSSL's own QUIC: one thread, non-blocking, waiting in poll.
 *
 * OpenSSL works on the network only where SSL_handle_events is called (SSL_VALUE_EVENT_HANDLING_MODE_EXPLICIT), so that
 * every system call has its place here.
 */
#define _GNU_SOURCE
#include "quic.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <openssl/err.h>

enum {
    RECEIVE_CHUNK = 256 * 1024,
    FRAME_NEW_TOKEN = 0x07,      /* RFC 9000, 19.7 */
    FRAME_HANDSHAKE_DONE = 0x1e, /* RFC 9000, 19.20 */
};

struct connection {
    const struct options *options;
    struct datagrams datagrams;
    SSL *ssl, *stream;
    struct observed observed;
    int64_t t_request_sent, t_first_byte, t_last_byte;
    struct rusage usage_after;
    struct content_check content;
    bool content_ok, got_token;
    char error[512];
};

static int connection_slot;

/* ---- callbacks ---- */

static void on_message(int writing, int version, int type, const void *data, size_t length, SSL *ssl, void *argument)
{
    struct connection *connection = SSL_get_ex_data(ssl, connection_slot);
    const unsigned char *bytes = data;

    (void)version;
    (void)argument;
    if (connection == NULL || writing || length == 0)
        return;
    if (is_hello_retry_request(type, data, length))
        connection->observed.hello_retry_request = true;
    if (type != SSL3_RT_QUIC_FRAME_FULL)
        return;
    if (bytes[0] == FRAME_HANDSHAKE_DONE && connection->observed.t_handshake_confirmed == UNKNOWN)
        connection->observed.t_handshake_confirmed = now_ns();
    connection->got_token = connection->got_token || bytes[0] == FRAME_NEW_TOKEN;
}

static void on_state(const SSL *ssl, int where, int result)
{
    struct connection *connection = SSL_get_ex_data(ssl, connection_slot);

    (void)result;
    if (connection == NULL || (where & SSL_CB_HANDSHAKE_DONE) == 0
        || connection->observed.t_handshake_complete != UNKNOWN)
        return;
    connection->observed.t_handshake_complete = now_ns();
    connection->observed.handshake = datagrams_server(&connection->datagrams)->traffic;
}

static SSL_CTX *client_context(const struct options *options, const char **reason)
{
    SSL_CTX *context = make_context(options, reason);

    if (context != NULL) {
        SSL_CTX_set_msg_callback(context, on_message);
        SSL_CTX_set_info_callback(context, on_state);
    }
    return context;
}

/* ---- one connection ---- */

/* Notes the reason of a failure, unless there is one already. */
static void __attribute__((format(printf, 2, 3))) fail(struct connection *connection, const char *format, ...)
{
    va_list arguments;

    if (connection->error[0] != '\0')
        return;
    va_start(arguments, format);
    vsnprintf(connection->error, sizeof(connection->error), format, arguments);
    va_end(arguments);
}

static bool has_failed(const struct connection *connection)
{
    return connection->error[0] != '\0';
}

static bool open_connection(struct connection *connection, SSL_CTX *context)
{
    const struct options *options = connection->options;
    socklen_t length;
    const union address remote = make_address(options->address, options->port, &length);
    const char *reason = NULL;
    const int fd = open_socket(options, &reason);
    BIO *bio;

    connection->datagrams.fd = fd;
    if (fd >= 0)
        reason = datagrams_open(&connection->datagrams, fd, &remote, options->gso, options->gro);
    if (reason != NULL) {
        fail(connection, "%s", reason);
        return false;
    }
    connection->ssl = SSL_new(context);
    bio = datagrams_bio(&connection->datagrams);
    if (connection->ssl == NULL || bio == NULL || SSL_set_ex_data(connection->ssl, connection_slot, connection) != 1
        || SSL_set_blocking_mode(connection->ssl, 0) != 1
        || SSL_set_event_handling_mode(connection->ssl, SSL_VALUE_EVENT_HANDLING_MODE_EXPLICIT) != 1
        || SSL_set_default_stream_mode(connection->ssl, SSL_DEFAULT_STREAM_MODE_NONE) != 1
        || SSL_set_tlsext_host_name(connection->ssl, options->server_name) != 1
        || (options->verify && SSL_set1_host(connection->ssl, options->server_name) != 1)) {
        BIO_free(bio);
        fail(connection, "%s", openssl_error("OpenSSL cannot make a connection"));
        return false;
    }
    /* The BIO tells the address of the server. */
    SSL_set_bio(connection->ssl, bio, bio);
    SSL_set_connect_state(connection->ssl);
    return true;
}

static void request(struct connection *connection)
{
    char text[512];
    const int length = snprintf(text, sizeof(text), "GET /%s\r\n", requested(connection->options));
    size_t written = 0;

    connection->stream = SSL_new_stream(connection->ssl, 0);
    if (connection->stream == NULL
        || SSL_write_ex2(connection->stream, text, (size_t)length, SSL_WRITE_FLAG_CONCLUDE, &written) != 1
        || written != (size_t)length)
        fail(connection, "the request cannot be sent: %s", openssl_error("no stream"));
    connection->t_request_sent = now_ns();
}

/* Takes what has arrived; returns whether the answer is complete. */
static bool receive(struct connection *connection, char *buffer)
{
    size_t length;

    while (SSL_read_ex(connection->stream, buffer, RECEIVE_CHUNK, &length) == 1) {
        if (connection->t_first_byte == UNKNOWN)
            connection->t_first_byte = now_ns();
        check_content(&connection->content, buffer, length);
        if (connection->content.received >= connection->options->bytes && connection->t_last_byte == UNKNOWN) {
            connection->t_last_byte = now_ns();
            getrusage(RUSAGE_SELF, &connection->usage_after);
        }
    }
    switch (SSL_get_stream_read_state(connection->stream)) {
    case SSL_STREAM_STATE_FINISHED:
        if (connection->t_last_byte == UNKNOWN && connection->content.received == connection->options->bytes) {
            connection->t_last_byte = now_ns(); /* of no bytes */
            getrusage(RUSAGE_SELF, &connection->usage_after);
        }
        return true;
    case SSL_STREAM_STATE_OK:
    case SSL_STREAM_STATE_CONN_CLOSED:
        return false;
    default:
        fail(connection, "the server reset the stream");
        return true;
    }
}

static void exchange(struct connection *connection, char *buffer)
{
    const int64_t deadline = now_ns() + (int64_t)(connection->options->timeout_seconds * 1e9);
    bool done = false;

    /* Starts the connection; what it returns says no more than that the handshake is not complete. */
    SSL_do_handshake(connection->ssl);
    while (!done) {
        const uint64_t received = connection->content.received;

        ERR_clear_error();
        SSL_handle_events(connection->ssl);
        if (connection->stream == NULL && connection->observed.t_handshake_complete != UNKNOWN
            && SSL_is_init_finished(connection->ssl)) {
            request(connection);
            SSL_handle_events(connection->ssl);
        }
        if (connection->stream != NULL)
            done = receive(connection, buffer);
        if (!done && is_closed(connection->ssl, connection->error, sizeof(connection->error))) {
            fail(connection, "the server closed the connection after %" PRIu64 " bytes", connection->content.received);
            done = true;
        }
        if (!done && now_ns() >= deadline) {
            fail(connection, "timed out after %g s, %s", connection->options->timeout_seconds,
                 connection->observed.t_handshake_complete == UNKNOWN ? "the handshake is not complete"
                                                                      : "the answer is not complete");
            done = true;
        }
        /*
         * What was read is credit for the server (RFC 9000, 4.1), of which OpenSSL tells it in the next turn only. A server
         * that has used up the credit it had sends nothing that would end the wait.
         */
        if (!done && connection->content.received == received)
            wait_for_events(connection->ssl, &connection->datagrams, -1, deadline);
    }
}

static void close_connection(struct connection *connection)
{
    const uint64_t at_once = SSL_SHUTDOWN_FLAG_RAPID | SSL_SHUTDOWN_FLAG_NO_BLOCK | SSL_SHUTDOWN_FLAG_NO_STREAM_FLUSH;

    if (connection->ssl != NULL) {
        SSL_shutdown_ex(connection->ssl, at_once, NULL, 0);
        SSL_handle_events(connection->ssl); /* sends CONNECTION_CLOSE */
    }
    SSL_free(connection->stream);
    SSL_free(connection->ssl);
    if (connection->datagrams.fd >= 0)
        close(connection->datagrams.fd);
    connection->observed.t_close = now_ns();
}

static void check(struct connection *connection)
{
    const char *problem = content_problem(&connection->content);

    connection->content_ok = problem == NULL;
    if (problem != NULL)
        fail(connection, "%s", problem);
    else if (!has_failed(connection))
        contradiction(&connection->observed.negotiated, connection->options, connection->error,
                      sizeof(connection->error));
}

static void write_connection(struct connection *connection, uint64_t index)
{
    const struct peer *peer = connection->datagrams.peers == NULL ? NULL : datagrams_server(&connection->datagrams);
    const bool cpu_known = peer != NULL && peer->t_first_sent != UNKNOWN && connection->t_last_byte != UNKNOWN;

    event_begin("connection");
    event_integer("index", (int64_t)index);
    event_boolean("ok", !has_failed(connection));
    event_string("error", has_failed(connection) ? connection->error : NULL);
    event_integer("t_client_hello", peer == NULL ? UNKNOWN : peer->t_first_sent);
    event_integer("t_request_sent", connection->t_request_sent);
    event_integer("t_first_byte", connection->t_first_byte);
    event_integer("t_last_byte", connection->t_last_byte);
    event_integer("bytes_requested", (int64_t)content_requested(&connection->content));
    event_integer("bytes_received", (int64_t)connection->content.received);
    event_boolean("content_ok", connection->content_ok);
    write_observed(&connection->observed, peer, connection->options);
    event_integer("cpu_user_ns",
                  cpu_known ? user_ns(&connection->usage_after) - user_ns(&peer->usage_first) : UNKNOWN);
    event_integer("cpu_system_ns",
                  cpu_known ? system_ns(&connection->usage_after) - system_ns(&peer->usage_first) : UNKNOWN);
    event_end();
}

/* Downloads once and writes the event. Makes the context anew if it remembers a token. Returns whether all was well. */
static bool download(const struct options *options, SSL_CTX **context, uint64_t index, char *buffer)
{
    struct connection connection = {
        .options = options,
        .content = {.options = options},
        .observed = {.t_handshake_complete = UNKNOWN, .t_handshake_confirmed = UNKNOWN, .t_close = UNKNOWN},
        .t_request_sent = UNKNOWN,
        .t_first_byte = UNKNOWN,
        .t_last_byte = UNKNOWN,
    };
    const char *reason = NULL;

    if (open_connection(&connection, *context))
        exchange(&connection, buffer);
    if (connection.observed.t_handshake_complete != UNKNOWN)
        read_negotiated(connection.ssl, &connection.observed.negotiated);
    close_connection(&connection);
    check(&connection);
    if (connection.got_token) {
        SSL_CTX_free(*context);
        *context = client_context(options, &reason);
        if (*context == NULL)
            fail(&connection, "%s", reason);
    }
    write_connection(&connection, index);
    flush_key_log();
    datagrams_close(&connection.datagrams);
    return !has_failed(&connection);
}

/* ---- the program ---- */

int main(int argc, char **argv)
{
    struct options options;
    const char *reason;
    SSL_CTX *context;
    char *buffer;
    uint64_t failed = 0, done = 0;
    int probe;

    parse_options(&options, CLIENT, argc, argv);
    events_open(options.events);
    reason = unsupported_reason(&options);
    /* Every connection opens its own socket; this one tells what they will be like. */
    probe = reason != NULL ? -1 : open_socket(&options, &reason);
    event_start(&options, probe, options.congestion_control);
    if (probe < 0)
        return give_up("unsupported", EXIT_UNSUPPORTED, reason);
    close(probe);

    reason = start_openssl(&options);
    buffer = malloc(RECEIVE_CHUNK);
    if (reason == NULL && buffer == NULL)
        reason = "out of memory";
    if (reason != NULL)
        return give_up("error", EXIT_FAILED, reason);
    connection_slot = SSL_get_ex_new_index(0, NULL, NULL, NULL, NULL);
    context = client_context(&options, &reason);
    if (context == NULL)
        return give_up("error", EXIT_FAILED, reason);
    for (; done < options.connections && context != NULL; done++)
        failed += !download(&options, &context, done, buffer);
    event_own_final(done, failed);
    SSL_CTX_free(context);
    free(buffer);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILED;
}
