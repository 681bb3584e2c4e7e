//! The client: fresh connections one after the other, one download each, all in one thread that waits in poll.

use std::io;
use std::net::SocketAddr;
use std::process;
use std::time::{Duration, Instant};

use quicbed_contract::clock::{now_ns, CpuTime};
use quicbed_contract::content::Checker;
use quicbed_contract::events::{ClientConnection, Events, Role};
use quicbed_contract::exit;
use quicbed_contract::options::ClientOptions;
use quicbed_contract::udp::{wait, Socket, StopSignals, RECEIVE_BUFFER};
use quicbed_endpoint_quiche::transport::{
    new_connection_id, Connection, Outbox, Traffic, RECEIVED_BYTES_PER_TURN, RECEIVES_PER_TURN,
    SENT_BYTES_PER_TURN,
};
use quicbed_endpoint_quiche::{
    closing, configure, description, noop, pq, unsupported, LIBRARY, VERSION,
};

/// The client's first bidirectional stream (RFC 9000, section 2.1).
const STREAM: u64 = 0;

/// Bytes of content read from quiche at once.
const CHUNK: usize = 65_536;

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
    let stop = StopSignals::install().map_err(|error| format!("cannot take signals: {error}"))?;
    let mut config = configure(quicbed_boringssl::client(options)?, &options.common)
        .map_err(|error| format!("cannot set up quiche: {error}"))?;
    noop::apply(&options.common);

    let mut buffers = Buffers {
        datagrams: vec![0; RECEIVE_BUFFER],
        content: vec![0; CHUNK],
    };
    for index in 0..options.connections {
        let socket = Socket::bind_for(options.connect, &options.common).map_err(about_socket)?;
        if index == 0 {
            let in_force = socket.in_force(&options.common).map_err(about_socket)?;
            events.start(
                Role::Client,
                LIBRARY,
                VERSION,
                &quicbed_boringssl::InForce::new(in_force),
            );
        }
        let mut download = Download::new(options, &socket, &mut config)
            .map_err(|error| format!("cannot make a connection: {error}"))?;
        let outcome = download.run(&stop, &mut buffers);
        let stopped = matches!(outcome, Err(Failure::Stopped));
        events.client_connection(&download.report(index, outcome));
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
    Failed(String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Stopped => f.write_str("stopped by a signal"),
            Failure::Failed(reason) => f.write_str(reason),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Failed(about_socket(error))
    }
}

impl From<quiche::Error> for Failure {
    fn from(error: quiche::Error) -> Self {
        Failure::Failed(format!("quiche: {error}"))
    }
}

/// One connection and its download.
struct Download<'a> {
    options: &'a ClientOptions,
    socket: &'a Socket,
    local: SocketAddr,
    connection: Connection,
    outbox: Outbox,
    checker: Checker,
    sent: Traffic,
    received: Traffic,
    request_queued: bool,
    finished: bool,
    /// What ended the connection on this side, in the library's words.
    failure: Option<String>,
    cpu_at_hello: Option<CpuTime>,
    cpu_at_end: Option<CpuTime>,
    record: ClientConnection,
}

impl<'a> Download<'a> {
    fn new(
        options: &'a ClientOptions,
        socket: &'a Socket,
        config: &mut quiche::Config,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let local = socket.local_address()?;
        let id = new_connection_id()?;
        let name = Some(options.server_name.as_str());
        let connection =
            quiche::connect_with_buffer_factory(name, &id, local, options.connect, config)?;
        Ok(Download {
            options,
            socket,
            local,
            connection,
            outbox: Outbox::new(socket, options.common.udp_payload),
            checker: options.checker(),
            sent: Traffic::default(),
            received: Traffic::default(),
            request_queued: false,
            finished: false,
            failure: None,
            cpu_at_hello: None,
            cpu_at_end: None,
            record: ClientConnection::default(),
        })
    }

    /// Runs the connection from its first packet to the end of the content.
    fn run(&mut self, stop: &StopSignals, buffers: &mut Buffers) -> Result<(), Failure> {
        let deadline = Instant::now() + self.options.timeout;
        loop {
            let more_to_send = self.send()?;
            if self.connection.is_draining() || self.connection.is_closed() {
                let reason = closing::reason(&mut self.connection, self.failure.as_deref());
                let reason = reason.unwrap_or_else(|| "closed by the peer before the end".into());
                return Err(Failure::Failed(reason));
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
            if self.connection.is_established() {
                self.exchange(&mut buffers.content)?;
            }
            if self.finished {
                return Ok(());
            }
        }
    }

    /// Sends what quiche has to send. Returns true if there may be more.
    fn send(&mut self) -> Result<bool, Failure> {
        let mut bytes = 0;
        while bytes < SENT_BYTES_PER_TURN {
            if self.outbox.is_empty() {
                match self.outbox.fill(&mut self.connection, &mut self.sent)? {
                    0 => return Ok(false),
                    filled => bytes += filled,
                }
            }
            if self.cpu_at_hello.is_none() {
                self.cpu_at_hello = Some(CpuTime::now());
                self.record.t_client_hello = Some(now_ns());
            }
            if !self.outbox.flush(self.socket)? {
                return Ok(false);
            }
            if self.request_queued && self.record.t_request_sent.is_none() {
                self.record.t_request_sent = Some(now_ns());
            }
        }
        Ok(true)
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Result<(), Failure> {
        let mut bytes = 0;
        for _ in 0..RECEIVES_PER_TURN {
            let Some(received) = self.socket.receive(buffer)? else {
                break;
            };
            let info = quiche::RecvInfo {
                from: received.from,
                to: self.local,
            };
            for datagram in buffer[..received.length].chunks_mut(received.segment) {
                self.received.add(datagram.len());
                // If that closes the connection, it is seen later.
                closing::receive(&mut self.connection, datagram, info, &mut self.failure);
                let record = &mut self.record.common;
                if record.t_handshake_confirmed.is_none() {
                    if record.t_handshake_complete.is_none() && self.connection.is_established() {
                        self.note_handshake();
                    }
                    if pq::is_confirmed(&self.connection) == Some(true) {
                        self.record.common.t_handshake_confirmed = Some(now_ns());
                    }
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

    /// Asks for the content, and takes what has arrived of it.
    fn exchange(&mut self, chunk: &mut [u8]) -> Result<(), Failure> {
        if !self.request_queued {
            let request = self.options.request();
            self.connection
                .stream_send(STREAM, request.as_bytes(), true)?;
            self.request_queued = true;
        }
        while !self.finished {
            match self.connection.stream_recv(STREAM, chunk) {
                Ok((length, finished)) => {
                    if length > 0 {
                        let now = now_ns();
                        self.record.t_first_byte.get_or_insert(now);
                        self.record.t_last_byte = Some(now);
                    }
                    if finished {
                        self.cpu_at_end = Some(CpuTime::now());
                    }
                    self.checker.receive(&chunk[..length]);
                    self.finished = finished;
                }
                Err(quiche::Error::Done) => break,
                Err(quiche::Error::StreamReset(code)) => {
                    return Err(Failure::Failed(format!(
                        "stream reset by the server with code {code}"
                    )));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Closes the connection and tells what it was.
    fn report(mut self, index: u64, outcome: Result<(), Failure>) -> ClientConnection {
        let outcome = outcome.map_err(|failure| failure.to_string());
        let content = self.checker.verdict();
        let result =
            outcome.and_then(|()| content.clone().map_err(|mismatch| mismatch.to_string()));

        // Error 0 tells the server that everything arrived. It is sent once; a server that misses it times out.
        let _ = self.connection.close(true, u64::from(result.is_err()), b"");
        let _ = self.send();

        let stats = self.connection.stats();
        let mut record = self.record;
        record.bytes_requested = self.checker.requested();
        record.bytes_received = self.checker.received();
        record.content_ok = content.is_ok();
        let common = &mut record.common;
        common.t_close = Some(now_ns());
        common.index = index;
        common.ok = result.is_ok();
        common.error = result.err();
        // The server's parameters, which TLS authenticates, say whether there was a Retry packet.
        common.retry = self
            .connection
            .peer_transport_params()
            .map(|parameters| parameters.retry_source_connection_id.is_some());
        if common.t_handshake_complete.is_some() {
            quicbed_boringssl::read_back(self.connection.as_mut(), common);
            common.aead = Some(self.options.common.aead);
            common.header_protection = Some(self.options.common.header_protection);
        }
        common.packets_sent = Some(stats.sent as u64);
        common.packets_received = Some(stats.recv as u64);
        common.packets_lost = Some(stats.lost as u64);
        if let (Some(start), Some(end)) = (self.cpu_at_hello, self.cpu_at_end) {
            let spent = end.since(start);
            common.cpu_user_ns = Some(spent.user_ns);
            common.cpu_system_ns = Some(spent.system_ns);
        }
        record
    }
}
