package contract

// Algorithm is a group or signature algorithm of workflow/crypto/algorithms.csv.
type Algorithm struct {
	// Name is the one on the command line, TLSName the one in events.
	Name, TLSName string
	// CodePoint is that of the TLS group or signature scheme.
	CodePoint uint16
}

// Groups are the key-exchange groups that crypto/tls of Go 1.26 has.
var Groups = []Algorithm{
	{"x25519", "x25519", 0x001d},
	{"p-256", "secp256r1", 0x0017},
	{"p-384", "secp384r1", 0x0018},
	{"p-521", "secp521r1", 0x0019},
	{"p-256-mlkem768", "SecP256r1MLKEM768", 0x11eb},
	{"x25519-mlkem768", "X25519MLKEM768", 0x11ec},
	{"p-384-mlkem1024", "SecP384r1MLKEM1024", 0x11ed},
}

// Signatures are the signature algorithms that crypto/tls of Go 1.26 has.
var Signatures = []Algorithm{
	{"rsa-1024", "rsa_pss_rsae_sha256", 0x0804},
	{"rsa-2048", "rsa_pss_rsae_sha256", 0x0804},
	{"rsa-4096", "rsa_pss_rsae_sha256", 0x0804},
	{"ecdsa-p-256", "ecdsa_secp256r1_sha256", 0x0403},
	{"ecdsa-p-384", "ecdsa_secp384r1_sha384", 0x0503},
	{"ed25519", "ed25519", 0x0807},
}

// schemes of a server that chooses another one than `--signature` names (RFC 8446, 4.2.3).
var otherSchemes = []Algorithm{
	{"", "rsa_pss_rsae_sha384", 0x0805},
	{"", "rsa_pss_rsae_sha512", 0x0806},
	{"", "ecdsa_secp521r1_sha512", 0x0603},
}

// Cipher is a cipher suite of TLS 1.3.
type Cipher struct {
	// Name is the one on the command line, TLSName that of IANA.
	Name, TLSName string
	CodePoint     uint16
}

// Ciphers are the suites of the contract.
var Ciphers = []Cipher{
	{"aes-128-gcm", "TLS_AES_128_GCM_SHA256", 0x1301},
	{"aes-256-gcm", "TLS_AES_256_GCM_SHA384", 0x1302},
	{"chacha20-poly1305", "TLS_CHACHA20_POLY1305_SHA256", 0x1303},
}

// Find tells the algorithm of a name; nil if there is none.
func Find(algorithms []Algorithm, name string) *Algorithm {
	for i := range algorithms {
		if algorithms[i].Name == name {
			return &algorithms[i]
		}
	}
	return nil
}

func tlsName(algorithms []Algorithm, codePoint uint16) *string {
	for i := range algorithms {
		if algorithms[i].CodePoint == codePoint {
			return &algorithms[i].TLSName
		}
	}
	return nil
}

// GroupName tells the TLS name of a group; nil if it is none of the contract.
func GroupName(codePoint uint16) *string { return tlsName(Groups, codePoint) }

// SignatureName tells the TLS name of a signature scheme; nil if it is unknown.
func SignatureName(codePoint uint16) *string {
	if name := tlsName(Signatures, codePoint); name != nil {
		return name
	}
	return tlsName(otherSchemes, codePoint)
}

// CipherName tells the IANA name of a cipher suite; nil if it is none of the contract.
func CipherName(codePoint uint16) *string {
	for i := range Ciphers {
		if Ciphers[i].CodePoint == codePoint {
			return &Ciphers[i].TLSName
		}
	}
	return nil
}

func names(algorithms []Algorithm) []string {
	var all []string
	for _, algorithm := range algorithms {
		all = append(all, algorithm.Name)
	}
	return all
}
