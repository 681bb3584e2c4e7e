/* What client and server of bare UDP share. */
#define _GNU_SOURCE
#include "bare.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/udp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <openssl/evp.h>

/* ---- set-up ---- */

static union address make_address(const char *ip, int port, socklen_t *length)
{
    union address address;

    memset(&address, 0, sizeof(address));
    if (strchr(ip, ':') != NULL) {
        address.v6.sin6_family = AF_INET6;
        address.v6.sin6_port = htons((uint16_t)port);
        inet_pton(AF_INET6, ip, &address.v6.sin6_addr);
        *length = sizeof(address.v6);
    } else {
        address.v4.sin_family = AF_INET;
        address.v4.sin_port = htons((uint16_t)port);
        inet_pton(AF_INET, ip, &address.v4.sin_addr);
        *length = sizeof(address.v4);
    }
    return address;
}

static int open_udp(const struct options *options, const char **reason)
{
    const int on = 1;
    socklen_t length;
    const union address address = make_address(options->address, options->port, &length);
    const int fd = socket(address.any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0) {
        *reason = strerror(errno);
        return -1;
    }
    *reason = configure_buffers(options, fd);
    if (*reason == NULL
        && (setsockopt(fd, IPPROTO_UDP, UDP_GRO, &on, sizeof(on)) != 0
            || (options->role == CLIENT ? connect(fd, &address.any, length) : bind(fd, &address.any, length)) != 0))
        *reason = strerror(errno);
    if (*reason != NULL) {
        close(fd);
        return -1;
    }
    return fd;
}

int begin(struct options *options, enum role role, int argc, char **argv)
{
    const char *reason;
    bool noenc;
    int fd;

    parse_options(options, role, argc, argv);
    if (options->receive_buffer == UNKNOWN)
        options->receive_buffer = options->send_buffer = BUFFER;
    events_open(options->events);
    /* what no library over TLS can leave out */
    noenc = options->noenc;
    options->noenc = false;
    reason = unsupported_reason(options);
    options->noenc = noenc;
    fd = reason != NULL ? -1 : open_udp(options, &reason);
    event_start(options, fd, NULL);
    if (fd < 0)
        return -1 - give_up("unsupported", EXIT_UNSUPPORTED, reason);
    reason = start_openssl(NULL);
    if (reason != NULL)
        return -1 - give_up("error", EXIT_FAILED, reason);
    return fd;
}

/* ---- datagrams ---- */

const char *protect(struct protection *protection, const struct options *options, bool from_server, bool sends)
{
    static const unsigned char key[EVP_MAX_KEY_LENGTH] = "a key that everybody knows";
    EVP_CIPHER *cipher;
    bool made;

    *protection = (struct protection){.from_server = from_server};
    if (options->noenc)
        return NULL;
    cipher = EVP_CIPHER_fetch(NULL, options->cipher->openssl, NULL);
    protection->context = EVP_CIPHER_CTX_new();
    made = cipher != NULL && protection->context != NULL
           && EVP_CipherInit_ex2(protection->context, cipher, key, NULL, sends, NULL) == 1;
    EVP_CIPHER_free(cipher);
    return made ? NULL : openssl_error("OpenSSL has no such AEAD");
}

size_t overhead(const struct protection *protection)
{
    return protection->context == NULL ? HEADER : HEADER + TAG;
}

uint64_t read_number(const unsigned char *data)
{
    uint64_t number = 0;

    for (int i = 0; i < HEADER; i++)
        number = number << 8 | data[i];
    return number;
}

void write_number(unsigned char *out, uint64_t number)
{
    for (int i = HEADER - 1; i >= 0; i--, number >>= 8)
        out[i] = (unsigned char)number;
}

/* Begins a datagram: its nonce (RFC 5116, 3.2), which is its direction and its number, and its header as what is bound. */
static bool begin_datagram(struct protection *protection, const unsigned char *header)
{
    unsigned char nonce[12] = {protection->from_server};
    int done;

    memcpy(nonce + sizeof(nonce) - HEADER, header, HEADER);
    return EVP_CipherInit_ex2(protection->context, NULL, NULL, nonce, -1, NULL) == 1
           && EVP_CipherUpdate(protection->context, NULL, &done, header, HEADER) == 1;
}

size_t seal(struct protection *protection, unsigned char *out, uint64_t number, const void *body, size_t length)
{
    unsigned char *sealed = out + HEADER;
    int done;

    write_number(out, number);
    if (protection->context == NULL) {
        memcpy(sealed, body, length);
        return HEADER + length;
    }
    if (!begin_datagram(protection, out)
        || EVP_CipherUpdate(protection->context, sealed, &done, body, (int)length) != 1
        || EVP_CipherFinal_ex(protection->context, sealed + done, &done) != 1
        || EVP_CIPHER_CTX_ctrl(protection->context, EVP_CTRL_AEAD_GET_TAG, TAG, sealed + length) != 1)
        return 0;
    return HEADER + length + TAG;
}

unsigned char *open_datagram(struct protection *protection, unsigned char *data, size_t length, uint64_t *number,
                             size_t *body_length)
{
    unsigned char *body = data + HEADER;
    int done;

    if (length < overhead(protection))
        return NULL;
    *body_length = length - overhead(protection);
    *number = read_number(data);
    if (protection->context == NULL)
        return body;
    if (!begin_datagram(protection, data)
        || EVP_CipherUpdate(protection->context, body, &done, body, (int)*body_length) != 1
        || EVP_CIPHER_CTX_ctrl(protection->context, EVP_CTRL_AEAD_SET_TAG, TAG, body + *body_length) != 1
        || EVP_CipherFinal_ex(protection->context, body + done, &done) != 1)
        return NULL;
    return body;
}

ssize_t receive(int fd, unsigned char *buffer, union address *from, socklen_t *from_length, size_t *segment)
{
    struct iovec part = {.iov_base = buffer, .iov_len = LARGEST};
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message = {
        .msg_name = from,
        .msg_namelen = from == NULL ? 0 : sizeof(*from),
        .msg_iov = &part,
        .msg_iovlen = 1,
        .msg_control = &control,
        .msg_controllen = sizeof(control),
    };
    const ssize_t length = recvmsg(fd, &message, 0);
    int size;

    *segment = length > 0 ? (size_t)length : 0;
    if (from_length != NULL)
        *from_length = message.msg_namelen;
    for (struct cmsghdr *one = CMSG_FIRSTHDR(&message); length > 0 && one != NULL; one = CMSG_NXTHDR(&message, one))
        if (one->cmsg_level == IPPROTO_UDP && one->cmsg_type == UDP_GRO) {
            memcpy(&size, CMSG_DATA(one), sizeof(size));
            *segment = size > 0 ? (size_t)size : *segment;
        }
    return length;
}

/* ---- events ---- */

void write_common(const struct options *options, int64_t t_close, int64_t sent, int64_t received)
{
    static const char *const unknown[] = {
        "t_handshake_complete",    "t_handshake_confirmed",      "hello_retry_request",  "retry",
        "group",                   "signature",                  "alpn",                 "tls_version",
        "header_protection",       "handshake_packets_sent",     "handshake_bytes_sent", "packets_lost",
        "handshake_packets_received", "handshake_bytes_received",
    };

    for (size_t i = 0; i < COUNT(unknown); i++)
        event_string(unknown[i], NULL);
    event_integer("t_close", t_close);
    event_string("cipher", options->noenc ? NULL : options->cipher->iana);
    event_string("aead", options->noenc ? "noenc" : "standard");
    event_integer("packets_sent", sent);
    event_integer("packets_received", received);
}

void write_cpu(const struct rusage *before, const struct rusage *after)
{
    event_integer("cpu_user_ns", after == NULL ? UNKNOWN : user_ns(after) - user_ns(before));
    event_integer("cpu_system_ns", after == NULL ? UNKNOWN : system_ns(after) - system_ns(before));
}
