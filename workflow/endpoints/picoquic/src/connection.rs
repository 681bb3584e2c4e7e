//! A connection of picoquic as a safe Rust type: what its callbacks tell, and what is to be done with packets.

use std::ffi::{c_void, CStr};
use std::mem::{self, MaybeUninit};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::slice;
use std::time::Duration;

use quicbed_contract::clock::now_ns;
use quicbed_contract::events::ConnectionCommon;
use quicbed_contract::options::Cipher;
use quicbed_contract::tls::{group_name, signature_name};
use quicbed_contract::udp::MAX_BATCH_BYTES;
use quicbed_poll::answers::Outgoing;
use quicbed_poll::server::ConnectionId;
use quicbed_poll::{Failed, PacketCounts};

use crate::endpoint::{text, Endpoint};
use crate::ffi::{self, Id, ID_LENGTH};
use crate::{io, IDLE_TIMEOUT_MS};

/// CRYPTO_ERROR is 0x0100 plus the TLS alert (RFC 9001, section 4.8).
const CRYPTO_ERRORS: std::ops::RangeInclusive<u64> = 0x100..=0x1ff;

/// More connection IDs than picoquic has in use at a time.
const MOST_IDS: usize = 64;

/// What a program does with the streams of a connection.
pub trait Application {
    /// Bytes of a stream have arrived, in order; `last` with the end of the stream.
    fn received(&mut self, stream: u64, bytes: &[u8], last: bool);

    /// The peer has given up sending on a stream, or wants nothing more of it.
    fn reset(&mut self, stream: u64, code: u64);

    /// What is to be sent next.
    fn next(&self) -> Option<Outgoing>;

    /// `length` bytes of the stream named last are in a packet, and its end if asked for and all bytes are.
    fn taken(&mut self, stream: u64, length: usize);
}

/// What the callbacks have access to.
struct State<App> {
    application: App,
    /// Of the streams that are being sent: bytes that are in packets.
    sent: Vec<(u64, u64)>,
    /// IDs that were made for the peer since they were asked for.
    ids_made: bool,
}

/// A connection of picoquic with its application.
pub struct Connection<App: Application> {
    connection: NonNull<ffi::Connection>,
    /// Owned; a pointer because the library's callbacks write through it while this object lends the connection.
    state: NonNull<State<App>>,
    local: Address,
    peer: SocketAddr,
    /// The peer of what is in the batch, where it is another one.
    next_peer: Option<SocketAddr>,
    /// Datagrams that picoquic wrote at once, and which of them have not left.
    batch: Vec<u8>,
    waiting: Range<usize>,
    segment: usize,
    established: bool,
    confirmed: Option<u64>,
    closed: bool,
    ids: Vec<Id>,
}

impl<App: Application> Connection<App> {
    /// A client's connection, whose ClientHello is the first thing to write.
    pub fn connect(
        endpoint: Endpoint,
        local: SocketAddr,
        peer: SocketAddr,
        application: App,
    ) -> Result<Self, String> {
        let to = Address::from(peer);
        Self::assemble(local, peer, application, |state| {
            // SAFETY: the address is valid during the call, and the state as long as the connection.
            unsafe { ffi::qp_connect(endpoint.as_ptr(), to.pointer(), state) }
        })
    }

    /// A server's connection for an Initial packet, which is then to be read. `id` is the server's connection ID.
    pub fn accept(
        endpoint: Endpoint,
        id: &[u8],
        local: SocketAddr,
        peer: SocketAddr,
        application: App,
    ) -> Result<Self, String> {
        let id: Id = id.try_into().map_err(|_| "not an ID of this server")?;
        Self::assemble(local, peer, application, |state| {
            // SAFETY: the ID is copied during the call; as above.
            unsafe { ffi::qp_accept(endpoint.as_ptr(), id.as_ptr(), state) }
        })
        .map(|mut made| {
            made.ids.push(id);
            made
        })
    }

    fn assemble(
        local: SocketAddr,
        peer: SocketAddr,
        application: App,
        create: impl FnOnce(*mut c_void) -> *mut ffi::Connection,
    ) -> Result<Self, String> {
        let state = Box::into_raw(Box::new(State {
            application,
            sent: Vec::new(),
            ids_made: false,
        }));
        let Some(connection) = NonNull::new(create(state.cast())) else {
            // SAFETY: made above, and known to nobody else.
            drop(unsafe { Box::from_raw(state) });
            return Err("picoquic cannot make a connection".into());
        };
        // SAFETY: a box is not null.
        let state = unsafe { NonNull::new_unchecked(state) };
        Ok(Connection {
            connection,
            state,
            local: Address::from(local),
            peer,
            next_peer: None,
            batch: Vec::new(),
            waiting: 0..0,
            segment: 0,
            established: false,
            confirmed: None,
            closed: false,
            ids: Vec::new(),
        })
    }

    pub fn application(&self) -> &App {
        // SAFETY: only a callback writes to the state, during a call that needs `&mut self`.
        unsafe { &self.state.as_ref().application }
    }

    pub fn application_mut(&mut self) -> &mut App {
        // SAFETY: as above.
        unsafe { &mut self.state.as_mut().application }
    }

    pub fn facts(&self) -> ffi::Facts {
        let mut facts = MaybeUninit::zeroed();
        // SAFETY: the connection is valid; all zeroes is a valid structure, which the call fills.
        unsafe {
            ffi::qp_tell(self.connection.as_ptr(), facts.as_mut_ptr());
            facts.assume_init()
        }
    }

    pub fn confirmed_at(&self) -> Option<u64> {
        self.confirmed
    }

    /// The number of a new stream of this side.
    pub fn open_stream(&mut self) -> u64 {
        // SAFETY: the connection is valid.
        unsafe { ffi::qp_open_stream(self.connection.as_ptr()) }
    }

    /// IDs that the peer may use from now on, and those that it may not any more.
    pub fn take_ids(&mut self) -> (Vec<ConnectionId>, Vec<ConnectionId>) {
        // SAFETY: as in `application_mut`.
        if !mem::take(unsafe { &mut self.state.as_mut().ids_made }) {
            return Default::default();
        }
        let mut room = [[0; ID_LENGTH]; MOST_IDS];
        // SAFETY: there is room for as many.
        let count = unsafe { ffi::qp_ids(self.connection.as_ptr(), room.as_mut_ptr(), MOST_IDS) };
        let now = &room[..count];
        let known = mem::replace(&mut self.ids, now.to_vec());
        let of = |ids: &[Id], others: &[Id]| {
            let only = ids.iter().filter(|id| !others.contains(id));
            only.map(|id| id.to_vec()).collect()
        };
        (of(now, &known), of(&known, now))
    }

    /// Lets picoquic write the next datagrams. Returns whether there are any.
    fn prepare(&mut self) -> bool {
        self.batch.resize(MAX_BATCH_BYTES, 0);
        let mut to = MaybeUninit::<libc::sockaddr_storage>::zeroed();
        let mut segment = 0;
        // SAFETY: everything passed is valid during the call; all zeroes is a valid address.
        let (length, to) = unsafe {
            let length = ffi::qp_write(
                self.connection.as_ptr(),
                self.batch.as_mut_ptr(),
                self.batch.len(),
                true,
                &mut segment,
                to.as_mut_ptr(),
            );
            (length, to.assume_init())
        };
        self.waiting = 0..length;
        self.segment = segment.max(1);
        if length > 0 {
            self.next_peer = address_of(&to).filter(|to| *to != self.peer);
        }
        length > 0
    }
}

/// A buffer of picoquic, whose functions may return null for one without bytes.
///
/// # Safety
/// `bytes` are valid for `length`.
unsafe fn bytes_of<'a>(bytes: *const u8, length: usize) -> &'a [u8] {
    match length {
        0 => &[],
        // SAFETY: as above.
        length => unsafe { slice::from_raw_parts(bytes, length) },
    }
}

/// The calls of a connection with this application.
pub fn calls<App: Application>() -> ffi::Application {
    ffi::Application {
        received: received::<App>,
        reset: reset::<App>,
        waiting: waiting::<App>,
        available: available::<App>,
        write: write::<App>,
        new_id: new_id::<App>,
    }
}

/// # Safety
/// In this and the following functions, `state` is what `assemble` gave the connection, and buffers are valid for the
/// lengths told.
unsafe extern "C" fn received<App: Application>(
    state: *mut c_void,
    stream: u64,
    bytes: *const u8,
    length: usize,
    last: bool,
) {
    // SAFETY: see above.
    unsafe {
        let application = &mut (*state.cast::<State<App>>()).application;
        application.received(stream, bytes_of(bytes, length), last);
    }
}

unsafe extern "C" fn reset<App: Application>(state: *mut c_void, stream: u64, code: u64) {
    // SAFETY: see `received`.
    let state = unsafe { &mut *state.cast::<State<App>>() };
    state.sent.retain(|(id, _)| *id != stream);
    state.application.reset(stream, code);
}

unsafe extern "C" fn waiting<App: Application>(state: *mut c_void, stream: *mut u64) -> bool {
    // SAFETY: see `received`.
    let state = unsafe { &mut *state.cast::<State<App>>() };
    let next = state.application.next();
    if let Some(next) = &next {
        // SAFETY: as above.
        unsafe { *stream = next.stream };
    }
    next.is_some()
}

unsafe extern "C" fn available<App: Application>(
    state: *mut c_void,
    stream: u64,
    room: usize,
    last: *mut bool,
) -> usize {
    // SAFETY: see `received`.
    let state = unsafe { &mut *state.cast::<State<App>>() };
    let Some(next) = state.application.next().filter(|n| n.stream == stream) else {
        return 0;
    };
    let sent = state.sent.iter().find(|(id, _)| *id == stream);
    let left = next.length - sent.map_or(0, |(_, sent)| *sent);
    let length = left.min(room as u64);
    // SAFETY: as above.
    unsafe { *last = length == left };
    length as usize
}

unsafe extern "C" fn write<App: Application>(
    state: *mut c_void,
    stream: u64,
    space: *mut u8,
    length: usize,
) {
    // SAFETY: see `received`.
    let (state, mut space) = unsafe {
        let space = match length {
            0 => &mut [][..],
            length => slice::from_raw_parts_mut(space, length),
        };
        (&mut *state.cast::<State<App>>(), space)
    };
    let mut all = 0;
    // Content comes in periods. A stream of no bytes has an end to take.
    while let Some(next) = state.application.next().filter(|n| n.stream == stream) {
        let taken = next.bytes.len().min(space.len());
        let (now, later) = space.split_at_mut(taken);
        now.copy_from_slice(&next.bytes[..taken]);
        space = later;
        state.application.taken(stream, taken);
        all = next.length;
        if space.is_empty() {
            break;
        }
    }
    match state.sent.iter_mut().find(|(id, _)| *id == stream) {
        Some((_, sent)) => *sent += length as u64,
        None => state.sent.push((stream, length as u64)),
    }
    state.sent.retain(|(id, sent)| *id != stream || *sent < all);
}

unsafe extern "C" fn new_id<App: Application>(state: *mut c_void, _: *const u8) {
    // SAFETY: see `received`.
    unsafe { (*state.cast::<State<App>>()).ids_made = true };
}

impl<App: Application> quicbed_poll::Connection for Connection<App> {
    /// The monotonic clock in microseconds.
    type Time = u64;

    fn now() -> u64 {
        // SAFETY: has no conditions.
        unsafe { ffi::qp_now() }
    }

    fn expiry(&self) -> Option<u64> {
        if !self.waiting.is_empty() {
            return Some(0);
        }
        // SAFETY: the connection is valid.
        let at = unsafe { ffi::qp_expiry(self.connection.as_ptr()) };
        (at != u64::MAX).then_some(at)
    }

    fn timeout(&self) -> Option<Duration> {
        let at = self.expiry()?;
        Some(Duration::from_micros(at.saturating_sub(Self::now())))
    }

    /// picoquic looks at its timers when it is asked for the next datagram.
    fn on_timeout(&mut self) {}

    fn read(&mut self, datagram: &mut [u8], from: SocketAddr) {
        let from = Address::from(from);
        // SAFETY: everything passed is valid during the call.
        unsafe {
            ffi::qp_read(
                self.connection.as_ptr(),
                datagram.as_mut_ptr(),
                datagram.len(),
                from.pointer(),
                self.local.pointer(),
            );
        }
        if !self.established || self.confirmed.is_none() {
            let facts = self.facts();
            self.established |= facts.established;
            if facts.confirmed {
                self.confirmed.get_or_insert_with(now_ns);
            }
        }
    }

    fn datagram_size(&self) -> usize {
        match self.waiting.is_empty() {
            // SAFETY: the connection is valid.
            true => unsafe { ffi::qp_datagram_size(self.connection.as_ptr()) },
            false => self.segment,
        }
    }

    fn write(&mut self, space: &mut [u8]) -> Result<usize, Failed> {
        if self.waiting.is_empty() && (!self.prepare() || self.next_peer.is_some()) {
            return Ok(0);
        }
        if let Some(peer) = self.next_peer.take() {
            self.peer = peer;
        }
        let length = self.waiting.len().min(self.segment).min(space.len());
        let start = self.waiting.start;
        space[..length].copy_from_slice(&self.batch[start..start + length]);
        self.waiting.start += length;
        Ok(length)
    }

    fn peer(&self) -> SocketAddr {
        self.peer
    }

    fn batch(&self, left: usize) -> usize {
        left
    }

    fn close(&mut self, code: u64, reason: &str) {
        if self.closed || self.facts().ended {
            return;
        }
        self.closed = true;
        let reason = text(reason);
        // SAFETY: the reason is copied during the call.
        unsafe { ffi::qp_end(self.connection.as_ptr(), code, reason.as_ptr()) };
    }

    fn is_established(&self) -> bool {
        self.established
    }

    fn has_ended(&self) -> bool {
        self.waiting.is_empty() && self.facts().ended
    }

    fn reason(&mut self) -> Option<String> {
        let facts = self.facts();
        // A download that lost frames within this program is none of this way of datagrams.
        if let Some(lost) = io::lost(true) {
            return Some(lost);
        }
        if self.closed || !facts.ended {
            return None;
        }
        if facts.idle {
            return Some(format!("no packet for {} s", IDLE_TIMEOUT_MS / 1_000));
        }
        // Application error 0 is how the client of the contract ends a connection; NO_ERROR is 0 too.
        if facts.code == 0 {
            return None;
        }
        let said = string(facts.reason);
        let side = match facts.by_peer {
            true => "the peer",
            false => "this side",
        };
        let text = describe_close(facts.code, facts.of_application, said.as_deref());
        Some(format!("closed by {side}: {text}"))
    }

    fn packets(&self) -> PacketCounts {
        let facts = self.facts();
        PacketCounts {
            sent: facts.sent,
            received: facts.received,
            lost: facts.lost,
        }
    }

    fn read_back(&mut self, common: &mut ConnectionCommon) {
        let facts = self.facts();
        common.cipher = Cipher::from_code_point(facts.cipher).map(Cipher::iana);
        common.group = group_name(facts.group);
        common.signature = signature_name(facts.signature);
        common.hello_retry_request = Some(facts.hello_retry_request);
        common.alpn = string(facts.alpn);
        // There is no other over QUIC (RFC 9001, section 4.2).
        common.tls_version = Some("TLSv1.3".into());
    }
}

impl<App: Application> Drop for Connection<App> {
    fn drop(&mut self) {
        // SAFETY: both are valid and owned by this object; the connection goes first, because it knows the other.
        unsafe {
            ffi::qp_free(self.connection.as_ptr());
            drop(Box::from_raw(self.state.as_ptr()));
        }
    }
}

/// Text of the library, `None` for null or none.
fn string(text: *const std::ffi::c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the library's strings end with a zero byte and stay until the connection changes.
    let text = unsafe { CStr::from_ptr(text) };
    Some(text.to_string_lossy().into_owned()).filter(|text| !text.is_empty())
}

/// The code of a CONNECTION_CLOSE frame and its reason phrase, as one line.
fn describe_close(code: u64, of_application: bool, reason: Option<&str>) -> String {
    let kind = match code {
        _ if of_application => format!("application error {code}"),
        _ if CRYPTO_ERRORS.contains(&code) => {
            let alert = code - CRYPTO_ERRORS.start();
            // SAFETY: has no conditions; what it returns is static.
            let name = string(unsafe { ffi::qp_alert(alert as std::ffi::c_uint) });
            format!("TLS alert {alert} ({})", name.unwrap_or_default())
        }
        _ => format!("QUIC error {code:#x}"),
    };
    match reason {
        None => kind,
        Some(reason) => format!("{kind}: {}", reason.escape_debug()),
    }
}

/// Bytes that nobody can guess.
pub fn random<const LENGTH: usize>() -> Result<[u8; LENGTH], String> {
    let mut bytes = [0; LENGTH];
    // SAFETY: there is room for as many.
    match unsafe { ffi::qp_random(bytes.as_mut_ptr(), LENGTH) } {
        true => Ok(bytes),
        false => Err("no random bytes".into()),
    }
}

/// A socket address as picoquic takes it.
#[derive(Clone, Copy)]
pub struct Address(libc::sockaddr_storage);

impl Address {
    pub fn pointer(&self) -> *const libc::sockaddr {
        ptr::from_ref(&self.0).cast()
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Address {
        // SAFETY: all zeroes is a valid sockaddr_storage, and it is large enough and aligned for both kinds of address.
        unsafe {
            let mut storage: libc::sockaddr_storage = mem::zeroed();
            match address {
                SocketAddr::V4(address) => {
                    let to = &mut *ptr::from_mut(&mut storage).cast::<libc::sockaddr_in>();
                    to.sin_family = libc::AF_INET as libc::sa_family_t;
                    to.sin_port = address.port().to_be();
                    to.sin_addr.s_addr = u32::from_ne_bytes(address.ip().octets());
                }
                SocketAddr::V6(address) => {
                    let to = &mut *ptr::from_mut(&mut storage).cast::<libc::sockaddr_in6>();
                    to.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                    to.sin6_port = address.port().to_be();
                    to.sin6_flowinfo = address.flowinfo();
                    to.sin6_addr.s6_addr = address.ip().octets();
                    to.sin6_scope_id = address.scope_id();
                }
            }
            Address(storage)
        }
    }
}

/// The address that picoquic wrote, `None` if it wrote none.
fn address_of(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    // SAFETY: it has the kind that it tells, and is large enough and aligned for both.
    unsafe {
        match i32::from(storage.ss_family) {
            libc::AF_INET => {
                let from = &*ptr::from_ref(storage).cast::<libc::sockaddr_in>();
                let ip = Ipv4Addr::from(from.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddrV4::new(ip, u16::from_be(from.sin_port)).into())
            }
            libc::AF_INET6 => {
                let from = &*ptr::from_ref(storage).cast::<libc::sockaddr_in6>();
                let ip = Ipv6Addr::from(from.sin6_addr.s6_addr);
                let port = u16::from_be(from.sin6_port);
                let (flow, scope) = (from.sin6_flowinfo, from.sin6_scope_id);
                Some(SocketAddrV6::new(ip, port, flow, scope).into())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_as_they_were() {
        for address in ["127.0.0.1:4433", "[fe80::1%7]:65535"] {
            let address: SocketAddr = address.parse().unwrap();
            assert_eq!(address_of(&Address::from(address).0), Some(address));
        }
        // SAFETY: all zeroes is a valid sockaddr_storage.
        assert_eq!(address_of(&unsafe { mem::zeroed() }), None);
    }

    #[test]
    fn errors_are_described() {
        assert_eq!(
            describe_close(1, true, Some("a\nb")),
            "application error 1: a\\nb"
        );
        assert_eq!(describe_close(0x0a, false, None), "QUIC error 0xa");
        let alert = describe_close(0x128, false, None);
        assert_eq!(alert, "TLS alert 40 (handshake failure)");
    }
}
