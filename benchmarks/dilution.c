/* Preloaded into a server: every call that sends datagrams takes SPIN_NS nanoseconds of processor time more.
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

static void spin(void) {
    const char *wanted = getenv("SPIN_NS");
    long long begin = used(), end = begin + (wanted ? atoll(wanted) : 0), now = begin;
    while (now < end)
        now = used();
    atomic_fetch_add(&spent, now - begin);
}

ssize_t sendmsg(int socket, const struct msghdr *message, int flags) {
    ssize_t (*send)(int, const struct msghdr *, int) = dlsym(RTLD_NEXT, "sendmsg");
    spin();
    return send(socket, message, flags);
}

int sendmmsg(int socket, struct mmsghdr *messages, unsigned int count, int flags) {
    int (*send)(int, struct mmsghdr *, unsigned int, int) = dlsym(RTLD_NEXT, "sendmmsg");
    spin();
    return send(socket, messages, count, flags);
}

__attribute__((destructor)) static void tell(void) {
    fprintf(stderr, "spent %lld ns\n", atomic_load(&spent));
}
