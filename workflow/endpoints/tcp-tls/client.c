/*
 * Client of the endpoint contract over TCP and TLS 1.3: libcurl's easy interface on OpenSSL.
 *
 * libcurl does what it does for its users, with its default buffers (larger ones gained nothing). The times come from
 * OpenSSL's callbacks and from the write callback, so that nothing has to be added to either library.
 */
#define _GNU_SOURCE
#include "openssl.h"
#include "tcp.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <curl/curl.h>
#include <openssl/ssl.h>

struct connection {
    const struct options *options;

    int64_t t_client_hello, t_handshake_complete, t_request_sent, t_first_byte, t_last_byte, t_close;
    struct rusage usage_before, usage_after;
    struct content_check content;

    struct negotiated negotiated;
    int hello_retry_request;
    char alert[96];
    int fd;
    struct tcp_info handshake, whole;
    bool handshake_known, whole_known;
    const char *socket_error;
};

/* ---- callbacks ---- */

/* Where an SSL_CTX keeps its connection. */
static int connection_slot;

static bool read_tcp_info(int fd, struct tcp_info *info)
{
    socklen_t length = sizeof(*info);

    memset(info, 0, sizeof(*info));
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &length) == 0;
}

/* Takes the times of ClientHello and request, just before OpenSSL hands them to the socket; then removes itself. */
static void on_message(int writing, int version, int type, const void *data, size_t length, SSL *ssl, void *argument)
{
    struct connection *connection = argument;

    (void)version;
    if (is_hello_retry_request(type, data, length))
        connection->hello_retry_request = true;
    if (!writing || length == 0)
        return;
    if (type == SSL3_RT_HANDSHAKE && *(const unsigned char *)data == SSL3_MT_CLIENT_HELLO) {
        if (connection->t_client_hello == UNKNOWN) {
            getrusage(RUSAGE_SELF, &connection->usage_before);
            connection->t_client_hello = now_ns();
        }
    } else if (type == SSL3_RT_INNER_CONTENT_TYPE && *(const unsigned char *)data == SSL3_RT_APPLICATION_DATA) {
        connection->t_request_sent = now_ns();
        SSL_set_msg_callback(ssl, NULL);
    }
}

/* Takes the end of the handshake and what was negotiated, or the alert that ended it. */
static void on_state(const SSL *ssl, int where, int result)
{
    struct connection *connection = SSL_CTX_get_ex_data(SSL_get_SSL_CTX(ssl), connection_slot);

    if ((where & SSL_CB_ALERT) != 0 && connection->t_handshake_complete == UNKNOWN)
        describe_alert(connection->alert, sizeof(connection->alert), result & 0xff, (where & SSL_CB_WRITE) != 0);
    if ((where & SSL_CB_HANDSHAKE_DONE) == 0 || connection->t_handshake_complete != UNKNOWN)
        return;
    connection->t_handshake_complete = now_ns();
    connection->handshake_known = read_tcp_info(connection->fd, &connection->handshake);
    read_negotiated(ssl, &connection->negotiated);
}

static FILE *key_log;

static void on_secret(const SSL *ssl, const char *line)
{
    (void)ssl;
    fprintf(key_log, "%s\n", line);
}

static CURLcode on_ssl_context(CURL *curl, void *ssl_context, void *argument)
{
    SSL_CTX *context = ssl_context;

    (void)curl;
    if (!allow_algorithms(context, ((struct connection *)argument)->options->signature))
        return CURLE_SSL_CERTPROBLEM;
    /* libcurl would complete the handshake and look at the certificate afterwards, and send no alert. */
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_ex_data(context, connection_slot, argument);
    SSL_CTX_set_info_callback(context, on_state);
    SSL_CTX_set_msg_callback(context, on_message);
    SSL_CTX_set_msg_callback_arg(context, argument);
    if (key_log != NULL)
        SSL_CTX_set_keylog_callback(context, on_secret);
    return CURLE_OK;
}

static int on_socket(void *argument, curl_socket_t fd, curlsocktype purpose)
{
    struct connection *connection = argument;

    (void)purpose;
    connection->fd = fd;
    connection->socket_error = configure_socket(connection->options, fd);
    return connection->socket_error == NULL ? CURL_SOCKOPT_OK : CURL_SOCKOPT_ERROR;
}

static int on_close(void *argument, curl_socket_t fd)
{
    struct connection *connection = argument;
    int result;

    connection->whole_known = read_tcp_info(fd, &connection->whole);
    result = close(fd);
    connection->t_close = now_ns();
    return result;
}

static size_t on_content(char *data, size_t size, size_t count, void *argument)
{
    struct connection *connection = argument;

    if (connection->t_first_byte == UNKNOWN)
        connection->t_first_byte = now_ns();
    check_content(&connection->content, data, size * count);
    if (connection->content.received >= connection->options->bytes && connection->t_last_byte == UNKNOWN) {
        connection->t_last_byte = now_ns();
        getrusage(RUSAGE_SELF, &connection->usage_after);
    }
    return size * count;
}

/* ---- one connection ---- */

static void write_connection(const struct connection *connection, uint64_t index, const char *error)
{
    const struct tcp_info *handshake = connection->handshake_known ? &connection->handshake : NULL;
    const struct tcp_info *whole = connection->whole_known ? &connection->whole : NULL;
    const bool complete = connection->t_handshake_complete != UNKNOWN;
    const uint64_t received = connection->content.received;
    const bool cpu_known = connection->t_client_hello != UNKNOWN && connection->t_last_byte != UNKNOWN;

    event_begin("connection");
    event_integer("index", (int64_t)index);
    event_boolean("ok", error == NULL);
    event_string("error", error);
    event_integer("t_client_hello", connection->t_client_hello);
    event_integer("t_handshake_complete", connection->t_handshake_complete);
    event_string("t_handshake_confirmed", NULL);
    event_truth("hello_retry_request", complete ? connection->hello_retry_request : UNKNOWN);
    event_string("retry", NULL);
    event_integer("t_request_sent", connection->t_request_sent);
    event_integer("t_first_byte", connection->t_first_byte);
    event_integer("t_last_byte", connection->t_last_byte);
    event_integer("t_close", connection->t_close);
    event_integer("bytes_requested", (int64_t)connection->options->bytes);
    event_integer("bytes_received", (int64_t)received);
    event_boolean("content_ok", !connection->content.wrong && received == connection->options->bytes);
    write_negotiated(&connection->negotiated);
    event_string("aead", !complete ? NULL : connection->options->noop ? "noop" : "standard");
    event_string("header_protection", NULL);
    event_integer("handshake_packets_sent", handshake ? (int64_t)handshake->tcpi_segs_out : UNKNOWN);
    event_integer("handshake_packets_received", handshake ? (int64_t)handshake->tcpi_segs_in : UNKNOWN);
    event_integer("handshake_bytes_sent", handshake ? (int64_t)handshake->tcpi_bytes_sent : UNKNOWN);
    event_integer("handshake_bytes_received", handshake ? (int64_t)handshake->tcpi_bytes_received : UNKNOWN);
    event_integer("packets_sent", whole ? (int64_t)whole->tcpi_segs_out : UNKNOWN);
    event_integer("packets_received", whole ? (int64_t)whole->tcpi_segs_in : UNKNOWN);
    event_integer("packets_lost", whole ? (int64_t)whole->tcpi_total_retrans : UNKNOWN);
    event_integer("cpu_user_ns",
                  cpu_known ? user_ns(&connection->usage_after) - user_ns(&connection->usage_before) : UNKNOWN);
    event_integer("cpu_system_ns",
                  cpu_known ? system_ns(&connection->usage_after) - system_ns(&connection->usage_before) : UNKNOWN);
    event_end();
}

/* Set-up of libcurl for one connection: nothing of an earlier one is used again. Returns the first failure. */
static CURLcode configure(CURL *curl, struct connection *connection, const char *url, struct curl_slist *connect_to,
                          char *error)
{
    const struct options *options = connection->options;
    CURLcode code = CURLE_OK;

#define SET(option, value) (code = code != CURLE_OK ? code : curl_easy_setopt(curl, option, value))
    SET(CURLOPT_ERRORBUFFER, error);
    SET(CURLOPT_URL, url);
    SET(CURLOPT_CONNECT_TO, connect_to);
    SET(CURLOPT_PROTOCOLS_STR, "https");
    SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    SET(CURLOPT_FAILONERROR, 1L);
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_TIMEOUT_MS, (long)(options->timeout_seconds * 1e3));
    SET(CURLOPT_CONNECTTIMEOUT_MS, (long)(options->timeout_seconds * 1e3));
    SET(CURLOPT_FRESH_CONNECT, 1L);
    SET(CURLOPT_FORBID_REUSE, 1L);
    SET(CURLOPT_TCP_NODELAY, 1L);

    SET(CURLOPT_SSLVERSION, (long)(CURL_SSLVERSION_TLSv1_3 | CURL_SSLVERSION_MAX_TLSv1_3));
    SET(CURLOPT_TLS13_CIPHERS, options->cipher->iana);
    SET(CURLOPT_SSL_EC_CURVES, options->group->tls_name);
    SET(CURLOPT_SSL_SESSIONID_CACHE, 0L);
    SET(CURLOPT_SSL_VERIFYPEER, 1L);
    SET(CURLOPT_SSL_VERIFYHOST, 2L);
    SET(CURLOPT_CAINFO, options->ca);
    SET(CURLOPT_CAPATH, NULL);

    SET(CURLOPT_SSL_CTX_FUNCTION, on_ssl_context);
    SET(CURLOPT_SSL_CTX_DATA, connection);
    SET(CURLOPT_SOCKOPTFUNCTION, on_socket);
    SET(CURLOPT_SOCKOPTDATA, connection);
    SET(CURLOPT_CLOSESOCKETFUNCTION, on_close);
    SET(CURLOPT_CLOSESOCKETDATA, connection);
    SET(CURLOPT_WRITEFUNCTION, on_content);
    SET(CURLOPT_WRITEDATA, connection);
#undef SET
    return code;
}

/* Downloads once over a fresh connection and writes its event; returns whether all was well. */
static bool download(const struct options *options, uint64_t index, const char *url,
                     struct curl_slist *connect_to)
{
    struct connection connection = {
        .options = options,
        .fd = -1,
        .t_client_hello = UNKNOWN,
        .t_handshake_complete = UNKNOWN,
        .t_request_sent = UNKNOWN,
        .t_first_byte = UNKNOWN,
        .t_last_byte = UNKNOWN,
        .t_close = UNKNOWN,
    };
    char curl_error[CURL_ERROR_SIZE] = "", error[CURL_ERROR_SIZE + 256] = "";
    CURL *curl = curl_easy_init();
    CURLcode code = curl == NULL ? CURLE_OUT_OF_MEMORY : configure(curl, &connection, url, connect_to, curl_error);

    if (code == CURLE_OK)
        code = curl_easy_perform(curl);
    /* The connection is closed with the handle at the latest, through on_close(). */
    curl_easy_cleanup(curl);

    if (connection.socket_error != NULL)
        snprintf(error, sizeof(error), "%s", connection.socket_error);
    else if (code != CURLE_OK)
        snprintf(error, sizeof(error), "%s%s%s", curl_error[0] != '\0' ? curl_error : curl_easy_strerror(code),
                 connection.alert[0] != '\0' ? "; " : "", connection.alert);
    else if (connection.content.wrong)
        snprintf(error, sizeof(error), "wrong content at byte %" PRIu64, connection.content.first_wrong);
    else if (connection.content.received != options->bytes)
        snprintf(error, sizeof(error), "%" PRIu64 " of %" PRIu64 " bytes received", connection.content.received,
                 options->bytes);
    else
        contradiction(&connection.negotiated, options, error, sizeof(error));
    write_connection(&connection, index, error[0] == '\0' ? NULL : error);
    return error[0] == '\0';
}

/* ---- the program ---- */

int main(int argc, char **argv)
{
    struct options options;
    struct curl_slist *connect_to;
    struct rusage usage;
    const char *reason;
    char url[512], route[512], message[256];
    uint64_t failed = 0;
    bool ipv6;
    int probe;

    parse_options(&options, CLIENT, argc, argv);
    events_open(options.events);
    reason = unsupported_reason(&options);
    /* libcurl opens its sockets later; this one tells what they will be like. */
    probe = reason != NULL ? -1 : open_socket(&options, &reason);
    event_start(&options, probe, probe < 0 ? NULL : congestion_control_of(probe));
    if (reason != NULL)
        return give_up("unsupported", EXIT_UNSUPPORTED, reason);
    close(probe);

    /* The key log is written here, after the transfer, and not by OpenSSL or libcurl. */
    reason = start_openssl(options.cipher, options.noop);
    if (reason != NULL)
        return give_up("error", EXIT_FAILED, reason);
    if (options.key_log != NULL && (key_log = fopen(options.key_log, "ae")) == NULL) {
        snprintf(message, sizeof(message), "--key-log %s: %s", options.key_log, strerror(errno));
        return give_up("error", EXIT_FAILED, message);
    }
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return give_up("error", EXIT_FAILED, "libcurl cannot be initialised");
    connection_slot = SSL_CTX_get_ex_new_index(0, NULL, NULL, NULL, NULL);

    ipv6 = strchr(options.address, ':') != NULL;
    if (snprintf(url, sizeof(url), "https://%s:%d/%" PRIu64, options.server_name, options.port, options.bytes)
        >= (int)sizeof(url))
        return give_up("error", EXIT_FAILED, "--server-name is too long");
    /* An empty host and port in front match the URL's, so that its name is never looked up. */
    snprintf(route, sizeof(route), ipv6 ? "::[%s]:%d" : "::%s:%d", options.address, options.port);
    connect_to = curl_slist_append(NULL, route);
    if (connect_to == NULL)
        return give_up("error", EXIT_FAILED, "out of memory");

    for (uint64_t i = 0; i < options.connections; i++) {
        failed += !download(&options, i, url, connect_to);
        if (key_log != NULL)
            fflush(key_log);
    }
    getrusage(RUSAGE_SELF, &usage);
    event_final(options.connections, failed, &usage, run_delay_ns(getpid()), max_rss_bytes(getpid()));
    curl_slist_free_all(connect_to);
    curl_global_cleanup();
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILED;
}
