/*
 * Tells what a cipher of the OpenSSL configuration in force does: openssl_probe CIPHER PLAINTEXT_BYTES
 *
 * Key, nonce, additional data and plaintext are zero bytes. Prints name=value lines: the provider the cipher and the
 * random number generator come from, ciphertext and tag, and what decryption makes of them with the right and with a
 * wrong tag.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/evp.h>
#include <openssl/provider.h>
#include <openssl/rand.h>

enum { TAG_BYTES = 16, AAD_BYTES = 5, MOST_BYTES = 4096 };

static void require(int ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "%s failed\n", what);
        exit(1);
    }
}

static void print_hex(const char *name, const unsigned char *bytes, int length)
{
    printf("%s=", name);
    for (int i = 0; i < length; i++)
        printf("%02x", bytes[i]);
    printf("\n");
}

/* Works in place and in two parts, as record layers do. Returns whether the tag, if any, was accepted. */
static int run(const EVP_CIPHER *cipher, int encrypting, unsigned char *data, int length, unsigned char *tag)
{
    static const unsigned char zeros[EVP_MAX_KEY_LENGTH];
    const int aead = (EVP_CIPHER_get_flags(cipher) & EVP_CIPH_FLAG_AEAD_CIPHER) != 0;
    const int first = aead ? length / 3 : length;
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    int done, accepted;

    require(context != NULL, "EVP_CIPHER_CTX_new");
    require(EVP_CipherInit_ex(context, cipher, NULL, NULL, NULL, encrypting), "choosing the cipher");
    if (aead)
        require(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_IVLEN, 12, NULL) == 1, "setting the nonce's length");
    require(EVP_CipherInit_ex(context, NULL, NULL, zeros, NULL, encrypting), "setting the key");
    require(EVP_CipherInit_ex(context, NULL, NULL, NULL, zeros, encrypting), "setting the nonce");
    require(EVP_CIPHER_CTX_set_padding(context, 0), "switching padding off");
    if (aead && !encrypting)
        require(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, TAG_BYTES, tag) == 1, "setting the tag");
    if (aead)
        require(EVP_CipherUpdate(context, NULL, &done, zeros, AAD_BYTES) && done == AAD_BYTES, "additional data");
    require(EVP_CipherUpdate(context, data, &done, data, first) && done == first, "the first part");
    require(EVP_CipherUpdate(context, data + first, &done, data + first, length - first) && done == length - first,
            "the second part");
    accepted = EVP_CipherFinal_ex(context, data + length, &done);
    if (aead && encrypting)
        require(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, TAG_BYTES, tag) == 1, "getting the tag");
    EVP_CIPHER_CTX_free(context);
    return accepted;
}

int main(int argc, char **argv)
{
    static unsigned char data[MOST_BYTES + EVP_MAX_BLOCK_LENGTH];
    unsigned char tag[TAG_BYTES] = {0}, random[32];
    EVP_CIPHER *cipher;
    EVP_RAND_CTX *generator;
    int length, accepted;

    require(argc == 3, "the command line");
    length = atoi(argv[2]);
    require(length >= 0 && length <= MOST_BYTES, "the length");
    cipher = EVP_CIPHER_fetch(NULL, argv[1], NULL);
    require(cipher != NULL, "fetching the cipher");
    printf("provider=%s\n", OSSL_PROVIDER_get0_name(EVP_CIPHER_get0_provider(cipher)));
    generator = RAND_get0_public(NULL);
    require(generator != NULL, "the random number generator");
    printf("generator=%s\n", OSSL_PROVIDER_get0_name(EVP_RAND_get0_provider(EVP_RAND_CTX_get0_rand(generator))));
    require(RAND_bytes(random, sizeof(random)) == 1, "random bytes");
    print_hex("random", random, sizeof(random));

    run(cipher, 1, data, length, tag);
    print_hex("ciphertext", data, length);
    print_hex("tag", tag, TAG_BYTES);
    accepted = run(cipher, 0, data, length, tag);
    print_hex("decrypted", data, length);
    printf("right_tag=%s\n", accepted ? "accepted" : "refused");
    tag[0] ^= 1;
    run(cipher, 1, data, length, (unsigned char[TAG_BYTES]){0});
    printf("wrong_tag=%s\n", run(cipher, 0, data, length, tag) ? "accepted" : "refused");
    EVP_CIPHER_free(cipher);
    return 0;
}
