//! The client: fresh connections one after the other, one download each. MsQuic's worker threads do the work; the main
//! thread waits for what they report.

use std::ffi::{c_void, CString};
use std::process;
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use quicbed_contract::clock::{now_ns, CpuTime};
use quicbed_contract::content::Checker;
use quicbed_contract::events::{ClientConnection, Events, Role};
use quicbed_contract::exit;
use quicbed_contract::options::{Aead, ClientOptions, HeaderProtection};
use quicbed_contract::udp::Socket;
use quicbed_endpoint_msquic::library::{
    context, describe, on_stop, transport_error, Credentials, Library,
};
use quicbed_endpoint_msquic::*;

/// How long a CONNECTION_CLOSE may take to be sent, and the answer to it to come.
const CLOSE_SENT_WITHIN: Duration = Duration::from_millis(100);
const CLOSE_ANSWERED_WITHIN: Duration = Duration::from_millis(2);

static REQUEST_SENT: AtomicU64 = AtomicU64::new(0);

enum Message {
    /// Everything was received, or the connection has failed.
    Done,
    /// Datagrams were sent after the connection was closed.
    Sent,
    /// The connection is over.
    Over(Box<Download>),
    /// SIGTERM or SIGINT.
    Stop,
}

fn main() {
    let options = ClientOptions::from_command_line(&description());
    let mut events = Events::open(&options.common.events);
    if let Some(reason) = unsupported(&options.common) {
        events.exit_unsupported(&reason);
    }
    if let Err(reason) = run(&options, &mut events) {
        events.exit_failed(&reason);
    }
    events.end();
    process::exit(match events.failed() {
        0 => exit::OK,
        _ => exit::FAILED,
    });
}

fn run(options: &ClientOptions, events: &mut Events) -> Result<(), String> {
    let (sender, messages) = mpsc::channel();
    on_stop(sender.clone(), || Message::Stop)?;
    let socket = Socket::bind_for(options.connect, &options.common);
    let socket = socket.map_err(|error| format!("socket: {error}"))?;
    let in_force = in_force(&socket, &options.common, None);
    let in_force = in_force.map_err(|error| format!("socket: {error}"))?;
    drop(socket);
    events.start(Role::Client, LIBRARY, VERSION, &in_force);
    let ca = options.ca.as_deref();
    // The name is part of what is verified.
    tls::configure(&options.common, ca.map(|_| options.server_name.as_str()))?;
    let library = Library::open(&options.common, &Credentials::Client { ca })?;
    let name = CString::new(options.server_name.as_str()).map_err(|error| error.to_string())?;
    for index in 0..options.connections {
        let (mut record, stopped) = download(&library, options, &name, &sender, &messages)?;
        record.common.index = index;
        events.client_connection(&record);
        tls::flush_key_log()?;
        if stopped {
            return Err("stopped by a signal".into());
        }
    }
    Ok(())
}

/// Downloads once. Also returns whether the program shall stop.
fn download(
    library: &Library,
    options: &ClientOptions,
    name: &CString,
    sender: &Sender<Message>,
    messages: &Receiver<Message>,
) -> Result<(ClientConnection, bool), String> {
    let deadline = Instant::now() + options.timeout;
    let connection = start(library, options, name, sender)?;
    let (mut error, mut stopped) = (None, false);
    let mut over = match messages.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(Message::Over(download)) => Some(download),
        Ok(Message::Stop) => {
            stopped = true;
            error = Some("stopped by a signal".to_owned());
            None
        }
        Ok(Message::Done | Message::Sent) => None,
        Err(RecvTimeoutError::Timeout) => {
            let seconds = options.timeout.as_secs_f64();
            error = Some(format!("not finished within {seconds} s"));
            None
        }
        Err(RecvTimeoutError::Disconnected) => unreachable!("this thread has a sender"),
    };
    if over.is_none() {
        over = close(library, connection, sender, messages, error.is_some());
    }
    // SAFETY: the handle is closed once; its callbacks are over when the call returns.
    unsafe { call!(library, ConnectionClose, connection) };
    // A connection that was closed in mid-air says that it is over while its handle is closed.
    let over = over.or_else(|| messages.try_iter().find_map(into_download));
    let mut download = over.ok_or("MsQuic closed a connection without a word")?;
    download.error = error.or(download.error);
    Ok((download.report(), stopped))
}

fn into_download(message: Message) -> Option<Box<Download>> {
    match message {
        Message::Over(download) => Some(download),
        _ => None,
    }
}

/// Starts a connection; its context is handed back with [`Message::Over`].
fn start(
    library: &Library,
    options: &ClientOptions,
    name: &CString,
    sender: &Sender<Message>,
) -> Result<HQUIC, String> {
    hooks::expect(options.connect);
    REQUEST_SENT.store(0, Ordering::Relaxed);
    let mut connection = ptr::null_mut();
    let context = context(Box::new(Download::new(library, options, sender)));
    // SAFETY: the context lives until the connection is over, `name` until this program ends.
    let opened = unsafe {
        call!(
            library,
            ConnectionOpen,
            library.registration,
            Some(on_connection),
            context,
            &mut connection
        )
    };
    if failed(opened) {
        return Err(format!("MsQuic: connection: {}", describe(opened)));
    }
    // SAFETY: the connection was just opened.
    unsafe {
        library.choose_protection(connection, &options.common)?;
        library.direct(connection, options.connect)?;
    }
    let family = match options.connect.is_ipv4() {
        true => libc::AF_INET,
        false => libc::AF_INET6,
    };
    // SAFETY: as above.
    let started = unsafe {
        call!(
            library,
            ConnectionStart,
            connection,
            library.configuration,
            family as u16,
            name.as_ptr(),
            options.connect.port()
        )
    };
    match failed(started) {
        false => Ok(connection),
        true => Err(format!("MsQuic: connection: {}", describe(started))),
    }
}

/// Closes a connection and waits until the server has been told, but not for the whole closing period of RFC 9000, section
/// 10.2.1, which servers that do not answer would cost. Returns what was reported meanwhile.
fn close(
    library: &Library,
    connection: HQUIC,
    sender: &Sender<Message>,
    messages: &Receiver<Message>,
    in_vain: bool,
) -> Option<Box<Download>> {
    let sent = sender.clone();
    hooks::after_next_send(move || {
        // The receiver lives as long as the program.
        let _ = sent.send(Message::Sent);
    });
    let none = QUIC_CONNECTION_SHUTDOWN_FLAG_NONE;
    // SAFETY: the handle is open.
    unsafe {
        call!(
            library,
            ConnectionShutdown,
            connection,
            none,
            in_vain.into()
        )
    };
    let mut limit = Instant::now() + CLOSE_SENT_WITHIN;
    loop {
        match messages.recv_timeout(limit.saturating_duration_since(Instant::now())) {
            Ok(Message::Over(download)) => return Some(download),
            Ok(Message::Sent) => limit = Instant::now() + CLOSE_ANSWERED_WITHIN,
            Ok(Message::Done | Message::Stop) => {}
            Err(_) => return None,
        }
    }
}

/// One connection and its download: the context of MsQuic's callbacks, which come one at a time.
struct Download {
    library: Library,
    options: ClientOptions,
    messages: Sender<Message>,
    request: String,
    /// The request as MsQuic takes it.
    buffer: QUIC_BUFFER,
    checker: Checker,
    finished: bool,
    error: Option<String>,
    cpu_at_hello: Option<CpuTime>,
    cpu_at_end: Option<CpuTime>,
    record: ClientConnection,
}

// SAFETY: the buffer points to the request, which goes with it.
unsafe impl Send for Download {}

impl Download {
    fn new(library: &Library, options: &ClientOptions, messages: &Sender<Message>) -> Download {
        let request = options.request();
        let buffer = QUIC_BUFFER {
            Length: request.len() as u32,
            Buffer: request.as_ptr().cast_mut(),
        };
        Download {
            library: *library,
            options: options.clone(),
            messages: messages.clone(),
            request,
            buffer,
            checker: options.checker(),
            finished: false,
            error: None,
            cpu_at_hello: None,
            cpu_at_end: None,
            record: ClientConnection::default(),
        }
    }

    fn fail(&mut self, reason: String) {
        self.error.get_or_insert(reason);
    }

    fn done(&self) {
        // The receiver lives as long as the program.
        let _ = self.messages.send(Message::Done);
    }

    /// Writes down what is known of the first datagrams, once: an Initial packet of the server that arrives after the
    /// handshake, sent again because key exchange took long, is not the beginning of another one.
    fn note_start(&mut self) {
        let peer = hooks::take(self.options.connect);
        let Some(peer) = peer.filter(|_| self.record.t_client_hello.is_none()) else {
            return;
        };
        self.record.t_client_hello = Some(peer.t_first);
        self.cpu_at_hello = Some(peer.cpu_first);
        let record = &mut self.record.common;
        record.retry = Some(peer.retry);
        if record.t_handshake_complete.is_some() {
            record.handshake_packets_sent = Some(peer.sent.datagrams);
            record.handshake_bytes_sent = Some(peer.sent.bytes);
            record.handshake_packets_received = Some(peer.received.datagrams);
            record.handshake_bytes_received = Some(peer.received.bytes);
        }
    }

    unsafe fn connected(&mut self, connection: HQUIC) {
        self.record.common.t_handshake_complete = Some(now_ns());
        self.note_start();
        let options = &self.options.common;
        let other = tls::read_back(tls::take_completed(), options, &mut self.record.common);
        let aead = self.library.protection(connection, options);
        self.record.common.aead = Some(aead);
        self.record.common.header_protection = Some(match aead {
            Aead::Noenc => HeaderProtection::Off,
            _ => options.header_protection,
        });
        if let Some(other) = other {
            self.fail(other);
        } else if options.aead == Aead::Noenc && aead != Aead::Noenc {
            self.fail("the server did not agree to leave out packet protection".into());
        } else if let Err(error) = self.ask(connection) {
            self.fail(error);
        }
        if self.error.is_some() {
            self.done();
        }
    }

    unsafe fn ask(&mut self, connection: HQUIC) -> Result<(), String> {
        let mut stream = ptr::null_mut();
        let this = ptr::from_mut(self).cast();
        let opened = call!(
            self.library,
            StreamOpen,
            connection,
            QUIC_STREAM_OPEN_FLAG_NONE,
            Some(on_stream),
            this,
            &mut stream
        );
        if failed(opened) {
            return Err(format!("MsQuic: stream: {}", describe(opened)));
        }
        hooks::after_next_send(|| REQUEST_SENT.store(now_ns(), Ordering::Release));
        let flags = QUIC_SEND_FLAG_START | QUIC_SEND_FLAG_FIN;
        let sent = call!(
            self.library,
            StreamSend,
            stream,
            &self.buffer,
            1,
            flags,
            ptr::null_mut()
        );
        match failed(sent) {
            false => Ok(()),
            true => Err(format!("MsQuic: request: {}", describe(sent))),
        }
    }

    unsafe fn received(&mut self, buffers: *const QUIC_BUFFER, count: u32) {
        let now = now_ns();
        for buffer in slice::from_raw_parts(buffers, count as usize) {
            if buffer.Length > 0 {
                self.record.t_first_byte.get_or_insert(now);
                self.record.t_last_byte = Some(now);
                let bytes = slice::from_raw_parts(buffer.Buffer, buffer.Length as usize);
                self.checker.receive(bytes);
            }
        }
    }

    fn report(mut self: Box<Self>) -> ClientConnection {
        self.note_start();
        let content = self.checker.verdict();
        let error = self
            .error
            .take()
            .or_else(|| match (&content, self.finished) {
                (Err(mismatch), true) => Some(mismatch.to_string()),
                (_, false) => Some("closed by the peer before the end".into()),
                (Ok(()), true) => None,
            });
        let mut record = self.record;
        let sent = REQUEST_SENT.load(Ordering::Acquire);
        record.t_request_sent = Some(sent).filter(|t| *t != 0);
        record.bytes_requested = self.checker.requested();
        record.bytes_received = self.checker.received();
        record.content_ok = content.is_ok();
        record.common.ok = error.is_none();
        record.common.error = error;
        record.common.t_handshake_confirmed = hooks::confirmed();
        if let (Some(start), Some(end)) = (self.cpu_at_hello, self.cpu_at_end) {
            let spent = end.since(start);
            record.common.cpu_user_ns = Some(spent.user_ns);
            record.common.cpu_system_ns = Some(spent.system_ns);
        }
        debug_assert_eq!(self.request.len(), self.buffer.Length as usize);
        record
    }
}

unsafe extern "C" fn on_connection(
    connection: HQUIC,
    context: *mut c_void,
    event: *mut QUIC_CONNECTION_EVENT,
) -> u32 {
    let download = &mut *context.cast::<Download>();
    let event = &*event;
    match event.Type {
        QUIC_CONNECTION_EVENT_CONNECTED => download.connected(connection),
        QUIC_CONNECTION_EVENT_SHUTDOWN_INITIATED_BY_TRANSPORT => {
            let why = &event.__bindgen_anon_1.SHUTDOWN_INITIATED_BY_TRANSPORT;
            download.fail(transport_error(why.Status, why.ErrorCode));
        }
        QUIC_CONNECTION_EVENT_SHUTDOWN_INITIATED_BY_PEER => {
            let code = event.__bindgen_anon_1.SHUTDOWN_INITIATED_BY_PEER.ErrorCode;
            if !download.finished {
                download.fail(format!(
                    "closed by the server with application error {code}"
                ));
            }
        }
        QUIC_CONNECTION_EVENT_SHUTDOWN_COMPLETE => {
            let mut download = Box::from_raw(context.cast::<Download>());
            download.record.common.t_close = Some(now_ns());
            let library = download.library;
            library.count(connection, &mut download.record.common);
            let messages = download.messages.clone();
            // The receiver lives as long as the program.
            let _ = messages.send(Message::Over(download));
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
    let download = &mut *context.cast::<Download>();
    let event = &*event;
    match event.Type {
        QUIC_STREAM_EVENT_RECEIVE => {
            let received = &event.__bindgen_anon_1.RECEIVE;
            download.received(received.Buffers, received.BufferCount);
        }
        QUIC_STREAM_EVENT_PEER_SEND_SHUTDOWN => {
            download.cpu_at_end = Some(CpuTime::now());
            download.finished = true;
            download.done();
        }
        QUIC_STREAM_EVENT_PEER_SEND_ABORTED => {
            let code = event.__bindgen_anon_1.PEER_SEND_ABORTED.ErrorCode;
            download.fail(format!("stream reset by the server with code {code}"));
            download.done();
        }
        QUIC_STREAM_EVENT_SHUTDOWN_COMPLETE
            if event
                .__bindgen_anon_1
                .SHUTDOWN_COMPLETE
                .AppCloseInProgress()
                == 0 =>
        {
            call!(download.library, StreamClose, stream);
        }
        _ => {}
    }
    SUCCESS
}
