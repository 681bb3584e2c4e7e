#include "pq.h"

#include <pthread.h>
#include <stdio.h>

#include "algorithms.h"
#include "kem.h"

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
        if (strcmp(kems[i].name, name) == 0) {
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

static bool of_older(const char *name) {
    const size_t all = strlen(name), suffix = strlen(QUICBED_OLDER);
    return all > suffix && strcmp(name + all - suffix, QUICBED_OLDER) == 0;
}

static bool take_kem(quicbed_kem *kem, const char *name) {
    char older[32];
    kem->name = name;
    if (!of_older(name)) {
        return take(kem, name);
    }
    snprintf(older, sizeof older, "%.*s", (int)(strlen(name) - strlen(QUICBED_OLDER)), name);
    return quicbed_older_kem(kem, older);
}

/* Looks everything up before the first use, so that no lookup is part of a measured handshake. */
static void look_up(void) {
    OQS_init();
    for (size_t i = 0; i < QUICBED_GROUPS; i++) {
        const char *name = quicbed_groups[i].liboqs;
        if (name != NULL && known_kem(name) == NULL && take_kem(&kems[kem_count], name)) {
            kem_count++;
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

int quicbed_kem_left_out(const char *liboqs_name) {
    return quicbed_kem_find(liboqs_name) == NULL && of_older(liboqs_name);
}

const char *quicbed_kem_implementation(const quicbed_kem *kem) { return kem->implementation; }

size_t quicbed_kem_public_key_bytes(const quicbed_kem *kem) { return kem->public_key_bytes; }

size_t quicbed_kem_secret_key_bytes(const quicbed_kem *kem) { return kem->secret_key_bytes; }

size_t quicbed_kem_ciphertext_bytes(const quicbed_kem *kem) { return kem->ciphertext_bytes; }

size_t quicbed_kem_shared_secret_bytes(const quicbed_kem *kem) { return kem->shared_secret_bytes; }

int quicbed_kem_keypair(const quicbed_kem *kem, uint8_t *public_key, uint8_t *secret_key) {
    return kem->keypair(public_key, secret_key) == OQS_SUCCESS;
}

int quicbed_kem_encapsulate(const quicbed_kem *kem, uint8_t *ciphertext, uint8_t *shared_secret,
                            const uint8_t *public_key) {
    return kem->encapsulate(ciphertext, shared_secret, public_key) == OQS_SUCCESS;
}

int quicbed_kem_decapsulate(const quicbed_kem *kem, uint8_t *shared_secret, const uint8_t *ciphertext,
                            const uint8_t *secret_key) {
    return kem->decapsulate(shared_secret, ciphertext, secret_key) == OQS_SUCCESS;
}

const quicbed_sig *quicbed_sig_find(const char *liboqs_name) {
    pthread_once(&once, look_up);
    return liboqs_name == NULL ? NULL : known_sig(liboqs_name);
}

const char *quicbed_sig_implementation(const quicbed_sig *sig) { return implementation(sig->oqs->method_name); }

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
