/* Packet protection that does nothing, for the flavour noop; see docs/libraries/picoquic.md. */
#include "internal.h"

#include <string.h>

#ifdef QUICBED_NOOP

enum { NOOP_TAG_BYTE = 0x2a };

static void noop_encrypt(struct st_ptls_aead_context_t *context, void *output, const void *input, size_t length,
                         uint64_t sequence, const void *data, size_t data_length,
                         ptls_aead_supplementary_encryption_t *more)
{
    (void)sequence;
    (void)data;
    (void)data_length;
    (void)more;
    if (output != input)
        memmove(output, input, length);
    memset((uint8_t *)output + length, NOOP_TAG_BYTE, context->algo->tag_size);
}

static size_t noop_decrypt(struct st_ptls_aead_context_t *context, void *output, const void *input, size_t length,
                           uint64_t sequence, const void *data, size_t data_length)
{
    const size_t tag = context->algo->tag_size;
    const uint8_t *at;

    (void)sequence;
    (void)data;
    (void)data_length;
    if (length < tag)
        return SIZE_MAX;
    length -= tag;
    at = (const uint8_t *)input + length;
    for (size_t i = 0; i < tag; i++)
        if (at[i] != NOOP_TAG_BYTE)
            return SIZE_MAX;
    if (output != input)
        memmove(output, input, length);
    return length;
}

/* picoquic makes the mask by encrypting zeroes, which stay what they are. */
static void no_mask(ptls_cipher_context_t *context, void *output, const void *input, size_t length)
{
    (void)context;
    if (output != input)
        memmove(output, input, length);
}

static void no_sample(ptls_cipher_context_t *context, const void *sample)
{
    (void)context;
    (void)sample;
}

void apply_protection(const struct settings *settings, picoquic_crypto_context_t *keys, bool encrypting)
{
    ptls_aead_context_t *aead = encrypting ? keys->aead_encrypt : keys->aead_decrypt;
    ptls_cipher_context_t *mask = encrypting ? keys->pn_enc : keys->pn_dec;

    if (settings->noop_aead && aead != NULL) {
        aead->do_encrypt = noop_encrypt;
        aead->do_decrypt = noop_decrypt;
    }
    if (settings->no_header_protection && mask != NULL) {
        mask->do_init = no_sample;
        mask->do_transform = no_mask;
    }
}

/* The linker puts this before picoquic's own function (--wrap). */
int __real_picoquic_compute_new_rotated_keys(picoquic_cnx_t *cnx);
int __wrap_picoquic_compute_new_rotated_keys(picoquic_cnx_t *cnx);

int __wrap_picoquic_compute_new_rotated_keys(picoquic_cnx_t *cnx)
{
    const int result = __real_picoquic_compute_new_rotated_keys(cnx);

    if (result == 0) {
        apply_protection(&the_endpoint->settings, &cnx->crypto_context_new, true);
        apply_protection(&the_endpoint->settings, &cnx->crypto_context_new, false);
    }
    return result;
}

#else

void apply_protection(const struct settings *settings, picoquic_crypto_context_t *keys, bool encrypting)
{
    (void)settings;
    (void)keys;
    (void)encrypting;
}

#endif
