// The client of the endpoint contract on quic-go: downloads over fresh connections, one after the other.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"quicbed.internal/contract"
	"quicbed/quic-go/endpoint"
)

// chunk is the number of bytes read from quic-go at once, at most: few enough to be in the cache when they are checked.
const chunk = 1 << 15

func main() {
	about := endpoint.Description()
	options, err := contract.ParseClient(os.Args[1:], about)
	contract.OrExit(err, about)
	events := endpoint.Prepare(about, &options.Common)
	if err := download(options, about, events); err != nil {
		events.ExitFailed(endpoint.OneLine(err))
	}
	failed := events.Failed()
	events.End()
	if failed > 0 {
		os.Exit(contract.ExitFailed)
	}
}

// download makes all connections. It fails only for what concerns the program; a failed connection is an event.
func download(options *contract.ClientOptions, about *contract.Description, events *contract.Events) error {
	keyLog, err := endpoint.KeyLog(&options.Common)
	if err != nil {
		return err
	}
	config, err := endpoint.ClientTLS(options, keyLog)
	if err != nil {
		return err
	}
	buffer := make([]byte, chunk)
	for index := range options.Connections {
		transfer := &transfer{options: options, tls: config, content: options.Checker(), buffer: buffer}
		socket, err := endpoint.Listen(anyAddress(options.Connect), &options.Common, &transfer.meter)
		if err != nil {
			return fmt.Errorf("cannot make a UDP socket: %w", err)
		}
		if index == 0 {
			inForce, err := socket.InForce()
			if err != nil {
				return fmt.Errorf("cannot read the socket's options: %w", err)
			}
			events.Start("client", about, inForce)
		}
		events.ClientConnection(transfer.run(index, socket))
		if err := socket.Close(); err != nil {
			return fmt.Errorf("cannot close a UDP socket: %w", err)
		}
	}
	return nil
}

// anyAddress is that of a socket on a free port which can reach a peer.
func anyAddress(peer netip.AddrPort) netip.AddrPort {
	if peer.Addr().Is6() {
		return netip.AddrPortFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
}

// transfer is one connection and its download; what is known stays here when it fails.
type transfer struct {
	options    *contract.ClientOptions
	tls        *tls.Config
	meter      endpoint.ClientMeter
	content    *contract.Checker
	buffer     []byte
	connection *quic.Conn
	tFirstByte *int64
	lastByte   *contract.Stamp
	report     contract.ClientConnection
}

// run makes the connection and tells how it went.
func (t *transfer) run(index uint64, socket *endpoint.Socket) *contract.ClientConnection {
	transport := &quic.Transport{Conn: socket}
	ctx, cancel := context.WithTimeout(context.Background(), t.options.Timeout)
	defer cancel()
	err := t.download(ctx, transport)
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("not finished after %g s", t.options.Timeout.Seconds())
	}
	departed := t.meter.Departed()
	tClose := contract.Now()

	report := &t.report
	report.Index = index
	report.OK = err == nil
	if err != nil {
		report.Fail(endpoint.OneLine(err))
	}
	if t.connection != nil {
		// returns when the peer has been told
		if err == nil {
			_ = t.connection.CloseWithError(endpoint.Done(&t.options.Common), "")
		} else {
			_ = t.connection.CloseWithError(endpoint.Failed(&t.options.Common), *report.Error)
		}
		stats := t.connection.ConnectionStats()
		report.PacketsSent = &stats.PacketsSent
		report.PacketsReceived = &stats.PacketsReceived
		report.PacketsLost = &stats.PacketsLost
	}
	_ = transport.Close()

	retry := t.meter.Retry()
	report.Retry = &retry
	report.TClose = &tClose
	report.TRequestSent = departed
	report.TFirstByte = t.tFirstByte
	report.BytesRequested = t.content.Requested()
	report.BytesReceived = t.content.Received()
	report.ContentOK = t.content.Verdict() == nil
	if first := t.meter.First(); first != nil {
		report.TClientHello = &first.T
		if t.lastByte != nil {
			report.SpentCPU(*first, *t.lastByte)
		}
	}
	if t.lastByte != nil {
		report.TLastByte = &t.lastByte.T
	}
	return report
}

func (t *transfer) download(ctx context.Context, transport *quic.Transport) error {
	config := endpoint.Config(&t.options.Common)
	// --timeout is the only limit of a handshake
	config.HandshakeIdleTimeout = t.options.Timeout + time.Second
	peer := net.UDPAddrFromAddrPort(t.options.Connect)
	connection, err := transport.Dial(ctx, peer, t.tls, config)
	if err != nil {
		return err
	}
	complete := contract.Now()
	traffic := t.meter.Complete()
	t.connection = connection
	t.report.THandshakeComplete = &complete
	traffic.Report(&t.report.Connection)
	state := connection.ConnectionState().TLS
	endpoint.Negotiated(&t.report.Connection, &state, 0)
	if err := t.checkSignature(); err != nil {
		return err
	}

	if t.options.ALPN == contract.HTTP3 {
		return t.askHTTP3(ctx, connection)
	}
	return t.ask(ctx, connection)
}

func (t *transfer) ask(ctx context.Context, connection *quic.Conn) error {
	stream, err := connection.OpenStreamSync(ctx)
	if err != nil {
		return err
	}
	if err := t.aboutToAsk(ctx, stream); err != nil {
		return err
	}
	if _, err := stream.Write(t.options.Request()); err != nil {
		return err
	}
	if err := stream.Close(); err != nil {
		return err
	}
	return t.receive(stream)
}

// aboutToAsk limits a stream to the time that its download has; the next datagram that leaves has the request.
func (t *transfer) aboutToAsk(ctx context.Context, stream interface{ SetDeadline(time.Time) error }) error {
	if deadline, ok := ctx.Deadline(); ok {
		if err := stream.SetDeadline(deadline); err != nil {
			return err
		}
	}
	t.meter.AwaitDeparture()
	return nil
}

// askHTTP3 asks with a request of HTTP/3 (RFC 9114).
func (t *transfer) askHTTP3(ctx context.Context, connection *quic.Conn) error {
	transport := http3.Transport{DisableCompression: true, MaxResponseHeaderBytes: endpoint.MaxHeaderBytes}
	address := "https://" + t.options.ServerName + t.options.Path()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	stream, err := transport.NewClientConn(connection).OpenRequestStream(ctx)
	if err != nil {
		return err
	}
	if err := t.aboutToAsk(ctx, stream); err != nil {
		return err
	}
	if err := stream.SendRequestHeader(request); err != nil {
		return err
	}
	if err := stream.Close(); err != nil {
		return err
	}
	response, err := stream.ReadResponse()
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("HTTP/3: status %d instead of 200", response.StatusCode)
	}
	return t.receive(response.Body)
}

// checkSignature refuses a scheme that was not asked for: crypto/tls has no setting for those a client offers.
func (t *transfer) checkSignature() error {
	signature := t.report.Signature
	wanted := contract.Find(contract.Signatures, t.options.Signature).TLSName
	if signature != nil && *signature != wanted {
		return fmt.Errorf("the server signed with %s instead of %s", *signature, wanted)
	}
	return nil
}

func (t *transfer) receive(stream io.Reader) error {
	for {
		n, err := stream.Read(t.buffer)
		if n > 0 && t.tFirstByte == nil {
			now := contract.Now()
			t.tFirstByte = &now
		}
		if t.lastByte == nil && t.content.Received()+uint64(n) >= t.options.Bytes {
			stamp := contract.NewStamp()
			t.lastByte = &stamp
		}
		t.content.Receive(t.buffer[:n])
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = io.EOF // less than the content-length: what is missing is told by the content
		}
		if errors.Is(err, io.EOF) || t.content.Received() > t.options.Bytes {
			return t.content.Verdict()
		}
		if err != nil {
			return err
		}
	}
}
