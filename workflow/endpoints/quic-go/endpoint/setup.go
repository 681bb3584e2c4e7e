// Package endpoint is what the client and the server on quic-go share.
package endpoint

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/quic-go/quic-go"

	"quicbed.internal/contract"
)

// noError is H3_NO_ERROR (RFC 9114, 8.1), from which the errors of HTTP/3 are counted.
const noError quic.ApplicationErrorCode = 0x100

// MaxHeaderBytes is the largest header section that is taken.
const MaxHeaderBytes = 16384

// Done is the application error that a client closes a connection with when it has everything.
func Done(options *contract.Common) quic.ApplicationErrorCode {
	if options.ALPN == contract.HTTP3 {
		return noError
	}
	return 0
}

// Failed is the application error of connections that have failed.
func Failed(options *contract.Common) quic.ApplicationErrorCode {
	return Done(options) + 1
}

// module is the library under test.
const module = "github.com/quic-go/quic-go"

// maxUDPPayload is the size of quic-go's packet buffers, and the max_udp_payload_size it tells its peer
// (protocol.MaxPacketBufferSize).
const maxUDPPayload = 1452

// idle is how long a peer may be silent before a connection has failed.
const idle = 30 * time.Second

// Description tells the abilities of this build.
func Description() *contract.Description {
	tlsLibrary := "crypto/tls " + strings.TrimPrefix(runtime.Version(), "go")
	about := contract.Describe("quic-go", version(), tlsLibrary, hasNoop)
	about.ALPN = append(about.ALPN, contract.HTTP3)
	about.Retry = true
	about.InitialSize = true
	// quic-go has an implementation of CUBIC too, but no setting for it
	about.CongestionControls = []string{"reno"}
	about.GSO = true
	return about
}

// version is the one that go.mod pins, as the linker has put it into this program.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dependency := range info.Deps {
			if dependency.Path == module {
				return strings.TrimPrefix(dependency.Version, "v")
			}
		}
	}
	return "unknown"
}

// Prepare makes this process do what the options ask for, as far as that is a matter of the whole process. It opens the
// events and does not return if the build cannot do it.
func Prepare(about *contract.Description, options *contract.Common) *contract.Events {
	events, err := contract.OpenEvents(options.Events)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(contract.ExitFailed)
	}
	why := about.Unsupported(options)
	if why == "" && options.InitialSize > maxUDPPayload {
		why = fmt.Sprintf("quic-go sends datagrams of at most %d bytes", maxUDPPayload)
	}
	if why != "" {
		events.ExitUnsupported(why)
	}
	// what is asked for is set here, and told by the start event
	setenv("QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING", "true")
	setenv("QUIC_GO_DISABLE_GSO", fmt.Sprint(!options.GSO))
	hardware := aesHardware()
	aes = hardware
	restrictCipher(options.Cipher)
	protect(options)
	if os.Getenv("GOMAXPROCS") == "" {
		// One processor, as the other endpoints use: goroutines on several wait for each other, and on a machine with two
		// for the peer's.
		runtime.GOMAXPROCS(1)
	}
	return events
}

func setenv(name, value string) {
	if err := os.Setenv(name, value); err != nil {
		panic(err) // the name and value are constants without NUL
	}
}

// aes tells whether crypto/tls uses AES instructions; nil before Prepare or where that is unknown.
var aes *bool

// Config makes quic-go's configuration.
func Config(options *contract.Common) *quic.Config {
	return &quic.Config{
		Versions:                       []quic.Version{quic.Version1},
		InitialPacketSize:              uint16(options.InitialSize),
		InitialStreamReceiveWindow:     options.Window,
		MaxStreamReceiveWindow:         options.Window,
		InitialConnectionReceiveWindow: options.Window,
		MaxConnectionReceiveWindow:     options.Window,
		MaxIdleTimeout:                 idle,
	}
}

// OneLine tells an error as one line.
func OneLine(err error) string {
	return strings.Join(strings.Fields(err.Error()), " ")
}
