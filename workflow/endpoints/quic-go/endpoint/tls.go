package endpoint

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"sync/atomic"
	_ "unsafe" // for linkname

	"quicbed.internal/contract"
)

// crypto/tls has no setting for the cipher suites of TLS 1.3. It lets these two variables be linked to, for the sake of
// quic-go, whose own tests choose suites in this way (quic-go's internal/qtls). They are the suites that a client offers
// and that a server picks from, with and without AES instructions.

//go:linkname defaultCipherSuitesTLS13 crypto/tls.defaultCipherSuitesTLS13
var defaultCipherSuitesTLS13 []uint16

//go:linkname defaultCipherSuitesTLS13NoAES crypto/tls.defaultCipherSuitesTLS13NoAES
var defaultCipherSuitesTLS13NoAES []uint16

// restrictCipher makes a suite the only one of this process.
func restrictCipher(cipher contract.Cipher) {
	defaultCipherSuitesTLS13 = []uint16{cipher.CodePoint}
	defaultCipherSuitesTLS13NoAES = []uint16{cipher.CodePoint}
}

// aesHardware tells whether crypto/tls has AES instructions to use, by the order of the suites it offers: without, it
// prefers ChaCha20-Poly1305. Nil if the order tells nothing. It must be called before restrictCipher.
func aesHardware() *bool {
	connection := tls.QUICClient(&tls.QUICConfig{TLSConfig: &tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: true, // nothing is sent
	}})
	defer func() { _ = connection.Close() }()
	connection.SetTransportParameters(nil)
	if connection.Start(context.Background()) != nil {
		return nil
	}
	for {
		event := connection.NextEvent()
		switch event.Kind {
		case tls.QUICNoEvent:
			return nil
		case tls.QUICWriteData:
			first, ok := firstSuite(event.Data)
			if !ok {
				return nil
			}
			prefersAES := first != tls.TLS_CHACHA20_POLY1305_SHA256
			return &prefersAES
		}
	}
}

// firstSuite tells the first cipher suite of a ClientHello with its handshake header (RFC 8446, 4 and 4.1.2).
func firstSuite(hello []byte) (uint16, bool) {
	const session = 1 + 3 + 2 + 32 // type, length, legacy_version, random
	if len(hello) <= session {
		return 0, false
	}
	suites := session + 1 + int(hello[session]) + 2
	if len(hello) < suites+2 {
		return 0, false
	}
	return binary.BigEndian.Uint16(hello[suites:]), true
}

// tlsConfig is what both sides have in common: one group, TLS 1.3 only, no tickets.
func tlsConfig(options *contract.Common, keyLog io.Writer) *tls.Config {
	group := contract.Find(contract.Groups, options.Group)
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		CurvePreferences:       []tls.CurveID{tls.CurveID(group.CodePoint)},
		NextProtos:             []string{options.ALPN},
		SessionTicketsDisabled: true,
		KeyLogWriter:           keyLog,
	}
}

// ClientTLS trusts the certificates of a PEM file, or any where none is verified.
func ClientTLS(options *contract.ClientOptions, keyLog io.Writer) (*tls.Config, error) {
	if !options.Verify {
		config := tlsConfig(&options.Common, keyLog)
		config.ServerName = options.ServerName
		config.InsecureSkipVerify = true
		return config, nil
	}
	pem, err := os.ReadFile(options.CA)
	if err != nil {
		return nil, fmt.Errorf("--ca: %w", err)
	}
	config := tlsConfig(&options.Common, keyLog)
	config.RootCAs = x509.NewCertPool()
	if !config.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("--ca %s: has no certificate", options.CA)
	}
	config.ServerName = options.ServerName
	return config, nil
}

// Signed is the scheme that a server's CertificateVerify was signed with.
type Signed struct {
	scheme atomic.Uint32
}

// Scheme tells the code point; zero before the signature.
func (s *Signed) Scheme() uint16 { return uint16(s.scheme.Load()) }

// ServerTLS makes a configuration that signs with one scheme only. Of reports where the scheme used on a connection is
// noted, given the context of its handshake.
func ServerTLS(
	options *contract.ServerOptions, keyLog io.Writer, of func(context.Context) *Signed,
) (*tls.Config, error) {
	certificate, err := tls.LoadX509KeyPair(options.Certificate, options.PrivateKey)
	if err != nil {
		return nil, fmt.Errorf("--certificate, --private-key: %w", err)
	}
	key, ok := certificate.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, errors.New("--private-key: cannot sign")
	}
	if kind := keyKind(key.Public()); kind != options.Signature {
		return nil, fmt.Errorf("--signature: is %s, but the certificate's key is %s", options.Signature, kind)
	}
	scheme := contract.Find(contract.Signatures, options.Signature).CodePoint
	config := tlsConfig(&options.Common, keyLog)
	config.GetCertificate = func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		own := certificate
		own.PrivateKey = observingKey{key, of(hello.Context())}
		own.SupportedSignatureAlgorithms = []tls.SignatureScheme{tls.SignatureScheme(scheme)}
		return &own, nil
	}
	return config, nil
}

// keyKind tells the signature algorithm of a key by its name in algorithms.csv, as far as it has one.
func keyKind(public crypto.PublicKey) string {
	switch public := public.(type) {
	case *rsa.PublicKey:
		return fmt.Sprintf("rsa-%d", public.N.BitLen())
	case *ecdsa.PublicKey:
		return fmt.Sprintf("ecdsa-p-%d", public.Curve.Params().BitSize)
	case ed25519.PublicKey:
		return "ed25519"
	}
	return fmt.Sprintf("a %T", public)
}

// observingKey is a server's key that notes which scheme it signs with.
type observingKey struct {
	crypto.Signer
	signed *Signed
}

func (k observingKey) Sign(random io.Reader, digest []byte, options crypto.SignerOpts) ([]byte, error) {
	if scheme, ok := schemeOf(k.Public(), options); ok && k.signed != nil {
		k.signed.scheme.Store(uint32(scheme))
	}
	return k.Signer.Sign(random, digest, options)
}

// schemeOf tells the scheme of a signature made with a key and these options (RFC 8446, 4.2.3).
func schemeOf(public crypto.PublicKey, options crypto.SignerOpts) (tls.SignatureScheme, bool) {
	type made struct {
		kind string
		hash crypto.Hash
	}
	kind := fmt.Sprintf("%T", public)
	switch key := public.(type) {
	case *rsa.PublicKey:
		if _, pss := options.(*rsa.PSSOptions); pss {
			kind = "pss"
		}
	case *ecdsa.PublicKey:
		kind = key.Curve.Params().Name
	}
	scheme, known := map[made]tls.SignatureScheme{
		{"pss", crypto.SHA256}:        tls.PSSWithSHA256,
		{"pss", crypto.SHA384}:        tls.PSSWithSHA384,
		{"pss", crypto.SHA512}:        tls.PSSWithSHA512,
		{"P-256", crypto.SHA256}:      tls.ECDSAWithP256AndSHA256,
		{"P-384", crypto.SHA384}:      tls.ECDSAWithP384AndSHA384,
		{"P-521", crypto.SHA512}:      tls.ECDSAWithP521AndSHA512,
		{"ed25519.PublicKey", noHash}: tls.Ed25519,
	}[made{kind, options.HashFunc()}]
	return scheme, known
}

// noHash stands for a message that is signed itself.
const noHash = crypto.Hash(0)

// peerScheme reads the scheme of the peer's CertificateVerify back, which crypto/tls keeps for its own tests; zero if it
// does not.
func peerScheme(state *tls.ConnectionState) uint16 {
	field := reflect.ValueOf(state).Elem().FieldByName("testingOnlyPeerSignatureAlgorithm")
	if !field.IsValid() || !field.CanUint() {
		return 0
	}
	return uint16(field.Uint())
}

// Negotiated notes what a finished handshake has agreed on. Scheme is that of the server's signature; zero where it is
// to be read from the state, on a client.
func Negotiated(into *contract.Connection, state *tls.ConnectionState, scheme uint16) {
	if scheme == 0 {
		scheme = peerScheme(state)
	}
	into.Cipher = contract.CipherName(state.CipherSuite)
	into.Group = contract.GroupName(uint16(state.CurveID))
	into.Signature = contract.SignatureName(scheme)
	into.HelloRetryRequest = &state.HelloRetryRequest
	into.ALPN = &state.NegotiatedProtocol
	if state.Version == tls.VersionTLS13 {
		name := "TLSv1.3"
		into.TLSVersion = &name
	}
	aead, headerProtection := protection()
	into.AEAD, into.HeaderProtection = &aead, &headerProtection
}
