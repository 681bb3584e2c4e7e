/*
 * The `primitives` program of the endpoint contract for the libraries on OpenSSL: times the operations of a handshake
 * through the functions that libssl itself calls (ssl/s3_lib.c, ssl/statem/), with keys and contexts made as it makes
 * them.
 */
#include "openssl.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/provider.h>
#include <openssl/rsa.h>
#include <openssl/x509.h>

/* Repetitions of an operation, whatever its duration. */
enum { FEWEST = 5, MOST = 1000 };

static uint64_t milliseconds = 20;

/* ---- timing ---- */

/* One repetition: prepares, notes the time, operates, notes the time. False if the operation fails. */
typedef bool operation(void *state, int64_t *begin, int64_t *end);

struct timing {
    int64_t samples[MOST];
    size_t count;
};

static bool measure(struct timing *timing, operation *operate, void *state)
{
    int64_t until, begin, end;

    timing->count = 0;
    if (!operate(state, &begin, &end)) /* does not count */
        return false;
    until = now_ns() + (int64_t)milliseconds * 1000000;
    while (timing->count < FEWEST || (timing->count < MOST && now_ns() < until)) {
        if (!operate(state, &begin, &end))
            return false;
        timing->samples[timing->count++] = end - begin;
    }
    return true;
}

struct algorithm {
    const char *kind, *name, *implementation;
};

/* Times an operation and writes its event, or the error. `bytes` is read afterwards. */
static bool report(const struct algorithm *algorithm, const char *name, operation *operate, void *state,
                   const int64_t *bytes)
{
    static struct timing timing;

    ERR_clear_error();
    if (!measure(&timing, operate, state)) {
        event_reason("error", "%s of %s: %s", name, algorithm->name, openssl_error("failed"));
        return false;
    }
    event_begin("primitive");
    event_string("kind", algorithm->kind);
    event_string("name", algorithm->name);
    event_string("operation", name);
    event_string("implementation", algorithm->implementation);
    event_samples("samples_ns", timing.samples, timing.count);
    event_integer("bytes", bytes == NULL ? UNKNOWN : *bytes);
    event_end();
    return true;
}

/* "liboqs 0.13.0 (AVX2)", as the provider tells of one of its algorithms; NULL if it does not have it. */
static const char *computed_by(const char *tls_name)
{
    static char text[64];
    const char *told = NULL;
    OSSL_PARAM asked[] = {
        OSSL_PARAM_construct_utf8_ptr(tls_name, (char **)&told, 0),
        OSSL_PARAM_construct_end(),
    };
    OSSL_PROVIDER *provider = OSSL_PROVIDER_try_load(NULL, PQ_PROVIDER, 1);
    const bool known = provider != NULL && OSSL_PROVIDER_get_params(provider, asked) == 1 && told != NULL;

    if (known)
        snprintf(text, sizeof(text), "%s", told);
    OSSL_PROVIDER_unload(provider);
    return known ? text : NULL;
}

/* ---- groups ---- */

struct group_state {
    const char *algorithm; /* of EVP_PKEY_CTX_new_from_name(3) */
    const char *curve;     /* its group */
    bool kem;
    EVP_PKEY *client;
    unsigned char *share, *answer;
    size_t share_length, answer_length;
    int64_t bytes;
};

/* ssl_generate_pkey_group() and ssl_generate_param_group() in ssl/s3_lib.c */
static EVP_PKEY *generate(const struct group_state *state, bool parameters)
{
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new_from_name(NULL, state->algorithm, NULL);
    EVP_PKEY *key = NULL;

    if (context == NULL || (parameters ? EVP_PKEY_paramgen_init(context) : EVP_PKEY_keygen_init(context)) <= 0
        || EVP_PKEY_CTX_set_group_name(context, state->curve) <= 0
        || (parameters ? EVP_PKEY_paramgen(context, &key) : EVP_PKEY_keygen(context, &key)) <= 0) {
        EVP_PKEY_free(key);
        key = NULL;
    }
    EVP_PKEY_CTX_free(context);
    return key;
}

/* The other side's key out of its share, as tls_parse_ctos_key_share() and tls_parse_stoc_key_share() make it. */
static EVP_PKEY *parse_share(const struct group_state *state, bool at_server, const unsigned char *share, size_t length)
{
    EVP_PKEY *key = at_server ? generate(state, true) : EVP_PKEY_new();

    if (key != NULL && (at_server || EVP_PKEY_copy_parameters(key, state->client) == 1)
        && EVP_PKEY_set1_encoded_public_key(key, share, length) == 1)
        return key;
    EVP_PKEY_free(key);
    return NULL;
}

/* ssl_derive() without the key schedule */
static bool derive(EVP_PKEY *own, EVP_PKEY *other)
{
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new_from_pkey(NULL, own, NULL);
    unsigned char secret[128];
    size_t length = sizeof(secret);
    const bool done = context != NULL && EVP_PKEY_derive_init(context) == 1
                      && EVP_PKEY_derive_set_peer(context, other) == 1
                      && EVP_PKEY_derive(context, secret, &length) == 1;

    EVP_PKEY_CTX_free(context);
    return done;
}

static bool keygen(void *argument, int64_t *begin, int64_t *end)
{
    struct group_state *state = argument;
    unsigned char *share = NULL;
    EVP_PKEY *key;
    size_t length;

    *begin = now_ns();
    key = generate(state, false);
    length = key == NULL ? 0 : EVP_PKEY_get1_encoded_public_key(key, &share);
    *end = now_ns();
    if (length == 0) {
        EVP_PKEY_free(key);
        return false;
    }
    EVP_PKEY_free(state->client);
    OPENSSL_free(state->share);
    state->client = key;
    state->share = share;
    state->share_length = length;
    state->bytes = (int64_t)length;
    return true;
}

static bool encapsulate(void *argument, int64_t *begin, int64_t *end)
{
    struct group_state *state = argument;
    unsigned char *answer = NULL, secret[256];
    EVP_PKEY *client, *own = NULL;
    EVP_PKEY_CTX *context = NULL;
    size_t length = 0, secret_length = 0;
    bool done = false;

    *begin = now_ns();
    client = parse_share(state, true, state->share, state->share_length);
    if (client != NULL && state->kem) {
        context = EVP_PKEY_CTX_new_from_pkey(NULL, client, NULL);
        done = context != NULL && EVP_PKEY_encapsulate_init(context, NULL) == 1
               && EVP_PKEY_encapsulate(context, NULL, &length, NULL, &secret_length) == 1
               && secret_length <= sizeof(secret) && (answer = OPENSSL_malloc(length)) != NULL
               && EVP_PKEY_encapsulate(context, answer, &length, secret, &secret_length) == 1;
    } else if (client != NULL) {
        own = generate(state, false);
        length = own == NULL ? 0 : EVP_PKEY_get1_encoded_public_key(own, &answer);
        done = length > 0 && derive(own, client);
    }
    *end = now_ns();
    EVP_PKEY_CTX_free(context);
    EVP_PKEY_free(client);
    EVP_PKEY_free(own);
    OPENSSL_free(state->answer);
    state->answer = answer;
    state->answer_length = length;
    state->bytes = (int64_t)length;
    return done;
}

static bool decapsulate(void *argument, int64_t *begin, int64_t *end)
{
    struct group_state *state = argument;
    unsigned char secret[256];
    EVP_PKEY *server = NULL;
    EVP_PKEY_CTX *context = NULL;
    size_t secret_length = sizeof(secret);
    bool done;

    *begin = now_ns();
    if (state->kem) {
        context = EVP_PKEY_CTX_new_from_pkey(NULL, state->client, NULL);
        done = context != NULL && EVP_PKEY_decapsulate_init(context, NULL) == 1
               && EVP_PKEY_decapsulate(context, secret, &secret_length, state->answer, state->answer_length) == 1;
    } else {
        server = parse_share(state, false, state->answer, state->answer_length);
        done = server != NULL && derive(state->client, server);
    }
    *end = now_ns();
    EVP_PKEY_CTX_free(context);
    EVP_PKEY_free(server);
    return done;
}

static bool time_group(const quicbed_group *group)
{
    /* providers/common/capabilities.c: what OpenSSL calls the algorithms of its TLS groups */
    static const char *const classical[][3] = {
        {"x25519", "X25519", "X25519"}, {"x448", "X448", "X448"},        {"p-256", "EC", "prime256v1"},
        {"p-384", "EC", "secp384r1"},   {"p-521", "EC", "secp521r1"},
    };
    struct group_state state = {.algorithm = group->tls_name, .curve = "", .kem = group->liboqs != NULL};
    char implementation[160];
    const struct algorithm algorithm = {"group", group->name, implementation};
    const char *kem = native(group->liboqs) ? NULL : computed_by(group->tls_name);
    bool done;

    if (!native(group->liboqs))
        state.curve = group->tls_name; /* what a provider of a group calls it inside */
    else if (state.kem && group->classical == NULL)
        state.algorithm = group->liboqs; /* ML-KEM has the same name in both */
    for (size_t i = 0; !state.kem && i < COUNT(classical); i++)
        if (strcmp(group->name, classical[i][0]) == 0) {
            state.algorithm = classical[i][1];
            state.curve = classical[i][2];
        }
    if (kem == NULL)
        snprintf(implementation, sizeof(implementation), "%s", TLS_LIBRARY);
    else if (group->classical == NULL)
        snprintf(implementation, sizeof(implementation), "%s", kem);
    else
        snprintf(implementation, sizeof(implementation), "%s + %s", group->pq_first ? kem : TLS_LIBRARY,
                 group->pq_first ? TLS_LIBRARY : kem);
    done = report(&algorithm, "keygen", keygen, &state, &state.bytes)
           && report(&algorithm, "encapsulate", encapsulate, &state, &state.bytes)
           && report(&algorithm, "decapsulate", decapsulate, &state, NULL);
    EVP_PKEY_free(state.client);
    OPENSSL_free(state.share);
    OPENSSL_free(state.answer);
    return done;
}

/* ---- signatures ---- */

struct signature_state {
    const char *digest; /* NULL: the algorithm has its own */
    bool pss;
    EVP_PKEY *key;
    X509 *certificate;
    unsigned char *der;
    int der_length;
    X509_STORE *store;
    unsigned char *signature;
    size_t signature_length;
    int64_t bytes;
};

/* RFC 8446, 4.4.3, with zeroes for the hash of the transcript */
enum { SPACES = 64, HASH = 32 };
static const char label[] = "TLS 1.3, server CertificateVerify";
static unsigned char to_sign[SPACES + sizeof(label) + HASH];

static void make_content(void)
{
    memset(to_sign, ' ', SPACES);
    memcpy(to_sign + SPACES, label, sizeof(label)); /* with the zero byte that separates it from the hash */
}

/* tls_construct_cert_verify() and tls_process_cert_verify() in ssl/statem/statem_lib.c */
static bool set_padding(const struct signature_state *state, EVP_PKEY_CTX *context)
{
    return !state->pss
           || (EVP_PKEY_CTX_set_rsa_padding(context, RSA_PKCS1_PSS_PADDING) == 1
               && EVP_PKEY_CTX_set_rsa_pss_saltlen(context, RSA_PSS_SALTLEN_DIGEST) == 1);
}

static bool sign(void *argument, int64_t *begin, int64_t *end)
{
    struct signature_state *state = argument;
    EVP_MD_CTX *context;
    EVP_PKEY_CTX *key_context;
    unsigned char *signature = NULL;
    size_t length = 0;
    bool done;

    *begin = now_ns();
    context = EVP_MD_CTX_new();
    done = context != NULL
           && EVP_DigestSignInit_ex(context, &key_context, state->digest, NULL, NULL, state->key, NULL) == 1
           && set_padding(state, key_context) && EVP_DigestSign(context, NULL, &length, to_sign, sizeof(to_sign)) == 1
           && (signature = OPENSSL_malloc(length)) != NULL
           && EVP_DigestSign(context, signature, &length, to_sign, sizeof(to_sign)) == 1;
    *end = now_ns();
    EVP_MD_CTX_free(context);
    OPENSSL_free(state->signature);
    state->signature = signature;
    state->signature_length = length;
    state->bytes = (int64_t)length;
    return done;
}

static bool verify(void *argument, int64_t *begin, int64_t *end)
{
    struct signature_state *state = argument;
    EVP_MD_CTX *context;
    EVP_PKEY_CTX *key_context;
    bool done;

    *begin = now_ns();
    context = EVP_MD_CTX_new();
    done = context != NULL
           && EVP_DigestVerifyInit_ex(context, &key_context, state->digest, NULL, NULL,
                                      X509_get0_pubkey(state->certificate), NULL)
                  == 1
           && set_padding(state, key_context)
           && EVP_DigestVerify(context, state->signature, state->signature_length, to_sign, sizeof(to_sign)) == 1;
    *end = now_ns();
    EVP_MD_CTX_free(context);
    return done;
}

/* A client verifies a certificate it has not seen before, so every repetition parses it anew, which is not timed. */
static bool verify_chain(void *argument, int64_t *begin, int64_t *end)
{
    struct signature_state *state = argument;
    const unsigned char *at = state->der;
    X509 *certificate = d2i_X509(NULL, &at, state->der_length);
    X509_STORE_CTX *context;
    bool done;

    *begin = now_ns();
    context = X509_STORE_CTX_new();
    done = certificate != NULL && context != NULL && X509_STORE_CTX_init(context, state->store, certificate, NULL) == 1
           && X509_STORE_CTX_set_default(context, "ssl_server") == 1 && X509_verify_cert(context) == 1;
    *end = now_ns();
    X509_STORE_CTX_free(context);
    X509_free(certificate);
    state->bytes = state->der_length;
    return done;
}

static bool load(struct signature_state *state, const char *directory)
{
    static const char *const names[] = {"ca.pem", "server.pem", "server.key"};
    char paths[COUNT(names)][PATH_MAX];
    FILE *file;

    for (size_t i = 0; i < COUNT(names); i++) {
        snprintf(paths[i], sizeof(paths[i]), "%s/%s", directory, names[i]);
        if (access(paths[i], R_OK) != 0) {
            event_reason("error", "%s: %s", paths[i], strerror(errno));
            return false;
        }
    }
    state->store = X509_STORE_new();
    if (state->store == NULL || X509_STORE_load_file(state->store, paths[0]) != 1) {
        event_reason("error", "%s: %s", paths[0], openssl_error("holds no certificate"));
        return false;
    }
    file = fopen(paths[1], "re");
    state->certificate = file == NULL ? NULL : PEM_read_X509(file, NULL, NULL, NULL);
    if (file != NULL)
        fclose(file);
    if (state->certificate == NULL || X509_get0_pubkey(state->certificate) == NULL) {
        event_reason("error", "%s: %s", paths[1], openssl_error("holds no certificate"));
        return false;
    }
    file = fopen(paths[2], "re");
    state->key = file == NULL ? NULL : PEM_read_PrivateKey(file, NULL, NULL, NULL);
    if (file != NULL)
        fclose(file);
    if (state->key == NULL) {
        event_reason("error", "%s: %s", paths[2], openssl_error("holds no private key"));
        return false;
    }
    state->der_length = i2d_X509(state->certificate, &state->der);
    return state->der_length > 0;
}

static bool time_signature(const quicbed_signature *signature, const char *directory)
{
    struct signature_state state = {.digest = NULL};
    const char *sig = native(signature->liboqs) ? NULL : computed_by(signature->tls_name);
    const struct algorithm algorithm = {"signature", signature->name, sig == NULL ? TLS_LIBRARY : sig};
    bool done;

    if (strcmp(signature->tls_name, "rsa_pss_rsae_sha256") == 0) {
        state.digest = "SHA256";
        state.pss = true;
    } else if (strcmp(signature->tls_name, "ecdsa_secp256r1_sha256") == 0) {
        state.digest = "SHA256";
    } else if (strcmp(signature->tls_name, "ecdsa_secp384r1_sha384") == 0) {
        state.digest = "SHA384";
    }
    done = load(&state, directory) && report(&algorithm, "sign", sign, &state, &state.bytes)
           && report(&algorithm, "verify", verify, &state, NULL)
           && report(&algorithm, "verify-chain", verify_chain, &state, &state.bytes);
    EVP_PKEY_free(state.key);
    X509_free(state.certificate);
    X509_STORE_free(state.store);
    OPENSSL_free(state.der);
    OPENSSL_free(state.signature);
    return done;
}

/* ---- the program ---- */

static void unsupported(const char *name, const char *reason)
{
    event_begin("unsupported");
    event_string("name", name);
    event_string("reason", reason);
    event_end();
}

static bool run_group(const char *name)
{
    const quicbed_group *group = find_group(name);
    const char *reason = no_group(group, name);

    if (reason == NULL && !native(group->liboqs) && computed_by(group->tls_name) == NULL)
        reason = "the provider has no implementation of it for this processor";
    if (reason == NULL)
        return time_group(group);
    unsupported(name, reason);
    return true;
}

/* NAME=DIRECTORY, as the command line was checked to be. */
static bool run_signature(const char *value)
{
    const char *equals = strchr(value, '=');
    char name[64];
    const quicbed_signature *signature;
    const char *reason;

    snprintf(name, sizeof(name), "%.*s", (int)(equals - value), value);
    signature = find_signature(name);
    reason = no_signature(signature, name);
    if (reason == NULL)
        return time_signature(signature, equals + 1);
    unsupported(name, reason);
    return true;
}

int main(int argc, char **argv)
{
    const char *events = "-", *reason;
    bool done = true;

    for (int i = 1; i < argc; i += 2) {
        const char *option = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";

        if (strcmp(option, "--events") == 0)
            events = value;
        else if (strcmp(option, "--milliseconds") == 0)
            milliseconds = parse_number(option, value, 1, 60000);
        else if (strcmp(option, "--signature") == 0 && strchr(value, '=') == NULL)
            usage_error("%s %s: must be NAME=DIRECTORY", option, value);
        else if (strcmp(option, "--group") != 0 && strcmp(option, "--signature") != 0)
            usage_error("unknown option %s", option);
        if (*value == '\0')
            usage_error("%s: the value is missing", option);
    }
    events_open(events);
    event_start_primitives(milliseconds);
    reason = start_openssl(NULL);
    if (reason != NULL)
        return give_up("error", EXIT_FAILED, reason);
    make_content();
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--group") == 0)
            done = run_group(argv[i + 1]) && done;
        else if (strcmp(argv[i], "--signature") == 0)
            done = run_signature(argv[i + 1]) && done;
    }
    event_own_final(0, 0);
    return done ? EXIT_SUCCESS : EXIT_FAILED;
}
