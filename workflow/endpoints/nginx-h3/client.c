/*
 * What the client over QUIC adds to ../engine/curl/download.c: HTTP/3, BoringSSL, and what ngtcp2 knows.
 *
 * libcurl shows its user neither its QUIC connection nor its datagrams, and sets less than the contract asks for. So the
 * linker passes some of libcurl's calls of ngtcp2 and of the system through the functions __wrap_* here (ld(1), --wrap).
 * They look, change settings, and call the function that was meant; no code of libcurl or ngtcp2 is changed. Connections
 * follow each other, so there is one at a time.
 */
#define _GNU_SOURCE
#include "boringssl.h"
#include "download.h"
#ifdef QUICBED_NOOP
#include "protection.h"
#endif

#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <string.h>
#include <sys/socket.h>

#include <ngtcp2/ngtcp2.h>

static struct connection *current;

/* The request left ngtcp2, but not yet this process. */
static bool request_waits;

/* Datagrams of the connection so far; bytes are UDP payload. */
static struct {
    int64_t sent, received, bytes_sent, bytes_received;
} datagrams;

const char *start_tls(const struct options *options)
{
#ifdef QUICBED_NOOP
    choose_protection(options);
#else
    (void)options;
#endif
    return NULL;
}

void before_connection(struct connection *connection)
{
    current = connection;
    request_waits = false;
    memset(&datagrams, 0, sizeof(datagrams));
}

void before_close(struct connection *connection, int fd)
{
    (void)connection;
    (void)fd;
}

/* ---- TLS ---- */

static void on_message(int writing, int version, int type, const void *data, size_t length, SSL *ssl, void *argument)
{
    (void)writing;
    (void)version;
    (void)ssl;
    if (is_hello_retry_request(type, data, length))
        ((struct connection *)argument)->hello_retry_request = true;
}

/* Takes the end of the handshake and what was negotiated, or the alert that ended it. */
static void on_state(const SSL *ssl, int where, int result)
{
    if ((where & SSL_CB_ALERT) != 0 && current->t_handshake_complete == UNKNOWN)
        describe_alert(current->alert, sizeof(current->alert), result & 0xff, (where & SSL_CB_WRITE) != 0);
    if ((where & SSL_CB_HANDSHAKE_DONE) == 0 || current->t_handshake_complete != UNKNOWN)
        return;
    current->t_handshake_complete = now_ns();
    current->handshake_packets_sent = datagrams.sent;
    current->handshake_packets_received = datagrams.received;
    current->handshake_bytes_sent = datagrams.bytes_sent;
    current->handshake_bytes_received = datagrams.bytes_received;
    read_negotiated(ssl, &current->negotiated);
}

static CURLcode on_ssl_context(CURL *curl, void *ssl_context, void *argument)
{
    struct connection *connection = argument;
    SSL_CTX *context = ssl_context;

    (void)curl;
    connection->socket_error = offer(context, connection->options);
    if (connection->socket_error != NULL)
        return CURLE_SSL_CIPHER;
    /* libcurl would complete the handshake and look at the certificate afterwards, and send no alert. */
    SSL_CTX_set_verify(context, connection->options->verify ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, NULL);
    SSL_CTX_set_info_callback(context, on_state);
    SSL_CTX_set_msg_callback(context, on_message);
    SSL_CTX_set_msg_callback_arg(context, argument);
    if (connection->options->key_log != NULL)
        SSL_CTX_set_keylog_callback(context, log_secret);
    return CURLE_OK;
}

CURLcode configure_transport(CURL *curl, struct connection *connection)
{
    CURLcode code = CURLE_OK;

#define SET(option, value) (code = code != CURLE_OK ? code : curl_easy_setopt(curl, option, value))
    SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_3ONLY);
    SET(CURLOPT_SSL_CTX_FUNCTION, on_ssl_context);
    SET(CURLOPT_SSL_CTX_DATA, connection);
#undef SET
    return code;
}

/* ---- ngtcp2 ---- */

static ngtcp2_callbacks callbacks_of_libcurl;

static int on_confirmed(ngtcp2_conn *conn, void *user_data)
{
    current->t_handshake_confirmed = now_ns();
    return callbacks_of_libcurl.handshake_confirmed == NULL ? 0
                                                            : callbacks_of_libcurl.handshake_confirmed(conn, user_data);
}

static int on_retry(ngtcp2_conn *conn, const ngtcp2_pkt_hd *header, void *user_data)
{
    current->retry = true;
    return callbacks_of_libcurl.recv_retry(conn, header, user_data);
}

int __real_ngtcp2_conn_client_new_versioned(ngtcp2_conn **, const ngtcp2_cid *, const ngtcp2_cid *, const ngtcp2_path *,
                                            uint32_t, int, const ngtcp2_callbacks *, int, const ngtcp2_settings *, int,
                                            const ngtcp2_transport_params *, const ngtcp2_mem *, void *);
int __wrap_ngtcp2_conn_client_new_versioned(ngtcp2_conn **conn, const ngtcp2_cid *destination, const ngtcp2_cid *source,
                                            const ngtcp2_path *path, uint32_t version, int callbacks_version,
                                            const ngtcp2_callbacks *callbacks, int settings_version,
                                            const ngtcp2_settings *settings, int parameters_version,
                                            const ngtcp2_transport_params *parameters, const ngtcp2_mem *memory,
                                            void *user_data)
{
    const size_t payload = (size_t)current->options->udp_payload;
    ngtcp2_callbacks own_callbacks = *callbacks;
    ngtcp2_settings own_settings = *settings;
    ngtcp2_transport_params own_parameters = *parameters;
    const int off = 0;

    callbacks_of_libcurl = *callbacks;
    own_callbacks.handshake_confirmed = on_confirmed;
    own_callbacks.recv_retry = on_retry;
    /* Datagrams of the size given, from the first; else ngtcp2 starts with 1200 bytes and probes for more. */
    own_settings.max_tx_udp_payload_size = payload;
    own_settings.no_tx_udp_payload_size_shaping = 1;
    own_settings.no_pmtud = 1;
    /* The only bound for nginx's path-MTU discovery, which ends at the interface's MTU otherwise. */
    own_parameters.max_udp_payload_size = payload;
    current->retry = false;
    /* libcurl switches it on for every socket. */
    if (!current->options->gro)
        setsockopt(current->fd, IPPROTO_UDP, UDP_GRO, &off, sizeof(off));
    return __real_ngtcp2_conn_client_new_versioned(conn, destination, source, path, version, callbacks_version,
                                                   &own_callbacks, settings_version, &own_settings, parameters_version,
                                                   &own_parameters, memory, user_data);
}

int __real_ngtcp2_conn_read_pkt_versioned(ngtcp2_conn *, const ngtcp2_path *, int, const ngtcp2_pkt_info *,
                                          const uint8_t *, size_t, ngtcp2_tstamp);
int __wrap_ngtcp2_conn_read_pkt_versioned(ngtcp2_conn *conn, const ngtcp2_path *path, int info_version,
                                          const ngtcp2_pkt_info *info, const uint8_t *datagram, size_t length,
                                          ngtcp2_tstamp time)
{
    datagrams.received++;
    datagrams.bytes_received += (int64_t)length;
    return __real_ngtcp2_conn_read_pkt_versioned(conn, path, info_version, info, datagram, length, time);
}

ngtcp2_ssize __real_ngtcp2_conn_writev_stream_versioned(ngtcp2_conn *, ngtcp2_path *, int, ngtcp2_pkt_info *, uint8_t *,
                                                        size_t, ngtcp2_ssize *, uint32_t, int64_t, const ngtcp2_vec *,
                                                        size_t, ngtcp2_tstamp);
ngtcp2_ssize __wrap_ngtcp2_conn_writev_stream_versioned(ngtcp2_conn *conn, ngtcp2_path *path, int info_version,
                                                        ngtcp2_pkt_info *info, uint8_t *datagram, size_t room,
                                                        ngtcp2_ssize *taken, uint32_t flags, int64_t stream,
                                                        const ngtcp2_vec *data, size_t count, ngtcp2_tstamp time)
{
    const size_t initial = (size_t)current->options->initial_size;
    ngtcp2_ssize length;

    /* ngtcp2 fills datagrams with Initial packets. */
    if (current->t_handshake_complete == UNKNOWN && room > initial)
        room = initial;
    length = __real_ngtcp2_conn_writev_stream_versioned(conn, path, info_version, info, datagram, room, taken, flags,
                                                        stream, data, count, time);
    /* Requests are all that the client sends on bidirectional streams, which have these numbers (RFC 9000, 2.1). */
    if (stream >= 0 && stream % 4 == 0 && taken != NULL && *taken > 0 && current->t_request_sent == UNKNOWN)
        request_waits = true;
    return length;
}

/* Takes the TLS alert the server closed the connection with, CRYPTO_ERROR (RFC 9001, section 4.8). */
static void note_close(const ngtcp2_ccerr *close)
{
    const uint64_t first = NGTCP2_CRYPTO_ERROR, last = NGTCP2_CRYPTO_ERROR | 0xff;

    if (current->alert[0] == '\0' && close->type == NGTCP2_CCERR_TYPE_TRANSPORT && close->error_code >= first
        && close->error_code <= last)
        describe_alert(current->alert, sizeof(current->alert), (int)(close->error_code - first), false);
}

void __real_ngtcp2_conn_del(ngtcp2_conn *);
void __wrap_ngtcp2_conn_del(ngtcp2_conn *conn)
{
    ngtcp2_conn_info info;

    if (conn != NULL) {
        ngtcp2_conn_get_conn_info2(conn, &info);
        current->packets_sent = (int64_t)info.pkt_sent;
        current->packets_received = (int64_t)info.pkt_recv;
        current->packets_lost = (int64_t)info.pkt_lost;
        note_close(ngtcp2_conn_get_ccerr(conn));
    }
    __real_ngtcp2_conn_del(conn);
}

/* ---- the system ---- */

/* Bytes of all datagrams but the last that the system is to cut a message into; 0 for one datagram. */
static size_t segment_of(const struct msghdr *message)
{
    uint16_t segment = 0;

    for (struct cmsghdr *control = CMSG_FIRSTHDR(message); control != NULL;
         control = CMSG_NXTHDR((struct msghdr *)message, control))
        if (control->cmsg_level == SOL_UDP && control->cmsg_type == UDP_SEGMENT)
            memcpy(&segment, CMSG_DATA(control), sizeof(segment));
    return segment;
}

ssize_t __real_sendmsg(int, const struct msghdr *, int);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags)
{
    const size_t segment = segment_of(message);
    ssize_t sent;

    if (segment != 0 && !current->options->gso) {
        errno = EIO; /* as of an interface that cannot; libcurl then does without */
        return -1;
    }
    note_client_hello(current);
    if (request_waits) {
        request_waits = false;
        current->t_request_sent = now_ns();
    }
    sent = __real_sendmsg(fd, message, flags);
    if (sent > 0) {
        datagrams.sent += segment == 0 ? 1 : (sent + (ssize_t)segment - 1) / (ssize_t)segment;
        datagrams.bytes_sent += sent;
    }
    return sent;
}
