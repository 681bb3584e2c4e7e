/*
 * Client of the endpoint contract on libcurl's easy interface.
 *
 * libcurl does what it does for its users, with its default buffers (larger ones gained nothing). The times come from
 * callbacks of the TLS library, of the transport and of libcurl, so that nothing has to be added to either.
 */
#define _GNU_SOURCE
#include "download.h"
#include "sockets.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- callbacks ---- */

static FILE *key_log;

void log_secret(const SSL *ssl, const char *line)
{
    (void)ssl;
    if (key_log != NULL)
        fprintf(key_log, "%s\n", line);
}

void note_client_hello(struct connection *connection)
{
    if (connection->t_client_hello == UNKNOWN) {
        getrusage(RUSAGE_SELF, &connection->usage_before);
        connection->t_client_hello = now_ns();
    }
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

    before_close(connection, fd);
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

static void write_connection(const struct connection *connection, uint64_t index, const char *error, bool content_ok)
{
    const struct options *options = connection->options;
    const bool complete = connection->t_handshake_complete != UNKNOWN;
    const bool cpu_known = connection->t_client_hello != UNKNOWN && connection->t_last_byte != UNKNOWN;

    event_begin("connection");
    event_integer("index", (int64_t)index);
    event_boolean("ok", error == NULL);
    event_string("error", error);
    event_integer("t_client_hello", connection->t_client_hello);
    event_integer("t_handshake_complete", connection->t_handshake_complete);
    event_integer("t_handshake_confirmed", connection->t_handshake_confirmed);
    event_truth("hello_retry_request", complete ? connection->hello_retry_request : UNKNOWN);
    event_truth("retry", connection->retry);
    event_integer("t_request_sent", connection->t_request_sent);
    event_integer("t_first_byte", connection->t_first_byte);
    event_integer("t_last_byte", connection->t_last_byte);
    event_integer("t_close", connection->t_close);
    event_integer("bytes_requested", (int64_t)content_requested(&connection->content));
    event_integer("bytes_received", (int64_t)connection->content.received);
    event_boolean("content_ok", content_ok);
    write_negotiated(&connection->negotiated);
    event_string("aead", !complete ? NULL : options->noop ? "noop" : "standard");
    event_string("header_protection", !complete || !library.quic ? NULL : options->header_protection ? "on" : "off");
    event_integer("handshake_packets_sent", connection->handshake_packets_sent);
    event_integer("handshake_packets_received", connection->handshake_packets_received);
    event_integer("handshake_bytes_sent", connection->handshake_bytes_sent);
    event_integer("handshake_bytes_received", connection->handshake_bytes_received);
    event_integer("packets_sent", connection->packets_sent);
    event_integer("packets_received", connection->packets_received);
    event_integer("packets_lost", connection->packets_lost);
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
    SET(CURLOPT_FAILONERROR, 1L);
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_TIMEOUT_MS, (long)(options->timeout_seconds * 1e3));
    SET(CURLOPT_CONNECTTIMEOUT_MS, (long)(options->timeout_seconds * 1e3));
    SET(CURLOPT_FRESH_CONNECT, 1L);
    SET(CURLOPT_FORBID_REUSE, 1L);

    SET(CURLOPT_SSLVERSION, (long)(CURL_SSLVERSION_TLSv1_3 | CURL_SSLVERSION_MAX_TLSv1_3));
    SET(CURLOPT_SSL_SESSIONID_CACHE, 0L);
    SET(CURLOPT_SSL_VERIFYPEER, options->verify ? 1L : 0L);
    SET(CURLOPT_SSL_VERIFYHOST, options->verify ? 2L : 0L);
    SET(CURLOPT_CAINFO, options->ca);
    SET(CURLOPT_CAPATH, NULL);

    SET(CURLOPT_SOCKOPTFUNCTION, on_socket);
    SET(CURLOPT_SOCKOPTDATA, connection);
    SET(CURLOPT_CLOSESOCKETFUNCTION, on_close);
    SET(CURLOPT_CLOSESOCKETDATA, connection);
    SET(CURLOPT_WRITEFUNCTION, on_content);
    SET(CURLOPT_WRITEDATA, connection);
#undef SET
    return code != CURLE_OK ? code : configure_transport(curl, connection);
}

/* Downloads once over a fresh connection and writes its event; returns whether all was well. */
static bool download(const struct options *options, uint64_t index, const char *url,
                     struct curl_slist *connect_to)
{
    struct connection connection = {
        .options = options,
        .content = {.options = options},
        .fd = -1,
        .t_client_hello = UNKNOWN,
        .t_handshake_complete = UNKNOWN,
        .t_handshake_confirmed = UNKNOWN,
        .t_request_sent = UNKNOWN,
        .t_first_byte = UNKNOWN,
        .t_last_byte = UNKNOWN,
        .t_close = UNKNOWN,
        .retry = UNKNOWN,
        .handshake_packets_sent = UNKNOWN,
        .handshake_packets_received = UNKNOWN,
        .handshake_bytes_sent = UNKNOWN,
        .handshake_bytes_received = UNKNOWN,
        .packets_sent = UNKNOWN,
        .packets_received = UNKNOWN,
        .packets_lost = UNKNOWN,
    };
    char curl_error[CURL_ERROR_SIZE] = "", error[CURL_ERROR_SIZE + 512] = "";
    const char *problem;
    CURL *curl = curl_easy_init();
    CURLcode code = curl == NULL ? CURLE_OUT_OF_MEMORY : configure(curl, &connection, url, connect_to, curl_error);

    before_connection(&connection);
    if (code == CURLE_OK)
        code = curl_easy_perform(curl);
    /* The connection is closed with the handle at the latest, through on_close(). */
    curl_easy_cleanup(curl);

    problem = content_problem(&connection.content);
    if (connection.socket_error != NULL)
        snprintf(error, sizeof(error), "%s", connection.socket_error);
    else if (code != CURLE_OK)
        snprintf(error, sizeof(error), "%s%s%s", curl_error[0] != '\0' ? curl_error : curl_easy_strerror(code),
                 connection.alert[0] != '\0' ? "; " : "", connection.alert);
    else if (problem != NULL)
        snprintf(error, sizeof(error), "%s", problem);
    else
        contradiction(&connection.negotiated, options, error, sizeof(error));
    write_connection(&connection, index, error[0] == '\0' ? NULL : error, problem == NULL);
    return error[0] == '\0';
}

/* ---- the program ---- */

int main(int argc, char **argv)
{
    struct options options;
    struct curl_slist *connect_to;
    struct rusage usage;
    const char *reason;
    char url[1280], route[512], message[256], *path;
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

    /* The key log is written here, after the transfer, and not by the TLS library or libcurl. */
    reason = start_tls(&options);
    if (reason != NULL)
        return give_up("error", EXIT_FAILED, reason);
    if (options.key_log != NULL && (key_log = fopen(options.key_log, "ae")) == NULL) {
        snprintf(message, sizeof(message), "--key-log %s: %s", options.key_log, strerror(errno));
        return give_up("error", EXIT_FAILED, message);
    }
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return give_up("error", EXIT_FAILED, "libcurl cannot be initialised");

    ipv6 = strchr(options.address, ':') != NULL;
    path = curl_easy_escape(NULL, requested(&options), 0);
    if (path == NULL)
        return give_up("error", EXIT_FAILED, "out of memory");
    if (snprintf(url, sizeof(url), "https://%s:%d/%s", options.server_name, options.port, path) >= (int)sizeof(url))
        return give_up("error", EXIT_FAILED, "--server-name is too long");
    curl_free(path);
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
