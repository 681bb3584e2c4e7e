// Package contract is what endpoint programs in Go share: the command line, events, content and clocks of
// workflow/endpoints/ENDPOINT.md.
package contract

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Version of the contract.
const Version = 2

// Application protocols of endpoints (ALPN): HTTP/0.9 on streams of QUIC, and HTTP/3 (RFC 9114).
const (
	ALPN  = "hq-interop"
	HTTP3 = "h3"
)

// Common are the options of clients and servers.
type Common struct {
	Events            string
	ALPN              string
	Cipher            Cipher
	AEAD              string
	HeaderProtection  string
	Group             string
	Signature         string
	InitialSize       int
	CongestionControl string
	Pacing            string // empty: what the endpoint does unasked
	GSO, GRO          bool
	GSOPaced          bool
	UDPPayload        int
	ReceiveBuffer     int
	SendBuffer        int
	Window            uint64
	KeyLog            string
}

// ClientOptions are the options of a client.
type ClientOptions struct {
	Common
	Connect    netip.AddrPort
	ServerName string
	// Verify is false if any certificate is accepted, which is for saving files only; then there is no CA.
	Verify bool
	// CA is the PEM trust anchor.
	CA string
	// Bytes is the number to ask for; the largest there is where a file is saved.
	Bytes uint64
	// Save is the file to write what arrives to; its name is that of the file asked for.
	Save        string
	Connections uint64
	Timeout     time.Duration
}

// Path is what every connection asks for, as the path of a URL.
func (o *ClientOptions) Path() string {
	if name, err := requestedName(o.Save); err == nil && o.Save != "" {
		return "/" + name
	}
	return fmt.Sprintf("/%d", o.Bytes)
}

// Request is that of every connection, of hq-interop.
func (o *ClientOptions) Request() []byte {
	return fmt.Appendf(nil, "GET %s\r\n", o.Path())
}

// Checker takes the content of one connection.
func (o *ClientOptions) Checker() *Checker {
	if o.Save != "" {
		return NewSaver(o.Save)
	}
	return NewChecker(o.Bytes)
}

// ServerOptions are the options of a server. Sizes given with --content are not kept: content is made on the fly. Those
// who ask for files of --www get them.
type ServerOptions struct {
	Common
	Listen      netip.AddrPort
	Certificate string
	PrivateKey  string
	Retry       bool
}

// ErrDescribe stands for --describe.
var ErrDescribe = errors.New("--describe")

const (
	minUDPPayload = 1200
	// maxUDPPayload is the largest payload of UDP over IPv4.
	maxUDPPayload = 65507
	// maxBuffer is what Linux can double in a C int (socket(7)).
	maxBuffer = math.MaxInt32 / 2
	// maxWindow is the largest number on the wire (RFC 9000, section 16).
	maxWindow = 1<<62 - 1
)

func defaults(about *Description) Common {
	return Common{
		Events:            "-",
		ALPN:              about.ALPN[0],
		Cipher:            Ciphers[0],
		AEAD:              "standard",
		HeaderProtection:  "on",
		Group:             "x25519",
		Signature:         "rsa-2048",
		InitialSize:       minUDPPayload,
		CongestionControl: about.CongestionControls[0],
		GSO:               true,
		GRO:               true,
		UDPPayload:        1472,
		ReceiveBuffer:     6815744,
		SendBuffer:        6815744,
		Window:            16777216,
	}
}

// ParseClient reads the arguments of a client, without the program's name.
func ParseClient(arguments []string, about *Description) (*ClientOptions, error) {
	options := &ClientOptions{Common: defaults(about), Verify: true, Connections: 1, Timeout: 60 * time.Second}
	given, err := parse(arguments, func(name, value string) error {
		switch name {
		case "connect":
			return address(value, &options.Connect)
		case "server-name":
			options.ServerName = value
		case "ca":
			options.CA = value
		case "verify":
			return toggle(value, &options.Verify)
		case "bytes":
			return number(value, 0, math.MaxUint64, &options.Bytes)
		case "save":
			options.Save = value
			_, err := requestedName(value)
			return err
		case "connections":
			return number(value, 1, math.MaxUint64, &options.Connections)
		case "timeout":
			seconds, err := strconv.ParseFloat(value, 64)
			if err != nil || !(seconds > 0 && seconds < 1e9) {
				return errors.New("not a positive number of seconds")
			}
			options.Timeout = time.Duration(seconds * float64(time.Second))
		default:
			return options.take(name, value)
		}
		return nil
	})
	if err == nil {
		wanted := "bytes"
		if slices.Contains(given, "save") {
			wanted = "save"
			if slices.Contains(given, "bytes") {
				return options, errors.New("--bytes: not with --save, which asks for a file")
			}
			options.Bytes = math.MaxUint64
		}
		if !options.Verify {
			if wanted != "save" {
				return options, errors.New(
					"--verify off: only with --save, what is measured comes from a verified server")
			}
			if slices.Contains(given, "ca") {
				return options, errors.New("--ca: not with --verify off")
			}
			given = append(given, "ca")
		}
		err = options.check(given, "connect", "server-name", "ca", wanted)
	}
	return options, err
}

// ParseServer reads the arguments of a server, without the program's name.
func ParseServer(arguments []string, about *Description) (*ServerOptions, error) {
	options := &ServerOptions{Common: defaults(about)}
	given, err := parse(arguments, func(name, value string) error {
		switch name {
		case "listen":
			return address(value, &options.Listen)
		case "certificate":
			options.Certificate = value
		case "private-key":
			options.PrivateKey = value
		case "content":
			var ignored uint64
			return number(value, 0, math.MaxUint64, &ignored)
		case "www":
			return serveFiles(value)
		case "retry":
			return toggle(value, &options.Retry)
		default:
			return options.take(name, value)
		}
		return nil
	})
	if err == nil {
		err = options.check(given, "listen", "certificate", "private-key")
	}
	return options, err
}

var errUnknown = errors.New("unknown option")

// parse gives every option to take and tells the names of those given.
func parse(arguments []string, take func(name, value string) error) ([]string, error) {
	var given []string
	for i := 0; i < len(arguments); i++ {
		name, found := strings.CutPrefix(arguments[i], "--")
		if !found {
			return nil, fmt.Errorf("unexpected argument %q", arguments[i])
		}
		name, value, attached := strings.Cut(name, "=")
		if name == "describe" {
			return nil, ErrDescribe
		}
		if !attached && i+1 < len(arguments) {
			i++
			value, attached = arguments[i], true
		}
		err := take(name, value)
		switch {
		case errors.Is(err, errUnknown):
			return nil, fmt.Errorf("unknown option --%s", name)
		case !attached:
			return nil, fmt.Errorf("--%s: a value is missing", name)
		case err != nil:
			return nil, fmt.Errorf("--%s: %w: %q", name, err, value)
		}
		given = append(given, name)
	}
	return given, nil
}

func (c *Common) take(name, value string) error {
	switch name {
	case "events":
		c.Events = value
	case "alpn":
		return choice(value, &c.ALPN, ALPN, HTTP3)
	case "cipher":
		return cipher(value, &c.Cipher)
	case "aead":
		return choice(value, &c.AEAD, "standard", "noop", "noenc")
	case "header-protection":
		return choice(value, &c.HeaderProtection, "on", "off")
	case "group":
		c.Group = value
	case "signature":
		c.Signature = value
	case "initial-size":
		return number(value, minUDPPayload, maxUDPPayload, &c.InitialSize)
	case "congestion-control":
		return choice(value, &c.CongestionControl, "cubic", "reno", "bbr")
	case "pacing":
		return choice(value, &c.Pacing, "off", "library", "txtime")
	case "gso":
		var asked string
		err := choice(value, &asked, "on", "off", "paced")
		c.GSO, c.GSOPaced = asked != "off", asked == "paced"
		return err
	case "gro":
		return toggle(value, &c.GRO)
	case "udp-payload":
		return number(value, minUDPPayload, maxUDPPayload, &c.UDPPayload)
	case "receive-buffer":
		return number(value, 1, maxBuffer, &c.ReceiveBuffer)
	case "send-buffer":
		return number(value, 1, maxBuffer, &c.SendBuffer)
	case "window":
		return number(value, 1, maxWindow, &c.Window)
	case "key-log":
		c.KeyLog = value
	default:
		return errUnknown
	}
	return nil
}

// check finds what no single option can tell.
func (c *Common) check(given []string, required ...string) error {
	for _, name := range required {
		if !slices.Contains(given, name) {
			return fmt.Errorf("--%s is missing", name)
		}
	}
	if c.InitialSize > c.UDPPayload {
		return fmt.Errorf("--initial-size: %d is more than --udp-payload %d", c.InitialSize, c.UDPPayload)
	}
	return nil
}

func address(value string, into *netip.AddrPort) error {
	parsed, err := netip.ParseAddrPort(value)
	if err != nil {
		return errors.New("not IP:PORT")
	}
	*into = parsed
	return nil
}

func number[T int | uint64](value string, first, last uint64, into *T) error {
	parsed, err := strconv.ParseUint(value, 10, 64)
	if err != nil || parsed < first || parsed > last {
		return fmt.Errorf("not a whole number from %d to %d", first, last)
	}
	*into = T(parsed)
	return nil
}

func choice(value string, into *string, choices ...string) error {
	if !slices.Contains(choices, value) {
		return fmt.Errorf("not one of %s", strings.Join(choices, ", "))
	}
	*into = value
	return nil
}

func toggle(value string, into *bool) error {
	var word string
	err := choice(value, &word, "on", "off")
	*into = word == "on"
	return err
}

func cipher(value string, into *Cipher) error {
	var known []string
	for _, cipher := range Ciphers {
		known = append(known, cipher.Name)
		if cipher.Name == value {
			*into = cipher
			return nil
		}
	}
	return fmt.Errorf("not one of %s", strings.Join(known, ", "))
}

// Description is what --describe prints.
type Description struct {
	Contract        int      `json:"contract"`
	Library         string   `json:"library"`
	Version         string   `json:"version"`
	TLSLibrary      string   `json:"tls_library"`
	FlavourFeatures []string `json:"flavour_features"`
	Transport       string   `json:"transport"`
	// ALPN begins with what is spoken unasked.
	ALPN               []string `json:"alpn"`
	Ciphers            []string `json:"ciphers"`
	AEAD               []string `json:"aead"`
	HeaderProtection   []string `json:"header_protection"`
	Groups             []string `json:"groups"`
	Signatures         []string `json:"signatures"`
	Retry              bool     `json:"retry"`
	InitialSize        bool     `json:"initial_size"`
	CongestionControls []string `json:"congestion_controls"`
	Pacing             []string `json:"pacing"`
	GSO                bool     `json:"gso"`
	GSOPaced           bool     `json:"gso_paced"`
	GRO                bool     `json:"gro"`
	// Files tells whether --www and --save are known.
	Files bool `json:"files"`
}

// Describe starts the description of a QUIC endpoint on crypto/tls, with the switches of a noop flavour where it is one.
func Describe(library, version, tlsLibrary string, noop bool) *Description {
	about := &Description{
		Contract:         Version,
		Library:          library,
		Version:          version,
		TLSLibrary:       tlsLibrary,
		FlavourFeatures:  []string{},
		Transport:        "quic",
		ALPN:             []string{ALPN},
		AEAD:             []string{"standard"},
		HeaderProtection: []string{"on"},
		Groups:           names(Groups),
		Signatures:       names(Signatures),
		Pacing:           []string{"library"},
		Files:            true,
	}
	for _, cipher := range Ciphers {
		about.Ciphers = append(about.Ciphers, cipher.Name)
	}
	if noop {
		about.FlavourFeatures = append(about.FlavourFeatures, "noop")
		about.AEAD = append(about.AEAD, "noop")
		about.HeaderProtection = append(about.HeaderProtection, "off")
	}
	return about
}

// Unsupported tells why a build cannot do what is asked; empty if it can.
func (d *Description) Unsupported(options *Common) string {
	switch {
	case !slices.Contains(d.ALPN, options.ALPN):
		return fmt.Sprintf("the endpoints of %s do not speak %s", d.Library, options.ALPN)
	case !slices.Contains(d.AEAD, options.AEAD) && options.AEAD == "noenc":
		return d.Library + " cannot leave out packet protection"
	case !slices.Contains(d.AEAD, options.AEAD):
		return "this build has no --aead noop, it is no noop flavour"
	case !slices.Contains(d.HeaderProtection, options.HeaderProtection):
		return "this build has no --header-protection off, it is no noop flavour"
	case !slices.Contains(d.Groups, options.Group):
		return fmt.Sprintf("no group %q, there are: %s", options.Group, strings.Join(d.Groups, ", "))
	case !slices.Contains(d.Signatures, options.Signature):
		return fmt.Sprintf("no signature %q, there are: %s", options.Signature, strings.Join(d.Signatures, ", "))
	case !slices.Contains(d.CongestionControls, options.CongestionControl):
		return fmt.Sprintf("%s has no congestion control %s", d.Library, options.CongestionControl)
	case options.Pacing != "" && !slices.Contains(d.Pacing, options.Pacing):
		return fmt.Sprintf("%s has no --pacing %s", d.Library, options.Pacing)
	case options.GSOPaced && !d.GSOPaced:
		return d.Library + " has no --gso paced"
	}
	return ""
}

// OrExit ends the program if a command line is --describe or wrong.
func OrExit(err error, about *Description) {
	if err == nil {
		return
	}
	if !errors.Is(err, ErrDescribe) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(ExitUsage)
	}
	if err := json.NewEncoder(os.Stdout).Encode(about); err != nil {
		os.Exit(ExitFailed)
	}
	os.Exit(ExitOK)
}
