/* The provider of workflow/crypto/pq/openssl-provider as a part of the program: quictls has no loadable modules here. */
#include <stddef.h>

#include <openssl/core.h>
#include <openssl/provider.h>

int quicbed_load_provider(void);

/* Returns 1, or 0 if it fails. The providers stay until the process ends. */
int quicbed_load_provider(void)
{
    /* The default provider is there of its own accord only as long as no other is loaded. */
    return OSSL_PROVIDER_add_builtin(NULL, "quicbed-pq", OSSL_provider_init) == 1
           && OSSL_PROVIDER_load(NULL, "default") != NULL && OSSL_PROVIDER_load(NULL, "quicbed-pq") != NULL;
}
