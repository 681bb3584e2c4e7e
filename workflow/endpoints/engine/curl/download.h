/* What clients on libcurl share; an endpoint adds its transport and its TLS library. */
#ifndef QUICBED_DOWNLOAD_H
#define QUICBED_DOWNLOAD_H

#include "tls.h"

#include <curl/curl.h>
#include <openssl/ssl.h>

/* A connection as it is reported. Times and counts are UNKNOWN until they are known. */
struct connection {
    const struct options *options;

    int64_t t_connect, t_client_hello, t_handshake_complete, t_handshake_confirmed, t_request_sent, t_first_byte, t_last_byte;
    int64_t t_close;
    struct rusage usage_before, usage_after;
    uint64_t received; /* bytes of all that is asked for */

    struct negotiated negotiated;
    int hello_retry_request, retry;
    char alert[96];
    int fd;
    int sockets; /* opened so far */
    const char *socket_error;
    int64_t handshake_packets_sent, handshake_packets_received, handshake_bytes_sent, handshake_bytes_received;
    int64_t packets_sent, packets_received, packets_lost;
};

/* ---- what an endpoint has ---- */

/* Prepares the TLS library, before anything else of it is called; NULL, or why it does not do what is asked. */
const char *start_tls(const struct options *options);
/* Sets what differs between transports. */
CURLcode configure_transport(CURL *curl, struct connection *connection);
/* Called before a connection is tried, and just before its socket is closed. */
void before_connection(struct connection *connection);
void before_close(struct connection *connection, int fd);

/* ---- what all share ---- */

/* To be called just before the ClientHello is handed to the system. */
void note_client_hello(struct connection *connection);
/* For the TLS library's callback of secrets; does nothing without --key-log. */
void log_secret(const SSL *ssl, const char *line);

#endif
