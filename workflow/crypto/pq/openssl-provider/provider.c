/*
 * OpenSSL provider "quicbed-pq": the KEMs and signature algorithms of liboqs in an unmodified OpenSSL, as TLS 1.3
 * groups and signature schemes and as keys of certificates.
 *
 * What it has is what algorithms.csv has and OpenSSL itself does not: groups of Kyber, BIKE and HQC, alone and as
 * hybrids with ECDH on the NIST curves, and the signatures Falcon, Dilithium and SPHINCS+. ML-KEM, its hybrids and
 * ML-DSA are OpenSSL's own since 3.5 and left to the default provider. Compiled for an OpenSSL before 3.5, quictls 3.1
 * for one, it has ML-KEM and its hybrids too; compiled for one before 3.2, whose libssl asks no provider for signature
 * algorithms, it has groups only.
 *
 * As a module it brings a libcrypto of its own for ECDH and for handling parameters, because programs here link OpenSSL
 * statically and export none of its functions. Its symbols are hidden and bound within this file, it has a library
 * context of its own, reads no configuration and registers no function to run at exit: the copy in the program is not
 * touched. It has to be the same version, which OSSL_provider_init compares. Where OpenSSL has no loadable modules, it is
 * linked into the program and uses the program's libcrypto.
 */
#include "provider.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/ec.h>
#include <openssl/opensslv.h>
#include <openssl/params.h>
#include <openssl/prov_ssl.h>

#include "algorithms.h"

/* Whether libssl asks providers for signature algorithms (the capability TLS-SIGALG). */
#define TELLS_SIGNATURES OPENSSL_VERSION_PREREQ(3, 2)

#define OTHER_VERSION "built for OpenSSL %s, loaded by OpenSSL %s; build it again"

static const struct curve known_curves[CURVE_COUNT] = {
    {"p-256", "EC", "P-256", 65, 32, NULL},
    {"p-384", "EC", "P-384", 97, 48, NULL},
    {"p-521", "EC", "P-521", 133, 66, NULL},
    {"x25519", "X25519", "X25519", 32, 32, NULL},
};

static const OSSL_ITEM reasons[] = {
    {REASON_VERSION, "built for another OpenSSL"},
    {REASON_TABLE, "algorithm cannot be provided"},
    {REASON_MEMORY, "out of memory"},
    {REASON_KEY, "unsuitable key"},
    {REASON_LENGTH, "wrong length"},
    {REASON_LIBOQS, "liboqs reports a failure"},
    {REASON_CLASSICAL, "elliptic-curve operation failed"},
    {REASON_DIGEST, "signature does not take a digest"},
    {REASON_ENCRYPTED, "private keys cannot be written encrypted"},
    {REASON_OUTPUT, "output failed"},
    {0, NULL},
};

int raise_error(const struct provider *provider, enum reason reason, const char *format, ...)
{
    va_list arguments;

    provider->new_error(provider->handle);
    va_start(arguments, format);
    provider->set_error(provider->handle, reason, format, arguments);
    va_end(arguments);
    return 0;
}

/* ---- the table of algorithms ---- */

/* ML-KEM, ML-DSA and the hybrids of ML-KEM are in the default provider of OpenSSL 3.5. */
static bool provided(const char *liboqs)
{
    return liboqs != NULL && (!OPENSSL_VERSION_PREREQ(3, 5) || strncmp(liboqs, "ML-", 3) != 0);
}

/* Classical security of the NIST categories 1 to 5 in bits: AES-128, SHA-256, AES-192, SHA-384, AES-256. */
static unsigned int security_bits(int nist_level)
{
    return nist_level >= 5 ? 256 : nist_level >= 3 ? 192 : 128;
}

static const struct curve *find_curve(const struct provider *provider, const char *table_name)
{
    for (size_t i = 0; i < CURVE_COUNT; i++)
        if (strcmp(provider->curves[i].table_name, table_name) == 0)
            return &provider->curves[i];
    return NULL;
}

static struct algorithm *next_algorithm(struct provider *provider, const char *name, unsigned int code_point, int level)
{
    struct algorithm *algorithm;

    if (provider->count == SLOT_COUNT) {
        raise_error(provider, REASON_TABLE, "%s: there are only %d slots", name, SLOT_COUNT);
        return NULL;
    }
    algorithm = &provider->algorithms[provider->count++];
    algorithm->name = algorithm->names = name;
    algorithm->code_point = code_point;
    algorithm->security_bits = security_bits(level);
    return algorithm;
}

static int add_group(struct provider *provider, const quicbed_group *group)
{
    struct algorithm *algorithm;
    const quicbed_kem *kem = quicbed_kem_find(group->liboqs);
    const struct curve *curve = NULL;

    if (group->classical != NULL) {
        curve = find_curve(provider, group->classical);
        if (curve == NULL)
            return raise_error(provider, REASON_TABLE, "%s: no curve %s for hybrids", group->name, group->classical);
    }
    if (quicbed_kem_left_out(group->liboqs))
        return 1;
    if (kem == NULL)
        return raise_error(provider, REASON_TABLE, "%s: %s lacks %s", group->name, quicbed_pq_version(), group->liboqs);
    algorithm = next_algorithm(provider, group->tls_name, group->code_point, group->nist_level);
    if (algorithm == NULL)
        return 0;
    algorithm->kem = kem;
    algorithm->curve = curve;
    algorithm->kem_first = group->pq_first;
    algorithm->public_key_bytes = quicbed_kem_public_key_bytes(kem) + (curve == NULL ? 0 : curve->point_bytes);
    algorithm->secret_key_bytes = quicbed_kem_secret_key_bytes(kem);
    return 1;
}

static int add_signature(struct provider *provider, const quicbed_signature *signature)
{
    struct algorithm *algorithm;
    const quicbed_sig *sig = quicbed_sig_find(signature->liboqs);
    const char *name = signature->tls_name;
    char *names;

    if (sig == NULL)
        return raise_error(provider, REASON_TABLE, "%s: %s lacks %s", signature->name, quicbed_pq_version(),
                           signature->liboqs);
    algorithm = next_algorithm(provider, name, signature->code_point, signature->nist_level);
    if (algorithm == NULL)
        return 0;
    algorithm->sig = sig;
    algorithm->oid = signature->oid;
    algorithm->oid_der = signature->oid_der;
    algorithm->oid_der_bytes = signature->oid_der_len;
    algorithm->public_key_bytes = quicbed_sig_public_key_bytes(sig);
    algorithm->secret_key_bytes = quicbed_sig_secret_key_bytes(sig);
    names = provider->names[algorithm - provider->algorithms];
    snprintf(names, sizeof(provider->names[0]), "%s:%s", name, signature->oid);
    algorithm->names = names;
    /* X.509 finds the key's algorithm through the signature's, which has the same identifier and no digest. */
    if (!provider->obj_create(provider->handle, signature->oid, name, name) ||
        !provider->obj_add_sigid(provider->handle, signature->oid, "", signature->oid))
        return raise_error(provider, REASON_TABLE, "%s: cannot register %s", signature->name, signature->oid);
    return 1;
}

static int add_algorithms(struct provider *provider)
{
    size_t kems = 0, signatures = 0, codecs = 0, decoders = 0;

    for (size_t i = 0; i < QUICBED_GROUPS; i++)
        if (provided(quicbed_groups[i].liboqs) && !add_group(provider, &quicbed_groups[i]))
            return 0;
    for (size_t i = 0; TELLS_SIGNATURES && i < QUICBED_SIGNATURES; i++)
        if (provided(quicbed_signatures[i].liboqs) && !add_signature(provider, &quicbed_signatures[i]))
            return 0;

    /* The lists end with the first entry that stayed empty. */
    for (size_t i = 0; i < provider->count; i++) {
        const struct algorithm *algorithm = &provider->algorithms[i];
        const char *names = algorithm->names;

        provider->keymgmts[i] = (OSSL_ALGORITHM){names, PROPERTIES, keymgmt_functions[i], NULL};
        if (algorithm->kem != NULL) {
            provider->kems[kems++] = (OSSL_ALGORITHM){names, PROPERTIES, kem_functions, NULL};
            continue;
        }
        provider->signatures[signatures++] = (OSSL_ALGORITHM){names, PROPERTIES, signature_functions, NULL};
        for (size_t j = 0; j < ENCODERS_PER_ALGORITHM; j++)
            provider->encoders[codecs++] =
                (OSSL_ALGORITHM){names, encoders[j].properties, encoders[j].functions, NULL};
        provider->decoders[decoders++] =
            (OSSL_ALGORITHM){names, PRIVATE_KEY_INFO_DECODER_PROPERTIES, private_key_info_decoders[i], NULL};
        provider->decoders[decoders++] =
            (OSSL_ALGORITHM){names, PUBLIC_KEY_INFO_DECODER_PROPERTIES, public_key_info_decoders[i], NULL};
    }
    return 1;
}

/* ---- TLS (provider-base(7), capabilities) ---- */

static OSSL_PARAM text(const char *name, const char *value)
{
    return OSSL_PARAM_construct_utf8_string(name, (char *)value, 0);
}

/* libssl copies the parameters during the callback. */
static int tell_group(const struct algorithm *algorithm, OSSL_CALLBACK *callback, void *argument)
{
    unsigned int code_point = algorithm->code_point, bits = algorithm->security_bits, is_kem = 1;
    int first_tls = TLS1_3_VERSION, last_tls = 0, dtls = -1;
    const OSSL_PARAM params[] = {
        text(OSSL_CAPABILITY_TLS_GROUP_NAME, algorithm->name),
        text(OSSL_CAPABILITY_TLS_GROUP_NAME_INTERNAL, algorithm->name),
        text(OSSL_CAPABILITY_TLS_GROUP_ALG, algorithm->name),
        OSSL_PARAM_construct_uint(OSSL_CAPABILITY_TLS_GROUP_ID, &code_point),
        OSSL_PARAM_construct_uint(OSSL_CAPABILITY_TLS_GROUP_SECURITY_BITS, &bits),
        OSSL_PARAM_construct_uint(OSSL_CAPABILITY_TLS_GROUP_IS_KEM, &is_kem),
        OSSL_PARAM_construct_int(OSSL_CAPABILITY_TLS_GROUP_MIN_TLS, &first_tls),
        OSSL_PARAM_construct_int(OSSL_CAPABILITY_TLS_GROUP_MAX_TLS, &last_tls),
        OSSL_PARAM_construct_int(OSSL_CAPABILITY_TLS_GROUP_MIN_DTLS, &dtls),
        OSSL_PARAM_construct_int(OSSL_CAPABILITY_TLS_GROUP_MAX_DTLS, &dtls),
        OSSL_PARAM_construct_end(),
    };

    return callback(params, argument);
}

#if TELLS_SIGNATURES
static int tell_signature(const struct algorithm *algorithm, OSSL_CALLBACK *callback, void *argument)
{
    unsigned int code_point = algorithm->code_point, bits = algorithm->security_bits;
    int first_tls = TLS1_3_VERSION, last_tls = 0;
    const OSSL_PARAM params[] = {
        text(OSSL_CAPABILITY_TLS_SIGALG_IANA_NAME, algorithm->name),
        text(OSSL_CAPABILITY_TLS_SIGALG_NAME, algorithm->name),
        text(OSSL_CAPABILITY_TLS_SIGALG_OID, algorithm->oid),
        OSSL_PARAM_construct_uint(OSSL_CAPABILITY_TLS_SIGALG_CODE_POINT, &code_point),
        OSSL_PARAM_construct_uint(OSSL_CAPABILITY_TLS_SIGALG_SECURITY_BITS, &bits),
        OSSL_PARAM_construct_int(OSSL_CAPABILITY_TLS_SIGALG_MIN_TLS, &first_tls),
        OSSL_PARAM_construct_int(OSSL_CAPABILITY_TLS_SIGALG_MAX_TLS, &last_tls),
        OSSL_PARAM_construct_end(),
    };

    return callback(params, argument);
}
#endif

static int get_capabilities(void *context, const char *capability, OSSL_CALLBACK *callback, void *argument)
{
    const struct provider *provider = context;
    bool groups = strcmp(capability, "TLS-GROUP") == 0;
    int (*tell)(const struct algorithm *, OSSL_CALLBACK *, void *) = groups ? tell_group : NULL;

#if TELLS_SIGNATURES
    if (strcmp(capability, "TLS-SIGALG") == 0)
        tell = tell_signature;
#endif
    if (tell == NULL)
        return 0;
    for (size_t i = 0; i < provider->count; i++) {
        const struct algorithm *algorithm = &provider->algorithms[i];

        if (groups == (algorithm->kem != NULL) && !tell(algorithm, callback, argument))
            return 0;
    }
    return 1;
}

/* ---- the provider (provider-base(7)) ---- */

static const OSSL_ALGORITHM *query_operation(void *context, int operation, int *no_cache)
{
    const struct provider *provider = context;

    *no_cache = 0;
    switch (operation) {
    case OSSL_OP_KEYMGMT:
        return provider->keymgmts;
    case OSSL_OP_KEM:
        return provider->kems;
    case OSSL_OP_SIGNATURE:
        return provider->signatures;
    case OSSL_OP_ENCODER:
        return provider->encoders;
    case OSSL_OP_DECODER:
        return provider->decoders;
    default:
        return NULL;
    }
}

static const OSSL_PARAM *gettable_params(void *context)
{
    static const OSSL_PARAM known[] = {
        OSSL_PARAM_utf8_ptr(OSSL_PROV_PARAM_NAME, NULL, 0),
        OSSL_PARAM_utf8_ptr(OSSL_PROV_PARAM_VERSION, NULL, 0),
        OSSL_PARAM_utf8_ptr(OSSL_PROV_PARAM_BUILDINFO, NULL, 0),
        OSSL_PARAM_int(OSSL_PROV_PARAM_STATUS, NULL),
        OSSL_PARAM_END,
    };

    (void)context;
    return known;
}

/* Beside what every provider tells, a parameter of an algorithm's name tells what computes it. */
static int get_params(void *context, OSSL_PARAM params[])
{
    const struct provider *provider = context;
    OSSL_PARAM *name = OSSL_PARAM_locate(params, OSSL_PROV_PARAM_NAME);
    OSSL_PARAM *version = OSSL_PARAM_locate(params, OSSL_PROV_PARAM_VERSION);
    OSSL_PARAM *build = OSSL_PARAM_locate(params, OSSL_PROV_PARAM_BUILDINFO);
    OSSL_PARAM *status = OSSL_PARAM_locate(params, OSSL_PROV_PARAM_STATUS);

    for (size_t i = 0; i < provider->count; i++) {
        const struct algorithm *algorithm = &provider->algorithms[i];
        OSSL_PARAM *computed = OSSL_PARAM_locate(params, algorithm->name);
        const char *by = algorithm->kem != NULL ? quicbed_kem_implementation(algorithm->kem)
                                                : quicbed_sig_implementation(algorithm->sig);

        if (computed != NULL && !OSSL_PARAM_set_utf8_ptr(computed, by))
            return 0;
    }
    return (name == NULL || OSSL_PARAM_set_utf8_ptr(name, PROVIDER_NAME)) &&
           (version == NULL || OSSL_PARAM_set_utf8_ptr(version, OPENSSL_VERSION_STR)) &&
           (build == NULL || OSSL_PARAM_set_utf8_ptr(build, quicbed_pq_version())) &&
           (status == NULL || OSSL_PARAM_set_int(status, 1));
}

static const OSSL_ITEM *get_reason_strings(void *context)
{
    (void)context;
    return reasons;
}

static void teardown(void *context)
{
    struct provider *provider = context;

    for (size_t i = 0; i < CURVE_COUNT; i++)
        EVP_PKEY_free(provider->curves[i].parameters);
    OSSL_LIB_CTX_free(provider->library);
    OPENSSL_free(provider);
}

static const OSSL_DISPATCH provider_functions[] = {
    {OSSL_FUNC_PROVIDER_TEARDOWN, (void (*)(void))teardown},
    {OSSL_FUNC_PROVIDER_GETTABLE_PARAMS, (void (*)(void))gettable_params},
    {OSSL_FUNC_PROVIDER_GET_PARAMS, (void (*)(void))get_params},
    {OSSL_FUNC_PROVIDER_QUERY_OPERATION, (void (*)(void))query_operation},
    {OSSL_FUNC_PROVIDER_GET_REASON_STRINGS, (void (*)(void))get_reason_strings},
    {OSSL_FUNC_PROVIDER_GET_CAPABILITIES, (void (*)(void))get_capabilities},
    {0, NULL},
};

/* Remembers the functions of the OpenSSL that loads the provider; false if one is missing. */
static bool find_core(struct provider *core, const OSSL_CORE_HANDLE *handle, const OSSL_DISPATCH *in)
{
    core->handle = handle;
    for (; in->function_id != 0; in++) {
        switch (in->function_id) {
        case OSSL_FUNC_CORE_GET_PARAMS:
            core->get_params = OSSL_FUNC_core_get_params(in);
            break;
        case OSSL_FUNC_CORE_NEW_ERROR:
            core->new_error = OSSL_FUNC_core_new_error(in);
            break;
        case OSSL_FUNC_CORE_VSET_ERROR:
            core->set_error = OSSL_FUNC_core_vset_error(in);
            break;
        case OSSL_FUNC_CORE_OBJ_CREATE:
            core->obj_create = OSSL_FUNC_core_obj_create(in);
            break;
        case OSSL_FUNC_CORE_OBJ_ADD_SIGID:
            core->obj_add_sigid = OSSL_FUNC_core_obj_add_sigid(in);
            break;
        case OSSL_FUNC_BIO_READ_EX:
            core->bio_read = OSSL_FUNC_BIO_read_ex(in);
            break;
        case OSSL_FUNC_BIO_WRITE_EX:
            core->bio_write = OSSL_FUNC_BIO_write_ex(in);
            break;
        }
    }
    return core->get_params != NULL && core->new_error != NULL && core->set_error != NULL &&
           core->obj_create != NULL && core->obj_add_sigid != NULL && core->bio_read != NULL &&
           core->bio_write != NULL;
}

/*
 * Nothing promises that a provider works in another version of OpenSSL than its own, and results of different versions
 * must not be mixed by accident. Also told on standard error, because OpenSSL drops the errors of providers that its
 * configuration file names and goes on without them.
 */
static int right_version(const struct provider *core)
{
    char *version = NULL;
    OSSL_PARAM request[] = {
        {OSSL_PROV_PARAM_CORE_VERSION, OSSL_PARAM_UTF8_PTR, &version, 0, 0},
        {NULL, 0, NULL, 0, 0},
    };

    if (core->get_params(core->handle, request) && version != NULL && strcmp(version, OPENSSL_VERSION_STR) == 0)
        return 1;
    if (version == NULL)
        version = "of unknown version";
    fprintf(stderr, PROVIDER_NAME ": " OTHER_VERSION "\n", OPENSSL_VERSION_STR, version);
    return raise_error(core, REASON_VERSION, OTHER_VERSION, OPENSSL_VERSION_STR, version);
}

__attribute__((visibility("default"))) int OSSL_provider_init(const OSSL_CORE_HANDLE *handle, const OSSL_DISPATCH *in,
                                                              const OSSL_DISPATCH **out, void **context)
{
    struct provider core = {0}, *provider;

    if (!find_core(&core, handle, in) || !right_version(&core))
        return 0;
    /*
     * The configuration would load this provider into its own libcrypto. A function at exit would clean up the own
     * libcrypto before the program's cleans up the provider.
     */
    if (!OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_ATEXIT, NULL))
        return raise_error(&core, REASON_CLASSICAL, PROVIDER_NAME ": its libcrypto does not start");
    provider = OPENSSL_memdup(&core, sizeof(core));
    if (provider == NULL)
        return raise_error(&core, REASON_MEMORY, PROVIDER_NAME);
    memcpy(provider->curves, known_curves, sizeof(known_curves));
    provider->library = OSSL_LIB_CTX_new();
    if (provider->library == NULL)
        goto failed;
    for (size_t i = 0; i < CURVE_COUNT; i++) {
        EVP_PKEY_CTX *parameters = EVP_PKEY_CTX_new_from_name(provider->library, provider->curves[i].algorithm, NULL);
        int done = parameters != NULL && EVP_PKEY_paramgen_init(parameters) > 0 &&
                   EVP_PKEY_CTX_set_group_name(parameters, provider->curves[i].name) > 0 &&
                   EVP_PKEY_paramgen(parameters, &provider->curves[i].parameters) > 0;

        EVP_PKEY_CTX_free(parameters);
        if (!done) {
            raise_error(&core, REASON_CLASSICAL, PROVIDER_NAME ": no curve %s", provider->curves[i].name);
            goto failed;
        }
    }
    if (!add_algorithms(provider))
        goto failed;
    *context = provider;
    *out = provider_functions;
    return 1;
failed:
    teardown(provider);
    return 0;
}
