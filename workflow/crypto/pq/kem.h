/*
 * What pq.c has of each KEM, and how it is taken out of the liboqs whose headers this is compiled with: pq.c takes those of
 * the component `liboqs`, older.c those of `liboqs-0.9`, which is inside the former.
 */
#ifndef QUICBED_KEM_H
#define QUICBED_KEM_H

#include <oqs/oqs.h>
#include <stdbool.h>
#include <string.h>

typedef struct quicbed_kem quicbed_kem;

struct quicbed_kem {
    const char *name;           /* in algorithms.h */
    const char *implementation; /* "liboqs 0.13.0 (AVX2)" */
    size_t public_key_bytes, secret_key_bytes, ciphertext_bytes, shared_secret_bytes;
    OQS_STATUS (*keypair)(uint8_t *public_key, uint8_t *secret_key);
    OQS_STATUS (*encapsulate)(uint8_t *ciphertext, uint8_t *shared_secret, const uint8_t *public_key);
    OQS_STATUS (*decapsulate)(uint8_t *shared_secret, const uint8_t *ciphertext, const uint8_t *secret_key);
};

#define QUICBED_PORTABLE "liboqs " OQS_VERSION_TEXT " (portable)"

/* What of this liboqs computes an algorithm on this processor. The conditions are those of its own code, copied out of it
 * when it is built. OQS_init() comes first. */
static const char *implementation(const char *name) {
#define QUICBED_DISPATCH(algorithm, instructions, usable)                                                             \
    if (strcmp(name, algorithm) == 0 && (usable)) {                                                                   \
        return "liboqs " OQS_VERSION_TEXT " (" instructions ")";                                                      \
    }
#include <quicbed_dispatch.h>
#undef QUICBED_DISPATCH
    return QUICBED_PORTABLE;
}

/* Fills in all but the name of algorithms.h; false if this liboqs has no such KEM. */
static bool take(quicbed_kem *kem, const char *oqs_name) {
    OQS_KEM *oqs = OQS_KEM_new(oqs_name);
    if (oqs == NULL) {
        return false;
    }
    kem->implementation = implementation(oqs->method_name);
    kem->public_key_bytes = oqs->length_public_key;
    kem->secret_key_bytes = oqs->length_secret_key;
    kem->ciphertext_bytes = oqs->length_ciphertext;
    kem->shared_secret_bytes = oqs->length_shared_secret;
    kem->keypair = oqs->keypair;
    kem->encapsulate = oqs->encaps;
    kem->decapsulate = oqs->decaps;
    OQS_KEM_free(oqs);
    return true;
}

/* Follows the name of a KEM that liboqs 0.9 computes, in algorithms.h. */
#define QUICBED_OLDER "@0.9"

/* A KEM by its name in liboqs 0.9, if an implementation of it for this processor is there, a portable one aside. */
bool quicbed_older_kem(quicbed_kem *kem, const char *oqs_name);

#endif
