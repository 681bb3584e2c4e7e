/*
 * Key encapsulation and signatures of liboqs: the one place through which every TLS library calls them.
 *
 * All functions are thread-safe. Algorithms are found once by name and need not be freed. Buffers are the caller's and
 * have the sizes that the functions ..._bytes tell; the functions that compute return 1 on success and 0 on failure.
 */

#ifndef QUICBED_PQ_H
#define QUICBED_PQ_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Key encapsulation mechanisms. */

typedef struct quicbed_kem quicbed_kem;

/* The KEM that algorithms.h calls by this name of liboqs; NULL if there is none on this processor. */
const quicbed_kem *quicbed_kem_find(const char *liboqs_name);

/* Whether a KEM is missing because it is here for other processors only. */
int quicbed_kem_left_out(const char *liboqs_name);

/* Version of liboqs, and which of its implementations runs on this processor: "liboqs 0.13.0 (AVX2)". */
const char *quicbed_kem_implementation(const quicbed_kem *kem);

size_t quicbed_kem_public_key_bytes(const quicbed_kem *kem);
size_t quicbed_kem_secret_key_bytes(const quicbed_kem *kem);
size_t quicbed_kem_ciphertext_bytes(const quicbed_kem *kem);
size_t quicbed_kem_shared_secret_bytes(const quicbed_kem *kem);

int quicbed_kem_keypair(const quicbed_kem *kem, uint8_t *public_key, uint8_t *secret_key);
int quicbed_kem_encapsulate(const quicbed_kem *kem, uint8_t *ciphertext, uint8_t *shared_secret,
                            const uint8_t *public_key);

/* With implicit rejection (FIPS 203, 6.3) a wrong ciphertext succeeds with a secret that the peer does not have. */
int quicbed_kem_decapsulate(const quicbed_kem *kem, uint8_t *shared_secret, const uint8_t *ciphertext,
                            const uint8_t *secret_key);

/* Signatures of a whole message, not of its hash, with an empty context where the algorithm knows one. */

typedef struct quicbed_sig quicbed_sig;

/* The algorithm that liboqs calls by this name; NULL if this liboqs has none. */
const quicbed_sig *quicbed_sig_find(const char *liboqs_name);

/* As of a KEM. */
const char *quicbed_sig_implementation(const quicbed_sig *sig);

size_t quicbed_sig_public_key_bytes(const quicbed_sig *sig);
size_t quicbed_sig_secret_key_bytes(const quicbed_sig *sig);

/* The maximum; for every algorithm of algorithms.h it is also what every signature has. */
size_t quicbed_sig_signature_bytes(const quicbed_sig *sig);

int quicbed_sig_keypair(const quicbed_sig *sig, uint8_t *public_key, uint8_t *secret_key);

/* `signature` has room for quicbed_sig_signature_bytes(); *signature_len is what was written, 0 on failure. */
int quicbed_sig_sign(const quicbed_sig *sig, uint8_t *signature, size_t *signature_len, const uint8_t *message,
                     size_t message_len, const uint8_t *secret_key);

int quicbed_sig_verify(const quicbed_sig *sig, const uint8_t *message, size_t message_len, const uint8_t *signature,
                       size_t signature_len, const uint8_t *public_key);

/* Overwrites a secret in a way that no compiler leaves out. */
void quicbed_pq_cleanse(void *secret, size_t len);

/* "liboqs 0.13.0" */
const char *quicbed_pq_version(void);

#ifdef __cplusplus
}
#endif

#endif
