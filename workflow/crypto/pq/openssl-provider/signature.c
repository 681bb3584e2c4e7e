/* Signatures over whole messages, without a digest (provider-signature(7)). */
#include "provider.h"

#include <string.h>

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/params.h>

struct operation {
    const struct provider *provider;
    const struct key *key;
};

static void *new_context(void *provider, const char *properties)
{
    struct operation *operation = OPENSSL_zalloc(sizeof(*operation));

    (void)properties;
    if (operation != NULL)
        operation->provider = provider;
    return operation;
}

static void free_context(void *context)
{
    OPENSSL_free(context);
}

static void *dup_context(void *context)
{
    return OPENSSL_memdup(context, sizeof(struct operation));
}

static int init(struct operation *operation, const char *digest, const struct key *key, bool sign)
{
    if (digest != NULL && digest[0] != '\0' && strcmp(digest, "UNDEF") != 0)
        return raise_error(operation->provider, REASON_DIGEST, "%s", digest);
    /* NULL: the key the operation already has */
    if (key != NULL)
        operation->key = key;
    if (operation->key == NULL || operation->key->algorithm->sig == NULL)
        return raise_error(operation->provider, REASON_KEY, "not a key of a signature algorithm");
    if ((sign ? operation->key->secret_key : operation->key->public_key) == NULL)
        return raise_error(operation->provider, REASON_KEY, "%s: no %s key", operation->key->algorithm->name,
                           sign ? "private" : "public");
    return 1;
}

static int sign_init(void *context, const char *digest, void *key, const OSSL_PARAM params[])
{
    (void)params;
    return init(context, digest, key, true);
}

static int verify_init(void *context, const char *digest, void *key, const OSSL_PARAM params[])
{
    (void)params;
    return init(context, digest, key, false);
}

static int sign(void *context, unsigned char *signature, size_t *bytes, size_t size, const unsigned char *message,
                size_t message_bytes)
{
    const struct operation *operation = context;
    const struct algorithm *algorithm = operation->key->algorithm;
    size_t largest = quicbed_sig_signature_bytes(algorithm->sig);

    if (signature == NULL) {
        *bytes = largest;
        return 1;
    }
    if (size < largest)
        return raise_error(operation->provider, REASON_LENGTH, "%s: room for %zu bytes of signature, %zu needed",
                           algorithm->name, size, largest);
    *bytes = largest;
    if (quicbed_sig_sign(algorithm->sig, signature, bytes, message, message_bytes, operation->key->secret_key) != 1)
        return raise_error(operation->provider, REASON_LIBOQS, "%s: signing", algorithm->name);
    return 1;
}

static int verify(void *context, const unsigned char *signature, size_t bytes, const unsigned char *message,
                  size_t message_bytes)
{
    const struct operation *operation = context;
    const struct key *key = operation->key;
    const quicbed_sig *sig = key->algorithm->sig;

    /* All signatures of an algorithm have one length; liboqs compares it itself for some algorithms only. */
    if (bytes != quicbed_sig_signature_bytes(sig))
        return 0;
    return quicbed_sig_verify(sig, message, message_bytes, signature, bytes, key->public_key) == 1;
}

static const OSSL_PARAM *gettable_params(void *context, void *provider)
{
    static const OSSL_PARAM known[] = {
        OSSL_PARAM_octet_string(OSSL_SIGNATURE_PARAM_ALGORITHM_ID, NULL, 0),
        OSSL_PARAM_END,
    };

    (void)context;
    (void)provider;
    return known;
}

static int get_params(void *context, OSSL_PARAM params[])
{
    const struct operation *operation = context;
    OSSL_PARAM *identifier = OSSL_PARAM_locate(params, OSSL_SIGNATURE_PARAM_ALGORITHM_ID);
    size_t bytes = 0;
    uint8_t *der;
    int done;

    if (identifier == NULL)
        return 1;
    if (operation->key == NULL)
        return 0;
    der = der_algorithm_identifier(operation->key->algorithm, &bytes);
    done = der != NULL && OSSL_PARAM_set_octet_string(identifier, der, bytes);
    OPENSSL_free(der);
    return done;
}

const OSSL_DISPATCH signature_functions[] = {
    {OSSL_FUNC_SIGNATURE_NEWCTX, (void (*)(void))new_context},
    {OSSL_FUNC_SIGNATURE_FREECTX, (void (*)(void))free_context},
    {OSSL_FUNC_SIGNATURE_DUPCTX, (void (*)(void))dup_context},
    {OSSL_FUNC_SIGNATURE_DIGEST_SIGN_INIT, (void (*)(void))sign_init},
    {OSSL_FUNC_SIGNATURE_DIGEST_SIGN, (void (*)(void))sign},
    {OSSL_FUNC_SIGNATURE_DIGEST_VERIFY_INIT, (void (*)(void))verify_init},
    {OSSL_FUNC_SIGNATURE_DIGEST_VERIFY, (void (*)(void))verify},
    {OSSL_FUNC_SIGNATURE_GET_CTX_PARAMS, (void (*)(void))get_params},
    {OSSL_FUNC_SIGNATURE_GETTABLE_CTX_PARAMS, (void (*)(void))gettable_params},
    {0, NULL},
};
