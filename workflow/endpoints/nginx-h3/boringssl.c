/* BoringSSL for the client: one suite, one group, one signature algorithm, and what was negotiated. */
#include "boringssl.h"

#include <stdio.h>
#include <string.h>

#include <openssl/aead.h>

int aes_hardware(void)
{
    return EVP_has_aes_hardware();
}

static uint16_t suite_of(const struct cipher *cipher)
{
    static const uint16_t suites[] = {
        SSL_CIPHER_AES_128_GCM_SHA256,
        SSL_CIPHER_AES_256_GCM_SHA384,
        SSL_CIPHER_CHACHA20_POLY1305_SHA256,
    };

    for (size_t i = 0; i < COUNT(suites); i++)
        if (strcmp(SSL_CIPHER_standard_name(SSL_get_cipher_by_value(suites[i])), cipher->iana) == 0)
            return suites[i];
    return 0;
}

const char *offer(SSL_CTX *context, const struct options *options)
{
    const uint16_t suite = suite_of(options->cipher);

    /* BoringSSL's default of 100 kB is too little for some chains of post-quantum certificates. */
    SSL_CTX_set_max_cert_list(context, 1UL << 20);
    if (SSL_CTX_set1_tls13_ciphers(context, &suite, NULL, 1) != 1)
        return "BoringSSL does not take the cipher suite";
    if (SSL_CTX_set1_group_ids(context, &options->group->code_point, 1) != 1)
        return "BoringSSL does not have the group";
    if (SSL_CTX_set_verify_algorithm_prefs(context, &options->signature->code_point, 1) != 1)
        return "BoringSSL does not have the signature algorithm";
    return NULL;
}

static void copy_name(char *into, size_t room, const char *name)
{
    snprintf(into, room, "%s", name == NULL ? "" : name);
}

void read_negotiated(const SSL *ssl, struct negotiated *negotiated)
{
    const uint16_t group = SSL_get_group_id(ssl), signature = SSL_get_peer_signature_algorithm(ssl);
    const unsigned char *alpn = NULL;
    unsigned int length = 0;

    copy_name(negotiated->cipher, sizeof(negotiated->cipher), SSL_CIPHER_standard_name(SSL_get_current_cipher(ssl)));
    copy_name(negotiated->tls_version, sizeof(negotiated->tls_version), SSL_get_version(ssl));
    for (size_t i = 0; i < QUICBED_GROUPS; i++)
        if (quicbed_groups[i].code_point == group)
            copy_name(negotiated->group, sizeof(negotiated->group), quicbed_groups[i].tls_name);
    for (size_t i = 0; i < QUICBED_SIGNATURES; i++)
        if (quicbed_signatures[i].code_point == signature)
            copy_name(negotiated->signature, sizeof(negotiated->signature), quicbed_signatures[i].tls_name);
    negotiated->resumed = SSL_session_reused(ssl) == 1;
    negotiated->early_data = SSL_early_data_accepted(ssl) == 1;
    if (negotiated->resumed)
        negotiated->signature[0] = '\0'; /* that of the session's first handshake */
    SSL_get0_alpn_selected(ssl, &alpn, &length);
    snprintf(negotiated->alpn, sizeof(negotiated->alpn), "%.*s", (int)length, alpn == NULL ? "" : (const char *)alpn);
}
