/* TLS of picotls with OpenSSL: one cipher suite, one group and one signature algorithm, and what was negotiated. */
#define _GNU_SOURCE
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <picotls/openssl.h>
#ifdef QUICBED_FUSION
#include <picotls/fusion.h>
#endif

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/provider.h>
#include <openssl/rsa.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

struct connection *connection_of(ptls_t *tls)
{
    picoquic_cnx_t *cnx = *ptls_get_data_ptr(tls);

    return cnx == NULL ? NULL : cnx->callback_ctx;
}

/* A reason of one line, with OpenSSL's own words on it. */
static const char *about(const char *option, const char *file)
{
    static char text[768];
    const char *data = NULL;
    int flags = 0;
    const unsigned long code = ERR_get_error_all(NULL, NULL, NULL, &data, &flags);
    const char *words = code == 0 ? NULL : ERR_reason_error_string(code);

    snprintf(text, sizeof(text), "%s %.400s: %s", option, file, words != NULL ? words : "OpenSSL does not take it");
    text[strcspn(text, "\r\n")] = '\0';
    ERR_clear_error();
    return text;
}

/* ---- packet protection ---- */

static int on_keys(ptls_update_traffic_key_t *self, ptls_t *tls, int encrypting, size_t epoch, const void *secret)
{
    struct endpoint *endpoint = the_endpoint;
    picoquic_cnx_t *cnx = *ptls_get_data_ptr(tls);
    const int result = endpoint->own_keys->cb(endpoint->own_keys, tls, encrypting, epoch, secret);

    (void)self;
    if (result == 0 && epoch >= picoquic_epoch_handshake)
        apply_protection(&endpoint->settings, &cnx->crypto_context[epoch], encrypting);
    return result;
}

static ptls_cipher_suite_t *find_suite(uint16_t number)
{
#ifdef QUICBED_FUSION
    static const struct st_ptls_cipher_suite_t fused[] = {
        {PTLS_CIPHER_SUITE_AES_128_GCM_SHA256, &ptls_fusion_aes128gcm, &ptls_openssl_sha256, NULL},
        {PTLS_CIPHER_SUITE_AES_256_GCM_SHA384, &ptls_fusion_aes256gcm, &ptls_openssl_sha384, NULL},
    };

    for (size_t i = 0; i < sizeof(fused) / sizeof(fused[0]); i++)
        if (fused[i].id == number)
            return &fused[i];
#endif
    return picoquic_get_cipher_suite_by_id_v(number, 0);
}

const char *qp_cannot_run(void)
{
#ifdef QUICBED_FUSION
    if (!ptls_fusion_is_supported_by_cpu())
        return "picotls' fusion needs a processor with AVX2, AES and PCLMULQDQ";
#endif
    return NULL;
}

int qp_aes_hardware(void)
{
    /* OPENSSL_ia32cap(3): the capabilities in force, bit 57 being that of the AES instructions */
    const char *told = OPENSSL_info(OPENSSL_INFO_CPU_SETTINGS);
    unsigned long long capabilities;

    if (told == NULL || sscanf(told, "OPENSSL_ia32cap=%llx", &capabilities) != 1)
        return -1;
    return (capabilities >> 57 & 1) != 0;
}

/* ---- groups ---- */

static ptls_key_exchange_algorithm_t *find_group(uint16_t number, const char *algorithm)
{
    for (size_t i = 0; ptls_openssl_key_exchanges_all[i] != NULL; i++)
        if (ptls_openssl_key_exchanges_all[i]->id == number)
            return ptls_openssl_key_exchanges_all[i];
#ifdef QUICBED_PQ
    return openssl_group(number, algorithm);
#else
    (void)algorithm;
    return NULL;
#endif
}

#ifdef QUICBED_PQ
int quicbed_pq_provider_init(const OSSL_CORE_HANDLE *, const OSSL_DISPATCH *, const OSSL_DISPATCH **, void **);
#endif

/* Has OpenSSL know the algorithms of liboqs too, in flavour pq. */
static bool load_providers(void)
{
    static int loaded;

    if (loaded == 0) {
        OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG, NULL);
        loaded = OSSL_PROVIDER_load(NULL, "default") != NULL ? 1 : -1;
#ifdef QUICBED_PQ
        if (loaded == 1
            && (OSSL_PROVIDER_add_builtin(NULL, "quicbed-pq", quicbed_pq_provider_init) != 1
                || OSSL_PROVIDER_load(NULL, "quicbed-pq") == NULL))
            loaded = -1;
#endif
    }
    return loaded == 1;
}

bool qp_has_group(uint16_t group, const char *algorithm)
{
    ptls_key_exchange_algorithm_t *found = load_providers() ? find_group(group, algorithm) : NULL;

    ERR_clear_error();
    return found != NULL;
}

/* The group of this endpoint, with functions that note its use. */
static ptls_key_exchange_algorithm_t *used_group;
static struct st_ptls_key_exchange_algorithm_t noted_group;
static int (*finish_exchange)(ptls_key_exchange_context_t **, int, ptls_iovec_t *, ptls_iovec_t);

static void note_group(int result)
{
    struct connection *connection = the_endpoint->current;

    if (result == 0 && connection != NULL)
        connection->group = used_group->id;
}

static int on_finish_exchange(ptls_key_exchange_context_t **context, int release, ptls_iovec_t *secret, ptls_iovec_t peer)
{
    const int result = finish_exchange(context, release, secret, peer);

    if (secret != NULL)
        note_group(result);
    return result;
}

static int on_create_exchange(const struct st_ptls_key_exchange_algorithm_t *group, ptls_key_exchange_context_t **context)
{
    struct connection *connection = the_endpoint->current;
    const int result = used_group->create(used_group, context);

    (void)group;
    if (result == 0) {
        finish_exchange = (*context)->on_exchange;
        (*context)->on_exchange = on_finish_exchange;
        if (connection != NULL)
            connection->shares++;
    }
    return result;
}

static int on_exchange(const struct st_ptls_key_exchange_algorithm_t *group, ptls_iovec_t *share, ptls_iovec_t *secret,
                       ptls_iovec_t peer)
{
    const int result = used_group->exchange(used_group, share, secret, peer);

    (void)group;
    note_group(result);
    return result;
}

/* ---- signatures ---- */

static const struct scheme {
    uint16_t number;
    const char *key, *digest, *curve;
} schemes[] = {
    {PTLS_SIGNATURE_RSA_PSS_RSAE_SHA256, "RSA", "SHA256", NULL},
    {PTLS_SIGNATURE_ECDSA_SECP256R1_SHA256, "EC", "SHA256", "prime256v1"},
    {PTLS_SIGNATURE_ECDSA_SECP384R1_SHA384, "EC", "SHA384", "secp384r1"},
    {PTLS_SIGNATURE_ED25519, "ED25519", NULL, NULL},
};

/* The algorithms with a key type of their own, which hash by themselves, are known by OpenSSL's name of that type. */
static const char *digest_of(uint16_t number)
{
    for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++)
        if (schemes[i].number == number)
            return schemes[i].digest;
    return NULL;
}

static bool is_key_of(EVP_PKEY *key, uint16_t number)
{
    for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++) {
        char curve[64] = "";

        if (schemes[i].number != number)
            continue;
        if (!EVP_PKEY_is_a(key, schemes[i].key))
            return false;
        EVP_PKEY_get_group_name(key, curve, sizeof(curve), NULL);
        return schemes[i].curve == NULL || strcmp(curve, schemes[i].curve) == 0;
    }
    return !EVP_PKEY_is_a(key, "RSA") && !EVP_PKEY_is_a(key, "EC") && !EVP_PKEY_is_a(key, "ED25519");
}

bool qp_has_signature(uint16_t signature, const char *algorithm)
{
    EVP_SIGNATURE *found;

    for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++)
        if (schemes[i].number == signature)
            return true;
    if (algorithm == NULL || !load_providers())
        return false;
    found = EVP_SIGNATURE_fetch(NULL, algorithm, NULL);
    EVP_SIGNATURE_free(found);
    ERR_clear_error();
    return found != NULL;
}

/* RFC 8446, 4.2.3: the salt is as long as the digest. */
static bool set_padding(EVP_PKEY *key, EVP_PKEY_CTX *context)
{
    return !EVP_PKEY_is_a(key, "RSA")
           || (EVP_PKEY_CTX_set_rsa_padding(context, RSA_PKCS1_PSS_PADDING) == 1
               && EVP_PKEY_CTX_set_rsa_pss_saltlen(context, RSA_PSS_SALTLEN_DIGEST) == 1);
}

/* Signs what CertificateVerify is about; appends to `output`. */
static int sign(EVP_PKEY *key, uint16_t number, ptls_buffer_t *output, ptls_iovec_t input)
{
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    EVP_PKEY_CTX *key_context;
    size_t length = 0;
    int result = PTLS_ERROR_LIBRARY;

    if (context != NULL && EVP_DigestSignInit_ex(context, &key_context, digest_of(number), NULL, NULL, key, NULL) == 1
        && set_padding(key, key_context) && EVP_DigestSign(context, NULL, &length, input.base, input.len) == 1
        && (result = ptls_buffer_reserve(output, length)) == 0) {
        result = PTLS_ERROR_LIBRARY;
        if (EVP_DigestSign(context, output->base + output->off, &length, input.base, input.len) == 1) {
            output->off += length;
            result = 0;
        }
    }
    EVP_MD_CTX_free(context);
    ERR_clear_error();
    return result;
}

static int verify(EVP_PKEY *key, uint16_t number, ptls_iovec_t data, ptls_iovec_t signature)
{
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    EVP_PKEY_CTX *key_context;
    const bool good = context != NULL
                      && EVP_DigestVerifyInit_ex(context, &key_context, digest_of(number), NULL, NULL, key, NULL) == 1
                      && set_padding(key, key_context)
                      && EVP_DigestVerify(context, signature.base, signature.len, data.base, data.len) == 1;

    EVP_MD_CTX_free(context);
    ERR_clear_error();
    return good ? 0 : PTLS_ALERT_DECRYPT_ERROR;
}

static int on_sign(ptls_sign_certificate_t *self, ptls_t *tls, ptls_async_job_t **job, uint16_t *chosen,
                   ptls_buffer_t *output, ptls_iovec_t input, const uint16_t *offered, size_t count)
{
    struct endpoint *endpoint = the_endpoint;
    struct connection *connection = connection_of(tls);
    const uint16_t number = endpoint->settings.signature;
    bool is_offered = false;
    int result = PTLS_ALERT_HANDSHAKE_FAILURE;

    (void)self;
    (void)job;
    for (size_t i = 0; i < count; i++)
        is_offered = is_offered || offered[i] == number;
    if (is_offered)
        result = sign(endpoint->key, number, output, input);
    if (result == 0) {
        *chosen = number;
        if (connection != NULL)
            connection->signature = number;
    }
    return result;
}

/* What a server has signed with the key of its certificate; without a signature the key is only freed. */
static int on_verify_signature(void *argument, uint16_t number, ptls_iovec_t data, ptls_iovec_t signature)
{
    EVP_PKEY *key = argument;
    struct connection *connection = the_endpoint->current;
    int result = 0;

    if (data.base != NULL) {
        result = number == the_endpoint->settings.signature && is_key_of(key, number)
                     ? verify(key, number, data, signature) : PTLS_ALERT_ILLEGAL_PARAMETER;
        if (result == 0 && connection != NULL)
            connection->signature = number;
    }
    EVP_PKEY_free(key);
    return result;
}

static int alert_of(long error)
{
    switch (error) {
    case X509_V_ERR_CERT_REVOKED:
        return PTLS_ALERT_CERTIFICATE_REVOKED;
    case X509_V_ERR_CERT_NOT_YET_VALID:
    case X509_V_ERR_CERT_HAS_EXPIRED:
        return PTLS_ALERT_CERTIFICATE_EXPIRED;
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_CERT_UNTRUSTED:
    case X509_V_ERR_CERT_REJECTED:
        return PTLS_ALERT_UNKNOWN_CA;
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
        return PTLS_ALERT_DECRYPT_ERROR;
    default:
        return PTLS_ALERT_BAD_CERTIFICATE;
    }
}

static X509 *parse_certificate(ptls_iovec_t der)
{
    const unsigned char *at = der.base;

    return d2i_X509(NULL, &at, (long)der.len);
}

/* `name` NULL: of any host */
static int verify_chain(X509_STORE *store, const char *name, X509 *leaf, STACK_OF(X509) *others, long *error)
{
    X509_STORE_CTX *context = X509_STORE_CTX_new();
    int result = PTLS_ERROR_NO_MEMORY;

    if (context != NULL && X509_STORE_CTX_init(context, store, leaf, others) == 1
        && X509_STORE_CTX_set_default(context, "ssl_server") == 1
        && (name == NULL || X509_VERIFY_PARAM_set1_host(X509_STORE_CTX_get0_param(context), name, 0) == 1)) {
        result = 0;
        if (X509_verify_cert(context) != 1) {
            *error = X509_STORE_CTX_get_error(context);
            result = alert_of(*error);
        }
    }
    X509_STORE_CTX_free(context);
    return result;
}

static int on_certificate(ptls_verify_certificate_t *self, ptls_t *tls, const char *name,
                          int (**verifier)(void *, uint16_t, ptls_iovec_t, ptls_iovec_t), void **argument,
                          ptls_iovec_t *certificates, size_t count)
{
    const struct endpoint *endpoint = the_endpoint;
    struct connection *connection = connection_of(tls);
    STACK_OF(X509) *others = sk_X509_new_null();
    X509 *leaf = count == 0 ? NULL : parse_certificate(certificates[0]);
    EVP_PKEY *key;
    long error = 0;
    int result = leaf == NULL || others == NULL ? PTLS_ALERT_BAD_CERTIFICATE : 0;

    (void)self;
    (void)name;
    for (size_t i = 1; result == 0 && i < count; i++) {
        X509 *other = parse_certificate(certificates[i]);

        if (other == NULL || sk_X509_push(others, other) == 0) {
            X509_free(other);
            result = PTLS_ALERT_BAD_CERTIFICATE;
        }
    }
    if (result == 0 && endpoint->store != NULL)
        result = verify_chain(endpoint->store, endpoint->settings.server_name, leaf, others, &error);
    if (result == 0) {
        key = X509_get_pubkey(leaf);
        if (key == NULL) {
            result = PTLS_ALERT_BAD_CERTIFICATE;
        } else {
            *argument = key;
            *verifier = on_verify_signature;
        }
    }
    if (connection != NULL)
        connection->certificate_error = error;
    sk_X509_pop_free(others, X509_free);
    X509_free(leaf);
    ERR_clear_error();
    return result;
}

/* ---- configuration ---- */

static bool load_chain(ptls_context_t *tls, const char *file)
{
    BIO *bio = BIO_new_file(file, "r");
    X509 *certificate;
    bool done = bio != NULL;

    while (done && (certificate = PEM_read_bio_X509(bio, NULL, NULL, NULL)) != NULL) {
        unsigned char *der = NULL;
        const int length = i2d_X509(certificate, &der);
        ptls_iovec_t *list = realloc(tls->certificates.list, (tls->certificates.count + 1) * sizeof(*list));

        X509_free(certificate);
        done = length > 0 && list != NULL;
        if (list != NULL)
            tls->certificates.list = list;
        if (done)
            list[tls->certificates.count++] = ptls_iovec_init(der, (size_t)length);
    }
    BIO_free(bio);
    if (done && tls->certificates.count > 0)
        ERR_clear_error(); /* of the end of the file */
    return done && tls->certificates.count > 0;
}

static EVP_PKEY *load_key(const char *file)
{
    BIO *bio = BIO_new_file(file, "r");
    EVP_PKEY *key = bio == NULL ? NULL : PEM_read_bio_PrivateKey(bio, NULL, NULL, NULL);

    BIO_free(bio);
    return key;
}

static const char *configure_server(struct endpoint *endpoint, ptls_context_t *tls)
{
    const struct settings *settings = &endpoint->settings;
    X509 *leaf;
    bool fits;

    if (!load_chain(tls, settings->certificate))
        return about("--certificate", settings->certificate);
    endpoint->key = load_key(settings->private_key);
    if (endpoint->key == NULL)
        return about("--private-key", settings->private_key);
    leaf = parse_certificate(tls->certificates.list[0]);
    fits = leaf != NULL && X509_check_private_key(leaf, endpoint->key) == 1;
    X509_free(leaf);
    if (!fits)
        return about("--private-key", settings->private_key);
    if (!is_key_of(endpoint->key, settings->signature))
        return "--signature: is not the algorithm of --private-key";
    endpoint->sign.cb = on_sign;
    tls->sign_certificate = &endpoint->sign;
    return NULL;
}

static const char *configure_client(struct endpoint *endpoint, ptls_context_t *tls)
{
    (void)tls;
    if (endpoint->settings.ca == NULL)
        return NULL;
    endpoint->store = X509_STORE_new();
    if (endpoint->store == NULL || X509_STORE_load_file(endpoint->store, endpoint->settings.ca) != 1)
        return about("--ca", endpoint->settings.ca);
    return NULL;
}

const char *configure_tls(struct endpoint *endpoint)
{
    const struct settings *settings = &endpoint->settings;
    ptls_context_t *tls = endpoint->quic->tls_master_ctx;
    ptls_cipher_suite_t **suites = calloc(2, sizeof(*suites)); /* picoquic frees them */
    ptls_key_exchange_algorithm_t *group;

    if (!load_providers())
        return "the providers of OpenSSL cannot be loaded";
    group = find_group(settings->group, settings->group_algorithm);
    if (group == NULL || suites == NULL || (suites[0] = find_suite(settings->cipher)) == NULL)
        return "picotls does not have this group or cipher suite";
    free((void *)tls->cipher_suites);
    tls->cipher_suites = suites;

    used_group = group;
    noted_group = *group;
    noted_group.create = on_create_exchange;
    noted_group.exchange = on_exchange;
    endpoint->groups[0] = &noted_group;
    tls->key_exchanges = endpoint->groups;

    /* No session is resumed. */
    tls->ticket_lifetime = 0;
    tls->save_ticket = NULL;

    endpoint->own_keys = tls->update_traffic_key;
    endpoint->keys.cb = on_keys;
    tls->update_traffic_key = &endpoint->keys;

    endpoint->signatures[0] = settings->signature;
    endpoint->signatures[1] = UINT16_MAX;
    endpoint->verify.cb = on_certificate;
    endpoint->verify.algos = endpoint->signatures;
    picoquic_set_verify_certificate_callback(endpoint->quic, &endpoint->verify, NULL);
    return settings->server ? configure_server(endpoint, tls) : configure_client(endpoint, tls);
}

const char *qp_alert(unsigned int alert)
{
    return SSL_alert_desc_string_long((int)alert);
}

/* ---- primitives ---- */

#ifdef QUICBED_PQ

struct exchange {
    ptls_key_exchange_context_t *context;
};

size_t qp_share(uint16_t number, const char *algorithm, struct exchange **made)
{
    ptls_key_exchange_algorithm_t *group = load_providers() ? find_group(number, algorithm) : NULL;
    struct exchange *exchange = calloc(1, sizeof(*exchange));

    *made = NULL;
    if (group == NULL || exchange == NULL || group->create(group, &exchange->context) != 0) {
        free(exchange);
        return 0;
    }
    *made = exchange;
    return exchange->context->pubkey.len;
}

size_t qp_answer(uint16_t number, const char *algorithm, const struct exchange *client, uint8_t **answer)
{
    ptls_key_exchange_algorithm_t *group = find_group(number, algorithm);
    ptls_iovec_t own = {0}, secret = {0};

    *answer = NULL;
    if (group == NULL || group->exchange(group, &own, &secret, client->context->pubkey) != 0)
        return 0;
    free(secret.base);
    *answer = own.base;
    return own.len;
}

bool qp_finish(struct exchange *client, const uint8_t *answer, size_t length)
{
    ptls_iovec_t secret = {0};
    const int result = client->context->on_exchange(&client->context, 0, &secret, ptls_iovec_init(answer, length));

    free(secret.base);
    return result == 0;
}

void qp_forget(struct exchange *exchange)
{
    exchange->context->on_exchange(&exchange->context, 1, NULL, ptls_iovec_init(NULL, 0));
    free(exchange);
}

struct signer {
    uint16_t number;
    EVP_PKEY *key, *public_key;
    X509 *leaf;
    X509_STORE *store;
    unsigned char *der;
    int der_length;
    ptls_buffer_t signature;
};

/* RFC 8446, 4.4.3, with zeroes for the hash of the transcript */
static ptls_iovec_t certificate_verify(void)
{
    static uint8_t content[64 + sizeof("TLS 1.3, server CertificateVerify") + 32];

    memset(content, ' ', 64);
    memcpy(content + 64, "TLS 1.3, server CertificateVerify", sizeof("TLS 1.3, server CertificateVerify"));
    return ptls_iovec_init(content, sizeof(content));
}

struct signer *qp_signer(uint16_t number, const char *ca, const char *certificate, const char *private_key, char *reason,
                         size_t room)
{
    struct signer *signer = calloc(1, sizeof(*signer));
    const char *problem = NULL;
    BIO *bio;

    if (signer == NULL || !load_providers()) {
        snprintf(reason, room, "out of memory");
        return NULL; /* the program ends, here and below */
    }
    ptls_buffer_init(&signer->signature, (void *)"", 0);
    signer->number = number;
    signer->store = X509_STORE_new();
    bio = BIO_new_file(certificate, "r");
    signer->leaf = bio == NULL ? NULL : PEM_read_bio_X509(bio, NULL, NULL, NULL);
    BIO_free(bio);
    if (signer->store == NULL || X509_STORE_load_file(signer->store, ca) != 1)
        problem = about("ca.pem", ca);
    else if (signer->leaf == NULL || (signer->public_key = X509_get_pubkey(signer->leaf)) == NULL
             || (signer->der_length = i2d_X509(signer->leaf, &signer->der)) <= 0)
        problem = about("server.pem", certificate);
    else if ((signer->key = load_key(private_key)) == NULL || !is_key_of(signer->key, number))
        problem = about("server.key", private_key);
    if (problem == NULL)
        return signer;
    snprintf(reason, room, "%s", problem);
    return NULL;
}

size_t qp_sign(struct signer *signer)
{
    signer->signature.off = 0;
    return sign(signer->key, signer->number, &signer->signature, certificate_verify()) == 0 ? signer->signature.off : 0;
}

bool qp_verify(struct signer *signer)
{
    const ptls_iovec_t made = ptls_iovec_init(signer->signature.base, signer->signature.off);

    return verify(signer->public_key, signer->number, certificate_verify(), made) == 0;
}

/* A client verifies a certificate that it has not seen before. */
bool qp_parse(struct signer *signer)
{
    const unsigned char *at = signer->der;

    X509_free(signer->leaf);
    signer->leaf = d2i_X509(NULL, &at, signer->der_length);
    return signer->leaf != NULL;
}

bool qp_verify_chain(struct signer *signer)
{
    STACK_OF(X509) *none = sk_X509_new_null();
    long error = 0;
    const bool good = none != NULL && verify_chain(signer->store, NULL, signer->leaf, none, &error) == 0;

    sk_X509_free(none);
    return good;
}

size_t qp_certificate_length(const struct signer *signer)
{
    return (size_t)signer->der_length;
}

#endif
