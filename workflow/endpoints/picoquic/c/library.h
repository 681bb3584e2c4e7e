/*
 * picoquic for the endpoint programs: connections without input and output of their own, and TLS as the command line asks
 * for it. picoquic and picotls are not changed.
 */
#ifndef QUICBED_PICOQUIC_H
#define QUICBED_PICOQUIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

/* Length of the connection IDs that both roles choose. */
enum { ID_LENGTH = 16 };

/* What all connections of a program have in common. Numbers of algorithms are those of TLS. */
struct settings {
    bool server;
    bool retry;
    bool noop_aead;
    bool no_header_protection;
    uint16_t cipher, group, signature;
    uint16_t initial_size, udp_payload;
    uint64_t window;
    uint64_t idle_timeout_ms;
    const char *group_algorithm; /* OpenSSL's name of the group, of those that picotls does not have */
    const char *congestion_control;
    const char *alpn;
    const char *server_name; /* of a client */
    const char *ca;          /* of a client; NULL: any certificate is accepted */
    const char *certificate; /* of a server */
    const char *private_key; /* of a server */
    const char *key_log;     /* NULL: none */
};

/* What a connection asks of the program. */
struct application {
    /* Bytes of a stream have arrived, in order; `last` with the end of the stream. */
    void (*received)(void *program, uint64_t stream, const uint8_t *bytes, size_t length, bool last);
    /* The peer has given up sending on a stream, or wants nothing more of it. */
    void (*reset)(void *program, uint64_t stream, uint64_t code);
    /* The stream that has something to send; false: none has. */
    bool (*waiting)(void *program, uint64_t *stream);
    /* Bytes that the stream sends next, `room` at most; whether they are its last. */
    size_t (*available)(void *program, uint64_t stream, size_t room, bool *last);
    /* Writes them. */
    void (*write)(void *program, uint64_t stream, uint8_t *space, size_t length);
    /* An ID was made for the peer to use. */
    void (*new_id)(void *program, const uint8_t *id);
};

/* What is known of a connection. */
struct facts {
    bool established;
    bool confirmed; /* RFC 9001, 4.1.2 */
    bool ended;     /* on this side or the other, and the peer was told if it is to be told */
    bool retried;
    bool by_peer;
    bool of_application;
    bool idle; /* nothing arrived for too long */
    bool hello_retry_request;
    uint16_t cipher, group, signature;
    uint64_t code; /* of the error that ended it */
    uint64_t sent, received, lost;
    uint64_t draining_us;
    const char *reason; /* of the peer, or of the certificate; NULL: none */
    const char *alpn;
};

struct endpoint;
struct connection;

/* The clock of all functions, CLOCK_MONOTONIC in microseconds, which is read when they are called. */
uint64_t qp_now(void);
uint64_t qp_expiry(const struct connection *connection);

/* An endpoint, or NULL with a reason of one line. */
struct endpoint *qp_open(const struct settings *settings, const struct application *application, char *reason,
                         size_t room);

/* A client's connection, or NULL. */
struct connection *qp_connect(struct endpoint *endpoint, const struct sockaddr *peer, void *program);
/* A server's connection, which begins with the first Initial packet that it reads, and whose ID is `id`. */
struct connection *qp_accept(struct endpoint *endpoint, const uint8_t id[ID_LENGTH], void *program);
void qp_free(struct connection *connection);

void qp_read(struct connection *connection, uint8_t *datagram, size_t length, const struct sockaddr *from,
             const struct sockaddr *local);
/*
 * Writes the next datagrams, several of the same size and perhaps a shorter one if `many`. Returns their length in all, 0
 * if there is nothing to send.
 */
size_t qp_write(struct connection *connection, uint8_t *space, size_t room, bool many, size_t *size,
                struct sockaddr_storage *to);
/* Bytes of a full datagram for now. */
size_t qp_datagram_size(const struct connection *connection);
uint64_t qp_open_stream(struct connection *connection);
void qp_end(struct connection *connection, uint64_t code, const char *reason);
void qp_tell(struct connection *connection, struct facts *facts);
/* The connection IDs that the peer may use; returns their number, `most` at most. */
size_t qp_ids(const struct connection *connection, uint8_t (*ids)[ID_LENGTH], size_t most);

/* Writes a Retry packet that answers a datagram and has the client use `id`; returns its length, 0 for none. */
size_t qp_retry(struct endpoint *endpoint, uint8_t *datagram, size_t length, const struct sockaddr *from,
                const struct sockaddr *local, const uint8_t id[ID_LENGTH], uint8_t *space, size_t room);
/* Whether a token is of such a packet, for a client that now uses the ID `id`. */
bool qp_token_is_genuine(struct endpoint *endpoint, const uint8_t *token, size_t length, const struct sockaddr *from,
                         const uint8_t *id, size_t id_length);
bool qp_random(uint8_t *bytes, size_t length);

/* Whether this build has a group; `algorithm` as in struct settings. */
bool qp_has_group(uint16_t group, const char *algorithm);
/* Whether this build has a signature algorithm, `algorithm` being OpenSSL's name of a key that picotls does not know. */
bool qp_has_signature(uint16_t signature, const char *algorithm);
const char *qp_alert(unsigned int alert);
int qp_aes_hardware(void);
/* Why this build cannot run on this processor, or NULL. */
const char *qp_cannot_run(void);

/*
 * How datagrams pass between the program and the kernel: as it calls the kernel, many in one call, through io_uring, or
 * past the kernel's stack by AF_XDP. It is chosen before there is a socket.
 */
enum way { IO_SOCKET, IO_MMSG, IO_URING, IO_XDP };

void qp_choose_io(enum way way);
/* By which address the end of the link is found that AF_XDP is at: that of a client's peer, or a server's own. */
void qp_choose_place(const struct sockaddr *address, bool peer);
/* Why the kernel does not have what was chosen, or NULL. */
const char *qp_cannot_io(void);
/* Whether AF_XDP copies frames, and where its program is; NULL without it. */
const char *qp_io_mode(void);
/* What AF_XDP lost so far, or NULL. Before a transfer has finished, only what cannot go well is looked for. */
const char *qp_io_lost(bool finished);

/*
 * What the program `primitives` times, in flavour pq: with the very functions that connections use. Lengths are 0 where
 * it failed.
 */
struct exchange;
struct signer;

/* A client's share, and its length. */
size_t qp_share(uint16_t group, const char *algorithm, struct exchange **made);
/* The server's answer, to be freed with free(3), and its length. */
size_t qp_answer(uint16_t group, const char *algorithm, const struct exchange *client, uint8_t **answer);
bool qp_finish(struct exchange *client, const uint8_t *answer, size_t length);
void qp_forget(struct exchange *client);

/* Certificate and key of an algorithm, or NULL with a reason of one line. */
struct signer *qp_signer(uint16_t signature, const char *ca, const char *certificate, const char *private_key,
                         char *reason, size_t room);
/* The length of a signature, which is verified from then on. */
size_t qp_sign(struct signer *signer);
bool qp_verify(struct signer *signer);
/* Parses the certificate anew, and verifies it. */
bool qp_parse(struct signer *signer);
bool qp_verify_chain(struct signer *signer);
size_t qp_certificate_length(const struct signer *signer);

#endif
