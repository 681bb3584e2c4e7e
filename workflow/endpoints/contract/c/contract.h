/* What the programs in C that keep the endpoint contract (../../ENDPOINT.md) share: command line, events, content. */
#ifndef QUICBED_CONTRACT_H
#define QUICBED_CONTRACT_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "algorithms.h"

#define CONTRACT 2
#define NOOP_PROVIDER "quicbed-noop"
#define PQ_PROVIDER "quicbed-pq"

enum { EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_UNSUPPORTED = 127 };

/* The most objects of a page, its document among them, and bytes of one; and the most requests of a connection. */
enum { LARGEST_PAGE = 1000, LARGEST_OBJECT = 1 << 30, MOST_REQUESTS = 1000000 };

/* A value that cannot be told; written as null. */
#define UNKNOWN (-1)

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

enum role { CLIENT, SERVER, PRIMITIVES };

/*
 * What connections after the first one do with what that one has left: nothing, resume, or send the request at once. Of
 * a visit that is kept there are none: all loads go over the first connection, which stays open.
 */
enum visit { FIRST_VISIT, RESUMED_VISIT, EARLY_DATA_VISIT, KEPT_VISIT };

/* What differs between libraries; every endpoint defines its own. VERSION and TLS_LIBRARY come from the build. */
struct library {
    const char *name;
    bool quic;                       /* QUIC v1, else TCP */
    const char *alpn;                /* NULL: hq-interop over QUIC, http/1.1 over TCP */
    const char *congestion_controls; /* separated by blanks */
    const char *pacing;              /* the only value of --pacing */
    bool retry, gso, gro;
    bool no_server_gro; /* the client alone has it */
    bool header_protection_off; /* in a noop build */
    bool tls12; /* TLS 1.2 besides 1.3 */
    bool resumption; /* --visit resumed */
    const char *page_alpn; /* the protocol (ALPN) that pages are loaded with; NULL: none can be */
    int64_t datagram; /* the only size of full datagrams the library can send, UNKNOWN for TCP and where it can be chosen */
    /* Names separated by blanks: of what the TLS library itself has (NULL: what OpenSSL has), and what no build has. */
    const char *native_groups, *native_signatures, *no_groups;
    /* Why one of the options above is not there, for the event `unsupported`. */
    const char *no_congestion_control, *no_header_protection, *no_retry, *no_initial_size;
    const char *no_early_data; /* NULL with `resumption`: it has early data too */
};
extern const struct library library;

/* The protocol that connections agree on (ALPN). */
const char *application_protocol(void);

/* Whether the TLS library uses the AES instructions of the processor, as it tells itself; every program has its own. */
int aes_hardware(void);

struct cipher {
    const char *name;    /* on the command line */
    const char *iana;    /* TLS 1.3 suite; OpenSSL uses the same names */
    const char *openssl; /* the AEAD, as EVP_CIPHER_fetch(3) knows it */
    const char *mask;    /* the cipher of QUIC header protection (RFC 9001, 5.4.3 and 5.4.4), likewise */
    const char *tls12_iana, *tls12_openssl; /* suite of TLS 1.2 for certificates with RSA, and OpenSSL's name of it */
};

/* A regular file of --www, as it was at the start; it must not shrink while it is served (mmap(2)). */
struct file {
    char *name, *path;
    const char *data;
    uint64_t length;
};

struct options {
    enum role role;

    const char *events;
    const struct cipher *cipher;
    const char *group_name, *signature_name;
    const quicbed_group *group;         /* NULL: unknown, see group_name */
    const quicbed_signature *signature; /* NULL: unknown, see signature_name */
    bool noop, noenc, header_protection, gso, gso_paced, gro;
    bool tls12; /* TLS 1.2 only, else TLS 1.3 only */
    enum visit visit;
    const char *congestion_control;
    const char *pacing; /* NULL where not given */
    const char *key_log;
    int64_t initial_size, udp_payload;
    /* Bytes, or UNKNOWN where not given. */
    int receive_buffer, send_buffer;

    char address[64]; /* IP address of --connect or --listen, without brackets */
    int port;

    /* client */
    const char *server_name;
    bool verify;
    const char *ca; /* NULL: any certificate is accepted, for saving files only */
    uint64_t bytes; /* the most there can be where a file is saved */
    const char *save; /* file to write what arrives to, named like the one asked for; NULL: none */
    uint64_t *page; /* sizes of a page's document and of its objects, which together are `bytes` */
    size_t page_count; /* 0: no page */
    uint64_t connections;
    double timeout_seconds;

    /* server */
    const char *certificate;
    const char *private_key;
    uint64_t *content;
    size_t content_count;
    uint64_t requests; /* that come on every connection */
    struct file *files;
    size_t file_count;
    bool retry;
};

/* Parses the command line of a client or server; does not return for a wrong one (exit 2) or `--describe` (exit 0). */
void parse_options(struct options *options, enum role role, int argc, char **argv);
/* The cipher suite that has to be negotiated, by its IANA name. */
const char *wanted_suite(const struct options *options);
/* Whether connections after the first one resume its session. */
bool resumes(const struct options *options);
/* Ends the program with exit 2 and one line. */
void usage_error(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
uint64_t parse_number(const char *option, const char *value, uint64_t minimum, uint64_t maximum);

/* ---- time and resources ---- */

/* CLOCK_MONOTONIC in nanoseconds. */
int64_t now_ns(void);
int64_t user_ns(const struct rusage *usage);
int64_t system_ns(const struct rusage *usage);
/* Time the threads of a process waited for a CPU while they could have run, or UNKNOWN. */
int64_t run_delay_ns(pid_t pid);
/* Largest resident set of a process (VmHWM: unlike ru_maxrss it starts afresh at exec), or UNKNOWN. */
int64_t max_rss_bytes(pid_t pid);

/* ---- events ---- */

/* Opens the file of events; exits with a line on standard error if it cannot. */
void events_open(const char *path);
void event_begin(const char *kind);
void event_string(const char *key, const char *value); /* NULL is written as null */
void event_integer(const char *key, int64_t value);    /* UNKNOWN is written as null */
void event_boolean(const char *key, bool value);
void event_truth(const char *key, int value); /* UNKNOWN is written as null */
void event_samples(const char *key, const int64_t *values, size_t count);
/* Writes the line; exits if that is impossible, because a program that cannot write events is useless. */
void event_end(void);
void event_reason(const char *kind, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The `start` event of a client or server. socket_fd is a socket set up like those of the connections. */
void event_start(const struct options *options, int socket_fd, const char *congestion_control);
/* The `start` event of a program that times primitives. */
void event_start_primitives(uint64_t milliseconds);
/* The `end` event. */
void event_final(uint64_t connections, uint64_t failed, const struct rusage *usage, int64_t run_delay, int64_t max_rss);
/* The same, with what this process used. */
void event_own_final(uint64_t connections, uint64_t failed);
/* The `ready` event. */
void event_ready(const struct options *options, int port);
/* Ends this process with an event of a kind, the same line on standard error and the `end` event; returns exit_code. */
int give_up(const char *kind, int exit_code, const char *reason);

/* ---- environment ---- */

/* Why this build cannot do what is asked (valid until the next call), or NULL. */
const char *unsupported_reason(const struct options *options);
/* Why there is no such algorithm in this build, or NULL. */
const char *no_group(const quicbed_group *group, const char *name);
const char *no_signature(const quicbed_signature *signature, const char *name);
const quicbed_group *find_group(const char *name);
const quicbed_signature *find_signature(const char *name);

/* Whether OpenSSL itself has the algorithm; the others come from the provider of flavour pq. */
bool native(const char *liboqs_name);
bool is_noop_build(void);
bool is_pq_build(void);

/*
 * Points OpenSSL, in this process and those started from it, to the configuration of this build and to the key log.
 * Has to be called before anything of OpenSSL is. Without header protection only in builds whose provider can do that.
 */
void choose_openssl_configuration(bool noop, bool no_header_protection, const char *key_log);

/* <build>/<path>, where this program is <build>/bin/<program>. */
const char *build_path(const char *path);

/* A descriptor that is readable once SIGTERM or SIGINT, or `more` (0: none), has come; -1 with errno. */
int stop_signals(int more, sigset_t *original);

/* Sets the buffers of a socket; NULL, or why it is impossible. */
const char *configure_buffers(const struct options *options, int fd);

/* ---- content ---- */

enum { CONTENT_RECORD = 16, CONTENT_PERIOD = CONTENT_RECORD * 4093 };

/* One period of the content. */
const char *content_period(void);

/* The file of --www with a name of this length, or NULL. */
const struct file *find_file(const struct options *options, const char *name, size_t length);

/* What a client asks for, behind the slash: a number of bytes, or the name of a file. Valid until the next call. */
const char *requested(const struct options *options);

/* Compares content as it arrives, or saves it. After a wrong byte only lengths are counted. */
struct content_check {
    const struct options *options;
    uint64_t received;
    bool wrong;
    uint64_t first_wrong; /* offset of the first wrong byte, if wrong */
    FILE *saved;          /* the file of --save once something has arrived */
    int save_error;       /* the errno that ended saving, or 0 */
};
void check_content(struct content_check *check, const char *data, size_t length);
/* Bytes asked for; of a file that is saved, which has no size before its end, those received. */
uint64_t content_requested(const struct content_check *check);
/* To be called once, at the end. Why the content is not what was asked for or not saved, or NULL; static text. */
const char *content_problem(struct content_check *check);

#endif
