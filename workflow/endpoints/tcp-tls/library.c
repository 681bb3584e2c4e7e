/* What the endpoint is. */
#include "contract.h"

const struct library library = {
    .name = "tcp-tls",
    .page_alpn = "h2",
    .congestion_controls = "cubic reno bbr",
    .pacing = "library",
    .tls12 = true,
    .resumption = true,
    .datagram = UNKNOWN,
    .no_header_protection = "TCP+TLS has no header protection that could be off",
    .no_retry = "TCP has no Retry packets",
};
