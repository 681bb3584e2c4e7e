/* What the endpoint is. */
#include "contract.h"

const struct library library = {
    .name = "nginx-h3",
    .quic = true,
    .alpn = "h3",
    .page_alpn = "h3",
    .congestion_controls = "cubic",
    .pacing = "off",
    .retry = true,
    .gso = true,
    .gro = true,
    .no_server_gro = true,
    .header_protection_off = true,
    .datagram = UNKNOWN,
    /* What OpenSSL and BoringSSL both have of their own. */
    .native_groups = "x25519 p-256 p-384 p-521 x25519-mlkem768 mlkem1024",
    .native_signatures = "rsa-1024 rsa-2048 rsa-4096 ecdsa-p-256 ecdsa-p-384 ed25519",
    .no_groups = "x448",
    .no_congestion_control = "nginx's QUIC has no congestion control but CUBIC (src/event/quic/ngx_event_quic_ack.c)",
    .resumption = true,
    .no_early_data = "nginx 1.28 on OpenSSL takes no 0-RTT over QUIC (src/event/quic/ngx_event_quic_openssl_compat.c), and "
                     "libcurl on BoringSSL sends none (HAVE_OPENSSL_EARLYDATA)",
    .no_initial_size = "nginx sends datagrams of 1200 bytes during the handshake (NGX_QUIC_MIN_INITIAL_SIZE)",
};
