//! The server. MsQuic's worker threads do the work; the main thread waits for connections that are over.

use std::ffi::c_void;
use std::mem;
use std::net::SocketAddr;
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use quicbed_contract::clock::{now_ns, CpuTime};
use quicbed_contract::content::{self, PERIOD};
use quicbed_contract::events::{Events, Role, ServerConnection};
use quicbed_contract::exit;
use quicbed_contract::options::{Aead, HeaderProtection, ServerOptions};
use quicbed_contract::request::{self, MAX_REQUEST};
use quicbed_contract::udp::Socket;
use quicbed_endpoint_msquic::library::{
    alpn, context, describe, on_stop, quic_address, transport_error, Credentials, Library,
};
use quicbed_endpoint_msquic::*;

/// Application error of this server for a request it does not understand, and when it is stopped.
const BAD_REQUEST: u64 = 1;
const STOPPED: u64 = 2;

/// When the server is stopped, connections have this long to end of their own accord, and then this long to end at all.
const GRACE: Duration = Duration::from_millis(100);
const STOPPED_WITHIN: Duration = Duration::from_millis(500);

/// Periods of content in one send, and sends that MsQuic has at once: more than a congestion window needs, without a copy
/// of the content.
const PERIODS: usize = 16;
const SENDS: usize = 16;

/// Bytes of a whole send.
const WHOLE: u64 = (PERIODS * PERIOD) as u64;

static SERVER: OnceLock<Server> = OnceLock::new();
static STOPPING: AtomicBool = AtomicBool::new(false);
static OPEN: AtomicUsize = AtomicUsize::new(0);

enum Message {
    /// A connection is closed.
    Closed(Box<ServerConnection>),
    /// SIGTERM or SIGINT.
    Stop,
}

/// What the callbacks need.
struct Server {
    library: Library,
    options: ServerOptions,
    messages: Sender<Message>,
    /// One send of whole periods.
    periods: Buffers<PERIODS>,
}

/// Pieces of content as MsQuic takes them.
struct Buffers<const N: usize>([QUIC_BUFFER; N]);

// SAFETY: content is never written to and lives as long as the program.
unsafe impl<const N: usize> Send for Buffers<N> {}
// SAFETY: as above.
unsafe impl<const N: usize> Sync for Buffers<N> {}

fn main() {
    let options = ServerOptions::from_command_line(&description());
    let mut events = Events::open(&options.common.events);
    if let Some(reason) = unsupported(&options.common) {
        events.exit_unsupported(&reason);
    }
    if let Err(reason) = run(options, &mut events) {
        events.exit_failed(&reason);
    }
    events.end();
    // Without the destructors of libraries: the worker threads are still there.
    // SAFETY: all events are written.
    unsafe { libc::_exit(exit::OK) }
}

fn run(options: ServerOptions, events: &mut Events) -> Result<(), String> {
    let (sender, messages) = mpsc::channel();
    on_stop(sender.clone(), || Message::Stop)?;
    let about_socket = |error: std::io::Error| format!("--listen {}: {error}", options.listen);
    // MsQuic's own sockets share their port with whoever wants it; this one tells whether it is free.
    let socket = Socket::bind(options.listen, &options.common).map_err(about_socket)?;
    let in_force = in_force(&socket, &options.common, Some(options.retry)).map_err(about_socket)?;
    drop(socket);
    events.start(Role::Server, LIBRARY, VERSION, &in_force);
    tls::configure(&options.common, None)?;
    let credentials = Credentials::Server {
        certificate: &options.certificate,
        private_key: &options.private_key,
    };
    let library = Library::open(&options.common, &credentials)?;
    if options.retry {
        library.always_retry()?;
    }
    let asked = options.listen;
    SERVER.get_or_init(|| Server {
        library,
        options,
        messages: sender,
        periods: Buffers([piece(PERIOD); PERIODS]),
    });
    let listener = listen(&library, asked)?;
    // SAFETY: the listener was just opened.
    let local = unsafe { library.local_address(listener) };
    let port = local.map_or(asked.port(), |address| address.port());
    events.ready(SocketAddr::new(asked.ip(), port));
    serve(&library, listener, &messages, events)
}

/// The beginning of the content.
fn piece(length: usize) -> QUIC_BUFFER {
    buffer_of(content::slice_at(0, length))
}

/// Bytes as MsQuic takes them, which it only reads.
fn buffer_of(bytes: &'static [u8]) -> QUIC_BUFFER {
    QUIC_BUFFER {
        Length: bytes.len() as u32,
        Buffer: bytes.as_ptr().cast_mut(),
    }
}

fn listen(library: &Library, address: SocketAddr) -> Result<HQUIC, String> {
    let mut listener = ptr::null_mut();
    // SAFETY: pointers are valid during the calls.
    let status = unsafe {
        let opened = call!(
            library,
            ListenerOpen,
            library.registration,
            Some(on_listener),
            ptr::null_mut(),
            &mut listener
        );
        match opened {
            SUCCESS => {
                call!(
                    library,
                    ListenerStart,
                    listener,
                    &alpn(),
                    1,
                    &quic_address(address)
                )
            }
            refused => refused,
        }
    };
    match failed(status) {
        false => Ok(listener),
        true => Err(format!("--listen {address}: {}", describe(status))),
    }
}

/// Reports connections until the server is stopped.
fn serve(
    library: &Library,
    listener: HQUIC,
    messages: &Receiver<Message>,
    events: &mut Events,
) -> Result<(), String> {
    while let Ok(Message::Closed(record)) = messages.recv() {
        report(*record, events)?;
    }
    // SAFETY: the handle is open and closed once.
    unsafe { call!(library, ListenerClose, listener) };
    drain(messages, GRACE, events)?;
    STOPPING.store(true, Ordering::Release);
    let flags = QUIC_CONNECTION_SHUTDOWN_FLAG_NONE;
    // SAFETY: the handle is open.
    unsafe {
        call!(
            library,
            RegistrationShutdown,
            library.registration,
            flags,
            STOPPED
        )
    };
    drain(messages, STOPPED_WITHIN, events)
}

/// Reports connections until none is open, or the time is over.
fn drain(messages: &Receiver<Message>, time: Duration, events: &mut Events) -> Result<(), String> {
    let limit = Instant::now() + time;
    while OPEN.load(Ordering::Acquire) > 0 {
        match messages.recv_timeout(limit.saturating_duration_since(Instant::now())) {
            Ok(Message::Closed(record)) => report(*record, events)?,
            Ok(Message::Stop) => {}
            Err(_) => break,
        }
    }
    Ok(())
}

/// One connection: the context of MsQuic's callbacks, which come one at a time.
struct Serving {
    server: &'static Server,
    peer: SocketAddr,
    cpu_at_accept: CpuTime,
    start_noted: bool,
    requests: u64,
    /// Answers that MsQuic has as a whole.
    given: u64,
    /// Answers that the client has acknowledged as a whole.
    acknowledged: u64,
    /// Whether the client closed the connection, and called that no error.
    closed_by_client: bool,
    closed: bool,
    error: Option<String>,
    record: ServerConnection,
}

/// One stream.
struct Answer {
    serving: *mut Serving,
    request: Vec<u8>,
    left: u64,
    sends: usize,
    /// The last send, or all of them where a file is sent.
    last: Vec<QUIC_BUFFER>,
    is_file: bool,
}

impl Serving {
    fn new(server: &'static Server, peer: SocketAddr) -> Serving {
        Serving {
            server,
            peer,
            cpu_at_accept: CpuTime::now(),
            start_noted: false,
            requests: 0,
            given: 0,
            acknowledged: 0,
            closed_by_client: false,
            closed: false,
            error: None,
            record: ServerConnection {
                t_accept: Some(now_ns()),
                ..ServerConnection::default()
            },
        }
    }

    fn fail(&mut self, reason: String) {
        self.error.get_or_insert(reason);
    }

    /// Writes down what is known of the first datagrams, once: a late copy of the client's first one is not the first.
    fn note_start(&mut self) {
        let Some(peer) = hooks::take(self.peer) else {
            return;
        };
        if mem::replace(&mut self.start_noted, true) {
            return;
        }
        let record = &mut self.record.common;
        record.retry = Some(peer.retry);
        self.record.t_accept = Some(peer.t_first);
        self.cpu_at_accept = peer.cpu_first;
        if record.t_handshake_complete.is_some() {
            record.handshake_packets_sent = Some(peer.sent.datagrams);
            record.handshake_bytes_sent = Some(peer.sent.bytes);
            record.handshake_packets_received = Some(peer.received.datagrams);
            record.handshake_bytes_received = Some(peer.received.bytes);
        }
    }

    unsafe fn connected(&mut self, connection: HQUIC) {
        let now = now_ns();
        self.record.common.t_handshake_complete = Some(now);
        // For a server they are the same (RFC 9001, section 4.1.2).
        self.record.common.t_handshake_confirmed = Some(now);
        self.note_start();
        let options = &self.server.options.common;
        let other = tls::read_back(tls::take_completed(), options, &mut self.record.common);
        let aead = self.server.library.protection(connection, options);
        self.record.common.aead = Some(aead);
        self.record.common.header_protection = Some(match aead {
            Aead::Noenc => HeaderProtection::Off,
            _ => options.header_protection,
        });
        if let Some(other) = other {
            self.fail(other);
        } else if options.aead == Aead::Noenc && aead != Aead::Noenc {
            self.fail("the client did not agree to leave out packet protection".into());
        }
    }

    /// Hands over what is known, when the connection is closed for the first time: by the client, by MsQuic, or with the
    /// server. MsQuic needs the connection for some round-trip times more.
    unsafe fn close(&mut self, connection: HQUIC) {
        if self.closed {
            return;
        }
        self.closed = true;
        self.note_start();
        let error = self
            .error
            .take()
            .or_else(|| match STOPPING.load(Ordering::Acquire) {
                true => self.unfinished().map(|_| "the server was stopped".into()),
                false => self.unfinished(),
            });
        let mut record = mem::take(&mut self.record);
        let common = &mut record.common;
        common.ok = error.is_none();
        common.error = error;
        common.t_close = Some(now_ns());
        self.server.library.count(connection, common);
        let cpu = CpuTime::now().since(self.cpu_at_accept);
        common.cpu_user_ns = Some(cpu.user_ns);
        common.cpu_system_ns = Some(cpu.system_ns);
        // The receiver lives as long as the program.
        let _ = self.server.messages.send(Message::Closed(Box::new(record)));
    }

    /// What is missing from a connection that was closed without an error.
    fn unfinished(&self) -> Option<String> {
        let answered = match self.closed_by_client {
            // it may do so before it acknowledges the last packets
            true => self.given,
            false => self.acknowledged,
        };
        let complete = self.record.common.t_handshake_complete.is_some();
        let missing = match (complete, self.requests, answered >= self.requests) {
            (true, 1.., true) => return None,
            (false, ..) => "closed before the handshake was complete",
            (true, 0, _) => "closed without a request",
            (true, 1.., false) => "closed before everything asked for was sent",
        };
        Some(missing.into())
    }
}

fn report(mut record: ServerConnection, events: &mut Events) -> Result<(), String> {
    OPEN.fetch_sub(1, Ordering::AcqRel);
    record.common.index = events.connections();
    events.server_connection(&record);
    tls::flush_key_log()
}

impl Answer {
    /// Gives MsQuic as much as it may have at once.
    unsafe fn pump(&mut self, stream: HQUIC) {
        let serving = &mut *self.serving;
        while self.sends < SENDS && self.left > 0 {
            let length = self.left.min(WHOLE);
            let (buffers, count) = if self.is_file {
                // From the end, because the last may be shorter.
                let left = self.left.div_ceil(WHOLE) as usize;
                (self.last[self.last.len() - left..].as_ptr(), 1)
            } else if length == WHOLE {
                (serving.server.periods.0.as_ptr(), PERIODS)
            } else {
                let (periods, rest) = (length as usize / PERIOD, length as usize % PERIOD);
                self.last = vec![piece(PERIOD); periods];
                self.last.extend((rest > 0).then(|| piece(rest)));
                (self.last.as_ptr(), self.last.len())
            };
            let flags = match length == self.left {
                true => QUIC_SEND_FLAG_FIN,
                false => QUIC_SEND_FLAG_NONE,
            };
            let none = ptr::null_mut();
            let library = &serving.server.library;
            let sent = call!(
                library,
                StreamSend,
                stream,
                buffers,
                count as u32,
                flags,
                none
            );
            if failed(sent) {
                serving.fail(format!("MsQuic: content: {}", describe(sent)));
                return;
            }
            self.sends += 1;
            self.left -= length;
            serving.record.bytes_sent += length;
            serving.given += u64::from(self.left == 0);
        }
    }

    unsafe fn answer(&mut self, stream: HQUIC) {
        let serving = &mut *self.serving;
        match request::parse(&self.request) {
            Ok(body) if body.length() == 0 => {
                serving.given += 1;
                let library = &serving.server.library;
                call!(
                    library,
                    StreamShutdown,
                    stream,
                    QUIC_STREAM_SHUTDOWN_FLAG_GRACEFUL,
                    0
                );
            }
            Ok(body) => {
                if let Some(file) = body.file() {
                    self.last = file.chunks(WHOLE as usize).map(buffer_of).collect();
                    self.is_file = true;
                }
                self.left = body.length();
                self.pump(stream);
            }
            Err(error) => {
                serving.fail(error.to_string());
                let library = &serving.server.library;
                call!(
                    library,
                    StreamShutdown,
                    stream,
                    QUIC_STREAM_SHUTDOWN_FLAG_ABORT,
                    BAD_REQUEST
                );
            }
        }
    }
}

unsafe extern "C" fn on_listener(_: HQUIC, _: *mut c_void, event: *mut QUIC_LISTENER_EVENT) -> u32 {
    let event = &*event;
    let (QUIC_LISTENER_EVENT_NEW_CONNECTION, Some(server)) = (event.Type, SERVER.get()) else {
        return SUCCESS;
    };
    let new = &event.__bindgen_anon_1.NEW_CONNECTION;
    let address = (*new.Info).RemoteAddress.cast::<libc::sockaddr>();
    let Some(peer) = hooks::socket_address(address) else {
        return libc::EAFNOSUPPORT as u32;
    };
    if STOPPING.load(Ordering::Acquire) {
        return libc::ECONNREFUSED as u32;
    }
    let library = &server.library;
    // Refused where the client does not want it; what the connection has is read back.
    let _ = library.choose_protection(new.Connection, &server.options.common);
    OPEN.fetch_add(1, Ordering::AcqRel);
    let context = context(Box::new(Serving::new(server, peer)));
    let handler: unsafe extern "C" fn(HQUIC, *mut c_void, *mut QUIC_CONNECTION_EVENT) -> u32 =
        on_connection;
    let handler = handler as *mut c_void;
    call!(
        library,
        SetCallbackHandler,
        new.Connection,
        handler,
        context
    );
    let accepted = call!(
        library,
        ConnectionSetConfiguration,
        new.Connection,
        library.configuration
    );
    if failed(accepted) {
        // MsQuic ends a connection that is refused here without a call of its handler.
        OPEN.fetch_sub(1, Ordering::AcqRel);
        drop(Box::from_raw(context.cast::<Serving>()));
        return accepted;
    }
    SUCCESS
}

unsafe extern "C" fn on_connection(
    connection: HQUIC,
    context_pointer: *mut c_void,
    event: *mut QUIC_CONNECTION_EVENT,
) -> u32 {
    let serving = &mut *context_pointer.cast::<Serving>();
    let event = &*event;
    match event.Type {
        QUIC_CONNECTION_EVENT_CONNECTED => serving.connected(connection),
        QUIC_CONNECTION_EVENT_PEER_STREAM_STARTED => {
            serving.requests += 1;
            let answer = Answer {
                serving,
                request: Vec::new(),
                left: 0,
                sends: 0,
                last: Vec::new(),
                is_file: false,
            };
            let stream = event.__bindgen_anon_1.PEER_STREAM_STARTED.Stream;
            let handler: unsafe extern "C" fn(HQUIC, *mut c_void, *mut QUIC_STREAM_EVENT) -> u32 =
                on_stream;
            let library = &(*answer.serving).server.library;
            let context = context(Box::new(answer));
            call!(
                library,
                SetCallbackHandler,
                stream,
                handler as *mut c_void,
                context
            );
        }
        QUIC_CONNECTION_EVENT_SHUTDOWN_INITIATED_BY_TRANSPORT => {
            let why = &event.__bindgen_anon_1.SHUTDOWN_INITIATED_BY_TRANSPORT;
            serving.fail(transport_error(why.Status, why.ErrorCode));
            serving.close(connection);
        }
        QUIC_CONNECTION_EVENT_SHUTDOWN_INITIATED_BY_PEER => {
            let code = event.__bindgen_anon_1.SHUTDOWN_INITIATED_BY_PEER.ErrorCode;
            match code {
                0 => serving.closed_by_client = true,
                _ => serving.fail(format!(
                    "closed by the client with application error {code}"
                )),
            }
            serving.close(connection);
        }
        QUIC_CONNECTION_EVENT_SHUTDOWN_COMPLETE => {
            serving.close(connection);
            hooks::take(serving.peer);
            let library = serving.server.library;
            drop(Box::from_raw(context_pointer.cast::<Serving>()));
            if event
                .__bindgen_anon_1
                .SHUTDOWN_COMPLETE
                .AppCloseInProgress()
                == 0
            {
                call!(library, ConnectionClose, connection);
            }
        }
        _ => {}
    }
    SUCCESS
}

unsafe extern "C" fn on_stream(
    stream: HQUIC,
    context: *mut c_void,
    event: *mut QUIC_STREAM_EVENT,
) -> u32 {
    let answer = &mut *context.cast::<Answer>();
    let event = &*event;
    match event.Type {
        QUIC_STREAM_EVENT_RECEIVE => {
            let received = &event.__bindgen_anon_1.RECEIVE;
            for buffer in slice::from_raw_parts(received.Buffers, received.BufferCount as usize) {
                let room = (MAX_REQUEST + 1).saturating_sub(answer.request.len());
                let length = room.min(buffer.Length as usize);
                let bytes = slice::from_raw_parts(buffer.Buffer, length);
                answer.request.extend_from_slice(bytes);
            }
        }
        QUIC_STREAM_EVENT_PEER_SEND_SHUTDOWN => answer.answer(stream),
        QUIC_STREAM_EVENT_SEND_COMPLETE => {
            answer.sends -= 1;
            if event.__bindgen_anon_1.SEND_COMPLETE.Canceled == 0 {
                answer.pump(stream);
            }
        }
        QUIC_STREAM_EVENT_PEER_SEND_ABORTED | QUIC_STREAM_EVENT_PEER_RECEIVE_ABORTED => {
            let library = &(*answer.serving).server.library;
            call!(
                library,
                StreamShutdown,
                stream,
                QUIC_STREAM_SHUTDOWN_FLAG_ABORT,
                0
            );
        }
        QUIC_STREAM_EVENT_SEND_SHUTDOWN_COMPLETE => {
            let graceful = event.__bindgen_anon_1.SEND_SHUTDOWN_COMPLETE.Graceful != 0;
            (*answer.serving).acknowledged += u64::from(graceful);
        }
        QUIC_STREAM_EVENT_SHUTDOWN_COMPLETE => {
            let library = (*answer.serving).server.library;
            drop(Box::from_raw(context.cast::<Answer>()));
            if event
                .__bindgen_anon_1
                .SHUTDOWN_COMPLETE
                .AppCloseInProgress()
                == 0
            {
                call!(library, StreamClose, stream);
            }
        }
        _ => {}
    }
    SUCCESS
}
