/*
 * The structures of keys in DER (X.690):
 *
 *   SubjectPublicKeyInfo  SEQUENCE { SEQUENCE { oid }, BIT STRING { public key } }                        RFC 5280, 4.1
 *   PrivateKeyInfo        SEQUENCE { INTEGER 0, SEQUENCE { oid }, OCTET STRING { OCTET STRING {
 *                             private key, public key } } }                                               RFC 5208, 5
 *
 * The algorithm identifier has no parameters. The private key followed by the public key is the format that the
 * liboqs project published for these object identifiers.
 */
#include "provider.h"

#include <string.h>

#include <openssl/crypto.h>

enum { TAG_INTEGER = 0x02, TAG_BIT_STRING = 0x03, TAG_OCTET_STRING = 0x04, TAG_SEQUENCE = 0x30, TAG_ATTRIBUTES = 0xa0 };

/* ---- writing ---- */

static size_t length_bytes(size_t content)
{
    size_t bytes = 1;

    if (content >= 0x80)
        for (; content != 0; content >>= 8)
            bytes++;
    return bytes;
}

static size_t element_bytes(size_t content)
{
    return 1 + length_bytes(content) + content;
}

/* Writes tag and length; returns where the content goes. */
static uint8_t *put_header(uint8_t *out, uint8_t tag, size_t content)
{
    size_t octets = length_bytes(content) - 1;

    *out++ = tag;
    if (octets == 0) {
        *out++ = (uint8_t)content;
        return out;
    }
    *out++ = (uint8_t)(0x80 | octets);
    while (octets-- > 0)
        *out++ = (uint8_t)(content >> (8 * octets));
    return out;
}

static uint8_t *put(uint8_t *out, const uint8_t *data, size_t bytes)
{
    memcpy(out, data, bytes);
    return out + bytes;
}

static uint8_t *put_algorithm(uint8_t *out, const struct algorithm *algorithm)
{
    return put(put_header(out, TAG_SEQUENCE, algorithm->oid_der_bytes), algorithm->oid_der, algorithm->oid_der_bytes);
}

uint8_t *der_algorithm_identifier(const struct algorithm *algorithm, size_t *bytes)
{
    uint8_t *der;

    *bytes = element_bytes(algorithm->oid_der_bytes);
    der = OPENSSL_malloc(*bytes);
    if (der != NULL)
        put_algorithm(der, algorithm);
    return der;
}

uint8_t *der_public_key_info(const struct key *key, size_t *bytes)
{
    const struct algorithm *algorithm = key->algorithm;
    size_t bits = 1 + algorithm->public_key_bytes;
    size_t content = element_bytes(algorithm->oid_der_bytes) + element_bytes(bits);
    uint8_t *der, *out;

    *bytes = element_bytes(content);
    der = OPENSSL_malloc(*bytes);
    if (der == NULL)
        return NULL;
    out = put_algorithm(put_header(der, TAG_SEQUENCE, content), algorithm);
    out = put_header(out, TAG_BIT_STRING, bits);
    *out++ = 0; /* unused bits */
    put(out, key->public_key, algorithm->public_key_bytes);
    return der;
}

uint8_t *der_private_key_info(const struct key *key, size_t *bytes)
{
    static const uint8_t version[] = {TAG_INTEGER, 1, 0};
    const struct algorithm *algorithm = key->algorithm;
    size_t both = algorithm->secret_key_bytes + algorithm->public_key_bytes;
    size_t inner = element_bytes(both);
    size_t content = sizeof(version) + element_bytes(algorithm->oid_der_bytes) + element_bytes(inner);
    uint8_t *der, *out;

    *bytes = element_bytes(content);
    der = OPENSSL_malloc(*bytes);
    if (der == NULL)
        return NULL;
    out = put(put_header(der, TAG_SEQUENCE, content), version, sizeof(version));
    out = put_algorithm(out, algorithm);
    out = put_header(put_header(out, TAG_OCTET_STRING, inner), TAG_OCTET_STRING, both);
    out = put(out, key->secret_key, algorithm->secret_key_bytes);
    put(out, key->public_key, algorithm->public_key_bytes);
    return der;
}

/* ---- reading ---- */

struct input {
    const uint8_t *data;
    size_t bytes;
};

/* Takes an element with this tag off the input; false leaves the input as it is. */
static bool take(struct input *in, uint8_t tag, struct input *content)
{
    size_t header = 2, length;

    if (in->bytes < 2 || in->data[0] != tag)
        return false;
    length = in->data[1];
    if (length >= 0x80) {
        size_t octets = length & 0x7f;

        if (octets == 0 || octets > 4 || in->bytes < 2 + octets)
            return false;
        length = 0;
        for (size_t i = 0; i < octets; i++)
            length = length << 8 | in->data[2 + i];
        header += octets;
        if (header != 1 + length_bytes(length))
            return false; /* not the shortest form */
    }
    if (length > in->bytes - header)
        return false;
    content->data = in->data + header;
    content->bytes = length;
    in->data += header + length;
    in->bytes -= header + length;
    return true;
}

/* Whether the algorithm identifier taken off is the key's. */
static bool take_algorithm(struct input *in, const struct algorithm *algorithm)
{
    struct input identifier;

    return take(in, TAG_SEQUENCE, &identifier) && identifier.bytes >= algorithm->oid_der_bytes &&
           memcmp(identifier.data, algorithm->oid_der, algorithm->oid_der_bytes) == 0;
}

enum der_result der_read_public_key_info(struct key *key, const uint8_t *der, size_t bytes)
{
    struct input all = {der, bytes}, in, bits;

    if (!take(&all, TAG_SEQUENCE, &in) || !take_algorithm(&in, key->algorithm))
        return DER_FOREIGN;
    if (all.bytes != 0 || !take(&in, TAG_BIT_STRING, &bits) || in.bytes != 0 || bits.bytes < 1 || bits.data[0] != 0)
        return DER_MALFORMED;
    return key_set_public(key, bits.data + 1, bits.bytes - 1) ? DER_KEY : DER_MALFORMED;
}

enum der_result der_read_private_key_info(struct key *key, const uint8_t *der, size_t bytes)
{
    const struct algorithm *algorithm = key->algorithm;
    struct input all = {der, bytes}, in, version, outer, both, attributes;
    size_t secret_bytes;

    if (!take(&all, TAG_SEQUENCE, &in) || !take(&in, TAG_INTEGER, &version) || !take_algorithm(&in, algorithm))
        return DER_FOREIGN;
    if (all.bytes != 0 || version.bytes != 1 || version.data[0] != 0 || !take(&in, TAG_OCTET_STRING, &outer) ||
        !take(&outer, TAG_OCTET_STRING, &both) || outer.bytes != 0)
        return DER_MALFORMED;
    take(&in, TAG_ATTRIBUTES, &attributes);
    if (in.bytes != 0 || both.bytes < algorithm->secret_key_bytes)
        return DER_MALFORMED;
    secret_bytes = algorithm->secret_key_bytes;
    return key_set_secret(key, both.data, secret_bytes) &&
                   key_set_public(key, both.data + secret_bytes, both.bytes - secret_bytes)
               ? DER_KEY
               : DER_MALFORMED;
}
