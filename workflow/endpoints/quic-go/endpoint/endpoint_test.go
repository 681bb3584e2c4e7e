package endpoint

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/net/ipv4"

	"quicbed.internal/contract"
)

func TestSchemesAreThoseOfTheSignatureMade(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ecdsaKey, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	edKey, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, made := range []struct {
		public  crypto.PublicKey
		options crypto.SignerOpts
		scheme  string
	}{
		{&rsaKey.PublicKey, &rsa.PSSOptions{Hash: crypto.SHA256}, "rsa_pss_rsae_sha256"},
		{&rsaKey.PublicKey, &rsa.PSSOptions{Hash: crypto.SHA512}, "rsa_pss_rsae_sha512"},
		{&ecdsaKey.PublicKey, crypto.SHA384, "ecdsa_secp384r1_sha384"},
		{edKey, crypto.Hash(0), "ed25519"},
	} {
		scheme, ok := schemeOf(made.public, made.options)
		if name := contract.SignatureName(uint16(scheme)); !ok || name == nil || *name != made.scheme {
			t.Errorf("%s: %v", made.scheme, scheme)
		}
	}
	if scheme, ok := schemeOf(&rsaKey.PublicKey, crypto.SHA256); ok {
		t.Errorf("PKCS #1 v1.5 is no scheme of TLS 1.3, but %v", scheme)
	}
}

func TestASchemeCanBeReadBack(t *testing.T) {
	// a Go release may rename the field; then the scheme would be null on clients without a word
	if peerScheme(&tls.ConnectionState{}) != 0 {
		t.Error("an empty state has a scheme")
	}
	server, client := handshake(t)
	if scheme := peerScheme(&client); scheme != uint16(tls.ECDSAWithP256AndSHA256) {
		t.Errorf("scheme %#x", scheme)
	}
	if client.CurveID != tls.X25519 || server.CurveID != tls.X25519 {
		t.Errorf("groups %v, %v", client.CurveID, server.CurveID)
	}
}

func TestACipherSuiteIsTheOnlyOne(t *testing.T) {
	with, without := defaultCipherSuitesTLS13, defaultCipherSuitesTLS13NoAES
	defer func() { defaultCipherSuitesTLS13, defaultCipherSuitesTLS13NoAES = with, without }()
	if hardware := aesHardware(); hardware == nil {
		t.Error("the order of suites tells nothing")
	}
	for _, cipher := range contract.Ciphers {
		restrictCipher(cipher)
		server, client := handshake(t)
		if server.CipherSuite != cipher.CodePoint || client.CipherSuite != cipher.CodePoint {
			t.Errorf("%s: %#x, %#x", cipher.Name, server.CipherSuite, client.CipherSuite)
		}
	}
}

// handshake makes a TLS connection within this process.
func handshake(t *testing.T) (server, client tls.ConnectionState) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	common := &contract.Common{Group: "x25519", ALPN: contract.ALPN}
	near, far := net.Pipe()
	config := tlsConfig(common, nil)
	config.Certificates = []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}
	serving := tls.Server(near, config)
	done := make(chan error, 1)
	go func() { done <- serving.Handshake() }()
	config = tlsConfig(common, nil)
	config.InsecureSkipVerify = true
	asking := tls.Client(far, config)
	if err := asking.Handshake(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return serving.ConnectionState(), asking.ConnectionState()
}

func options() *contract.Common {
	return &contract.Common{GSO: true, UDPPayload: 1252, ReceiveBuffer: 100000, SendBuffer: 50000}
}

func loopback(t *testing.T, meter Meter) *Socket {
	t.Helper()
	socket, err := Listen(netip.MustParseAddrPort("127.0.0.1:0"), options(), meter)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	return socket
}

func TestBuffersAreReadBack(t *testing.T) {
	socket := loopback(t, NewServerMeter())
	// as quic-go does
	if err := socket.SetReadBuffer(150000); err != nil {
		t.Fatal(err)
	}
	if err := socket.SetBuffers(); err != nil {
		t.Fatal(err)
	}
	inForce, err := socket.InForce()
	if err != nil || inForce.ReceiveBuffer != 100000 || inForce.SendBuffer != 50000 {
		t.Errorf("%+v, %v", inForce, err)
	}
}

func TestDatagramsPastTheLimitAreRefused(t *testing.T) {
	var meter ClientMeter
	socket := loopback(t, &meter)
	peer := loopback(t, NewServerMeter()).LocalAddr().(*net.UDPAddr)
	if _, _, err := socket.WriteMsgUDP(make([]byte, 1253), nil, peer); err == nil {
		t.Error("1253 bytes were sent")
	}
	if meter.First() != nil {
		t.Error("what was not sent was counted")
	}
	if _, _, err := socket.WriteMsgUDP(make([]byte, 1252), nil, peer); err != nil {
		t.Error(err)
	}
	if meter.First() == nil || meter.Complete().Sent.Bytes.Load() != 1252 {
		t.Error("what was sent was not counted")
	}
}

func TestDatagramsAreCountedUntilTheHandshakeIsComplete(t *testing.T) {
	var meter ClientMeter
	from := &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}
	meter.Received([]byte{0xf0, 0}, from)
	meter.Received([]byte{0xc0, 0, 0}, from)
	meter.Complete()
	meter.Received([]byte{0x40}, from)
	if received := &meter.traffic.Received; received.Datagrams.Load() != 2 || received.Bytes.Load() != 5 || !meter.Retry() {
		t.Errorf("%d datagrams, %d bytes", received.Datagrams.Load(), received.Bytes.Load())
	}
	if meter.Departed() != nil {
		t.Error("nothing was waited for")
	}
	meter.AwaitDeparture()
	meter.Sending([]byte{0x40}, from)
	first := meter.Departed()
	meter.Sending([]byte{0x40}, from)
	if first == nil || *meter.Departed() != *first {
		t.Error("the time of the first datagram waited for is kept")
	}
}

func TestOnlyInitialPacketsMakeAPeer(t *testing.T) {
	meter := NewServerMeter()
	peer := &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}
	for _, first := range []byte{0x40, 0xe0, 0x80} {
		meter.Received([]byte{first}, peer)
	}
	if meter.Peer(peer) != nil {
		t.Error("another packet made a peer")
	}
	meter.Received([]byte{0xc3, 0}, peer)
	meter.Received([]byte{0x43}, peer)
	meter.Sending(make([]byte, 9), &net.UDPAddr{IP: peer.IP.To4(), Port: 1})
	seen := meter.Peer(peer)
	if seen == nil || seen.Traffic.Received.Bytes.Load() != 3 || seen.Sent.Bytes.Load() != 9 || seen.First.T == 0 {
		t.Fatalf("%+v", seen)
	}
	meter.Forget(peer)
	if meter.Peer(peer) != nil || meter.busy.Load() {
		t.Error("a peer was not forgotten")
	}
	for port := range 3 * maxPeers {
		meter.Received([]byte{0xc0}, &net.UDPAddr{IP: peer.IP, Port: port})
	}
	if len(meter.peers) > maxPeers {
		t.Errorf("%d strangers are remembered", len(meter.peers))
	}
}

func TestReceivedDatagramsPassTheMeter(t *testing.T) {
	meter := NewServerMeter()
	socket, other := loopback(t, meter), loopback(t, &ClientMeter{})
	if _, err := other.WriteTo([]byte{0xc0, 1, 2}, socket.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	messages := make([]ipv4.Message, 2)
	for i := range messages {
		messages[i].Buffers = [][]byte{make([]byte, 100)}
	}
	if n, err := socket.ReadBatch(messages, 0); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if peer := meter.Peer(other.LocalAddr()); peer == nil || peer.Traffic.Received.Bytes.Load() != 3 {
		t.Errorf("%+v", peer)
	}
}
