/* Preloaded into a server: before every call that sends datagrams a loop is gone through SPINS times.
 *
 * At the end it writes to standard error how much that was in all, as the clock of each thread told. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

static atomic_llong spent;

static long long used(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static long long wanted;
static ssize_t (*send_one)(int, const struct msghdr *, int);
static int (*send_many)(int, struct mmsghdr *, unsigned int, int);

__attribute__((constructor)) static void begin(void) {
    const char *text = getenv("SPINS");
    wanted = text ? atoll(text) : 0;
    send_one = (ssize_t (*)(int, const struct msghdr *, int))dlsym(RTLD_NEXT, "sendmsg");
    send_many = (int (*)(int, struct mmsghdr *, unsigned int, int))dlsym(RTLD_NEXT, "sendmmsg");
}

static void spin(void) {
    long long first = used();
    for (volatile long long count = 0; count < wanted; count++)
        ;
    atomic_fetch_add(&spent, used() - first);
}

ssize_t sendmsg(int socket, const struct msghdr *message, int flags) {
    spin();
    return send_one(socket, message, flags);
}

int sendmmsg(int socket, struct mmsghdr *messages, unsigned int count, int flags) {
    spin();
    return send_many(socket, messages, count, flags);
}

__attribute__((destructor)) static void tell(void) {
    fprintf(stderr, "spent %lld ns\n", atomic_load(&spent));
}
