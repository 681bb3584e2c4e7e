/*
 * The switches of the noop flavour, in Handshake and 1-RTT packets.
 *
 * ngtcp2's helper for BoringSSL asks ngtcp2_crypto_ctx_tls() for the algorithms of these packets, and other functions for
 * those of Initial and Retry packets, which stay as they are. The linker passes its calls through the functions here
 * (ld(1), --wrap).
 */
#include "protection.h"

#include <string.h>

#include <ngtcp2/ngtcp2_crypto.h>

/* ../../crypto/noop-aead/noop_aead.cc */
const void *quicbed_noop_aead(size_t key_length);

static bool noop, clear;

/*
 * A cipher for header protection of the same kind as the one negotiated (its description is one enumeration), told apart
 * from that of Initial packets by its address.
 */
static int clear_cipher;

void choose_protection(const struct options *options)
{
    noop = options->noop;
    clear = !options->header_protection;
}

ngtcp2_crypto_ctx *__real_ngtcp2_crypto_ctx_tls(ngtcp2_crypto_ctx *, void *);
ngtcp2_crypto_ctx *__wrap_ngtcp2_crypto_ctx_tls(ngtcp2_crypto_ctx *context, void *ssl)
{
    if (__real_ngtcp2_crypto_ctx_tls(context, ssl) == NULL)
        return NULL;
    /* Key, nonce and overhead have the lengths of the AEAD that is replaced. */
    if (noop)
        context->aead.native_handle = (void *)quicbed_noop_aead(ngtcp2_crypto_aead_keylen(&context->aead));
    if (clear) {
        memcpy(&clear_cipher, context->hp.native_handle, sizeof(clear_cipher));
        context->hp.native_handle = &clear_cipher;
    }
    return context;
}

int __real_ngtcp2_crypto_hp_mask_cb(uint8_t *, const ngtcp2_crypto_cipher *, const ngtcp2_crypto_cipher_ctx *,
                                    const uint8_t *);
int __wrap_ngtcp2_crypto_hp_mask_cb(uint8_t *mask, const ngtcp2_crypto_cipher *cipher,
                                    const ngtcp2_crypto_cipher_ctx *context, const uint8_t *sample)
{
    if (cipher->native_handle == &clear_cipher) {
        memset(mask, 0, NGTCP2_HP_MASKLEN);
        return 0;
    }
    return __real_ngtcp2_crypto_hp_mask_cb(mask, cipher, context, sample);
}
