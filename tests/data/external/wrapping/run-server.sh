#!/bin/sh
# An endpoint in shell: the contract endpoint in PROGRAMS, with what the runner gives its scripts.
case $TESTCASE in goodput | handshake) ;; *) exit 127 ;; esac
exec "$PROGRAMS/server" --listen "$IP:$PORT" --certificate "${CERTS}cert.pem" --private-key "${CERTS}priv.key" \
    --events "$LOGS/server.jsonl" --key-log "$SSLKEYLOGFILE"
