/*
 * A handshake with OpenSSL's QUIC that offers several groups, which the endpoint's client does not do, and has a key
 * share of the first one: openssl_quic_client IP PORT GROUPS. Prints the negotiated group.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#include <openssl/quic.h>
#include <openssl/ssl.h>

int main(int argc, char **argv)
{
    static const unsigned char alpn[] = "\x0ahq-interop";
    struct in_addr ip;
    BIO_ADDR *address = BIO_ADDR_new();
    SSL_CTX *context = SSL_CTX_new(OSSL_QUIC_client_method());
    const int fd = socket(AF_INET, SOCK_DGRAM, 0);
    SSL *ssl;

    if (argc != 4 || inet_pton(AF_INET, argv[1], &ip) != 1 || address == NULL || context == NULL || fd < 0
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
    SSL_shutdown_ex(ssl, SSL_SHUTDOWN_FLAG_RAPID, NULL, 0);
    return 0;
}
