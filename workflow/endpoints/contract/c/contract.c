/* Command line, events and content of the endpoint contract. */
#define _GNU_SOURCE
#include "contract.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const struct cipher ciphers[] = {
    {"aes-128-gcm", "TLS_AES_128_GCM_SHA256", "AES-128-GCM", "AES-128-ECB", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
     "ECDHE-RSA-AES128-GCM-SHA256"},
    {"aes-256-gcm", "TLS_AES_256_GCM_SHA384", "AES-256-GCM", "AES-256-ECB", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
     "ECDHE-RSA-AES256-GCM-SHA384"},
    {"chacha20-poly1305", "TLS_CHACHA20_POLY1305_SHA256", "ChaCha20-Poly1305", "ChaCha20",
     "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305"},
};

static const char *const congestion_controls[] = {"cubic", "reno", "bbr"};

/* UDP payload: the least that every path of QUIC carries (RFC 9000, 14), and the most that UDP over IPv4 does. */
enum { SMALLEST_DATAGRAM = 1200, LARGEST_DATAGRAM = 65507 };

/* 32 times Linux' default of 208 KiB; TCP sizes its buffers itself. */
enum { UDP_BUFFER = 32 * 208 * 1024 };

/* ---- command line ---- */

void usage_error(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(EXIT_USAGE);
}

uint64_t parse_number(const char *option, const char *value, uint64_t minimum, uint64_t maximum)
{
    char *end;
    uint64_t number;

    errno = 0;
    number = strtoull(value, &end, 10);
    if (!isdigit((unsigned char)value[0]) || *end != '\0' || errno != 0 || number < minimum || number > maximum)
        usage_error("%s %s: must be a whole number from %" PRIu64 " to %" PRIu64, option, value, minimum, maximum);
    return number;
}

static double parse_seconds(const char *option, const char *value)
{
    char *end;
    double seconds = strtod(value, &end);

    /* The upper limit keeps the milliseconds within libcurl's long. */
    if (end == value || *end != '\0' || !isfinite(seconds) || seconds < 0.001 || seconds > 1e9)
        usage_error("%s %s: must be a number of seconds from 0.001 to 1e9", option, value);
    return seconds;
}

static bool parse_choice(const char *option, const char *value, const char *yes, const char *no)
{
    if (strcmp(value, yes) != 0 && strcmp(value, no) != 0)
        usage_error("%s %s: must be %s or %s", option, value, yes, no);
    return strcmp(value, yes) == 0;
}

/* Splits IPv4:PORT or [IPv6]:PORT. */
static void parse_address(const char *option, const char *value, struct options *options)
{
    struct in6_addr parsed;
    const char *colon = strrchr(value, ':');
    size_t length;
    bool bracketed;

    if (colon == NULL)
        usage_error("%s %s: must be IP:PORT", option, value);
    memset(options->address, 0, sizeof(options->address));
    length = (size_t)(colon - value);
    bracketed = length > 2 && value[0] == '[' && colon[-1] == ']';
    if (bracketed)
        length -= 2;
    if (length < sizeof(options->address))
        memcpy(options->address, value + (bracketed ? 1 : 0), length);
    if (length >= sizeof(options->address)
        || inet_pton(bracketed ? AF_INET6 : AF_INET, options->address, &parsed) != 1)
        usage_error("%s %s: must be IP:PORT, with an IPv6 address in brackets", option, value);
    /* Port 0 lets the system choose one, which only makes sense for a server. */
    options->port = (int)parse_number(option, colon + 1, options->role == SERVER ? 0 : 1, 65535);
}

static const struct cipher *parse_cipher(const char *value)
{
    for (size_t i = 0; i < COUNT(ciphers); i++)
        if (strcmp(value, ciphers[i].name) == 0)
            return &ciphers[i];
    usage_error("--cipher %s: must be aes-128-gcm, aes-256-gcm or chacha20-poly1305", value);
}

static const char *parse_congestion_control(const char *value)
{
    for (size_t i = 0; i < COUNT(congestion_controls); i++)
        if (strcmp(value, congestion_controls[i]) == 0)
            return value;
    usage_error("--congestion-control %s: must be cubic, reno or bbr", value);
}

static const char *parse_pacing(const char *value)
{
    if (strcmp(value, "off") != 0 && strcmp(value, "library") != 0 && strcmp(value, "txtime") != 0)
        usage_error("--pacing %s: must be off, library or txtime", value);
    return value;
}

static enum visit parse_visit(const char *value)
{
    if (strcmp(value, "first") == 0)
        return FIRST_VISIT;
    if (strcmp(value, "resumed") == 0)
        return RESUMED_VISIT;
    if (strcmp(value, "early-data") == 0)
        return EARLY_DATA_VISIT;
    if (strcmp(value, "kept") == 0)
        return KEPT_VISIT;
    usage_error("--visit %s: must be first, resumed, early-data or kept", value);
}

bool resumes(const struct options *options)
{
    return options->visit == RESUMED_VISIT || options->visit == EARLY_DATA_VISIT;
}

static void add_content(struct options *options, uint64_t bytes)
{
    for (size_t i = 0; i < options->content_count; i++)
        if (options->content[i] == bytes)
            return;
    options->content = realloc(options->content, (options->content_count + 1) * sizeof(*options->content));
    if (options->content == NULL)
        usage_error("--content: out of memory");
    options->content[options->content_count++] = bytes;
}

/* Takes a directory entry into the files served, if it is a regular file or a link to one. */
static void add_file(struct options *options, const char *directory, const char *name)
{
    struct file file = {.name = strdup(name)};
    struct stat about;
    int fd;

    options->files = realloc(options->files, (options->file_count + 1) * sizeof(*options->files));
    if (asprintf(&file.path, "%s/%s", directory, name) < 0 || file.name == NULL || options->files == NULL)
        usage_error("--www %s: out of memory", directory);
    if (stat(file.path, &about) != 0 || !S_ISREG(about.st_mode)) {
        free(file.name);
        free(file.path);
        return;
    }
    file.length = (uint64_t)about.st_size;
    file.data = "";
    fd = open(file.path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && file.length > 0) /* mmap(2) refuses nothing at all */
        file.data = mmap(NULL, file.length, PROT_READ, MAP_PRIVATE, fd, 0);
    if (fd < 0 || file.data == MAP_FAILED)
        usage_error("--www %s: %s: %s", directory, name, strerror(errno));
    close(fd);
    options->files[options->file_count++] = file;
}

static void add_files(struct options *options, const char *directory)
{
    const struct dirent *entry;
    DIR *entries = opendir(directory);

    if (entries == NULL)
        usage_error("--www %s: %s", directory, strerror(errno));
    while ((entry = readdir(entries)) != NULL)
        add_file(options, directory, entry->d_name);
    closedir(entries);
}

/* The last component of a path. */
static const char *name_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash == NULL ? path : slash + 1;
}

static const char *parse_save(const char *option, const char *value)
{
    const char *name = name_of(value);
    const size_t length = strlen(name);
    bool odd = length == 0 || length > NAME_MAX || strcmp(name, ".") == 0 || strcmp(name, "..") == 0;

    for (size_t i = 0; i < length; i++)
        odd = odd || isspace((unsigned char)name[i]) || iscntrl((unsigned char)name[i]);
    if (odd)
        usage_error("%s %s: its name cannot be asked for", option, value);
    return value;
}

/* Sizes separated by commas; what is asked for on a connection is their sum. */
static void parse_page(struct options *options, const char *option, const char *value)
{
    char *text = strdup(value), *rest = text, *size;

    options->page = calloc(LARGEST_PAGE, sizeof(*options->page));
    if (text == NULL || options->page == NULL)
        usage_error("%s: out of memory", option);
    options->page_count = 0;
    options->bytes = 0;
    while ((size = strsep(&rest, ",")) != NULL) {
        if (options->page_count == LARGEST_PAGE)
            usage_error("%s: more than %d objects", option, LARGEST_PAGE);
        options->page[options->page_count] = parse_number(option, size, 1, LARGEST_OBJECT);
        options->bytes += options->page[options->page_count++];
    }
    free(text);
}

static bool client_option(struct options *options, const char *option, const char *value)
{
    if (strcmp(option, "--connect") == 0)
        parse_address(option, value, options);
    else if (strcmp(option, "--server-name") == 0)
        options->server_name = value;
    else if (strcmp(option, "--ca") == 0)
        options->ca = value;
    else if (strcmp(option, "--verify") == 0)
        options->verify = parse_choice(option, value, "on", "off");
    else if (strcmp(option, "--bytes") == 0)
        options->bytes = parse_number(option, value, 0, INT64_MAX);
    else if (strcmp(option, "--page") == 0)
        parse_page(options, option, value);
    else if (strcmp(option, "--save") == 0)
        options->save = parse_save(option, value);
    else if (strcmp(option, "--connections") == 0)
        options->connections = parse_number(option, value, 1, INT64_MAX);
    else if (strcmp(option, "--timeout") == 0)
        options->timeout_seconds = parse_seconds(option, value);
    else
        return false;
    return true;
}

static bool server_option(struct options *options, const char *option, const char *value)
{
    if (strcmp(option, "--listen") == 0)
        parse_address(option, value, options);
    else if (strcmp(option, "--certificate") == 0)
        options->certificate = value;
    else if (strcmp(option, "--private-key") == 0)
        options->private_key = value;
    else if (strcmp(option, "--content") == 0)
        add_content(options, parse_number(option, value, 0, INT64_MAX));
    else if (strcmp(option, "--www") == 0)
        add_files(options, value);
    else if (strcmp(option, "--requests") == 0)
        options->requests = parse_number(option, value, 1, MOST_REQUESTS);
    else if (strcmp(option, "--retry") == 0)
        options->retry = parse_choice(option, value, "on", "off");
    else
        return false;
    return true;
}

static bool common_option(struct options *options, const char *option, const char *value)
{
    /* Linux keeps twice the size of a socket buffer in an int (socket(7)). */
    const uint64_t largest_buffer = INT_MAX / 2;

    if (strcmp(option, "--events") == 0) {
        options->events = value;
    } else if (strcmp(option, "--cipher") == 0) {
        options->cipher = parse_cipher(value);
    } else if (strcmp(option, "--aead") == 0) {
        options->noenc = strcmp(value, "noenc") == 0;
        options->noop = !options->noenc && parse_choice(option, value, "noop", "standard");
    } else if (strcmp(option, "--header-protection") == 0) {
        options->header_protection = parse_choice(option, value, "on", "off");
    } else if (strcmp(option, "--tls-version") == 0) {
        options->tls12 = parse_choice(option, value, "TLSv1.2", "TLSv1.3");
    } else if (strcmp(option, "--visit") == 0) {
        options->visit = parse_visit(value);
    } else if (strcmp(option, "--group") == 0) {
        options->group_name = value;
    } else if (strcmp(option, "--signature") == 0) {
        options->signature_name = value;
    } else if (strcmp(option, "--congestion-control") == 0) {
        options->congestion_control = parse_congestion_control(value);
    } else if (strcmp(option, "--receive-buffer") == 0) {
        options->receive_buffer = (int)parse_number(option, value, 1, largest_buffer);
    } else if (strcmp(option, "--send-buffer") == 0) {
        options->send_buffer = (int)parse_number(option, value, 1, largest_buffer);
    } else if (strcmp(option, "--key-log") == 0) {
        options->key_log = value;
    } else if (strcmp(option, "--gso") == 0) {
        options->gso_paced = strcmp(value, "paced") == 0;
        options->gso = options->gso_paced || parse_choice(option, value, "on", "off");
    } else if (strcmp(option, "--pacing") == 0) {
        options->pacing = parse_pacing(value);
    } else if (strcmp(option, "--gro") == 0) {
        options->gro = parse_choice(option, value, "on", "off");
    } else if (strcmp(option, "--udp-payload") == 0) {
        options->udp_payload = (int64_t)parse_number(option, value, SMALLEST_DATAGRAM, LARGEST_DATAGRAM);
    } else if (strcmp(option, "--initial-size") == 0) {
        options->initial_size = (int64_t)parse_number(option, value, SMALLEST_DATAGRAM, LARGEST_DATAGRAM);
    } else if (strcmp(option, "--window") == 0) {
        parse_number(option, value, 1, (UINT64_C(1) << 62) - 1);
    } else {
        return false;
    }
    return true;
}

/* Whether a word is in a list separated by blanks. */
static bool is_in(const char *list, const char *word)
{
    const size_t length = strlen(word);

    for (const char *at = list; (at = strstr(at, word)) != NULL; at += length)
        if ((at == list || at[-1] == ' ') && (at[length] == '\0' || at[length] == ' '))
            return true;
    return false;
}

const char *wanted_suite(const struct options *options)
{
    return options->tls12 ? options->cipher->tls12_iana : options->cipher->iana;
}

const char *application_protocol(void)
{
    return library.alpn != NULL ? library.alpn : library.quic ? "hq-interop" : "http/1.1";
}

/* Prints what this build can do. */
static void describe(void)
{
    const bool noop = is_noop_build();
    const char *before = "";

    printf("{\"contract\": %d, \"library\": \"%s\", \"version\": \"%s\", \"tls_library\": \"%s\", ", CONTRACT,
           library.name, VERSION, TLS_LIBRARY);
    printf("\"flavour_features\": [%s], \"transport\": \"%s\", \"alpn\": [\"%s\"], \"ciphers\": [",
           noop ? "\"noop\"" : is_pq_build() ? "\"pq\"" : "", library.quic ? "quic" : "tcp",
           application_protocol());
    for (size_t i = 0; i < COUNT(ciphers); i++, before = ", ")
        printf("%s\"%s\"", before, ciphers[i].name);
    printf("], \"aead\": [\"standard\"%s], \"header_protection\": [%s], \"groups\": [", noop ? ", \"noop\"" : "",
           !library.quic ? "" : noop && library.header_protection_off ? "\"on\", \"off\"" : "\"on\"");
    before = "";
    for (size_t i = 0; i < QUICBED_GROUPS; i++) {
        if (no_group(&quicbed_groups[i], quicbed_groups[i].name) != NULL)
            continue;
        printf("%s\"%s\"", before, quicbed_groups[i].name);
        before = ", ";
    }
    printf("], \"signatures\": [");
    before = "";
    for (size_t i = 0; i < QUICBED_SIGNATURES; i++) {
        if (no_signature(&quicbed_signatures[i], quicbed_signatures[i].name) != NULL)
            continue;
        printf("%s\"%s\"", before, quicbed_signatures[i].name);
        before = ", ";
    }
    printf("], \"retry\": %s, \"initial_size\": false, \"congestion_controls\": [", library.retry ? "true" : "false");
    before = "";
    for (size_t i = 0; i < COUNT(congestion_controls); i++) {
        if (!is_in(library.congestion_controls, congestion_controls[i]))
            continue;
        printf("%s\"%s\"", before, congestion_controls[i]);
        before = ", ";
    }
    printf("], \"pacing\": [\"%s\"], \"gso\": %s, \"gso_paced\": false, \"gro\": %s, \"files\": true, "
           "\"pages\": %s",
           library.pacing, library.gso ? "true" : "false", library.gro ? "true" : "false",
           library.page_alpn != NULL ? "true" : "false");
    if (library.resumption)
        printf(", \"visits\": [\"resumed\"%s%s]", library.no_early_data == NULL ? ", \"early-data\"" : "",
               library.page_alpn != NULL ? ", \"kept\"" : "");
    printf("}\n");
}

/* The first that the library has. */
static const char *default_congestion_control(void)
{
    for (size_t i = 0; i < COUNT(congestion_controls); i++)
        if (is_in(library.congestion_controls, congestion_controls[i]))
            return congestion_controls[i];
    return NULL;
}

static void require(const void *value, const char *option)
{
    if (value == NULL)
        usage_error("%s is missing", option);
}

void parse_options(struct options *options, enum role role, int argc, char **argv)
{
    bool bytes_given = false;

    *options = (struct options){
        .role = role,
        .events = "-",
        .cipher = &ciphers[0],
        .group_name = "x25519",
        .signature_name = "rsa-2048",
        .gso = true,
        .verify = true,
        .gro = true,
        .initial_size = SMALLEST_DATAGRAM,
        .udp_payload = 1472, /* what an MTU of 1500 bytes leaves of IPv4 */
        .header_protection = true,
        .congestion_control = default_congestion_control(),
        .receive_buffer = library.quic ? UDP_BUFFER : UNKNOWN,
        .send_buffer = library.quic ? UDP_BUFFER : UNKNOWN,
        .connections = 1,
        .requests = 1,
        .timeout_seconds = 60,
    };
    for (int i = 1; i < argc; i += 2) {
        const char *option = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;

        if (strcmp(option, "--describe") == 0) {
            describe();
            exit(EXIT_SUCCESS);
        }
        if (value == NULL)
            value = "";
        if (!common_option(options, option, value)
            && !(role == CLIENT ? client_option : server_option)(options, option, value))
            usage_error("unknown option %s", option);
        if (i + 1 >= argc || *value == '\0')
            usage_error("%s: the value is missing", option);
        bytes_given = bytes_given || strcmp(option, "--bytes") == 0;
    }
    if (options->initial_size > options->udp_payload)
        usage_error("--initial-size %" PRId64 ": must not be above --udp-payload %" PRId64, options->initial_size,
                    options->udp_payload);
    options->group = find_group(options->group_name);
    options->signature = find_signature(options->signature_name);
    if (role == CLIENT) {
        require(options->address[0] != '\0' ? options : NULL, "--connect");
        require(options->server_name, "--server-name");
        if (!options->verify && options->save == NULL)
            usage_error("--verify off: only with --save, what is measured comes from a verified server");
        if (!options->verify && options->ca != NULL)
            usage_error("--ca: not with --verify off");
        if (options->verify)
            require(options->ca, "--ca");
        require(bytes_given || options->save != NULL || options->page_count > 0 ? options : NULL, "--bytes");
        if (bytes_given + (options->save != NULL) + (options->page_count > 0) > 1)
            usage_error("--bytes, --save and --page: only one of them, each says what to ask for");
        if (options->save != NULL)
            options->bytes = INT64_MAX;
    } else {
        require(options->address[0] != '\0' ? options : NULL, "--listen");
        require(options->certificate, "--certificate");
        require(options->private_key, "--private-key");
    }
}

/* ---- time and resources ---- */

int64_t now_ns(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

int64_t user_ns(const struct rusage *usage)
{
    return usage->ru_utime.tv_sec * INT64_C(1000000000) + usage->ru_utime.tv_usec * INT64_C(1000);
}

int64_t system_ns(const struct rusage *usage)
{
    return usage->ru_stime.tv_sec * INT64_C(1000000000) + usage->ru_stime.tv_usec * INT64_C(1000);
}

int64_t run_delay_ns(pid_t pid)
{
    char path[PATH_MAX];
    struct dirent *entry;
    int64_t sum = 0;
    bool any = false;
    DIR *tasks;

    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    tasks = opendir(path);
    if (tasks == NULL)
        return UNKNOWN;
    while ((entry = readdir(tasks)) != NULL) {
        int64_t delay;
        FILE *file;

        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof(path), "/proc/%d/task/%s/schedstat", (int)pid, entry->d_name);
        file = fopen(path, "r");
        if (file == NULL)
            continue; /* the thread has ended, or the kernel has no scheduler statistics */
        if (fscanf(file, "%*d %" SCNd64, &delay) == 1) {
            sum += delay;
            any = true;
        }
        fclose(file);
    }
    closedir(tasks);
    return any ? sum : UNKNOWN;
}

int64_t max_rss_bytes(pid_t pid)
{
    char path[64], line[256];
    int64_t kib = UNKNOWN;
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    file = fopen(path, "r");
    if (file == NULL)
        return UNKNOWN;
    while (fgets(line, sizeof(line), file) != NULL)
        if (sscanf(line, "VmHWM: %" SCNd64 " kB", &kib) == 1)
            break;
    fclose(file);
    return kib < 0 ? UNKNOWN : kib * 1024;
}

/* ---- events ---- */

static FILE *events;

void events_open(const char *path)
{
    events = strcmp(path, "-") == 0 ? stdout : fopen(path, "we");
    if (events == NULL) {
        fprintf(stderr, "--events %s: %s\n", path, strerror(errno));
        exit(EXIT_FAILED);
    }
    /* A line leaves in one write, at event_end(). */
    setvbuf(events, NULL, _IOFBF, 1 << 16);
}

static void write_text(const char *text)
{
    fputc('"', events);
    for (const unsigned char *at = (const unsigned char *)text; *at != '\0'; at++) {
        if (*at == '"' || *at == '\\')
            fprintf(events, "\\%c", *at);
        else if (*at < 0x20 || *at >= 0x7f)
            fprintf(events, "\\u%04x", *at);
        else
            fputc(*at, events);
    }
    fputc('"', events);
}

void event_begin(const char *kind)
{
    fprintf(events, "{\"event\": \"%s\", \"t\": %" PRId64, kind, now_ns());
}

void event_string(const char *key, const char *value)
{
    fprintf(events, ", \"%s\": ", key);
    if (value == NULL)
        fputs("null", events);
    else
        write_text(value);
}

void event_integer(const char *key, int64_t value)
{
    if (value == UNKNOWN)
        fprintf(events, ", \"%s\": null", key);
    else
        fprintf(events, ", \"%s\": %" PRId64, key, value);
}

void event_boolean(const char *key, bool value)
{
    fprintf(events, ", \"%s\": %s", key, value ? "true" : "false");
}

void event_truth(const char *key, int value)
{
    if (value == UNKNOWN)
        event_string(key, NULL);
    else
        event_boolean(key, value != 0);
}

void event_samples(const char *key, const int64_t *values, size_t count)
{
    fprintf(events, ", \"%s\": [", key);
    for (size_t i = 0; i < count; i++)
        fprintf(events, "%s%" PRId64, i > 0 ? ", " : "", values[i]);
    fputc(']', events);
}

void event_end(void)
{
    fputs("}\n", events);
    if (fflush(events) != 0 || ferror(events)) {
        fprintf(stderr, "cannot write events: %s\n", strerror(errno));
        exit(EXIT_FAILED);
    }
}

void event_reason(const char *kind, const char *format, ...)
{
    char reason[1024];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(reason, sizeof(reason), format, arguments);
    va_end(arguments);
    event_begin(kind);
    event_string("reason", reason);
    event_end();
}

/* Size of a socket buffer as the options count it: half of what the kernel accounts for (socket(7)). */
static int64_t buffer_bytes(int fd, int option)
{
    int value;
    socklen_t length = sizeof(value);

    return getsockopt(fd, SOL_SOCKET, option, &value, &length) == 0 ? value / 2 : UNKNOWN;
}

/* Of the first datagrams: what all here have, who cannot change it. */
static int64_t smallest_datagram(void)
{
    return library.datagram != UNKNOWN ? library.datagram : SMALLEST_DATAGRAM;
}

static void begin_start(const char *role)
{
    event_begin("start");
    event_integer("contract", CONTRACT);
    event_string("role", role);
    event_string("library", library.name);
    event_string("version", VERSION);
    event_integer("pid", getpid());
    fputs(", \"options\": {", events);
}

static void end_start(void)
{
    fputc('}', events);
    event_end();
}

void event_start_primitives(uint64_t milliseconds)
{
    begin_start("primitives");
    fprintf(events, "\"milliseconds\": %" PRIu64, milliseconds);
    end_start();
}

void event_start(const struct options *options, int socket_fd, const char *congestion_control)
{
    begin_start(options->role == CLIENT ? "client" : "server");
    fprintf(events, "\"cipher\": \"%s\"", options->cipher->name);
    event_string("aead", options->noop ? "noop" : "standard");
    event_string("header_protection", !library.quic ? NULL : options->header_protection ? "on" : "off");
    event_string("group", options->group_name);
    event_string("signature", options->signature_name);
    if (options->role == SERVER)
        event_boolean("retry", options->retry);
    event_integer("initial_size", library.quic ? smallest_datagram() : UNKNOWN);
    event_string("congestion_control", congestion_control);
    event_string("pacing", library.pacing);
    event_truth("gso", library.quic ? library.gso && options->gso : UNKNOWN);
    event_truth("gro", !library.quic ? UNKNOWN
                                     : library.gro && options->gro
                                           && !(library.no_server_gro && options->role == SERVER));
    event_integer("udp_payload", library.datagram != UNKNOWN || !library.quic || options->role == SERVER
                                     ? library.datagram
                                     : options->udp_payload);
    event_integer("receive_buffer", buffer_bytes(socket_fd, SO_RCVBUF));
    event_integer("send_buffer", buffer_bytes(socket_fd, SO_SNDBUF));
    if (!library.quic) {
        event_boolean("receive_buffer_autotuning", options->receive_buffer == UNKNOWN);
        event_boolean("send_buffer_autotuning", options->send_buffer == UNKNOWN);
    }
    event_truth("aes_hardware", aes_hardware());
    event_string("window", NULL); /* of TCP the kernel's, of QUIC the library's, which nothing can set */
    end_start();
}

void event_final(uint64_t connections, uint64_t failed, const struct rusage *usage, int64_t run_delay, int64_t max_rss)
{
    event_begin("end");
    event_integer("connections", (int64_t)connections);
    event_integer("failed", (int64_t)failed);
    event_integer("cpu_user_ns", user_ns(usage));
    event_integer("cpu_system_ns", system_ns(usage));
    event_integer("run_delay_ns", run_delay);
    event_integer("max_rss_bytes", max_rss);
    event_end();
}

void event_own_final(uint64_t connections, uint64_t failed)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    event_final(connections, failed, &usage, run_delay_ns(getpid()), max_rss_bytes(getpid()));
}

void event_ready(const struct options *options, int port)
{
    event_begin("ready");
    event_string("address", options->address);
    event_integer("port", port);
    event_end();
}

int give_up(const char *kind, int exit_code, const char *reason)
{
    event_reason(kind, "%s", reason);
    fprintf(stderr, "%s\n", reason);
    event_own_final(0, 0);
    return exit_code;
}

/* ---- environment ---- */

const char *build_path(const char *path)
{
    static char joined[2 * PATH_MAX];
    char program[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);

    if (length < 0) {
        fprintf(stderr, "/proc/self/exe: %s; is /proc mounted?\n", strerror(errno));
        exit(EXIT_FAILED);
    }
    program[length] = '\0';
    for (int level = 0; level < 2; level++) {
        char *slash = strrchr(program, '/');
        if (slash != NULL)
            *slash = '\0';
    }
    snprintf(joined, sizeof(joined), "%s/%s", program, path);
    return joined;
}

const quicbed_group *find_group(const char *name)
{
    for (size_t i = 0; i < QUICBED_GROUPS; i++)
        if (strcmp(name, quicbed_groups[i].name) == 0)
            return &quicbed_groups[i];
    return NULL;
}

const quicbed_signature *find_signature(const char *name)
{
    for (size_t i = 0; i < QUICBED_SIGNATURES; i++)
        if (strcmp(name, quicbed_signatures[i].name) == 0)
            return &quicbed_signatures[i];
    return NULL;
}

/* OpenSSL 3.5 has ML-KEM, its hybrids and ML-DSA. */
bool native(const char *liboqs_name)
{
    return liboqs_name == NULL || strncmp(liboqs_name, "ML-", 3) == 0;
}

bool is_noop_build(void)
{
    return access(build_path("lib/" NOOP_PROVIDER ".so"), R_OK) == 0;
}

/* The configuration tells, so that a provider that was lost is an error and not another flavour. */
bool is_pq_build(void)
{
    return access(build_path("etc/openssl-pq.cnf"), R_OK) == 0;
}

static const char *missing_algorithm(bool known, bool has, const char *kind, const char *name)
{
    static char reason[256];

    if (!known)
        snprintf(reason, sizeof(reason), "there is no %s %.64s", kind, name);
    else if (!has && !is_pq_build())
        snprintf(reason, sizeof(reason), "%s has no %s %.64s of its own, only flavour pq has it", TLS_LIBRARY, kind,
                 name);
    else
        return NULL;
    return reason;
}

const char *no_group(const quicbed_group *group, const char *name)
{
    static char reason[160];

    if (group != NULL && library.no_groups != NULL && is_in(library.no_groups, group->name)) {
        snprintf(reason, sizeof(reason), "%s has no group %.64s on both sides", library.name, name);
        return reason;
    }
    return missing_algorithm(group != NULL,
                             group != NULL
                                 && (library.native_groups == NULL ? native(group->liboqs)
                                                                   : is_in(library.native_groups, group->name)),
                             "group", name);
}

const char *no_signature(const quicbed_signature *signature, const char *name)
{
    return missing_algorithm(signature != NULL,
                             signature != NULL
                                 && (library.native_signatures == NULL
                                         ? native(signature->liboqs)
                                         : is_in(library.native_signatures, signature->name)),
                             "signature algorithm", name);
}

const char *unsupported_reason(const struct options *options)
{
    const char *reason;

    if (!options->header_protection && !library.header_protection_off)
        return library.no_header_protection;
    if (!options->header_protection && !is_noop_build())
        return "this build has no --header-protection off, it is no noop flavour";
    if (options->retry && !library.retry)
        return library.no_retry;
    if (library.quic && options->initial_size != smallest_datagram())
        return library.no_initial_size;
    if (!is_in(library.congestion_controls, options->congestion_control))
        return library.no_congestion_control;
    if (options->pacing != NULL && strcmp(options->pacing, library.pacing) != 0)
        return strcmp(library.pacing, "off") == 0 ? "this library has no pacer" : "this library's pacing has no switch";
    if (options->gso_paced)
        return "this library has no --gso paced";
    if (options->noenc)
        return "this library cannot leave out packet protection";
    if (options->tls12 && !library.tls12)
        return library.quic ? "QUIC has no TLS before 1.3 (RFC 9001, 4.2)" : "this library has no TLS before 1.3";
    if (options->tls12 && options->noop)
        return "the NOOP AEAD is one of TLS 1.3";
    if (options->tls12 && strncmp(options->signature_name, "rsa-", 4) != 0)
        return "--tls-version TLSv1.2 is for certificates with RSA";
    if (resumes(options) && !library.resumption)
        return "this library's endpoints resume no sessions";
    if (options->visit == EARLY_DATA_VISIT && options->tls12)
        return "TLS 1.2 has no early data (RFC 8446, 1.2)";
    if (options->visit == EARLY_DATA_VISIT && library.no_early_data != NULL)
        return library.no_early_data;
    if (options->visit == KEPT_VISIT && library.page_alpn == NULL)
        return "this library's endpoints keep no connection for a second visit";
    if ((options->page_count > 0 || options->requests > 1) && library.page_alpn == NULL)
        return "this library loads no pages";
    if (options->noop && !is_noop_build())
        return "this build has no --aead noop, it is no noop flavour";
    reason = no_group(options->group, options->group_name);
    return reason != NULL ? reason : no_signature(options->signature, options->signature_name);
}

static void set_variable(const char *name, const char *value)
{
    if ((value == NULL ? unsetenv(name) : setenv(name, value, 1)) != 0) {
        fprintf(stderr, "%s: %s\n", name, strerror(errno));
        exit(EXIT_FAILED);
    }
}

void choose_openssl_configuration(bool noop, bool no_header_protection, const char *key_log)
{
    const bool changed = noop || no_header_protection;

    set_variable("OPENSSL_CONF", build_path(changed         ? "etc/openssl-noop.cnf"
                                            : is_pq_build() ? "etc/openssl-pq.cnf"
                                                            : "etc/openssl-standard.cnf"));
    /* Read by the configuration of a provider that has both. */
    set_variable("QUICBED_AEAD", noop ? "noop" : "standard");
    set_variable("QUICBED_HEADER_PROTECTION", no_header_protection ? "off" : "on");
    set_variable("OPENSSL_MODULES", build_path("lib"));
    set_variable("SSLKEYLOGFILE", key_log);
}

int stop_signals(int more, sigset_t *original)
{
    sigset_t handled;

    sigemptyset(&handled);
    sigaddset(&handled, SIGTERM);
    sigaddset(&handled, SIGINT);
    if (more != 0)
        sigaddset(&handled, more);
    sigprocmask(SIG_BLOCK, &handled, original);
    return signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK);
}

const char *configure_buffers(const struct options *options, int fd)
{
    static char reason[256];
    const struct {
        const char *option;
        int value, force, plain;
    } buffers[] = {
        {"--receive-buffer", options->receive_buffer, SO_RCVBUFFORCE, SO_RCVBUF},
        {"--send-buffer", options->send_buffer, SO_SNDBUFFORCE, SO_SNDBUF},
    };

    for (size_t i = 0; i < COUNT(buffers); i++) {
        /* The forced variant ignores net.core.rmem_max and wmem_max but needs CAP_NET_ADMIN. */
        if (buffers[i].value != UNKNOWN
            && setsockopt(fd, SOL_SOCKET, buffers[i].force, &buffers[i].value, sizeof(int)) != 0
            && setsockopt(fd, SOL_SOCKET, buffers[i].plain, &buffers[i].value, sizeof(int)) != 0) {
            snprintf(reason, sizeof(reason), "%s %d: %s", buffers[i].option, buffers[i].value, strerror(errno));
            return reason;
        }
    }
    return NULL;
}

/* ---- content ---- */

const char *content_period(void)
{
    static char period[CONTENT_PERIOD + 1];

    if (period[0] == '\0')
        for (int record = 0; record < CONTENT_PERIOD / CONTENT_RECORD; record++)
            snprintf(period + record * CONTENT_RECORD, CONTENT_RECORD + 1, "quicbed%08x\n", (unsigned)record);
    return period;
}

const struct file *find_file(const struct options *options, const char *name, size_t length)
{
    for (size_t i = 0; i < options->file_count; i++)
        if (strlen(options->files[i].name) == length && memcmp(options->files[i].name, name, length) == 0)
            return &options->files[i];
    return NULL;
}

const char *requested(const struct options *options)
{
    static char number[24];

    if (options->save != NULL)
        return name_of(options->save);
    snprintf(number, sizeof(number), "%" PRIu64, options->bytes);
    return number;
}

static void save_content(struct content_check *check, const char *data, size_t length)
{
    if (check->save_error != 0)
        return;
    if (check->saved == NULL)
        check->saved = fopen(check->options->save, "we");
    if (check->saved == NULL || fwrite(data, 1, length, check->saved) != length)
        check->save_error = errno;
}

uint64_t content_requested(const struct content_check *check)
{
    return check->options->save != NULL ? check->received : check->options->bytes;
}

const char *content_problem(struct content_check *check)
{
    static char problem[512];
    const uint64_t wanted = content_requested(check);

    if (check->options->save != NULL) {
        save_content(check, "", 0); /* makes an empty file of nothing */
        if (check->saved != NULL && fclose(check->saved) != 0 && check->save_error == 0)
            check->save_error = errno;
    }
    if (check->save_error != 0)
        snprintf(problem, sizeof(problem), "--save %s: %s", check->options->save, strerror(check->save_error));
    else if (check->wrong)
        snprintf(problem, sizeof(problem), "wrong content at byte %" PRIu64, check->first_wrong);
    else if (check->received != wanted)
        snprintf(problem, sizeof(problem), "%" PRIu64 " of %" PRIu64 " bytes received", check->received, wanted);
    else
        return NULL;
    return problem;
}

void check_content(struct content_check *check, const char *data, size_t length)
{
    const char *period = content_period();
    size_t done = 0;

    if (check->options->save != NULL) {
        save_content(check, data, length);
        done = length;
    }
    while (done < length && !check->wrong) {
        const size_t at = (check->received + done) % CONTENT_PERIOD;
        const size_t piece = length - done < CONTENT_PERIOD - at ? length - done : CONTENT_PERIOD - at;

        if (memcmp(data + done, period + at, piece) != 0) {
            size_t same = 0;
            while (data[done + same] == period[at + same])
                same++;
            check->wrong = true;
            check->first_wrong = check->received + done + same;
        }
        done += piece;
    }
    check->received += length;
}
