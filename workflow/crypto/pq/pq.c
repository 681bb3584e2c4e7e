#include "pq.h"

#include <oqs/oqs.h>
#include <pthread.h>
#include <string.h>

#include "algorithms.h"

struct quicbed_kem {
    OQS_KEM *oqs;
};

struct quicbed_sig {
    OQS_SIG *oqs;
};

/* One entry for each of liboqs' own algorithms that algorithms.h names; several groups share a KEM. */
static quicbed_kem kems[QUICBED_GROUPS];
static size_t kem_count;
static quicbed_sig sigs[QUICBED_SIGNATURES];
static size_t sig_count;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static const quicbed_kem *known_kem(const char *name) {
    for (size_t i = 0; i < kem_count; i++) {
        if (strcmp(kems[i].oqs->method_name, name) == 0) {
            return &kems[i];
        }
    }
    return NULL;
}

static const quicbed_sig *known_sig(const char *name) {
    for (size_t i = 0; i < sig_count; i++) {
        if (strcmp(sigs[i].oqs->method_name, name) == 0) {
            return &sigs[i];
        }
    }
    return NULL;
}

/* Looks everything up before the first use, so that no lookup is part of a measured handshake. */
static void look_up(void) {
    OQS_init();
    for (size_t i = 0; i < QUICBED_GROUPS; i++) {
        const char *name = quicbed_groups[i].liboqs;
        if (name != NULL && known_kem(name) == NULL) {
            OQS_KEM *oqs = OQS_KEM_new(name);
            if (oqs != NULL) {
                kems[kem_count++].oqs = oqs;
            }
        }
    }
    for (size_t i = 0; i < QUICBED_SIGNATURES; i++) {
        const char *name = quicbed_signatures[i].liboqs;
        if (name != NULL && known_sig(name) == NULL) {
            OQS_SIG *oqs = OQS_SIG_new(name);
            if (oqs != NULL) {
                sigs[sig_count++].oqs = oqs;
            }
        }
    }
}

const quicbed_kem *quicbed_kem_find(const char *liboqs_name) {
    pthread_once(&once, look_up);
    return liboqs_name == NULL ? NULL : known_kem(liboqs_name);
}

size_t quicbed_kem_public_key_bytes(const quicbed_kem *kem) { return kem->oqs->length_public_key; }

size_t quicbed_kem_secret_key_bytes(const quicbed_kem *kem) { return kem->oqs->length_secret_key; }

size_t quicbed_kem_ciphertext_bytes(const quicbed_kem *kem) { return kem->oqs->length_ciphertext; }

size_t quicbed_kem_shared_secret_bytes(const quicbed_kem *kem) { return kem->oqs->length_shared_secret; }

int quicbed_kem_keypair(const quicbed_kem *kem, uint8_t *public_key, uint8_t *secret_key) {
    return OQS_KEM_keypair(kem->oqs, public_key, secret_key) == OQS_SUCCESS;
}

int quicbed_kem_encapsulate(const quicbed_kem *kem, uint8_t *ciphertext, uint8_t *shared_secret,
                            const uint8_t *public_key) {
    return OQS_KEM_encaps(kem->oqs, ciphertext, shared_secret, public_key) == OQS_SUCCESS;
}

int quicbed_kem_decapsulate(const quicbed_kem *kem, uint8_t *shared_secret, const uint8_t *ciphertext,
                            const uint8_t *secret_key) {
    return OQS_KEM_decaps(kem->oqs, shared_secret, ciphertext, secret_key) == OQS_SUCCESS;
}

const quicbed_sig *quicbed_sig_find(const char *liboqs_name) {
    pthread_once(&once, look_up);
    return liboqs_name == NULL ? NULL : known_sig(liboqs_name);
}

size_t quicbed_sig_public_key_bytes(const quicbed_sig *sig) { return sig->oqs->length_public_key; }

size_t quicbed_sig_secret_key_bytes(const quicbed_sig *sig) { return sig->oqs->length_secret_key; }

size_t quicbed_sig_signature_bytes(const quicbed_sig *sig) { return sig->oqs->length_signature; }

int quicbed_sig_keypair(const quicbed_sig *sig, uint8_t *public_key, uint8_t *secret_key) {
    return OQS_SIG_keypair(sig->oqs, public_key, secret_key) == OQS_SUCCESS;
}

int quicbed_sig_sign(const quicbed_sig *sig, uint8_t *signature, size_t *signature_len, const uint8_t *message,
                     size_t message_len, const uint8_t *secret_key) {
    *signature_len = 0;
    return OQS_SIG_sign(sig->oqs, signature, signature_len, message, message_len, secret_key) == OQS_SUCCESS;
}

int quicbed_sig_verify(const quicbed_sig *sig, const uint8_t *message, size_t message_len, const uint8_t *signature,
                       size_t signature_len, const uint8_t *public_key) {
    return OQS_SIG_verify(sig->oqs, message, message_len, signature, signature_len, public_key) == OQS_SUCCESS;
}

void quicbed_pq_cleanse(void *secret, size_t len) { OQS_MEM_cleanse(secret, len); }

const char *quicbed_pq_version(void) { return "liboqs " OQS_VERSION_TEXT; }
