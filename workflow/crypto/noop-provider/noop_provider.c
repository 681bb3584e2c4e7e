/*
 * OpenSSL 3 provider "quicbed-noop": ciphers that do not encrypt.
 *
 * Loaded next to the default provider and preferred by `default_properties = ?provider=quicbed-noop`
 * (see openssl-noop.cnf), it takes over packet protection in an unmodified OpenSSL program:
 *
 *   aead = noop               AES-128-GCM, AES-256-GCM and ChaCha20-Poly1305 copy their input and give the
 *                             constant tag 16 x 0x2a. The tag is not verified on decryption and the
 *                             additional data is ignored. `aead = standard` leaves these ciphers alone.
 *   header-protection = off   AES-128-ECB, AES-128-CTR and ChaCha20 give zero bytes, so that a QUIC
 *                             header-protection mask (RFC 9001, section 5.4) changes nothing.
 *                             `header-protection = on` (the default) leaves these ciphers alone.
 *
 * Both are read from the provider's section of the OpenSSL configuration file.
 *
 * Key schedule, handshake signatures and key exchange stay with the default provider, and so does the random
 * number generator, which is why AES-256-ECB and AES-256-CTR, its building blocks, are never replaced.
 * TLS 1.2 is not supported: its record layer asks an AEAD for parameters that are refused here, so that such a
 * connection fails. A provider cannot tell QUIC Initial packets from others; they are treated alike.
 *
 * Nothing but the C library is linked, for programs that contain OpenSSL as a static library.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/core.h>
#include <openssl/core_dispatch.h>
#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/proverr.h>

#define PROVIDER_NAME "quicbed-noop"
#define PROPERTIES "provider=" PROVIDER_NAME

enum { TAG_BYTES = 16, TAG_BYTE = 0x2a, NONCE_BYTES = 12 };

/* What one replaced cipher looks like from outside. Sizes are in bytes. */
struct cipher {
    size_t key_bytes;
    size_t iv_bytes;
    size_t block_bytes;
    unsigned int mode;
    int is_aead;
};

static const struct cipher aes_128_gcm = {16, NONCE_BYTES, 1, EVP_CIPH_GCM_MODE, 1};
static const struct cipher aes_256_gcm = {32, NONCE_BYTES, 1, EVP_CIPH_GCM_MODE, 1};
static const struct cipher chacha20_poly1305 = {32, NONCE_BYTES, 1, EVP_CIPH_STREAM_CIPHER, 1};
static const struct cipher aes_128_ecb = {16, 0, 16, EVP_CIPH_ECB_MODE, 0};
static const struct cipher aes_128_ctr = {16, 16, 1, EVP_CIPH_CTR_MODE, 0};
static const struct cipher chacha20 = {32, 16, 1, EVP_CIPH_STREAM_CIPHER, 0};

struct operation {
    const struct cipher *cipher;
    size_t iv_bytes;
};

/* ---- parameters: the few helpers needed of OSSL_PARAM(3), without linking libcrypto ---- */

static OSSL_PARAM *find(OSSL_PARAM *params, const char *key)
{
    if (params == NULL)
        return NULL;
    for (; params->key != NULL; params++)
        if (strcmp(params->key, key) == 0)
            return params;
    return NULL;
}

static const OSSL_PARAM *find_const(const OSSL_PARAM *params, const char *key)
{
    return find((OSSL_PARAM *)params, key);
}

/* Stores an unsigned value in the integer type the caller asked for; a parameter that was not asked for is fine. */
static int answer(OSSL_PARAM *params, const char *key, size_t value)
{
    OSSL_PARAM *param = find(params, key);

    if (param == NULL)
        return 1;
    if (param->data_type != OSSL_PARAM_UNSIGNED_INTEGER && param->data_type != OSSL_PARAM_INTEGER)
        return 0;
    if (param->data_size == sizeof(unsigned int) && value <= 0x7fffffff) {
        unsigned int narrow = (unsigned int)value;
        memcpy(param->data, &narrow, sizeof(narrow));
    } else if (param->data_size == sizeof(size_t)) {
        memcpy(param->data, &value, sizeof(value));
    } else {
        return 0;
    }
    param->return_size = param->data_size;
    return 1;
}

/* ---- one operation ---- */

static void *operation_new(const struct cipher *cipher)
{
    struct operation *operation = malloc(sizeof(*operation));

    if (operation != NULL) {
        operation->cipher = cipher;
        operation->iv_bytes = cipher->iv_bytes;
    }
    return operation;
}

static void *operation_copy(void *context)
{
    struct operation *copy = malloc(sizeof(*copy));

    if (copy != NULL)
        *copy = *(const struct operation *)context;
    return copy;
}

static void operation_free(void *context)
{
    free(context);
}

static int set_context_params(void *context, const OSSL_PARAM params[])
{
    struct operation *operation = context;
    const OSSL_PARAM *param = find_const(params, OSSL_CIPHER_PARAM_AEAD_IVLEN);

    if (param != NULL) {
        if (param->data_type != OSSL_PARAM_UNSIGNED_INTEGER || param->data_size != sizeof(size_t))
            return 0;
        memcpy(&operation->iv_bytes, param->data, sizeof(size_t));
        if (operation->iv_bytes == 0 || operation->iv_bytes > EVP_MAX_IV_LENGTH)
            return 0;
    }
    /* The tag that precedes a decryption is accepted and, not being verified, forgotten. */
    param = find_const(params, OSSL_CIPHER_PARAM_AEAD_TAG);
    return param == NULL || param->data_size <= TAG_BYTES;
}

static int get_context_params(void *context, OSSL_PARAM params[])
{
    const struct operation *operation = context;
    OSSL_PARAM *tag = find(params, OSSL_CIPHER_PARAM_AEAD_TAG);

    if (tag != NULL) {
        if (!operation->cipher->is_aead || tag->data_type != OSSL_PARAM_OCTET_STRING || tag->data == NULL
            || tag->data_size > TAG_BYTES)
            return 0;
        memset(tag->data, TAG_BYTE, tag->data_size);
        tag->return_size = tag->data_size;
    }
    return answer(params, OSSL_CIPHER_PARAM_KEYLEN, operation->cipher->key_bytes)
           && answer(params, OSSL_CIPHER_PARAM_IVLEN, operation->iv_bytes)
           && (!operation->cipher->is_aead || answer(params, OSSL_CIPHER_PARAM_AEAD_TAGLEN, TAG_BYTES));
}

static int init(void *context, const unsigned char *key, size_t key_bytes, const unsigned char *iv, size_t iv_bytes,
                const OSSL_PARAM params[])
{
    const struct operation *operation = context;

    if (key != NULL && key_bytes != operation->cipher->key_bytes)
        return 0;
    if (iv != NULL && iv_bytes != operation->iv_bytes)
        return 0;
    return set_context_params(context, params);
}

/* With out == NULL the input is additional data of an AEAD (EVP_EncryptInit(3), "AEAD INTERFACE"). */
static int update(void *context, unsigned char *out, size_t *out_bytes, size_t out_room, const unsigned char *in,
                  size_t in_bytes)
{
    const struct operation *operation = context;

    if (out != NULL) {
        if (out_room < in_bytes)
            return 0;
        if (!operation->cipher->is_aead)
            memset(out, 0, in_bytes);
        else if (out != in)
            memmove(out, in, in_bytes);
    } else if (!operation->cipher->is_aead) {
        return 0;
    }
    *out_bytes = in_bytes;
    return 1;
}

static int final(void *context, unsigned char *out, size_t *out_bytes, size_t out_room)
{
    (void)context;
    (void)out;
    (void)out_room;
    *out_bytes = 0;
    return 1;
}

static int one_shot(void *context, unsigned char *out, size_t *out_bytes, size_t out_room, const unsigned char *in,
                    size_t in_bytes)
{
    if (in == NULL)
        return final(context, out, out_bytes, out_room);
    return update(context, out, out_bytes, out_room, in, in_bytes);
}

/* ---- description of a cipher ---- */

static int get_params(const struct cipher *cipher, OSSL_PARAM params[])
{
    return answer(params, OSSL_CIPHER_PARAM_MODE, cipher->mode)
           && answer(params, OSSL_CIPHER_PARAM_KEYLEN, cipher->key_bytes)
           && answer(params, OSSL_CIPHER_PARAM_IVLEN, cipher->iv_bytes)
           && answer(params, OSSL_CIPHER_PARAM_BLOCK_SIZE, cipher->block_bytes)
           && answer(params, OSSL_CIPHER_PARAM_AEAD, (size_t)cipher->is_aead)
           && answer(params, OSSL_CIPHER_PARAM_CUSTOM_IV, (size_t)cipher->is_aead);
}

static const OSSL_PARAM *gettable_params(void *provider)
{
    static const OSSL_PARAM known[] = {
        {OSSL_CIPHER_PARAM_MODE, OSSL_PARAM_UNSIGNED_INTEGER, NULL, sizeof(unsigned int), 0},
        {OSSL_CIPHER_PARAM_KEYLEN, OSSL_PARAM_UNSIGNED_INTEGER, NULL, sizeof(size_t), 0},
        {OSSL_CIPHER_PARAM_IVLEN, OSSL_PARAM_UNSIGNED_INTEGER, NULL, sizeof(size_t), 0},
        {OSSL_CIPHER_PARAM_BLOCK_SIZE, OSSL_PARAM_UNSIGNED_INTEGER, NULL, sizeof(size_t), 0},
        {OSSL_CIPHER_PARAM_AEAD, OSSL_PARAM_INTEGER, NULL, sizeof(int), 0},
        {OSSL_CIPHER_PARAM_CUSTOM_IV, OSSL_PARAM_INTEGER, NULL, sizeof(int), 0},
        {NULL, 0, NULL, 0, 0},
    };

    (void)provider;
    return known;
}

static const OSSL_PARAM *gettable_context_params(void *context, void *provider)
{
    static const OSSL_PARAM known[] = {
        {OSSL_CIPHER_PARAM_KEYLEN, OSSL_PARAM_UNSIGNED_INTEGER, NULL, sizeof(size_t), 0},
        {OSSL_CIPHER_PARAM_IVLEN, OSSL_PARAM_UNSIGNED_INTEGER, NULL, sizeof(size_t), 0},
        {OSSL_CIPHER_PARAM_AEAD_TAGLEN, OSSL_PARAM_UNSIGNED_INTEGER, NULL, sizeof(size_t), 0},
        {OSSL_CIPHER_PARAM_AEAD_TAG, OSSL_PARAM_OCTET_STRING, NULL, 0, 0},
        {NULL, 0, NULL, 0, 0},
    };

    (void)context;
    (void)provider;
    return known;
}

static const OSSL_PARAM *settable_context_params(void *context, void *provider)
{
    static const OSSL_PARAM known[] = {
        {OSSL_CIPHER_PARAM_AEAD_IVLEN, OSSL_PARAM_UNSIGNED_INTEGER, NULL, sizeof(size_t), 0},
        {OSSL_CIPHER_PARAM_AEAD_TAG, OSSL_PARAM_OCTET_STRING, NULL, 0, 0},
        {NULL, 0, NULL, 0, 0},
    };

    (void)context;
    (void)provider;
    return known;
}

/* ---- dispatch tables ---- */

#define ENTRY(id, function) {OSSL_FUNC_CIPHER_##id, (void (*)(void))(function)}

/* A dispatch table per cipher: only newctx and get_params differ, because neither is told which cipher it is. */
#define CIPHER_FUNCTIONS(name)                                      \
    static void *name##_new(void *provider)                         \
    {                                                               \
        (void)provider;                                             \
        return operation_new(&name);                                \
    }                                                               \
    static int name##_get_params(OSSL_PARAM params[])               \
    {                                                               \
        return get_params(&name, params);                           \
    }                                                               \
    static const OSSL_DISPATCH name##_functions[] = {               \
        ENTRY(NEWCTX, name##_new),                                  \
        ENTRY(FREECTX, operation_free),                             \
        ENTRY(DUPCTX, operation_copy),                              \
        ENTRY(ENCRYPT_INIT, init),                                  \
        ENTRY(DECRYPT_INIT, init),                                  \
        ENTRY(UPDATE, update),                                      \
        ENTRY(FINAL, final),                                        \
        ENTRY(CIPHER, one_shot),                                    \
        ENTRY(GET_PARAMS, name##_get_params),                       \
        ENTRY(GETTABLE_PARAMS, gettable_params),                    \
        ENTRY(GET_CTX_PARAMS, get_context_params),                  \
        ENTRY(GETTABLE_CTX_PARAMS, gettable_context_params),        \
        ENTRY(SET_CTX_PARAMS, set_context_params),                  \
        ENTRY(SETTABLE_CTX_PARAMS, settable_context_params),        \
        {0, NULL},                                                  \
    }

CIPHER_FUNCTIONS(aes_128_gcm);
CIPHER_FUNCTIONS(aes_256_gcm);
CIPHER_FUNCTIONS(chacha20_poly1305);
CIPHER_FUNCTIONS(aes_128_ecb);
CIPHER_FUNCTIONS(aes_128_ctr);
CIPHER_FUNCTIONS(chacha20);

/* Names and object identifiers as the default provider gives them, so that both mean the same algorithm. */
static const OSSL_ALGORITHM aead_ciphers[] = {
    {"AES-128-GCM:id-aes128-GCM:2.16.840.1.101.3.4.1.6", PROPERTIES, aes_128_gcm_functions, "no encryption"},
    {"AES-256-GCM:id-aes256-GCM:2.16.840.1.101.3.4.1.46", PROPERTIES, aes_256_gcm_functions, "no encryption"},
    {"ChaCha20-Poly1305", PROPERTIES, chacha20_poly1305_functions, "no encryption"},
};

static const OSSL_ALGORITHM mask_ciphers[] = {
    {"AES-128-ECB:2.16.840.1.101.3.4.1.1", PROPERTIES, aes_128_ecb_functions, "zero output"},
    {"AES-128-CTR", PROPERTIES, aes_128_ctr_functions, "zero output"},
    {"ChaCha20", PROPERTIES, chacha20_functions, "zero output"},
};

enum { AEADS = sizeof(aead_ciphers) / sizeof(aead_ciphers[0]), MASKS = sizeof(mask_ciphers) / sizeof(mask_ciphers[0]) };

/* ---- the provider ---- */

/* One loaded instance: the ciphers its configuration section chose, ended by an empty entry. */
struct provider {
    OSSL_ALGORITHM ciphers[AEADS + MASKS + 1];
};

static const OSSL_ALGORITHM *query_operation(void *context, int operation_id, int *no_cache)
{
    *no_cache = 0;
    return operation_id == OSSL_OP_CIPHER ? ((const struct provider *)context)->ciphers : NULL;
}

static const OSSL_PARAM *gettable_provider_params(void *context)
{
    static const OSSL_PARAM known[] = {
        {OSSL_PROV_PARAM_NAME, OSSL_PARAM_UTF8_PTR, NULL, 0, 0},
        {OSSL_PROV_PARAM_STATUS, OSSL_PARAM_INTEGER, NULL, sizeof(int), 0},
        {NULL, 0, NULL, 0, 0},
    };

    (void)context;
    return known;
}

static int get_provider_params(void *context, OSSL_PARAM params[])
{
    OSSL_PARAM *name = find(params, OSSL_PROV_PARAM_NAME);

    (void)context;
    if (name != NULL) {
        if (name->data_type != OSSL_PARAM_UTF8_PTR)
            return 0;
        *(const char **)name->data = PROVIDER_NAME;
        name->return_size = sizeof(PROVIDER_NAME) - 1;
    }
    return answer(params, OSSL_PROV_PARAM_STATUS, 1);
}

static void teardown(void *context)
{
    free(context);
}

static const OSSL_DISPATCH provider_functions[] = {
    {OSSL_FUNC_PROVIDER_TEARDOWN, (void (*)(void))teardown},
    {OSSL_FUNC_PROVIDER_GETTABLE_PARAMS, (void (*)(void))gettable_provider_params},
    {OSSL_FUNC_PROVIDER_GET_PARAMS, (void (*)(void))get_provider_params},
    {OSSL_FUNC_PROVIDER_QUERY_OPERATION, (void (*)(void))query_operation},
    {0, NULL},
};

/* The upcalls of libcrypto used while the configuration is read. */
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

/*
 * Reads a switch of the provider's configuration section. Returns 1 if it has the value `active`, 0 if it has the
 * value `passive` or is not given, -1 (with an error raised) for anything else.
 */
static int read_switch(const struct core *core, const char *key, const char *active, const char *passive)
{
    char *value = NULL;
    OSSL_PARAM request[] = {
        {key, OSSL_PARAM_UTF8_PTR, &value, 0, 0},
        {NULL, 0, NULL, 0, 0},
    };

    if (!core->get_params(core->handle, request))
        return -1;
    if (value == NULL || strcmp(value, passive) == 0)
        return 0;
    if (strcmp(value, active) == 0)
        return 1;
    raise_error(core, PROVIDER_NAME ": %s = %s, must be %s or %s", key, value, active, passive);
    return -1;
}

int OSSL_provider_init(const OSSL_CORE_HANDLE *handle, const OSSL_DISPATCH *in, const OSSL_DISPATCH **out,
                       void **provider_context)
{
    struct core core = {.handle = handle};
    struct provider *provider;
    size_t count = 0;
    int noop, mask_off;

    for (; in->function_id != 0; in++) {
        if (in->function_id == OSSL_FUNC_CORE_GET_PARAMS)
            core.get_params = OSSL_FUNC_core_get_params(in);
        else if (in->function_id == OSSL_FUNC_CORE_NEW_ERROR)
            core.new_error = OSSL_FUNC_core_new_error(in);
        else if (in->function_id == OSSL_FUNC_CORE_VSET_ERROR)
            core.set_error = OSSL_FUNC_core_vset_error(in);
    }
    if (core.get_params == NULL)
        return 0;
    noop = read_switch(&core, "aead", "noop", "standard");
    mask_off = read_switch(&core, "header-protection", "off", "on");
    if (noop < 0 || mask_off < 0)
        return 0;

    provider = calloc(1, sizeof(*provider));
    if (provider == NULL)
        return 0;
    if (noop) {
        memcpy(provider->ciphers, aead_ciphers, sizeof(aead_ciphers));
        count = AEADS;
    }
    if (mask_off)
        memcpy(provider->ciphers + count, mask_ciphers, sizeof(mask_ciphers));
    *provider_context = provider;
    *out = provider_functions;
    return 1;
}
