/* Groups that picotls does not have, for the flavour pq: key exchange and key encapsulation of OpenSSL and its provider. */
#include "internal.h"

#ifdef QUICBED_PQ

#include <stdlib.h>
#include <string.h>

struct group {
    struct st_ptls_key_exchange_algorithm_t super;
    struct group *next;
    const char *algorithm;
    bool kem;
};

struct share {
    ptls_key_exchange_context_t super;
    const struct group *group;
    EVP_PKEY *key;
};

static EVP_PKEY *generate(const struct group *group, bool parameters)
{
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new_from_name(NULL, group->algorithm, NULL);
    EVP_PKEY *key = NULL;

    if (context == NULL || (parameters ? EVP_PKEY_paramgen_init(context) : EVP_PKEY_keygen_init(context)) <= 0
        || EVP_PKEY_CTX_set_group_name(context, group->algorithm) <= 0
        || (parameters ? EVP_PKEY_paramgen(context, &key) : EVP_PKEY_keygen(context, &key)) <= 0) {
        EVP_PKEY_free(key);
        key = NULL;
    }
    EVP_PKEY_CTX_free(context);
    return key;
}

/* The key that a share of the peer is. */
static EVP_PKEY *parse(const struct group *group, ptls_iovec_t share)
{
    EVP_PKEY *key = generate(group, true);

    if (key != NULL && EVP_PKEY_set1_encoded_public_key(key, share.base, share.len) == 1)
        return key;
    EVP_PKEY_free(key);
    return NULL;
}

/* The caller of picotls frees what it gets with free(3). */
static bool encode(EVP_PKEY *key, ptls_iovec_t *share)
{
    unsigned char *encoded = NULL;
    const size_t length = EVP_PKEY_get1_encoded_public_key(key, &encoded);

    *share = ptls_iovec_init(length == 0 ? NULL : malloc(length), length);
    if (share->base != NULL)
        memcpy(share->base, encoded, length);
    OPENSSL_free(encoded);
    return share->base != NULL;
}

static bool derive(EVP_PKEY *own, EVP_PKEY *other, ptls_iovec_t *secret)
{
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new_from_pkey(NULL, own, NULL);
    const bool done = context != NULL && EVP_PKEY_derive_init(context) == 1
                      && EVP_PKEY_derive_set_peer(context, other) == 1
                      && EVP_PKEY_derive(context, NULL, &secret->len) == 1
                      && (secret->base = malloc(secret->len)) != NULL
                      && EVP_PKEY_derive(context, secret->base, &secret->len) == 1;

    EVP_PKEY_CTX_free(context);
    return done;
}

static bool encapsulate(EVP_PKEY *peer, ptls_iovec_t *ciphertext, ptls_iovec_t *secret)
{
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new_from_pkey(NULL, peer, NULL);
    const bool done = context != NULL && EVP_PKEY_encapsulate_init(context, NULL) == 1
                      && EVP_PKEY_encapsulate(context, NULL, &ciphertext->len, NULL, &secret->len) == 1
                      && (ciphertext->base = malloc(ciphertext->len)) != NULL
                      && (secret->base = malloc(secret->len)) != NULL
                      && EVP_PKEY_encapsulate(context, ciphertext->base, &ciphertext->len, secret->base, &secret->len)
                             == 1;

    EVP_PKEY_CTX_free(context);
    return done;
}

static bool decapsulate(EVP_PKEY *own, ptls_iovec_t ciphertext, ptls_iovec_t *secret)
{
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new_from_pkey(NULL, own, NULL);
    const bool done = context != NULL && EVP_PKEY_decapsulate_init(context, NULL) == 1
                      && EVP_PKEY_decapsulate(context, NULL, &secret->len, ciphertext.base, ciphertext.len) == 1
                      && (secret->base = malloc(secret->len)) != NULL
                      && EVP_PKEY_decapsulate(context, secret->base, &secret->len, ciphertext.base, ciphertext.len) == 1;

    EVP_PKEY_CTX_free(context);
    return done;
}

static void forget(ptls_iovec_t *bytes)
{
    if (bytes->base != NULL)
        ptls_clear_memory(bytes->base, bytes->len);
    free(bytes->base);
    *bytes = ptls_iovec_init(NULL, 0);
}

/* The client has the answer to its share, or has no use for it any more. */
static int on_answer(ptls_key_exchange_context_t **context, int release, ptls_iovec_t *secret, ptls_iovec_t answer)
{
    struct share *share = (struct share *)*context;
    int result = 0;

    if (secret != NULL) {
        EVP_PKEY *peer = share->group->kem ? NULL : parse(share->group, answer);
        ptls_iovec_t found = {0};
        const bool done = share->group->kem ? decapsulate(share->key, answer, &found)
                                            : peer != NULL && derive(share->key, peer, &found);

        EVP_PKEY_free(peer);
        if (!done) {
            forget(&found);
            result = PTLS_ALERT_ILLEGAL_PARAMETER;
        }
        *secret = found;
    }
    if (release) {
        EVP_PKEY_free(share->key);
        free(share->super.pubkey.base);
        free(share);
        *context = NULL;
    }
    return result;
}

static int on_create(const struct st_ptls_key_exchange_algorithm_t *algorithm, ptls_key_exchange_context_t **context)
{
    const struct group *group = (const struct group *)algorithm;
    struct share *share = calloc(1, sizeof(*share));

    *context = NULL;
    if (share == NULL)
        return PTLS_ERROR_NO_MEMORY;
    share->super.algo = algorithm;
    share->super.on_exchange = on_answer;
    share->group = group;
    share->key = generate(group, false);
    if (share->key == NULL || !encode(share->key, &share->super.pubkey)) {
        EVP_PKEY_free(share->key);
        free(share);
        return PTLS_ERROR_LIBRARY;
    }
    *context = &share->super;
    return 0;
}

static int on_share(const struct st_ptls_key_exchange_algorithm_t *algorithm, ptls_iovec_t *answer, ptls_iovec_t *secret,
                    ptls_iovec_t share)
{
    const struct group *group = (const struct group *)algorithm;
    EVP_PKEY *peer = parse(group, share), *own = NULL;
    ptls_iovec_t made = {0}, found = {0};
    bool done = false;

    if (peer != NULL && group->kem)
        done = encapsulate(peer, &made, &found);
    else if (peer != NULL)
        done = (own = generate(group, false)) != NULL && encode(own, &made) && derive(own, peer, &found);
    EVP_PKEY_free(peer);
    EVP_PKEY_free(own);
    if (!done) {
        free(made.base);
        forget(&found);
        return PTLS_ALERT_ILLEGAL_PARAMETER;
    }
    *answer = made;
    *secret = found;
    return 0;
}

ptls_key_exchange_algorithm_t *openssl_group(uint16_t number, const char *algorithm)
{
    static struct group *known;
    EVP_KEM *kem;
    EVP_KEYEXCH *exchange;
    struct group *group = NULL;

    for (struct group *one = known; one != NULL; one = one->next)
        if (one->super.id == number)
            return &one->super;
    kem = EVP_KEM_fetch(NULL, algorithm, NULL);
    exchange = kem != NULL ? NULL : EVP_KEYEXCH_fetch(NULL, algorithm, NULL);
    if ((kem != NULL || exchange != NULL) && (group = calloc(1, sizeof(*group))) != NULL) {
        group->super.id = number;
        group->super.create = on_create;
        group->super.exchange = on_share;
        group->algorithm = group->super.name = strdup(algorithm);
        group->kem = kem != NULL;
        group->next = known;
        known = group;
    }
    EVP_KEM_free(kem);
    EVP_KEYEXCH_free(exchange);
    return group == NULL ? NULL : &group->super;
}

#endif
