//! The system calls of MsQuic's datapath, between MsQuic and the C library (`--wrap` of ld(1)): MsQuic makes its sockets
//! itself and neither lets a program choose their buffers and offloads nor tells when it sent and received what.

use std::collections::HashMap;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use libc::{c_int, c_uint, c_void, cmsghdr, mmsghdr, msghdr, socklen_t, ssize_t, timespec};
use quicbed_contract::clock::{now_ns, CpuTime};
use quicbed_contract::options::CommonOptions;
use quicbed_contract::udp::MAX_BATCH_SEGMENTS;

extern "C" {
    fn __real_setsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *const c_void,
        length: socklen_t,
    ) -> c_int;
    fn __real_sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    fn __real_sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    fn __real_recvmmsg(
        fd: c_int,
        messages: *mut mmsghdr,
        count: c_uint,
        flags: c_int,
        timeout: *mut timespec,
    ) -> c_int;
    fn __real_QuicCryptoHandshakeConfirmed(crypto: *mut c_void, signal_binding: u8);
}

/// Datagrams and bytes of UDP payload.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traffic {
    pub datagrams: u64,
    pub bytes: u64,
}

impl Traffic {
    fn add(&mut self, bytes: usize, segment: Option<usize>) {
        self.datagrams += bytes.div_ceil(segment.unwrap_or(bytes).max(1)).max(1) as u64;
        self.bytes += bytes as u64;
    }
}

/// A peer until its handshake is complete.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Just before the first datagram was sent (client), after it was received (server).
    pub t_first: u64,
    pub cpu_first: CpuTime,
    pub sent: Traffic,
    pub received: Traffic,
    /// Whether a Retry packet was sent or received.
    pub retry: bool,
}

impl Peer {
    fn new() -> Peer {
        Peer {
            t_first: now_ns(),
            cpu_first: CpuTime::now(),
            sent: Traffic::default(),
            received: Traffic::default(),
            retry: false,
        }
    }
}

/// What `--receive-buffer`, `--send-buffer`, `--gso` and `--gro` ask for.
#[derive(Clone, Copy, Debug)]
struct Sockets {
    receive_buffer: c_int,
    send_buffer: c_int,
    gso: bool,
    gro: bool,
}

/// Peers that never complete a handshake are forgotten after this long, when there are many.
const FORGOTTEN_AFTER_NS: u64 = 30_000_000_000;
const MANY: usize = 64;

static SOCKETS: OnceLock<Sockets> = OnceLock::new();
static PEERS: OnceLock<Mutex<HashMap<SocketAddr, Peer>>> = OnceLock::new();
/// How many peers there are: data of established connections is not looked at.
static WATCHED: AtomicUsize = AtomicUsize::new(0);
static CONFIRMED: AtomicU64 = AtomicU64::new(0);
static HAS_ACTION: AtomicBool = AtomicBool::new(false);
static ACTION: Mutex<Option<Box<dyn FnOnce() + Send>>> = Mutex::new(None);

/// Gives sockets made from now on what is asked for. MsQuic has to have tried out what the kernel can do before.
pub fn configure(options: &CommonOptions) {
    let sockets = Sockets {
        receive_buffer: options.receive_buffer as c_int,
        send_buffer: options.send_buffer as c_int,
        gso: options.gso.is_on(),
        gro: options.gro,
    };
    SOCKETS.get_or_init(|| sockets);
}

/// Starts to count what goes to and comes from a server, which has just that connection.
pub fn expect(server: SocketAddr) {
    CONFIRMED.store(0, Ordering::Relaxed);
    let mut peers = peers();
    peers.remove(&server);
    WATCHED.store(1, Ordering::Release);
}

/// What is known of a peer whose handshake is complete, or which is gone. Forgets it.
pub fn take(peer: SocketAddr) -> Option<Peer> {
    let mut peers = peers();
    let found = peers.remove(&peer);
    WATCHED.store(peers.len(), Ordering::Release);
    found
}

/// When the handshake of the client's connection was confirmed.
pub fn confirmed() -> Option<u64> {
    Some(CONFIRMED.load(Ordering::Acquire)).filter(|t| *t != 0)
}

/// Does something once, after datagrams have been sent for the next time.
pub fn after_next_send(action: impl FnOnce() + Send + 'static) {
    *ACTION.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(action));
    HAS_ACTION.store(true, Ordering::Release);
}

fn peers() -> MutexGuard<'static, HashMap<SocketAddr, Peer>> {
    let peers = PEERS.get_or_init(Mutex::default);
    peers.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_initial(first: u8) -> bool {
    // RFC 9000, section 17.2.2; header protection leaves these bits alone
    first & 0xf0 == 0xc0
}

fn is_retry(first: u8) -> bool {
    // RFC 9000, section 17.2.5
    first & 0xf0 == 0xf0
}

fn peer_of(peers: &mut HashMap<SocketAddr, Peer>, address: SocketAddr) -> &mut Peer {
    if peers.len() >= MANY {
        let now = now_ns();
        peers.retain(|_, peer| now.saturating_sub(peer.t_first) < FORGOTTEN_AFTER_NS);
    }
    peers.entry(address).or_insert_with(Peer::new)
}

/// Notes the time of a first Initial packet before it is sent.
unsafe fn before_sending(message: &msghdr) {
    if WATCHED.load(Ordering::Acquire) == 0 || !first_byte(message).is_some_and(is_initial) {
        return;
    }
    if let Some(address) = address_of(message) {
        peer_of(&mut peers(), address);
    }
}

unsafe fn after_sending(message: &msghdr, bytes: usize) {
    if WATCHED.load(Ordering::Acquire) != 0 {
        if let Some(address) = address_of(message) {
            let mut peers = peers();
            if let Some(peer) = peers.get_mut(&address) {
                peer.sent.add(bytes, segment_of(message, libc::UDP_SEGMENT));
                peer.retry |= first_byte(message).is_some_and(is_retry);
            }
        }
    }
    if HAS_ACTION.load(Ordering::Acquire) && HAS_ACTION.swap(false, Ordering::AcqRel) {
        let action = ACTION.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(action) = action {
            action();
        }
    }
}

unsafe fn after_receiving(message: &msghdr, bytes: usize) {
    let first = first_byte(message);
    let initial = first.is_some_and(is_initial);
    if WATCHED.load(Ordering::Acquire) == 0 && !initial {
        return;
    }
    let Some(address) = address_of(message) else {
        return;
    };
    let mut peers = peers();
    let peer = match initial {
        true => Some(peer_of(&mut peers, address)),
        false => peers.get_mut(&address),
    };
    if let Some(peer) = peer {
        peer.received.add(bytes, segment_of(message, libc::UDP_GRO));
        peer.retry |= first.is_some_and(is_retry);
    }
    WATCHED.store(peers.len(), Ordering::Release);
}

unsafe fn first_byte(message: &msghdr) -> Option<u8> {
    let vector = message.msg_iov.as_ref()?;
    (message.msg_iovlen > 0 && vector.iov_len > 0).then(|| *vector.iov_base.cast::<u8>())
}

/// The peer's address; one of IPv4 as such, although MsQuic's sockets are of IPv6.
unsafe fn address_of(message: &msghdr) -> Option<SocketAddr> {
    socket_address(message.msg_name.cast())
}

/// # Safety
/// `address` is null or points to a socket address with the fields of its family.
pub unsafe fn socket_address(address: *const libc::sockaddr) -> Option<SocketAddr> {
    match c_int::from(address.as_ref()?.sa_family) {
        libc::AF_INET => {
            let v4: libc::sockaddr_in = ptr::read_unaligned(address.cast());
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some((ip, u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 => {
            let v6: libc::sockaddr_in6 = ptr::read_unaligned(address.cast());
            let ip = IpAddr::from(Ipv6Addr::from(v6.sin6_addr.s6_addr)).to_canonical();
            Some((ip, u16::from_be(v6.sin6_port)).into())
        }
        _ => None,
    }
}

/// The control message of a UDP offload, if there is one.
unsafe fn offload_of(message: &msghdr, kind: c_int) -> Option<*mut cmsghdr> {
    let mut header = libc::CMSG_FIRSTHDR(message);
    while let Some(control) = header.as_ref() {
        if control.cmsg_level == libc::SOL_UDP && control.cmsg_type == kind {
            return Some(header);
        }
        header = libc::CMSG_NXTHDR(message, header);
    }
    None
}

/// Size of the datagrams in a message of several.
unsafe fn segment_of(message: &msghdr, kind: c_int) -> Option<usize> {
    let header = offload_of(message, kind)?;
    // UDP_GRO gives an int whose upper half is zero, UDP_SEGMENT takes 16 bits
    let size: u16 = ptr::read_unaligned(libc::CMSG_DATA(header).cast());
    Some(usize::from(size))
}

/// Hands the datagrams of a message to the kernel one by one, as MsQuic does without GSO. What was begun is finished.
unsafe fn send_separately(
    fd: c_int,
    message: &msghdr,
    offload: *mut cmsghdr,
    segment: usize,
    flags: c_int,
) -> ssize_t {
    let vector = *message.msg_iov;
    let mut vectors = [vector; MAX_BATCH_SEGMENTS];
    let mut messages: [mmsghdr; MAX_BATCH_SEGMENTS] = mem::zeroed();
    let count = vector.iov_len.div_ceil(segment);
    if count > MAX_BATCH_SEGMENTS {
        *libc::__errno_location() = libc::EMSGSIZE;
        return -1;
    }
    for (at, (one, piece)) in messages
        .iter_mut()
        .zip(&mut vectors)
        .take(count)
        .enumerate()
    {
        piece.iov_base = vector.iov_base.cast::<u8>().add(at * segment).cast();
        piece.iov_len = segment.min(vector.iov_len - at * segment);
        one.msg_hdr = *message;
        one.msg_hdr.msg_iov = piece;
        // MsQuic writes the control message of GSO last
        one.msg_hdr.msg_controllen = offload as usize - message.msg_control as usize;
    }
    let mut sent = 0;
    while sent < count {
        let left = (count - sent) as c_uint;
        match __real_sendmmsg(fd, messages[sent..].as_mut_ptr(), left, flags) {
            taken if taken > 0 => sent += taken as usize,
            _ if sent > 0 && *libc::__errno_location() == libc::EAGAIN => {
                let mut writable = libc::pollfd {
                    fd,
                    events: libc::POLLOUT,
                    revents: 0,
                };
                libc::poll(&mut writable, 1, -1);
            }
            _ => return -1,
        }
    }
    vector.iov_len as ssize_t
}

/// # Safety
/// As of sendmsg(2).
#[no_mangle]
unsafe extern "C" fn __wrap_sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    let asked = &*message;
    before_sending(asked);
    let separate = match SOCKETS.get() {
        Some(sockets) if !sockets.gso => offload_of(asked, libc::UDP_SEGMENT),
        _ => None,
    };
    let sent = match (separate, segment_of(asked, libc::UDP_SEGMENT)) {
        (Some(offload), Some(segment)) => send_separately(fd, asked, offload, segment, flags),
        _ => __real_sendmsg(fd, message, flags),
    };
    if sent >= 0 {
        after_sending(asked, sent as usize);
    }
    sent
}

/// # Safety
/// As of sendmmsg(2).
#[no_mangle]
unsafe extern "C" fn __wrap_sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    for at in 0..count as usize {
        before_sending(&(*messages.add(at)).msg_hdr);
    }
    let sent = __real_sendmmsg(fd, messages, count, flags);
    for at in 0..sent.max(0) as usize {
        let message = &*messages.add(at);
        after_sending(&message.msg_hdr, message.msg_len as usize);
    }
    sent
}

/// # Safety
/// As of recvmmsg(2).
#[no_mangle]
unsafe extern "C" fn __wrap_recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    let received = __real_recvmmsg(fd, messages, count, flags, timeout);
    for at in 0..received.max(0) as usize {
        let message = &*messages.add(at);
        after_receiving(&message.msg_hdr, message.msg_len as usize);
    }
    received
}

/// MsQuic asks for the largest receive buffer and for GRO on every socket.
///
/// # Safety
/// As of setsockopt(2).
#[no_mangle]
unsafe extern "C" fn __wrap_setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    let Some(sockets) = SOCKETS.get() else {
        return __real_setsockopt(fd, level, name, value, length);
    };
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => {
            let (receive, send) = (sockets.receive_buffer, sockets.send_buffer);
            let result = set_buffer(fd, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, send);
            match set_buffer(fd, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, receive) {
                0 => result,
                failed => failed,
            }
        }
        (libc::SOL_UDP, libc::UDP_GRO) if !sockets.gro => 0,
        _ => __real_setsockopt(fd, level, name, value, length),
    }
}

/// Sets a socket buffer: beyond the host's limit where that is permitted (CAP_NET_ADMIN).
unsafe fn set_buffer(fd: c_int, force: c_int, plain: c_int, bytes: c_int) -> c_int {
    let (value, length) = (ptr::from_ref(&bytes).cast(), mem::size_of::<c_int>() as u32);
    match __real_setsockopt(fd, libc::SOL_SOCKET, force, value, length) {
        0 => 0,
        _ => __real_setsockopt(fd, libc::SOL_SOCKET, plain, value, length),
    }
}

/// MsQuic has no event for a handshake that is confirmed.
///
/// # Safety
/// As of MsQuic's own function.
#[no_mangle]
unsafe extern "C" fn __wrap_QuicCryptoHandshakeConfirmed(crypto: *mut c_void, signal: u8) {
    let _ = CONFIRMED.compare_exchange(0, now_ns(), Ordering::AcqRel, Ordering::Relaxed);
    __real_QuicCryptoHandshakeConfirmed(crypto, signal);
}
