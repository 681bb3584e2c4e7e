/* What the client and the server of the endpoint contract (../ENDPOINT.md) share: command line, events, content. */
#ifndef QUICBED_ENDPOINT_H
#define QUICBED_ENDPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/types.h>

#define CONTRACT 1
#define LIBRARY "tcp-tls"
#define NOOP_PROVIDER "quicbed-noop"

enum { EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_UNSUPPORTED = 127 };

/* A value that cannot be told; written as null. */
#define UNKNOWN (-1)

enum role { CLIENT, SERVER };

struct cipher {
    const char *name;    /* on the command line */
    const char *iana;    /* TLS 1.3 suite; OpenSSL uses the same names */
    const char *openssl; /* the AEAD, as EVP_CIPHER_fetch(3) knows it */
};

struct tls_group {
    const char *name;  /* on the command line */
    const char *iana;  /* TLS Supported Groups registry; OpenSSL accepts the same names */
    const char *nginx; /* value of nginx's $ssl_curve, which is OpenSSL's short name of the curve */
};

struct options {
    enum role role;
    bool describe;

    const char *events;
    const struct cipher *cipher;
    const struct tls_group *group; /* NULL: unknown, see group_name */
    const char *group_name;
    bool noop;
    bool header_protection;
    const char *congestion_control;
    const char *key_log;
    /* Bytes, or UNKNOWN where not given: TCP then sizes its buffers itself. */
    int receive_buffer;
    int send_buffer;

    char address[64]; /* IP address of --connect or --listen, without brackets */
    int port;

    /* client */
    const char *server_name;
    const char *ca;
    uint64_t bytes;
    uint64_t connections;
    double timeout_seconds;

    /* server */
    const char *certificate;
    const char *private_key;
    uint64_t *content;
    size_t content_count;
};

/* Parses the command line; does not return for a wrong one (exit 2) or a `--describe` (exit 0). */
void parse_options(struct options *options, enum role role, int argc, char **argv);

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

/* Opens --events; exits with a line on standard error if it cannot. */
void events_open(const struct options *options);
void event_begin(const char *kind);
void event_string(const char *key, const char *value); /* NULL is written as null */
void event_integer(const char *key, int64_t value);    /* UNKNOWN is written as null */
void event_boolean(const char *key, bool value);
/* Writes the line; exits if that is impossible, because a program that cannot write events is useless. */
void event_end(void);
void event_reason(const char *kind, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The `start` event. socket_fd is a socket set up like those of the connections. */
void event_start(const struct options *options, int socket_fd);
/* The `end` event. */
void event_final(uint64_t connections, uint64_t failed, const struct rusage *usage, int64_t run_delay, int64_t max_rss);

/* ---- environment ---- */

/* Why this build cannot do what is asked (valid until the next call), or NULL. */
const char *unsupported_reason(const struct options *options);

/*
 * Points OpenSSL, in this process and those started from it, to the configuration of this build and to the key log.
 * Has to be called before anything of OpenSSL is.
 */
void choose_openssl_configuration(const struct options *options);

/* <build>/<path>, where this program is <build>/bin/<program>. */
const char *build_path(const char *path);

/* A TCP socket with the asked-for congestion control and buffers, or -1 with a reason. */
int open_socket(const struct options *options, const char **reason);
/* Sets congestion control and buffers of a TCP socket; NULL, or why it is impossible. */
const char *configure_socket(const struct options *options, int fd);

/* ---- content ---- */

enum { CONTENT_RECORD = 16, CONTENT_PERIOD = CONTENT_RECORD * 4093 };

/* One period of the content. */
const char *content_period(void);

const struct tls_group *groups(size_t *count);

#endif
