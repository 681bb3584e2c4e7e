/*
 * What the endpoint's client does not do with OpenSSL's QUIC: openssl_quic_client IP PORT GROUPS [BYTES]
 *
 * A handshake that offers several groups and has a key share of the first one. Prints the negotiated group. With BYTES it
 * then updates its keys (RFC 9001, section 6), downloads so many and prints how many came.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <openssl/quic.h>
#include <openssl/ssl.h>

/* OpenSSL takes the update once the handshake is confirmed. */
static int update_keys(SSL *ssl)
{
    for (int tries = 0; tries < 1000; tries++) {
        if (SSL_key_update(ssl, SSL_KEY_UPDATE_REQUESTED) == 1)
            return 1;
        usleep(10000);
        SSL_handle_events(ssl);
    }
    return 0;
}

static size_t download(SSL *ssl, const char *bytes)
{
    char request[64], buffer[16384];
    size_t length, received = 0;

    snprintf(request, sizeof(request), "GET /%s\r\n", bytes);
    if (SSL_write_ex2(ssl, request, strlen(request), SSL_WRITE_FLAG_CONCLUDE, &length) != 1)
        return 0;
    while (SSL_read_ex(ssl, buffer, sizeof(buffer), &length) == 1)
        received += length;
    return received;
}

int main(int argc, char **argv)
{
    static const unsigned char alpn[] = "\x0ahq-interop";
    struct in_addr ip;
    BIO_ADDR *address = BIO_ADDR_new();
    SSL_CTX *context = SSL_CTX_new(OSSL_QUIC_client_method());
    const int fd = socket(AF_INET, SOCK_DGRAM, 0);
    SSL *ssl;

    if (argc < 4 || argc > 5 || inet_pton(AF_INET, argv[1], &ip) != 1 || address == NULL || context == NULL || fd < 0
        || SSL_CTX_set1_groups_list(context, argv[3]) != 1)
        return 2;
    BIO_ADDR_rawmake(address, AF_INET, &ip, sizeof(ip), htons((unsigned short)atoi(argv[2])));
    ssl = SSL_new(context);
    SSL_set_alpn_protos(ssl, alpn, sizeof(alpn) - 1);
    SSL_set_bio(ssl, BIO_new_dgram(fd, BIO_CLOSE), NULL);
    SSL_set0_wbio(ssl, BIO_new_dgram(fd, BIO_NOCLOSE));
    SSL_set1_initial_peer_addr(ssl, address);
    if (SSL_connect(ssl) != 1)
        return 1;
    puts(SSL_get0_group_name(ssl));
    if (argc == 5) {
        if (!update_keys(ssl))
            return 1;
        printf("%zu\n", download(ssl, argv[4]));
    }
    SSL_shutdown_ex(ssl, SSL_SHUTDOWN_FLAG_RAPID, NULL, 0);
    return 0;
}
