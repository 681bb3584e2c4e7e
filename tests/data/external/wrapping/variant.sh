# What quicbed asks for, as options of a contract endpoint; the test cases that there are.
case $TESTCASE in goodput | handshake) ;; *) exit 127 ;; esac
case $QUICBED_FLAVOUR in
stock) programs=$PROGRAMS ;;
noop) programs=$NOOP_PROGRAMS ;;
esac
set -- --cipher "$QUICBED_CIPHER" --aead "$QUICBED_AEAD" --header-protection "$QUICBED_HEADER_PROTECTION" \
    --group "$QUICBED_GROUP" --signature "$QUICBED_SIGNATURE" --congestion-control "$QUICBED_CONGESTION_CONTROL" \
    --gso "$QUICBED_GSO" --gro "$QUICBED_GRO" --udp-payload "$QUICBED_UDP_PAYLOAD" --window "$QUICBED_WINDOW" \
    --receive-buffer "$QUICBED_RECEIVE_BUFFER" --send-buffer "$QUICBED_SEND_BUFFER"
