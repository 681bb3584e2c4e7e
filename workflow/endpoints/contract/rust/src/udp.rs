//! UDP input and output for endpoints that drive their sockets themselves: segmentation offload (GSO), receive offload
//! (GRO), socket buffers, and waiting in the kernel for the socket, a timer, or the signal to stop.

use std::io::{self, ErrorKind};
use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

use crate::clock::{now_ns, tai_ns};
use crate::events::OptionsInForce;
use crate::options::{CommonOptions, Gso, Pacing};

/// Most bytes of one GSO send: what fits an IPv6 packet of 65 535 bytes with its headers.
pub const MAX_BATCH_BYTES: usize = 65_535 - 40 - 8;

/// Most segments of one GSO send (`UDP_MAX_SEGMENTS` of the kernels before 6.9).
pub const MAX_BATCH_SEGMENTS: usize = 64;

/// Room for the largest datagram, or for the largest run of datagrams GRO joins.
pub const RECEIVE_BUFFER: usize = 65_535;

/// How far ahead every datagram's time of departure is with ETF, which drops those that are late.
const LEAST_AHEAD_NS: u64 = 500_000;

/// Priority of what goes through ETF (SO_PRIORITY), so that the rest can be kept out of it.
const ETF_PRIORITY: i32 = 1;

/// Room for two control messages, with an int and with a time.
type Control = [u64; 8];

/// A non-blocking UDP socket.
#[derive(Debug)]
pub struct Socket {
    socket: UdpSocket,
    gso: bool,
    gro: bool,
    etf: bool,
}

/// Datagrams received in one call: `length` bytes in the buffer, every `segment` bytes one datagram, the last may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    pub length: usize,
    pub segment: usize,
    pub from: SocketAddr,
}

impl Socket {
    /// A socket bound to `address`, with the buffers and offloads asked for as far as the kernel grants them; what it
    /// granted is in [`Socket::in_force`].
    pub fn bind(address: SocketAddr, options: &CommonOptions) -> io::Result<Socket> {
        let socket = UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        let fd = socket.as_raw_fd();
        // QUIC must not be fragmented (RFC 9000, section 14); the size of datagrams is set by hand.
        if address.is_ipv4() {
            set_int(
                fd,
                libc::IPPROTO_IP,
                libc::IP_MTU_DISCOVER,
                libc::IP_PMTUDISC_PROBE,
            )?;
        } else {
            let probe = libc::IPV6_PMTUDISC_PROBE;
            set_int(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, probe)?;
        }
        let (receive, send) = (options.receive_buffer as i32, options.send_buffer as i32);
        set_buffer(fd, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, receive)?;
        set_buffer(fd, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, send)?;
        // A segment size of 0 changes nothing, but fails on a kernel without GSO.
        let gso = options.gso.is_on() && set_int(fd, libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok();
        let gro = options.gro && set_int(fd, libc::SOL_UDP, libc::UDP_GRO, 1).is_ok();
        if options.pacing == Some(Pacing::Txtime) {
            take_departures(fd, options.etf)?;
        }
        let etf = options.etf;
        if etf {
            set_int(fd, libc::SOL_SOCKET, libc::SO_PRIORITY, ETF_PRIORITY)?;
        }
        Ok(Socket {
            socket,
            gso,
            gro,
            etf,
        })
    }

    /// A socket for a client of `peer`, on a free port.
    pub fn bind_for(peer: SocketAddr, options: &CommonOptions) -> io::Result<Socket> {
        let any = match peer {
            SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        };
        Socket::bind(any, options)
    }

    /// Another handle of this socket, for a library with input and output of its own.
    pub fn try_clone_std(&self) -> io::Result<UdpSocket> {
        self.socket.try_clone()
    }

    /// Switches GRO back to what this socket was made with, after a library has set it for itself.
    pub fn restore_gro(&self) -> io::Result<()> {
        set_int(
            self.socket.as_raw_fd(),
            libc::SOL_UDP,
            libc::UDP_GRO,
            self.gro.into(),
        )
    }

    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Whether several datagrams can be handed to one [`Socket::send`].
    pub fn gso(&self) -> bool {
        self.gso
    }

    /// The options asked for, with what this socket has instead.
    pub fn in_force(&self, asked: &CommonOptions) -> io::Result<OptionsInForce> {
        let fd = self.socket.as_raw_fd();
        // The kernel doubles what is asked for, to have room for its own structures, and tells the double (socket(7)).
        let buffer = |name| get_int(fd, libc::SOL_SOCKET, name).map(|size| size as usize / 2);
        Ok(OptionsInForce {
            gso: self.gso,
            gso_paced: self.gso && asked.gso == Gso::Paced,
            gro: self.gro,
            receive_buffer: buffer(libc::SO_RCVBUF)?,
            send_buffer: buffer(libc::SO_SNDBUF)?,
            ..OptionsInForce::asked(asked)
        })
    }

    /// Sends `datagrams`, every `segment` bytes one datagram, the last may be shorter. With GSO they go to the kernel in
    /// one call and must keep to [`MAX_BATCH_BYTES`] and [`MAX_BATCH_SEGMENTS`]. `departure` is when the kernel is to let
    /// them go (CLOCK_MONOTONIC in ns), of a socket made for it ([`Pacing::Txtime`]); with ETF they go a little later where
    /// that is not ahead, or not given. Returns how many bytes were taken, less than all if the socket would block.
    pub fn send(
        &self,
        datagrams: &[u8],
        segment: usize,
        to: SocketAddr,
        departure: Option<u64>,
    ) -> io::Result<usize> {
        let departure = match self.etf {
            true => Some(for_etf(departure)),
            false => departure,
        };
        if self.gso && datagrams.len() > segment {
            return match self.send_message(datagrams, Some(segment as u16), to, departure) {
                Ok(_) => Ok(datagrams.len()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
                Err(error) => Err(error),
            };
        }
        let mut sent = 0;
        for datagram in datagrams.chunks(segment) {
            let result = match departure {
                Some(_) => self.send_message(datagram, None, to, departure),
                None => retry(|| self.socket.send_to(datagram, to)),
            };
            match result {
                Ok(length) => sent += length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }

    /// Sends bytes in one call, with what is told of them in control messages.
    fn send_message(
        &self,
        datagrams: &[u8],
        segment: Option<u16>,
        to: SocketAddr,
        departure: Option<u64>,
    ) -> io::Result<usize> {
        let (mut address, address_length) = to_sockaddr(to);
        let mut vector = libc::iovec {
            iov_base: datagrams.as_ptr().cast_mut().cast(),
            iov_len: datagrams.len(),
        };
        let mut control: Control = Default::default();
        // SAFETY: msghdr is plain data; every pointer put into it outlives the call; `control` is aligned for cmsghdr
        // and larger than the two control messages together.
        retry(|| unsafe {
            let mut message: libc::msghdr = mem::zeroed();
            message.msg_name = ptr::from_mut(&mut address).cast();
            message.msg_namelen = address_length;
            message.msg_iov = &mut vector;
            message.msg_iovlen = 1;
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = mem::size_of_val(&control);
            let mut header = libc::CMSG_FIRSTHDR(&message);
            let mut length = 0;
            if let Some(segment) = segment {
                length += put(header, libc::SOL_UDP, libc::UDP_SEGMENT, segment);
                header = libc::CMSG_NXTHDR(&message, header);
            }
            if let Some(departure) = departure {
                length += put(header, libc::SOL_SOCKET, libc::SCM_TXTIME, departure);
            }
            message.msg_controllen = length;
            result(libc::sendmsg(self.socket.as_raw_fd(), &message, 0))
        })
    }

    /// Receives what is there in one call, `None` if nothing is. `buffer` should have [`RECEIVE_BUFFER`] bytes.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<Received>> {
        let mut vector = libc::iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: buffer.len(),
        };
        let mut control: Control = Default::default();
        // SAFETY: sockaddr_storage is plain data.
        let mut address: libc::sockaddr_storage = unsafe { mem::zeroed() };
        // SAFETY: as above; every pointer put into the message outlives the call.
        let received = retry(|| unsafe {
            let mut message: libc::msghdr = mem::zeroed();
            message.msg_name = ptr::from_mut(&mut address).cast();
            message.msg_namelen = mem::size_of_val(&address) as libc::socklen_t;
            message.msg_iov = &mut vector;
            message.msg_iovlen = 1;
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = mem::size_of_val(&control);
            let length = result(libc::recvmsg(self.socket.as_raw_fd(), &mut message, 0))?;
            Ok((length, gro_segment(&message)))
        });
        match received {
            Ok((length, segment)) => Ok(Some(Received {
                length,
                segment: segment.unwrap_or(length).max(1),
                from: from_sockaddr(&address)?,
            })),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// A time of departure as ETF takes it: of CLOCK_TAI, and ahead.
fn for_etf(departure: Option<u64>) -> u64 {
    let ahead = departure.map_or(0, |at| at.saturating_sub(now_ns()));
    tai_ns() + ahead.max(LEAST_AHEAD_NS)
}

/// Lets a socket be told when its datagrams are to leave.
fn take_departures(fd: RawFd, etf: bool) -> io::Result<()> {
    let clockid = match etf {
        true => libc::CLOCK_TAI,
        false => libc::CLOCK_MONOTONIC,
    };
    let value = libc::sock_txtime { clockid, flags: 0 };
    let size = mem::size_of_val(&value) as libc::socklen_t;
    let pointer = ptr::from_ref(&value).cast();
    // SAFETY: the pointer and the size describe `value`.
    match unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_TXTIME, pointer, size) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Writes a control message. Returns the room that it takes.
///
/// # Safety
/// There is room for a `T` behind `header`.
unsafe fn put<T>(header: *mut libc::cmsghdr, level: i32, kind: i32, value: T) -> usize {
    let size = mem::size_of::<T>() as u32;
    (*header).cmsg_level = level;
    (*header).cmsg_type = kind;
    (*header).cmsg_len = libc::CMSG_LEN(size) as usize;
    ptr::write_unaligned(libc::CMSG_DATA(header).cast(), value);
    libc::CMSG_SPACE(size) as usize
}

/// Size of the datagrams the kernel joined, if it did.
///
/// # Safety
/// `message` was filled by recvmsg, and its control buffer is still alive.
unsafe fn gro_segment(message: &libc::msghdr) -> Option<usize> {
    let mut header = libc::CMSG_FIRSTHDR(message);
    while !header.is_null() {
        if (*header).cmsg_level == libc::SOL_UDP && (*header).cmsg_type == libc::UDP_GRO {
            let size: i32 = ptr::read_unaligned(libc::CMSG_DATA(header).cast());
            return usize::try_from(size).ok();
        }
        header = libc::CMSG_NXTHDR(message, header);
    }
    None
}

/// SIGTERM and SIGINT as something to wait for, instead of sudden death. Install it before starting threads.
#[derive(Debug)]
pub struct StopSignals(OwnedFd);

impl StopSignals {
    pub fn install() -> io::Result<StopSignals> {
        // SAFETY: the set is initialised by sigemptyset; signalfd returns a new descriptor that nobody else owns.
        unsafe {
            let mut set: libc::sigset_t = mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGTERM);
            libc::sigaddset(&mut set, libc::SIGINT);
            match libc::pthread_sigmask(libc::SIG_BLOCK, &set, ptr::null_mut()) {
                0 => {}
                error => return Err(io::Error::from_raw_os_error(error)),
            }
            match libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
                -1 => Err(io::Error::last_os_error()),
                fd => Ok(StopSignals(OwnedFd::from_raw_fd(fd))),
            }
        }
    }
}

/// What ended a [`wait`]; nothing if it was the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wakeup {
    pub readable: bool,
    pub writable: bool,
    /// SIGTERM or SIGINT has arrived.
    pub stop: bool,
}

/// Sleeps in the kernel until the socket has something to receive, can send (if `to_write`), the program shall stop, or the
/// time is over.
pub fn wait(
    socket: &Socket,
    stop: &StopSignals,
    to_write: bool,
    timeout: Option<Duration>,
) -> io::Result<Wakeup> {
    let write = if to_write { libc::POLLOUT } else { 0 };
    let poll = |fd: RawFd, events| libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    let mut fds = [
        poll(socket.socket.as_raw_fd(), libc::POLLIN | write),
        poll(stop.0.as_raw_fd(), libc::POLLIN),
    ];
    let time = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs() as libc::time_t,
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let time_pointer = time.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: two initialised pollfds, and a timespec that outlives the call or none.
    let ready = unsafe { libc::ppoll(fds.as_mut_ptr(), 2, time_pointer, ptr::null()) };
    if ready < 0 {
        let error = io::Error::last_os_error();
        return match error.kind() {
            ErrorKind::Interrupted => Ok(Wakeup::default()),
            _ => Err(error),
        };
    }
    // An error on the socket is told by the next receive.
    let readable = libc::POLLIN | libc::POLLERR | libc::POLLHUP;
    Ok(Wakeup {
        readable: fds[0].revents & readable != 0,
        writable: fds[0].revents & libc::POLLOUT != 0,
        stop: fds[1].revents != 0,
    })
}

/// Lets the kernel end a [`wait`] of this thread as soon as its time is over, and not up to 50 microseconds later.
pub fn wake_promptly() {
    // SAFETY: no pointers are passed. It cannot fail with this value.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}

fn result(returned: isize) -> io::Result<usize> {
    usize::try_from(returned).map_err(|_| io::Error::last_os_error())
}

/// Repeats a system call that a signal interrupted.
fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Sets a buffer beyond the system's limit if the program may, and within it otherwise.
fn set_buffer(fd: RawFd, force: i32, plain: i32, size: i32) -> io::Result<()> {
    set_int(fd, libc::SOL_SOCKET, force, size)
        .or_else(|_| set_int(fd, libc::SOL_SOCKET, plain, size))
}

fn set_int(fd: RawFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    let size = mem::size_of_val(&value) as libc::socklen_t;
    // SAFETY: the pointer and the size describe `value`.
    let returned = unsafe { libc::setsockopt(fd, level, name, ptr::from_ref(&value).cast(), size) };
    match returned {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn get_int(fd: RawFd, level: i32, name: i32) -> io::Result<i32> {
    let mut value = 0;
    let mut size = mem::size_of_val(&value) as libc::socklen_t;
    let pointer = ptr::from_mut(&mut value).cast();
    // SAFETY: the pointer and the size describe `value`.
    match unsafe { libc::getsockopt(fd, level, name, pointer, &mut size) } {
        0 => Ok(value),
        _ => Err(io::Error::last_os_error()),
    }
}

fn to_sockaddr(address: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: all zeroes is a valid sockaddr_storage, and it is large enough and aligned for both kinds of address.
    unsafe {
        let mut storage: libc::sockaddr_storage = mem::zeroed();
        let length = match address {
            SocketAddr::V4(v4) => {
                let pointer: *mut libc::sockaddr_in = ptr::from_mut(&mut storage).cast();
                (*pointer).sin_family = libc::AF_INET as libc::sa_family_t;
                (*pointer).sin_port = v4.port().to_be();
                (*pointer).sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
                mem::size_of::<libc::sockaddr_in>()
            }
            SocketAddr::V6(v6) => {
                let pointer: *mut libc::sockaddr_in6 = ptr::from_mut(&mut storage).cast();
                (*pointer).sin6_family = libc::AF_INET6 as libc::sa_family_t;
                (*pointer).sin6_port = v6.port().to_be();
                (*pointer).sin6_flowinfo = v6.flowinfo();
                (*pointer).sin6_addr.s6_addr = v6.ip().octets();
                (*pointer).sin6_scope_id = v6.scope_id();
                mem::size_of::<libc::sockaddr_in6>()
            }
        };
        (storage, length as libc::socklen_t)
    }
}

fn from_sockaddr(storage: &libc::sockaddr_storage) -> io::Result<SocketAddr> {
    let pointer = ptr::from_ref(storage);
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that it is a sockaddr_in.
            let v4: libc::sockaddr_in = unsafe { ptr::read(pointer.cast()) };
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            Ok(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that it is a sockaddr_in6.
            let v6: libc::sockaddr_in6 = unsafe { ptr::read(pointer.cast()) };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            Ok(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
        }
        family => Err(io::Error::other(format!(
            "datagram from unknown address family {family}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content;

    fn options(gso: bool, gro: bool) -> CommonOptions {
        CommonOptions {
            gso: if gso { Gso::On } else { Gso::Off },
            gro,
            ..CommonOptions::default()
        }
    }

    /// Sends a batch from one socket to another and returns the datagrams that arrived.
    fn exchange(loopback: &str, gso: bool, gro: bool, length: usize) -> Vec<Vec<u8>> {
        let options = options(gso, gro);
        let receiver = Socket::bind(loopback.parse().unwrap(), &options).unwrap();
        let to = receiver.local_address().unwrap();
        let sender = Socket::bind_for(to, &options).unwrap();
        let batch = content::slice_at(0, length);
        assert_eq!(sender.send(batch, 1_200, to, None).unwrap(), length);

        let stop = StopSignals::install().unwrap();
        let mut buffer = vec![0; RECEIVE_BUFFER];
        let mut datagrams = Vec::new();
        while datagrams.iter().map(Vec::len).sum::<usize>() < length {
            let wakeup = wait(&receiver, &stop, false, Some(Duration::from_secs(10))).unwrap();
            assert!(
                wakeup.readable,
                "only {} datagrams arrived",
                datagrams.len()
            );
            while let Some(received) = receiver.receive(&mut buffer).unwrap() {
                assert_eq!(received.from.port(), sender.local_address().unwrap().port());
                let bytes = &buffer[..received.length];
                datagrams.extend(bytes.chunks(received.segment).map(<[u8]>::to_vec));
            }
        }
        datagrams
    }

    #[test]
    fn datagrams_arrive_whole_with_and_without_offloads() {
        for loopback in ["127.0.0.1:0", "[::1]:0"] {
            for (gso, gro) in [(false, false), (false, true), (true, false), (true, true)] {
                let datagrams = exchange(loopback, gso, gro, 12_100);
                let lengths: Vec<_> = datagrams.iter().map(Vec::len).collect();
                assert_eq!(
                    lengths,
                    [&[1_200; 10][..], &[100]].concat(),
                    "{loopback} {gso} {gro}"
                );
                assert_eq!(datagrams.concat(), content::slice_at(0, 12_100));
            }
        }
    }

    #[test]
    fn one_datagram_needs_no_segments() {
        assert_eq!(exchange("127.0.0.1:0", true, true, 1_200).len(), 1);
    }

    #[test]
    fn every_datagram_of_etf_has_a_time_ahead() {
        for ahead in [None, Some(0), Some(10_000_000)] {
            let before = tai_ns();
            let at = for_etf(ahead.map(|ahead| now_ns() + ahead));
            assert!(at >= before + LEAST_AHEAD_NS, "{ahead:?}");
            let most = ahead.unwrap_or(0).max(LEAST_AHEAD_NS);
            assert!(at <= tai_ns() + most, "{ahead:?}");
        }
    }

    #[test]
    fn datagrams_with_a_time_of_departure_arrive_whole() {
        for (gso, etf) in [
            (Gso::Off, false),
            (Gso::On, false),
            (Gso::Off, true),
            (Gso::On, true),
        ] {
            let options = CommonOptions {
                gso,
                etf,
                pacing: Some(Pacing::Txtime),
                ..CommonOptions::default()
            };
            let receiver = Socket::bind("127.0.0.1:0".parse().unwrap(), &options).unwrap();
            let to = receiver.local_address().unwrap();
            let sender = Socket::bind_for(to, &options).unwrap();
            let batch = content::slice_at(0, 3_000);
            let sent = sender.send(batch, 1_200, to, Some(now_ns() + 1_000));
            assert_eq!(sent.unwrap(), 3_000, "{gso:?} {etf}");
            if etf {
                assert_eq!(sender.send(batch, 1_200, to, None).unwrap(), 3_000);
            }
        }
    }

    #[test]
    fn settings_are_read_back() {
        let mut asked = options(false, false);
        asked.receive_buffer = 100_000;
        asked.send_buffer = 50_000;
        let socket = Socket::bind("127.0.0.1:0".parse().unwrap(), &asked).unwrap();
        let in_force = socket.in_force(&asked).unwrap();
        assert_eq!((in_force.gso, in_force.gro), (false, false));
        assert_eq!(
            (in_force.receive_buffer, in_force.send_buffer),
            (100_000, 50_000)
        );
    }

    #[test]
    fn addresses_survive_the_way_through_the_kernel_format() {
        for text in ["127.0.0.1:4433", "[2001:db8::1]:65535", "[fe80::1%7]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(from_sockaddr(&to_sockaddr(address).0).unwrap(), address);
        }
    }

    #[test]
    fn silence_ends_with_the_time() {
        let socket = Socket::bind("127.0.0.1:0".parse().unwrap(), &options(true, true)).unwrap();
        let stop = StopSignals::install().unwrap();
        let wakeup = wait(&socket, &stop, false, Some(Duration::from_millis(1))).unwrap();
        assert_eq!(wakeup, Wakeup::default());
        assert!(wait(&socket, &stop, true, None).unwrap().writable);
    }
}
