/* What the endpoint is. */
#include "contract.h"

const struct library library = {
    .name = "openssl",
    .quic = true,
    .congestion_controls = "reno",
    .pacing = "off",
    .retry = true,
    .gso = true,
    .gro = true,
    .header_protection_off = true,
    /* ch_init() in ssl/quic/quic_channel.c; nothing calls ossl_qtx_set_mdpl() */
    .datagram = 1200,
    .no_congestion_control = "OpenSSL's QUIC has no congestion control but NewReno (ssl/quic/cc_newreno.c)",
    .no_initial_size = "OpenSSL's QUIC sends datagrams of at most 1200 bytes, without path-MTU discovery or a setting",
};
