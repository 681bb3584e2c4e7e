/* The switches of the noop flavour. */
#ifndef QUICBED_PROTECTION_H
#define QUICBED_PROTECTION_H

#include "contract.h"

/* Does to packet protection what the options ask for; to be called before the first connection. */
void choose_protection(const struct options *options);

#endif
