/*
 * Server of the endpoint contract over TCP and TLS, or over QUIC with HTTP/3: runs nginx as one process and reports
 * for it.
 *
 * Nothing is written to disk and nothing can be left behind. The configuration and the content are anonymous files in
 * memory (memfd_create(2)) that nginx inherits and opens as /proc/self/fd/N; its log lines come through a pipe. They are
 * gone with the last process, and nginx is ended by the kernel if this process dies (PR_SET_PDEATHSIG).
 *
 * The listening socket is opened here, with the buffers asked for and, of TCP, the congestion control, which accepted
 * connections inherit. nginx takes it over as it takes over the sockets of its predecessor in an upgrade (environment
 * variable NGINX).
 */
#define _GNU_SOURCE
#include "sockets.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/*
 * nginx has STOP_MILLISECONDS to end after SIGTERM; the contract gives the whole program a second. The signal is
 * repeated, because one that arrives just before nginx waits for events is noticed with the next event only.
 */
#define STOP_MILLISECONDS 600
#define REPEAT_MILLISECONDS 10

/*
 * With so many requests nginx closes a connection, unless told otherwise. It is the client that is to close it: libcurl
 * takes a close that it reads along with the end of the last object for a failure of that object.
 */
enum { KEEPALIVE_REQUESTS = 1000 };

/* Fields of a line of the access log; a tab cannot occur in any of them. One before them marks the line as such. */
enum { F_STATUS, F_COMPLETION, F_URI, F_BYTES, F_PROTOCOL, F_CIPHER, F_CURVE, F_ALPN, F_NUMBER, F_PORT, F_REUSED, F_EARLY, F_COUNT };
#define LOG_FORMAT                                                                             \
    "\t$status\t$request_completion\t$uri\t$body_bytes_sent\t$ssl_protocol\t$ssl_cipher\t" \
    "$ssl_curve\t$ssl_alpn_protocol\t$connection\t$remote_port\t$ssl_session_reused\t$ssl_early_data"

/*
 * Both logs of nginx come through one pipe. Through one each, nobody could tell whether the end of a connection in the
 * one is before or after a request in the other.
 */
struct lines {
    int fd;
    size_t used;
    char buffer[8192];
};

struct server {
    const struct options *options;
    int listener, port;
    int config;    /* memory file with nginx's configuration */
    int *contents; /* memory files, one per options->content */
    struct lines log;

    pid_t nginx;
    bool ready, stopping;
    int64_t stop_by;
    int64_t run_delay, max_rss; /* of nginx, taken before it is stopped */
    const char *aead;           /* by the provider that nginx has loaded */
    const char *header_protection;
    int64_t user_ns, system_ns; /* CPU time of nginx up to the end of the last connection */
    uint64_t connections, failed;
    uint64_t last_begun;
    uint64_t last_unserved; /* nginx's number of the last connection that ended without a request */
    uint64_t flooded;       /* that of a connection which nginx closed because it took it for a flood; 0: none */
    struct {
        uint64_t numbers[64];
        size_t count;
    } begun; /* connections over QUIC that had no request yet, the oldest first */
    char last_message[512]; /* last complaint of nginx */
};

/* ---- ending ---- */

static struct server server;

static void __attribute__((noreturn)) finish(int exit_code, const struct rusage *usage)
{
    event_final(server.connections, server.failed, usage, server.run_delay, server.max_rss);
    exit(exit_code);
}

/* Ends a server that never started nginx. */
static void __attribute__((noreturn, format(printf, 3, 4))) stop(const char *kind, int exit_code, const char *format,
                                                                  ...)
{
    char reason[1024];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(reason, sizeof(reason), format, arguments);
    va_end(arguments);
    exit(give_up(kind, exit_code, reason));
}

static void __attribute__((noreturn)) fail(const char *what)
{
    stop("error", EXIT_FAILED, "%s: %s", what, strerror(errno));
}

/* ---- content ---- */

static uint64_t available_memory(void)
{
    char line[256];
    uint64_t kib = UINT64_MAX / 1024;
    FILE *file = fopen("/proc/meminfo", "r");

    if (file == NULL)
        fail("/proc/meminfo");
    while (fgets(line, sizeof(line), file) != NULL)
        if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
            break;
    fclose(file);
    return kib * 1024;
}

/* Makes a file of this many bytes of content in memory. */
static int make_content(uint64_t bytes)
{
    enum { PERIODS = 16 };
    static char *block;
    const size_t block_bytes = (size_t)PERIODS * CONTENT_PERIOD;
    uint64_t written = 0;
    int fd;

    if (block == NULL) {
        block = malloc(block_bytes);
        if (block == NULL)
            stop("error", EXIT_FAILED, "--content %" PRIu64 ": out of memory", bytes);
        for (int i = 0; i < PERIODS; i++)
            memcpy(block + (size_t)i * CONTENT_PERIOD, content_period(), CONTENT_PERIOD);
    }
    fd = memfd_create("quicbed-content", 0);
    if (fd < 0)
        fail("memfd_create");
    while (written < bytes) {
        const size_t at = written % block_bytes;
        const size_t room = block_bytes - at;
        const ssize_t done = write(fd, block + at, bytes - written < room ? (size_t)(bytes - written) : room);

        if (done < 0) {
            if (errno == EINTR)
                continue;
            stop("error", EXIT_FAILED, "--content %" PRIu64 ": %s", bytes, strerror(errno));
        }
        written += (uint64_t)done;
    }
    return fd;
}

static void make_contents(const struct options *options)
{
    /* Left for everything else, so that the machine does not run out of memory in the middle of a transfer. */
    const uint64_t reserve = UINT64_C(256) << 20;
    uint64_t needed = 0, available = available_memory();

    for (size_t i = 0; i < options->content_count; i++)
        needed = options->content[i] > UINT64_MAX - needed ? UINT64_MAX : needed + options->content[i];
    if (needed > 0 && (available < reserve || needed > available - reserve))
        stop("error", EXIT_FAILED,
                "the content needs %" PRIu64 " MiB of memory, but only %" PRIu64 " MiB are available and %" PRIu64
                " of them kept free; ask for fewer bytes",
                needed >> 20, available >> 20, reserve >> 20);
    server.contents = calloc(options->content_count + 1, sizeof(*server.contents));
    if (server.contents == NULL)
        fail("--content");
    for (size_t i = 0; i < options->content_count; i++)
        server.contents[i] = make_content(options->content[i]);
}

/* ---- preparing nginx ---- */

static void listen_on(const struct options *options)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } address = {0};
    socklen_t length;
    const int on = 1;

    if (strchr(options->address, ':') != NULL) {
        address.v6.sin6_family = AF_INET6;
        address.v6.sin6_port = htons((uint16_t)options->port);
        inet_pton(AF_INET6, options->address, &address.v6.sin6_addr);
        length = sizeof(address.v6);
    } else {
        address.v4.sin_family = AF_INET;
        address.v4.sin_port = htons((uint16_t)options->port);
        inet_pton(AF_INET, options->address, &address.v4.sin_addr);
        length = sizeof(address.v4);
    }
    if (!library.quic)
        setsockopt(server.listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(server.listener, &address.any, length) != 0 || (!library.quic && listen(server.listener, 511) != 0))
        stop("error", EXIT_FAILED, "--listen %s:%d: %s", options->address, options->port, strerror(errno));
    length = sizeof(address);
    if (getsockname(server.listener, &address.any, &length) != 0)
        fail("getsockname");
    server.port = ntohs(address.any.sa_family == AF_INET6 ? address.v6.sin6_port : address.v4.sin_port);
}

/* Returns the end of the pipe that nginx writes to. */
static int open_log(void)
{
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) != 0)
        fail("pipe");
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    server.log.fd = ends[0];
    return ends[1];
}

/* An nginx string: quoted, so that blanks and braces in a path mean nothing. */
static void write_path(FILE *config, const char *directive, const char *option, const char *path)
{
    char *absolute = realpath(path, NULL);

    if (absolute == NULL)
        stop("error", EXIT_FAILED, "%s %s: %s", option, path, strerror(errno));
    if (strpbrk(absolute, "\"\\$\n") != NULL)
        stop("error", EXIT_FAILED, "%s %s: nginx cannot take a path with any of \" \\ $", option, path);
    fprintf(config, "    %s \"%s\";\n", directive, absolute);
    free(absolute);
}

/* A directory without a name: nginx insists on one for request bodies, although a GET has none. */
static int open_removed_directory(void)
{
    char path[] = "/tmp/quicbed-nginx-XXXXXX";
    int fd;

    if (mkdtemp(path) == NULL)
        fail(path);
    fd = open(path, O_PATH | O_DIRECTORY);
    if (rmdir(path) != 0 || fd < 0)
        fail(path);
    return fd;
}

/* Whether a file's name is this size: files go before content made in memory. */
static bool is_file(const struct options *options, uint64_t size)
{
    char name[24];

    snprintf(name, sizeof(name), "%" PRIu64, size);
    for (size_t i = 0; i < options->file_count; i++)
        if (strcmp(options->files[i].name, name) == 0)
            return true;
    return false;
}

static void write_file(FILE *config, const struct file *file)
{
    if (strpbrk(file->name, "\"\\$\n") != NULL)
        stop("error", EXIT_FAILED, "--www: nginx cannot take the name %s with any of \" \\ $", file->name);
    fprintf(config, "        location = \"/%s\" {\n", file->name);
    write_path(config, "        alias", "--www", file->path);
    fprintf(config, "        }\n");
}

static void write_config(const struct options *options)
{
    static const char over_tcp[] =
        "    tcp_nodelay on;\n"
        /* nginx's default, the largest TLS record. Larger values of this and of output_buffers gained nothing. */
        "    ssl_buffer_size 16k;\n";
    static const char over_quic[] =
        "    http3 on;\n";
    static const char for_pages[] =
        "    http2 on;\n";
    static const char without_sessions[] =
        "    ssl_session_cache off;\n"
        "    ssl_session_tickets off;\n";
    static const char with_tickets[] =
        "    ssl_session_cache none;\n"
        "    ssl_session_tickets on;\n";
    /*
     * When an idle connection is closed. libcurl does so first, and a client that is gone is forgotten; a browser keeps
     * connections for minutes, and is to have none left when it comes again.
     */
    const int idle_s = !library.quic && options->requests == 1 ? 0 : !resumes(options) ? 60 : 2;
    const bool ipv6 = strchr(options->address, ':') != NULL;
    int pid_file = memfd_create("quicbed-nginx.pid", 0);
    FILE *config;

    server.config = memfd_create("quicbed-nginx.conf", 0);
    if (pid_file < 0 || server.config < 0)
        fail("memfd_create");
    config = fdopen(dup(server.config), "w");
    if (config == NULL)
        fail("nginx configuration");
    if (geteuid() == 0) {
        /* Without it nginx, as root, would look for a user "nobody" to give its directories to. */
        const struct passwd *user = getpwuid(0);
        const struct group *group = getgrgid(0);
        fprintf(config, "user %s %s;\n", user == NULL ? "root" : user->pw_name,
                group == NULL ? "root" : group->gr_name);
    }
    fprintf(config,
            "daemon off;\n"
            "master_process off;\n" /* one process that does the work, and none to outlive it */
            "error_log stderr info;\n"
            "pid /proc/self/fd/%d;\n"
            "events {\n    worker_connections 512;\n}\n"
            "http {\n"
            "    log_format quicbed '" LOG_FORMAT "';\n"
            "    access_log /proc/self/fd/2 quicbed;\n"
            "    client_body_temp_path /proc/self/fd/%d;\n"
            /* of the files of pages: a browser draws nothing else */
            "    types { text/html html; text/css css; text/javascript js; image/png png; font/woff2 woff2; }\n"
            "    default_type application/octet-stream;\n"
             "%s%s"
            "    keepalive_timeout %ds;\n"
             "    ssl_protocols %s;\n"
            "    ssl_conf_command Ciphersuites %s;\n"
            "    ssl_ciphers %s@SECLEVEL=0;\n" /* of TLS 1.2; the level is for RSA-1024 */
            "    ssl_conf_command SignatureAlgorithms %s;\n"
            "    ssl_ecdh_curve %s;\n"
            "%s",
            pid_file, open_removed_directory(), library.quic ? over_quic : over_tcp,
             library.quic ? "" : options->requests > 1 ? for_pages : "", idle_s,
             options->tls12 ? "TLSv1.2" : "TLSv1.3", options->cipher->iana,
             options->tls12 ? options->cipher->tls12_openssl : "DEFAULT", options->signature->tls_name,
             options->group->tls_name, resumes(options) ? with_tickets : without_sessions);
    /* nginx forgets that a request was early data once the handshake is complete, but not what it has once told of it. */
    if (options->visit == EARLY_DATA_VISIT)
        fprintf(config, "    ssl_early_data on;\n    add_header X-Early-Data $ssl_early_data;\n");
    if (options->requests >= KEEPALIVE_REQUESTS)
        fprintf(config, "    keepalive_requests %" PRIu64 ";\n", options->requests + 1);
    write_path(config, "ssl_certificate", "--certificate", options->certificate);
    write_path(config, "ssl_certificate_key", "--private-key", options->private_key);
    if (library.quic)
        fprintf(config, "    quic_retry %s;\n    quic_gso %s;\n", options->retry ? "on" : "off",
                options->gso ? "on" : "off");
    fprintf(config, ipv6 ? "    server {\n        listen [%s]:%d %s;\n" : "    server {\n        listen %s:%d %s;\n",
            options->address, server.port, library.quic ? "quic" : "ssl");
    fprintf(config, "        location / { internal; }\n"); /* 404 */
    for (size_t i = 0; i < options->content_count; i++)
        if (!is_file(options, options->content[i]))
            fprintf(config, "        location = /%" PRIu64 " { alias /proc/self/fd/%d; }\n", options->content[i],
                    server.contents[i]);
    for (size_t i = 0; i < options->file_count; i++)
        write_file(config, &options->files[i]);
    fprintf(config, "    }\n}\n");
    if (fclose(config) != 0)
        fail("nginx configuration");
}

/* Starts nginx; everything it needs is in file descriptors it inherits. */
static void start_nginx(const struct options *options, const sigset_t *original_mask, int log_write)
{
    const pid_t parent = getpid();
    char config[64], inherited[64], program[PATH_MAX];

    snprintf(program, sizeof(program), "%s", build_path("sbin/nginx"));
    snprintf(config, sizeof(config), "/proc/self/fd/%d", server.config);
    snprintf(inherited, sizeof(inherited), "%d;", server.listener);
    server.nginx = fork();
    if (server.nginx < 0)
        fail("fork");
    if (server.nginx > 0)
        return;

    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
        _exit(EXIT_FAILED);
    sigprocmask(SIG_SETMASK, original_mask, NULL);
    fcntl(server.listener, F_SETFD, 0);
    dup2(log_write, STDOUT_FILENO);
    dup2(log_write, STDERR_FILENO);
    choose_openssl_configuration(options->noop, !options->header_protection, options->key_log);
    setenv("NGINX", inherited, 1);
    execl(program, program, "-p", "/", "-e", "stderr", "-c", config, (char *)NULL);
    fprintf(stderr, "%s: %s\n", program, strerror(errno));
    _exit(EXIT_FAILED);
}

/* ---- reporting for nginx ---- */

/* Whether nginx has a provider of ours loaded; UNKNOWN where the kernel does not tell. */
static int has_loaded(const char *provider)
{
    char path[64], name[64], line[PATH_MAX + 128];
    int loaded = false;
    FILE *maps;

    snprintf(path, sizeof(path), "/proc/%d/maps", (int)server.nginx);
    snprintf(name, sizeof(name), "/%s.so", provider);
    maps = fopen(path, "r");
    if (maps == NULL)
        return UNKNOWN;
    while (fgets(line, sizeof(line), maps) != NULL)
        loaded = loaded || strstr(line, name) != NULL;
    fclose(maps);
    return loaded;
}

/*
 * Reads the CPU time of nginx so far. The kernel tells all of it in ns, and that of user and system in clock ticks of
 * usually 10 ms: they share what there is without either running backwards. As connections come one after the other,
 * the difference between the ends of two is that of the second.
 */
static bool read_cpu_time(void)
{
    const int64_t tick_ns = 1000000000 / sysconf(_SC_CLK_TCK);
    char path[64], line[1024] = "";
    int64_t user_ticks, system_ticks, total_ns = 0;
    const char *after_name;
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)server.nginx);
    file = fopen(path, "r");
    if (file == NULL)
        return false;
    after_name = fgets(line, sizeof(line), file) == NULL ? NULL : strrchr(line, ')');
    fclose(file);
    /* proc(5): fields 3 to 13 come before utime and stime */
    if (after_name == NULL
        || sscanf(after_name + 1, " %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %" SCNd64 " %" SCNd64, &user_ticks,
                  &system_ticks)
               != 2)
        return false;
    snprintf(path, sizeof(path), "/proc/%d/schedstat", (int)server.nginx);
    file = fopen(path, "r");
    if (file != NULL) {
        if (fscanf(file, "%" SCNd64, &total_ns) != 1)
            total_ns = 0;
        fclose(file);
    }
    if (total_ns < server.user_ns + server.system_ns) /* a kernel without statistics of its scheduler */
        total_ns = (user_ticks + system_ticks) * tick_ns;
    if (server.user_ns < user_ticks * tick_ns)
        server.user_ns = user_ticks * tick_ns;
    if (server.user_ns > total_ns - server.system_ns)
        server.user_ns = total_ns - server.system_ns;
    server.system_ns = total_ns - server.user_ns;
    return true;
}

/* nginx logs OpenSSL's short name of a curve (obj_mac.h), and the TLS name of a group that is no curve. */
static const char *tls_name(const char *curve)
{
    static const char *const curves[][2] = {{"X25519", "x25519"}, {"X448", "x448"}, {"prime256v1", "secp256r1"}};

    for (size_t i = 0; i < COUNT(curves); i++)
        if (strcmp(curve, curves[i][0]) == 0)
            return curves[i][1];
    for (size_t i = 0; i < QUICBED_GROUPS; i++)
        if (strcmp(curve, quicbed_groups[i].tls_name) == 0)
            return quicbed_groups[i].tls_name;
    return NULL;
}

/* nginx logs OpenSSL's name of a suite, which of TLS 1.2 is another than IANA's. */
static const char *suite_name(const char *name)
{
    const struct cipher *cipher = server.options->cipher;

    return strcmp(name, cipher->tls12_openssl) == 0 ? cipher->tls12_iana : name;
}

/* An nginx variable without a value is logged as nothing or as a dash. */
static const char *known(const char *field)
{
    return field[0] == '\0' || strcmp(field, "-") == 0 ? NULL : field;
}

static int64_t served_bytes(char *const fields[])
{
    return strcmp(fields[F_STATUS], "200") == 0 ? strtoll(fields[F_BYTES], NULL, 10) : 0;
}

/* fields, those of its last request, is NULL for a connection that had none. */
static void write_connection(const char *error, char *const fields[], int64_t bytes)
{
    static const char *const untold[] = {
        "t_accept",
        "t_handshake_complete",
        "t_handshake_confirmed",
        "t_close",
        "hello_retry_request",
        "retry",
        "signature",
        "handshake_packets_sent",
        "handshake_packets_received",
        "handshake_bytes_sent",
        "handshake_bytes_received",
        "packets_sent",
        "packets_received",
        "packets_lost",
    };
    const int64_t user_before = server.user_ns, system_before = server.system_ns;
    const bool cpu_known = read_cpu_time();
    const bool resumed = fields != NULL && strcmp(fields[F_REUSED], "r") == 0;

    event_begin("connection");
    event_integer("index", (int64_t)server.connections);
    event_boolean("ok", error == NULL);
    event_string("error", error);
    event_integer("bytes_sent", bytes);
    event_string("cipher", fields == NULL ? NULL : known(suite_name(fields[F_CIPHER])));
    /* with TLS 1.2 a resumed session has no key exchange, and nginx tells of that of the first one */
    event_string("group", fields == NULL || (resumed && server.options->tls12) ? NULL : tls_name(fields[F_CURVE]));
    event_string("alpn", fields == NULL ? NULL : known(fields[F_ALPN]));
    event_string("tls_version", fields == NULL ? NULL : known(fields[F_PROTOCOL]));
    event_truth("resumed", fields == NULL ? UNKNOWN : resumed);
    event_truth("early_data", fields == NULL ? UNKNOWN : strcmp(fields[F_EARLY], "1") == 0);
    event_string("aead", fields == NULL ? NULL : server.aead);
    event_string("header_protection", fields == NULL ? NULL : server.header_protection);
    event_integer("cpu_user_ns", cpu_known ? server.user_ns - user_before : UNKNOWN);
    event_integer("cpu_system_ns", cpu_known ? server.system_ns - system_before : UNKNOWN);
    for (size_t i = 0; i < COUNT(untold); i++)
        event_string(untold[i], NULL);
    event_end();
    server.connections++;
    server.failed += error != NULL;
}

/*
 * Of a connection over QUIC that its client closes before a request, nginx's log has nothing but that it has met an
 * unknown transport parameter, which those of ngtcp2 always have (version_information, RFC 9368). Connections follow each
 * other, so those that began before one that is served have ended.
 */
static void forget_begun(size_t count, bool failed)
{
    for (size_t i = 0; i < count && failed; i++)
        write_connection("the connection ended without a request, nginx does not tell why", NULL, 0);
    server.begun.count -= count;
    memmove(server.begun.numbers, server.begun.numbers + count, server.begun.count * sizeof(*server.begun.numbers));
}

/* How many connections began before nginx gave out this number. */
static size_t begun_before(uint64_t number)
{
    size_t count = 0;

    while (count < server.begun.count && server.begun.numbers[count] < number)
        count++;
    return count;
}

static void on_begin(uint64_t number)
{
    if (server.begun.count == COUNT(server.begun.numbers))
        forget_begun(1, true);
    server.begun.numbers[server.begun.count++] = number;
}

/* The number is that of the request's stream, which nginx counts after its connection and before the next one. */
static void on_served(uint64_t number)
{
    const size_t count = begun_before(number);

    if (count > 0) {
        forget_begun(count - 1, true);
        forget_begun(1, false);
    }
}

/*
 * The requests of a connection that has had fewer than it is to have: they come from one port, and every connection has
 * its own. `fields` are those of the last one, in `line`.
 */
static struct {
    uint64_t requests;
    int64_t bytes;
    bool early;            /* one of them was early data */
    uint64_t first_number; /* that of the first one's stream */
    char line[1024], error[512];
    char *fields[F_COUNT];
} begun_page;

static void end_page(void)
{
    const bool flooded = server.flooded > 0 && server.flooded < begun_page.first_number;

    if (begun_page.requests == 0)
        return;
    if (begun_page.error[0] == '\0' && begun_page.requests < server.options->requests)
        snprintf(begun_page.error, sizeof(begun_page.error), "the connection ended after %" PRIu64 " of %" PRIu64
                 " requests", begun_page.requests, server.options->requests);
    if (flooded) {
        const size_t used = strlen(begun_page.error);

        if (used > 0)
            snprintf(begun_page.error + used, sizeof(begun_page.error) - used, "; nginx closed it: quic flood detected");
        server.flooded = 0;
    }
    begun_page.requests = 0;
    if (begun_page.early)
        begun_page.fields[F_EARLY] = "1";
    write_connection(begun_page.error[0] == '\0' ? NULL : begun_page.error, begun_page.fields, begun_page.bytes);
}

/* Adds a request to its page; a connection is reported with its last one. */
static void on_page_request(char *const fields[], const char *error)
{
    size_t used = 0;

    if (begun_page.requests > 0 && strcmp(begun_page.fields[F_PORT], fields[F_PORT]) != 0)
        end_page();
    if (begun_page.requests++ == 0) {
        begun_page.bytes = 0;
        begun_page.early = false;
        begun_page.first_number = strtoull(fields[F_NUMBER], NULL, 10);
        begun_page.error[0] = '\0';
    }
    begun_page.bytes += served_bytes(fields);
    begun_page.early = begun_page.early || strcmp(fields[F_EARLY], "1") == 0;
    if (error != NULL && begun_page.error[0] == '\0')
        snprintf(begun_page.error, sizeof(begun_page.error), "%s", error);
    for (int i = 0; i < F_COUNT; i++) {
        begun_page.fields[i] = begun_page.line + used;
        used += (size_t)snprintf(begun_page.line + used, sizeof(begun_page.line) - used, "%.80s", fields[i]) + 1;
    }
    if (begun_page.requests == server.options->requests)
        end_page();
}

/* A line of nginx's access log: one request, the only one of its connection unless there are pages. */
static void on_request(char *line)
{
    char *fields[F_COUNT], text[512], *error = NULL;

    for (int i = 0; i < F_COUNT; i++) {
        fields[i] = strsep(&line, "\t");
        if (fields[i] == NULL) {
            event_reason("error", "nginx wrote a log line with %d fields instead of %d", i, F_COUNT);
            return;
        }
    }
    on_served(strtoull(fields[F_NUMBER], NULL, 10));
    if (strcmp(fields[F_STATUS], "200") != 0) {
        snprintf(text, sizeof(text), "HTTP status %s for %s", fields[F_STATUS], fields[F_URI]);
        error = text;
    } else if (strcmp(fields[F_COMPLETION], "OK") != 0) {
        snprintf(text, sizeof(text), "the connection ended after %s bytes of %s", fields[F_BYTES], fields[F_URI] + 1);
        error = text;
    }
    if (server.options->requests > 1)
        on_page_request(fields, error);
    else
        write_connection(error, fields, served_bytes(fields));
}

/* A line of nginx's error log: "2026/01/31 12:00:00 [level] pid#thread: *connection message". */
static void on_message(char *line)
{
    const char *level = strstr(line, " [");
    const char *text = level == NULL ? NULL : strstr(level, ": ");
    uint64_t number;

    text = text == NULL ? line : text + 2;
    number = text[0] == '*' ? strtoull(text + 1, NULL, 10) : 0;
    if (strstr(text, " quic unknown transport param ") != NULL) {
        if (number > server.last_begun)
            on_begin(number);
        server.last_begun = number > server.last_begun ? number : server.last_begun;
    } else if (strstr(text, " quic flood detected ") != NULL) {
        server.flooded = number;
    } else if (strstr(text, " while SSL handshaking") != NULL || strstr(text, " while waiting for request") != NULL
               || strstr(text, " SSL_do_handshake() failed ") != NULL) {
        const char *blank = strchr(text, ' ');

        if (begun_before(number + 1) > 0) {
            forget_begun(begun_before(number), true);
            forget_begun(begun_before(number + 1), false);
        }
        if (number != server.last_unserved)
            write_connection(text[0] == '*' && blank != NULL ? blank + 1 : text, NULL, 0);
        server.last_unserved = number;
    } else if (level != NULL && strncmp(level, " [notice]", 9) == 0) {
        /* The first line after the configuration, the certificate and the listening socket were accepted. */
        if (!server.ready && strncmp(text, "nginx/", 6) == 0) {
            const bool changed = server.options->noop || !server.options->header_protection;

            server.ready = true;
            if (has_loaded(NOOP_PROVIDER) != changed || has_loaded(PQ_PROVIDER) != is_pq_build()) {
                snprintf(server.last_message, sizeof(server.last_message),
                         "nginx has not loaded the OpenSSL provider of %s; build this flavour again",
                         build_path("lib"));
                kill(server.nginx, SIGKILL);
                return;
            }
            server.aead = server.options->noop ? "noop" : "standard";
            if (library.quic)
                server.header_protection = server.options->header_protection ? "on" : "off";
            read_cpu_time();
            event_ready(server.options, server.port);
        }
    } else if (level == NULL || strncmp(level, " [info]", 7) != 0) {
        /* Once ready, complaints about one connection come with its log line; at the end nginx warns that its
           process id file, which is in memory, cannot be removed. */
        if (!server.ready || (level != NULL && strncmp(level, " [emerg]", 8) == 0))
            snprintf(server.last_message, sizeof(server.last_message), "%s", text);
    }
}

/* Handles every complete line that is there. */
static void read_log(void)
{
    struct lines *lines = &server.log;

    for (;;) {
        ssize_t length = read(lines->fd, lines->buffer + lines->used, sizeof(lines->buffer) - 1 - lines->used);
        char *start = lines->buffer, *newline;

        if (length < 0 && errno == EINTR)
            continue;
        if (length <= 0)
            return;
        lines->used += (size_t)length;
        lines->buffer[lines->used] = '\0';
        while ((newline = memchr(start, '\n', lines->used - (size_t)(start - lines->buffer))) != NULL) {
            *newline = '\0';
            if (start[0] == '\t')
                on_request(start + 1);
            else
                on_message(start);
            start = newline + 1;
        }
        lines->used -= (size_t)(start - lines->buffer);
        memmove(lines->buffer, start, lines->used);
        if (lines->used == sizeof(lines->buffer) - 1) /* longer than any line of use */
            lines->used = 0;
    }
}

/* Takes what is known about a living nginx only. */
static void take_stock(void)
{
    server.run_delay = run_delay_ns(server.nginx);
    server.max_rss = max_rss_bytes(server.nginx);
}

/* The same signal comes where nginx was stopped or goes on, which changes nothing. */
static void on_nginx_end(void)
{
    struct rusage usage;
    siginfo_t ended = {0};
    int status;

    if (waitid(P_PID, (id_t)server.nginx, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid == 0)
        return;
    if (!server.stopping)
        take_stock(); /* a process that has ended but was not waited for still has its scheduler statistics */
    if (wait4(server.nginx, &status, 0, &usage) != server.nginx)
        fail("wait4");
    read_log();
    end_page();
    forget_begun(server.begun.count, true);
    if (server.stopping && server.ready)
        finish(EXIT_SUCCESS, &usage);
    if (server.last_message[0] != '\0')
        event_reason("error", "%s", server.last_message);
    else if (WIFSIGNALED(status))
        event_reason("error", "nginx was ended by signal %d", WTERMSIG(status));
    else
        event_reason("error", "nginx ended with exit code %d", WEXITSTATUS(status));
    fprintf(stderr, "nginx ended: %s\n", server.last_message);
    finish(EXIT_FAILED, &usage);
}

static void serve(int signals)
{
    struct pollfd polled[] = {
        {.fd = signals, .events = POLLIN},
        {.fd = server.log.fd, .events = POLLIN},
    };

    for (;;) {
        struct signalfd_siginfo signal_info;

        if (poll(polled, COUNT(polled), server.stopping ? REPEAT_MILLISECONDS : -1) < 0 && errno != EINTR)
            fail("poll");
        read_log();
        while (read(signals, &signal_info, sizeof(signal_info)) == (ssize_t)sizeof(signal_info)) {
            if (signal_info.ssi_signo == SIGCHLD) {
                on_nginx_end();
            } else if (!server.stopping) {
                server.stopping = true;
                server.stop_by = now_ns() + STOP_MILLISECONDS * INT64_C(1000000);
                take_stock();
            }
        }
        if (server.stopping)
            kill(server.nginx, now_ns() < server.stop_by ? SIGTERM : SIGKILL);
    }
}

int main(int argc, char **argv)
{
    struct options options;
    const char *reason;
    sigset_t original;
    int log_write, signals;

    parse_options(&options, SERVER, argc, argv);
    events_open(options.events);
    server = (struct server){.options = &options, .run_delay = UNKNOWN, .max_rss = UNKNOWN};
    reason = unsupported_reason(&options);
    server.listener = reason != NULL ? -1 : open_socket(&options, &reason);
    event_start(&options, server.listener, server.listener < 0 ? NULL : congestion_control_of(server.listener));
    if (reason != NULL)
        stop("unsupported", EXIT_UNSUPPORTED, "%s", reason);
    listen_on(&options);
    make_contents(&options);
    log_write = open_log();
    write_config(&options);

    signals = stop_signals(SIGCHLD, &original);
    if (signals < 0)
        fail("signalfd");
    start_nginx(&options, &original, log_write);
    /* nginx has its own copies. */
    close(log_write);
    close(server.listener);
    for (size_t i = 0; i < options.content_count; i++)
        close(server.contents[i]);
    serve(signals);
}
