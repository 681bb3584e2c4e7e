/*
 * Uses a group of the OpenSSL configuration in force through EVP, as libssl does:
 *
 *   provider_probe encapsulate GROUP    reads a public key; prints ciphertext and secret
 *   provider_probe decapsulate GROUP    reads public key, private key and ciphertext; prints the secret
 *   provider_probe exchange GROUP       prints the public key of a new key pair, reads a ciphertext; prints the secret
 *   provider_probe fork GROUP           makes a key, forks, makes a key in both processes; prints the three public keys
 *   provider_probe abuse GROUP          lengths and buffers that are wrong; prints what was wrongly accepted
 *
 * Input and output are lines of hexadecimal digits. Exit code 3, with OpenSSL's reason, if the provider refuses.
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/param_build.h>

enum { MOST_BYTES = 64 * 1024, REFUSED = 3 };

struct bytes {
    unsigned char *data;
    size_t length;
};

static void require(int ok, const char *what)
{
    if (ok > 0)
        return;
    fprintf(stderr, "%s: ", what);
    ERR_print_errors_fp(stderr);
    exit(REFUSED);
}

static struct bytes read_line(void)
{
    static char line[2 * MOST_BYTES + 2];
    struct bytes bytes = {malloc(MOST_BYTES), 0};

    require(bytes.data != NULL && fgets(line, sizeof(line), stdin) != NULL, "reading");
    line[strcspn(line, "\n")] = '\0';
    if (line[0] != '\0')
        require(OPENSSL_hexstr2buf_ex(bytes.data, MOST_BYTES, &bytes.length, line, '\0'), "reading");
    return bytes;
}

static void print(const unsigned char *data, size_t length)
{
    for (size_t i = 0; i < length; i++)
        printf("%02x", data[i]);
    printf("\n");
    fflush(stdout);
}

static EVP_PKEY *generate(const char *group)
{
    EVP_PKEY *key = EVP_PKEY_Q_keygen(NULL, NULL, group);

    require(key != NULL, "generating");
    return key;
}

/* As libssl reads a key share. */
static EVP_PKEY *public_key(const char *group, struct bytes encoded)
{
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new_from_name(NULL, group, NULL);
    EVP_PKEY *key = NULL;

    require(context != NULL && EVP_PKEY_paramgen_init(context) > 0, "the group");
    require(EVP_PKEY_CTX_set_group_name(context, group), "naming the group");
    require(EVP_PKEY_paramgen(context, &key), "parameters");
    require(EVP_PKEY_set1_encoded_public_key(key, encoded.data, encoded.length), "reading the public key");
    EVP_PKEY_CTX_free(context);
    return key;
}

static EVP_PKEY *key_pair(const char *group, struct bytes public, struct bytes private)
{
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new_from_name(NULL, group, NULL);
    OSSL_PARAM params[] = {
        OSSL_PARAM_construct_octet_string(OSSL_PKEY_PARAM_PUB_KEY, public.data, public.length),
        OSSL_PARAM_construct_octet_string(OSSL_PKEY_PARAM_PRIV_KEY, private.data, private.length),
        OSSL_PARAM_construct_end(),
    };
    EVP_PKEY *key = NULL;

    require(context != NULL && EVP_PKEY_fromdata_init(context) > 0, "the group");
    require(EVP_PKEY_fromdata(context, &key, EVP_PKEY_KEYPAIR, params), "reading the key pair");
    EVP_PKEY_CTX_free(context);
    return key;
}

/* Both allocate exactly what the provider asks for, so that a checker of memory notices one byte too many. */
static int encapsulate(EVP_PKEY *key, struct bytes *ciphertext, struct bytes *secret)
{
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new_from_pkey(NULL, key, NULL);
    int done = context != NULL && EVP_PKEY_encapsulate_init(context, NULL) > 0 &&
               EVP_PKEY_encapsulate(context, NULL, &ciphertext->length, NULL, &secret->length) > 0;

    if (done) {
        ciphertext->data = malloc(ciphertext->length);
        secret->data = malloc(secret->length);
        done = EVP_PKEY_encapsulate(context, ciphertext->data, &ciphertext->length, secret->data, &secret->length) > 0;
    }
    EVP_PKEY_CTX_free(context);
    return done;
}

static int decapsulate(EVP_PKEY *key, struct bytes ciphertext, struct bytes *secret)
{
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new_from_pkey(NULL, key, NULL);
    int done = context != NULL && EVP_PKEY_decapsulate_init(context, NULL) > 0 &&
               EVP_PKEY_decapsulate(context, NULL, &secret->length, ciphertext.data, ciphertext.length) > 0;

    if (done) {
        secret->data = malloc(secret->length);
        done = EVP_PKEY_decapsulate(context, secret->data, &secret->length, ciphertext.data, ciphertext.length) > 0;
        if (!done)
            free(secret->data);
    }
    EVP_PKEY_CTX_free(context);
    return done;
}

static EVP_PKEY *generate_and_print(const char *group)
{
    EVP_PKEY *key = generate(group);
    struct bytes public = {NULL, 0};

    public.length = EVP_PKEY_get1_encoded_public_key(key, &public.data);
    require(public.length > 0, "encoding the public key");
    print(public.data, public.length);
    OPENSSL_free(public.data);
    return key;
}

static void generate_in_two_processes(const char *group)
{
    int status = 1;
    pid_t child;

    EVP_PKEY_free(generate_and_print(group));
    child = fork();
    require(child >= 0, "fork");
    if (child > 0)
        require(waitpid(child, &status, 0) == child && status == 0, "the child");
    EVP_PKEY_free(generate_and_print(group));
}

static void abuse(const char *group)
{
    EVP_PKEY *key = generate(group);
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new_from_pkey(NULL, key, NULL);
    struct bytes ciphertext, secret, again, changed, encoded = {NULL, 0};
    size_t lengths[4], small;

    require(encapsulate(key, &ciphertext, &secret), "encapsulating");
    require(decapsulate(key, ciphertext, &again), "decapsulating");
    require(again.length == secret.length && memcmp(again.data, secret.data, secret.length) == 0, "the same secret");
    free(again.data);

    lengths[0] = 0;
    lengths[1] = 1;
    lengths[2] = ciphertext.length - 1;
    lengths[3] = ciphertext.length + 1;
    for (int i = 0; i < 4; i++) {
        changed = (struct bytes){calloc(1, lengths[i] + 1), lengths[i]};
        memcpy(changed.data, ciphertext.data, lengths[i] < ciphertext.length ? lengths[i] : ciphertext.length);
        if (decapsulate(key, changed, &again))
            printf("ciphertext of %zu instead of %zu bytes\n", lengths[i], ciphertext.length);
        free(changed.data);
    }

    /* The first bit is the form of a point or implicitly rejected; either way the secret is another one. */
    ciphertext.data[0] ^= 1;
    if (decapsulate(key, ciphertext, &again)) {
        if (memcmp(again.data, secret.data, secret.length) == 0)
            printf("first bit changed\n");
        free(again.data);
    }
    ciphertext.data[0] ^= 1;
    ciphertext.data[ciphertext.length / 2] ^= 0x10;
    if (decapsulate(key, ciphertext, &again)) {
        if (memcmp(again.data, secret.data, secret.length) == 0)
            printf("middle bit changed\n");
        free(again.data);
    }

    require(context != NULL && EVP_PKEY_encapsulate_init(context, NULL) > 0, "encapsulating");
    small = ciphertext.length - 1;
    if (EVP_PKEY_encapsulate(context, ciphertext.data, &small, secret.data, &secret.length) > 0)
        printf("room for a ciphertext too small\n");
    small = secret.length - 1;
    if (EVP_PKEY_encapsulate(context, ciphertext.data, &ciphertext.length, secret.data, &small) > 0)
        printf("room for a secret too small\n");

    encoded.length = EVP_PKEY_get1_encoded_public_key(key, &encoded.data);
    require(encoded.length > 0, "encoding the public key");
    for (size_t length = 0; length < encoded.length; length += 1 + encoded.length / 7)
        if (EVP_PKEY_set1_encoded_public_key(key, encoded.data, length) > 0)
            printf("public key of %zu instead of %zu bytes\n", length, encoded.length);
    OPENSSL_free(encoded.data);
    free(ciphertext.data);
    free(secret.data);
    EVP_PKEY_CTX_free(context);
    EVP_PKEY_free(key);
    ERR_clear_error();
}

int main(int argc, char **argv)
{
    const char *command, *group;
    struct bytes ciphertext, secret, public, private;
    EVP_PKEY *key;

    require(argc == 3, "the command line");
    command = argv[1];
    group = argv[2];
    if (strcmp(command, "encapsulate") == 0) {
        public = read_line();
        key = public_key(group, public);
        require(encapsulate(key, &ciphertext, &secret), "encapsulating");
        print(ciphertext.data, ciphertext.length);
        print(secret.data, secret.length);
    } else if (strcmp(command, "decapsulate") == 0) {
        public = read_line();
        private = read_line();
        ciphertext = read_line();
        key = key_pair(group, public, private);
        require(decapsulate(key, ciphertext, &secret), "decapsulating");
        print(secret.data, secret.length);
    } else if (strcmp(command, "exchange") == 0) {
        key = generate_and_print(group);
        ciphertext = read_line();
        require(decapsulate(key, ciphertext, &secret), "decapsulating");
        print(secret.data, secret.length);
    } else if (strcmp(command, "fork") == 0) {
        generate_in_two_processes(group);
    } else {
        require(strcmp(command, "abuse") == 0, "the command line");
        abuse(group);
    }
    return 0;
}
