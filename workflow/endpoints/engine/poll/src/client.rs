//! The client: fresh connections one after the other, one download each.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use quicbed_contract::clock::{now_ns, CpuTime};
use quicbed_contract::events::{ClientConnection, Events, Role};
use quicbed_contract::exit;
use quicbed_contract::options::{ClientOptions, Pacing};
use quicbed_contract::udp::{wait, wake_promptly, Socket, StopSignals, RECEIVE_BUFFER};

use crate::outbox::Outbox;
use crate::transfer::Transfer;
use crate::{
    pacing, Connection, Failed, Library, Traffic, RECEIVED_BYTES_PER_TURN, RECEIVES_PER_TURN,
    SENT_BYTES_PER_TURN,
};

/// Bytes of content read from a library at once.
const CHUNK: usize = 65_536;

/// Makes the connections of a client.
pub trait Connector: Sized {
    type Library: Library;
    type Connection: Download;

    fn new(options: &ClientOptions) -> Result<Self, String>;

    /// A connection from `local`, whose ClientHello is the first thing to write.
    fn connect(
        &mut self,
        options: &ClientOptions,
        local: SocketAddr,
    ) -> Result<Self::Connection, String>;
}

/// A client's connection.
pub trait Download: Connection {
    /// Asks for the content as soon as the connection is established, and takes what has arrived of it unless that comes
    /// by itself. `chunk` is room for it.
    fn exchange(&mut self, chunk: &mut [u8]) -> Result<(), String>;

    /// Whether the library has all of the request.
    fn has_asked(&self) -> bool;

    fn transfer(&self) -> &Transfer;

    /// When HANDSHAKE_DONE was received, if the library tells.
    fn confirmed(&self) -> Option<u64>;

    /// Whether a valid Retry packet was received, if the library knows.
    fn after_retry(&self) -> Option<bool>;
}

/// Runs the program and returns its exit code.
pub fn run<C: Connector>() -> i32 {
    let options = ClientOptions::from_command_line(&C::Library::description());
    let mut events = Events::open(&options.common.events);
    if let Some(reason) = C::Library::unsupported(&options.common) {
        events.exit_unsupported(&reason);
    }
    if let Err(reason) = download_all::<C>(&options, &mut events) {
        events.exit_failed(&reason);
    }
    events.end();
    match events.failed() {
        0 => exit::OK,
        _ => exit::FAILED,
    }
}

fn download_all<C: Connector>(options: &ClientOptions, events: &mut Events) -> Result<(), String> {
    let stop = StopSignals::install().map_err(|error| format!("cannot take signals: {error}"))?;
    if pacing(&options.common) == Pacing::Library {
        wake_promptly();
    }
    let mut connector = C::new(options)?;
    let mut buffers = Buffers {
        datagrams: vec![0; RECEIVE_BUFFER],
        content: vec![0; CHUNK],
    };
    for index in 0..options.connections {
        let socket = Socket::bind_for(options.connect, &options.common).map_err(about_socket)?;
        if index == 0 {
            let in_force = socket.in_force(&options.common).map_err(about_socket)?;
            let in_force = crate::in_force::<C::Library>(in_force, &options.common);
            events.start(
                Role::Client,
                C::Library::NAME,
                C::Library::VERSION,
                &in_force,
            );
        }
        let local = socket.local_address().map_err(about_socket)?;
        let mut downloading = Downloading {
            options,
            socket: &socket,
            connection: connector.connect(options, local)?,
            outbox: Outbox::new(socket.gso(), &options.common),
            sent: Traffic::default(),
            received: Traffic::default(),
            cpu_at_hello: None,
            record: ClientConnection::default(),
        };
        let outcome = downloading.run(&stop, &mut buffers);
        let stopped = matches!(outcome, Err(Failure::Stopped));
        events.client_connection(&downloading.report(index, outcome));
        if stopped {
            return Err(Failure::Stopped.to_string());
        }
    }
    Ok(())
}

fn about_socket(error: io::Error) -> String {
    format!("socket: {error}")
}

/// Where datagrams and content are received, the same for all connections.
struct Buffers {
    datagrams: Vec<u8>,
    content: Vec<u8>,
}

/// Why a download did not succeed.
#[derive(Debug)]
enum Failure {
    /// SIGTERM or SIGINT.
    Stopped,
    /// What the connection says.
    Connection,
    Failed(String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Stopped => f.write_str("stopped by a signal"),
            Failure::Connection => f.write_str("closed by the peer before the end"),
            Failure::Failed(reason) => f.write_str(reason),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Failed(about_socket(error))
    }
}

impl From<Failed> for Failure {
    fn from(Failed(reason): Failed) -> Self {
        reason.map_or(Failure::Connection, Failure::Failed)
    }
}

/// One connection and its download.
struct Downloading<'a, C: Download> {
    options: &'a ClientOptions,
    socket: &'a Socket,
    connection: C,
    outbox: Outbox,
    sent: Traffic,
    received: Traffic,
    cpu_at_hello: Option<CpuTime>,
    record: ClientConnection,
}

impl<C: Download> Downloading<'_, C> {
    /// Runs the connection from its first packet to the end of the content.
    fn run(&mut self, stop: &StopSignals, buffers: &mut Buffers) -> Result<(), Failure> {
        let deadline = Instant::now() + self.options.timeout;
        loop {
            let more_to_send = self.send()?;
            if self.connection.has_ended() {
                return Err(Failure::Connection);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let seconds = self.options.timeout.as_secs_f64();
                return Err(Failure::Failed(format!("not finished within {seconds} s")));
            }
            let timeout = match more_to_send {
                true => Duration::ZERO,
                false => self
                    .connection
                    .timeout()
                    .map_or(left, |timeout| timeout.min(left)),
            };
            let wakeup = wait(self.socket, stop, !self.outbox.is_empty(), Some(timeout))?;
            if wakeup.stop {
                return Err(Failure::Stopped);
            }
            if wakeup.readable {
                self.receive(&mut buffers.datagrams)?;
            }
            self.connection.on_timeout();
            let exchanged = self.connection.exchange(&mut buffers.content);
            exchanged.map_err(Failure::Failed)?;
            let transfer = self.connection.transfer();
            if let Some(code) = transfer.reset {
                let reason = format!("stream reset by the server with code {code}");
                return Err(Failure::Failed(reason));
            }
            if transfer.finished {
                return Ok(());
            }
        }
    }

    /// Sends what there is to send. Returns true if there may be more.
    fn send(&mut self) -> Result<bool, Failure> {
        let most = self.connection.burst().min(SENT_BYTES_PER_TURN);
        let mut bytes = 0;
        let mut more = true;
        while more && bytes < most {
            if self.outbox.is_empty() {
                let batch = self.connection.batch(most - bytes);
                match self
                    .outbox
                    .fill(&mut self.connection, batch, &mut self.sent)?
                {
                    0 => break,
                    filled => bytes += filled,
                }
            }
            if self.cpu_at_hello.is_none() {
                self.cpu_at_hello = Some(CpuTime::now());
                self.record.t_client_hello = Some(now_ns());
            }
            more = self.outbox.flush(self.socket)?;
            if more && self.record.t_request_sent.is_none() && self.connection.has_asked() {
                self.record.t_request_sent = Some(now_ns());
            }
        }
        self.connection.end_burst();
        Ok(more && bytes >= most)
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Result<(), Failure> {
        let mut bytes = 0;
        for _ in 0..RECEIVES_PER_TURN {
            let Some(received) = self.socket.receive(buffer)? else {
                break;
            };
            for datagram in buffer[..received.length].chunks_mut(received.segment) {
                self.received.add(datagram.len());
                self.connection.read(datagram, received.from);
                if self.record.common.t_handshake_complete.is_none()
                    && self.connection.is_established()
                {
                    self.note_handshake();
                }
            }
            bytes += received.length;
            if bytes >= RECEIVED_BYTES_PER_TURN {
                break;
            }
        }
        Ok(())
    }

    fn note_handshake(&mut self) {
        let record = &mut self.record.common;
        record.t_handshake_complete = Some(now_ns());
        record.handshake_packets_sent = Some(self.sent.datagrams);
        record.handshake_bytes_sent = Some(self.sent.bytes);
        record.handshake_packets_received = Some(self.received.datagrams);
        record.handshake_bytes_received = Some(self.received.bytes);
    }

    /// Closes the connection and tells what it was.
    fn report(mut self, index: u64, outcome: Result<(), Failure>) -> ClientConnection {
        let content = self.connection.transfer().checker.verdict();
        let outcome = outcome.map_err(|failure| match failure {
            Failure::Connection => self
                .connection
                .reason()
                .unwrap_or_else(|| failure.to_string()),
            other => other.to_string(),
        });
        let result =
            outcome.and_then(|()| content.clone().map_err(|mismatch| mismatch.to_string()));

        // Error 0 tells the server that everything arrived. It is sent once; a server that misses it times out.
        if !matches!(self.outbox.flush(self.socket), Ok(true)) {
            self.outbox.clear();
        }
        self.connection.close(u64::from(result.is_err()), "");
        let _ = self.send();

        let packets = self.connection.packets();
        let mut record = self.record;
        let transfer = self.connection.transfer();
        record.t_first_byte = transfer.t_first_byte;
        record.t_last_byte = transfer.t_last_byte;
        record.bytes_requested = transfer.checker.requested();
        record.bytes_received = transfer.checker.received();
        record.content_ok = content.is_ok();
        let cpu_at_end = transfer.cpu_at_end;
        let common = &mut record.common;
        common.t_close = Some(now_ns());
        common.index = index;
        common.ok = result.is_ok();
        common.error = result.err();
        common.t_handshake_confirmed = self.connection.confirmed();
        common.retry = self.connection.after_retry();
        if common.t_handshake_complete.is_some() {
            self.connection.read_back(common);
            common.aead = Some(self.options.common.aead);
            common.header_protection = Some(self.options.common.header_protection);
        }
        common.packets_sent = Some(packets.sent);
        common.packets_received = Some(packets.received);
        common.packets_lost = Some(packets.lost);
        if let (Some(start), Some(end)) = (self.cpu_at_hello, cpu_at_end) {
            let spent = end.since(start);
            common.cpu_user_ns = Some(spent.user_ns);
            common.cpu_system_ns = Some(spent.system_ns);
        }
        record
    }
}
