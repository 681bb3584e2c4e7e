/* What the programs on OpenSSL share. */
#include "openssl.h"

#include <stdlib.h>
#include <string.h>

#include <openssl/conf.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/provider.h>

/* ---- start ---- */

const char *openssl_error(const char *otherwise)
{
    static char text[512];
    const char *data = NULL, *reason;
    int flags = 0;
    const unsigned long code = ERR_get_error_all(NULL, NULL, NULL, &data, &flags);

    reason = code == 0 ? NULL : ERR_reason_error_string(code);
    if (reason == NULL)
        snprintf(text, sizeof(text), "%s", otherwise);
    else if ((flags & ERR_TXT_STRING) != 0 && data != NULL && data[0] != '\0')
        snprintf(text, sizeof(text), "%s (%s)", reason, data);
    else
        snprintf(text, sizeof(text), "%s", reason);
    text[strcspn(text, "\r\n")] = '\0';
    ERR_clear_error();
    return text;
}

/* Encrypts a probe with the AEAD that TLS connections of this process get. Returns "noop", "standard" or NULL. */
static const char *observed_aead(const struct cipher *cipher)
{
    static const unsigned char key[EVP_MAX_KEY_LENGTH], iv[EVP_MAX_IV_LENGTH];
    unsigned char plain[64], sealed[64], tag[16], noop_tag[16];
    EVP_CIPHER *aead = EVP_CIPHER_fetch(NULL, cipher->openssl, NULL);
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    const char *observed = NULL;
    int length, rest;

    memcpy(plain, content_period(), sizeof(plain));
    memset(noop_tag, 0x2a, sizeof(noop_tag));
    if (aead != NULL && context != NULL && EVP_EncryptInit_ex2(context, aead, key, iv, NULL) == 1
        && EVP_EncryptUpdate(context, sealed, &length, plain, sizeof(plain)) == 1
        && EVP_EncryptFinal_ex(context, sealed + length, &rest) == 1
        && EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, sizeof(tag), tag) == 1)
        observed = memcmp(plain, sealed, sizeof(plain)) == 0 && memcmp(tag, noop_tag, sizeof(tag)) == 0 ? "noop"
                                                                                                       : "standard";
    EVP_CIPHER_CTX_free(context);
    EVP_CIPHER_free(aead);
    return observed;
}

const char *start_openssl(const struct cipher *cipher, bool noop)
{
    static char reason[768];
    const char *aead;

    choose_openssl_configuration(noop, false, NULL);
    if (OPENSSL_init_ssl(OPENSSL_INIT_LOAD_CONFIG, NULL) != 1
        || (is_pq_build() && OSSL_PROVIDER_available(NULL, PQ_PROVIDER) != 1)) {
        const char *provider = noop ? NOOP_PROVIDER : PQ_PROVIDER;

        /* OpenSSL keeps no errors of its configuration; those of trying again are the same. */
        ERR_clear_error();
        OSSL_PROVIDER_load(NULL, provider);
        snprintf(reason, sizeof(reason), "OpenSSL cannot load %s.so: %s; build this flavour again", provider,
                 openssl_error("its configuration is wrong"));
        return reason;
    }
    if (cipher == NULL)
        return NULL;
    aead = observed_aead(cipher);
    if (aead != NULL && (strcmp(aead, "noop") == 0) == noop)
        return NULL;
    snprintf(reason, sizeof(reason), "OpenSSL's %s is %s, but --aead is %s; see %s", cipher->openssl,
             aead == NULL ? "missing" : aead, noop ? "noop" : "standard", getenv("OPENSSL_CONF"));
    return reason;
}

bool allow_algorithms(SSL_CTX *context, const quicbed_signature *signature)
{
    /* OpenSSL's default of 100 kB is too little for some chains of post-quantum certificates. */
    const long largest_chain = 1L << 20;

    SSL_CTX_set_max_cert_list(context, largest_chain);
    /* RSA-1024 has 80 bits of security; the default level asks for 112. */
    SSL_CTX_set_security_level(context, 0);
    return SSL_CTX_set1_sigalgs_list(context, signature->tls_name) == 1;
}

/* ---- what was negotiated ---- */

static void copy_name(char *into, size_t room, const char *name)
{
    snprintf(into, room, "%s", name == NULL ? "" : name);
}

void read_negotiated(const SSL *ssl, struct negotiated *negotiated)
{
    SSL *changeable = (SSL *)ssl; /* the macros below take no const, although they change nothing */
    const unsigned char *alpn = NULL;
    const char *name = NULL;
    unsigned int length = 0;
    long signature_known;

    copy_name(negotiated->cipher, sizeof(negotiated->cipher), SSL_CIPHER_standard_name(SSL_get_current_cipher(ssl)));
    copy_name(negotiated->group, sizeof(negotiated->group), SSL_get0_group_name(changeable));
    copy_name(negotiated->tls_version, sizeof(negotiated->tls_version), SSL_get_version(ssl));
    if (strncmp(negotiated->tls_version, "QUIC", 4) == 0) /* QUIC v1 has no TLS but 1.3 (RFC 9001, 4.2) */
        copy_name(negotiated->tls_version, sizeof(negotiated->tls_version), "TLSv1.3");
    signature_known = SSL_is_server(ssl) ? SSL_get0_signature_name(changeable, &name)
                                         : SSL_get0_peer_signature_name(changeable, &name);
    if (signature_known == 1)
        copy_name(negotiated->signature, sizeof(negotiated->signature), name);
    SSL_get0_alpn_selected(ssl, &alpn, &length);
    snprintf(negotiated->alpn, sizeof(negotiated->alpn), "%.*s", (int)length, alpn == NULL ? "" : (const char *)alpn);
}
