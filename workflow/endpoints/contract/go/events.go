package contract

import (
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"
)

// Exit codes.
const (
	ExitOK          = 0
	ExitFailed      = 1
	ExitUsage       = 2
	ExitUnsupported = 127
)

// InForce are the options after the start, read back where the system can tell.
type InForce struct {
	Cipher            string `json:"cipher"`
	AEAD              string `json:"aead"`
	HeaderProtection  string `json:"header_protection"`
	Group             string `json:"group"`
	Signature         string `json:"signature"`
	InitialSize       int    `json:"initial_size"`
	Retry             *bool  `json:"retry,omitempty"`
	CongestionControl string `json:"congestion_control"`
	Pacing            string `json:"pacing"`
	GSO               bool   `json:"gso"`
	GRO               bool   `json:"gro"`
	UDPPayload        int    `json:"udp_payload"`
	// ReceiveBuffer is counted as --receive-buffer is: half of what getsockopt(SO_RCVBUF) tells (socket(7)).
	ReceiveBuffer int    `json:"receive_buffer"`
	SendBuffer    int    `json:"send_buffer"`
	Window        uint64 `json:"window"`
	AESHardware   *bool  `json:"aes_hardware"`
	GOMAXPROCS    int    `json:"gomaxprocs"`
}

// Connection is what both sides tell about a connection; nil is what the library cannot tell. Times are nanoseconds of
// CLOCK_MONOTONIC.
type Connection struct {
	Index                    uint64  `json:"index"`
	OK                       bool    `json:"ok"`
	Error                    *string `json:"error"`
	THandshakeComplete       *int64  `json:"t_handshake_complete"`
	THandshakeConfirmed      *int64  `json:"t_handshake_confirmed"`
	HelloRetryRequest        *bool   `json:"hello_retry_request"`
	Retry                    *bool   `json:"retry"`
	TClose                   *int64  `json:"t_close"`
	Cipher                   *string `json:"cipher"`
	Group                    *string `json:"group"`
	Signature                *string `json:"signature"`
	ALPN                     *string `json:"alpn"`
	TLSVersion               *string `json:"tls_version"`
	AEAD                     *string `json:"aead"`
	HeaderProtection         *string `json:"header_protection"`
	HandshakePacketsSent     *uint64 `json:"handshake_packets_sent"`
	HandshakePacketsReceived *uint64 `json:"handshake_packets_received"`
	HandshakeBytesSent       *uint64 `json:"handshake_bytes_sent"`
	HandshakeBytesReceived   *uint64 `json:"handshake_bytes_received"`
	PacketsSent              *uint64 `json:"packets_sent"`
	PacketsReceived          *uint64 `json:"packets_received"`
	PacketsLost              *uint64 `json:"packets_lost"`
	CPUUser                  *int64  `json:"cpu_user_ns"`
	CPUSystem                *int64  `json:"cpu_system_ns"`
}

// Fail marks a connection as failed, for a reason of one line.
func (c *Connection) Fail(reason string) {
	c.OK, c.Error = false, &reason
}

// SpentCPU notes the CPU time between two stamps.
func (c *Connection) SpentCPU(start, end Stamp) {
	user, system := end.CPU.User-start.CPU.User, end.CPU.System-start.CPU.System
	c.CPUUser, c.CPUSystem = &user, &system
}

// ClientConnection is a connection as its client saw it.
type ClientConnection struct {
	Connection
	TClientHello   *int64 `json:"t_client_hello"`
	TRequestSent   *int64 `json:"t_request_sent"`
	TFirstByte     *int64 `json:"t_first_byte"`
	TLastByte      *int64 `json:"t_last_byte"`
	BytesRequested uint64 `json:"bytes_requested"`
	BytesReceived  uint64 `json:"bytes_received"`
	ContentOK      bool   `json:"content_ok"`
}

// ServerConnection is a connection as its server saw it.
type ServerConnection struct {
	Connection
	TAccept   *int64 `json:"t_accept"`
	BytesSent uint64 `json:"bytes_sent"`
}

type header struct {
	Event string `json:"event"`
	T     int64  `json:"t"`
}

type start struct {
	header
	Contract int     `json:"contract"`
	Role     string  `json:"role"`
	Library  string  `json:"library"`
	Version  string  `json:"version"`
	PID      int     `json:"pid"`
	Options  InForce `json:"options"`
}

type ready struct {
	header
	Address string `json:"address"`
	Port    uint16 `json:"port"`
}

type reason struct {
	header
	Reason string `json:"reason"`
}

type end struct {
	header
	Connections uint64 `json:"connections"`
	Failed      uint64 `json:"failed"`
	CPUUser     int64  `json:"cpu_user_ns"`
	CPUSystem   int64  `json:"cpu_system_ns"`
	RunDelay    *int64 `json:"run_delay_ns"`
	MaxRSS      *int64 `json:"max_rss_bytes"`
}

// Events writes events, each as one line in one write, and counts connections for the last one. It can be used by
// several goroutines at once.
type Events struct {
	mutex               sync.Mutex
	out                 io.Writer
	connections, failed uint64
}

// NewEvents writes events to out.
func NewEvents(out io.Writer) *Events {
	return &Events{out: out}
}

// OpenEvents opens the file of --events; `-` is standard output.
func OpenEvents(file string) (*Events, error) {
	if file == "-" {
		return NewEvents(os.Stdout), nil
	}
	out, err := os.Create(file)
	if err != nil {
		return nil, fmt.Errorf("--events: %w", err)
	}
	return NewEvents(out), nil
}

// write writes one event. A program that cannot write events is useless: it ends.
func (e *Events) write(event any) {
	line, err := json.Marshal(event)
	if err == nil {
		_, err = e.out.Write(append(line, '\n'))
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "cannot write events: %v\n", err)
		os.Exit(ExitFailed)
	}
}

func named(event string) header {
	return header{Event: event, T: Now()}
}

// Start says that the program runs.
func (e *Events) Start(role string, about *Description, options InForce) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.write(start{named("start"), Version, role, about.Library, about.Version, os.Getpid(), options})
}

// Ready says that connections are accepted from now on.
func (e *Events) Ready(address netip.AddrPort) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.write(ready{named("ready"), address.Addr().String(), address.Port()})
}

func (e *Events) count(ok bool) {
	e.connections++
	if !ok {
		e.failed++
	}
}

// ClientConnection reports a connection.
func (e *Events) ClientConnection(connection *ClientConnection) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.count(connection.OK)
	e.write(struct {
		header
		*ClientConnection
	}{named("connection"), connection})
}

// ServerConnection reports a connection.
func (e *Events) ServerConnection(connection *ServerConnection) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.count(connection.OK)
	e.write(struct {
		header
		*ServerConnection
	}{named("connection"), connection})
}

// Failed tells how many connections have failed.
func (e *Events) Failed() uint64 {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	return e.failed
}

// End writes the last event; later ones are lost.
func (e *Events) End() {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	cpu := CPU()
	e.write(end{named("end"), e.connections, e.failed, cpu.User, cpu.System, runDelay(), maxRSS()})
	e.out = io.Discard
}

// ExitUnsupported ends the program because this build cannot do what is asked.
func (e *Events) ExitUnsupported(why string) {
	e.exit("unsupported", why, ExitUnsupported)
}

// ExitFailed ends the program because it failed.
func (e *Events) ExitFailed(why string) {
	e.exit("error", why, ExitFailed)
}

func (e *Events) exit(event, why string, code int) {
	fmt.Fprintln(os.Stderr, why)
	e.mutex.Lock()
	e.write(reason{named(event), why})
	e.mutex.Unlock()
	e.End()
	os.Exit(code)
}
