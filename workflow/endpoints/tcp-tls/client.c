/*
 * What the client over TCP and TLS adds to ../engine/curl/download.c: HTTP/1.1 and, for pages, HTTP/2; OpenSSL; the kernel's
 * counts.
 */
#define _GNU_SOURCE
#include "download.h"
#include "openssl.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

/* Where an SSL_CTX keeps its connection. */
static int connection_slot;

const char *start_tls(const struct options *options)
{
    const char *reason = start_openssl(options);

    if (reason == NULL)
        connection_slot = SSL_CTX_get_ex_new_index(0, NULL, NULL, NULL, NULL);
    return reason;
}

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
        note_client_hello(connection);
    } else if (type == (connection->options->tls12 ? SSL3_RT_HEADER : SSL3_RT_INNER_CONTENT_TYPE)
               && *(const unsigned char *)data == SSL3_RT_APPLICATION_DATA) {
        /* TLS 1.2 has the type of a record in its header alone. */
        if (connection->t_request_sent == UNKNOWN)
            connection->t_request_sent = now_ns();
        /* behind early data the handshake goes on, and over a connection that is kept a second request comes */
        if (connection->t_handshake_complete != UNKNOWN && connection->options->visit != KEPT_VISIT)
            SSL_set_msg_callback(ssl, NULL);
    }
}

/* Takes the end of the handshake and what was negotiated, or the alert that ended it. */
static void on_state(const SSL *ssl, int where, int result)
{
    struct connection *connection = SSL_CTX_get_ex_data(SSL_get_SSL_CTX(ssl), connection_slot);
    struct tcp_info info;

    if ((where & SSL_CB_ALERT) != 0 && connection->t_handshake_complete == UNKNOWN)
        describe_alert(connection->alert, sizeof(connection->alert), result & 0xff, (where & SSL_CB_WRITE) != 0);
    if ((where & SSL_CB_HANDSHAKE_DONE) == 0 || connection->t_handshake_complete != UNKNOWN)
        return;
    /* OpenSSL calls it done when early data can be sent, and again when it is */
    if (SSL_get_state(ssl) == TLS_ST_EARLY_DATA)
        return;
    connection->t_handshake_complete = now_ns();
    if (read_tcp_info(connection->fd, &info)) {
        connection->handshake_packets_sent = info.tcpi_segs_out;
        connection->handshake_packets_received = info.tcpi_segs_in;
        connection->handshake_bytes_sent = (int64_t)info.tcpi_bytes_sent;
        connection->handshake_bytes_received = (int64_t)info.tcpi_bytes_received;
    }
    read_negotiated(ssl, &connection->negotiated);
    if (!connection->negotiated.early_data)
        connection->t_request_sent = UNKNOWN; /* one that was refused is sent again */
}

static CURLcode on_ssl_context(CURL *curl, void *ssl_context, void *argument)
{
    const struct options *options = ((struct connection *)argument)->options;
    SSL_CTX *context = ssl_context;

    (void)curl;
    if (!allow_algorithms(context, options->signature))
        return CURLE_SSL_CERTPROBLEM;
    /* libcurl would complete the handshake and look at the certificate afterwards, and send no alert. */
    SSL_CTX_set_verify(context, options->verify ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, NULL);
    /* libcurl asks for no tickets of TLS 1.2, which are how a server resumes that keeps no sessions. */
    if (resumes(options))
        SSL_CTX_clear_options(context, SSL_OP_NO_TICKET);
    SSL_CTX_set_ex_data(context, connection_slot, argument);
    SSL_CTX_set_info_callback(context, on_state);
    SSL_CTX_set_msg_callback(context, on_message);
    SSL_CTX_set_msg_callback_arg(context, argument);
    if (options->key_log != NULL)
        SSL_CTX_set_keylog_callback(context, log_secret);
    return CURLE_OK;
}

CURLcode configure_transport(CURL *curl, struct connection *connection)
{
    const struct options *options = connection->options;
    CURLcode code = CURLE_OK;

#define SET(option, value) (code = code != CURLE_OK ? code : curl_easy_setopt(curl, option, value))
    SET(CURLOPT_HTTP_VERSION, (long)(options->page_count > 0 ? CURL_HTTP_VERSION_2TLS : CURL_HTTP_VERSION_1_1));
    SET(CURLOPT_TCP_NODELAY, 1L);
    SET(CURLOPT_TLS13_CIPHERS, options->cipher->iana);
    if (options->tls12) {
        SET(CURLOPT_SSLVERSION, (long)(CURL_SSLVERSION_TLSv1_2 | CURL_SSLVERSION_MAX_TLSv1_2));
        SET(CURLOPT_SSL_CIPHER_LIST, options->cipher->tls12_openssl);
    }
    SET(CURLOPT_SSL_EC_CURVES, options->group->tls_name);
    SET(CURLOPT_SSL_CTX_FUNCTION, on_ssl_context);
    SET(CURLOPT_SSL_CTX_DATA, connection);
#undef SET
    return code;
}

void before_connection(struct connection *connection)
{
    (void)connection;
}

void before_close(struct connection *connection, int fd)
{
    struct tcp_info info;

    if (read_tcp_info(fd, &info)) {
        connection->packets_sent = info.tcpi_segs_out;
        connection->packets_received = info.tcpi_segs_in;
        connection->packets_lost = info.tcpi_total_retrans;
    }
}
