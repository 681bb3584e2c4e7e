/*
 * Client of the endpoint contract over TCP and TLS 1.3: libcurl's easy interface on OpenSSL.
 *
 * libcurl does what it does for its users, with its default buffers (larger ones gained nothing). The times come from
 * OpenSSL's callbacks and from the write callback, so that nothing has to be added to either library.
 */
#define _GNU_SOURCE
#include "endpoint.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <curl/curl.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>

struct connection {
    const struct options *options;
    const char *period;

    int64_t t_client_hello, t_handshake_complete, t_request_sent, t_first_byte, t_last_byte, t_close;
    struct rusage usage_before, usage_after;
    uint64_t received;
    bool content_wrong;
    uint64_t first_wrong; /* offset of the first wrong byte, if content_wrong */

    char cipher[64], group[64], signature[64], alpn[16], tls_version[16];
    int fd;
    struct tcp_info handshake, whole;
    bool handshake_known, whole_known;
    const char *socket_error;
};

/* ---- what the TLS library really does ---- */

/* Encrypts a probe with the AEAD that TLS connections of this process get. Returns "noop", "standard" or NULL. */
static const char *observed_aead(const struct cipher *cipher)
{
    static const unsigned char key[EVP_MAX_KEY_LENGTH], iv[EVP_MAX_IV_LENGTH];
    unsigned char plain[64], sealed[64], tag[16], noop_tag[16];
    EVP_CIPHER *aead = EVP_CIPHER_fetch(NULL, cipher->openssl, NULL);
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    const char *observed = NULL;
    int length, rest;

    memcpy(plain, content_period(), sizeof(plain));
    memset(noop_tag, 0x2a, sizeof(noop_tag));
    if (aead != NULL && context != NULL && EVP_EncryptInit_ex2(context, aead, key, iv, NULL) == 1
        && EVP_EncryptUpdate(context, sealed, &length, plain, sizeof(plain)) == 1
        && EVP_EncryptFinal_ex(context, sealed + length, &rest) == 1
        && EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, sizeof(tag), tag) == 1)
        observed = memcmp(plain, sealed, sizeof(plain)) == 0 && memcmp(tag, noop_tag, sizeof(tag)) == 0 ? "noop"
                                                                                                       : "standard";
    EVP_CIPHER_CTX_free(context);
    EVP_CIPHER_free(aead);
    return observed;
}

/* ---- callbacks ---- */

/* Where an SSL_CTX keeps its connection. */
static int connection_slot;

static bool read_tcp_info(int fd, struct tcp_info *info)
{
    socklen_t length = sizeof(*info);

    memset(info, 0, sizeof(*info));
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &length) == 0;
}

static void copy_name(char *into, size_t room, const char *name)
{
    snprintf(into, room, "%s", name == NULL ? "" : name);
}

/* Takes the times of ClientHello and request, just before OpenSSL hands them to the socket; then removes itself. */
static void on_message(int writing, int version, int type, const void *data, size_t length, SSL *ssl, void *argument)
{
    struct connection *connection = argument;

    (void)version;
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

/* Takes the end of the handshake and what was negotiated. */
static void on_state(const SSL *ssl, int where, int result)
{
    struct connection *connection = SSL_CTX_get_ex_data(SSL_get_SSL_CTX(ssl), connection_slot);
    const unsigned char *alpn;
    const char *name;
    unsigned int length;

    (void)result;
    if ((where & SSL_CB_HANDSHAKE_DONE) == 0 || connection->t_handshake_complete != UNKNOWN)
        return;
    connection->t_handshake_complete = now_ns();
    connection->handshake_known = read_tcp_info(connection->fd, &connection->handshake);
    copy_name(connection->cipher, sizeof(connection->cipher), SSL_CIPHER_standard_name(SSL_get_current_cipher(ssl)));
    copy_name(connection->group, sizeof(connection->group), SSL_get0_group_name((SSL *)ssl));
    copy_name(connection->tls_version, sizeof(connection->tls_version), SSL_get_version(ssl));
    if (SSL_get0_peer_signature_name((SSL *)ssl, &name) == 1)
        copy_name(connection->signature, sizeof(connection->signature), name);
    SSL_get0_alpn_selected(ssl, &alpn, &length);
    snprintf(connection->alpn, sizeof(connection->alpn), "%.*s", (int)length, alpn == NULL ? "" : (const char *)alpn);
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

/* Compares what arrives with the content. After a wrong byte only lengths are counted. */
static size_t on_content(char *data, size_t size, size_t count, void *argument)
{
    struct connection *connection = argument;
    const size_t length = size * count;
    size_t done = 0;

    if (connection->t_first_byte == UNKNOWN)
        connection->t_first_byte = now_ns();
    while (done < length && !connection->content_wrong) {
        const size_t at = (connection->received + done) % CONTENT_PERIOD;
        const size_t piece = length - done < CONTENT_PERIOD - at ? length - done : CONTENT_PERIOD - at;

        if (memcmp(data + done, connection->period + at, piece) != 0) {
            size_t same = 0;
            while (data[done + same] == connection->period[at + same])
                same++;
            connection->content_wrong = true;
            connection->first_wrong = connection->received + done + same;
        }
        done += piece;
    }
    connection->received += length;
    if (connection->received >= connection->options->bytes && connection->t_last_byte == UNKNOWN) {
        connection->t_last_byte = now_ns();
        getrusage(RUSAGE_SELF, &connection->usage_after);
    }
    return length;
}

/* ---- one connection ---- */

static const char *known(const char *text)
{
    return text[0] == '\0' ? NULL : text;
}

static void write_connection(const struct connection *connection, uint64_t index, const char *aead, const char *error)
{
    const struct tcp_info *handshake = connection->handshake_known ? &connection->handshake : NULL;
    const struct tcp_info *whole = connection->whole_known ? &connection->whole : NULL;
    const bool cpu_known = connection->t_client_hello != UNKNOWN && connection->t_last_byte != UNKNOWN;

    event_begin("connection");
    event_integer("index", (int64_t)index);
    event_boolean("ok", error == NULL);
    event_string("error", error);
    event_integer("t_client_hello", connection->t_client_hello);
    event_integer("t_handshake_complete", connection->t_handshake_complete);
    event_integer("t_request_sent", connection->t_request_sent);
    event_integer("t_first_byte", connection->t_first_byte);
    event_integer("t_last_byte", connection->t_last_byte);
    event_integer("t_close", connection->t_close);
    event_integer("bytes_requested", (int64_t)connection->options->bytes);
    event_integer("bytes_received", (int64_t)connection->received);
    event_boolean("content_ok", !connection->content_wrong && connection->received == connection->options->bytes);
    event_string("cipher", known(connection->cipher));
    event_string("group", known(connection->group));
    event_string("signature", known(connection->signature));
    event_string("alpn", known(connection->alpn));
    event_string("tls_version", known(connection->tls_version));
    event_string("aead", connection->t_handshake_complete == UNKNOWN ? NULL : aead);
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
    SET(CURLOPT_SSL_EC_CURVES, options->group->iana);
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
static bool download(const struct options *options, uint64_t index, const char *aead, const char *url,
                     struct curl_slist *connect_to)
{
    struct connection connection = {
        .options = options,
        .period = content_period(),
        .fd = -1,
        .t_client_hello = UNKNOWN,
        .t_handshake_complete = UNKNOWN,
        .t_request_sent = UNKNOWN,
        .t_first_byte = UNKNOWN,
        .t_last_byte = UNKNOWN,
        .t_close = UNKNOWN,
    };
    char curl_error[CURL_ERROR_SIZE] = "", error[CURL_ERROR_SIZE + 128] = "";
    CURL *curl = curl_easy_init();
    CURLcode code = curl == NULL ? CURLE_OUT_OF_MEMORY : configure(curl, &connection, url, connect_to, curl_error);

    if (code == CURLE_OK)
        code = curl_easy_perform(curl);
    /* The connection is closed with the handle at the latest, through on_close(). */
    curl_easy_cleanup(curl);

    if (connection.socket_error != NULL)
        snprintf(error, sizeof(error), "%s", connection.socket_error);
    else if (code != CURLE_OK)
        snprintf(error, sizeof(error), "%s", curl_error[0] != '\0' ? curl_error : curl_easy_strerror(code));
    else if (connection.content_wrong)
        snprintf(error, sizeof(error), "wrong content at byte %" PRIu64, connection.first_wrong);
    else if (connection.received != options->bytes)
        snprintf(error, sizeof(error), "%" PRIu64 " of %" PRIu64 " bytes received", connection.received,
                 options->bytes);
    else if (strcmp(connection.cipher, options->cipher->iana) != 0)
        snprintf(error, sizeof(error), "negotiated %s instead of %s", connection.cipher, options->cipher->iana);
    else if (strcmp(connection.group, options->group->iana) != 0)
        snprintf(error, sizeof(error), "negotiated %s instead of %s", connection.group, options->group->iana);
    write_connection(&connection, index, aead, known(error));
    return error[0] == '\0';
}

/* ---- the program ---- */

/* Ends the program with an event of this kind. */
static int give_up(const char *kind, const char *reason, int exit_code)
{
    struct rusage usage;

    event_reason(kind, "%s", reason);
    fprintf(stderr, "%s\n", reason);
    getrusage(RUSAGE_SELF, &usage);
    event_final(0, 0, &usage, run_delay_ns(getpid()), max_rss_bytes(getpid()));
    return exit_code;
}

int main(int argc, char **argv)
{
    struct options options;
    struct curl_slist *connect_to;
    struct rusage usage;
    const char *reason, *aead;
    char url[512], route[512], message[256];
    uint64_t failed = 0;
    bool ipv6;
    int probe;

    parse_options(&options, CLIENT, argc, argv);
    events_open(&options);
    reason = unsupported_reason(&options);
    /* libcurl opens its sockets later; this one tells what they will be like. */
    probe = reason != NULL ? -1 : open_socket(&options, &reason);
    event_start(&options, probe);
    if (reason != NULL)
        return give_up("unsupported", reason, EXIT_UNSUPPORTED);
    close(probe);

    choose_openssl_configuration(&options);
    /* The key log is written here, after the transfer, and not by OpenSSL or libcurl. */
    unsetenv("SSLKEYLOGFILE");
    if (options.key_log != NULL && (key_log = fopen(options.key_log, "ae")) == NULL) {
        snprintf(message, sizeof(message), "--key-log %s: %s", options.key_log, strerror(errno));
        return give_up("error", message, EXIT_FAILED);
    }
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return give_up("error", "libcurl cannot be initialised", EXIT_FAILED);
    aead = observed_aead(options.cipher);
    if (aead == NULL || (strcmp(aead, "noop") == 0) != options.noop) {
        snprintf(message, sizeof(message), "OpenSSL's %s is %s, but --aead is %s; see %s", options.cipher->openssl,
                 aead == NULL ? "missing" : aead, options.noop ? "noop" : "standard", getenv("OPENSSL_CONF"));
        return give_up("error", message, EXIT_FAILED);
    }
    connection_slot = SSL_CTX_get_ex_new_index(0, NULL, NULL, NULL, NULL);

    ipv6 = strchr(options.address, ':') != NULL;
    if (snprintf(url, sizeof(url), "https://%s:%d/%" PRIu64, options.server_name, options.port, options.bytes)
        >= (int)sizeof(url))
        return give_up("error", "--server-name is too long", EXIT_FAILED);
    /* An empty host and port in front match the URL's, so that its name is never looked up. */
    snprintf(route, sizeof(route), ipv6 ? "::[%s]:%d" : "::%s:%d", options.address, options.port);
    connect_to = curl_slist_append(NULL, route);
    if (connect_to == NULL)
        return give_up("error", "out of memory", EXIT_FAILED);

    for (uint64_t i = 0; i < options.connections; i++) {
        failed += !download(&options, i, aead, url, connect_to);
        if (key_log != NULL)
            fflush(key_log);
    }
    getrusage(RUSAGE_SELF, &usage);
    event_final(options.connections, failed, &usage, run_delay_ns(getpid()), max_rss_bytes(getpid()));
    curl_slist_free_all(connect_to);
    curl_global_cleanup();
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILED;
}
