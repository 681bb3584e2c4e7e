// The server of the endpoint contract on quic-go: serves content made in memory until it is stopped.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"quicbed.internal/contract"
	"quicbed/quic-go/endpoint"
)

const (
	// arrived is how long it may take to read what had arrived before the server was stopped, where connections are open.
	arrived = 100 * time.Millisecond
	// stopping is how long connections may take to end when the server is stopped.
	stopping = 500 * time.Millisecond
)

func main() {
	about := endpoint.Description()
	options, err := contract.ParseServer(os.Args[1:], about)
	contract.OrExit(err, about)
	events := endpoint.Prepare(about, &options.Common)
	if err := serve(options, about, events); err != nil {
		events.ExitFailed(endpoint.OneLine(err))
	}
	events.End()
}

// server is what all connections have in common.
type server struct {
	options *contract.ServerOptions
	events  *contract.Events
	meter   *endpoint.ServerMeter
	stopped context.Context
	running sync.WaitGroup
	// next is the index of the next connection; quic-go makes one after the other.
	next uint64
}

// serve serves until SIGTERM or SIGINT. It fails only for what concerns the program; a failed connection is an event.
func serve(options *contract.ServerOptions, about *contract.Description, events *contract.Events) error {
	asked, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	stopped, stop := context.WithCancel(context.Background())
	defer stop()
	keyLog, err := endpoint.KeyLog(&options.Common)
	if err != nil {
		return err
	}
	config, err := endpoint.ServerTLS(options, keyLog, func(ctx context.Context) *endpoint.Signed {
		return &of(ctx).signed
	})
	if err != nil {
		return err
	}
	s := &server{options: options, events: events, meter: endpoint.NewServerMeter(), stopped: stopped}
	listener, transport, err := s.listen(config)
	if err != nil {
		return err
	}
	if err := s.ready(about, transport); err != nil {
		return err
	}
	for {
		connection, err := listener.Accept(asked)
		if asked.Err() != nil {
			break
		}
		if err != nil {
			return fmt.Errorf("cannot accept connections: %w", err)
		}
		of(connection.Context()).accepted <- connection
	}
	// ends the handshakes that go on, and keeps the connections there are
	_ = listener.Close()
	// a connection whose end had already arrived is reported as ended
	s.wait(arrived)
	stop()
	s.wait(stopping)
	return transport.Close()
}

func (s *server) listen(config *tls.Config) (*quic.EarlyListener, *quic.Transport, error) {
	socket, err := endpoint.Listen(s.options.Listen, &s.options.Common, s.meter)
	if err != nil {
		return nil, nil, fmt.Errorf("--listen %s: %w", s.options.Listen, err)
	}
	transport := &quic.Transport{Conn: socket, ConnContext: s.connect}
	if s.options.Retry {
		transport.VerifySourceAddress = func(net.Addr) bool { return true }
	}
	// a connection is accepted when its handshake has begun to succeed
	listener, err := transport.ListenEarly(config, endpoint.Config(&s.options.Common))
	if err != nil {
		return nil, nil, fmt.Errorf("cannot listen: %w", err)
	}
	return listener, transport, socket.SetBuffers()
}

func (s *server) ready(about *contract.Description, transport *quic.Transport) error {
	socket, ok := transport.Conn.(*endpoint.Socket)
	if !ok {
		return errors.New("the transport has another socket")
	}
	inForce, err := socket.InForce()
	if err != nil {
		return fmt.Errorf("cannot read the socket's options: %w", err)
	}
	inForce.Retry = &s.options.Retry
	s.events.Start("server", about, inForce)
	address, ok := socket.LocalAddr().(*net.UDPAddr)
	if !ok {
		return errors.New("cannot tell the address")
	}
	s.events.Ready(address.AddrPort())
	return nil
}

// wait lets the connections end, but not for longer.
func (s *server) wait(longest time.Duration) {
	ended := make(chan struct{})
	go func() {
		s.running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(longest):
	}
}

// connection is one connection, from its first datagram to its report.
type connection struct {
	server   *server
	peer     net.Addr
	accepted chan *quic.Conn
	signed   endpoint.Signed
	quic     *quic.Conn
	report   contract.ServerConnection
	// answers that HTTP/3 gives at a time, and why one was not given
	mutex   sync.Mutex
	refused error
	unsent  error
}

type contextKey struct{}

// of tells the connection that a context of quic-go belongs to.
func of(ctx context.Context) *connection {
	found, ok := ctx.Value(contextKey{}).(*connection)
	if !ok {
		panic("a context that connect has not made")
	}
	return found
}

// connect is called by quic-go for every new connection; the context ends with it.
func (s *server) connect(ctx context.Context, info *quic.ClientInfo) (context.Context, error) {
	c := &connection{server: s, peer: info.RemoteAddr, accepted: make(chan *quic.Conn, 1)}
	c.report.Index = s.next
	s.next++
	// clients keep no tokens: a valid one comes from a Retry packet
	retry := info.AddrVerified
	c.report.Retry = &retry
	s.running.Go(func() { c.run(ctx) })
	return context.WithValue(ctx, contextKey{}, c), nil
}

func (c *connection) run(ctx context.Context) {
	peer := c.server.meter.Peer(c.peer)
	err := c.handshake(ctx, peer)
	c.server.meter.Forget(c.peer)
	if err == nil {
		forget := context.AfterFunc(c.server.stopped, func() {
			_ = c.quic.CloseWithError(endpoint.Failed(&c.server.options.Common), "the server was stopped")
		})
		if c.server.options.ALPN == contract.HTTP3 {
			err = c.serveHTTP3(ctx)
		} else {
			err = c.serve(ctx)
		}
		forget()
	}
	if c.quic != nil {
		if err != nil {
			_ = c.quic.CloseWithError(endpoint.Failed(&c.server.options.Common), endpoint.OneLine(err))
		}
		stats := c.quic.ConnectionStats()
		c.report.PacketsSent = &stats.PacketsSent
		c.report.PacketsReceived = &stats.PacketsReceived
		c.report.PacketsLost = &stats.PacketsLost
	}
	end := contract.NewStamp()
	c.report.OK = err == nil
	if err != nil {
		c.report.Fail(endpoint.OneLine(err))
	}
	c.report.TClose = &end.T
	if peer != nil {
		c.report.TAccept = &peer.First.T
		c.report.SpentCPU(peer.First, end)
	}
	c.server.events.ServerConnection(&c.report)
}

// handshake waits for it to be complete.
func (c *connection) handshake(ctx context.Context, peer *endpoint.Peer) error {
	select {
	case c.quic = <-c.accepted:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case <-c.quic.HandshakeComplete():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	complete := contract.Now()
	// complete is confirmed on a server (RFC 9001, 4.1.2)
	c.report.THandshakeComplete, c.report.THandshakeConfirmed = &complete, &complete
	if peer != nil {
		peer.Report(&c.report.Connection)
	}
	state := c.quic.ConnectionState().TLS
	endpoint.Negotiated(&c.report.Connection, &state, c.signed.Scheme())
	return nil
}

// serve answers requests, one after the other, until the client closes the connection.
func (c *connection) serve(ctx context.Context) error {
	for {
		stream, err := c.quic.AcceptStream(ctx)
		if err != nil {
			// quic-go tells why it closed a connection only here
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			var closed *quic.ApplicationError
			if errors.As(err, &closed) && closed.Remote && closed.ErrorCode == endpoint.Done(&c.server.options.Common) {
				return nil
			}
			return err
		}
		request, err := io.ReadAll(io.LimitReader(stream, contract.MaxRequest+1))
		if err != nil {
			return err
		}
		body, err := contract.ParseRequest(request)
		if err != nil {
			return err
		}
		if err := c.send(stream, body); err != nil {
			return err
		}
		if err := stream.Close(); err != nil {
			return err
		}
	}
}

// send sends a body from where it lies; quic-go copies it into packets.
func (c *connection) send(stream io.Writer, body contract.Body) error {
	for offset := uint64(0); offset < body.Length; {
		n, err := stream.Write(body.At(offset))
		offset += uint64(n)
		c.mutex.Lock()
		c.report.BytesSent += uint64(n)
		c.mutex.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// serveHTTP3 answers requests of HTTP/3 (RFC 9114) until the client closes the connection.
func (c *connection) serveHTTP3(ctx context.Context) error {
	server := http3.Server{Handler: http.HandlerFunc(c.answer), MaxHeaderBytes: endpoint.MaxHeaderBytes}
	err := server.ServeQUICConn(c.quic)
	switch {
	case c.refused != nil:
		return c.refused
	case err == nil:
		return c.unsent
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	// clients of HTTP/3 may end a connection without an error of the application
	var closed *quic.TransportError
	if errors.As(err, &closed) && closed.Remote && closed.ErrorCode == quic.NoError {
		return c.unsent
	}
	return err
}

// answer answers one request, maybe beside others.
func (c *connection) answer(response http.ResponseWriter, request *http.Request) {
	body, err := contract.ParseRequest([]byte(request.Method + " " + request.URL.Path))
	if err != nil {
		c.mutex.Lock()
		c.refused = err
		c.mutex.Unlock()
		_ = c.quic.CloseWithError(endpoint.Failed(&c.server.options.Common), endpoint.OneLine(err))
		return
	}
	header := response.Header()
	header.Set("Content-Length", strconv.FormatUint(body.Length, 10))
	header["Content-Type"] = nil // or it is guessed from the content
	if err := c.send(response, body); err != nil {
		c.mutex.Lock()
		c.unsent = err
		c.mutex.Unlock()
	}
}
