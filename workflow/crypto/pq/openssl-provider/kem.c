/*
 * Key encapsulation for TLS groups (provider-kem(7)), alone or with ECDH in a hybrid.
 *
 * A hybrid is the concatenation of its parts without lengths: public keys, "ciphertext" (ephemeral point and
 * ciphertext) and shared secret (draft-ietf-tls-hybrid-design, section 3.2 and 3.3). The classical part comes first,
 * except in X25519MLKEM768 (draft-ietf-tls-ecdhe-mlkem, 4.1 to 4.3).
 */
#include "provider.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/params.h>

static size_t point_bytes(const struct algorithm *algorithm)
{
    return algorithm->curve == NULL ? 0 : algorithm->curve->point_bytes;
}

static size_t classical_secret_bytes(const struct algorithm *algorithm)
{
    return algorithm->curve == NULL ? 0 : algorithm->curve->secret_bytes;
}

/* Where the classical part begins, and where the KEM's does, given the size of the other. */
static size_t classical_at(const struct algorithm *algorithm, size_t kem_bytes)
{
    return algorithm->kem_first ? kem_bytes : 0;
}

static size_t kem_at(const struct algorithm *algorithm, size_t classical_bytes)
{
    return algorithm->kem_first ? 0 : classical_bytes;
}

size_t hybrid_point_offset(const struct algorithm *algorithm)
{
    return classical_at(algorithm, quicbed_kem_public_key_bytes(algorithm->kem));
}

size_t hybrid_ciphertext_bytes(const struct algorithm *algorithm)
{
    return point_bytes(algorithm) + quicbed_kem_ciphertext_bytes(algorithm->kem);
}

size_t hybrid_secret_bytes(const struct algorithm *algorithm)
{
    return classical_secret_bytes(algorithm) + quicbed_kem_shared_secret_bytes(algorithm->kem);
}

/* Errors of the own libcrypto are told as one error of the provider. */
static int classical_failure(const struct provider *provider, const struct curve *curve, const char *what)
{
    const char *text = ERR_reason_error_string(ERR_peek_last_error());

    raise_error(provider, REASON_CLASSICAL, "%s: %s: %s", curve->name, what, text == NULL ? "no reason known" : text);
    ERR_clear_error();
    return 0;
}

/* The public key of a point; checks that it lies on the curve. */
EVP_PKEY *curve_public_key(const struct provider *provider, const struct curve *curve, const uint8_t *point)
{
    EVP_PKEY *key = EVP_PKEY_new();

    if (key == NULL || EVP_PKEY_copy_parameters(key, curve->parameters) <= 0 ||
        EVP_PKEY_set1_encoded_public_key(key, point, curve->point_bytes) <= 0) {
        EVP_PKEY_free(key);
        classical_failure(provider, curve, "reading a point");
        return NULL;
    }
    return key;
}

/* An ephemeral key pair, its point written to `point`. */
static EVP_PKEY *curve_key_pair(const struct provider *provider, const struct curve *curve, uint8_t *point)
{
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new_from_pkey(provider->library, curve->parameters, NULL);
    EVP_PKEY *key = NULL;
    size_t bytes = 0;

    if (context == NULL || EVP_PKEY_keygen_init(context) <= 0 || EVP_PKEY_generate(context, &key) <= 0 ||
        EVP_PKEY_get_octet_string_param(key, OSSL_PKEY_PARAM_ENCODED_PUBLIC_KEY, point, curve->point_bytes, &bytes) <=
            0 ||
        bytes != curve->point_bytes) {
        EVP_PKEY_free(key);
        key = NULL;
        classical_failure(provider, curve, "generating a key");
    }
    EVP_PKEY_CTX_free(context);
    return key;
}

static int curve_derive(const struct provider *provider, const struct curve *curve, EVP_PKEY *own, EVP_PKEY *peer,
                        uint8_t *secret)
{
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new_from_pkey(provider->library, own, NULL);
    size_t bytes = curve->secret_bytes;
    int done = context != NULL && EVP_PKEY_derive_init(context) > 0 && EVP_PKEY_derive_set_peer(context, peer) > 0 &&
               EVP_PKEY_derive(context, secret, &bytes) > 0 && bytes == curve->secret_bytes;

    EVP_PKEY_CTX_free(context);
    return done ? 1 : classical_failure(provider, curve, "deriving a secret");
}

/* Fills a key whose buffers are allocated. */
int hybrid_keypair(struct key *key)
{
    const struct algorithm *algorithm = key->algorithm;

    if (algorithm->curve != NULL) {
        key->classical =
            curve_key_pair(key->provider, algorithm->curve, key->public_key + hybrid_point_offset(algorithm));
        if (key->classical == NULL)
            return 0;
    }
    if (quicbed_kem_keypair(algorithm->kem, key->public_key + kem_at(algorithm, point_bytes(algorithm)),
                            key->secret_key) != 1)
        return raise_error(key->provider, REASON_LIBOQS, "%s: generating a key", algorithm->name);
    return 1;
}

int hybrid_encapsulate(const struct key *key, uint8_t *ciphertext, uint8_t *secret)
{
    const struct algorithm *algorithm = key->algorithm;
    size_t kem_offset = kem_at(algorithm, point_bytes(algorithm));

    if (algorithm->curve != NULL) {
        uint8_t *point = ciphertext + classical_at(algorithm, quicbed_kem_ciphertext_bytes(algorithm->kem));
        uint8_t *shared = secret + classical_at(algorithm, quicbed_kem_shared_secret_bytes(algorithm->kem));
        EVP_PKEY *own = curve_key_pair(key->provider, algorithm->curve, point);
        int done = own != NULL && curve_derive(key->provider, algorithm->curve, own, key->classical, shared);

        EVP_PKEY_free(own);
        if (!done)
            return 0;
    }
    if (quicbed_kem_encapsulate(algorithm->kem, ciphertext + kem_offset,
                                secret + kem_at(algorithm, classical_secret_bytes(algorithm)),
                                key->public_key + kem_offset) != 1)
        return raise_error(key->provider, REASON_LIBOQS, "%s: encapsulating", algorithm->name);
    return 1;
}

int hybrid_decapsulate(const struct key *key, uint8_t *secret, const uint8_t *ciphertext)
{
    const struct algorithm *algorithm = key->algorithm;

    if (algorithm->curve != NULL) {
        const uint8_t *point = ciphertext + classical_at(algorithm, quicbed_kem_ciphertext_bytes(algorithm->kem));
        uint8_t *shared = secret + classical_at(algorithm, quicbed_kem_shared_secret_bytes(algorithm->kem));
        EVP_PKEY *peer = curve_public_key(key->provider, algorithm->curve, point);
        int done = peer != NULL && curve_derive(key->provider, algorithm->curve, key->classical, peer, shared);

        EVP_PKEY_free(peer);
        if (!done)
            return 0;
    }
    if (quicbed_kem_decapsulate(algorithm->kem, secret + kem_at(algorithm, classical_secret_bytes(algorithm)),
                                ciphertext + kem_at(algorithm, point_bytes(algorithm)), key->secret_key) != 1)
        return raise_error(key->provider, REASON_LIBOQS, "%s: decapsulating", algorithm->name);
    return 1;
}

struct operation {
    const struct key *key;
};

static void *new_context(void *provider)
{
    (void)provider;
    return OPENSSL_zalloc(sizeof(struct operation));
}

static void free_context(void *context)
{
    OPENSSL_free(context);
}

static void *dup_context(void *context)
{
    return OPENSSL_memdup(context, sizeof(struct operation));
}

static int encapsulate_init(void *context, void *data, const OSSL_PARAM params[])
{
    const struct key *key = data;

    (void)params;
    if (key->public_key == NULL)
        return raise_error(key->provider, REASON_KEY, "%s: no public key to encapsulate to", key->algorithm->name);
    ((struct operation *)context)->key = key;
    return 1;
}

static int decapsulate_init(void *context, void *data, const OSSL_PARAM params[])
{
    const struct key *key = data;

    (void)params;
    if (key->secret_key == NULL)
        return raise_error(key->provider, REASON_KEY, "%s: no private key to decapsulate with", key->algorithm->name);
    ((struct operation *)context)->key = key;
    return 1;
}

/* Given buffers must have room; without a buffer only the sizes are told. */
static int room(const struct key *key, const char *what, const size_t *given, size_t needed)
{
    if (given == NULL || *given >= needed)
        return 1;
    return raise_error(key->provider, REASON_LENGTH, "%s: room for %zu bytes of %s, %zu needed", key->algorithm->name,
                       *given, what, needed);
}

static int encapsulate(void *context, unsigned char *ciphertext, size_t *ciphertext_bytes, unsigned char *secret,
                       size_t *secret_bytes)
{
    const struct key *key = ((const struct operation *)context)->key;
    size_t ciphertext_size, secret_size;

    if (key == NULL)
        return 0;
    ciphertext_size = hybrid_ciphertext_bytes(key->algorithm);
    secret_size = hybrid_secret_bytes(key->algorithm);
    if (ciphertext != NULL && (!room(key, "ciphertext", ciphertext_bytes, ciphertext_size) ||
                               !room(key, "shared secret", secret_bytes, secret_size)))
        return 0;
    if (ciphertext_bytes != NULL)
        *ciphertext_bytes = ciphertext_size;
    if (secret_bytes != NULL)
        *secret_bytes = secret_size;
    if (ciphertext == NULL)
        return 1;
    return secret != NULL && hybrid_encapsulate(key, ciphertext, secret);
}

static int decapsulate(void *context, unsigned char *secret, size_t *secret_bytes, const unsigned char *ciphertext,
                       size_t ciphertext_bytes)
{
    const struct key *key = ((const struct operation *)context)->key;
    size_t ciphertext_size, secret_size;

    if (key == NULL)
        return 0;
    ciphertext_size = hybrid_ciphertext_bytes(key->algorithm);
    secret_size = hybrid_secret_bytes(key->algorithm);
    if (secret != NULL) {
        if (!room(key, "shared secret", secret_bytes, secret_size))
            return 0;
        if (ciphertext == NULL || ciphertext_bytes != ciphertext_size)
            return raise_error(key->provider, REASON_LENGTH, "%s: ciphertext of %zu bytes, must be %zu",
                               key->algorithm->name, ciphertext_bytes, ciphertext_size);
    }
    if (secret_bytes != NULL)
        *secret_bytes = secret_size;
    return secret == NULL || hybrid_decapsulate(key, secret, ciphertext);
}

const OSSL_DISPATCH kem_functions[] = {
    {OSSL_FUNC_KEM_NEWCTX, (void (*)(void))new_context},
    {OSSL_FUNC_KEM_FREECTX, (void (*)(void))free_context},
    {OSSL_FUNC_KEM_DUPCTX, (void (*)(void))dup_context},
    {OSSL_FUNC_KEM_ENCAPSULATE_INIT, (void (*)(void))encapsulate_init},
    {OSSL_FUNC_KEM_ENCAPSULATE, (void (*)(void))encapsulate},
    {OSSL_FUNC_KEM_DECAPSULATE_INIT, (void (*)(void))decapsulate_init},
    {OSSL_FUNC_KEM_DECAPSULATE, (void (*)(void))decapsulate},
    {0, NULL},
};
