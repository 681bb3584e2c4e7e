/* Keys of signature algorithms to and from files (provider-encoder(7), provider-decoder(7)); der.c has the formats. */
#include "provider.h"

#include <stdio.h>
#include <string.h>

#include <openssl/core_names.h>
#include <openssl/core_object.h>
#include <openssl/crypto.h>
#include <openssl/params.h>

/* ---- encoders ---- */

/* Encoders have no state: the context is the provider. */
static void *encoder_new(void *provider)
{
    return provider;
}

static void encoder_free(void *context)
{
    (void)context;
}

static int write_all(const struct provider *provider, OSSL_CORE_BIO *out, const void *data, size_t bytes)
{
    size_t written = 0;

    if (provider->bio_write(out, data, bytes, &written) == 1 && written == bytes)
        return 1;
    return raise_error(provider, REASON_OUTPUT, "%zu of %zu bytes written", written, bytes);
}

/* Textual encoding (RFC 7468): base64 in lines of 64 characters. */
static int write_pem(const struct provider *provider, OSSL_CORE_BIO *out, const char *label, const uint8_t *der,
                     size_t bytes)
{
    enum { OCTETS_PER_LINE = 48 };
    unsigned char line[4 * OCTETS_PER_LINE / 3 + 2];
    char frame[64];
    int done, length = snprintf(frame, sizeof(frame), "-----BEGIN %s-----\n", label);

    done = write_all(provider, out, frame, (size_t)length);
    while (done && bytes > 0) {
        size_t part = bytes < OCTETS_PER_LINE ? bytes : OCTETS_PER_LINE;

        length = EVP_EncodeBlock(line, der, (int)part);
        line[length++] = '\n';
        done = write_all(provider, out, line, (size_t)length);
        der += part;
        bytes -= part;
    }
    OPENSSL_cleanse(line, sizeof(line));
    length = snprintf(frame, sizeof(frame), "-----END %s-----\n", label);
    return done && write_all(provider, out, frame, (size_t)length);
}

/* `abstract` are parameters of a key of another provider; these algorithms have none. */
static int encode_public(const struct provider *provider, OSSL_CORE_BIO *out, const struct key *key,
                         const OSSL_PARAM abstract[], bool pem)
{
    size_t bytes = 0;
    uint8_t *der;
    int done;

    if (abstract != NULL || key == NULL || key->public_key == NULL)
        return raise_error(provider, REASON_KEY, "no public key to write");
    der = der_public_key_info(key, &bytes);
    if (der == NULL)
        return raise_error(provider, REASON_MEMORY, "%s", key->algorithm->name);
    done = pem ? write_pem(provider, out, "PUBLIC KEY", der, bytes) : write_all(provider, out, der, bytes);
    OPENSSL_free(der);
    return done;
}

static int encode_private(const struct provider *provider, OSSL_CORE_BIO *out, const struct key *key,
                          const OSSL_PARAM abstract[], bool pem)
{
    size_t bytes = 0;
    uint8_t *der;
    int done;

    if (abstract != NULL || key == NULL || key->secret_key == NULL || key->public_key == NULL)
        return raise_error(provider, REASON_KEY, "no private key to write");
    der = der_private_key_info(key, &bytes);
    if (der == NULL)
        return raise_error(provider, REASON_MEMORY, "%s", key->algorithm->name);
    done = pem ? write_pem(provider, out, "PRIVATE KEY", der, bytes) : write_all(provider, out, der, bytes);
    OPENSSL_clear_free(der, bytes);
    return done;
}

#define ENCODE(name, encode, pem)                                                                                      \
    static int name(void *context, OSSL_CORE_BIO *out, const void *key, const OSSL_PARAM abstract[], int selection,    \
                    OSSL_PASSPHRASE_CALLBACK *passphrase, void *argument)                                              \
    {                                                                                                                  \
        (void)selection;                                                                                               \
        (void)passphrase;                                                                                              \
        (void)argument;                                                                                                \
        return encode(context, out, key, abstract, pem);                                                               \
    }
ENCODE(public_to_der, encode_public, false)
ENCODE(public_to_pem, encode_public, true)
ENCODE(private_to_der, encode_private, false)
ENCODE(private_to_pem, encode_private, true)

static int write_hex(const struct provider *provider, OSSL_CORE_BIO *out, const char *title, const uint8_t *data,
                     size_t bytes)
{
    enum { OCTETS_PER_LINE = 15 };
    char line[4 + 3 * OCTETS_PER_LINE + 2];
    int length = snprintf(line, sizeof(line), "%s:\n", title);

    if (!write_all(provider, out, line, (size_t)length))
        return 0;
    for (size_t i = 0; i < bytes; i += OCTETS_PER_LINE) {
        length = snprintf(line, sizeof(line), "    ");
        for (size_t j = i; j < bytes && j < i + OCTETS_PER_LINE; j++)
            length +=
                snprintf(line + length, sizeof(line) - (size_t)length, "%02x%s", data[j], j + 1 < bytes ? ":" : "");
        line[length++] = '\n';
        if (!write_all(provider, out, line, (size_t)length))
            return 0;
    }
    return 1;
}

static int to_text(void *context, OSSL_CORE_BIO *out, const void *object, const OSSL_PARAM abstract[], int selection,
                   OSSL_PASSPHRASE_CALLBACK *passphrase, void *argument)
{
    const struct provider *provider = context;
    const struct key *key = object;
    bool secret = (selection & OSSL_KEYMGMT_SELECT_PRIVATE_KEY) != 0;
    char title[128];
    int length;

    (void)passphrase;
    (void)argument;
    if (abstract != NULL || key == NULL || (secret && key->secret_key == NULL))
        return raise_error(provider, REASON_KEY, "no key to write");
    length = snprintf(title, sizeof(title), "%s %s-Key:\n", key->algorithm->name, secret ? "Private" : "Public");
    if (!write_all(provider, out, title, (size_t)length))
        return 0;
    if (secret && !write_hex(provider, out, "priv", key->secret_key, key->algorithm->secret_key_bytes))
        return 0;
    return key->public_key == NULL ||
           write_hex(provider, out, "pub", key->public_key, key->algorithm->public_key_bytes);
}

static int selects_public(void *context, int selection)
{
    (void)context;
    return selection == 0 || ((selection & OSSL_KEYMGMT_SELECT_PUBLIC_KEY) != 0 &&
                              (selection & OSSL_KEYMGMT_SELECT_PRIVATE_KEY) == 0);
}

static int selects_private(void *context, int selection)
{
    (void)context;
    return selection == 0 || (selection & OSSL_KEYMGMT_SELECT_PRIVATE_KEY) != 0;
}

static int selects_text(void *context, int selection)
{
    (void)context;
    return selection == 0 || (selection & OSSL_KEYMGMT_SELECT_KEYPAIR) != 0;
}

static const OSSL_PARAM *encoder_settable_params(void *provider)
{
    static const OSSL_PARAM known[] = {
        OSSL_PARAM_utf8_string(OSSL_ENCODER_PARAM_CIPHER, NULL, 0),
        OSSL_PARAM_END,
    };

    (void)provider;
    return known;
}

/* A file that was to be encrypted must not be written in the clear. */
static int encoder_set_params(void *context, const OSSL_PARAM params[])
{
    const OSSL_PARAM *cipher = OSSL_PARAM_locate_const(params, OSSL_ENCODER_PARAM_CIPHER);
    const char *name = NULL;

    if (cipher != NULL && OSSL_PARAM_get_utf8_string_ptr(cipher, &name) && name != NULL && name[0] != '\0')
        return raise_error(context, REASON_ENCRYPTED, "with %s", name);
    return 1;
}

#define ENCODER(encode, selects)                                                                                       \
    static const OSSL_DISPATCH encode##_functions[] = {                                                                \
        {OSSL_FUNC_ENCODER_NEWCTX, (void (*)(void))encoder_new},                                                       \
        {OSSL_FUNC_ENCODER_FREECTX, (void (*)(void))encoder_free},                                                     \
        {OSSL_FUNC_ENCODER_DOES_SELECTION, (void (*)(void))selects},                                                   \
        {OSSL_FUNC_ENCODER_SETTABLE_CTX_PARAMS, (void (*)(void))encoder_settable_params},                              \
        {OSSL_FUNC_ENCODER_SET_CTX_PARAMS, (void (*)(void))encoder_set_params},                                        \
        {OSSL_FUNC_ENCODER_ENCODE, (void (*)(void))encode},                                                            \
        {0, NULL},                                                                                                     \
    };
ENCODER(public_to_der, selects_public)
ENCODER(public_to_pem, selects_public)
ENCODER(private_to_der, selects_private)
ENCODER(private_to_pem, selects_private)
ENCODER(to_text, selects_text)

const struct codec encoders[ENCODERS_PER_ALGORITHM] = {
    {PROPERTIES ",output=der,structure=SubjectPublicKeyInfo", public_to_der_functions},
    {PROPERTIES ",output=pem,structure=SubjectPublicKeyInfo", public_to_pem_functions},
    {PROPERTIES ",output=der,structure=PrivateKeyInfo", private_to_der_functions},
    {PROPERTIES ",output=pem,structure=PrivateKeyInfo", private_to_pem_functions},
    {PROPERTIES ",output=text", to_text_functions},
};

/* ---- decoders ---- */

struct decoder {
    const struct provider *provider;
    const struct algorithm *algorithm;
};

static void *decoder_new(const struct provider *provider, size_t slot)
{
    struct decoder *decoder = OPENSSL_zalloc(sizeof(*decoder));

    if (decoder == NULL) {
        raise_error(provider, REASON_MEMORY, "%s", provider->algorithms[slot].name);
        return NULL;
    }
    decoder->provider = provider;
    decoder->algorithm = &provider->algorithms[slot];
    return decoder;
}

static void decoder_free(void *decoder)
{
    OPENSSL_free(decoder);
}

/* No structure read here is longer. */
enum { LARGEST = 64 * 1024 };

/* Everything that is left of the input, in a buffer of LARGEST bytes. */
static uint8_t *read_all(const struct provider *provider, OSSL_CORE_BIO *in, size_t *bytes)
{
    uint8_t *buffer = OPENSSL_malloc(LARGEST);
    size_t part = 0;

    *bytes = 0;
    if (buffer == NULL) {
        raise_error(provider, REASON_MEMORY, "reading a key");
        return NULL;
    }
    while (*bytes < LARGEST && provider->bio_read(in, buffer + *bytes, LARGEST - *bytes, &part) == 1 && part > 0)
        *bytes += part;
    return buffer;
}

static int decode(const struct decoder *decoder, OSSL_CORE_BIO *in,
                  enum der_result (*read)(struct key *, const uint8_t *, size_t), OSSL_CALLBACK *callback,
                  void *argument)
{
    const struct algorithm *algorithm = decoder->algorithm;
    enum der_result result = DER_FOREIGN;
    struct key *key = NULL;
    int done = 1; /* Input of another algorithm is left to other decoders and no error. */
    size_t bytes = 0;
    uint8_t *der = read_all(decoder->provider, in, &bytes);

    if (der == NULL)
        return 0;
    key = key_new(decoder->provider, algorithm);
    if (key != NULL)
        result = read(key, der, bytes);
    OPENSSL_clear_free(der, LARGEST);
    if (result == DER_MALFORMED) {
        done = raise_error(decoder->provider, REASON_KEY, "%s: the encoded key is malformed or truncated",
                           algorithm->name);
    } else if (result == DER_KEY) {
        int type = OSSL_OBJECT_PKEY;
        OSSL_PARAM params[] = {
            OSSL_PARAM_construct_int(OSSL_OBJECT_PARAM_TYPE, &type),
            OSSL_PARAM_construct_utf8_string(OSSL_OBJECT_PARAM_DATA_TYPE, (char *)algorithm->name, 0),
            OSSL_PARAM_construct_octet_string(OSSL_OBJECT_PARAM_REFERENCE, &key, sizeof(key)),
            OSSL_PARAM_construct_end(),
        };

        done = callback(params, argument);
    }
    key_free(key); /* NULL once it has been taken over */
    return done;
}

#define DECODE(name, read)                                                                                             \
    static int name(void *context, OSSL_CORE_BIO *in, int selection, OSSL_CALLBACK *callback, void *argument,          \
                    OSSL_PASSPHRASE_CALLBACK *passphrase, void *passphrase_argument)                                   \
    {                                                                                                                  \
        (void)selection;                                                                                               \
        (void)passphrase;                                                                                              \
        (void)passphrase_argument;                                                                                     \
        return decode(context, in, read, callback, argument);                                                          \
    }
DECODE(decode_private_key_info, der_read_private_key_info)
DECODE(decode_public_key_info, der_read_public_key_info)

#define DECODER_FUNCTIONS(slot, decode, selects)                                                                       \
    {                                                                                                                  \
        {OSSL_FUNC_DECODER_NEWCTX, (void (*)(void))decoder_new_##slot},                                                \
        {OSSL_FUNC_DECODER_FREECTX, (void (*)(void))decoder_free},                                                     \
        {OSSL_FUNC_DECODER_DOES_SELECTION, (void (*)(void))selects},                                                   \
        {OSSL_FUNC_DECODER_DECODE, (void (*)(void))decode},                                                            \
        {0, NULL},                                                                                                     \
    }

#define DECODER(slot)                                                                                                  \
    static void *decoder_new_##slot(void *provider)                                                                    \
    {                                                                                                                  \
        return decoder_new(provider, slot);                                                                            \
    }                                                                                                                  \
    static const OSSL_DISPATCH private_key_info_decoder_##slot[] =                                                     \
        DECODER_FUNCTIONS(slot, decode_private_key_info, selects_private);                                             \
    static const OSSL_DISPATCH public_key_info_decoder_##slot[] =                                                      \
        DECODER_FUNCTIONS(slot, decode_public_key_info, selects_public);
SLOTS(DECODER)

#define PRIVATE_ENTRY(slot) private_key_info_decoder_##slot,
#define PUBLIC_ENTRY(slot) public_key_info_decoder_##slot,
const OSSL_DISPATCH *const private_key_info_decoders[SLOT_COUNT] = {SLOTS(PRIVATE_ENTRY)};
const OSSL_DISPATCH *const public_key_info_decoders[SLOT_COUNT] = {SLOTS(PUBLIC_ENTRY)};
