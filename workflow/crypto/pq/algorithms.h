/* Generated from workflow/crypto/algorithms.csv by `quicbed generate`; do not edit. */

#ifndef QUICBED_ALGORITHMS_H
#define QUICBED_ALGORITHMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A key-exchange group. */
typedef struct quicbed_group {
    const char *name; /* value of --group */
    const char *tls_name;
    uint16_t code_point; /* TLS NamedGroup */
    int nist_level;
    const char *liboqs;    /* the KEM's name in liboqs, NULL for (EC)DH alone */
    const char *classical; /* name of the (EC)DH group, NULL for a KEM alone */
    bool pq_first;         /* of a hybrid: the KEM's part comes first in shares and secret */
} quicbed_group;

/* A signature algorithm of certificates. */
typedef struct quicbed_signature {
    const char *name; /* value of --signature */
    const char *tls_name;
    uint16_t code_point; /* TLS SignatureScheme */
    int nist_level;
    const char *liboqs;    /* name in liboqs, NULL for a classical algorithm */
    const char *classical; /* algorithm and key size, NULL for a post-quantum algorithm */
    const char *oid;       /* object identifier of the public key, dotted */
    uint8_t oid_der[13];   /* the same as DER, with tag and length */
    size_t oid_der_len;
} quicbed_signature;

#define QUICBED_GROUPS 35
#define QUICBED_SIGNATURES 26

static const quicbed_group quicbed_groups[QUICBED_GROUPS] = {
    {"x25519", "x25519", 0x001d, 1, NULL, "x25519", false},
    {"x448", "x448", 0x001e, 3, NULL, "x448", false},
    {"p-256", "secp256r1", 0x0017, 1, NULL, "p-256", false},
    {"p-384", "secp384r1", 0x0018, 3, NULL, "p-384", false},
    {"p-521", "secp521r1", 0x0019, 5, NULL, "p-521", false},
    {"kyber512", "kyber512", 0x023a, 1, "Kyber512", NULL, false},
    {"kyber768", "kyber768", 0x023c, 3, "Kyber768", NULL, false},
    {"kyber1024", "kyber1024", 0x023d, 5, "Kyber1024", NULL, false},
    {"bike-l1", "bikel1", 0x0241, 1, "BIKE-L1", NULL, false},
    {"bike-l3", "bikel3", 0x0242, 3, "BIKE-L3", NULL, false},
    {"bike-l5", "bikel5", 0x0243, 5, "BIKE-L5", NULL, false},
    {"hqc-128", "hqc128", 0x0244, 1, "HQC-128", NULL, false},
    {"hqc-192", "hqc192", 0x0245, 3, "HQC-192", NULL, false},
    {"hqc-256", "hqc256", 0x0246, 5, "HQC-256", NULL, false},
    {"p-256-kyber512", "p256_kyber512", 0x2f3a, 1, "Kyber512", "p-256", false},
    {"p-256-bike-l1", "p256_bikel1", 0x2f41, 1, "BIKE-L1", "p-256", false},
    {"p-256-hqc-128", "p256_hqc128", 0x2f44, 1, "HQC-128", "p-256", false},
    {"p-384-kyber768", "p384_kyber768", 0x2f3c, 3, "Kyber768", "p-384", false},
    {"p-384-bike-l3", "p384_bikel3", 0x2f42, 3, "BIKE-L3", "p-384", false},
    {"p-384-hqc-192", "p384_hqc192", 0x2f45, 3, "HQC-192", "p-384", false},
    {"p-521-kyber1024", "p521_kyber1024", 0x2f3d, 5, "Kyber1024", "p-521", false},
    {"p-521-bike-l5", "p521_bikel5", 0x2f43, 5, "BIKE-L5", "p-521", false},
    {"p-521-hqc-256", "p521_hqc256", 0x2f46, 5, "HQC-256", "p-521", false},
    {"mlkem512", "MLKEM512", 0x0200, 1, "ML-KEM-512", NULL, false},
    {"mlkem768", "MLKEM768", 0x0201, 3, "ML-KEM-768", NULL, false},
    {"mlkem1024", "MLKEM1024", 0x0202, 5, "ML-KEM-1024", NULL, false},
    {"p-256-mlkem768", "SecP256r1MLKEM768", 0x11eb, 3, "ML-KEM-768", "p-256", false},
    {"x25519-mlkem768", "X25519MLKEM768", 0x11ec, 3, "ML-KEM-768", "x25519", true},
    {"p-384-mlkem1024", "SecP384r1MLKEM1024", 0x11ed, 5, "ML-KEM-1024", "p-384", false},
    {"hqc-128-avx2", "hqc128_2020", 0xfe44, 1, "HQC-128@0.9", NULL, false},
    {"hqc-192-avx2", "hqc192_2020", 0xfe45, 3, "HQC-192@0.9", NULL, false},
    {"hqc-256-avx2", "hqc256_2020", 0xfe46, 5, "HQC-256@0.9", NULL, false},
    {"p-256-hqc-128-avx2", "p256_hqc128_2020", 0xfe54, 1, "HQC-128@0.9", "p-256", false},
    {"p-384-hqc-192-avx2", "p384_hqc192_2020", 0xfe55, 3, "HQC-192@0.9", "p-384", false},
    {"p-521-hqc-256-avx2", "p521_hqc256_2020", 0xfe56, 5, "HQC-256@0.9", "p-521", false},
};

static const quicbed_signature quicbed_signatures[QUICBED_SIGNATURES] = {
    {"rsa-1024", "rsa_pss_rsae_sha256", 0x0804, 1, NULL, "rsa-1024",
     "1.2.840.113549.1.1.1", {0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01}, 11},
    {"rsa-2048", "rsa_pss_rsae_sha256", 0x0804, 1, NULL, "rsa-2048",
     "1.2.840.113549.1.1.1", {0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01}, 11},
    {"rsa-4096", "rsa_pss_rsae_sha256", 0x0804, 1, NULL, "rsa-4096",
     "1.2.840.113549.1.1.1", {0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01}, 11},
    {"ecdsa-p-256", "ecdsa_secp256r1_sha256", 0x0403, 1, NULL, "ecdsa-p-256",
     "1.2.840.10045.2.1", {0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01}, 9},
    {"ecdsa-p-384", "ecdsa_secp384r1_sha384", 0x0503, 3, NULL, "ecdsa-p-384",
     "1.2.840.10045.2.1", {0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01}, 9},
    {"ed25519", "ed25519", 0x0807, 1, NULL, "ed25519",
     "1.3.101.112", {0x06, 0x03, 0x2b, 0x65, 0x70}, 5},
    {"falcon-512", "falconpadded512", 0xfedc, 1, "Falcon-padded-512", NULL,
     "1.3.9999.3.16", {0x06, 0x05, 0x2b, 0xce, 0x0f, 0x03, 0x10}, 7},
    {"falcon-1024", "falconpadded1024", 0xfedf, 5, "Falcon-padded-1024", NULL,
     "1.3.9999.3.19", {0x06, 0x05, 0x2b, 0xce, 0x0f, 0x03, 0x13}, 7},
    {"dilithium2", "dilithium2", 0xfea0, 2, "Dilithium2", NULL,
     "1.3.6.1.4.1.2.267.7.4.4", {0x06, 0x0b, 0x2b, 0x06, 0x01, 0x04, 0x01, 0x02, 0x82, 0x0b, 0x07, 0x04, 0x04}, 13},
    {"dilithium3", "dilithium3", 0xfea3, 3, "Dilithium3", NULL,
     "1.3.6.1.4.1.2.267.7.6.5", {0x06, 0x0b, 0x2b, 0x06, 0x01, 0x04, 0x01, 0x02, 0x82, 0x0b, 0x07, 0x06, 0x05}, 13},
    {"dilithium5", "dilithium5", 0xfea5, 5, "Dilithium5", NULL,
     "1.3.6.1.4.1.2.267.7.8.7", {0x06, 0x0b, 0x2b, 0x06, 0x01, 0x04, 0x01, 0x02, 0x82, 0x0b, 0x07, 0x08, 0x07}, 13},
    {"mldsa44", "mldsa44", 0x0904, 2, "ML-DSA-44", NULL,
     "2.16.840.1.101.3.4.3.17", {0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x03, 0x11}, 11},
    {"mldsa65", "mldsa65", 0x0905, 3, "ML-DSA-65", NULL,
     "2.16.840.1.101.3.4.3.18", {0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x03, 0x12}, 11},
    {"mldsa87", "mldsa87", 0x0906, 5, "ML-DSA-87", NULL,
     "2.16.840.1.101.3.4.3.19", {0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x03, 0x13}, 11},
    {"sphincs-sha2-128s", "sphincssha2128ssimple", 0xfeb6, 1, "SPHINCS+-SHA2-128s-simple", NULL,
     "1.3.9999.6.4.16", {0x06, 0x06, 0x2b, 0xce, 0x0f, 0x06, 0x04, 0x10}, 8},
    {"sphincs-sha2-128f", "sphincssha2128fsimple", 0xfeb3, 1, "SPHINCS+-SHA2-128f-simple", NULL,
     "1.3.9999.6.4.13", {0x06, 0x06, 0x2b, 0xce, 0x0f, 0x06, 0x04, 0x0d}, 8},
    {"sphincs-sha2-192s", "sphincssha2192ssimple", 0xfebb, 3, "SPHINCS+-SHA2-192s-simple", NULL,
     "1.3.9999.6.5.12", {0x06, 0x06, 0x2b, 0xce, 0x0f, 0x06, 0x05, 0x0c}, 8},
    {"sphincs-sha2-192f", "sphincssha2192fsimple", 0xfeb9, 3, "SPHINCS+-SHA2-192f-simple", NULL,
     "1.3.9999.6.5.10", {0x06, 0x06, 0x2b, 0xce, 0x0f, 0x06, 0x05, 0x0a}, 8},
    {"sphincs-sha2-256s", "sphincssha2256ssimple", 0xfec0, 5, "SPHINCS+-SHA2-256s-simple", NULL,
     "1.3.9999.6.6.12", {0x06, 0x06, 0x2b, 0xce, 0x0f, 0x06, 0x06, 0x0c}, 8},
    {"sphincs-sha2-256f", "sphincssha2256fsimple", 0xfebd, 5, "SPHINCS+-SHA2-256f-simple", NULL,
     "1.3.9999.6.6.10", {0x06, 0x06, 0x2b, 0xce, 0x0f, 0x06, 0x06, 0x0a}, 8},
    {"sphincs-shake-128s", "sphincsshake128ssimple", 0xfec5, 1, "SPHINCS+-SHAKE-128s-simple", NULL,
     "1.3.9999.6.7.16", {0x06, 0x06, 0x2b, 0xce, 0x0f, 0x06, 0x07, 0x10}, 8},
    {"sphincs-shake-128f", "sphincsshake128fsimple", 0xfec2, 1, "SPHINCS+-SHAKE-128f-simple", NULL,
     "1.3.9999.6.7.13", {0x06, 0x06, 0x2b, 0xce, 0x0f, 0x06, 0x07, 0x0d}, 8},
    {"sphincs-shake-192s", "sphincsshake192ssimple", 0xfeca, 3, "SPHINCS+-SHAKE-192s-simple", NULL,
     "1.3.9999.6.8.12", {0x06, 0x06, 0x2b, 0xce, 0x0f, 0x06, 0x08, 0x0c}, 8},
    {"sphincs-shake-192f", "sphincsshake192fsimple", 0xfec8, 3, "SPHINCS+-SHAKE-192f-simple", NULL,
     "1.3.9999.6.8.10", {0x06, 0x06, 0x2b, 0xce, 0x0f, 0x06, 0x08, 0x0a}, 8},
    {"sphincs-shake-256s", "sphincsshake256ssimple", 0xfece, 5, "SPHINCS+-SHAKE-256s-simple", NULL,
     "1.3.9999.6.9.12", {0x06, 0x06, 0x2b, 0xce, 0x0f, 0x06, 0x09, 0x0c}, 8},
    {"sphincs-shake-256f", "sphincsshake256fsimple", 0xfecc, 5, "SPHINCS+-SHAKE-256f-simple", NULL,
     "1.3.9999.6.9.10", {0x06, 0x06, 0x2b, 0xce, 0x0f, 0x06, 0x09, 0x0a}, 8},
};

#endif
