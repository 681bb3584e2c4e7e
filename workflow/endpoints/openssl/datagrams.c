/* Datagrams between OpenSSL's QUIC and a UDP socket. */
#define _GNU_SOURCE
#include "datagrams.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/udp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <openssl/err.h>

enum {
    BATCH = 32,         /* datagrams that OpenSSL sends or receives in one call */
    LARGEST_UDP = 65535,
    PEER_SLOTS = 1024,
    PROBES = 8,
};

union address make_address(const char *ip, int port, socklen_t *length)
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

/* ---- peers ---- */

static bool same_address(const union address *a, const union address *b)
{
    if (a->any.sa_family != b->any.sa_family)
        return false;
    if (a->any.sa_family == AF_INET6)
        return a->v6.sin6_port == b->v6.sin6_port
               && memcmp(&a->v6.sin6_addr, &b->v6.sin6_addr, sizeof(a->v6.sin6_addr)) == 0;
    return a->v4.sin_port == b->v4.sin_port && a->v4.sin_addr.s_addr == b->v4.sin_addr.s_addr;
}

static void peer_reset(struct peer *peer, const union address *address)
{
    *peer = (struct peer){
        .used = true,
        .address = *address,
        .t_first_sent = UNKNOWN,
        .t_first_received = UNKNOWN,
    };
    getrusage(RUSAGE_SELF, &peer->usage_first);
}

/* The peer of an address. If it is new, NULL or, if it is to be added, one that takes an unbound one's place. */
static struct peer *find_peer(struct datagrams *datagrams, const union address *address, bool add)
{
    /* Both members have the port at the same place. */
    const size_t start = ntohs(address->v4.sin_port);
    struct peer *free_slot = NULL;

    for (size_t i = 0; i < PROBES; i++) {
        struct peer *peer = &datagrams->peers[(start + i) % datagrams->peer_slots];

        if (peer->used && same_address(&peer->address, address))
            return peer;
        if (!peer->bound && (free_slot == NULL || (free_slot->used && !peer->used)))
            free_slot = peer;
    }
    if (!add || free_slot == NULL)
        return NULL;
    peer_reset(free_slot, address);
    return free_slot;
}

struct peer *datagrams_server(struct datagrams *datagrams)
{
    return &datagrams->peers[0];
}

void peer_bind(struct peer *peer)
{
    peer->bound = true;
}

void peer_release(struct peer *peer)
{
    peer->used = peer->bound = false;
}

/* ---- counting ---- */

/* Reads a variable-length integer (RFC 9000, 16); false at the end of the datagram. */
static bool read_varint(const unsigned char *data, size_t length, size_t *at, uint64_t *value)
{
    size_t bytes;

    if (*at >= length)
        return false;
    bytes = (size_t)1 << (data[*at] >> 6);
    if (length - *at < bytes)
        return false;
    *value = data[(*at)++] & 0x3f;
    while (--bytes > 0)
        *value = *value << 8 | data[(*at)++];
    return true;
}

enum { FORM_LONG = 0x80, FIXED_BIT = 0x40, TYPE_INITIAL = 0, TYPE_RETRY = 3, LONGEST_ID = 20 };

/* Reads the fields of a long header that are in the clear (RFC 9000, 17.2); returns where the next packet begins. */
static size_t next_packet(const unsigned char *data, size_t length, size_t at, bool *retry)
{
    const int type = data[at] >> 4 & 3;
    uint64_t value;

    at += 1;
    if (length - at < 4 || memcmp(data + at, "\0\0\0\0", 4) == 0) /* Version Negotiation fills its datagram */
        return length;
    at += 4;
    for (int id = 0; id < 2; id++) {
        if (at >= length || data[at] > LONGEST_ID || length - at - 1 < data[at])
            return length;
        at += 1 + (size_t)data[at];
    }
    if (type == TYPE_RETRY) {
        *retry = true;
        return length;
    }
    if (type == TYPE_INITIAL) {
        if (!read_varint(data, length, &at, &value) || length - at < value)
            return length;
        at += (size_t)value;
    }
    if (!read_varint(data, length, &at, &value) || length - at < value)
        return length;
    return at + (size_t)value;
}

/* Number of QUIC packets in a datagram. */
static int64_t count_packets(const unsigned char *data, size_t length, bool *retry)
{
    int64_t packets = 0;

    for (size_t at = 0; at < length && (data[at] & FIXED_BIT) != 0;) {
        packets++;
        if ((data[at] & FORM_LONG) == 0) /* a packet with a short header is the last one */
            break;
        at = next_packet(data, length, at, retry);
    }
    return packets;
}

static void count_sent(struct peer *peer, const BIO_MSG *message)
{
    if (peer->t_first_sent == UNKNOWN)
        peer->t_first_sent = now_ns();
    peer->traffic.packets_sent += count_packets(message->data, message->data_len, &peer->retry);
    peer->traffic.bytes_sent += (int64_t)message->data_len;
}

/*
 * An address that begins anew, with another destination connection ID than before, is a new connection, unless a Retry
 * made it choose that ID.
 */
static void notice_beginning(struct peer *peer, const unsigned char *data, size_t length)
{
    const size_t id = 1 + 4; /* after the first byte and the version */

    if (peer->bound || length < id + 1 || (data[0] & (FORM_LONG | 0x30)) != FORM_LONG || data[id] > LONGEST_ID
        || length - id - 1 < data[id])
        return;
    if (peer->first_id_length > 0 && !peer->retry
        && (peer->first_id_length != data[id] || memcmp(peer->first_id, data + id + 1, data[id]) != 0)) {
        const union address address = peer->address;
        peer_reset(peer, &address);
    }
    if (peer->first_id_length == 0) {
        peer->first_id_length = data[id];
        memcpy(peer->first_id, data + id + 1, data[id]);
    }
}

static void count_received(struct datagrams *datagrams, const union address *from, const BIO_MSG *message)
{
    const unsigned char *data = message->data;
    struct peer *peer;

    if (message->data_len == 0)
        return;
    peer = datagrams->server ? find_peer(datagrams, from, (data[0] & FORM_LONG) != 0) : datagrams_server(datagrams);
    if (peer == NULL)
        return;
    if (datagrams->server)
        notice_beginning(peer, data, message->data_len);
    if (peer->t_first_received == UNKNOWN)
        peer->t_first_received = now_ns();
    peer->traffic.packets_received += count_packets(data, message->data_len, &peer->retry);
    peer->traffic.bytes_received += (int64_t)message->data_len;
}

/* ---- addresses of OpenSSL ---- */

static socklen_t from_bio(const BIO_ADDR *from, union address *to)
{
    size_t length = sizeof(to->v6.sin6_addr);

    memset(to, 0, sizeof(*to));
    if (BIO_ADDR_family(from) == AF_INET6) {
        to->v6.sin6_family = AF_INET6;
        to->v6.sin6_port = BIO_ADDR_rawport(from);
        BIO_ADDR_rawaddress(from, &to->v6.sin6_addr, &length);
        return sizeof(to->v6);
    }
    to->v4.sin_family = AF_INET;
    to->v4.sin_port = BIO_ADDR_rawport(from);
    BIO_ADDR_rawaddress(from, &to->v4.sin_addr, &length);
    return sizeof(to->v4);
}

static void to_bio(const union address *from, BIO_ADDR *to)
{
    if (to == NULL)
        return;
    if (from->any.sa_family == AF_INET6)
        BIO_ADDR_rawmake(to, AF_INET6, &from->v6.sin6_addr, sizeof(from->v6.sin6_addr), from->v6.sin6_port);
    else
        BIO_ADDR_rawmake(to, AF_INET, &from->v4.sin_addr, sizeof(from->v4.sin_addr), from->v4.sin_port);
}

/* ---- sending ---- */

static BIO_MSG *message_at(BIO_MSG *messages, size_t stride, size_t index)
{
    return (BIO_MSG *)((char *)messages + index * stride);
}

/* Sends `count` datagrams, all as long as the first but for a shorter last one, in one piece. */
static bool send_segmented(struct datagrams *datagrams, struct iovec *pieces, size_t count, union address *to,
                           socklen_t to_length)
{
    union {
        char bytes[CMSG_SPACE(sizeof(uint16_t))];
        struct cmsghdr aligned;
    } control;
    struct msghdr header = {.msg_iov = pieces, .msg_iovlen = count, .msg_name = to, .msg_namelen = to_length};

    if (count > 1) {
        struct cmsghdr *segment;
        const uint16_t size = (uint16_t)pieces[0].iov_len;

        memset(&control, 0, sizeof(control));
        header.msg_control = control.bytes;
        header.msg_controllen = sizeof(control.bytes);
        segment = CMSG_FIRSTHDR(&header);
        segment->cmsg_level = SOL_UDP;
        segment->cmsg_type = UDP_SEGMENT;
        segment->cmsg_len = CMSG_LEN(sizeof(size));
        memcpy(CMSG_DATA(segment), &size, sizeof(size));
    }
    return sendmsg(datagrams->fd, &header, 0) >= 0;
}

static int send_messages(BIO *bio, BIO_MSG *messages, size_t stride, size_t count, uint64_t flags, size_t *processed)
{
    struct datagrams *datagrams = BIO_get_data(bio);
    struct iovec pieces[BATCH];
    struct mmsghdr headers[BATCH];
    union address to;
    socklen_t to_length;
    struct peer *peer;
    size_t done = 0;

    (void)flags;
    *processed = 0;
    if (count == 0)
        return 1;
    if (count > BATCH)
        count = BATCH;
    /* OpenSSL sends the datagrams of one connection at a time, which go to one address. */
    if (datagrams->server && messages->peer != NULL) {
        to_length = from_bio(messages->peer, &to);
        peer = find_peer(datagrams, &to, false);
    } else {
        to_length = 0;
        peer = datagrams->server ? NULL : datagrams_server(datagrams);
    }
    for (size_t i = 0; i < count; i++) {
        const BIO_MSG *message = message_at(messages, stride, i);
        pieces[i] = (struct iovec){.iov_base = message->data, .iov_len = message->data_len};
    }
    /* The times are taken before, the rest of the counts after the system has accepted the datagrams. */
    if (peer != NULL && peer->t_first_sent == UNKNOWN) {
        if (!datagrams->server)
            getrusage(RUSAGE_SELF, &peer->usage_first);
        peer->t_first_sent = now_ns();
    }
    if (datagrams->gso) {
        while (done < count) {
            size_t run = 1;

            while (done + run < count && pieces[done + run].iov_len <= pieces[done].iov_len
                   && pieces[done + run - 1].iov_len == pieces[done].iov_len)
                run++;
            if (!send_segmented(datagrams, pieces + done, run, to_length > 0 ? &to : NULL, to_length))
                break;
            done += run;
        }
    } else {
        int sent;

        memset(headers, 0, count * sizeof(headers[0]));
        for (size_t i = 0; i < count; i++)
            headers[i].msg_hdr = (struct msghdr){
                .msg_iov = &pieces[i],
                .msg_iovlen = 1,
                .msg_name = to_length > 0 ? &to : NULL,
                .msg_namelen = to_length,
            };
        sent = sendmmsg(datagrams->fd, headers, (unsigned int)count, 0);
        done = sent < 0 ? 0 : (size_t)sent;
    }
    if (done == 0) {
        ERR_raise(ERR_LIB_SYS, errno);
        return 0;
    }
    if (peer != NULL)
        for (size_t i = 0; i < done; i++)
            count_sent(peer, message_at(messages, stride, i));
    datagrams->last_sent_to = peer;
    *processed = done;
    return 1;
}

/* ---- receiving ---- */

/* Hands over the next datagrams of a batch that UDP_GRO brought. */
static size_t take_segments(struct datagrams *datagrams, BIO_MSG *messages, size_t stride, size_t count)
{
    size_t taken = 0;

    while (taken < count && datagrams->batch_at < datagrams->batch_length) {
        BIO_MSG *message = message_at(messages, stride, taken);
        const size_t rest = datagrams->batch_length - datagrams->batch_at;
        const size_t length = rest < datagrams->segment ? rest : datagrams->segment;

        if (length <= message->data_len) { /* else longer than any that QUIC said it takes */
            memcpy(message->data, datagrams->batch + datagrams->batch_at, length);
            message->data_len = length;
            message->flags = 0;
            to_bio(&datagrams->batch_from, message->peer);
            count_received(datagrams, &datagrams->batch_from, message);
            taken++;
        }
        datagrams->batch_at += length;
    }
    return taken;
}

static bool receive_batch(struct datagrams *datagrams)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr aligned;
    } control;
    struct iovec piece = {.iov_base = datagrams->batch, .iov_len = LARGEST_UDP};
    struct msghdr header = {
        .msg_iov = &piece,
        .msg_iovlen = 1,
        .msg_name = &datagrams->batch_from,
        .msg_namelen = sizeof(datagrams->batch_from),
        .msg_control = control.bytes,
        .msg_controllen = sizeof(control.bytes),
    };
    const ssize_t length = recvmsg(datagrams->fd, &header, 0);

    if (length < 0)
        return false;
    datagrams->batch_at = 0;
    datagrams->batch_length = datagrams->segment = (size_t)length;
    for (struct cmsghdr *item = CMSG_FIRSTHDR(&header); item != NULL; item = CMSG_NXTHDR(&header, item))
        if (item->cmsg_level == SOL_UDP && item->cmsg_type == UDP_GRO) {
            int segment;

            memcpy(&segment, CMSG_DATA(item), sizeof(segment));
            datagrams->segment = (size_t)segment;
        }
    return true;
}

static int receive_messages(BIO *bio, BIO_MSG *messages, size_t stride, size_t count, uint64_t flags, size_t *processed)
{
    struct datagrams *datagrams = BIO_get_data(bio);
    size_t taken = 0;

    (void)flags;
    *processed = 0;
    if (count > BATCH)
        count = BATCH;
    if (datagrams->gro) {
        bool more = true;

        while (taken < count && more) {
            taken += take_segments(datagrams, message_at(messages, stride, taken), stride, count - taken);
            more = taken < count && receive_batch(datagrams);
        }
    } else {
        struct mmsghdr headers[BATCH];
        struct iovec pieces[BATCH];
        union address from[BATCH];
        int received;

        memset(headers, 0, count * sizeof(headers[0]));
        for (size_t i = 0; i < count; i++) {
            const BIO_MSG *message = message_at(messages, stride, i);
            pieces[i] = (struct iovec){.iov_base = message->data, .iov_len = message->data_len};
            headers[i].msg_hdr = (struct msghdr){
                .msg_iov = &pieces[i],
                .msg_iovlen = 1,
                .msg_name = &from[i],
                .msg_namelen = sizeof(from[i]),
            };
        }
        received = recvmmsg(datagrams->fd, headers, (unsigned int)count, 0, NULL);
        taken = received < 0 ? 0 : (size_t)received;
        for (size_t i = 0; i < taken; i++) {
            BIO_MSG *message = message_at(messages, stride, i);
            message->data_len = headers[i].msg_len;
            message->flags = 0;
            to_bio(&from[i], message->peer);
            count_received(datagrams, &from[i], message);
        }
    }
    if (taken == 0) {
        ERR_raise(ERR_LIB_SYS, errno);
        return 0;
    }
    *processed = taken;
    return 1;
}

bool datagrams_pending(const struct datagrams *datagrams)
{
    return datagrams->batch_at < datagrams->batch_length;
}

/* ---- the BIO ---- */

static long control(BIO *bio, int command, long number, void *pointer)
{
    struct datagrams *datagrams = BIO_get_data(bio);

    (void)number;
    switch (command) {
    case BIO_CTRL_DGRAM_GET_CAPS:
    case BIO_CTRL_DGRAM_GET_EFFECTIVE_CAPS:
        return BIO_DGRAM_CAP_HANDLES_DST_ADDR | BIO_DGRAM_CAP_PROVIDES_SRC_ADDR;
    case BIO_CTRL_DGRAM_DETECT_PEER_ADDR:
        if (datagrams->server)
            return 0;
        to_bio(&datagrams->remote, pointer);
        return 1;
    case BIO_CTRL_GET_RPOLL_DESCRIPTOR:
    case BIO_CTRL_GET_WPOLL_DESCRIPTOR: {
        BIO_POLL_DESCRIPTOR *descriptor = pointer;

        descriptor->type = BIO_POLL_DESCRIPTOR_TYPE_SOCK_FD;
        descriptor->value.fd = datagrams->fd;
        return 1;
    }
    case BIO_CTRL_FLUSH:
    case BIO_C_SET_NBIO:
        return 1;
    default:
        return 0;
    }
}

BIO *datagrams_bio(struct datagrams *datagrams)
{
    static BIO_METHOD *method;
    BIO *bio;

    if (method == NULL) {
        method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "quicbed datagrams");
        if (method == NULL)
            return NULL;
        BIO_meth_set_ctrl(method, control);
        BIO_meth_set_sendmmsg(method, send_messages);
        BIO_meth_set_recvmmsg(method, receive_messages);
    }
    bio = BIO_new(method);
    if (bio != NULL) {
        BIO_set_data(bio, datagrams);
        BIO_set_init(bio, 1);
    }
    return bio;
}

const char *datagrams_open(struct datagrams *datagrams, int fd, const union address *remote, bool gso, bool gro)
{
    const int on = 1;

    *datagrams = (struct datagrams){
        .fd = fd,
        .server = remote == NULL,
        .gso = gso,
        .gro = gro,
        .peer_slots = remote == NULL ? PEER_SLOTS : 1,
    };
    if (gro && setsockopt(fd, SOL_UDP, UDP_GRO, &on, sizeof(on)) != 0)
        return "the kernel has no UDP generic receive offload; use --gro off";
    datagrams->peers = calloc(datagrams->peer_slots, sizeof(*datagrams->peers));
    datagrams->batch = gro ? malloc(LARGEST_UDP) : NULL;
    if (datagrams->peers == NULL || (gro && datagrams->batch == NULL))
        return "out of memory";
    if (remote != NULL) {
        datagrams->remote = *remote;
        peer_reset(datagrams_server(datagrams), remote);
    }
    return NULL;
}

void datagrams_close(struct datagrams *datagrams)
{
    free(datagrams->peers);
    free(datagrams->batch);
}
