#!/bin/sh
# An endpoint in shell: the contract endpoint in PROGRAMS, with what the runner gives its scripts.
. ./variant.sh
exec "$programs/server" --listen "$IP:$PORT" --certificate "${CERTS}cert.pem" --private-key "${CERTS}priv.key" \
    --events "$QUICBED_EVENTS" --key-log "$SSLKEYLOGFILE" "$@"
