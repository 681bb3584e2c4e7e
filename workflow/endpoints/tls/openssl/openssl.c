/* What the programs on OpenSSL share. */
#include "openssl.h"

#include <stdlib.h>
#include <string.h>

#include <openssl/conf.h>
#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
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

/* Derives a key as those of a connection are (RFC 8446, 7.1), from a secret that no connection has. */
static bool derive_key(const char *label, unsigned char *key, size_t bytes)
{
    static unsigned char secret[32];
    int mode = EVP_KDF_HKDF_MODE_EXPAND_ONLY;
    const OSSL_PARAM params[] = {
        OSSL_PARAM_construct_int(OSSL_KDF_PARAM_MODE, &mode),
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, (char *)"SHA256", 0),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, secret, sizeof(secret)),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_PREFIX, (char *)"tls13 ", strlen("tls13 ")),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_LABEL, (char *)label, strlen(label)),
        OSSL_PARAM_construct_end(),
    };
    EVP_KDF *kdf = EVP_KDF_fetch(NULL, OSSL_KDF_NAME_TLS1_3_KDF, NULL);
    EVP_KDF_CTX *context = EVP_KDF_CTX_new(kdf);
    const bool derived = context != NULL && EVP_KDF_derive(context, key, bytes, params) == 1;

    EVP_KDF_CTX_free(context);
    EVP_KDF_free(kdf);
    return derived;
}

enum { PROBE_BYTES = 64, PROBE_ROOM = PROBE_BYTES + EVP_MAX_BLOCK_LENGTH, PROBE_TAG_BYTES = 16 };

/* Encrypts the start of the content with a key for a purpose; takes the tag of an AEAD if `tag` is not NULL. */
static bool encrypt_probe(const char *name, const char *label, unsigned char sealed[PROBE_ROOM], unsigned char *tag)
{
    static const unsigned char iv[EVP_MAX_IV_LENGTH];
    unsigned char key[EVP_MAX_KEY_LENGTH];
    EVP_CIPHER *cipher = EVP_CIPHER_fetch(NULL, name, NULL);
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    int length;
    const bool done =
        cipher != NULL && context != NULL && derive_key(label, key, (size_t)EVP_CIPHER_get_key_length(cipher))
        && EVP_EncryptInit_ex2(context, cipher, key, iv, NULL) == 1
        && EVP_EncryptUpdate(context, sealed, &length, (const unsigned char *)content_period(), PROBE_BYTES) == 1
        && length == PROBE_BYTES
        && (tag == NULL
            || (EVP_EncryptFinal_ex(context, sealed + length, &length) == 1
                && EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, PROBE_TAG_BYTES, tag) == 1));

    EVP_CIPHER_CTX_free(context);
    EVP_CIPHER_free(cipher);
    return done;
}

/* What the AEAD does in connections of this process: "noop", "standard" or NULL. */
static const char *observed_aead(const struct cipher *cipher)
{
    unsigned char sealed[PROBE_ROOM], tag[PROBE_TAG_BYTES], noop_tag[PROBE_TAG_BYTES];

    /* the labels of RFC 9001, 5.1, and RFC 8446, 7.3 */
    if (!encrypt_probe(cipher->openssl, library.quic ? "quic key" : "key", sealed, tag))
        return NULL;
    memset(noop_tag, 0x2a, sizeof(noop_tag));
    return memcmp(sealed, content_period(), PROBE_BYTES) == 0 && memcmp(tag, noop_tag, sizeof(tag)) == 0 ? "noop"
                                                                                                        : "standard";
}

/* Whether header protection changes anything in QUIC connections of this process: "on", "off" or NULL. */
static const char *observed_header_protection(const struct cipher *cipher)
{
    static const unsigned char zeroes[PROBE_BYTES];
    unsigned char mask[PROBE_ROOM];

    if (!encrypt_probe(cipher->mask, "quic hp", mask, NULL))
        return NULL;
    return memcmp(mask, zeroes, sizeof(zeroes)) == 0 ? "off" : "on";
}

/* Why OpenSSL's packet protection is not as asked for, or NULL. */
static const char *other_protection(const struct options *options)
{
    static char reason[768];
    const char *aead = options->noop ? "noop" : "standard";
    const char *header_protection = options->header_protection ? "on" : "off";
    const char *observed = observed_aead(options->cipher);

    if (observed == NULL || strcmp(observed, aead) != 0) {
        snprintf(reason, sizeof(reason), "OpenSSL's %s is %s, but --aead is %s; see %s", options->cipher->openssl,
                 observed == NULL ? "missing" : observed, aead, getenv("OPENSSL_CONF"));
        return reason;
    }
    observed = library.quic ? observed_header_protection(options->cipher) : header_protection;
    if (observed == NULL || strcmp(observed, header_protection) != 0) {
        snprintf(reason, sizeof(reason), "header protection by OpenSSL's %s is %s, but --header-protection is %s; see %s",
                 options->cipher->mask, observed == NULL ? "missing" : observed, header_protection,
                 getenv("OPENSSL_CONF"));
        return reason;
    }
    return NULL;
}

const char *start_openssl(const struct options *options)
{
    static char reason[768];
    const bool noop = options != NULL && options->noop;
    const bool no_header_protection = options != NULL && !options->header_protection;
    const bool changed = noop || no_header_protection;

    choose_openssl_configuration(noop, no_header_protection, NULL);
    /* of a provider that cannot be loaded OpenSSL may tell nothing */
    if (OPENSSL_init_ssl(OPENSSL_INIT_LOAD_CONFIG, NULL) != 1
        || (changed && OSSL_PROVIDER_available(NULL, NOOP_PROVIDER) != 1)
        || (is_pq_build() && OSSL_PROVIDER_available(NULL, PQ_PROVIDER) != 1)) {
        const char *provider = changed ? NOOP_PROVIDER : PQ_PROVIDER;

        /* OpenSSL keeps no errors of its configuration; those of trying again are the same. */
        ERR_clear_error();
        OSSL_PROVIDER_load(NULL, provider);
        snprintf(reason, sizeof(reason), "OpenSSL cannot load %s.so: %s; build this flavour again", provider,
                 openssl_error("its configuration is wrong"));
        return reason;
    }
    return options == NULL ? NULL : other_protection(options);
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
    negotiated->resumed = SSL_session_reused(ssl) == 1;
    negotiated->early_data = SSL_get_early_data_status(ssl) == SSL_EARLY_DATA_ACCEPTED;
    if (negotiated->resumed) {
        negotiated->signature[0] = '\0'; /* that of the session's first handshake */
        if (SSL_version(ssl) < TLS1_3_VERSION)
            negotiated->group[0] = '\0';
    }
    SSL_get0_alpn_selected(ssl, &alpn, &length);
    snprintf(negotiated->alpn, sizeof(negotiated->alpn), "%.*s", (int)length, alpn == NULL ? "" : (const char *)alpn);
}
