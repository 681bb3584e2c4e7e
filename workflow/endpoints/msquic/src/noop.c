/* The ciphers of workflow/crypto/noop-provider in a library context of their own: no other use of quictls meets them. */
#include <stddef.h>
#include <string.h>

#include <openssl/core.h>
#include <openssl/core_dispatch.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/provider.h>

int OSSL_provider_init(const OSSL_CORE_HANDLE *handle, const OSSL_DISPATCH *in, const OSSL_DISPATCH **out,
                       void **provider_context);
EVP_CIPHER *quicbed_noop_cipher(const char *name);

/* Stands for the provider's section of a configuration file. */
static int get_params(const OSSL_CORE_HANDLE *handle, OSSL_PARAM params[])
{
    (void)handle;
    for (; params->key != NULL; params++)
        if (strcmp(params->key, "aead") == 0)
            *(const char **)params->data = "noop";
    return 1;
}

static int initialise(const OSSL_CORE_HANDLE *handle, const OSSL_DISPATCH *in, const OSSL_DISPATCH **out,
                      void **provider_context)
{
    static const OSSL_DISPATCH core[] = {
        {OSSL_FUNC_CORE_GET_PARAMS, (void (*)(void))get_params},
        {0, NULL},
    };

    (void)in;
    return OSSL_provider_init(handle, core, out, provider_context);
}

/* A cipher that does not encrypt, or NULL. It stays until the process ends. */
EVP_CIPHER *quicbed_noop_cipher(const char *name)
{
    static OSSL_LIB_CTX *context;

    if (context == NULL) {
        context = OSSL_LIB_CTX_new();
        if (context == NULL || OSSL_PROVIDER_add_builtin(context, "quicbed-noop", initialise) != 1
            || OSSL_PROVIDER_load(context, "quicbed-noop") == NULL)
            return NULL;
    }
    return EVP_CIPHER_fetch(context, name, NULL);
}
