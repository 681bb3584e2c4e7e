/*
 * Datagrams past the kernel's stack: an AF_XDP socket and rings that it shares with the kernel, for `--io af-xdp`. A
 * program of extended BPF at the interface hands the socket every IPv4 datagram to the port of the UDP socket, which
 * reserves the port and gets nothing. All else, ARP too, stays with the kernel. Headers and checksums are made and
 * verified here. The link addresses of a peer are those of the frames that come from it: until one has come, the
 * kernel sends.
 *
 * The program ends with the files of this process, so that nothing is left at the interface, however the process ends.
 */
#define _GNU_SOURCE
#include "io.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <linux/version.h>
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 9, 0)
#include <linux/bpf.h>
#include <linux/ethtool.h>
#include <linux/if_link.h>
#include <linux/if_xdp.h>
#include <linux/sockios.h>
#endif

/* Where this program's end of the link is told from, and what was begun there. */
static struct sockaddr_in told;
static bool is_peer;
static char reason[256];

void qp_choose_place(const struct sockaddr *address, bool peer)
{
    if (address->sa_family == AF_INET)
        memcpy(&told, address, sizeof told);
    is_peer = peer;
}

/* Programs whose place at an interface ends with a file. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 9, 0)

enum {
    FRAME = 2048,
    RING = 4096, /* of each of the four rings, and frames in either direction */
    QUEUE = 0,
    HEADERS = 14 + 20 + 8,
    TTL = 64,
    /* Room for all frames that a ring can have: what is sent in copy mode is charged to it. */
    SEND_BUFFER = RING * 4096,
    /* Frames with wrong checksums that a program is told of at once: an interface that sends makes none. */
    MANY_BAD = 4,
};

struct queue {
    uint32_t *producer, *consumer, *flags;
    void *entries;
    void *mapped;
    size_t length;
};

static struct {
    int fd, program, link, map;
    uint8_t *frames;
    struct queue fill, completion, receive, send;
    uint64_t free_frames[RING];
    unsigned int free_count;
    /* The frame whose datagram the program was given last. */
    bool given;
    uint64_t given_frame;
    struct sockaddr_in from;
    uint16_t port;
    /* Of the peer whose frames have come: its address, and the headers of frames to it. */
    bool known;
    uint32_t peer;
    uint8_t head[34];
    uint16_t identification;
    bool zero_copy, native;
    uint64_t bad_checksums;
} xdp = {.fd = -1, .program = -1, .link = -1, .map = -1};

static long bpf(int command, union bpf_attr *attributes)
{
    return syscall(SYS_bpf, command, attributes, sizeof *attributes);
}

/* ---- the program at the interface ---- */

#define OP(code_, dst, src, offset, value)                                                                             \
    (struct bpf_insn)                                                                                                  \
    {                                                                                                                  \
        .code = (code_), .dst_reg = (dst), .src_reg = (src), .off = (offset), .imm = (value)                           \
    }

enum {
    LOAD_BYTE = BPF_LDX | BPF_MEM | BPF_B,
    LOAD_HALF = BPF_LDX | BPF_MEM | BPF_H,
    LOAD_WORD = BPF_LDX | BPF_MEM | BPF_W,
    COPY = BPF_ALU64 | BPF_MOV | BPF_X,
    SET = BPF_ALU64 | BPF_MOV | BPF_K,
    ADD = BPF_ALU64 | BPF_ADD | BPF_K,
    AND = BPF_ALU64 | BPF_AND | BPF_K,
    IF_GREATER = BPF_JMP | BPF_JGT | BPF_X,
    UNLESS = BPF_JMP | BPF_JNE | BPF_K,
};

/* Loads the program: IPv4 without options and in one piece, UDP, the port; what is not goes on to the kernel. */
static int load_program(void)
{
    struct bpf_insn code[] = {
        OP(COPY, 6, 1, 0, 0),
        OP(LOAD_WORD, 2, 1, offsetof(struct xdp_md, data), 0),
        OP(LOAD_WORD, 3, 1, offsetof(struct xdp_md, data_end), 0),
        OP(COPY, 4, 2, 0, 0),
        OP(ADD, 4, 0, 0, HEADERS),
        OP(IF_GREATER, 4, 3, 0, 0),
        OP(LOAD_HALF, 4, 2, 12, 0),
        OP(UNLESS, 4, 0, 0, htons(0x0800)),
        OP(LOAD_BYTE, 4, 2, 14, 0),
        OP(UNLESS, 4, 0, 0, 0x45),
        OP(LOAD_HALF, 4, 2, 20, 0),
        OP(AND, 4, 0, 0, htons(0x3fff)), /* more fragments, and the place of this one */
        OP(UNLESS, 4, 0, 0, 0),
        OP(LOAD_BYTE, 4, 2, 23, 0),
        OP(UNLESS, 4, 0, 0, IPPROTO_UDP),
        OP(LOAD_HALF, 4, 2, 36, 0),
        OP(UNLESS, 4, 0, 0, xdp.port),
        OP(LOAD_WORD, 2, 6, offsetof(struct xdp_md, rx_queue_index), 0),
        OP(BPF_LD | BPF_DW | BPF_IMM, 1, BPF_PSEUDO_MAP_FD, 0, xdp.map),
        OP(0, 0, 0, 0, 0),
        OP(SET, 3, 0, 0, XDP_PASS),
        OP(BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_redirect_map),
        OP(BPF_JMP | BPF_EXIT, 0, 0, 0, 0),
        OP(SET, 0, 0, 0, XDP_PASS),
        OP(BPF_JMP | BPF_EXIT, 0, 0, 0, 0),
    };
    /* all jumps are to the last two */
    enum { PASS = sizeof code / sizeof *code - 2 };
    for (unsigned int i = 0; i < PASS; i++) {
        if (code[i].code == IF_GREATER || code[i].code == UNLESS)
            code[i].off = (short)(PASS - i - 1);
    }
    union bpf_attr load = {
        .prog_type = BPF_PROG_TYPE_XDP,
        .insn_cnt = sizeof code / sizeof *code,
        .insns = (uint64_t)(uintptr_t)code,
        .license = (uint64_t)(uintptr_t) "Apache-2.0",
        .expected_attach_type = BPF_XDP,
    };
    return (int)bpf(BPF_PROG_LOAD, &load);
}

/*
 * The kernel lets go of what a program had at an interface a little after its end. Whether to try again what was found
 * busy.
 */
static bool try_again(unsigned int *tries)
{
    static const struct timespec pause = {.tv_nsec = 20000000};

    if (errno != EBUSY || ++*tries > 100)
        return false;
    nanosleep(&pause, NULL);
    return true;
}

/* Attaches it: in the driver, or else in front of the kernel's stack. */
static int attach_program(unsigned int interface)
{
    for (int native = 1; native >= 0; native--) {
        union bpf_attr create = {
            .link_create = {
                .prog_fd = (uint32_t)xdp.program,
                .target_ifindex = interface,
                .attach_type = BPF_XDP,
                .flags = native ? XDP_FLAGS_DRV_MODE : XDP_FLAGS_SKB_MODE,
            },
        };
        int link = (int)bpf(BPF_LINK_CREATE, &create);
        xdp.native = native;
        if (link >= 0 || errno == EBUSY || errno == EPERM)
            return link;
    }
    return -1;
}

/* ---- the socket and its rings ---- */

static int map_queue(struct queue *queue, const struct xdp_ring_offset *offset, size_t entry, off_t page)
{
    queue->length = offset->desc + RING * entry;
    queue->mapped = mmap(NULL, queue->length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, xdp.fd, page);
    if (queue->mapped == MAP_FAILED)
        return -1;
    uint8_t *base = queue->mapped;
    queue->producer = (void *)(base + offset->producer);
    queue->consumer = (void *)(base + offset->consumer);
    queue->flags = (void *)(base + offset->flags);
    queue->entries = base + offset->desc;
    return 0;
}

static int option(int name, const void *value, socklen_t length)
{
    return setsockopt(xdp.fd, SOL_XDP, name, value, length);
}

/* The rings of a socket, with frames to fill; 0, or -1. */
static int open_queues(void)
{
    static const int entries = RING;
    struct xdp_mmap_offsets offsets;
    socklen_t length = sizeof offsets;

    const int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE;
    xdp.frames = mmap(NULL, 2 * RING * FRAME, PROT_READ | PROT_WRITE, kind, -1, 0);
    if ((void *)xdp.frames == MAP_FAILED)
        return -1;
    struct xdp_umem_reg memory = {
        .addr = (uint64_t)(uintptr_t)xdp.frames,
        .len = 2 * RING * FRAME,
        .chunk_size = FRAME,
    };
    if (option(XDP_UMEM_REG, &memory, sizeof memory) < 0 || option(XDP_UMEM_FILL_RING, &entries, sizeof entries) < 0 ||
        option(XDP_UMEM_COMPLETION_RING, &entries, sizeof entries) < 0 ||
        option(XDP_RX_RING, &entries, sizeof entries) < 0 || option(XDP_TX_RING, &entries, sizeof entries) < 0 ||
        getsockopt(xdp.fd, SOL_XDP, XDP_MMAP_OFFSETS, &offsets, &length) < 0)
        return -1;
    if (map_queue(&xdp.fill, &offsets.fr, sizeof(uint64_t), XDP_UMEM_PGOFF_FILL_RING) < 0 ||
        map_queue(&xdp.completion, &offsets.cr, sizeof(uint64_t), XDP_UMEM_PGOFF_COMPLETION_RING) < 0 ||
        map_queue(&xdp.receive, &offsets.rx, sizeof(struct xdp_desc), XDP_PGOFF_RX_RING) < 0 ||
        map_queue(&xdp.send, &offsets.tx, sizeof(struct xdp_desc), XDP_PGOFF_TX_RING) < 0)
        return -1;
    for (unsigned int i = 0; i < RING; i++) {
        ((uint64_t *)xdp.fill.entries)[i] = (uint64_t)i * FRAME;
        xdp.free_frames[i] = (uint64_t)(RING + i) * FRAME;
    }
    xdp.free_count = RING;
    __atomic_store_n(xdp.fill.producer, RING, __ATOMIC_RELEASE);
    return 0;
}

static void end(void)
{
    struct queue *queues[] = {&xdp.fill, &xdp.completion, &xdp.receive, &xdp.send};
    int files[] = {xdp.link, xdp.program, xdp.map, xdp.fd};

    for (unsigned int i = 0; i < sizeof files / sizeof *files; i++) {
        if (files[i] >= 0)
            close(files[i]);
    }
    for (unsigned int i = 0; i < sizeof queues / sizeof *queues; i++) {
        if (queues[i]->mapped != NULL && queues[i]->mapped != MAP_FAILED)
            munmap(queues[i]->mapped, queues[i]->length);
    }
    if (xdp.frames != NULL && (void *)xdp.frames != MAP_FAILED)
        munmap(xdp.frames, 2 * RING * FRAME);
    memset(&xdp, 0, sizeof xdp);
    xdp.fd = xdp.program = xdp.link = xdp.map = -1;
}

/* ---- where it is ---- */

/* Notes why something is impossible. */
static int refuse(const char *format, const char *what)
{
    snprintf(reason, sizeof reason, format, what);
    return -1;
}

static int refuse_call(const char *call)
{
    const char *hint = errno == EPERM || errno == EACCES ? " (it takes CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF)" :
                       errno == ENOBUFS                  ? " (it takes CAP_IPC_LOCK, or ulimit -l of 32 MiB)" :
                                                           "";

    snprintf(reason, sizeof reason, "no AF_XDP: %s: %s%s", call, strerror(errno), hint);
    return -1;
}

/* The interface that has the program's own address, with its name; 0: none. */
static unsigned int find_interface(char name[IF_NAMESIZE])
{
    struct sockaddr_in own = told;
    struct ifaddrs *all;
    unsigned int found = 0;

    if (told.sin_family != AF_INET)
        return 0;
    if (is_peer) { /* the address that the kernel would send from */
        socklen_t length = sizeof own;
        int probe = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        bool known = probe >= 0 && connect(probe, (const void *)&told, sizeof told) == 0 &&
                     getsockname(probe, (void *)&own, &length) == 0;
        if (probe >= 0)
            close(probe);
        if (!known)
            return 0;
    }
    if (getifaddrs(&all) < 0)
        return 0;
    for (struct ifaddrs *one = all; one != NULL && !found; one = one->ifa_next) {
        const struct sockaddr_in *address = (const void *)one->ifa_addr;
        if (address != NULL && address->sin_family == AF_INET && address->sin_addr.s_addr == own.sin_addr.s_addr) {
            snprintf(name, IF_NAMESIZE, "%s", one->ifa_name);
            found = if_nametoindex(name);
        }
    }
    freeifaddrs(all);
    return found;
}

/* How many receive queues an interface uses; 1 where it cannot tell. */
static unsigned int receive_queues(const char *interface)
{
    struct ethtool_channels channels = {.cmd = ETHTOOL_GCHANNELS};
    struct ifreq request = {.ifr_data = (void *)&channels};
    int probe = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", interface);
    bool told_so = probe >= 0 && ioctl(probe, SIOCETHTOOL, &request) == 0;
    if (probe >= 0)
        close(probe);
    return told_so ? channels.rx_count + channels.combined_count : 1;
}

/* The socket at the interface, without copies if the interface can, and the program, for no port yet. */
static int open_at_interface(void)
{
    static const int send_buffer = SEND_BUFFER;
    unsigned int tries = 0;
    char name[IF_NAMESIZE] = "";
    unsigned int interface = find_interface(name);

    if (xdp.fd >= 0)
        return 0;
    if (interface == 0)
        return refuse("no AF_XDP: no interface has the IPv4 address of this end%s", "");
    if (receive_queues(name) > 1)
        return refuse("no AF_XDP: %s has several receive queues; give it one (ethtool -L combined 1)", name);
    xdp.fd = socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0);
    if (xdp.fd < 0) {
        if (errno == EAFNOSUPPORT)
            return refuse("no AF_XDP: the kernel is built without XDP_SOCKETS%s", "");
        return refuse_call("socket");
    }
    if (setsockopt(xdp.fd, SOL_SOCKET, SO_SNDBUFFORCE, &send_buffer, sizeof send_buffer) < 0)
        setsockopt(xdp.fd, SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof send_buffer);
    if (open_queues() < 0)
        return refuse_call("rings");
    struct sockaddr_xdp address = {.sxdp_family = AF_XDP, .sxdp_ifindex = interface, .sxdp_queue_id = QUEUE};
    /* without copies, or else, where the interface cannot, with them */
    for (int copies = 0;;) {
        address.sxdp_flags = (uint16_t)((copies ? XDP_COPY : XDP_ZEROCOPY) | XDP_USE_NEED_WAKEUP);
        xdp.zero_copy = !copies;
        if (bind(xdp.fd, (const void *)&address, sizeof address) == 0)
            break;
        if (try_again(&tries))
            continue;
        if (copies || errno == EBUSY)
            return refuse_call("bind");
        copies = 1;
    }
    union bpf_attr create = {
        .map_type = BPF_MAP_TYPE_XSKMAP,
        .key_size = sizeof(uint32_t),
        .value_size = sizeof(uint32_t),
        .max_entries = 1,
    };
    xdp.map = (int)bpf(BPF_MAP_CREATE, &create);
    if (xdp.map < 0)
        return refuse_call("BPF_MAP_CREATE");
    uint32_t key = QUEUE, value = (uint32_t)xdp.fd;
    union bpf_attr update = {
        .map_fd = (uint32_t)xdp.map,
        .key = (uint64_t)(uintptr_t)&key,
        .value = (uint64_t)(uintptr_t)&value,
    };
    if (bpf(BPF_MAP_UPDATE_ELEM, &update) < 0)
        return refuse_call("BPF_MAP_UPDATE_ELEM");
    xdp.program = load_program();
    if (xdp.program < 0)
        return refuse_call("BPF_PROG_LOAD");
    while ((xdp.link = attach_program(interface)) < 0) {
        if (!try_again(&tries))
            return refuse_call(errno == EBUSY ? "another program is at the interface" : "BPF_LINK_CREATE");
    }
    return 0;
}

int xdp_begin(int udp)
{
    struct sockaddr_in own;
    socklen_t length = sizeof own;

    if (getsockname(udp, (void *)&own, &length) < 0 || open_at_interface() < 0)
        return -1;
    xdp.port = own.sin_port;
    int program = load_program();
    union bpf_attr update = {.link_update = {.link_fd = (uint32_t)xdp.link, .new_prog_fd = (uint32_t)program}};
    if (program < 0 || bpf(BPF_LINK_UPDATE, &update) < 0)
        return -1;
    close(xdp.program);
    xdp.program = program;
    return 0;
}

const char *xdp_cannot(void)
{
    if (open_at_interface() == 0)
        return NULL;
    end();
    return reason;
}

const char *qp_io_mode(void)
{
    if (xdp.fd < 0)
        return NULL;
    if (xdp.zero_copy)
        return xdp.native ? "zero-copy, native" : "zero-copy, generic";
    return xdp.native ? "copy, native" : "copy, generic";
}

const char *qp_io_lost(bool finished)
{
    struct xdp_statistics seen = {0};
    socklen_t length = sizeof seen;

    if (xdp.fd < 0 || (!finished && xdp.bad_checksums < MANY_BAD))
        return NULL;
    if (getsockopt(xdp.fd, SOL_XDP, XDP_STATISTICS, &seen, &length) < 0)
        return NULL;
    unsigned long long lost = seen.rx_dropped + seen.rx_ring_full;
    if (lost == 0 && seen.tx_invalid_descs == 0 && xdp.bad_checksums == 0)
        return NULL;
    snprintf(reason, sizeof reason,
             "AF_XDP lost frames: %llu without room in its rings, %llu not sent, %llu with a wrong checksum", lost,
             (unsigned long long)seen.tx_invalid_descs, (unsigned long long)xdp.bad_checksums);
    return reason;
}

/* ---- frames ---- */

/* The sum of 16-bit words that Internet checksums are made of (RFC 1071), in the order of the machine. */
static uint64_t xdp_sum(const uint8_t *bytes, size_t length, uint64_t sofar)
{
    while (length >= 4) {
        uint32_t word;
        memcpy(&word, bytes, 4);
        sofar += word;
        bytes += 4;
        length -= 4;
    }
    uint32_t last = 0;
    memcpy(&last, bytes, length);
    return sofar + last;
}

static uint16_t xdp_folded(uint64_t total)
{
    while (total >> 16)
        total = (total & 0xffff) + (total >> 16);
    return (uint16_t)total;
}

static void xdp_put16(uint8_t *to, uint16_t value)
{
    value = htons(value);
    memcpy(to, &value, 2);
}

/* Sum over the pseudo header (RFC 768): both addresses of the IP header, the protocol and the length. */
static uint64_t xdp_pseudo(const uint8_t *ip, size_t udp_length)
{
    return xdp_sum(ip + 12, 8, 0) + htons(IPPROTO_UDP) + htons((uint16_t)udp_length);
}

static void xdp_reclaim(void)
{
    uint32_t consumer = *xdp.completion.consumer;
    uint32_t producer = __atomic_load_n(xdp.completion.producer, __ATOMIC_ACQUIRE);

    for (; consumer != producer; consumer++)
        xdp.free_frames[xdp.free_count++] = ((const uint64_t *)xdp.completion.entries)[consumer % RING];
    __atomic_store_n(xdp.completion.consumer, consumer, __ATOMIC_RELEASE);
}

/* Has the kernel send what is in the ring: it takes a few frames a call. */
static int xdp_kick(void)
{
    uint32_t before;

    do {
        before = __atomic_load_n(xdp.send.consumer, __ATOMIC_ACQUIRE);
        if (!(__atomic_load_n(xdp.send.flags, __ATOMIC_RELAXED) & XDP_RING_NEED_WAKEUP))
            return 0;
        if (__real_sendto(xdp.fd, NULL, 0, MSG_DONTWAIT, NULL, 0) == 0)
            return 0;
        if (errno != EAGAIN && errno != EBUSY && errno != ENOBUFS && errno != EINTR)
            return -1;
    } while (__atomic_load_n(xdp.send.consumer, __ATOMIC_ACQUIRE) != before);
    return 0;
}

bool xdp_is_sending(void)
{
    return *xdp.send.producer != __atomic_load_n(xdp.send.consumer, __ATOMIC_ACQUIRE) && xdp_kick() == 0 &&
           *xdp.send.producer != __atomic_load_n(xdp.send.consumer, __ATOMIC_ACQUIRE);
}

int xdp_send(const struct sockaddr *to, const struct iovec *parts, unsigned int count)
{
    const struct sockaddr_in *peer = (const void *)to;

    if (!xdp.known || peer->sin_family != AF_INET || peer->sin_addr.s_addr != xdp.peer)
        return 0;
    xdp_reclaim();
    if (xdp.free_count < count) {
        if (xdp_kick() < 0)
            return -1;
        xdp_reclaim();
        if (xdp.free_count < count) {
            errno = EAGAIN;
            return -1;
        }
    }
    uint32_t producer = *xdp.send.producer;
    for (unsigned int i = 0; i < count; i++) {
        uint64_t place = xdp.free_frames[--xdp.free_count];
        uint8_t *frame = xdp.frames + place, *ip = frame + 14, *udp = ip + 20;
        size_t length = parts[i].iov_len;
        memcpy(frame, xdp.head, sizeof xdp.head);
        xdp_put16(ip + 2, (uint16_t)(28 + length));
        xdp_put16(ip + 4, xdp.identification++);
        memset(ip + 10, 0, 2);
        uint16_t checksum = (uint16_t)~xdp_folded(xdp_sum(ip, 20, 0));
        memcpy(ip + 10, &checksum, 2);
        memcpy(udp, &xdp.port, 2);
        memcpy(udp + 2, &peer->sin_port, 2);
        xdp_put16(udp + 4, (uint16_t)(8 + length));
        memset(udp + 6, 0, 2);
        memcpy(udp + 8, parts[i].iov_base, length);
        checksum = (uint16_t)~xdp_folded(xdp_sum(udp, 8 + length, xdp_pseudo(ip, 8 + length)));
        if (checksum == 0) /* which would mean that there is none */
            checksum = 0xffff;
        memcpy(udp + 6, &checksum, 2);
        ((struct xdp_desc *)xdp.send.entries)[producer++ % RING] = (struct xdp_desc){
            .addr = place,
            .len = (uint32_t)(HEADERS + length),
        };
    }
    __atomic_store_n(xdp.send.producer, producer, __ATOMIC_RELEASE);
    return xdp_kick() < 0 ? -1 : (int)count;
}

static void xdp_give_back(uint64_t frame)
{
    uint32_t producer = *xdp.fill.producer;

    ((uint64_t *)xdp.fill.entries)[producer % RING] = frame;
    __atomic_store_n(xdp.fill.producer, producer + 1, __ATOMIC_RELEASE);
}

/* Takes the link addresses of a frame for those of its sender. */
static void xdp_learn(const uint8_t *frame)
{
    const uint8_t *ip = frame + 14;

    if (xdp.known && memcmp(ip + 12, &xdp.peer, 4) == 0)
        return;
    memcpy(&xdp.peer, ip + 12, 4);
    memcpy(xdp.head, frame + 6, 6);
    memcpy(xdp.head + 6, frame, 6);
    xdp_put16(xdp.head + 12, 0x0800);
    uint8_t *head = xdp.head + 14;
    memset(head, 0, 20);
    head[0] = 0x45;
    head[6] = 0x40; /* not to be fragmented */
    head[8] = TTL;
    head[9] = IPPROTO_UDP;
    memcpy(head + 12, ip + 16, 4);
    memcpy(head + 16, ip + 12, 4);
    xdp.known = true;
}

/*
 * Whether the checksum of a datagram is right, or it has none, or a kernel left it to the interface, which is none that
 * makes checksums: it is then that of the pseudo header alone.
 */
static bool xdp_is_sound(const uint8_t *ip, const uint8_t *udp, size_t length)
{
    uint64_t begun = xdp_pseudo(ip, length);
    uint16_t there;

    memcpy(&there, udp + 6, 2);
    return there == 0 || xdp_folded(xdp_sum(udp, length, begun)) == 0xffff || there == xdp_folded(begun);
}

bool xdp_next(struct arrived *arrived)
{
    if (xdp.given) {
        xdp_give_back(xdp.given_frame);
        xdp.given = false;
    }
    for (;;) {
        uint32_t consumer = *xdp.receive.consumer;
        if (consumer == __atomic_load_n(xdp.receive.producer, __ATOMIC_ACQUIRE)) {
            errno = EAGAIN;
            return false;
        }
        struct xdp_desc one = ((const struct xdp_desc *)xdp.receive.entries)[consumer % RING];
        __atomic_store_n(xdp.receive.consumer, consumer + 1, __ATOMIC_RELEASE);
        const uint8_t *frame = xdp.frames + one.addr, *ip = frame + 14, *udp = ip + 20;
        uint64_t lent = one.addr - one.addr % FRAME;
        size_t length = (size_t)(udp[4] << 8 | udp[5]);
        /* the program at the interface has seen to it that the headers are there; the rest may be anything */
        if (length < 8 || length + 34 > one.len) {
            xdp_give_back(lent);
            continue;
        }
        if (!xdp_is_sound(ip, udp, length)) {
            xdp.bad_checksums++;
            xdp_give_back(lent);
            continue;
        }
        xdp_learn(frame);
        xdp.from = (struct sockaddr_in){.sin_family = AF_INET};
        memcpy(&xdp.from.sin_addr, ip + 12, 4);
        memcpy(&xdp.from.sin_port, udp, 2);
        xdp.given = true;
        xdp.given_frame = lent;
        *arrived = (struct arrived){
            .from = &xdp.from,
            .from_length = sizeof xdp.from,
            .bytes = udp + 8,
            .length = length - 8,
        };
        return true;
    }
}

int xdp_file(void)
{
    return xdp.fd;
}

#else

int xdp_begin(int udp)
{
    (void)udp;
    errno = ENOSYS;
    return -1;
}

const char *xdp_cannot(void)
{
    snprintf(reason, sizeof reason, "no AF_XDP: it was compiled with headers of a Linux before 5.9");
    return reason;
}

const char *qp_io_mode(void)
{
    return NULL;
}

const char *qp_io_lost(bool finished)
{
    (void)finished;
    return NULL;
}

bool xdp_is_sending(void)
{
    return false;
}

int xdp_send(const struct sockaddr *to, const struct iovec *parts, unsigned int count)
{
    (void)to, (void)parts, (void)count;
    return 0;
}

bool xdp_next(struct arrived *arrived)
{
    (void)arrived;
    errno = ENOSYS;
    return false;
}

int xdp_file(void)
{
    return -1;
}

#endif
