/* How connections of a library on OpenSSL are configured. */
#include "openssl.h"

#include <errno.h>
#include <string.h>

#include <openssl/quic.h>

/* Chooses the one protocol there is. */
static int choose_alpn(SSL *ssl, const unsigned char **out, unsigned char *out_length, const unsigned char *offered,
                       unsigned int length, void *alpn)
{
    const unsigned char *wanted = alpn;
    unsigned char *chosen;

    (void)ssl;
    if (SSL_select_next_proto(&chosen, out_length, wanted, 1 + wanted[0], offered, length) != OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

static FILE *key_log;

static void on_secret(const SSL *ssl, const char *line)
{
    (void)ssl;
    fprintf(key_log, "%s\n", line);
}

void flush_key_log(void)
{
    if (key_log != NULL)
        fflush(key_log);
}

SSL_CTX *make_context(const struct options *options, const char **reason)
{
    static char text[768];
    static unsigned char alpn[64];
    const bool client = options->role == CLIENT;
    const SSL_METHOD *over_quic = client ? OSSL_QUIC_client_method() : OSSL_QUIC_server_method();
    const SSL_METHOD *over_tcp = client ? TLS_client_method() : TLS_server_method();
    SSL_CTX *context = SSL_CTX_new(library.quic ? over_quic : over_tcp);
    const char *failed = NULL;

    alpn[0] = (unsigned char)snprintf((char *)alpn + 1, sizeof(alpn) - 1, "%s", application_protocol());
    if (options->key_log != NULL && key_log == NULL && (key_log = fopen(options->key_log, "ae")) == NULL) {
        snprintf(text, sizeof(text), "--key-log %.128s: %s", options->key_log, strerror(errno));
        *reason = text;
        SSL_CTX_free(context);
        return NULL;
    }
    if (context == NULL || SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1)
        failed = "SSL_CTX_new";
    else if (!allow_algorithms(context, options->signature))
        failed = options->signature->tls_name;
    else if (SSL_CTX_set1_groups_list(context, options->group->tls_name) != 1)
        failed = options->group->tls_name;
    else if (SSL_CTX_set_ciphersuites(context, options->cipher->iana) != 1)
        failed = options->cipher->iana;
    else if (client && options->verify && SSL_CTX_load_verify_file(context, options->ca) != 1)
        failed = options->ca;
    else if (!client && SSL_CTX_use_certificate_chain_file(context, options->certificate) != 1)
        failed = options->certificate;
    else if (!client && SSL_CTX_use_PrivateKey_file(context, options->private_key, SSL_FILETYPE_PEM) != 1)
        failed = options->private_key;
    else if (!client && SSL_CTX_check_private_key(context) != 1)
        failed = options->private_key;
    if (failed != NULL) {
        snprintf(text, sizeof(text), "%.200s: %s", failed, openssl_error("OpenSSL does not take it"));
        *reason = text;
        SSL_CTX_free(context);
        return NULL;
    }
    /* No connection knows anything of an earlier one. */
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_num_tickets(context, 0);
    if (client) {
        SSL_CTX_set_verify(context, options->verify ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, NULL);
        SSL_CTX_set_alpn_protos(context, alpn, 1 + alpn[0]);
    } else {
        SSL_CTX_set_alpn_select_cb(context, choose_alpn, alpn);
    }
    if (key_log != NULL)
        SSL_CTX_set_keylog_callback(context, on_secret);
    return context;
}
