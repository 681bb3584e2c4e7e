/*
 * Client of the endpoint contract on libcurl: downloads on its easy interface, pages on its multi interface.
 *
 * A page is loaded as a browser does that knows all objects once it has the document: all are asked for at once then,
 * over the document's connection, with the multiplexing of HTTP/2 or HTTP/3.
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

/* Where libcurl keeps the sessions of earlier connections; NULL: nowhere. */
static CURLSH *sessions;

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
    connection->sockets++;
    if (connection->t_connect == UNKNOWN)
        connection->t_connect = now_ns();
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

/* What is asked for at a time: a download, a page's document, or an object of it. */
struct object {
    struct options options; /* those of the program, with its own size */
    struct connection *connection;
    struct content_check content;
    CURL *curl;
    CURLcode code;
    char url[1280], error[CURL_ERROR_SIZE];
};

static size_t on_content(char *data, size_t size, size_t count, void *argument)
{
    struct object *object = argument;
    struct connection *connection = object->connection;

    if (connection->t_first_byte == UNKNOWN)
        connection->t_first_byte = now_ns();
    check_content(&object->content, data, size * count);
    connection->received += size * count;
    if (connection->received >= connection->options->bytes && connection->t_last_byte == UNKNOWN) {
        connection->t_last_byte = now_ns();
        getrusage(RUSAGE_SELF, &connection->usage_after);
    }
    return size * count;
}

/* ---- one connection ---- */

/* `kept`: of a load over a connection that is open already; what handshake and packets it had is not of this load. */
static void write_connection(const struct connection *connection, uint64_t index, const char *error, bool content_ok,
                             bool kept)
{
    const struct options *options = connection->options;
    const bool complete = connection->t_handshake_complete != UNKNOWN;
    const bool cpu_known = connection->t_client_hello != UNKNOWN && connection->t_last_byte != UNKNOWN;

    event_begin("connection");
    event_integer("index", (int64_t)index);
    event_boolean("ok", error == NULL);
    event_string("error", error);
    event_integer("t_connect", connection->t_connect);
    event_integer("t_client_hello", kept ? UNKNOWN : connection->t_client_hello);
    event_integer("t_handshake_complete", kept ? UNKNOWN : connection->t_handshake_complete);
    event_integer("t_handshake_confirmed", kept ? UNKNOWN : connection->t_handshake_confirmed);
    event_truth("hello_retry_request", complete ? connection->hello_retry_request : UNKNOWN);
    event_truth("retry", connection->retry);
    event_integer("t_request_sent", connection->t_request_sent);
    event_integer("t_first_byte", connection->t_first_byte);
    event_integer("t_last_byte", connection->t_last_byte);
    event_integer("t_close", connection->t_close);
    event_integer("bytes_requested", (int64_t)(options->save != NULL ? connection->received : options->bytes));
    event_integer("bytes_received", (int64_t)connection->received);
    event_boolean("content_ok", content_ok);
    write_negotiated(&connection->negotiated);
    event_truth("resumed", complete ? connection->negotiated.resumed : UNKNOWN);
    event_truth("early_data", complete ? connection->negotiated.early_data : UNKNOWN);
    if (options->visit == KEPT_VISIT)
        event_boolean("kept", kept && connection->sockets == 1);
    event_string("aead", !complete ? NULL : options->noop ? "noop" : "standard");
    event_string("header_protection", !complete || !library.quic ? NULL : options->header_protection ? "on" : "off");
    event_integer("handshake_packets_sent", kept ? UNKNOWN : connection->handshake_packets_sent);
    event_integer("handshake_packets_received", kept ? UNKNOWN : connection->handshake_packets_received);
    event_integer("handshake_bytes_sent", kept ? UNKNOWN : connection->handshake_bytes_sent);
    event_integer("handshake_bytes_received", kept ? UNKNOWN : connection->handshake_bytes_received);
    event_integer("packets_sent", kept ? UNKNOWN : connection->packets_sent);
    event_integer("packets_received", kept ? UNKNOWN : connection->packets_received);
    event_integer("packets_lost", kept ? UNKNOWN : connection->packets_lost);
    event_integer("cpu_user_ns",
                  cpu_known ? user_ns(&connection->usage_after) - user_ns(&connection->usage_before) : UNKNOWN);
    event_integer("cpu_system_ns",
                  cpu_known ? system_ns(&connection->usage_after) - system_ns(&connection->usage_before) : UNKNOWN);
    event_end();
}

/*
 * Set-up of libcurl: of an earlier connection only its session is used again, or that one itself where it is kept.
 * Returns the first failure.
 */
static CURLcode configure(struct object *object, const char *server, struct curl_slist *connect_to, bool fresh)
{
    struct connection *connection = object->connection;
    const struct options *options = &object->options;
    const bool page = options->page_count > 0, stays = page || options->visit == KEPT_VISIT;
    CURL *curl = object->curl;
    CURLcode code = CURLE_OK;
    char *path = curl_easy_escape(NULL, requested(options), 0);

    if (path == NULL)
        return CURLE_OUT_OF_MEMORY;
    if (snprintf(object->url, sizeof(object->url), "%s/%s", server, path) >= (int)sizeof(object->url))
        code = CURLE_URL_MALFORMAT;
    curl_free(path);

#define SET(option, value) (code = code != CURLE_OK ? code : curl_easy_setopt(curl, option, value))
    SET(CURLOPT_ERRORBUFFER, object->error);
    SET(CURLOPT_URL, object->url);
    SET(CURLOPT_CONNECT_TO, connect_to);
    SET(CURLOPT_PROTOCOLS_STR, "https");
    SET(CURLOPT_FAILONERROR, 1L);
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_TIMEOUT_MS, (long)(options->timeout_seconds * 1e3));
    SET(CURLOPT_CONNECTTIMEOUT_MS, (long)(options->timeout_seconds * 1e3));
    SET(CURLOPT_FRESH_CONNECT, fresh ? 1L : 0L);
    SET(CURLOPT_FORBID_REUSE, stays ? 0L : 1L);
    /* The objects of a page wait for its connection instead of opening their own. */
    SET(CURLOPT_PIPEWAIT, page ? 1L : 0L);

    SET(CURLOPT_SSLVERSION, (long)(CURL_SSLVERSION_TLSv1_3 | CURL_SSLVERSION_MAX_TLSv1_3));
    SET(CURLOPT_SSL_SESSIONID_CACHE, sessions != NULL ? 1L : 0L);
    SET(CURLOPT_SHARE, sessions);
    SET(CURLOPT_SSL_OPTIONS, (long)(options->visit == EARLY_DATA_VISIT ? CURLSSLOPT_EARLYDATA : 0));
    SET(CURLOPT_SSL_VERIFYPEER, options->verify ? 1L : 0L);
    SET(CURLOPT_SSL_VERIFYHOST, options->verify ? 2L : 0L);
    SET(CURLOPT_CAINFO, options->ca);
    SET(CURLOPT_CAPATH, NULL);

    SET(CURLOPT_SOCKOPTFUNCTION, on_socket);
    SET(CURLOPT_SOCKOPTDATA, connection);
    SET(CURLOPT_CLOSESOCKETFUNCTION, on_close);
    SET(CURLOPT_CLOSESOCKETDATA, connection);
    SET(CURLOPT_WRITEFUNCTION, on_content);
    SET(CURLOPT_WRITEDATA, object);
    SET(CURLOPT_PRIVATE, object);
#undef SET
    return code != CURLE_OK ? code : configure_transport(curl, connection);
}

/* Lets libcurl work until every transfer that was added has ended. */
static void finish_transfers(CURLM *multi)
{
    int running = 1, queued;

    while (running > 0) {
        CURLMcode code = curl_multi_perform(multi, &running);

        if (code == CURLM_OK && running > 0)
            code = curl_multi_poll(multi, NULL, 0, 1000, NULL);
        if (code != CURLM_OK)
            return; /* the transfers keep the code they have from the start */
    }
    for (const CURLMsg *message; (message = curl_multi_info_read(multi, &queued)) != NULL;) {
        struct object *object;

        if (message->msg == CURLMSG_DONE
            && curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **)&object) == CURLE_OK)
            object->code = message->data.result;
    }
}

/*
 * Loads the document of a page, which is its first object, and then all others over the same connection. It stays open
 * until `multi` is cleaned up.
 */
static void load_page(CURLM *multi, struct object *objects, size_t count)
{
    const int64_t begin = now_ns();

    for (size_t i = 0; i < count; i++) {
        if (objects[i].code != CURLE_OK)
            return;
        objects[i].code = CURLE_FAILED_INIT; /* until libcurl says how it ended */
    }
    if (multi == NULL || curl_multi_setopt(multi, CURLMOPT_MAX_HOST_CONNECTIONS, 1L) != CURLM_OK)
        return;
    if (curl_multi_add_handle(multi, objects[0].curl) == CURLM_OK)
        finish_transfers(multi);
    if (objects[0].code == CURLE_OK) {
        const int64_t left_ms = (int64_t)(objects[0].options.timeout_seconds * 1e3) - (now_ns() - begin) / 1000000;

        for (size_t i = 1; i < count; i++) {
            curl_easy_setopt(objects[i].curl, CURLOPT_TIMEOUT_MS, (long)(left_ms > 0 ? left_ms : 1));
            curl_multi_add_handle(multi, objects[i].curl);
        }
        finish_transfers(multi);
    }
    for (size_t i = 0; i < count; i++)
        curl_multi_remove_handle(multi, objects[i].curl);
}

/* Whether the content is right; the text says why the object `index` of `count` did not arrive, or is empty. */
static bool describe_problem(struct object *object, size_t index, size_t count, char *text, size_t room)
{
    const char *alert = object->connection->alert, *content = content_problem(&object->content);
    int used = 0;

    text[0] = '\0';
    if (object->code == CURLE_OK && content == NULL)
        return true;
    if (count > 1)
        used = snprintf(text, room, "object %zu of %zu (%s): ", index, count, requested(&object->options));
    if (object->code != CURLE_OK)
        snprintf(text + used, room - (size_t)used, "%s%s%s",
                 object->error[0] != '\0' ? object->error : curl_easy_strerror(object->code),
                 alert[0] != '\0' ? "; " : "", alert);
    else
        snprintf(text + used, room - (size_t)used, "%s", content);
    return content == NULL;
}

/* Says what a connection did otherwise than it was to, with what an earlier one has left. */
static void check_visit(const struct connection *connection, bool later, char *error, size_t room)
{
    const struct options *options = connection->options;
    const struct negotiated *negotiated = &connection->negotiated;

    if (negotiated->resumed != (later && resumes(options)))
        snprintf(error, room, negotiated->resumed ? "a session was resumed that was to be new"
                                                  : "the session of the connection before was not resumed");
    else if (negotiated->early_data != (later && options->visit == EARLY_DATA_VISIT))
        snprintf(error, room, negotiated->early_data ? "early data was sent that was not asked for"
                                                     : "no early data was sent, or the server refused it");
}

static struct connection unknown_connection(const struct options *options)
{
    return (struct connection){
        .options = options,
        .fd = -1,
        .t_connect = UNKNOWN,
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
}

/* A connection, and the handle whose connections it is one of; NULL for a single download, which needs none. */
struct channel {
    struct connection connection;
    CURLM *multi;
};

/* Forgets the load before over a connection that stays open, and takes the time at which the next one begins. */
static void begin_again(struct connection *connection)
{
    connection->received = 0;
    connection->t_request_sent = connection->t_first_byte = connection->t_last_byte = UNKNOWN;
    connection->t_close = UNKNOWN;
    getrusage(RUSAGE_SELF, &connection->usage_before);
    connection->t_connect = now_ns();
}

/*
 * Downloads once, or loads a page, and writes the event; returns whether all was well. Over a fresh connection, or where
 * it is kept over that of the first load, which the last one closes.
 */
static bool download(struct channel *channel, const struct options *options, uint64_t index, const char *server,
                     struct curl_slist *connect_to)
{
    struct connection *connection = &channel->connection;
    const bool keeps = options->visit == KEPT_VISIT, again = keeps && index > 0;
    const size_t count = options->page_count > 0 ? options->page_count : 1;
    struct object *objects = calloc(count, sizeof(*objects));
    char error[CURL_ERROR_SIZE + 512] = "";
    bool content_ok = true;

    if (objects == NULL)
        exit(give_up("error", EXIT_FAILED, "out of memory"));
    if (!again) {
        *connection = unknown_connection(options);
        channel->multi = keeps || options->page_count > 0 ? curl_multi_init() : NULL;
    }
    for (size_t i = 0; i < count; i++) {
        struct object *object = &objects[i];

        object->options = *options;
        if (options->page_count > 0)
            object->options.bytes = options->page[i];
        object->connection = connection;
        object->content.options = &object->options;
        object->curl = curl_easy_init();
        object->code = object->curl == NULL ? CURLE_OUT_OF_MEMORY
                                            : configure(object, server, connect_to, i == 0 && !again);
    }
    if (again)
        begin_again(connection);
    else
        before_connection(connection);
    if (keeps || options->page_count > 0)
        load_page(channel->multi, objects, count);
    else if (objects[0].code == CURLE_OK)
        objects[0].code = curl_easy_perform(objects[0].curl);
    /* The connection is closed with its handle at the latest, through on_close(). */
    if (!keeps || index + 1 == options->connections)
        curl_multi_cleanup(channel->multi);
    for (size_t i = 0; i < count; i++)
        curl_easy_cleanup(objects[i].curl);

    for (size_t i = 0; i < count; i++) {
        char problem[sizeof(error)];

        content_ok = describe_problem(&objects[i], i + 1, count, problem, sizeof(problem)) && content_ok;
        if (error[0] == '\0')
            memcpy(error, problem, sizeof(error));
    }
    if (connection->socket_error != NULL)
        snprintf(error, sizeof(error), "%s", connection->socket_error);
    else if (again && connection->sockets > 1) {
        const size_t used = strlen(error);

        /* It was closed before this load, or within it, of which its objects tell. */
        snprintf(error + used, sizeof(error) - used, "%s",
                 used > 0 ? "; libcurl opened another connection"
                          : "the connection of the first load did not stay open: libcurl opened another one");
    } else if (error[0] == '\0')
        contradiction(&connection->negotiated, options, error, sizeof(error));
    if (error[0] == '\0')
        check_visit(connection, index > 0, error, sizeof(error));
    if (error[0] == '\0' && connection->sockets != 1)
        snprintf(error, sizeof(error), "libcurl opened %d connections instead of one", connection->sockets);
    free(objects);
    write_connection(connection, index, error[0] == '\0' ? NULL : error, content_ok, again);
    return error[0] == '\0';
}

/* ---- the program ---- */

int main(int argc, char **argv)
{
    struct options options;
    struct channel channel = {.multi = NULL};
    struct curl_slist *connect_to;
    const char *reason;
    char server[1024], route[512], message[256];
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
    if (resumes(&options)
        && ((sessions = curl_share_init()) == NULL
            || curl_share_setopt(sessions, CURLSHOPT_SHARE, CURL_LOCK_DATA_SSL_SESSION) != CURLSHE_OK))
        return give_up("error", EXIT_FAILED, "libcurl cannot keep sessions");

    ipv6 = strchr(options.address, ':') != NULL;
    if (snprintf(server, sizeof(server), "https://%s:%d", options.server_name, options.port) >= (int)sizeof(server))
        return give_up("error", EXIT_FAILED, "--server-name is too long");
    /* An empty host and port in front match the URL's, so that its name is never looked up. */
    snprintf(route, sizeof(route), ipv6 ? "::[%s]:%d" : "::%s:%d", options.address, options.port);
    connect_to = curl_slist_append(NULL, route);
    if (connect_to == NULL)
        return give_up("error", EXIT_FAILED, "out of memory");

    for (uint64_t i = 0; i < options.connections; i++) {
        failed += !download(&channel, &options, i, server, connect_to);
        if (key_log != NULL)
            fflush(key_log);
    }
    event_own_final(options.connections, failed);
    curl_slist_free_all(connect_to);
    curl_share_cleanup(sessions);
    curl_global_cleanup();
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILED;
}
