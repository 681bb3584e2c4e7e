/*
 * Ways other than GSO and GRO by which datagrams pass between the program and the kernel, for `--io`: many in one call
 * (sendmmsg(2) and recvmmsg(2)), through the rings of io_uring(7), or past the kernel's stack (xdp.c). They are below
 * the program, which sends batches and receives as ever: the linker puts these functions before those of the C library
 * that the program calls (--wrap). So the library, batches and the order of things are the same whatever the way is.
 *
 * A batch is told by its segment size, as for GSO. It goes out as single datagrams, and as a whole: a socket that takes
 * only a part of it at once is waited for. What is received is handed to the program one datagram at a time.
 */
#define _GNU_SOURCE
#include "io.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#if __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>
#endif

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif

int __real_bind(int fd, const struct sockaddr *address, socklen_t length);
ssize_t __real_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t __real_recvmsg(int fd, struct msghdr *message, int flags);
int __wrap_bind(int fd, const struct sockaddr *address, socklen_t length);
ssize_t __wrap_sendto(int fd, const void *bytes, size_t length, int flags, const struct sockaddr *to, socklen_t room);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t __wrap_recvmsg(int fd, struct msghdr *message, int flags);
int __wrap_ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask);

static enum way chosen;

/* The socket that datagrams pass through in the way chosen: the one that was made last. */
static int own = -1;

/* The batch that is being sent: each datagram by itself. */
static struct iovec parts[MOST_DATAGRAMS];
static struct mmsghdr batch[MOST_DATAGRAMS];

/* ---- many in one call ---- */

static struct {
    struct mmsghdr messages[MOST_DATAGRAMS];
    struct iovec vectors[MOST_DATAGRAMS];
    struct sockaddr_storage from[MOST_DATAGRAMS];
    uint8_t bytes[MOST_DATAGRAMS][LONGEST_DATAGRAM];
    unsigned int next, count;
} many;

/* Sends the datagrams from `first` to `count` of the batch; the number that the socket took, or -1. */
static int io_send_many(unsigned int first, unsigned int count)
{
    return sendmmsg(own, batch + first, count - first, 0);
}

static bool io_many_waiting(void)
{
    return many.next < many.count;
}

static bool io_next_of_many(struct arrived *arrived)
{
    if (!io_many_waiting()) {
        for (unsigned int i = 0; i < MOST_DATAGRAMS; i++) {
            many.vectors[i] = (struct iovec){.iov_base = many.bytes[i], .iov_len = LONGEST_DATAGRAM};
            many.messages[i].msg_hdr = (struct msghdr){
                .msg_name = &many.from[i],
                .msg_namelen = sizeof many.from[i],
                .msg_iov = &many.vectors[i],
                .msg_iovlen = 1,
            };
        }
        int received = recvmmsg(own, many.messages, MOST_DATAGRAMS, MSG_DONTWAIT, NULL);
        if (received < 0)
            return false;
        many.next = 0;
        many.count = (unsigned int)received;
    }
    const struct mmsghdr *message = &many.messages[many.next];
    *arrived = (struct arrived){
        .from = &many.from[many.next],
        .from_length = message->msg_hdr.msg_namelen,
        .bytes = many.bytes[many.next],
        .length = message->msg_len,
    };
    many.next++;
    return true;
}

/* ---- io_uring ---- */

/* Receiving again and again into buffers that the program lends, and completions when the program asks: Linux 6.1. */
#if defined(IORING_SETUP_DEFER_TASKRUN) && defined(IORING_RECV_MULTISHOT)

enum {
    SUBMISSIONS = 2 * MOST_DATAGRAMS,
    COMPLETIONS = 1024,
    BUFFERS = 512,
    GROUP = 0,
    /* What the kernel writes before the bytes of a datagram: lengths, and the address that it is from. */
    FROM_ROOM = sizeof(struct sockaddr_in6),
    HEAD = sizeof(struct io_uring_recvmsg_out) + FROM_ROOM,
    /* `user_data` of requests that do not send; those that do have the number of their datagram. */
    RECEIVING = MOST_DATAGRAMS,
    WATCHING,
    WRITING,
};

static struct {
    int fd;
    uint8_t *rings;
    size_t rings_length;
    struct io_uring_sqe *entries;
    unsigned int *sq_head, *sq_tail, *sq_mask, *sq_flags, *sq_array;
    unsigned int *cq_head, *cq_tail, *cq_mask;
    struct io_uring_cqe *completions;
    /* The ring of buffers that are lent, and the buffers. */
    struct io_uring_buf_ring *lent;
    uint8_t (*buffers)[HEAD + LONGEST_DATAGRAM];
    uint16_t lent_tail;
    /* What the request that receives is made from; and whether it is under way. */
    struct msghdr shape;
    bool receiving;
    /* Buffers with datagrams in the order in which they arrived, and the one that the program was given last. */
    struct {
        uint16_t buffer;
        size_t length;
    } waiting[BUFFERS];
    unsigned int next, count;
    int given;
    /* Of a failed request that receives, for the program. */
    int error;
    /* A file that the program waits for besides the socket, and whether it is ready, which it then stays. */
    int watched;
    bool watched_ready;
    /* Whether room in the socket is waited for, and whether there is some. */
    bool writing, writable;
    /* Requests that send and are not complete; those that the socket had no room for. */
    unsigned int sending;
    bool refused[MOST_DATAGRAMS];
    int send_error;
} ring = {.fd = -1, .given = -1, .watched = -1};

static int uring_enter(unsigned int submitted, unsigned int complete)
{
    long result;

    do
        result = syscall(SYS_io_uring_enter, ring.fd, submitted, complete, IORING_ENTER_GETEVENTS, NULL, 0);
    while (result < 0 && errno == EINTR);
    return (int)result;
}

/* The next entry of the ring of requests, which has room: it is empty whenever the kernel has been entered. */
static struct io_uring_sqe *uring_request(unsigned int number)
{
    unsigned int index = (*ring.sq_tail + number) & *ring.sq_mask;

    ring.sq_array[index] = index;
    memset(&ring.entries[index], 0, sizeof ring.entries[index]);
    return &ring.entries[index];
}

/* Hands over requests; the kernel may take them in several goes. */
static int uring_submit(unsigned int count)
{
    unsigned int tail = *ring.sq_tail + count;

    __atomic_store_n(ring.sq_tail, tail, __ATOMIC_RELEASE);
    for (unsigned int left = count; left > 0; left = tail - __atomic_load_n(ring.sq_head, __ATOMIC_ACQUIRE)) {
        if (uring_enter(left, 0) < 0)
            return -1;
    }
    return 0;
}

static void uring_lend(uint16_t buffer)
{
    struct io_uring_buf *entry = &ring.lent->bufs[ring.lent_tail % BUFFERS];

    entry->addr = (uint64_t)(uintptr_t)ring.buffers[buffer];
    entry->len = HEAD + LONGEST_DATAGRAM;
    entry->bid = buffer;
    ring.lent_tail++;
    __atomic_store_n(&ring.lent->tail, ring.lent_tail, __ATOMIC_RELEASE);
}

/* Takes all completions that there are. */
static void uring_take(void)
{
    unsigned int head = *ring.cq_head;

    for (unsigned int tail = __atomic_load_n(ring.cq_tail, __ATOMIC_ACQUIRE); head != tail; head++) {
        const struct io_uring_cqe *one = &ring.completions[head & *ring.cq_mask];
        if (one->user_data < MOST_DATAGRAMS) {
            ring.sending--;
            if (one->res == -EAGAIN)
                ring.refused[one->user_data] = true;
            else if (one->res < 0)
                ring.send_error = -one->res;
            continue;
        }
        if (one->user_data == WATCHING) {
            ring.watched_ready = true;
            continue;
        }
        if (one->user_data == WRITING) {
            ring.writing = false;
            ring.writable = true;
            continue;
        }
        if (!(one->flags & IORING_CQE_F_MORE))
            ring.receiving = false;
        if (one->flags & IORING_CQE_F_BUFFER) {
            /* a buffer is in one place at a time, so that there is room for all */
            unsigned int at = (ring.next + ring.count) % BUFFERS;
            ring.waiting[at].buffer = (uint16_t)(one->flags >> IORING_CQE_BUFFER_SHIFT);
            ring.waiting[at].length = one->res < 0 ? 0 : (size_t)one->res;
            ring.count++;
        } else if (one->res < 0 && one->res != -ENOBUFS) { /* buffers are lent again as they become free */
            ring.error = -one->res;
        }
    }
    __atomic_store_n(ring.cq_head, head, __ATOMIC_RELEASE);
}

static int uring_receive(void)
{
    struct io_uring_sqe *entry = uring_request(0);

    ring.shape = (struct msghdr){.msg_namelen = FROM_ROOM};
    entry->opcode = IORING_OP_RECVMSG;
    entry->fd = own;
    entry->addr = (uint64_t)(uintptr_t)&ring.shape;
    entry->len = 1;
    entry->ioprio = IORING_RECV_MULTISHOT;
    entry->flags = IOSQE_BUFFER_SELECT;
    entry->buf_group = GROUP;
    entry->user_data = RECEIVING;
    ring.receiving = true;
    return uring_submit(1);
}

static void uring_close(void)
{
    if (ring.fd < 0)
        return;
    munmap(ring.entries, SUBMISSIONS * sizeof *ring.entries);
    munmap(ring.rings, ring.rings_length);
    close(ring.fd); /* the kernel ends what is under way */
    munmap(ring.lent, BUFFERS * sizeof(struct io_uring_buf));
    munmap(ring.buffers, BUFFERS * sizeof *ring.buffers);
    memset(&ring, 0, sizeof ring);
    ring.fd = ring.given = ring.watched = -1;
}

static void *uring_memory(size_t length)
{
    return mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
}

static void *uring_shared(size_t length, off_t offset)
{
    return mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring.fd, offset);
}

/* Makes the ring, without a socket; 0, or -1 with an error number. */
static int uring_open(void)
{
    struct io_uring_params parameters = {
        .flags = IORING_SETUP_CQSIZE | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
                 IORING_SETUP_TASKRUN_FLAG,
        .cq_entries = COMPLETIONS,
    };

    ring.fd = (int)syscall(SYS_io_uring_setup, SUBMISSIONS, &parameters);
    if (ring.fd < 0)
        return -1;
    size_t sq = parameters.sq_off.array + parameters.sq_entries * sizeof(unsigned int);
    size_t cq = parameters.cq_off.cqes + parameters.cq_entries * sizeof(struct io_uring_cqe);
    ring.rings_length = sq > cq ? sq : cq;
    ring.rings = uring_shared(ring.rings_length, IORING_OFF_SQ_RING);
    ring.entries = uring_shared(SUBMISSIONS * sizeof *ring.entries, IORING_OFF_SQES);
    ring.lent = uring_memory(BUFFERS * sizeof(struct io_uring_buf));
    ring.buffers = uring_memory(BUFFERS * sizeof *ring.buffers);
    if ((void *)ring.rings == MAP_FAILED || (void *)ring.entries == MAP_FAILED || (void *)ring.lent == MAP_FAILED ||
        (void *)ring.buffers == MAP_FAILED)
        return -1; /* the program ends */
    ring.sq_head = (void *)(ring.rings + parameters.sq_off.head);
    ring.sq_tail = (void *)(ring.rings + parameters.sq_off.tail);
    ring.sq_mask = (void *)(ring.rings + parameters.sq_off.ring_mask);
    ring.sq_flags = (void *)(ring.rings + parameters.sq_off.flags);
    ring.sq_array = (void *)(ring.rings + parameters.sq_off.array);
    ring.cq_head = (void *)(ring.rings + parameters.cq_off.head);
    ring.cq_tail = (void *)(ring.rings + parameters.cq_off.tail);
    ring.cq_mask = (void *)(ring.rings + parameters.cq_off.ring_mask);
    ring.completions = (void *)(ring.rings + parameters.cq_off.cqes);

    struct io_uring_buf_reg lent = {
        .ring_addr = (uint64_t)(uintptr_t)ring.lent,
        .ring_entries = BUFFERS,
        .bgid = GROUP,
    };
    if (syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_PBUF_RING, &lent, 1) < 0)
        return -1;
    for (uint16_t buffer = 0; buffer < BUFFERS; buffer++)
        uring_lend(buffer);
    return 0;
}

static int uring_begin(void)
{
    uring_close();
    return uring_open() < 0 || uring_receive() < 0 ? -1 : 0;
}

static const char *uring_cannot(void)
{
    const char *reason = NULL;

    if (uring_open() < 0) {
        switch (errno) {
        case EPERM:
        case EACCES:
            reason = "no io_uring: it is forbidden here (sysctl kernel.io_uring_disabled, or a filter of system calls)";
            break;
        case ENOSYS:
            reason = "no io_uring: the kernel is built without it";
            break;
        case EINVAL:
            reason = "no io_uring as it is used here: the kernel is older than Linux 6.1";
            break;
        case ENOMEM:
            reason = "no io_uring: the limit of locked memory is too low (ulimit -l)";
            break;
        default:
            reason = "no io_uring: the kernel refuses it";
        }
        if (ring.fd >= 0)
            close(ring.fd);
        ring.fd = -1;
        return reason;
    }
    uring_close();
    return NULL;
}

/* As `io_send_many`: the number of datagrams from `first` on that the socket took. */
static int uring_send(unsigned int first, unsigned int count)
{
    ring.send_error = 0;
    for (unsigned int number = first; number < count; number++) {
        struct io_uring_sqe *entry = uring_request(number - first);
        entry->opcode = IORING_OP_SENDMSG;
        entry->fd = own;
        entry->addr = (uint64_t)(uintptr_t)&batch[number].msg_hdr;
        entry->len = 1;
        entry->msg_flags = MSG_DONTWAIT;
        entry->user_data = number;
        ring.refused[number] = false;
    }
    ring.sending = count - first;
    /* each is complete as soon as it is taken, as none may wait; that is not relied on */
    if (uring_submit(count - first) < 0)
        return -1;
    for (;;) {
        uring_take();
        if (ring.sending == 0)
            break;
        if (uring_enter(0, 1) < 0)
            return -1;
    }
    if (ring.send_error) {
        errno = ring.send_error;
        return -1;
    }
    /* those that were refused are sent again, in their order and after those that were not */
    unsigned int left = 0;
    for (unsigned int number = first; number < count; number++)
        left += ring.refused[number];
    unsigned int at = count;
    for (unsigned int number = count; left > 0 && number-- > first;) {
        if (ring.refused[number])
            batch[--at].msg_hdr = batch[number].msg_hdr;
    }
    if (left == count - first) {
        errno = EAGAIN;
        return -1;
    }
    return (int)(count - first - left);
}

static int uring_poll(int fd, short events, uint64_t user_data)
{
    struct io_uring_sqe *entry = uring_request(0);

    entry->opcode = IORING_OP_POLL_ADD;
    entry->fd = fd;
    entry->poll32_events = (uint32_t)events;
    entry->user_data = user_data;
    return uring_submit(1);
}

/* Whether the kernel has something to do for the ring that it leaves until it is entered. */
static bool ring_is_deferred(void)
{
    return __atomic_load_n(ring.sq_flags, __ATOMIC_RELAXED) & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW);
}

/* As ppoll(2), on the ring: of the socket, and of one more file that is only read from. */
static int uring_wait(struct pollfd *fds, nfds_t count, const struct timespec *timeout)
{
    int ready = 0;

    for (nfds_t i = 0; i < count; i++) {
        int begun = 0;
        if (fds[i].fd != own && fds[i].fd != ring.watched) {
            ring.watched = fds[i].fd;
            begun = uring_poll(ring.watched, POLLIN, WATCHING);
        } else if (fds[i].fd == own && fds[i].events & POLLOUT && !ring.writing) {
            ring.writing = true;
            begun = uring_poll(own, POLLOUT, WRITING);
        }
        if (begun < 0)
            return -1;
    }
    if (!ring.receiving && ring.count == 0 && uring_receive() < 0)
        return -1;
    uring_take();
    bool waits = ring.count == 0 && !ring.error && !ring.watched_ready && !ring.writable;
    if (waits && (timeout == NULL || timeout->tv_sec || timeout->tv_nsec)) {
        struct io_uring_getevents_arg more = {.ts = (uint64_t)(uintptr_t)timeout};
        unsigned int flags = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG;
        if (syscall(SYS_io_uring_enter, ring.fd, 0, 1, flags, &more, sizeof more) < 0 && errno != ETIME)
            return -1;
    } else if (ring_is_deferred() && uring_enter(0, 0) < 0) {
        return -1;
    }
    uring_take();
    for (nfds_t i = 0; i < count; i++) {
        bool of_socket = fds[i].fd == own;
        bool readable = of_socket ? ring.count > 0 || ring.error : ring.watched_ready;
        fds[i].revents = (short)((readable ? POLLIN : 0) | (of_socket && ring.writable ? fds[i].events & POLLOUT : 0));
        ready += fds[i].revents != 0;
    }
    ring.writable = false;
    return ready;
}

static bool uring_next(struct arrived *arrived)
{
    if (ring.given >= 0) {
        uring_lend((uint16_t)ring.given);
        ring.given = -1;
    }
    if (ring.count == 0) {
        if (!ring.receiving) {
            if (uring_receive() < 0)
                return false;
        } else if (ring_is_deferred() && uring_enter(0, 0) < 0) {
            return false;
        }
        uring_take();
    }
    while (ring.count > 0) {
        uint16_t buffer = ring.waiting[ring.next].buffer;
        size_t length = ring.waiting[ring.next].length;
        const struct io_uring_recvmsg_out *out = (const void *)ring.buffers[buffer];
        ring.next = (ring.next + 1) % BUFFERS;
        ring.count--;
        if (length < HEAD) {
            uring_lend(buffer);
            continue;
        }
        ring.given = buffer;
        *arrived = (struct arrived){
            .from = ring.buffers[buffer] + sizeof *out,
            .from_length = out->namelen < FROM_ROOM ? out->namelen : FROM_ROOM,
            .bytes = ring.buffers[buffer] + HEAD,
            .length = length - HEAD,
        };
        return true;
    }
    errno = ring.error ? ring.error : EAGAIN;
    ring.error = 0;
    return false;
}

#else

static int uring_begin(void)
{
    errno = ENOSYS;
    return -1;
}

static const char *uring_cannot(void)
{
    return "no io_uring: it was compiled with headers of a Linux before 6.1";
}

static int uring_send(unsigned int first, unsigned int count)
{
    (void)first, (void)count;
    errno = ENOSYS;
    return -1;
}

static int uring_wait(struct pollfd *fds, nfds_t count, const struct timespec *timeout)
{
    (void)fds, (void)count, (void)timeout;
    errno = ENOSYS;
    return -1;
}

static bool uring_next(struct arrived *arrived)
{
    (void)arrived;
    errno = ENOSYS;
    return false;
}

#endif

/* ---- what the program calls ---- */

void qp_choose_io(enum way way)
{
    chosen = way;
}

const char *qp_cannot_io(void)
{
    switch (chosen) {
    case IO_URING:
        return uring_cannot();
    case IO_XDP:
        return xdp_cannot();
    default:
        return NULL;
    }
}

/* A socket for datagrams, of which a program has one at a time, begins with its address. */
int __wrap_bind(int fd, const struct sockaddr *address, socklen_t length)
{
    int type = 0;
    socklen_t room = sizeof type;

    if (__real_bind(fd, address, length) < 0)
        return -1;
    if (chosen == IO_SOCKET || getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &room) < 0 || type != SOCK_DGRAM)
        return 0;
    own = fd;
    many.next = many.count = 0;
    if (chosen == IO_XDP)
        return xdp_begin(fd);
    return chosen == IO_URING ? uring_begin() : 0;
}

/* Sends a batch, all of it or nothing. */
static ssize_t io_send_batch(const struct msghdr *message, size_t segment)
{
    uint8_t *bytes = message->msg_iov->iov_base;
    size_t length = message->msg_iov->iov_len;
    unsigned int count = 0, sent = 0;

    if (segment == 0 || length > MOST_DATAGRAMS * segment) {
        errno = EINVAL; /* as the kernel says of GSO */
        return -1;
    }
    for (size_t at = 0; at < length; at += segment) {
        size_t left = length - at;
        parts[count] = (struct iovec){.iov_base = bytes + at, .iov_len = left < segment ? left : segment};
        batch[count].msg_hdr = (struct msghdr){
            .msg_name = message->msg_name,
            .msg_namelen = message->msg_namelen,
            .msg_iov = &parts[count],
            .msg_iovlen = 1,
        };
        count++;
    }
    if (chosen == IO_XDP) {
        int taken = xdp_send(message->msg_name, parts, count);
        if (taken != 0)
            return taken < 0 ? -1 : (ssize_t)length;
    }
    while (sent < count) {
        int taken = chosen == IO_URING ? uring_send(sent, count) : io_send_many(sent, count);
        if (taken >= 0) {
            sent += (unsigned int)taken;
            continue;
        }
        if (errno == EINTR)
            continue;
        if (errno != EAGAIN || sent == 0)
            return -1;
        struct pollfd room = {.fd = own, .events = POLLOUT};
        if (__real_ppoll(&room, 1, NULL, NULL) < 0 && errno != EINTR)
            return -1;
    }
    return (ssize_t)length;
}

ssize_t __wrap_sendto(int fd, const void *bytes, size_t length, int flags, const struct sockaddr *to, socklen_t room)
{
    if (fd != own || chosen == IO_MMSG || length == 0)
        return __real_sendto(fd, bytes, length, flags, to, room);
    struct iovec vector = {.iov_base = (void *)bytes, .iov_len = length};
    struct msghdr message = {.msg_name = (void *)to, .msg_namelen = room, .msg_iov = &vector, .msg_iovlen = 1};
    return io_send_batch(&message, length);
}

ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags)
{
    struct msghdr *told = (struct msghdr *)message;
    uint16_t segment;

    if (fd == own) {
        for (struct cmsghdr *header = CMSG_FIRSTHDR(told); header != NULL; header = CMSG_NXTHDR(told, header)) {
            if (header->cmsg_level == IPPROTO_UDP && header->cmsg_type == UDP_SEGMENT) {
                memcpy(&segment, CMSG_DATA(header), sizeof segment);
                return io_send_batch(message, segment);
            }
        }
    }
    return __real_sendmsg(fd, message, flags);
}

static bool io_next(struct arrived *arrived)
{
    switch (chosen) {
    case IO_URING:
        return uring_next(arrived);
    case IO_XDP:
        return xdp_next(arrived);
    default:
        return io_next_of_many(arrived);
    }
}

ssize_t __wrap_recvmsg(int fd, struct msghdr *message, int flags)
{
    struct arrived arrived;

    if (fd != own)
        return __real_recvmsg(fd, message, flags);
    if (!io_next(&arrived))
        return -1;
    size_t room = message->msg_iov->iov_len;
    size_t length = arrived.length < room ? arrived.length : room;
    memcpy(message->msg_iov->iov_base, arrived.bytes, length);
    socklen_t from = arrived.from_length < message->msg_namelen ? arrived.from_length : message->msg_namelen;
    memcpy(message->msg_name, arrived.from, from);
    message->msg_namelen = from;
    message->msg_controllen = 0;
    message->msg_flags = 0;
    return (ssize_t)length;
}

/* Waits as the program asks, but not while datagrams wait that have been received already. */
int __wrap_ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask)
{
    static const struct timespec now, soon = {.tv_nsec = 100000};
    struct pollfd *of_socket = NULL;

    for (nfds_t i = 0; own >= 0 && i < count; i++) {
        if (fds[i].fd == own)
            of_socket = &fds[i];
    }
    if (of_socket == NULL)
        return __real_ppoll(fds, count, timeout, mask);
    if (chosen == IO_URING)
        return uring_wait(fds, count, timeout);
    if (chosen == IO_XDP) {
        of_socket->fd = xdp_file();
        int found = __real_ppoll(fds, count, xdp_is_sending() ? &soon : timeout, mask);
        of_socket->fd = own;
        return found;
    }
    int ready = __real_ppoll(fds, count, io_many_waiting() ? &now : timeout, mask);
    if (ready < 0 || !io_many_waiting())
        return ready;
    ready += of_socket->revents == 0;
    of_socket->revents |= POLLIN;
    return ready;
}
