/* What the parts of the provider share; provider.c says what it is. */
#ifndef QUICBED_PROVIDER_H
#define QUICBED_PROVIDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <openssl/core.h>
#include <openssl/core_dispatch.h>
#include <openssl/evp.h>

#include "pq.h"

#define PROVIDER_NAME "quicbed-pq"
#define PROPERTIES "provider=" PROVIDER_NAME

/*
 * The functions that make a key or a decoder are told the provider, not the algorithm, so every algorithm has a slot
 * with functions of its own, which add its number.
 */
#define SLOTS(X)                                                                                                       \
    X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16) X(17) X(18) X(19)      \
    X(20) X(21) X(22) X(23) X(24) X(25) X(26) X(27) X(28) X(29) X(30) X(31) X(32) X(33) X(34) X(35) X(36) X(37) X(38)  \
    X(39) X(40) X(41) X(42) X(43) X(44) X(45) X(46) X(47)

enum { SLOT_COUNT = 48 };

/* Why something failed; the texts are in provider.c. */
enum reason {
    REASON_VERSION = 1,
    REASON_TABLE,
    REASON_MEMORY,
    REASON_KEY,
    REASON_LENGTH,
    REASON_LIBOQS,
    REASON_CLASSICAL,
    REASON_DIGEST,
    REASON_ENCRYPTED,
    REASON_OUTPUT,
};

/*
 * The classical part of hybrid groups: ECDH whose shares are uncompressed points (RFC 8446, section 4.2.8.2), or X25519
 * (RFC 7748).
 */
struct curve {
    const char *table_name; /* in the column `classical` */
    const char *algorithm;  /* of EVP_PKEY_CTX_new_from_name(3) */
    const char *name;
    size_t point_bytes;
    size_t secret_bytes; /* the x coordinate */
    EVP_PKEY *parameters;
};

enum { CURVE_COUNT = 4 };

/* One row of the table: a group (kem) or a signature algorithm (sig). */
struct algorithm {
    const char *name;  /* in OpenSSL and in TLS */
    const char *names; /* of a signature algorithm: with its OID */
    unsigned int code_point;
    unsigned int security_bits;
    const quicbed_kem *kem;
    const struct curve *curve; /* NULL: not a hybrid */
    bool kem_first;            /* of a hybrid: the KEM's part is in front */
    const quicbed_sig *sig;
    const char *oid;
    const uint8_t *oid_der; /* with tag and length */
    size_t oid_der_bytes;
    size_t public_key_bytes; /* of a hybrid: point and public key of the KEM */
    size_t secret_key_bytes; /* of the part in liboqs */
};

/* A loaded provider. */
struct provider {
    const OSSL_CORE_HANDLE *handle;
    OSSL_FUNC_core_get_params_fn *get_params;
    OSSL_FUNC_core_new_error_fn *new_error;
    OSSL_FUNC_core_vset_error_fn *set_error;
    OSSL_FUNC_core_obj_create_fn *obj_create;
    OSSL_FUNC_core_obj_add_sigid_fn *obj_add_sigid;
    OSSL_FUNC_BIO_read_ex_fn *bio_read;
    OSSL_FUNC_BIO_write_ex_fn *bio_write;
    OSSL_LIB_CTX *library; /* of the provider's own copy of libcrypto */
    struct curve curves[CURVE_COUNT];
    struct algorithm algorithms[SLOT_COUNT];
    char names[SLOT_COUNT][96];
    size_t count;
    OSSL_ALGORITHM keymgmts[SLOT_COUNT + 1];
    OSSL_ALGORITHM kems[SLOT_COUNT + 1];
    OSSL_ALGORITHM signatures[SLOT_COUNT + 1];
    OSSL_ALGORITHM encoders[5 * SLOT_COUNT + 1];
    OSSL_ALGORITHM decoders[2 * SLOT_COUNT + 1];
};

/* A key pair, a public key or, as the parameters a key share is read into, neither. */
struct key {
    const struct provider *provider;
    const struct algorithm *algorithm;
    uint8_t *public_key; /* as it is encoded; NULL if there is none */
    uint8_t *secret_key; /* of the part in liboqs; NULL if there is none */
    EVP_PKEY *classical; /* of a hybrid: the key pair or public key on its curve */
};

/* Puts an error on the queue of the OpenSSL that loaded the provider; returns 0, which means failure everywhere. */
int raise_error(const struct provider *provider, enum reason reason, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* keys.c */
struct key *key_new(const struct provider *provider, const struct algorithm *algorithm);
void key_free(void *key);
int key_set_public(struct key *key, const void *encoded, size_t bytes);
int key_set_secret(struct key *key, const void *encoded, size_t bytes);
extern const OSSL_DISPATCH *const keymgmt_functions[SLOT_COUNT];

/* kem.c; NULL output buffers are errors here */
int hybrid_keypair(struct key *key);
int hybrid_encapsulate(const struct key *key, uint8_t *ciphertext, uint8_t *secret);
int hybrid_decapsulate(const struct key *key, uint8_t *secret, const uint8_t *ciphertext);
size_t hybrid_point_offset(const struct algorithm *algorithm); /* in a public key */
size_t hybrid_ciphertext_bytes(const struct algorithm *algorithm);
size_t hybrid_secret_bytes(const struct algorithm *algorithm);
EVP_PKEY *curve_public_key(const struct provider *provider, const struct curve *curve, const uint8_t *point);
extern const OSSL_DISPATCH kem_functions[];

/* signature.c */
extern const OSSL_DISPATCH signature_functions[];

/* der.c: what is written is allocated with OPENSSL_malloc, NULL if there is no memory. */
uint8_t *der_algorithm_identifier(const struct algorithm *algorithm, size_t *bytes);
uint8_t *der_public_key_info(const struct key *key, size_t *bytes);
uint8_t *der_private_key_info(const struct key *key, size_t *bytes);
enum der_result { DER_FOREIGN, DER_MALFORMED, DER_KEY };
enum der_result der_read_public_key_info(struct key *key, const uint8_t *der, size_t bytes);
enum der_result der_read_private_key_info(struct key *key, const uint8_t *der, size_t bytes);

/* codecs.c */
enum { ENCODERS_PER_ALGORITHM = 5 };
struct codec {
    const char *properties;
    const OSSL_DISPATCH *functions;
};
extern const struct codec encoders[ENCODERS_PER_ALGORITHM];
extern const OSSL_DISPATCH *const private_key_info_decoders[SLOT_COUNT];
extern const OSSL_DISPATCH *const public_key_info_decoders[SLOT_COUNT];
#define PRIVATE_KEY_INFO_DECODER_PROPERTIES PROPERTIES ",input=der,structure=PrivateKeyInfo"
#define PUBLIC_KEY_INFO_DECODER_PROPERTIES PROPERTIES ",input=der,structure=SubjectPublicKeyInfo"

#endif
