package endpoint

import (
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"quicbed.internal/contract"
)

// Meter sees the datagrams that pass a socket.
type Meter interface {
	// Sending is told of datagrams just before they are handed to the system.
	Sending(datagrams []byte, to *net.UDPAddr)
	// Received is told of one datagram.
	Received(datagram []byte, from net.Addr)
}

// Socket is the UDP socket of a quic.Transport, which takes it for a net.UDPConn (quic.OOBCapablePacketConn).
type Socket struct {
	*net.UDPConn
	batch   *ipv4.PacketConn
	meter   Meter
	options *contract.Common
	// buffered: the buffers are those asked for although quic-go has seen the socket.
	buffered atomic.Bool
}

// Listen makes a socket with the buffers asked for.
func Listen(address netip.AddrPort, options *contract.Common, meter Meter) (*Socket, error) {
	network := "udp4"
	if address.Addr().Is6() {
		network = "udp6"
	}
	udp, err := net.ListenUDP(network, net.UDPAddrFromAddrPort(address))
	if err != nil {
		return nil, err
	}
	socket := &Socket{UDPConn: udp, batch: ipv4.NewPacketConn(udp), meter: meter, options: options}
	if err := socket.SetBuffers(); err != nil {
		return nil, err
	}
	return socket, nil
}

// SetBuffers sets the socket buffers. quic-go raises those below 7 MiB when it takes over a socket, so this is to be
// called again afterwards.
func (s *Socket) SetBuffers() error {
	return s.control(func(fd int) error {
		err := setBuffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, s.options.ReceiveBuffer)
		if err == nil {
			err = setBuffer(fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, s.options.SendBuffer)
		}
		return err
	})
}

// setBuffer forces a size, which needs a privilege, or else asks for it.
func setBuffer(fd, force, ask, size int) error {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, size) == nil {
		return nil
	}
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, ask, size))
}

func (s *Socket) control(act func(fd int) error) error {
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	if err := raw.Control(func(fd uintptr) { result = act(int(fd)) }); err != nil {
		return err
	}
	return result
}

// InForce tells the options with what the system made of them.
func (s *Socket) InForce() (contract.InForce, error) {
	asked := s.options
	options := contract.InForce{
		Cipher:            asked.Cipher.Name,
		AEAD:              asked.AEAD,
		HeaderProtection:  asked.HeaderProtection,
		Group:             asked.Group,
		Signature:         asked.Signature,
		InitialSize:       asked.InitialSize,
		CongestionControl: asked.CongestionControl,
		Pacing:            "library",
		UDPPayload:        min(asked.UDPPayload, maxUDPPayload),
		Window:            asked.Window,
		AESHardware:       aes,
		GOMAXPROCS:        runtime.GOMAXPROCS(0),
	}
	err := s.control(func(fd int) error {
		receive, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
		if err != nil {
			return os.NewSyscallError("getsockopt", err)
		}
		send, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
		if err != nil {
			return os.NewSyscallError("getsockopt", err)
		}
		// the kernel tells the double of what was asked for (socket(7))
		options.ReceiveBuffer, options.SendBuffer = receive/2, send/2
		// quic-go uses GSO where this works
		_, err = unix.GetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT)
		options.GSO = asked.GSO && err == nil
		return nil
	})
	return options, err
}

// WriteMsgUDP sends a datagram or, with a segment size in oob, several.
func (s *Socket) WriteMsgUDP(datagrams, oob []byte, to *net.UDPAddr) (n, oobn int, err error) {
	if !s.buffered.Load() {
		if err := s.SetBuffers(); err != nil {
			return 0, 0, err
		}
		s.buffered.Store(true)
	}
	// A probe of quic-go's path-MTU discovery may be larger than what --udp-payload allows. It fails as on a link that
	// cannot carry it.
	if len(datagrams) > s.options.UDPPayload && !segmented(oob) {
		return 0, 0, os.NewSyscallError("sendmsg", unix.EMSGSIZE)
	}
	s.meter.Sending(datagrams, to)
	return s.UDPConn.WriteMsgUDP(datagrams, oob, to)
}

// segmented tells whether control messages ask for GSO.
func segmented(oob []byte) bool {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return false
	}
	for _, message := range messages {
		if message.Header.Level == unix.IPPROTO_UDP && message.Header.Type == unix.UDP_SEGMENT {
			return true
		}
	}
	return false
}

// ReadBatch receives datagrams; quic-go calls it instead of ReadMsgUDP.
func (s *Socket) ReadBatch(messages []ipv4.Message, flags int) (int, error) {
	n, err := s.batch.ReadBatch(messages, flags)
	for i := range max(n, 0) {
		message := &messages[i]
		if message.N > 0 {
			s.meter.Received(message.Buffers[0][:message.N], message.Addr)
		}
	}
	return n, err
}

// Count is a number of datagrams with their bytes of UDP payload.
type Count struct {
	Datagrams, Bytes atomic.Uint64
}

func (c *Count) add(bytes int) {
	c.Datagrams.Add(1)
	c.Bytes.Add(uint64(bytes))
}

// Traffic counts the datagrams of a handshake. quic-go sends several at once only when it is confirmed.
type Traffic struct {
	Sent, Received Count
}

// Report tells the counts.
func (t *Traffic) Report(into *contract.Connection) {
	load := func(value *atomic.Uint64) *uint64 {
		loaded := value.Load()
		return &loaded
	}
	into.HandshakePacketsSent, into.HandshakeBytesSent = load(&t.Sent.Datagrams), load(&t.Sent.Bytes)
	into.HandshakePacketsReceived, into.HandshakeBytesReceived = load(&t.Received.Datagrams), load(&t.Received.Bytes)
}

// Packet types of QUIC v1 by the first byte, whose upper half is never protected (RFC 9000, 17.2).
func isLong(first byte) bool    { return first&0x80 != 0 }
func isInitial(first byte) bool { return first&0xf0 == 0xc0 }
func isRetry(first byte) bool   { return first&0xf0 == 0xf0 }

// ClientMeter watches the one connection of a client's socket.
type ClientMeter struct {
	traffic  Traffic
	complete atomic.Bool
	retry    atomic.Bool
	first    atomic.Pointer[contract.Stamp]
	awaited  atomic.Bool
	departed atomic.Int64
}

// Sending takes the time of the first datagram, and of the next one after AwaitDeparture.
func (m *ClientMeter) Sending(datagrams []byte, _ *net.UDPAddr) {
	if m.first.Load() == nil {
		stamp := contract.NewStamp()
		m.first.CompareAndSwap(nil, &stamp)
	}
	if m.awaited.Load() && m.awaited.CompareAndSwap(true, false) {
		m.departed.Store(contract.Now())
	}
	if !m.complete.Load() {
		m.traffic.Sent.add(len(datagrams))
	}
}

// Received counts until the handshake is complete.
func (m *ClientMeter) Received(datagram []byte, _ net.Addr) {
	if m.complete.Load() {
		return
	}
	m.traffic.Received.add(len(datagram))
	if isRetry(datagram[0]) {
		m.retry.Store(true)
	}
}

// Complete ends counting.
func (m *ClientMeter) Complete() *Traffic {
	m.complete.Store(true)
	return &m.traffic
}

// Retry tells whether a Retry packet was received.
func (m *ClientMeter) Retry() bool { return m.retry.Load() }

// First is the stamp of the first datagram; nil before.
func (m *ClientMeter) First() *contract.Stamp { return m.first.Load() }

// AwaitDeparture has the time of the next datagram taken.
func (m *ClientMeter) AwaitDeparture() { m.awaited.Store(true) }

// Departed is that time; nil before.
func (m *ClientMeter) Departed() *int64 {
	if t := m.departed.Load(); t != 0 {
		return &t
	}
	return nil
}

// Peer is a client in its handshake, as the server's socket sees it.
type Peer struct {
	Traffic
	// First is the stamp of the first datagram.
	First contract.Stamp
}

// maxPeers bounds the memory that strangers can take with Initial packets.
const maxPeers = 1024

// ServerMeter watches the handshakes on a server's socket.
type ServerMeter struct {
	mutex sync.Mutex
	peers map[netip.AddrPort]*Peer
	// busy tells whether there are peers, so that the packets of a transfer need no lock.
	busy atomic.Bool
}

// NewServerMeter makes a meter without peers.
func NewServerMeter() *ServerMeter {
	return &ServerMeter{peers: map[netip.AddrPort]*Peer{}}
}

func address(of net.Addr) netip.AddrPort {
	udp, ok := of.(*net.UDPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	pair := udp.AddrPort()
	return netip.AddrPortFrom(pair.Addr().Unmap(), pair.Port())
}

// Sending counts datagrams to peers.
func (m *ServerMeter) Sending(datagrams []byte, to *net.UDPAddr) {
	if !m.busy.Load() {
		return
	}
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if peer := m.peers[address(to)]; peer != nil {
		peer.Sent.add(len(datagrams))
	}
}

// Received counts datagrams from peers; an Initial packet makes a peer.
func (m *ServerMeter) Received(datagram []byte, from net.Addr) {
	if !m.busy.Load() && !isLong(datagram[0]) {
		return
	}
	m.mutex.Lock()
	defer m.mutex.Unlock()
	key := address(from)
	peer := m.peers[key]
	if peer == nil {
		if !isInitial(datagram[0]) {
			return
		}
		if len(m.peers) >= maxPeers {
			clear(m.peers)
		}
		peer = &Peer{First: contract.NewStamp()}
		m.peers[key] = peer
		m.busy.Store(true)
	}
	peer.Traffic.Received.add(len(datagram))
}

// Peer tells what is known of an address; nil if nothing is.
func (m *ServerMeter) Peer(of net.Addr) *Peer {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return m.peers[address(of)]
}

// Forget ends counting for an address.
func (m *ServerMeter) Forget(of net.Addr) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	delete(m.peers, address(of))
	m.busy.Store(len(m.peers) > 0)
}
