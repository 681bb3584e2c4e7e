/* What the client and the server on OpenSSL's QUIC share. */
#define _GNU_SOURCE
#include "quic.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <openssl/err.h>
#include <openssl/quic.h>
#include <openssl/x509_vfy.h>

/* ---- set-up ---- */

int open_socket(const struct options *options, const char **reason)
{
    socklen_t length;
    const union address address = make_address(options->address, options->port, &length);
    const int fd = socket(address.any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0) {
        *reason = strerror(errno);
        return -1;
    }
    *reason = configure_buffers(options, fd);
    if (*reason == NULL
        && (options->role == CLIENT ? connect(fd, &address.any, length) : bind(fd, &address.any, length)) != 0)
        *reason = strerror(errno);
    if (*reason != NULL) {
        close(fd);
        return -1;
    }
    return fd;
}

/* ---- waiting ---- */

void wait_for_events(SSL *ssl, const struct datagrams *datagrams, int other, int64_t until_ns)
{
    struct pollfd polled[] = {
        {.fd = datagrams->fd, .events = (short)(POLLIN | (SSL_net_write_desired(ssl) ? POLLOUT : 0))},
        {.fd = other, .events = POLLIN},
    };
    struct timespec timeout;
    struct timeval timer;
    int64_t wait_ns = -1;
    int infinite = 0;

    if (datagrams_pending(datagrams))
        return;
    if (SSL_get_event_timeout(ssl, &timer, &infinite) == 1 && !infinite)
        wait_ns = timer.tv_sec * INT64_C(1000000000) + timer.tv_usec * INT64_C(1000);
    if (until_ns != UNKNOWN) {
        int64_t left = until_ns - now_ns();

        left = left < 0 ? 0 : left;
        wait_ns = wait_ns < 0 || left < wait_ns ? left : wait_ns;
    }
    timeout = (struct timespec){.tv_sec = wait_ns / 1000000000, .tv_nsec = wait_ns % 1000000000};
    ppoll(polled, other < 0 ? 1 : 2, wait_ns < 0 ? NULL : &timeout, NULL);
}

/* ---- what happened ---- */

bool is_closed(SSL *ssl, char *error, size_t room)
{
    SSL_CONN_CLOSE_INFO info;
    char alert[96] = "", text[160] = "";
    const char *detail;
    long verified;
    bool sent, refused;

    if (SSL_get_conn_close_info(ssl, &info, sizeof(info)) != 1)
        return false;
    error[0] = '\0';
    if (info.error_code == 0)
        return true;
    sent = (info.flags & SSL_CONN_CLOSE_FLAG_LOCAL) != 0;
    verified = SSL_get_verify_result(ssl);
    if (info.reason != NULL)
        for (size_t i = 0; i < info.reason_len && i < sizeof(text) - 1; i++)
            text[i] = info.reason[i] >= ' ' && info.reason[i] <= '~' ? info.reason[i] : '?';
    refused = sent && verified != X509_V_OK && SSL_get_verify_mode(ssl) != SSL_VERIFY_NONE;
    detail = refused ? X509_verify_cert_error_string(verified) : text;
    if ((info.flags & SSL_CONN_CLOSE_FLAG_TRANSPORT) == 0)
        snprintf(error, room, "%s application error %llu: %s", sent ? "sent" : "received",
                 (unsigned long long)info.error_code, detail);
    else if (info.error_code == OSSL_QUIC_LOCAL_ERR_IDLE_TIMEOUT)
        snprintf(error, room, "nothing was received until the idle timeout");
    else if (info.error_code >= OSSL_QUIC_ERR_CRYPTO_ERR_BEGIN && info.error_code <= OSSL_QUIC_ERR_CRYPTO_ERR_END) {
        describe_alert(alert, sizeof(alert), (int)(info.error_code - OSSL_QUIC_ERR_CRYPTO_ERR_BEGIN), sent);
        snprintf(error, room, "%s%s%s", alert, detail[0] != '\0' ? ": " : "", detail);
    } else
        snprintf(error, room, "%s QUIC error 0x%llx: %s", sent ? "sent" : "received",
                 (unsigned long long)info.error_code, detail);
    return true;
}

void write_observed(const struct observed *observed, const struct peer *peer, const struct options *options)
{
    const bool complete = observed->t_handshake_complete != UNKNOWN;
    const struct traffic *handshake = complete && peer != NULL ? &observed->handshake : NULL;
    const struct traffic *whole = peer == NULL ? NULL : &peer->traffic;

    event_integer("t_handshake_complete", observed->t_handshake_complete);
    event_integer("t_handshake_confirmed", observed->t_handshake_confirmed);
    event_integer("t_close", observed->t_close);
    event_truth("hello_retry_request", complete ? observed->hello_retry_request : UNKNOWN);
    event_truth("retry", peer == NULL ? UNKNOWN : peer->retry);
    write_negotiated(&observed->negotiated);
    event_string("aead", !complete ? NULL : options->noop ? "noop" : "standard");
    event_string("header_protection", !complete ? NULL : options->header_protection ? "on" : "off");
    event_integer("handshake_packets_sent", handshake ? handshake->packets_sent : UNKNOWN);
    event_integer("handshake_packets_received", handshake ? handshake->packets_received : UNKNOWN);
    event_integer("handshake_bytes_sent", handshake ? handshake->bytes_sent : UNKNOWN);
    event_integer("handshake_bytes_received", handshake ? handshake->bytes_received : UNKNOWN);
    event_integer("packets_sent", whole ? whole->packets_sent : UNKNOWN);
    event_integer("packets_received", whole ? whole->packets_received : UNKNOWN);
    event_string("packets_lost", NULL);
}
