/*
 * OpenSSL 3 provider "quicbed-noop" for programs whose QUIC uses EVP: no protection of Handshake and 1-RTT packets.
 *
 * Such a program, nginx or one on OpenSSL's own QUIC, protects Initial packets, TLS records and other packets with the
 * same ciphers. They differ in their keys only, so this provider follows the keys. It takes over HKDF (RFC 5869), its
 * form TLS13-KDF (HKDF-Expand-Label of RFC 8446, section 7.1) and the ciphers that a switch changes; all are computed
 * by a libcrypto of its own, linked into it, but
 *
 *   - a secret extracted with the salt of Initial packets (RFC 9001, section 5.2), and what is expanded from it, is known
 *     to be of Initial packets, which stay as they are, and so does the tag of Retry packets, whose key is fixed;
 *   - any other output for the label "quic key" (RFC 9001, section 5.1) is a key of Handshake and 1-RTT packets. With
 *     `aead = noop` the ciphers AES-128-GCM, AES-256-GCM and ChaCha20-Poly1305 with such a key copy their input and give
 *     the constant tag 16 x 0x2a, which is not verified;
 *   - likewise for the label "quic hp". With `header-protection = off` the ciphers AES-128-CTR and AES-256-CTR (nginx),
 *     AES-128-ECB and AES-256-ECB (OpenSSL's QUIC) and ChaCha20 with such a key give zero bytes, so that the mask
 *     (RFC 9001, section 5.4) changes nothing.
 *
 * Both switches are read from the provider's section of the OpenSSL configuration file. Ciphers are created just after
 * their keys are derived, those of a key update too, so that only the last keys need to be remembered: REMEMBERED of
 * each kind.
 *
 * For programs with one thread.
 */
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/core.h>
#include <openssl/core_dispatch.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/proverr.h>

#define PROVIDER_NAME "quicbed-noop"
#define PROPERTIES "provider=" PROVIDER_NAME

enum { TAG_BYTES = 16, TAG_BYTE = 0x2a, LARGEST_SECRET = EVP_MAX_MD_SIZE, REMEMBERED = 256 };

/* The algorithms themselves, from the default provider of the libcrypto in here. */
static OSSL_LIB_CTX *real;
static bool noop, no_mask;

/* ---- keys ---- */

enum kind { OF_INITIAL, PACKET_KEY, MASK_KEY, KINDS };

/* The last secrets of a kind; the oldest is overwritten. */
static struct {
    struct {
        size_t bytes;
        unsigned char value[LARGEST_SECRET];
    } secrets[REMEMBERED];
    size_t next;
} known[KINDS];

static void remember(enum kind kind, const unsigned char *secret, size_t bytes)
{
    const size_t at = known[kind].next;

    if (bytes == 0 || bytes > LARGEST_SECRET)
        return;
    memcpy(known[kind].secrets[at].value, secret, bytes);
    known[kind].secrets[at].bytes = bytes;
    known[kind].next = (at + 1) % REMEMBERED;
}

/* Looks at the latest first, which it usually is. */
static bool is_known(enum kind kind, const unsigned char *secret, size_t bytes)
{
    for (size_t i = 1; i <= REMEMBERED; i++) {
        const size_t at = (known[kind].next + REMEMBERED - i) % REMEMBERED;

        if (known[kind].secrets[at].bytes == 0)
            return false;
        if (known[kind].secrets[at].bytes == bytes && memcmp(known[kind].secrets[at].value, secret, bytes) == 0)
            return true;
    }
    return false;
}

/* ---- key derivation ---- */

struct derivation {
    EVP_KDF_CTX *real;
    size_t secret_bytes;
    unsigned char secret[LARGEST_SECRET];
    bool initial_salt;
    enum kind label; /* KINDS: none of those of interest */
};

static void *derivation_new(const char *name)
{
    struct derivation *derivation = OPENSSL_zalloc(sizeof(*derivation));
    EVP_KDF *kdf = EVP_KDF_fetch(real, name, NULL);

    if (derivation != NULL && kdf != NULL)
        derivation->real = EVP_KDF_CTX_new(kdf);
    EVP_KDF_free(kdf);
    if (derivation != NULL && derivation->real == NULL) {
        OPENSSL_free(derivation);
        return NULL;
    }
    if (derivation != NULL)
        derivation->label = KINDS;
    return derivation;
}

static void derivation_free(void *context)
{
    struct derivation *derivation = context;

    if (derivation != NULL)
        EVP_KDF_CTX_free(derivation->real);
    OPENSSL_clear_free(derivation, sizeof(*derivation));
}

static void *derivation_copy(void *context)
{
    const struct derivation *original = context;
    struct derivation *copy = OPENSSL_memdup(original, sizeof(*original));

    if (copy == NULL)
        return NULL;
    copy->real = EVP_KDF_CTX_dup(original->real);
    if (copy->real == NULL) {
        OPENSSL_clear_free(copy, sizeof(*copy));
        return NULL;
    }
    return copy;
}

static void derivation_reset(void *context)
{
    struct derivation *derivation = context;
    EVP_KDF_CTX *kept = derivation->real;

    EVP_KDF_CTX_reset(kept);
    *derivation = (struct derivation){.real = kept, .label = KINDS};
}

/* What a label (RFC 9001, section 5.1) derives. */
static enum kind kind_of(const unsigned char *label, size_t bytes)
{
    static const struct {
        const char *label;
        enum kind kind;
    } labels[] = {{"quic key", PACKET_KEY}, {"quic hp", MASK_KEY}};

    for (size_t i = 0; i < sizeof(labels) / sizeof(labels[0]); i++)
        if (bytes == strlen(labels[i].label) && memcmp(label, labels[i].label, bytes) == 0)
            return labels[i].kind;
    return KINDS;
}

/* What an HkdfLabel (RFC 8446, section 7.1: length, label behind a prefix, context) derives. */
static enum kind kind_of_info(const unsigned char *info, size_t bytes)
{
    static const char prefix[] = "tls13 ";
    enum { BEFORE_LABEL = 3, PREFIX_BYTES = sizeof(prefix) - 1 };

    if (bytes < BEFORE_LABEL || info[2] < PREFIX_BYTES || info[2] > bytes - BEFORE_LABEL
        || memcmp(info + BEFORE_LABEL, prefix, PREFIX_BYTES) != 0)
        return KINDS;
    return kind_of(info + BEFORE_LABEL + PREFIX_BYTES, info[2] - (size_t)PREFIX_BYTES);
}

static int derivation_set(void *context, const OSSL_PARAM params[])
{
    /* RFC 9001, section 5.2 */
    static const unsigned char salt_of_initial[] = {
        0x38, 0x76, 0x2c, 0xf7, 0xf5, 0x59, 0x34, 0xb3, 0x4d, 0x17,
        0x9a, 0xe6, 0xa4, 0xc8, 0x0c, 0xad, 0xcc, 0xbb, 0x7f, 0x0a,
    };
    struct derivation *derivation = context;
    const OSSL_PARAM *param;

    param = OSSL_PARAM_locate_const(params, OSSL_KDF_PARAM_KEY);
    if (param != NULL) {
        derivation->secret_bytes = param->data_size <= LARGEST_SECRET ? param->data_size : 0;
        if (param->data != NULL)
            memcpy(derivation->secret, param->data, derivation->secret_bytes);
    }
    param = OSSL_PARAM_locate_const(params, OSSL_KDF_PARAM_SALT);
    if (param != NULL)
        derivation->initial_salt = param->data != NULL && param->data_size == sizeof(salt_of_initial)
                                   && memcmp(param->data, salt_of_initial, sizeof(salt_of_initial)) == 0;
    /* HKDF is given the one, TLS13-KDF the other */
    param = OSSL_PARAM_locate_const(params, OSSL_KDF_PARAM_INFO);
    if (param != NULL)
        derivation->label = param->data == NULL ? KINDS : kind_of_info(param->data, param->data_size);
    param = OSSL_PARAM_locate_const(params, OSSL_KDF_PARAM_LABEL);
    if (param != NULL)
        derivation->label = param->data == NULL ? KINDS : kind_of(param->data, param->data_size);
    return EVP_KDF_CTX_set_params(derivation->real, params);
}

static int derive(void *context, unsigned char *out, size_t bytes, const OSSL_PARAM params[])
{
    struct derivation *derivation = context;

    if (!derivation_set(context, params) || EVP_KDF_derive(derivation->real, out, bytes, NULL) <= 0)
        return 0;
    if (derivation->initial_salt || is_known(OF_INITIAL, derivation->secret, derivation->secret_bytes))
        remember(OF_INITIAL, out, bytes);
    else if (derivation->label != KINDS)
        remember(derivation->label, out, bytes);
    return 1;
}

static int derivation_get(void *context, OSSL_PARAM params[])
{
    return EVP_KDF_CTX_get_params(((struct derivation *)context)->real, params);
}

static const OSSL_PARAM *derivation_gettable(void *context, void *provider)
{
    static const OSSL_PARAM params[] = {
        OSSL_PARAM_size_t(OSSL_KDF_PARAM_SIZE, NULL),
        OSSL_PARAM_octet_string(OSSL_KDF_PARAM_INFO, NULL, 0),
        OSSL_PARAM_END,
    };

    (void)context;
    (void)provider;
    return params;
}

#define SETTABLE_OF_BOTH                                        \
    OSSL_PARAM_utf8_string(OSSL_KDF_PARAM_MODE, NULL, 0),       \
    OSSL_PARAM_int(OSSL_KDF_PARAM_MODE, NULL),                  \
    OSSL_PARAM_utf8_string(OSSL_KDF_PARAM_PROPERTIES, NULL, 0), \
    OSSL_PARAM_utf8_string(OSSL_KDF_PARAM_DIGEST, NULL, 0),     \
    OSSL_PARAM_octet_string(OSSL_KDF_PARAM_KEY, NULL, 0),       \
    OSSL_PARAM_octet_string(OSSL_KDF_PARAM_SALT, NULL, 0)

static const OSSL_PARAM hkdf_params[] = {
    SETTABLE_OF_BOTH,
    OSSL_PARAM_octet_string(OSSL_KDF_PARAM_INFO, NULL, 0),
    OSSL_PARAM_END,
};

static const OSSL_PARAM tls13_kdf_params[] = {
    SETTABLE_OF_BOTH,
    OSSL_PARAM_octet_string(OSSL_KDF_PARAM_PREFIX, NULL, 0),
    OSSL_PARAM_octet_string(OSSL_KDF_PARAM_LABEL, NULL, 0),
    OSSL_PARAM_octet_string(OSSL_KDF_PARAM_DATA, NULL, 0),
    OSSL_PARAM_END,
};

#define KDF_ENTRY(id, function) {OSSL_FUNC_KDF_##id, (void (*)(void))(function)}

#define KDF_FUNCTIONS(id, real_name)                                         \
    static void *id##_new(void *provider)                                    \
    {                                                                        \
        (void)provider;                                                      \
        return derivation_new(real_name);                                    \
    }                                                                        \
    static const OSSL_PARAM *id##_settable(void *context, void *provider)    \
    {                                                                        \
        (void)context;                                                       \
        (void)provider;                                                      \
        return id##_params;                                                  \
    }                                                                        \
    static const OSSL_DISPATCH id##_functions[] = {                          \
        KDF_ENTRY(NEWCTX, id##_new),                                         \
        KDF_ENTRY(FREECTX, derivation_free),                                 \
        KDF_ENTRY(DUPCTX, derivation_copy),                                  \
        KDF_ENTRY(RESET, derivation_reset),                                  \
        KDF_ENTRY(DERIVE, derive),                                           \
        KDF_ENTRY(SET_CTX_PARAMS, derivation_set),                           \
        KDF_ENTRY(SETTABLE_CTX_PARAMS, id##_settable),                       \
        KDF_ENTRY(GET_CTX_PARAMS, derivation_get),                           \
        KDF_ENTRY(GETTABLE_CTX_PARAMS, derivation_gettable),                 \
        {0, NULL},                                                           \
    }

KDF_FUNCTIONS(hkdf, "HKDF");
KDF_FUNCTIONS(tls13_kdf, "TLS13-KDF");

/* ---- ciphers ---- */

struct cipher {
    const char *name;
    bool is_aead;
};

struct operation {
    const struct cipher *cipher;
    EVP_CIPHER_CTX *real;
    bool passive; /* has a key whose packets are to be left alone */
};

static void *operation_new(const struct cipher *cipher)
{
    struct operation *operation = OPENSSL_zalloc(sizeof(*operation));
    EVP_CIPHER *fetched = EVP_CIPHER_fetch(real, cipher->name, NULL);

    if (operation != NULL) {
        operation->cipher = cipher;
        operation->real = EVP_CIPHER_CTX_new();
    }
    if (fetched == NULL || operation == NULL || operation->real == NULL
        || EVP_CipherInit_ex2(operation->real, fetched, NULL, NULL, 1, NULL) != 1) {
        if (operation != NULL)
            EVP_CIPHER_CTX_free(operation->real);
        OPENSSL_free(operation);
        operation = NULL;
    }
    EVP_CIPHER_free(fetched);
    return operation;
}

static void operation_free(void *context)
{
    if (context != NULL)
        EVP_CIPHER_CTX_free(((struct operation *)context)->real);
    OPENSSL_free(context);
}

static void *operation_copy(void *context)
{
    struct operation *copy = OPENSSL_memdup(context, sizeof(*copy));

    if (copy == NULL)
        return NULL;
    copy->real = EVP_CIPHER_CTX_dup(((struct operation *)context)->real);
    if (copy->real == NULL) {
        OPENSSL_free(copy);
        return NULL;
    }
    return copy;
}

static int set_params(void *context, const OSSL_PARAM params[])
{
    struct operation *operation = context;

    /* The tag that precedes a decryption is, not being verified, forgotten. */
    if (operation->passive && OSSL_PARAM_locate_const(params, OSSL_CIPHER_PARAM_AEAD_TAG) != NULL)
        return 1;
    return params == NULL || EVP_CIPHER_CTX_set_params(operation->real, params);
}

static int get_params(void *context, OSSL_PARAM params[])
{
    const struct operation *operation = context;
    OSSL_PARAM *tag = OSSL_PARAM_locate(params, OSSL_CIPHER_PARAM_AEAD_TAG);

    if (operation->passive && tag != NULL) {
        if (tag->data_type != OSSL_PARAM_OCTET_STRING || tag->data == NULL || tag->data_size > TAG_BYTES)
            return 0;
        memset(tag->data, TAG_BYTE, tag->data_size);
        tag->return_size = tag->data_size;
        return 1;
    }
    return EVP_CIPHER_CTX_get_params(operation->real, params);
}

static int init(struct operation *operation, const unsigned char *key, size_t key_bytes, const unsigned char *iv,
                const OSSL_PARAM params[], int encrypting)
{
    if (key != NULL)
        operation->passive = operation->cipher->is_aead ? noop && is_known(PACKET_KEY, key, key_bytes)
                                                        : no_mask && is_known(MASK_KEY, key, key_bytes);
    if (operation->passive && key == NULL)
        return set_params(operation, params);
    return EVP_CipherInit_ex2(operation->real, NULL, key, iv, encrypting, params);
}

static int encrypt_init(void *context, const unsigned char *key, size_t key_bytes, const unsigned char *iv,
                        size_t iv_bytes, const OSSL_PARAM params[])
{
    (void)iv_bytes;
    return init(context, key, key_bytes, iv, params, 1);
}

static int decrypt_init(void *context, const unsigned char *key, size_t key_bytes, const unsigned char *iv,
                        size_t iv_bytes, const OSSL_PARAM params[])
{
    (void)iv_bytes;
    return init(context, key, key_bytes, iv, params, 0);
}

/* With out == NULL the input is additional data of an AEAD (EVP_EncryptInit(3), "AEAD INTERFACE"). */
static int update(void *context, unsigned char *out, size_t *out_bytes, size_t out_room, const unsigned char *in,
                  size_t in_bytes)
{
    const struct operation *operation = context;
    int written;

    if (operation->passive) {
        if (out != NULL && out_room < in_bytes)
            return 0;
        if (out != NULL && !operation->cipher->is_aead)
            memset(out, 0, in_bytes);
        else if (out != NULL && out != in)
            memmove(out, in, in_bytes);
        *out_bytes = in_bytes;
        return 1;
    }
    if (EVP_CipherUpdate(operation->real, out, &written, in, (int)in_bytes) != 1)
        return 0;
    *out_bytes = (size_t)written;
    return 1;
}

static int final(void *context, unsigned char *out, size_t *out_bytes, size_t out_room)
{
    const struct operation *operation = context;
    int written = 0;

    (void)out_room;
    if (!operation->passive && EVP_CipherFinal_ex(operation->real, out, &written) != 1)
        return 0;
    *out_bytes = (size_t)written;
    return 1;
}

static int describe(const struct cipher *cipher, OSSL_PARAM params[])
{
    EVP_CIPHER *fetched = EVP_CIPHER_fetch(real, cipher->name, NULL);
    const int described = fetched != NULL && EVP_CIPHER_get_params(fetched, params);

    EVP_CIPHER_free(fetched);
    return described;
}

static const OSSL_PARAM *settable(void *context, void *provider)
{
    static const OSSL_PARAM params[] = {
        OSSL_PARAM_size_t(OSSL_CIPHER_PARAM_AEAD_IVLEN, NULL),
        OSSL_PARAM_octet_string(OSSL_CIPHER_PARAM_AEAD_TAG, NULL, 0),
        OSSL_PARAM_octet_string(OSSL_CIPHER_PARAM_AEAD_TLS1_AAD, NULL, 0),
        OSSL_PARAM_octet_string(OSSL_CIPHER_PARAM_AEAD_TLS1_IV_FIXED, NULL, 0),
        OSSL_PARAM_uint(OSSL_CIPHER_PARAM_PADDING, NULL),
        OSSL_PARAM_END,
    };

    (void)context;
    (void)provider;
    return params;
}

static const OSSL_PARAM *gettable(void *context, void *provider)
{
    static const OSSL_PARAM params[] = {
        OSSL_PARAM_size_t(OSSL_CIPHER_PARAM_KEYLEN, NULL),
        OSSL_PARAM_size_t(OSSL_CIPHER_PARAM_IVLEN, NULL),
        OSSL_PARAM_size_t(OSSL_CIPHER_PARAM_AEAD_TAGLEN, NULL),
        OSSL_PARAM_octet_string(OSSL_CIPHER_PARAM_AEAD_TAG, NULL, 0),
        OSSL_PARAM_octet_string(OSSL_CIPHER_PARAM_UPDATED_IV, NULL, 0),
        OSSL_PARAM_END,
    };

    (void)context;
    (void)provider;
    return params;
}

#define ENTRY(id, function) {OSSL_FUNC_CIPHER_##id, (void (*)(void))function}

/* A dispatch table per cipher: only newctx and get_params differ, because neither is told which cipher it is. */
#define CIPHER_FUNCTIONS(id, real_name, aead)                  \
    static const struct cipher id = {real_name, aead};         \
    static void *id##_new(void *provider)                      \
    {                                                          \
        (void)provider;                                        \
        return operation_new(&id);                             \
    }                                                          \
    static int id##_describe(OSSL_PARAM params[])              \
    {                                                          \
        return describe(&id, params);                          \
    }                                                          \
    static const OSSL_DISPATCH id##_functions[] = {            \
        ENTRY(NEWCTX, id##_new),                               \
        ENTRY(FREECTX, operation_free),                        \
        ENTRY(DUPCTX, operation_copy),                         \
        ENTRY(ENCRYPT_INIT, encrypt_init),                     \
        ENTRY(DECRYPT_INIT, decrypt_init),                     \
        ENTRY(UPDATE, update),                                 \
        ENTRY(FINAL, final),                                   \
        ENTRY(GET_PARAMS, id##_describe),                      \
        ENTRY(GET_CTX_PARAMS, get_params),                     \
        ENTRY(GETTABLE_CTX_PARAMS, gettable),                  \
        ENTRY(SET_CTX_PARAMS, set_params),                     \
        ENTRY(SETTABLE_CTX_PARAMS, settable),                  \
        {0, NULL},                                             \
    }

CIPHER_FUNCTIONS(aes_128_gcm, "AES-128-GCM", true);
CIPHER_FUNCTIONS(aes_256_gcm, "AES-256-GCM", true);
CIPHER_FUNCTIONS(chacha20_poly1305, "ChaCha20-Poly1305", true);
CIPHER_FUNCTIONS(aes_128_ecb, "AES-128-ECB", false);
CIPHER_FUNCTIONS(aes_256_ecb, "AES-256-ECB", false);
CIPHER_FUNCTIONS(aes_128_ctr, "AES-128-CTR", false);
CIPHER_FUNCTIONS(aes_256_ctr, "AES-256-CTR", false);
CIPHER_FUNCTIONS(chacha20, "ChaCha20", false);

/* Names and object identifiers as the default provider gives them, so that both mean the same algorithm. */
static const OSSL_ALGORITHM aeads[] = {
    {"AES-128-GCM:id-aes128-GCM:2.16.840.1.101.3.4.1.6", PROPERTIES, aes_128_gcm_functions, "QUIC not protected"},
    {"AES-256-GCM:id-aes256-GCM:2.16.840.1.101.3.4.1.46", PROPERTIES, aes_256_gcm_functions, "QUIC not protected"},
    {"ChaCha20-Poly1305", PROPERTIES, chacha20_poly1305_functions, "QUIC not protected"},
};

static const OSSL_ALGORITHM masks[] = {
    {"AES-128-ECB:2.16.840.1.101.3.4.1.1", PROPERTIES, aes_128_ecb_functions, "QUIC not protected"},
    {"AES-256-ECB:2.16.840.1.101.3.4.1.41", PROPERTIES, aes_256_ecb_functions, "QUIC not protected"},
    {"AES-128-CTR", PROPERTIES, aes_128_ctr_functions, "QUIC not protected"},
    {"AES-256-CTR", PROPERTIES, aes_256_ctr_functions, "QUIC not protected"},
    {"ChaCha20", PROPERTIES, chacha20_functions, "QUIC not protected"},
};

enum { AEADS = sizeof(aeads) / sizeof(aeads[0]), MASKS = sizeof(masks) / sizeof(masks[0]) };

/* Those that a switch changes, ended by an empty entry; with a layer of calls more, the others would cost more. */
static OSSL_ALGORITHM ciphers[AEADS + MASKS + 1];

static void choose_ciphers(void)
{
    size_t count = 0;

    memset(ciphers, 0, sizeof(ciphers));
    for (size_t i = 0; noop && i < AEADS; i++)
        ciphers[count++] = aeads[i];
    for (size_t i = 0; no_mask && i < MASKS; i++)
        ciphers[count++] = masks[i];
}

static const OSSL_ALGORITHM kdfs[] = {
    {"HKDF", PROPERTIES, hkdf_functions, "remembers QUIC keys"},
    {"TLS13-KDF", PROPERTIES, tls13_kdf_functions, "remembers QUIC keys"},
    {NULL, NULL, NULL, NULL},
};

/* ---- the provider ---- */

static const OSSL_ALGORITHM *query_operation(void *context, int operation_id, int *no_cache)
{
    (void)context;
    *no_cache = 0;
    return operation_id == OSSL_OP_CIPHER ? ciphers : operation_id == OSSL_OP_KDF ? kdfs : NULL;
}

static void teardown(void *context)
{
    (void)context;
    OSSL_LIB_CTX_free(real);
    real = NULL;
    OPENSSL_cleanse(known, sizeof(known));
}

static const OSSL_DISPATCH provider_functions[] = {
    {OSSL_FUNC_PROVIDER_TEARDOWN, (void (*)(void))teardown},
    {OSSL_FUNC_PROVIDER_QUERY_OPERATION, (void (*)(void))query_operation},
    {0, NULL},
};

/* The upcalls of the program's libcrypto used while the configuration is read. */
struct core {
    const OSSL_CORE_HANDLE *handle;
    OSSL_FUNC_core_get_params_fn *get_params;
    OSSL_FUNC_core_new_error_fn *new_error;
    OSSL_FUNC_core_vset_error_fn *set_error;
};

static void raise_error(const struct core *core, const char *format, ...)
{
    va_list arguments;

    if (core->new_error == NULL || core->set_error == NULL)
        return;
    core->new_error(core->handle);
    va_start(arguments, format);
    core->set_error(core->handle, PROV_R_INVALID_DATA, format, arguments);
    va_end(arguments);
}

/* Reads a switch of the provider's configuration section, `passive` if it is not given; false with an error raised. */
static bool read_switch(const struct core *core, const char *key, const char *active, const char *passive, bool *value)
{
    char *text = NULL;
    OSSL_PARAM request[] = {
        OSSL_PARAM_utf8_ptr(key, &text, 0),
        OSSL_PARAM_END,
    };

    if (!core->get_params(core->handle, request))
        return false;
    *value = text != NULL && strcmp(text, active) == 0;
    if (*value || text == NULL || strcmp(text, passive) == 0)
        return true;
    raise_error(core, PROVIDER_NAME ": %s = %s, must be %s or %s", key, text, active, passive);
    return false;
}

__attribute__((visibility("default"))) int OSSL_provider_init(const OSSL_CORE_HANDLE *handle, const OSSL_DISPATCH *in,
                                                               const OSSL_DISPATCH **out, void **provider_context)
{
    static int context;
    struct core core = {.handle = handle};

    for (; in->function_id != 0; in++) {
        if (in->function_id == OSSL_FUNC_CORE_GET_PARAMS)
            core.get_params = OSSL_FUNC_core_get_params(in);
        else if (in->function_id == OSSL_FUNC_CORE_NEW_ERROR)
            core.new_error = OSSL_FUNC_core_new_error(in);
        else if (in->function_id == OSSL_FUNC_CORE_VSET_ERROR)
            core.set_error = OSSL_FUNC_core_vset_error(in);
    }
    if (core.get_params == NULL || !read_switch(&core, "aead", "noop", "standard", &noop)
        || !read_switch(&core, "header-protection", "off", "on", &no_mask))
        return 0;
    /*
     * The program's configuration is not meant for the libcrypto in here. A function at exit would clean it up before the
     * program's libcrypto cleans up the provider.
     */
    if (!OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_ATEXIT, NULL))
        return 0;
    real = OSSL_LIB_CTX_new();
    if (real == NULL)
        return 0;
    choose_ciphers();
    *provider_context = &context;
    *out = provider_functions;
    return 1;
}
