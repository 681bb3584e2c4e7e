/* What the endpoint is. */
#include "contract.h"

const struct library library = {
    .name = "bare-udp",
    .alpn = "hq-interop", /* whose requests it has */
    .congestion_controls = "cubic reno bbr", /* which it takes and has no use for: nothing limits it but its window */
    .pacing = "off",
    .datagram = UNKNOWN,
    .no_header_protection = "bare UDP has no header protection that could be off",
    .no_retry = "bare UDP has no Retry packets",
};
