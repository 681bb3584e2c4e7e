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
# some of its periods, over and over: awk writes 100 MB a second at most
awk 'BEGIN { for (n = 0; n < 64; n++) for (i = 0; i < 4093; i++) printf "quicbed%08x\n", i }' >"${DOWNLOADS}periods"
for request in $REQUESTS; do
    size=${request##*/}
    while cat "${DOWNLOADS}periods" 2>/dev/null; do :; done | head -c "$size" >"$DOWNLOADS$size"
done
rm "${DOWNLOADS}periods"
