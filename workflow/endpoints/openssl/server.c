/*
 * Server of the endpoint contract on OpenSSL's own QUIC: one thread, non-blocking, waiting in poll.
 *
 * OpenSSL works on the network only where SSL_handle_events is called (SSL_VALUE_EVENT_HANDLING_MODE_EXPLICIT). Which
 * peer a connection belongs to, which OpenSSL does not tell, is taken from the first datagram it sends.
 */
#define _GNU_SOURCE
#include "quic.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <openssl/err.h>

enum {
    PERIODS = 16,    /* of the content in the block that is written at once */
    MOST_CLOSING = 8 /* connections kept for their closing period (RFC 9000, 10.2.1) only */
};

struct connection {
    struct connection *next;
    SSL *ssl, *stream;
    struct peer *peer;
    int64_t t_accept;
    struct rusage usage_before;
    struct observed observed;
    char request[NAME_MAX + 16];
    size_t request_length;
    bool asked;
    const char *file; /* what is sent, NULL: content made in memory */
    uint64_t wanted, sent;
    bool concluded;
    bool held;     /* see on_client_hello() */
    bool reported; /* its event is written, OpenSSL still has to say goodbye */
};

struct server {
    const struct options *options;
    struct datagrams datagrams;
    SSL *listener;
    struct connection *connections;
    char *block;
    uint64_t count, failed;
    bool again; /* OpenSSL has something to do although nothing arrived */
};

static struct server server;
static int connection_slot;

/* ---- callbacks ---- */

/* What is known of a connection; made when it is first heard of. */
static struct connection *connection_of(SSL *ssl)
{
    struct connection *connection = SSL_get_ex_data(ssl, connection_slot);

    if (connection != NULL)
        return connection;
    connection = calloc(1, sizeof(*connection));
    if (connection == NULL || SSL_set_ex_data(ssl, connection_slot, connection) != 1) {
        free(connection);
        return NULL;
    }
    connection->ssl = ssl;
    connection->t_accept = UNKNOWN;
    connection->observed = (struct observed){
        .t_handshake_complete = UNKNOWN,
        .t_handshake_confirmed = UNKNOWN,
        .t_close = UNKNOWN,
    };
    return connection;
}

static void bind_peer(struct connection *connection)
{
    if (connection->peer != NULL || server.datagrams.last_sent_to == NULL || server.datagrams.last_sent_to->bound)
        return;
    connection->peer = server.datagrams.last_sent_to;
    connection->t_accept = connection->peer->t_first_received;
    connection->usage_before = connection->peer->usage_first;
    peer_bind(connection->peer);
}

static void on_message(int writing, int version, int type, const void *data, size_t length, SSL *ssl, void *argument)
{
    struct connection *connection;

    (void)version;
    (void)argument;
    if (type == SSL3_RT_HANDSHAKE && length > 0) {
        connection = connection_of(ssl);
        if (connection == NULL)
            return;
        if (!writing && *(const unsigned char *)data == SSL3_MT_CLIENT_HELLO)
            SSL_set_msg_callback(ssl, on_message); /* for datagrams too, which SSL_CTX_set_msg_callback does not do */
        if (is_hello_retry_request(type, data, length))
            connection->observed.hello_retry_request = true;
    } else if (type == SSL3_RT_QUIC_DATAGRAM && writing) {
        connection = SSL_get_ex_data(ssl, connection_slot);
        if (connection != NULL)
            bind_peer(connection);
        SSL_set_msg_callback(ssl, NULL);
    }
}

static void on_state(const SSL *ssl, int where, int result)
{
    struct connection *connection = SSL_get_ex_data(ssl, connection_slot);

    (void)result;
    if (connection == NULL || (where & SSL_CB_HANDSHAKE_DONE) == 0
        || connection->observed.t_handshake_complete != UNKNOWN)
        return;
    connection->observed.t_handshake_complete = now_ns();
    /* RFC 9001, 4.1.2: at the server a complete handshake is a confirmed one. */
    connection->observed.t_handshake_confirmed = connection->observed.t_handshake_complete;
    if (connection->peer != NULL)
        connection->observed.handshake = connection->peer->traffic;
}

/* Whether a list of two-byte code points in a ClientHello has one. */
static bool offers(const unsigned char *list, size_t length, uint16_t code_point)
{
    for (size_t i = 0; i + 1 < length; i += 2)
        if ((list[i] << 8 | list[i + 1]) == code_point)
            return true;
    return false;
}

static bool extension_offers(SSL *ssl, unsigned int extension, uint16_t code_point)
{
    const unsigned char *list;
    size_t length;

    return SSL_client_hello_get0_ext(ssl, extension, &list, &length) == 1 && length >= 2
           && offers(list + 2, length - 2, code_point); /* after the length of the list */
}

/*
 * Holds a handshake that will be refused for one turn of the event loop. A connection that fails before it has sent any
 * packet is dropped by OpenSSL without a word (ch_start_terminating() in ssl/quic/quic_channel.c); in the turn that is
 * gained it acknowledges the ClientHello, and the alert then reaches the client.
 */
static int on_client_hello(SSL *ssl, int *alert, void *argument)
{
    const struct options *options = argument;
    struct connection *connection = connection_of(ssl);
    const unsigned char *ciphers;
    const size_t length = SSL_client_hello_get0_ciphers(ssl, &ciphers);
    const SSL_CIPHER *cipher = sk_SSL_CIPHER_value(SSL_get_ciphers(ssl), 0);

    (void)alert;
    if (connection == NULL || connection->held
        || (extension_offers(ssl, TLSEXT_TYPE_supported_groups, options->group->code_point)
            && extension_offers(ssl, TLSEXT_TYPE_signature_algorithms, options->signature->code_point)
            && cipher != NULL && offers(ciphers, length, SSL_CIPHER_get_protocol_id(cipher))))
        return SSL_CLIENT_HELLO_SUCCESS;
    connection->held = server.again = true;
    return SSL_CLIENT_HELLO_RETRY;
}

/* ---- connections ---- */

static void write_connection(struct connection *connection, const char *error)
{
    const bool cpu_known = connection->peer != NULL;
    struct rusage usage;

    if (connection->observed.t_handshake_complete != UNKNOWN)
        read_negotiated(connection->ssl, &connection->observed.negotiated);
    connection->observed.t_close = now_ns();
    getrusage(RUSAGE_SELF, &usage);
    event_begin("connection");
    event_integer("index", (int64_t)server.count);
    event_boolean("ok", error == NULL);
    event_string("error", error);
    event_integer("t_accept", connection->t_accept);
    event_integer("bytes_sent", (int64_t)connection->sent);
    write_observed(&connection->observed, connection->peer, server.options);
    event_integer("cpu_user_ns", cpu_known ? user_ns(&usage) - user_ns(&connection->usage_before) : UNKNOWN);
    event_integer("cpu_system_ns", cpu_known ? system_ns(&usage) - system_ns(&connection->usage_before) : UNKNOWN);
    event_end();
    flush_key_log();
    server.count++;
    server.failed += error != NULL;
}

/* Begins to serve a connection; it is forgotten if there is no memory for it. */
static void adopt(SSL *ssl)
{
    /* Without it a write says only that it has to be repeated, not that OpenSSL has taken a part and wants to send it. */
    const long mode = SSL_MODE_ENABLE_PARTIAL_WRITE;
    struct connection *connection = connection_of(ssl);

    if (connection == NULL || SSL_set_event_handling_mode(ssl, SSL_VALUE_EVENT_HANDLING_MODE_EXPLICIT) != 1
        || SSL_set_default_stream_mode(ssl, SSL_DEFAULT_STREAM_MODE_NONE) != 1
        || SSL_set_incoming_stream_policy(ssl, SSL_INCOMING_STREAM_POLICY_ACCEPT, 0) != 1
        || (SSL_set_mode(ssl, mode) & mode) == 0) { /* accepted connections do not have the mode of the SSL_CTX */
        event_reason("error", "a connection cannot be accepted: %s", openssl_error("out of memory"));
        free(connection);
        SSL_free(ssl);
        return;
    }
    connection->next = server.connections;
    server.connections = connection;
}

static void reset_stream(struct connection *connection)
{
    const SSL_STREAM_RESET_ARGS arguments = {.quic_error_code = 1};

    SSL_stream_reset(connection->stream, &arguments, sizeof(arguments));
    connection->concluded = true;
}

/* Reads "GET /<n>\r\n" or "GET /<name>\r\n". */
static void read_request(struct connection *connection)
{
    const struct file *file = NULL;
    size_t length;
    char *end, *number = connection->request + strlen("GET /");

    while (connection->request_length < sizeof(connection->request) - 1
           && SSL_read_ex(connection->stream, connection->request + connection->request_length,
                          sizeof(connection->request) - 1 - connection->request_length, &length)
                  == 1)
        connection->request_length += length;
    end = memchr(connection->request, '\n', connection->request_length);
    if (end == NULL && connection->request_length < sizeof(connection->request) - 1
        && SSL_get_stream_read_state(connection->stream) == SSL_STREAM_STATE_OK)
        return;
    connection->asked = true;
    errno = 0;
    if (end != NULL && end > number && end[-1] == '\r' && strncmp(connection->request, "GET /", strlen("GET /")) == 0
        && (file = find_file(server.options, number, (size_t)(end - 1 - number))) != NULL) {
        connection->file = file->data;
        connection->wanted = file->length;
        return;
    }
    if (end != NULL && strncmp(connection->request, "GET /", strlen("GET /")) == 0 && isdigit((unsigned char)*number)) {
        connection->wanted = strtoull(number, &end, 10);
        if (errno == 0 && strncmp(end, "\r\n", 2) == 0)
            return;
    }
    connection->request[0] = '\0'; /* told in the event as no request at all */
    reset_stream(connection);
}

/* Writes what OpenSSL takes of the answer; returns whether it took any. */
static bool answer(struct connection *connection)
{
    const size_t block = (size_t)PERIODS * CONTENT_PERIOD;
    bool progress = false;

    while (!connection->concluded) {
        const size_t at = connection->sent % CONTENT_PERIOD;
        const uint64_t left = connection->wanted - connection->sent;
        const size_t length = left < block - at ? (size_t)left : block - at;
        const char *data = connection->file != NULL ? connection->file + connection->sent : server.block + at;
        const bool last = length == left;
        size_t written = 0;

        if (length == 0) {
            connection->concluded = SSL_stream_conclude(connection->stream, 0) == 1;
            return true;
        }
        if (SSL_write_ex2(connection->stream, data, length, last ? SSL_WRITE_FLAG_CONCLUDE : 0, &written) != 1)
            break;
        progress = progress || written > 0;
        connection->sent += written;
        connection->concluded = last && written == length;
        if (written < length)
            break;
    }
    return progress;
}

static void report(struct connection *connection, const char *closed)
{
    char error[600] = "";

    if (closed[0] != '\0')
        snprintf(error, sizeof(error), "%s", closed);
    else if (!connection->asked)
        snprintf(error, sizeof(error), "the client closed the connection without a request");
    else if (connection->request[0] == '\0')
        snprintf(error, sizeof(error), "the request is not \"GET /<n>\"%s",
                 server.options->file_count > 0 ? " nor for a file of --www" : "");
    else if (connection->sent < connection->wanted)
        snprintf(error, sizeof(error), "the client closed the connection after %" PRIu64 " of %" PRIu64 " bytes",
                 connection->sent, connection->wanted);
    write_connection(connection, error[0] == '\0' ? NULL : error);
    connection->reported = true;
}

/* Serves a connection; returns whether OpenSSL was given something to do. */
static bool serve(struct connection *connection)
{
    char closed[512];

    if (connection->reported)
        return false;
    if (is_closed(connection->ssl, closed, sizeof(closed))) {
        report(connection, closed);
        return false;
    }
    if (connection->observed.t_handshake_complete == UNKNOWN)
        return false;
    if (connection->stream == NULL)
        connection->stream = SSL_accept_stream(connection->ssl, SSL_ACCEPT_STREAM_NO_BLOCK);
    if (connection->stream != NULL && !connection->asked)
        read_request(connection);
    return connection->asked && !connection->concluded && answer(connection);
}

/*
 * Whether a reported connection can go: at once if the client closed it, for there is nothing left to say to it (RFC
 * 9000, 10.2.2); if this side did, when its closing period is over, so that a lost CONNECTION_CLOSE is sent again.
 */
static bool is_over(struct connection *connection)
{
    SSL_CONN_CLOSE_INFO info;

    return connection->reported
           && (SSL_get_conn_close_info(connection->ssl, &info, sizeof(info)) != 1
               || (info.flags & SSL_CONN_CLOSE_FLAG_LOCAL) == 0
               || SSL_shutdown_ex(connection->ssl, SSL_SHUTDOWN_FLAG_RAPID | SSL_SHUTDOWN_FLAG_NO_BLOCK, NULL, 0) == 1);
}

static void forget(struct connection *connection)
{
    SSL_free(connection->stream);
    SSL_free(connection->ssl);
    if (connection->peer != NULL)
        peer_release(connection->peer);
    free(connection);
}

static bool serve_all(void)
{
    struct connection **at = &server.connections;
    bool progress = false;
    int closing = 0;

    while (*at != NULL) {
        struct connection *connection = *at;

        progress = serve(connection) || progress;
        if (is_over(connection) || (connection->reported && ++closing > MOST_CLOSING)) {
            *at = connection->next;
            forget(connection);
        } else {
            at = &connection->next;
        }
    }
    return progress;
}

/* ---- the program ---- */

static bool is_stopped(int signals)
{
    struct signalfd_siginfo signal_info;

    return read(signals, &signal_info, sizeof(signal_info)) == (ssize_t)sizeof(signal_info);
}

/* Lets OpenSSL work on the network and serves the connections; returns whether OpenSSL was given something to do. */
static bool turn(void)
{
    server.again = false;
    ERR_clear_error();
    SSL_handle_events(server.listener);
    while (SSL_get_accept_connection_queue_len(server.listener) > 0) {
        SSL *ssl = SSL_accept_connection(server.listener, SSL_ACCEPT_CONNECTION_NO_BLOCK);

        if (ssl == NULL)
            break;
        adopt(ssl);
    }
    return serve_all() || server.again;
}

static void run(int signals)
{
    bool progress = false;

    while (!is_stopped(signals)) {
        if (!progress)
            wait_for_events(server.listener, &server.datagrams, signals, UNKNOWN);
        progress = turn();
    }
    turn(); /* a client may have closed its connection just before */
    while (server.connections != NULL) {
        struct connection *connection = server.connections;

        server.connections = connection->next;
        if (!connection->reported) {
            write_connection(connection, "the server was stopped");
            SSL_shutdown_ex(connection->ssl,
                            SSL_SHUTDOWN_FLAG_RAPID | SSL_SHUTDOWN_FLAG_NO_BLOCK | SSL_SHUTDOWN_FLAG_NO_STREAM_FLUSH,
                            NULL, 0);
            SSL_handle_events(server.listener);
        }
        forget(connection);
    }
}

static const char *make_block(void)
{
    server.block = malloc((size_t)PERIODS * CONTENT_PERIOD);
    if (server.block == NULL)
        return "out of memory";
    for (int i = 0; i < PERIODS; i++)
        memcpy(server.block + (size_t)i * CONTENT_PERIOD, content_period(), CONTENT_PERIOD);
    return NULL;
}

static const char *listen_on(SSL_CTX *context)
{
    const struct options *options = server.options;
    BIO *bio;

    SSL_CTX_set_msg_callback(context, on_message);
    SSL_CTX_set_info_callback(context, on_state);
    SSL_CTX_set_client_hello_cb(context, on_client_hello, (void *)options);
    server.listener = SSL_new_listener(context, options->retry ? 0 : SSL_LISTENER_FLAG_NO_VALIDATE);
    bio = datagrams_bio(&server.datagrams);
    if (server.listener == NULL || bio == NULL)
        return "out of memory";
    SSL_set_bio(server.listener, bio, bio);
    if (SSL_set_blocking_mode(server.listener, 0) != 1 || SSL_listen(server.listener) != 1)
        return openssl_error("OpenSSL cannot listen");
    return NULL;
}

int main(int argc, char **argv)
{
    struct options options;
    SSL_CTX *context = NULL;
    const char *reason;
    union address address;
    socklen_t length = sizeof(address);
    int fd, signals;

    parse_options(&options, SERVER, argc, argv);
    events_open(options.events);
    server.options = &options;
    reason = unsupported_reason(&options);
    fd = reason != NULL ? -1 : open_socket(&options, &reason);
    event_start(&options, fd, options.congestion_control);
    if (unsupported_reason(&options) != NULL)
        return give_up("unsupported", EXIT_UNSUPPORTED, reason);
    if (fd < 0) {
        char message[320];
        snprintf(message, sizeof(message), "--listen %s:%d: %s", options.address, options.port, reason);
        return give_up("error", EXIT_FAILED, message);
    }
    signals = stop_signals(0, NULL);
    if (signals < 0 || getsockname(fd, &address.any, &length) != 0)
        return give_up("error", EXIT_FAILED, strerror(errno));

    reason = start_openssl(&options);
    if (reason == NULL)
        reason = make_block();
    if (reason == NULL)
        reason = datagrams_open(&server.datagrams, fd, NULL, options.gso, options.gro);
    if (reason == NULL) {
        connection_slot = SSL_get_ex_new_index(0, NULL, NULL, NULL, NULL);
        context = make_context(&options, &reason);
    }
    if (context != NULL)
        reason = listen_on(context);
    if (reason != NULL)
        return give_up("error", EXIT_FAILED, reason);
    event_ready(&options, ntohs(address.v4.sin_port));

    run(signals);
    SSL_free(server.listener);
    SSL_CTX_free(context);
    datagrams_close(&server.datagrams);
    event_own_final(server.count, server.failed);
    return EXIT_SUCCESS;
}
