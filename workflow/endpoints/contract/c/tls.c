/* What the programs share whatever their TLS library is. */
#include "tls.h"

#include <string.h>

#include <openssl/ssl.h>

static const char *known(const char *text)
{
    return text[0] == '\0' ? NULL : text;
}

void write_negotiated(const struct negotiated *negotiated)
{
    event_string("cipher", known(negotiated->cipher));
    event_string("group", known(negotiated->group));
    event_string("signature", known(negotiated->signature));
    event_string("alpn", known(negotiated->alpn));
    event_string("tls_version", known(negotiated->tls_version));
}

void contradiction(const struct negotiated *negotiated, const struct options *options, char *error, size_t room)
{
    const bool has_group = !negotiated->resumed || !options->tls12;
    const char *const pairs[][2] = {
        {negotiated->cipher, wanted_suite(options)},
        {negotiated->group, has_group ? options->group->tls_name : ""},
        {negotiated->signature, negotiated->resumed ? "" : options->signature->tls_name},
        {negotiated->tls_version, options->tls12 ? "TLSv1.2" : "TLSv1.3"},
        {negotiated->alpn, options->page_count > 0 ? library.page_alpn : negotiated->alpn},
    };

    for (size_t i = 0; i < COUNT(pairs); i++)
        if (strcmp(pairs[i][0], pairs[i][1]) != 0) {
            snprintf(error, room, "negotiated %s instead of %s", pairs[i][0], pairs[i][1]);
            return;
        }
}

bool is_hello_retry_request(int type, const void *data, size_t length)
{
    /* RFC 8446, 4.1.3: a ServerHello with the SHA-256 of "HelloRetryRequest" as its random value */
    static const unsigned char random[] = {
        0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91,
        0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
    };
    const size_t offset = 1 + 3 + 2; /* after type, length and legacy_version */
    const unsigned char *message = data;

    return type == SSL3_RT_HANDSHAKE && length >= offset + sizeof(random) && message[0] == SSL3_MT_SERVER_HELLO
           && memcmp(message + offset, random, sizeof(random)) == 0;
}

void describe_alert(char *text, size_t room, int alert, bool sent)
{
    snprintf(text, room, "%s TLS alert %d (%s)", sent ? "sent" : "received", alert, SSL_alert_desc_string_long(alert));
}
