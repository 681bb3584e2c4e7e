/* Keys: generation, comparison, and getting their parts in and out (provider-keymgmt(7)). */
#include "provider.h"

#include <string.h>

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/params.h>

struct key *key_new(const struct provider *provider, const struct algorithm *algorithm)
{
    struct key *key = OPENSSL_zalloc(sizeof(*key));

    if (key == NULL) {
        raise_error(provider, REASON_MEMORY, "%s", algorithm->name);
        return NULL;
    }
    key->provider = provider;
    key->algorithm = algorithm;
    return key;
}

static void forget(struct key *key)
{
    OPENSSL_free(key->public_key);
    OPENSSL_clear_free(key->secret_key, key->algorithm->secret_key_bytes);
    EVP_PKEY_free(key->classical);
    key->public_key = key->secret_key = NULL;
    key->classical = NULL;
}

void key_free(void *data)
{
    struct key *key = data;

    if (key == NULL)
        return;
    forget(key);
    OPENSSL_free(key);
}

/* Replaces *part by a copy. */
static int set_part(const struct key *key, uint8_t **part, const char *what, const void *data, size_t bytes,
                    size_t right)
{
    uint8_t *copy;

    if (data == NULL || bytes != right)
        return raise_error(key->provider, REASON_LENGTH, "%s: %s of %zu bytes, must be %zu", key->algorithm->name, what,
                           bytes, right);
    copy = OPENSSL_memdup(data, bytes);
    if (copy == NULL)
        return raise_error(key->provider, REASON_MEMORY, "%s", key->algorithm->name);
    OPENSSL_clear_free(*part, right);
    *part = copy;
    return 1;
}

int key_set_public(struct key *key, const void *encoded, size_t bytes)
{
    const struct algorithm *algorithm = key->algorithm;
    EVP_PKEY *point = NULL;

    if (algorithm->curve != NULL && encoded != NULL && bytes == algorithm->public_key_bytes) {
        point = curve_public_key(key->provider, algorithm->curve,
                                 (const uint8_t *)encoded + hybrid_point_offset(algorithm));
        if (point == NULL)
            return 0;
    }
    if (!set_part(key, &key->public_key, "public key", encoded, bytes, algorithm->public_key_bytes)) {
        EVP_PKEY_free(point);
        return 0;
    }
    EVP_PKEY_free(key->classical);
    key->classical = point;
    return 1;
}

int key_set_secret(struct key *key, const void *encoded, size_t bytes)
{
    return set_part(key, &key->secret_key, "private key", encoded, bytes, key->algorithm->secret_key_bytes);
}

static int generate(struct key *key)
{
    const struct algorithm *algorithm = key->algorithm;
    int done;

    key->public_key = OPENSSL_malloc(algorithm->public_key_bytes);
    key->secret_key = OPENSSL_malloc(algorithm->secret_key_bytes);
    if (key->public_key == NULL || key->secret_key == NULL)
        return raise_error(key->provider, REASON_MEMORY, "%s", algorithm->name);
    if (algorithm->sig == NULL)
        return hybrid_keypair(key);
    done = quicbed_sig_keypair(algorithm->sig, key->public_key, key->secret_key);
    return done == 1 ? 1 : raise_error(key->provider, REASON_LIBOQS, "%s: generating a key", algorithm->name);
}

static int key_has(const void *data, int selection)
{
    const struct key *key = data;

    if (key == NULL)
        return 0;
    if ((selection & OSSL_KEYMGMT_SELECT_PUBLIC_KEY) != 0 && key->public_key == NULL)
        return 0;
    return (selection & OSSL_KEYMGMT_SELECT_PRIVATE_KEY) == 0 || key->secret_key != NULL;
}

static int key_match(const void *first, const void *second, int selection)
{
    const struct key *one = first, *other = second;
    const struct algorithm *algorithm = one->algorithm;

    if (algorithm != other->algorithm)
        return 0;
    /* Where a key pair is compared with a public key, the public keys decide. */
    if ((selection & OSSL_KEYMGMT_SELECT_PUBLIC_KEY) != 0 && one->public_key != NULL && other->public_key != NULL)
        return CRYPTO_memcmp(one->public_key, other->public_key, algorithm->public_key_bytes) == 0;
    if ((selection & OSSL_KEYMGMT_SELECT_PRIVATE_KEY) != 0)
        return algorithm->curve == NULL && one->secret_key != NULL && other->secret_key != NULL &&
               CRYPTO_memcmp(one->secret_key, other->secret_key, algorithm->secret_key_bytes) == 0;
    return (selection & OSSL_KEYMGMT_SELECT_PUBLIC_KEY) == 0;
}

/* Whether the two parts of a key pair belong together, found by using them. */
static int pairwise(const struct key *key)
{
    static const uint8_t message[] = "pairwise consistency";
    const struct algorithm *algorithm = key->algorithm;
    size_t bytes = algorithm->sig != NULL ? quicbed_sig_signature_bytes(algorithm->sig)
                                          : hybrid_ciphertext_bytes(algorithm) + 2 * hybrid_secret_bytes(algorithm);
    uint8_t *buffer = OPENSSL_malloc(bytes);
    int right;

    if (buffer == NULL)
        return raise_error(key->provider, REASON_MEMORY, "%s", algorithm->name);
    if (algorithm->sig != NULL) {
        right = quicbed_sig_sign(algorithm->sig, buffer, &bytes, message, sizeof(message), key->secret_key) == 1 &&
                quicbed_sig_verify(algorithm->sig, message, sizeof(message), buffer, bytes, key->public_key) == 1;
    } else {
        size_t secret_bytes = hybrid_secret_bytes(algorithm);
        uint8_t *secrets = buffer + hybrid_ciphertext_bytes(algorithm);

        right = hybrid_encapsulate(key, buffer, secrets) && hybrid_decapsulate(key, secrets + secret_bytes, buffer) &&
                CRYPTO_memcmp(secrets, secrets + secret_bytes, secret_bytes) == 0;
    }
    OPENSSL_clear_free(buffer, algorithm->sig != NULL ? quicbed_sig_signature_bytes(algorithm->sig) : bytes);
    return right ? 1 : raise_error(key->provider, REASON_KEY, "%s: public and private key differ", algorithm->name);
}

static int key_validate(const void *data, int selection, int type)
{
    (void)type;
    if (!key_has(data, selection))
        return 0;
    if ((selection & OSSL_KEYMGMT_SELECT_KEYPAIR) == OSSL_KEYMGMT_SELECT_KEYPAIR)
        return pairwise(data);
    return 1;
}

static void *key_dup(const void *data, int selection)
{
    const struct key *key = data;
    const struct algorithm *algorithm = key->algorithm;
    struct key *copy = key_new(key->provider, algorithm);

    if (copy == NULL)
        return NULL;
    if ((selection & OSSL_KEYMGMT_SELECT_PUBLIC_KEY) != 0 && key->public_key != NULL &&
        !key_set_public(copy, key->public_key, algorithm->public_key_bytes))
        goto failed;
    if ((selection & OSSL_KEYMGMT_SELECT_PRIVATE_KEY) != 0 && key->secret_key != NULL) {
        if (!key_set_secret(copy, key->secret_key, algorithm->secret_key_bytes))
            goto failed;
        if (algorithm->curve != NULL) {
            EVP_PKEY_free(copy->classical);
            copy->classical = EVP_PKEY_dup(key->classical);
            if (copy->classical == NULL)
                goto failed;
        }
    }
    return copy;
failed:
    key_free(copy);
    return NULL;
}

static const OSSL_PARAM *gettable_params(void *provider)
{
    static const OSSL_PARAM known[] = {
        OSSL_PARAM_int(OSSL_PKEY_PARAM_BITS, NULL),
        OSSL_PARAM_int(OSSL_PKEY_PARAM_SECURITY_BITS, NULL),
        OSSL_PARAM_int(OSSL_PKEY_PARAM_MAX_SIZE, NULL),
        OSSL_PARAM_utf8_string(OSSL_PKEY_PARAM_MANDATORY_DIGEST, NULL, 0),
        OSSL_PARAM_octet_string(OSSL_PKEY_PARAM_ENCODED_PUBLIC_KEY, NULL, 0),
        OSSL_PARAM_octet_string(OSSL_PKEY_PARAM_PUB_KEY, NULL, 0),
        OSSL_PARAM_octet_string(OSSL_PKEY_PARAM_PRIV_KEY, NULL, 0),
        OSSL_PARAM_END,
    };

    (void)provider;
    return known;
}

static int give(OSSL_PARAM params[], const char *name, const uint8_t *data, size_t bytes)
{
    OSSL_PARAM *param = OSSL_PARAM_locate(params, name);

    return param == NULL || (data != NULL && OSSL_PARAM_set_octet_string(param, data, bytes));
}

static int give_number(OSSL_PARAM params[], const char *name, size_t number)
{
    OSSL_PARAM *param = OSSL_PARAM_locate(params, name);

    return param == NULL || OSSL_PARAM_set_size_t(param, number);
}

static int get_params(void *data, OSSL_PARAM params[])
{
    const struct key *key = data;
    const struct algorithm *algorithm = key->algorithm;
    size_t largest = algorithm->sig != NULL ? quicbed_sig_signature_bytes(algorithm->sig)
                                            : hybrid_ciphertext_bytes(algorithm);
    OSSL_PARAM *digest = OSSL_PARAM_locate(params, OSSL_PKEY_PARAM_MANDATORY_DIGEST);

    /* A signature covers the message itself: there is no digest to choose. */
    if (digest != NULL && (algorithm->sig == NULL || !OSSL_PARAM_set_utf8_string(digest, "")))
        return 0;
    return give_number(params, OSSL_PKEY_PARAM_BITS, 8 * algorithm->public_key_bytes) &&
           give_number(params, OSSL_PKEY_PARAM_SECURITY_BITS, algorithm->security_bits) &&
           give_number(params, OSSL_PKEY_PARAM_MAX_SIZE, largest) &&
           give(params, OSSL_PKEY_PARAM_ENCODED_PUBLIC_KEY, key->public_key, algorithm->public_key_bytes) &&
           give(params, OSSL_PKEY_PARAM_PUB_KEY, key->public_key, algorithm->public_key_bytes) &&
           give(params, OSSL_PKEY_PARAM_PRIV_KEY, algorithm->curve == NULL ? key->secret_key : NULL,
                algorithm->secret_key_bytes);
}

static const OSSL_PARAM *settable_params(void *provider)
{
    static const OSSL_PARAM known[] = {
        OSSL_PARAM_octet_string(OSSL_PKEY_PARAM_ENCODED_PUBLIC_KEY, NULL, 0),
        OSSL_PARAM_END,
    };

    (void)provider;
    return known;
}

static int set_params(void *data, const OSSL_PARAM params[])
{
    const OSSL_PARAM *param = OSSL_PARAM_locate_const(params, OSSL_PKEY_PARAM_ENCODED_PUBLIC_KEY);

    if (param == NULL)
        return 1;
    return param->data_type == OSSL_PARAM_OCTET_STRING && key_set_public(data, param->data, param->data_size);
}

/* The private key of a hybrid has no encoding: such keys live as long as a handshake. */
static const OSSL_PARAM *transferable(int selection)
{
    static const OSSL_PARAM public_key[] = {
        OSSL_PARAM_octet_string(OSSL_PKEY_PARAM_PUB_KEY, NULL, 0),
        OSSL_PARAM_END,
    };
    static const OSSL_PARAM key_pair[] = {
        OSSL_PARAM_octet_string(OSSL_PKEY_PARAM_PUB_KEY, NULL, 0),
        OSSL_PARAM_octet_string(OSSL_PKEY_PARAM_PRIV_KEY, NULL, 0),
        OSSL_PARAM_END,
    };

    if ((selection & OSSL_KEYMGMT_SELECT_PRIVATE_KEY) != 0)
        return key_pair;
    return (selection & OSSL_KEYMGMT_SELECT_PUBLIC_KEY) != 0 ? public_key : NULL;
}

static int import(void *data, int selection, const OSSL_PARAM params[])
{
    struct key *key = data;
    const OSSL_PARAM *public_key = OSSL_PARAM_locate_const(params, OSSL_PKEY_PARAM_PUB_KEY);
    const OSSL_PARAM *secret_key = OSSL_PARAM_locate_const(params, OSSL_PKEY_PARAM_PRIV_KEY);

    if ((selection & OSSL_KEYMGMT_SELECT_KEYPAIR) == 0)
        return 0;
    /* The public key cannot be computed from the private one through liboqs. */
    if (public_key == NULL || public_key->data_type != OSSL_PARAM_OCTET_STRING)
        return raise_error(key->provider, REASON_KEY, "%s: no public key given", key->algorithm->name);
    if (!key_set_public(key, public_key->data, public_key->data_size))
        return 0;
    if ((selection & OSSL_KEYMGMT_SELECT_PRIVATE_KEY) == 0 || secret_key == NULL)
        return 1;
    return key->algorithm->curve == NULL && secret_key->data_type == OSSL_PARAM_OCTET_STRING &&
           key_set_secret(key, secret_key->data, secret_key->data_size);
}

static int export(void *data, int selection, OSSL_CALLBACK *callback, void *argument)
{
    struct key *key = data;
    const struct algorithm *algorithm = key->algorithm;
    OSSL_PARAM params[3], *next = params;
    bool secret = (selection & OSSL_KEYMGMT_SELECT_PRIVATE_KEY) != 0;

    if ((selection & OSSL_KEYMGMT_SELECT_KEYPAIR) == 0 || key->public_key == NULL)
        return 0;
    if (secret && (key->secret_key == NULL || algorithm->curve != NULL))
        return 0;
    *next++ = OSSL_PARAM_construct_octet_string(OSSL_PKEY_PARAM_PUB_KEY, key->public_key, algorithm->public_key_bytes);
    if (secret)
        *next++ =
            OSSL_PARAM_construct_octet_string(OSSL_PKEY_PARAM_PRIV_KEY, key->secret_key, algorithm->secret_key_bytes);
    *next = OSSL_PARAM_construct_end();
    return callback(params, argument);
}

/* Takes over the key a decoder made. */
static void *load(const void *reference, size_t bytes)
{
    struct key *key;

    if (bytes != sizeof(key))
        return NULL;
    key = *(struct key *const *)reference;
    *(struct key **)reference = NULL;
    return key;
}

struct generation {
    const struct provider *provider;
    const struct algorithm *algorithm;
    int selection;
};

static void *generation_new(const struct provider *provider, size_t slot, int selection)
{
    struct generation *generation = OPENSSL_zalloc(sizeof(*generation));

    if (generation == NULL) {
        raise_error(provider, REASON_MEMORY, "%s", provider->algorithms[slot].name);
        return NULL;
    }
    generation->provider = provider;
    generation->algorithm = &provider->algorithms[slot];
    generation->selection = selection;
    return generation;
}

/* libssl names the group although every group is an algorithm of its own. */
static const OSSL_PARAM *generation_settable_params(void *generation, void *provider)
{
    static const OSSL_PARAM known[] = {
        OSSL_PARAM_utf8_string(OSSL_PKEY_PARAM_GROUP_NAME, NULL, 0),
        OSSL_PARAM_END,
    };

    (void)generation;
    (void)provider;
    return known;
}

static int generation_set_params(void *data, const OSSL_PARAM params[])
{
    const struct generation *generation = data;
    const OSSL_PARAM *group = OSSL_PARAM_locate_const(params, OSSL_PKEY_PARAM_GROUP_NAME);
    const char *name = NULL;

    if (group == NULL)
        return 1;
    if (!OSSL_PARAM_get_utf8_string_ptr(group, &name) || strcmp(name, generation->algorithm->name) != 0)
        return raise_error(generation->provider, REASON_KEY, "%s cannot make a key of another group",
                           generation->algorithm->name);
    return 1;
}

static void *generation_run(void *data, OSSL_CALLBACK *callback, void *argument)
{
    const struct generation *generation = data;
    struct key *key = key_new(generation->provider, generation->algorithm);

    (void)callback;
    (void)argument;
    /* Without a key pair selected it makes the parameters that a peer's key share is read into. */
    if (key != NULL && (generation->selection & OSSL_KEYMGMT_SELECT_KEYPAIR) != 0 && !generate(key)) {
        key_free(key);
        return NULL;
    }
    return key;
}

static void generation_free(void *generation)
{
    OPENSSL_free(generation);
}

#define FUNCTION(id, function) {OSSL_FUNC_KEYMGMT_##id, (void (*)(void))(function)}

#define KEYMGMT(slot)                                                                                                  \
    static void *new_##slot(void *context)                                                                             \
    {                                                                                                                  \
        const struct provider *provider = context;                                                                     \
        return key_new(provider, &provider->algorithms[slot]);                                                         \
    }                                                                                                                  \
    static void *generation_new_##slot(void *context, int selection, const OSSL_PARAM params[])                        \
    {                                                                                                                  \
        void *generation = generation_new(context, slot, selection);                                                   \
        if (generation != NULL && params != NULL && !generation_set_params(generation, params)) {                      \
            generation_free(generation);                                                                               \
            return NULL;                                                                                               \
        }                                                                                                              \
        return generation;                                                                                             \
    }                                                                                                                  \
    static const OSSL_DISPATCH keymgmt_##slot[] = {                                                                    \
        FUNCTION(NEW, new_##slot),                                                                                     \
        FUNCTION(FREE, key_free),                                                                                      \
        FUNCTION(LOAD, load),                                                                                          \
        FUNCTION(HAS, key_has),                                                                                        \
        FUNCTION(MATCH, key_match),                                                                                    \
        FUNCTION(VALIDATE, key_validate),                                                                              \
        FUNCTION(DUP, key_dup),                                                                                        \
        FUNCTION(GET_PARAMS, get_params),                                                                              \
        FUNCTION(GETTABLE_PARAMS, gettable_params),                                                                    \
        FUNCTION(SET_PARAMS, set_params),                                                                              \
        FUNCTION(SETTABLE_PARAMS, settable_params),                                                                    \
        FUNCTION(IMPORT, import),                                                                                      \
        FUNCTION(IMPORT_TYPES, transferable),                                                                          \
        FUNCTION(EXPORT, export),                                                                                      \
        FUNCTION(EXPORT_TYPES, transferable),                                                                          \
        FUNCTION(GEN_INIT, generation_new_##slot),                                                                     \
        FUNCTION(GEN_SET_PARAMS, generation_set_params),                                                               \
        FUNCTION(GEN_SETTABLE_PARAMS, generation_settable_params),                                                     \
        FUNCTION(GEN, generation_run),                                                                                 \
        FUNCTION(GEN_CLEANUP, generation_free),                                                                        \
        {0, NULL},                                                                                                     \
    };
SLOTS(KEYMGMT)

#define ENTRY(slot) keymgmt_##slot,
const OSSL_DISPATCH *const keymgmt_functions[SLOT_COUNT] = {SLOTS(ENTRY)};
