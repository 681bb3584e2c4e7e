/* Connections of picoquic, driven by a program that does all input and output. */
#define _GNU_SOURCE
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <openssl/crypto.h>
#include <openssl/rand.h>

enum {
    MOST_CONNECTIONS = 16384,
    /* Of a QUIC packet that picoquic has room for, below PICOQUIC_MAX_PACKET_SIZE. */
    LARGEST_RECEIVED = 1500,
};

struct endpoint *the_endpoint;

/* What picoquic reads where it is not told the time. */
static uint64_t clock_us;

uint64_t qp_now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    clock_us = (uint64_t)time.tv_sec * 1000000 + (uint64_t)time.tv_nsec / 1000;
    return clock_us;
}

bool qp_random(uint8_t *bytes, size_t length)
{
    return RAND_bytes(bytes, (int)length) == 1;
}

/* ---- the endpoint ---- */

static void choose_id(picoquic_quic_t *quic, picoquic_connection_id_t local, picoquic_connection_id_t remote, void *data,
                      picoquic_connection_id_t *chosen)
{
    struct endpoint *endpoint = data;
    struct connection *connection = endpoint->current;

    (void)quic;
    (void)local;
    (void)remote;
    if (endpoint->next_id != NULL) {
        memcpy(chosen->id, endpoint->next_id, ID_LENGTH);
        chosen->id_len = ID_LENGTH;
        endpoint->next_id = NULL;
    } else if (connection != NULL) {
        endpoint->application.new_id(connection->program, chosen->id);
    }
}

static void provide(struct connection *connection, uint64_t stream, void *context, size_t room)
{
    const struct application *application = &connection->endpoint->application;
    bool last = false;
    size_t length = application->available(connection->program, stream, room, &last);
    uint8_t *space;

    if (length == 0 && !last) {
        picoquic_provide_stream_data_buffer(context, 0, 0, 0);
        connection->has_active = false;
        return;
    }
    space = picoquic_provide_stream_data_buffer(context, length, last, !last);
    if (space == NULL)
        return;
    application->write(connection->program, stream, space, length);
    if (last)
        connection->has_active = false;
}

static int on_event(picoquic_cnx_t *cnx, uint64_t stream, uint8_t *bytes, size_t length, picoquic_call_back_event_t event,
                    void *context, void *stream_context)
{
    struct connection *connection = context;
    const struct application *application;

    (void)stream_context;
    if (connection == NULL)
        return 0;
    application = &connection->endpoint->application;
    switch (event) {
    case picoquic_callback_stream_data:
    case picoquic_callback_stream_fin:
        application->received(connection->program, stream, bytes, length, event == picoquic_callback_stream_fin);
        break;
    case picoquic_callback_stream_reset:
        application->reset(connection->program, stream, picoquic_get_remote_stream_error(cnx, stream));
        break;
    case picoquic_callback_stop_sending:
        picoquic_reset_stream(cnx, stream, 0);
        if (connection->has_active && connection->active == stream)
            connection->has_active = false;
        application->reset(connection->program, stream, picoquic_get_remote_stream_error(cnx, stream));
        break;
    case picoquic_callback_prepare_to_send:
        provide(connection, stream, bytes, length);
        break;
    case picoquic_callback_ready:
        connection->confirmed = true;
        break;
    case picoquic_callback_close:
        connection->error = cnx->local_error;
        break;
    default:
        break;
    }
    return 0;
}

struct endpoint *qp_open(const struct settings *settings, const struct application *application, char *reason,
                         size_t room)
{
    struct endpoint *endpoint = calloc(1, sizeof(*endpoint));
    const char *problem = "out of memory";
    picoquic_tp_t parameters;

    /* No configuration of the host, whatever OPENSSL_CONF says. */
    OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG, NULL);
    picoquic_register_all_congestion_control_algorithms();
    if (endpoint != NULL) {
        endpoint->settings = *settings;
        endpoint->application = *application;
        the_endpoint = endpoint;
        /* Without certificate and key: configure_tls has them. */
        endpoint->quic = picoquic_create(MOST_CONNECTIONS, NULL, NULL, NULL, settings->alpn, on_event, NULL, choose_id,
                                         endpoint, NULL, qp_now(), &clock_us, NULL, NULL, 0);
    }
    if (endpoint == NULL || endpoint->quic == NULL || (problem = configure_tls(endpoint)) != NULL) {
        snprintf(reason, room, "%s", problem);
        return NULL; /* the program ends */
    }
    picoquic_set_default_connection_id_length(endpoint->quic, ID_LENGTH);
    picoquic_set_default_congestion_algorithm_by_name(endpoint->quic, settings->congestion_control);
    picoquic_set_default_pmtud_policy(endpoint->quic, picoquic_pmtud_blocked);
    picoquic_set_max_data_control(endpoint->quic, settings->window);
    picoquic_set_default_lossbit_policy(endpoint->quic, picoquic_lossbit_none);
    picoquic_disable_port_blocking(endpoint->quic, 1);
    picoquic_set_cookie_mode(endpoint->quic, settings->retry ? 1 : 0);
    /* Retry packets when asked for, and not also when many handshakes are in progress. */
    picoquic_set_max_half_open_retry_threshold(endpoint->quic, UINT32_MAX);
    endpoint->quic->enforce_client_only = !settings->server;
    parameters = *picoquic_get_default_tp(endpoint->quic);
    parameters.initial_max_data = settings->window;
    parameters.initial_max_stream_data_bidi_local = settings->window;
    parameters.initial_max_stream_data_bidi_remote = settings->window;
    parameters.max_idle_timeout = settings->idle_timeout_ms;
    parameters.max_packet_size = LARGEST_RECEIVED;
    parameters.enable_loss_bit = 0;
    /* Migration stays allowed: without it picoquic refuses a peer that retires the connection ID of the handshake. */
    picoquic_set_default_tp(endpoint->quic, &parameters);
    if (settings->key_log != NULL)
        picoquic_set_key_log_file(endpoint->quic, settings->key_log);
    return endpoint;
}

/* ---- connections ---- */

static struct connection *new_connection(struct endpoint *endpoint, void *program)
{
    struct connection *connection = calloc(1, sizeof(*connection));

    if (connection != NULL) {
        connection->endpoint = endpoint;
        connection->program = program;
    }
    return connection;
}

/* Datagrams have the size of those with Initial packets first, then that of full ones; picoquic probes for none. */
static void set_sizes(struct connection *connection)
{
    const struct settings *settings = &connection->endpoint->settings;
    picoquic_cnx_t *cnx = connection->cnx;

    if (cnx == NULL || connection->full_size)
        return;
    cnx->path[0]->send_mtu = settings->initial_size;
    if (picoquic_is_tls_complete(cnx)) {
        const size_t most = cnx->remote_parameters.max_packet_size;

        connection->full_size = true;
        cnx->path[0]->send_mtu = most >= PICOQUIC_ENFORCED_INITIAL_MTU && most < settings->udp_payload
                                     ? most : settings->udp_payload;
    }
}

struct connection *qp_connect(struct endpoint *endpoint, const struct sockaddr *peer, void *program)
{
    const struct settings *settings = &endpoint->settings;
    struct connection *connection = new_connection(endpoint, program);

    if (connection == NULL)
        return NULL;
    endpoint->current = connection;
    connection->cnx = picoquic_create_cnx(endpoint->quic, picoquic_null_connection_id, picoquic_null_connection_id, peer,
                                          qp_now(), 1, settings->server_name, settings->alpn, 1);
    if (connection->cnx != NULL) {
        picoquic_set_callback(connection->cnx, on_event, connection);
        if (picoquic_start_client_cnx(connection->cnx) == 0) {
            set_sizes(connection);
            return connection;
        }
    }
    qp_free(connection);
    return NULL;
}

struct connection *qp_accept(struct endpoint *endpoint, const uint8_t id[ID_LENGTH], void *program)
{
    struct connection *connection = new_connection(endpoint, program);

    if (connection != NULL) {
        memcpy(connection->id, id, ID_LENGTH);
        connection->has_id = true;
    }
    return connection;
}

void qp_free(struct connection *connection)
{
    if (connection->cnx != NULL) {
        picoquic_set_callback(connection->cnx, on_event, NULL);
        picoquic_delete_cnx(connection->cnx);
    }
    if (connection->answer != NULL)
        picoquic_delete_stateless_packet(connection->answer);
    /* No connection uses a token of an earlier one. */
    picoquic_free_tokens(&connection->endpoint->quic->p_first_token);
    if (connection->endpoint->current == connection)
        connection->endpoint->current = NULL;
    free(connection);
}

uint64_t qp_expiry(const struct connection *connection)
{
    return connection->cnx == NULL ? UINT64_MAX : connection->cnx->next_wake_time;
}

/* Takes what picoquic answers without a connection: the first packet, NULL for none. */
static picoquic_stateless_packet_t *take_answer(picoquic_quic_t *quic)
{
    picoquic_stateless_packet_t *first = picoquic_dequeue_stateless_packet(quic), *other;

    while ((other = picoquic_dequeue_stateless_packet(quic)) != NULL)
        picoquic_delete_stateless_packet(other);
    return first;
}

void qp_read(struct connection *connection, uint8_t *datagram, size_t length, const struct sockaddr *from,
             const struct sockaddr *local)
{
    struct endpoint *endpoint = connection->endpoint;
    picoquic_cnx_t *found = NULL;
    picoquic_stateless_packet_t *answer;
    const bool first = connection->cnx == NULL;

    if (length > PICOQUIC_MAX_PACKET_SIZE || (first && connection->is_read))
        return;
    connection->is_read = true;
    endpoint->current = connection;
    if (first) {
        /* A connection that picoquic makes has them from the start. */
        picoquic_set_default_callback(endpoint->quic, on_event, connection);
        endpoint->next_id = connection->id;
    }
    picoquic_incoming_packet_ex(endpoint->quic, datagram, length, (struct sockaddr *)from, (struct sockaddr *)local, 0, 0,
                                &found, qp_now());
    answer = take_answer(endpoint->quic);
    if (first) {
        picoquic_set_default_callback(endpoint->quic, on_event, NULL);
        endpoint->next_id = NULL;
        if (found != NULL && found->callback_ctx == connection)
            connection->cnx = found;
        else
            connection->answer = answer; /* of a handshake that picoquic refused at once, and forgot */
    }
    if (answer != NULL && answer != connection->answer)
        picoquic_delete_stateless_packet(answer);
    set_sizes(connection);
}

size_t qp_datagram_size(const struct connection *connection)
{
    return connection->cnx == NULL ? connection->endpoint->settings.initial_size : connection->cnx->path[0]->send_mtu;
}

static size_t write_answer(struct connection *connection, uint8_t *space, size_t room, size_t *size,
                           struct sockaddr_storage *to)
{
    picoquic_stateless_packet_t *answer = connection->answer;
    size_t length = 0;

    if (answer != NULL && answer->length <= room) {
        length = *size = answer->length;
        memcpy(space, answer->bytes, length);
        *to = answer->addr_to;
    }
    if (answer != NULL)
        picoquic_delete_stateless_packet(answer);
    connection->answer = NULL;
    return length;
}

size_t qp_write(struct connection *connection, uint8_t *space, size_t room, bool many, size_t *size,
                struct sockaddr_storage *to)
{
    struct endpoint *endpoint = connection->endpoint;
    struct sockaddr_storage from;
    picoquic_cnx_t *cnx = connection->cnx;
    size_t length = 0;
    int interface = 0;

    if (cnx == NULL)
        return write_answer(connection, space, room, size, to);
    if (cnx->cnx_state == picoquic_state_disconnected)
        return 0;
    endpoint->current = connection;
    if (connection->full_size && !connection->has_active
        && endpoint->application.waiting(connection->program, &connection->active))
        connection->has_active = picoquic_mark_active_stream(cnx, connection->active, 1, NULL) == 0;
    *size = cnx->path[0]->send_mtu;
    many = many && connection->full_size;
    if (!many && room > *size)
        room = *size;
    if (picoquic_prepare_packet_ex(cnx, qp_now(), space, room, &length, to, &from, &interface, many ? size : NULL) != 0
        && length == 0)
        return 0;
    set_sizes(connection);
    return length;
}

uint64_t qp_open_stream(struct connection *connection)
{
    return picoquic_get_next_local_stream_id(connection->cnx, 0);
}

void qp_end(struct connection *connection, uint64_t code, const char *reason)
{
    if (connection->cnx == NULL)
        return;
    qp_now();
    snprintf(connection->reason, sizeof(connection->reason), "%s", reason);
    picoquic_close_ex(connection->cnx, code, connection->reason[0] == '\0' ? NULL : connection->reason);
}

void qp_tell(struct connection *connection, struct facts *facts)
{
    picoquic_cnx_t *cnx = connection->cnx;
    picoquic_path_quality_t quality;
    const ptls_cipher_suite_t *suite;

    memset(facts, 0, sizeof(*facts));
    facts->confirmed = connection->confirmed;
    facts->group = connection->group;
    facts->signature = connection->signature;
    /* after a Retry the handshake begins anew, with a share of its own */
    facts->hello_retry_request = connection->shares > (cnx != NULL && cnx->original_cnxid.id_len > 0 ? 2 : 1);
    if (cnx == NULL) {
        facts->ended = connection->is_read && connection->answer == NULL;
        facts->code = connection->error;
        return;
    }
    facts->established = picoquic_is_tls_complete(cnx);
    facts->ended = cnx->cnx_state >= picoquic_state_closing_received;
    facts->retried = cnx->original_cnxid.id_len > 0;
    facts->draining_us = 3 * cnx->path[0]->retransmit_timer;
    suite = ptls_get_cipher(((picoquic_tls_ctx_t *)cnx->tls_ctx)->tls);
    facts->cipher = suite == NULL ? 0 : suite->id;
    facts->alpn = picoquic_tls_get_negotiated_alpn(cnx);
    picoquic_get_default_path_quality(cnx, &quality);
    facts->sent = cnx->nb_packets_sent;
    facts->received = cnx->nb_packets_received;
    facts->lost = quality.lost;
    if (cnx->remote_error != 0 || cnx->remote_application_error != 0) {
        facts->by_peer = true;
        facts->of_application = cnx->remote_application_error != 0;
        facts->code = cnx->remote_application_error != 0 ? cnx->remote_application_error : cnx->remote_error;
        facts->reason = cnx->remote_error_reason;
    } else if (cnx->local_error != 0 && cnx->local_error != UINT64_MAX) {
        facts->idle = cnx->local_error == PICOQUIC_ERROR_IDLE_TIMEOUT;
        facts->code = cnx->local_error;
        facts->reason = connection->certificate_error != 0
                            ? X509_verify_cert_error_string(connection->certificate_error) : cnx->local_error_reason;
    } else if (cnx->cnx_state >= picoquic_state_closing_received) {
        facts->by_peer = true;
    }
}

size_t qp_ids(const struct connection *connection, uint8_t (*ids)[ID_LENGTH], size_t most)
{
    size_t count = 0;

    if (connection->cnx == NULL)
        return 0;
    for (picoquic_local_cnxid_list_t *list = connection->cnx->first_local_cnxid_list; list != NULL; list = list->next_list)
        for (picoquic_local_cnxid_t *id = list->local_cnxid_first; id != NULL && count < most; id = id->next)
            if (id->cnx_id.id_len == ID_LENGTH)
                memcpy(ids[count++], id->cnx_id.id, ID_LENGTH);
    return count;
}

/* ---- Retry ---- */

size_t qp_retry(struct endpoint *endpoint, uint8_t *datagram, size_t length, const struct sockaddr *from,
                const struct sockaddr *local, const uint8_t id[ID_LENGTH], uint8_t *space, size_t room)
{
    picoquic_cnx_t *found = NULL;
    picoquic_stateless_packet_t *answer;
    size_t written = 0;

    if (length > PICOQUIC_MAX_PACKET_SIZE)
        return 0;
    endpoint->current = NULL;
    endpoint->next_id = id;
    picoquic_incoming_packet_ex(endpoint->quic, datagram, length, (struct sockaddr *)from, (struct sockaddr *)local, 0, 0,
                                &found, qp_now());
    endpoint->next_id = NULL;
    answer = take_answer(endpoint->quic);
    if (answer != NULL && answer->length <= room) {
        written = answer->length;
        memcpy(space, answer->bytes, written);
    }
    if (answer != NULL)
        picoquic_delete_stateless_packet(answer);
    return written;
}

bool qp_token_is_genuine(struct endpoint *endpoint, const uint8_t *token, size_t length, const struct sockaddr *from,
                         const uint8_t *id, size_t id_length)
{
    picoquic_connection_id_t original = {0}, used = {0};
    int is_new = 0;

    if (length == 0 || id_length > sizeof(used.id))
        return false;
    memcpy(used.id, id, id_length);
    used.id_len = (uint8_t)id_length;
    /* Whether it was used before is checked when the packet is read. */
    return picoquic_verify_retry_token(endpoint->quic, from, qp_now(), &is_new, &original, &used, UINT32_MAX, token,
                                       length, 0)
               == 0
           && !is_new && original.id_len > 0;
}
