/* What the parts of this directory share. */
#ifndef QUICBED_PICOQUIC_INTERNAL_H
#define QUICBED_PICOQUIC_INTERNAL_H

#include "library.h"

#include <picotls.h>
#include <picoquic.h>
#include <picoquic_internal.h>
#include <picoquic_crypto_provider_api.h>
#include <tls_api.h>

#include <openssl/evp.h>
#include <openssl/x509.h>

struct endpoint {
    struct settings settings;
    struct application application;
    picoquic_quic_t *quic;
    struct connection *current; /* whose packets are read or written */
    const uint8_t *next_id;     /* the connection ID to choose next; NULL: what picoquic chose */
    ptls_key_exchange_algorithm_t *groups[2];
    ptls_cipher_suite_t *suites[2];
    uint16_t signatures[2];
    ptls_sign_certificate_t sign;
    ptls_verify_certificate_t verify;
    ptls_update_traffic_key_t keys, *own_keys;
    EVP_PKEY *key;
    X509_STORE *store;
};

struct connection {
    struct endpoint *endpoint;
    picoquic_cnx_t *cnx; /* NULL: a server's connection before its first packet, or after one that begins none */
    void *program;
    uint8_t id[ID_LENGTH];
    bool has_id, is_read, confirmed, full_size, has_active;
    uint64_t active; /* the stream that picoquic asks for data */
    unsigned int shares; /* that a client has made */
    uint16_t group, signature;
    long certificate_error;
    uint64_t error; /* picoquic's, of a connection that it forgot */
    picoquic_stateless_packet_t *answer; /* what is still to be sent of such a one */
    char reason[128];
};

/* tls.c: configures TLS; NULL, or why it is impossible. */
const char *configure_tls(struct endpoint *endpoint);
struct connection *connection_of(ptls_t *tls);
/* The endpoint of this process. */
extern struct endpoint *the_endpoint;
/* protection.c: takes packet protection out of the keys of an epoch as the settings say. */
void apply_protection(const struct settings *settings, picoquic_crypto_context_t *keys, bool encrypting);
/* groups.c: a group that picotls does not have, out of OpenSSL's algorithm of this name; NULL: none. */
ptls_key_exchange_algorithm_t *openssl_group(uint16_t group, const char *algorithm);

#endif
