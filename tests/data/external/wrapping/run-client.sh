#!/bin/sh
# As the server. The contract client has compared every byte with the content, so the files can be made afterwards.
. ./variant.sh
address=$(getent ahostsv4 server | awk '{ print $1; exit }')
start=$(date +%s%N)
for request in $REQUESTS; do
    size=${request##*/}
    port=${request#https://server:}
    "$programs/client" --connect "$address:${port%%/*}" --server-name server --ca "${CERTS}ca.pem" --bytes "$size" \
        --events "$LOGS/client.jsonl" --key-log "$SSLKEYLOGFILE" "$@" || exit 1
    cat "$LOGS/client.jsonl" >>"$QUICBED_EVENTS"
done
end=$(date +%s%N)
echo "{\"start\": $start, \"end\": $end}" >"$LOGS/time.json"
for request in $REQUESTS; do
    size=${request##*/}
    awk 'BEGIN { for (;;) for (i = 0; i < 4093; i++) printf "quicbed%08x\n", i }' | head -c "$size" >"$DOWNLOADS$size"
done
