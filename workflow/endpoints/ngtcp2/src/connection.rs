//! A connection of ngtcp2 as a safe Rust type: what its callbacks tell, and what is to be done with packets.

use std::ffi::{c_int, c_void, CStr};
use std::mem::{self, MaybeUninit};
use std::net::SocketAddr;
use std::ptr::{self, NonNull};
use std::slice;
use std::time::Duration;

use boring::error::ErrorStack;
use boring::ssl::{Ssl, SslContext, SslContextBuilder, SslRef};
use quicbed_boringssl::{certificate_error, describe_close, pointer};
use quicbed_contract::clock::now_ns;
use quicbed_contract::events::ConnectionCommon;
use quicbed_contract::options::{CommonOptions, CongestionControl, Pacing};
use quicbed_poll::answers::Outgoing;
use quicbed_poll::server::ConnectionId;
use quicbed_poll::{Connection as _, Failed, PacketCounts};

use crate::ffi;
use crate::protection;
use crate::{CONNECTION_ID_LENGTH, IDLE_TIMEOUT_NS, MAX_STREAMS};

/// QUIC version 1 (RFC 9000, section 15).
pub const QUIC_V1: u32 = 1;

/// Index of `SSL_set_app_data`, where ngtcp2's crypto helper looks for the connection.
const APP_DATA: c_int = 0;

/// Bytes of a stateless reset token (RFC 9000, section 10.3).
const RESET_TOKEN_LENGTH: usize = ffi::NGTCP2_STATELESS_RESET_TOKENLEN as usize;

/// What a program does with the streams of a connection.
pub trait Application {
    /// Bytes of a stream have arrived, in order; `last` with the end of the stream.
    fn received(&mut self, stream: u64, bytes: &[u8], last: bool);

    /// The peer has given up sending on a stream.
    fn reset(&mut self, stream: u64, code: u64);

    /// What is to be sent next of the streams that are not `blocked` by flow control.
    fn next(&self, blocked: &[u64]) -> Option<Outgoing>;

    /// `length` bytes of the stream named last are in a packet, and its end if asked for and all bytes are.
    fn taken(&mut self, stream: u64, length: usize);
}

/// How a connection came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// CONNECTION_CLOSE was received.
    ByPeer,
    /// An error on this side, to be told to the peer: the library's code.
    Error(c_int),
    /// Nothing is to be sent any more: the library's code, for a time that is over or a packet not worth an answer.
    Silent(c_int),
    /// CONNECTION_CLOSE was sent.
    ByApplication,
}

/// What the callbacks have access to.
struct State<App> {
    application: App,
    confirmed: Option<u64>,
    /// IDs made for the peer to use, and those it does not use any more.
    new_ids: Vec<ConnectionId>,
    retired_ids: Vec<ConnectionId>,
}

/// A connection of ngtcp2 with its TLS session and its application.
pub struct Connection<App: Application> {
    connection: NonNull<ffi::ngtcp2_conn>,
    ssl: Ssl,
    /// Owned; a pointer because the library's callbacks write through it while this object lends the connection.
    state: NonNull<State<App>>,
    /// Owned; how the crypto helper gets from the TLS session to the connection.
    reference: NonNull<ffi::ngtcp2_crypto_conn_ref>,
    local: Address,
    peer: Address,
    initial_size: usize,
    udp_payload: usize,
    paced: bool,
    past_initial: bool,
    blocked: Vec<u64>,
    end: Option<End>,
    /// What the application ends the connection with.
    closing: (u64, String),
    /// The peer has been told of the end.
    told: bool,
    /// BoringSSL's own words, where it ended the handshake without an alert.
    tls_error: Option<String>,
}

/// What a server knows from the first packet of a client.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// Destination and source connection ID in the client's Initial packet.
    pub destination: ConnectionId,
    pub source: ConnectionId,
    /// Token of the client's Initial packet, empty if there is none.
    pub token: Vec<u8>,
}

/// An Initial packet that answers a Retry packet.
#[derive(Clone, Debug)]
pub struct Retried {
    /// Destination of the client's first Initial packet.
    pub original_destination: ConnectionId,
}

impl<App: Application> Connection<App> {
    /// A client's connection, whose ClientHello is the first thing to write.
    pub fn connect(
        context: &SslContext,
        options: &CommonOptions,
        server_name: &str,
        local: SocketAddr,
        peer: SocketAddr,
        application: App,
    ) -> Result<Self, String> {
        let fail = |error| format!("cannot set up TLS: {error}");
        let mut ssl = Ssl::new(context).map_err(fail)?;
        ssl.set_hostname(server_name).map_err(fail)?;
        ssl.param_mut().set_host(server_name).map_err(fail)?;
        // SAFETY: the session is valid and not in use yet.
        unsafe { boring_sys::SSL_set_connect_state(pointer(&ssl)) };
        let destination = cid(&new_connection_id()?);
        let source = cid(&new_connection_id()?);
        let callbacks = callbacks::<App>(false);
        let settings = settings(options);
        let parameters = transport_parameters(options);
        Self::assemble(options, ssl, local, peer, application, |path, state| {
            let mut connection = ptr::null_mut();
            // SAFETY: everything passed is valid during the call; the library copies what it keeps but for the state,
            // which lives as long as the connection.
            let code = unsafe {
                ffi::ngtcp2_conn_client_new_versioned(
                    &mut connection,
                    &destination,
                    &source,
                    path,
                    QUIC_V1,
                    ffi::NGTCP2_CALLBACKS_VERSION as c_int,
                    &callbacks,
                    ffi::NGTCP2_SETTINGS_VERSION as c_int,
                    &settings,
                    ffi::NGTCP2_TRANSPORT_PARAMS_VERSION as c_int,
                    &parameters,
                    ptr::null(),
                    state,
                )
            };
            (code, connection)
        })
    }

    /// A server's connection for an Initial packet, which is then to be read. `id` is the server's connection ID.
    #[allow(clippy::too_many_arguments)]
    pub fn accept(
        context: &SslContext,
        options: &CommonOptions,
        arrival: &Arrival,
        retried: Option<&Retried>,
        id: &[u8],
        local: SocketAddr,
        peer: SocketAddr,
        application: App,
    ) -> Result<Self, String> {
        let ssl = Ssl::new(context).map_err(|error| format!("cannot set up TLS: {error}"))?;
        // SAFETY: the session is valid and not in use yet.
        unsafe { boring_sys::SSL_set_accept_state(pointer(&ssl)) };
        let mut settings = settings(options);
        let mut parameters = transport_parameters(options);
        parameters.original_dcid = cid(&arrival.destination);
        parameters.original_dcid_present = 1;
        if let Some(retried) = retried {
            parameters.original_dcid = cid(&retried.original_destination);
            parameters.retry_scid = cid(&arrival.destination);
            parameters.retry_scid_present = 1;
            settings.token = arrival.token.as_ptr();
            settings.tokenlen = arrival.token.len();
            settings.token_type = ffi::NGTCP2_TOKEN_TYPE_RETRY;
        }
        let destination = cid(&arrival.source);
        let source = cid(id);
        let callbacks = callbacks::<App>(true);
        Self::assemble(options, ssl, local, peer, application, |path, state| {
            let mut connection = ptr::null_mut();
            // SAFETY: as in `connect`.
            let code = unsafe {
                ffi::ngtcp2_conn_server_new_versioned(
                    &mut connection,
                    &destination,
                    &source,
                    path,
                    QUIC_V1,
                    ffi::NGTCP2_CALLBACKS_VERSION as c_int,
                    &callbacks,
                    ffi::NGTCP2_SETTINGS_VERSION as c_int,
                    &settings,
                    ffi::NGTCP2_TRANSPORT_PARAMS_VERSION as c_int,
                    &parameters,
                    ptr::null(),
                    state,
                )
            };
            (code, connection)
        })
    }

    fn assemble(
        options: &CommonOptions,
        ssl: Ssl,
        local: SocketAddr,
        peer: SocketAddr,
        application: App,
        create: impl FnOnce(*const ffi::ngtcp2_path, *mut c_void) -> (c_int, *mut ffi::ngtcp2_conn),
    ) -> Result<Self, String> {
        let (mut local, mut peer) = (Address::from(local), Address::from(peer));
        let state = leak(State {
            application,
            confirmed: None,
            new_ids: Vec::new(),
            retired_ids: Vec::new(),
        });
        let path = path(&mut local, &mut peer);
        let (code, connection) = create(&path, state.as_ptr().cast());
        let connection = match NonNull::new(connection) {
            Some(connection) if code == 0 => connection,
            _ => {
                // SAFETY: made by `leak` above, and known to nobody else.
                drop(unsafe { Box::from_raw(state.as_ptr()) });
                return Err(format!("ngtcp2: {}", error_text(code)));
            }
        };
        let reference = leak(ffi::ngtcp2_crypto_conn_ref {
            get_conn: Some(connection_of),
            user_data: connection.as_ptr().cast(),
        });
        // SAFETY: connection and session are valid, and both live until this object is dropped.
        unsafe {
            ffi::ngtcp2_conn_set_tls_native_handle(connection.as_ptr(), pointer(&ssl).cast());
            boring_sys::SSL_set_ex_data(pointer(&ssl), APP_DATA, reference.as_ptr().cast());
        }
        Ok(Connection {
            connection,
            ssl,
            state,
            reference,
            local,
            peer,
            initial_size: options.initial_size,
            udp_payload: options.udp_payload,
            paced: quicbed_poll::pacing(options) == Pacing::Library,
            past_initial: false,
            blocked: Vec::new(),
            end: None,
            closing: (0, String::new()),
            told: false,
            tls_error: None,
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

    pub fn ssl(&self) -> &SslRef {
        &self.ssl
    }

    /// Sends a PING whenever nothing has been sent or received for so many nanoseconds (RFC 9000, section 10.1.2).
    pub fn keep_alive(&mut self, after_ns: u64) {
        if self.end.is_none() {
            // SAFETY: the connection is valid.
            unsafe { ffi::ngtcp2_conn_set_keep_alive_timeout(self.connection.as_ptr(), after_ns) };
        }
    }

    /// When a client received HANDSHAKE_DONE.
    pub fn confirmed(&self) -> Option<u64> {
        // SAFETY: as in `application`.
        unsafe { self.state.as_ref().confirmed }
    }

    /// Whether a client received a valid Retry packet.
    pub fn after_retry(&self) -> bool {
        // SAFETY: the connection is valid.
        unsafe { ffi::ngtcp2_conn_after_retry2(self.connection.as_ptr()) != 0 }
    }

    /// Connection IDs made, and those retired, since the last call.
    pub fn take_ids(&mut self) -> (Vec<ConnectionId>, Vec<ConnectionId>) {
        // SAFETY: as in `application`.
        let state = unsafe { self.state.as_mut() };
        (
            mem::take(&mut state.new_ids),
            mem::take(&mut state.retired_ids),
        )
    }

    /// Opens the client's stream, `None` while the server's limit is not known.
    pub fn open_stream(&mut self) -> Option<u64> {
        let mut stream = 0;
        // SAFETY: the connection is valid; streams have no user data.
        let code = unsafe {
            ffi::ngtcp2_conn_open_bidi_stream(
                self.connection.as_ptr(),
                &mut stream,
                ptr::null_mut(),
            )
        };
        u64::try_from(stream).ok().filter(|_| code == 0)
    }

    /// The alert that BoringSSL ended the handshake with, 0 for none: close_notify is none of QUIC's (RFC 9001, section
    /// 4.8).
    fn alert(&self) -> u8 {
        // SAFETY: the connection is valid.
        unsafe { ffi::ngtcp2_conn_get_tls_alert2(self.connection.as_ptr()) }
    }

    /// Time for which packets of a connection that has ended can still arrive (RFC 9000, section 10.2).
    pub fn draining_time(&self) -> Duration {
        // SAFETY: the connection is valid.
        Duration::from_nanos(3 * unsafe { ffi::ngtcp2_conn_get_pto2(self.connection.as_ptr()) })
    }

    /// Writes CONNECTION_CLOSE into `space`, for the error or the application that ended the connection. Returns its
    /// length, 0 if the peer is not to be told.
    fn write_close(&mut self, space: &mut [u8]) -> usize {
        let mut error = MaybeUninit::zeroed();
        // SAFETY: initialises what it is given; all zeroes is valid.
        let mut error: ffi::ngtcp2_ccerr = unsafe {
            ffi::ngtcp2_ccerr_default(error.as_mut_ptr());
            error.assume_init()
        };
        // SAFETY: the reason outlives the error.
        unsafe {
            match self.end {
                Some(End::ByApplication) => ffi::ngtcp2_ccerr_set_application_error(
                    &mut error,
                    self.closing.0,
                    self.closing.1.as_ptr(),
                    self.closing.1.len(),
                ),
                Some(End::Error(ffi::NGTCP2_ERR_CRYPTO)) if self.alert() != 0 => {
                    ffi::ngtcp2_ccerr_set_tls_alert(&mut error, self.alert(), ptr::null(), 0);
                }
                Some(End::Error(ffi::NGTCP2_ERR_CRYPTO)) => {
                    let code = ffi::NGTCP2_INTERNAL_ERROR.into();
                    ffi::ngtcp2_ccerr_set_transport_error(&mut error, code, ptr::null(), 0);
                }
                Some(End::Error(code)) => {
                    ffi::ngtcp2_ccerr_set_liberr(&mut error, code, ptr::null(), 0);
                }
                Some(End::ByPeer | End::Silent(_)) | None => return 0,
            }
        }
        let space_left = space.len().min(self.datagram_size());
        // SAFETY: everything passed is valid during the call.
        let written = unsafe {
            ffi::ngtcp2_conn_write_connection_close_versioned(
                self.connection.as_ptr(),
                ptr::null_mut(),
                ffi::NGTCP2_PKT_INFO_VERSION as c_int,
                ptr::null_mut(),
                space.as_mut_ptr(),
                space_left,
                &error,
                now_ns(),
            )
        };
        // An error here means that the peer cannot be told, for instance before there are keys.
        usize::try_from(written).unwrap_or(0)
    }
}

impl<App: Application> quicbed_poll::Connection for Connection<App> {
    /// The monotonic clock in nanoseconds.
    type Time = u64;

    fn now() -> u64 {
        now_ns()
    }

    fn timeout(&self) -> Option<Duration> {
        let at = self.expiry()?;
        Some(Duration::from_nanos(at.saturating_sub(now_ns())))
    }

    fn expiry(&self) -> Option<u64> {
        if self.end.is_some() {
            return None;
        }
        // SAFETY: the connection is valid.
        let at = unsafe { ffi::ngtcp2_conn_get_expiry2(self.connection.as_ptr()) };
        (at != u64::MAX).then_some(at)
    }

    fn on_timeout(&mut self) {
        let now = now_ns();
        if self.expiry().is_none_or(|at| at > now) {
            return;
        }
        // SAFETY: the connection is valid.
        let code = unsafe { ffi::ngtcp2_conn_handle_expiry(self.connection.as_ptr(), now) };
        self.end = match code {
            0 => None,
            ffi::NGTCP2_ERR_IDLE_CLOSE
            | ffi::NGTCP2_ERR_HANDSHAKE_TIMEOUT
            | ffi::NGTCP2_ERR_DROP_CONN => Some(End::Silent(code)),
            _ => Some(End::Error(code)),
        };
    }

    fn read(&mut self, datagram: &mut [u8], _: SocketAddr) {
        if self.end.is_some() {
            return;
        }
        let path = path(&mut self.local, &mut self.peer);
        // SAFETY: everything passed is valid during the call. No packet information: ECN is not used.
        let code = unsafe {
            ffi::ngtcp2_conn_read_pkt_versioned(
                self.connection.as_ptr(),
                &path,
                ffi::NGTCP2_PKT_INFO_VERSION as c_int,
                ptr::null(),
                datagram.as_ptr(),
                datagram.len(),
                now_ns(),
            )
        };
        self.end = match code {
            0 => None,
            ffi::NGTCP2_ERR_DRAINING => Some(End::ByPeer),
            ffi::NGTCP2_ERR_DROP_CONN | ffi::NGTCP2_ERR_RETRY => Some(End::Silent(code)),
            _ => Some(End::Error(code)),
        };
        if code == ffi::NGTCP2_ERR_CRYPTO && self.alert() == 0 {
            self.tls_error = Some(ErrorStack::get().to_string());
        }
    }

    /// Size of a full datagram for now. ngtcp2 fills those with Initial packets up to the space it is given; a client's
    /// last one is its first after the TLS handshake, it acknowledges the server's.
    fn datagram_size(&self) -> usize {
        match self.past_initial {
            true => self.udp_payload,
            false => self.initial_size,
        }
    }

    /// Bytes that may be sent at once: all, unless this connection is paced.
    fn burst(&self) -> usize {
        match self.paced {
            // SAFETY: the connection is valid.
            true => unsafe { ffi::ngtcp2_conn_get_send_quantum2(self.connection.as_ptr()) },
            false => usize::MAX,
        }
    }

    /// Starts the pause until the next, if this connection is paced.
    fn end_burst(&mut self) {
        if self.paced {
            // SAFETY: the connection is valid.
            unsafe { ffi::ngtcp2_conn_update_pkt_tx_time(self.connection.as_ptr(), now_ns()) };
        }
    }

    fn write(&mut self, space: &mut [u8]) -> Result<usize, Failed> {
        if self.end.is_some() {
            return Ok(match mem::replace(&mut self.told, true) {
                true => 0,
                false => self.write_close(space),
            });
        }
        self.blocked.clear();
        loop {
            let next = match self.is_established() {
                true => self.application().next(&self.blocked),
                false => None,
            };
            let mut taken = -1;
            let (stream, bytes, last) = match &next {
                Some(next) => (next.stream as i64, next.bytes, next.last),
                None => (-1, &[][..], false),
            };
            let flags = match last {
                true => ffi::NGTCP2_WRITE_STREAM_FLAG_FIN,
                false => ffi::NGTCP2_WRITE_STREAM_FLAG_NONE,
            };
            // SAFETY: everything passed is valid during the call, and the bytes of the stream for ever.
            let written = unsafe {
                ffi::ngtcp2_conn_write_stream_versioned(
                    self.connection.as_ptr(),
                    ptr::null_mut(),
                    ffi::NGTCP2_PKT_INFO_VERSION as c_int,
                    ptr::null_mut(),
                    space.as_mut_ptr(),
                    space.len(),
                    &mut taken,
                    flags,
                    stream,
                    bytes.as_ptr(),
                    bytes.len(),
                    now_ns(),
                )
            };
            if let (Some(next), Ok(taken)) = (&next, usize::try_from(taken)) {
                self.application_mut().taken(next.stream, taken);
            }
            match usize::try_from(written) {
                Ok(length) => {
                    self.past_initial |= length > 0 && self.is_established();
                    return Ok(length);
                }
                Err(_) => match (written as c_int, next) {
                    (
                        ffi::NGTCP2_ERR_STREAM_DATA_BLOCKED
                        | ffi::NGTCP2_ERR_STREAM_NOT_FOUND
                        | ffi::NGTCP2_ERR_STREAM_SHUT_WR,
                        Some(next),
                    ) => self.blocked.push(next.stream),
                    (code, _) => {
                        self.end = Some(End::Error(code));
                        return Err(Failed(None));
                    }
                },
            }
        }
    }

    fn peer(&self) -> SocketAddr {
        self.peer.address
    }

    fn batch(&self, left: usize) -> usize {
        left
    }

    fn close(&mut self, code: u64, reason: &str) {
        if self.end.is_none() {
            self.end = Some(End::ByApplication);
            self.closing = (code, reason.to_owned());
        }
    }

    fn is_established(&self) -> bool {
        self.ssl.is_init_finished()
    }

    fn has_ended(&self) -> bool {
        match self.end {
            None => false,
            Some(End::Error(_) | End::ByApplication) => self.told,
            Some(End::ByPeer | End::Silent(_)) => true,
        }
    }

    fn reason(&mut self) -> Option<String> {
        match self.end? {
            End::ByApplication => None,
            End::ByPeer => {
                // SAFETY: the connection is valid, and so is what it returns until the connection changes.
                let error = unsafe { &*ffi::ngtcp2_conn_get_ccerr2(self.connection.as_ptr()) };
                // Application error 0 is how the client of the contract ends a connection; NO_ERROR is 0 too.
                if error.error_code == 0 {
                    return None;
                }
                let reason = match error.reasonlen {
                    0 => &[],
                    // SAFETY: as above, this many bytes of the reason phrase.
                    length => unsafe { slice::from_raw_parts(error.reason, length) },
                };
                let of_application = error.type_ == ffi::NGTCP2_CCERR_TYPE_APPLICATION;
                let text = describe_close(error.error_code, of_application, reason);
                Some(format!("closed by the peer: {text}"))
            }
            End::Silent(ffi::NGTCP2_ERR_IDLE_CLOSE) => Some(format!(
                "no packet for {} s",
                IDLE_TIMEOUT_NS / 1_000_000_000
            )),
            End::Silent(code) => Some(format!("ngtcp2: {}", error_text(code))),
            End::Error(ffi::NGTCP2_ERR_CRYPTO) => {
                if let Some(error) = &self.tls_error {
                    return Some(format!("closed by this side: TLS: {error}"));
                }
                let code = 0x100 + u64::from(self.alert());
                let mut text = format!("closed by this side: {}", describe_close(code, false, b""));
                if let Some(error) = certificate_error(&self.ssl, code) {
                    text += &format!(": {error}");
                }
                Some(text)
            }
            End::Error(code) => Some(format!("closed by this side: {}", error_text(code))),
        }
    }

    fn packets(&self) -> PacketCounts {
        let mut info = MaybeUninit::zeroed();
        // SAFETY: the connection is valid; all zeroes is a valid structure, which the call fills.
        let info: ffi::ngtcp2_conn_info = unsafe {
            ffi::ngtcp2_conn_get_conn_info2_versioned(
                self.connection.as_ptr(),
                ffi::NGTCP2_CONN_INFO_VERSION as c_int,
                info.as_mut_ptr(),
            );
            info.assume_init()
        };
        PacketCounts {
            sent: info.pkt_sent,
            received: info.pkt_recv,
            lost: info.pkt_lost,
        }
    }

    fn read_back(&mut self, common: &mut ConnectionCommon) {
        quicbed_boringssl::read_back(&self.ssl, common);
    }
}

impl<App: Application> Drop for Connection<App> {
    fn drop(&mut self) {
        // SAFETY: all three are valid and owned by this object; the connection goes first, because it knows the others.
        unsafe {
            ffi::ngtcp2_conn_del(self.connection.as_ptr());
            drop(Box::from_raw(self.state.as_ptr()));
            boring_sys::SSL_set_ex_data(pointer(&self.ssl), APP_DATA, ptr::null_mut());
            drop(Box::from_raw(self.reference.as_ptr()));
        }
    }
}

/// Makes a TLS context one for ngtcp2, with the packet protection asked for.
pub fn configure(
    mut context: SslContextBuilder,
    options: &CommonOptions,
    is_server: bool,
) -> Result<SslContext, String> {
    // SAFETY: the context is valid.
    let code = unsafe {
        match is_server {
            true => ffi::ngtcp2_crypto_boringssl_configure_server_context(context.as_ptr()),
            false => ffi::ngtcp2_crypto_boringssl_configure_client_context(context.as_ptr()),
        }
    };
    if code != 0 {
        return Err("BoringSSL does not take ngtcp2's callbacks".into());
    }
    protection::apply(&mut context, options)?;
    Ok(context.build())
}

/// A connection ID that nobody can guess or repeat.
pub fn new_connection_id() -> Result<ConnectionId, String> {
    random::<CONNECTION_ID_LENGTH>().map(|bytes| bytes.to_vec())
}

/// Bytes that nobody can guess.
pub fn random<const LENGTH: usize>() -> Result<[u8; LENGTH], String> {
    let mut bytes = [0; LENGTH];
    boring::rand::rand_bytes(&mut bytes).map_err(|error| format!("no random bytes: {error}"))?;
    Ok(bytes)
}

/// What the header of a datagram says to a server.
#[derive(Clone, Debug)]
pub enum Header {
    /// Of a version that this server does not speak: destination and source.
    Version(ConnectionId, ConnectionId),
    /// With this destination.
    Destination(ConnectionId),
}

/// Reads as much of the first packet's header as is the same in every version, `None` if there is no such header.
pub fn header(datagram: &[u8]) -> Option<Header> {
    let mut ids = MaybeUninit::<ffi::ngtcp2_version_cid>::zeroed();
    // SAFETY: all zeroes is a valid structure, which the call fills; the IDs in it point into the datagram.
    unsafe {
        let code = ffi::ngtcp2_pkt_decode_version_cid(
            ids.as_mut_ptr(),
            datagram.as_ptr(),
            datagram.len(),
            CONNECTION_ID_LENGTH,
        );
        let ids = ids.assume_init();
        let bytes = |id: *const u8, length| match length {
            0 => Vec::new(),
            length => slice::from_raw_parts(id, length).to_vec(),
        };
        match code {
            0 => Some(Header::Destination(bytes(ids.dcid, ids.dcidlen))),
            ffi::NGTCP2_ERR_VERSION_NEGOTIATION => Some(Header::Version(
                bytes(ids.dcid, ids.dcidlen),
                bytes(ids.scid, ids.scidlen),
            )),
            _ => None,
        }
    }
}

/// Reads the Initial packet that a datagram begins with, `None` if it cannot start a connection (RFC 9000, section 14.1).
pub fn arrival(datagram: &[u8]) -> Option<Arrival> {
    let mut header = MaybeUninit::<ffi::ngtcp2_pkt_hd>::zeroed();
    // SAFETY: all zeroes is a valid structure, which the call fills; the token in it points into the datagram.
    unsafe {
        if ffi::ngtcp2_accept(header.as_mut_ptr(), datagram.as_ptr(), datagram.len()) != 0 {
            return None;
        }
        let header = header.assume_init();
        let token = match header.tokenlen {
            0 => Vec::new(),
            length => slice::from_raw_parts(header.token, length).to_vec(),
        };
        Some(Arrival {
            destination: id_of(&header.dcid),
            source: id_of(&header.scid),
            token,
        })
    }
}

/// Writes a Version Negotiation packet for a datagram from `source` to `destination`. Returns its length.
pub fn write_version_negotiation(space: &mut [u8], destination: &[u8], source: &[u8]) -> usize {
    let versions = [QUIC_V1];
    // SAFETY: everything passed is valid during the call. The client's source is the destination of the answer.
    let written = unsafe {
        ffi::ngtcp2_pkt_write_version_negotiation(
            space.as_mut_ptr(),
            space.len(),
            0,
            source.as_ptr(),
            source.len(),
            destination.as_ptr(),
            destination.len(),
            versions.as_ptr(),
            versions.len(),
        )
    };
    usize::try_from(written).unwrap_or(0)
}

/// What Retry packets are made and recognised with (RFC 9000, section 8.1.2).
pub struct RetryTokens {
    secret: [u8; 32],
}

/// A token is accepted for this long.
const TOKEN_LIFETIME_NS: u64 = 10_000_000_000;

/// Room for a token of ngtcp2: magic byte, client's address, two lengths and IDs, time, AEAD tag, random bytes.
const TOKEN_ROOM: usize = 512;

impl RetryTokens {
    pub fn new() -> Result<RetryTokens, String> {
        let secret = random()?;
        Ok(RetryTokens { secret })
    }

    /// Writes the Retry packet that answers `arrival` and has the client use `id` then. Returns its length.
    pub fn write(
        &self,
        space: &mut [u8],
        arrival: &Arrival,
        id: &[u8],
        from: SocketAddr,
    ) -> Result<usize, String> {
        let (source, original) = (cid(id), cid(&arrival.destination));
        let from = Address::from(from);
        let mut token = [0; TOKEN_ROOM];
        // SAFETY: everything passed is valid during the call, and the room is what the library asks for.
        let length = unsafe {
            ffi::ngtcp2_crypto_generate_retry_token2(
                token.as_mut_ptr(),
                self.secret.as_ptr(),
                self.secret.len(),
                QUIC_V1,
                from.pointer(),
                from.length,
                &source,
                &original,
                now_ns(),
            )
        };
        let length = usize::try_from(length).map_err(|_| "no Retry token".to_owned())?;
        // SAFETY: as above.
        let written = unsafe {
            ffi::ngtcp2_crypto_write_retry(
                space.as_mut_ptr(),
                space.len(),
                QUIC_V1,
                &cid(&arrival.source),
                &source,
                &original,
                token.as_ptr(),
                length,
            )
        };
        usize::try_from(written).map_err(|_| "no Retry packet".to_owned())
    }

    /// Recognises the token of an Initial packet that answers a Retry packet.
    pub fn verify(&self, arrival: &Arrival, from: SocketAddr) -> Option<Retried> {
        let from = Address::from(from);
        let mut original = cid(&[]);
        // SAFETY: everything passed is valid during the call.
        let code = unsafe {
            ffi::ngtcp2_crypto_verify_retry_token2(
                &mut original,
                arrival.token.as_ptr(),
                arrival.token.len(),
                self.secret.as_ptr(),
                self.secret.len(),
                QUIC_V1,
                from.pointer(),
                from.length,
                &cid(&arrival.destination),
                TOKEN_LIFETIME_NS,
                now_ns(),
            )
        };
        (code == 0).then(|| Retried {
            original_destination: id_of(&original),
        })
    }
}

fn settings(options: &CommonOptions) -> ffi::ngtcp2_settings {
    let mut settings = MaybeUninit::zeroed();
    // SAFETY: all zeroes is a valid structure, which the call fills.
    let mut settings: ffi::ngtcp2_settings = unsafe {
        ffi::ngtcp2_settings_default_versioned(
            ffi::NGTCP2_SETTINGS_VERSION as c_int,
            settings.as_mut_ptr(),
        );
        settings.assume_init()
    };
    settings.cc_algo = match options.congestion_control {
        CongestionControl::Cubic => ffi::NGTCP2_CC_ALGO_CUBIC,
        CongestionControl::Reno => ffi::NGTCP2_CC_ALGO_RENO,
        CongestionControl::Bbr => ffi::NGTCP2_CC_ALGO_BBR,
    };
    settings.initial_ts = now_ns();
    settings.handshake_timeout = IDLE_TIMEOUT_NS;
    settings.max_tx_udp_payload_size = options.udp_payload;
    // Datagrams of the size given, from the first; else ngtcp2 starts with 1200 bytes and probes for more.
    settings.no_tx_udp_payload_size_shaping = 1;
    settings.no_pmtud = 1;
    settings
}

fn transport_parameters(options: &CommonOptions) -> ffi::ngtcp2_transport_params {
    let mut parameters = MaybeUninit::zeroed();
    // SAFETY: all zeroes is a valid structure, which the call fills.
    let mut parameters: ffi::ngtcp2_transport_params = unsafe {
        ffi::ngtcp2_transport_params_default_versioned(
            ffi::NGTCP2_TRANSPORT_PARAMS_VERSION as c_int,
            parameters.as_mut_ptr(),
        );
        parameters.assume_init()
    };
    parameters.initial_max_data = options.window;
    parameters.initial_max_stream_data_bidi_local = options.window;
    parameters.initial_max_stream_data_bidi_remote = options.window;
    parameters.initial_max_streams_bidi = MAX_STREAMS;
    parameters.max_idle_timeout = IDLE_TIMEOUT_NS;
    parameters.disable_active_migration = 1;
    parameters
}

fn callbacks<App: Application>(is_server: bool) -> ffi::ngtcp2_callbacks {
    // SAFETY: all pointers null is a valid structure.
    let mut callbacks: ffi::ngtcp2_callbacks = unsafe { mem::zeroed() };
    match is_server {
        true => callbacks.recv_client_initial = Some(ffi::ngtcp2_crypto_recv_client_initial_cb),
        false => {
            callbacks.client_initial = Some(ffi::ngtcp2_crypto_client_initial_cb);
            callbacks.recv_retry = Some(ffi::ngtcp2_crypto_recv_retry_cb);
            callbacks.handshake_confirmed = Some(handshake_confirmed::<App>);
        }
    }
    callbacks.recv_crypto_data = Some(ffi::ngtcp2_crypto_recv_crypto_data_cb);
    callbacks.encrypt = Some(ffi::ngtcp2_crypto_encrypt_cb);
    callbacks.decrypt = Some(ffi::ngtcp2_crypto_decrypt_cb);
    callbacks.hp_mask = Some(protection::mask);
    callbacks.update_key = Some(ffi::ngtcp2_crypto_update_key_cb);
    callbacks.delete_crypto_aead_ctx = Some(ffi::ngtcp2_crypto_delete_crypto_aead_ctx_cb);
    callbacks.delete_crypto_cipher_ctx = Some(ffi::ngtcp2_crypto_delete_crypto_cipher_ctx_cb);
    callbacks.get_path_challenge_data2 = Some(ffi::ngtcp2_crypto_get_path_challenge_data2_cb);
    callbacks.version_negotiation = Some(ffi::ngtcp2_crypto_version_negotiation_cb);
    callbacks.rand = Some(fill_random);
    callbacks.get_new_connection_id2 = Some(new_id::<App>);
    callbacks.remove_connection_id = Some(remove_id::<App>);
    callbacks.recv_stream_data = Some(stream_data::<App>);
    callbacks.stream_reset = Some(stream_reset::<App>);
    if is_server {
        callbacks.stream_close2 = Some(stream_closed);
    }
    callbacks
}

/// # Safety
/// The crypto helper calls back with what `assemble` gave it.
unsafe extern "C" fn connection_of(
    reference: *mut ffi::ngtcp2_crypto_conn_ref,
) -> *mut ffi::ngtcp2_conn {
    // SAFETY: see above.
    unsafe { (*reference).user_data.cast() }
}

/// # Safety
/// In this and the following callbacks, the library passes the state that `assemble` gave it, and buffers of the lengths
/// it tells.
unsafe extern "C" fn handshake_confirmed<App>(
    _: *mut ffi::ngtcp2_conn,
    state: *mut c_void,
) -> c_int {
    // SAFETY: see above.
    unsafe { (*state.cast::<State<App>>()).confirmed = Some(now_ns()) };
    0
}

unsafe extern "C" fn fill_random(
    destination: *mut u8,
    length: usize,
    _: *const ffi::ngtcp2_rand_ctx,
) {
    // SAFETY: see above. What asks this need not be unpredictable, and the call fails only without memory.
    let bytes = unsafe { slice::from_raw_parts_mut(destination, length) };
    let _ = boring::rand::rand_bytes(bytes);
}

unsafe extern "C" fn new_id<App>(
    _: *mut ffi::ngtcp2_conn,
    destination: *mut ffi::ngtcp2_cid,
    token: *mut ffi::ngtcp2_stateless_reset_token,
    length: usize,
    state: *mut c_void,
) -> c_int {
    let mut id = vec![0; length];
    let mut secret = [0; RESET_TOKEN_LENGTH];
    if boring::rand::rand_bytes(&mut id).is_err() || boring::rand::rand_bytes(&mut secret).is_err()
    {
        return ffi::NGTCP2_ERR_CALLBACK_FAILURE;
    }
    // SAFETY: see `handshake_confirmed`.
    unsafe {
        *destination = cid(&id);
        (*token).data = secret;
        (*state.cast::<State<App>>()).new_ids.push(id);
    }
    0
}

unsafe extern "C" fn remove_id<App>(
    _: *mut ffi::ngtcp2_conn,
    id: *const ffi::ngtcp2_cid,
    state: *mut c_void,
) -> c_int {
    // SAFETY: see `handshake_confirmed`.
    unsafe {
        let retired = id_of(&*id);
        (*state.cast::<State<App>>()).retired_ids.push(retired);
    }
    0
}

unsafe extern "C" fn stream_data<App: Application>(
    connection: *mut ffi::ngtcp2_conn,
    flags: u32,
    stream: i64,
    _: u64,
    data: *const u8,
    length: usize,
    state: *mut c_void,
    _: *mut c_void,
) -> c_int {
    // SAFETY: see `handshake_confirmed`; the library allows both calls here.
    unsafe {
        let bytes = match length {
            0 => &[],
            length => slice::from_raw_parts(data, length),
        };
        let last = flags & ffi::NGTCP2_STREAM_DATA_FLAG_FIN != 0;
        let application = &mut (*state.cast::<State<App>>()).application;
        application.received(stream as u64, bytes, last);
        ffi::ngtcp2_conn_extend_max_stream_offset(connection, stream, length as u64);
        ffi::ngtcp2_conn_extend_max_offset(connection, length as u64);
    }
    0
}

unsafe extern "C" fn stream_reset<App: Application>(
    _: *mut ffi::ngtcp2_conn,
    stream: i64,
    _: u64,
    code: u64,
    state: *mut c_void,
    _: *mut c_void,
) -> c_int {
    // SAFETY: see `handshake_confirmed`.
    let application = unsafe { &mut (*state.cast::<State<App>>()).application };
    application.reset(stream as u64, code);
    0
}

/// Lets a client open another stream for one that is done.
unsafe extern "C" fn stream_closed(
    connection: *mut ffi::ngtcp2_conn,
    _: u32,
    _: i64,
    _: u64,
    _: u64,
    _: *mut c_void,
    _: *mut c_void,
) -> c_int {
    // SAFETY: see `handshake_confirmed`; the library allows the call here.
    unsafe { ffi::ngtcp2_conn_extend_max_streams_bidi(connection, 1) };
    0
}

/// A socket address as ngtcp2 takes it.
#[derive(Clone, Copy)]
struct Address {
    address: SocketAddr,
    storage: libc::sockaddr_storage,
    length: u32,
}

impl Address {
    fn pointer(&self) -> *const ffi::ngtcp2_sockaddr {
        ptr::from_ref(&self.storage).cast()
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Address {
        // SAFETY: all zeroes is a valid sockaddr_storage, and it is large enough and aligned for both kinds of address.
        let (storage, length) = unsafe {
            let mut storage: libc::sockaddr_storage = mem::zeroed();
            let length = match address {
                SocketAddr::V4(address) => {
                    let to = &mut *ptr::from_mut(&mut storage).cast::<libc::sockaddr_in>();
                    to.sin_family = libc::AF_INET as libc::sa_family_t;
                    to.sin_port = address.port().to_be();
                    to.sin_addr.s_addr = u32::from_ne_bytes(address.ip().octets());
                    mem::size_of::<libc::sockaddr_in>()
                }
                SocketAddr::V6(address) => {
                    let to = &mut *ptr::from_mut(&mut storage).cast::<libc::sockaddr_in6>();
                    to.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                    to.sin6_port = address.port().to_be();
                    to.sin6_flowinfo = address.flowinfo();
                    to.sin6_addr.s6_addr = address.ip().octets();
                    to.sin6_scope_id = address.scope_id();
                    mem::size_of::<libc::sockaddr_in6>()
                }
            };
            (storage, length as u32)
        };
        Address {
            address,
            storage,
            length,
        }
    }
}

/// The path between two addresses, which must outlive it.
fn path(local: &mut Address, peer: &mut Address) -> ffi::ngtcp2_path {
    let of = |address: &mut Address| ffi::ngtcp2_addr {
        addr: ptr::from_mut(&mut address.storage).cast(),
        addrlen: address.length,
    };
    ffi::ngtcp2_path {
        local: of(local),
        remote: of(peer),
        user_data: ptr::null_mut(),
    }
}

fn cid(id: &[u8]) -> ffi::ngtcp2_cid {
    let mut made = MaybeUninit::zeroed();
    // SAFETY: all zeroes is a valid structure, which the call fills; IDs here are of QUIC v1 and short enough for it.
    unsafe {
        ffi::ngtcp2_cid_init(made.as_mut_ptr(), id.as_ptr(), id.len());
        made.assume_init()
    }
}

fn id_of(id: &ffi::ngtcp2_cid) -> ConnectionId {
    id.data[..id.datalen].to_vec()
}

fn error_text(code: c_int) -> String {
    // SAFETY: the library returns a static string for every value.
    let text = unsafe { CStr::from_ptr(ffi::ngtcp2_strerror(code)) };
    text.to_string_lossy().into_owned()
}

fn leak<T>(value: T) -> NonNull<T> {
    NonNull::from(Box::leak(Box::new(value)))
}
