/*
 * Prints the first entry of the known-answer tests of an algorithm as NIST's response files have it, through pq.h.
 *
 * Usage: pq_kat kem|sig NAME. The random numbers are those of the files: AES-256 CTR_DRBG (SP 800-90A, 10.2.1) without
 * derivation function and reseeding, and SHAKE256 for HQC of 2023, whose submission has a generator of its own. Both are
 * made here with OpenSSL, so that nothing of liboqs but the algorithm decides what is printed.
 */

#include <openssl/evp.h>
#include <oqs/rand.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pq.h"

#define SEED_BYTES 48
#define MESSAGE_BYTES 33

static void check(int ok, const char *what) {
    if (!ok) {
        fprintf(stderr, "pq_kat: %s failed\n", what);
        exit(1);
    }
}

/* AES-256 CTR_DRBG. */

static uint8_t key[32];
static uint8_t counter[16];

static void next_block(EVP_CIPHER_CTX *aes, uint8_t block[16]) {
    for (int i = 15; i >= 0 && ++counter[i] == 0; i--) {
    }
    int len;
    check(EVP_EncryptUpdate(aes, block, &len, counter, sizeof counter), "AES-256");
}

static EVP_CIPHER_CTX *keyed(void) {
    EVP_CIPHER_CTX *aes = EVP_CIPHER_CTX_new();
    check(aes != NULL && EVP_EncryptInit_ex2(aes, EVP_aes_256_ecb(), key, NULL, NULL), "AES-256");
    return aes;
}

static void drbg_update(const uint8_t *provided) {
    uint8_t state[SEED_BYTES];
    EVP_CIPHER_CTX *aes = keyed();
    for (size_t i = 0; i < SEED_BYTES; i += 16) {
        next_block(aes, state + i);
    }
    EVP_CIPHER_CTX_free(aes);
    for (size_t i = 0; provided != NULL && i < SEED_BYTES; i++) {
        state[i] ^= provided[i];
    }
    memcpy(key, state, sizeof key);
    memcpy(counter, state + sizeof key, sizeof counter);
}

static void drbg_seed(const uint8_t *seed) {
    memset(key, 0, sizeof key);
    memset(counter, 0, sizeof counter);
    drbg_update(seed);
}

static void drbg_random(uint8_t *out, size_t len) {
    EVP_CIPHER_CTX *aes = keyed();
    while (len > 0) {
        uint8_t block[16];
        size_t part = len < sizeof block ? len : sizeof block;
        next_block(aes, block);
        memcpy(out, block, part);
        out += part;
        len -= part;
    }
    EVP_CIPHER_CTX_free(aes);
    drbg_update(NULL);
}

/* SHAKE256 of the seed and a byte 1. */

static EVP_MD_CTX *shake;

static void shake_seed(const uint8_t *seed) {
    const uint8_t domain = 1;
    EVP_MD_CTX_free(shake);
    shake = EVP_MD_CTX_new();
    check(shake != NULL && EVP_DigestInit_ex2(shake, EVP_shake256(), NULL) &&
              EVP_DigestUpdate(shake, seed, SEED_BYTES) && EVP_DigestUpdate(shake, &domain, 1),
          "SHAKE256");
}

static void shake_random(uint8_t *out, size_t len) { check(EVP_DigestSqueeze(shake, out, len), "SHAKE256"); }

static void (*seed_random)(const uint8_t *seed);
static void (*get_random)(uint8_t *out, size_t len);

/* What OQS_randombytes_custom_algorithm is called in the component liboqs-0.9. */
void quicbed_older_random(void (*algorithm)(uint8_t *out, size_t len));

static void choose_random(const char *name) {
    int hqc = strncmp(name, "HQC-", 4) == 0 && strchr(name, '@') == NULL;
    seed_random = hqc ? shake_seed : drbg_seed;
    get_random = hqc ? shake_random : drbg_random;
    OQS_randombytes_custom_algorithm(get_random);
    quicbed_older_random(get_random);
    uint8_t entropy[SEED_BYTES];
    for (uint8_t i = 0; i < SEED_BYTES; i++) {
        entropy[i] = i;
    }
    seed_random(entropy);
}

static uint8_t *buffer(size_t len) {
    uint8_t *bytes = malloc(len);
    check(bytes != NULL, "allocation");
    return bytes;
}

static void print(const char *label, const uint8_t *bytes, size_t len) {
    printf("%s = ", label);
    for (size_t i = 0; i < len; i++) {
        printf("%02X", bytes[i]);
    }
    printf("\n");
}

static void kem_entry(const char *name) {
    const quicbed_kem *kem = quicbed_kem_find(name);
    check(kem != NULL, "finding the KEM");
    uint8_t *pk = buffer(quicbed_kem_public_key_bytes(kem)), *sk = buffer(quicbed_kem_secret_key_bytes(kem));
    uint8_t *ct = buffer(quicbed_kem_ciphertext_bytes(kem)), seed[SEED_BYTES];
    size_t secret_len = quicbed_kem_shared_secret_bytes(kem);
    uint8_t *sent = buffer(secret_len), *received = buffer(secret_len);

    choose_random(name);
    get_random(seed, sizeof seed);
    printf("count = 0\n");
    print("seed", seed, sizeof seed);
    seed_random(seed);
    check(quicbed_kem_keypair(kem, pk, sk), "key generation");
    print("pk", pk, quicbed_kem_public_key_bytes(kem));
    print("sk", sk, quicbed_kem_secret_key_bytes(kem));
    check(quicbed_kem_encapsulate(kem, ct, sent, pk), "encapsulation");
    print("ct", ct, quicbed_kem_ciphertext_bytes(kem));
    print("ss", sent, secret_len);
    check(quicbed_kem_decapsulate(kem, received, ct, sk), "decapsulation");
    check(memcmp(sent, received, secret_len) == 0, "agreement on a secret");
    free(pk);
    free(sk);
    free(ct);
    free(sent);
    free(received);
}

static void sig_entry(const char *name) {
    const quicbed_sig *sig = quicbed_sig_find(name);
    check(sig != NULL, "finding the signature algorithm");
    uint8_t *pk = buffer(quicbed_sig_public_key_bytes(sig)), *sk = buffer(quicbed_sig_secret_key_bytes(sig));
    uint8_t *signed_message = buffer(quicbed_sig_signature_bytes(sig) + MESSAGE_BYTES);
    uint8_t seed[SEED_BYTES], message[MESSAGE_BYTES];
    size_t len;

    choose_random(name);
    get_random(seed, sizeof seed);
    printf("count = 0\n");
    print("seed", seed, sizeof seed);
    get_random(message, sizeof message);
    printf("mlen = %d\n", MESSAGE_BYTES);
    print("msg", message, sizeof message);
    seed_random(seed);
    check(quicbed_sig_keypair(sig, pk, sk), "key generation");
    print("pk", pk, quicbed_sig_public_key_bytes(sig));
    print("sk", sk, quicbed_sig_secret_key_bytes(sig));
    check(quicbed_sig_sign(sig, signed_message, &len, message, sizeof message, sk), "signing");
    check(quicbed_sig_verify(sig, message, sizeof message, signed_message, len, pk), "verification");
    /* pq.h promises signatures of constant size */
    check(len == quicbed_sig_signature_bytes(sig), "signature of the size told");
    memcpy(signed_message + len, message, sizeof message);
    printf("smlen = %zu\n", len + sizeof message);
    print("sm", signed_message, len + sizeof message);
    message[0] ^= 1;
    check(!quicbed_sig_verify(sig, message, sizeof message, signed_message, len, pk), "refusal of another message");
    free(pk);
    free(sk);
    free(signed_message);
}

int main(int argc, char **argv) {
    check(argc == 3 && (strcmp(argv[1], "kem") == 0 || strcmp(argv[1], "sig") == 0), "reading the command line");
    if (strcmp(argv[1], "kem") == 0) {
        kem_entry(argv[2]);
    } else {
        sig_entry(argv[2]);
    }
    EVP_MD_CTX_free(shake);
    return 0;
}
