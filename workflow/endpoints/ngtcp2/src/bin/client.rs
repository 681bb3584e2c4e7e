//! The client: fresh connections one after the other, one download each, all in one thread that waits in poll.

use std::io;
use std::process;
use std::time::{Duration, Instant};

use boring::ssl::SslContext;
use quicbed_contract::clock::{now_ns, CpuTime};
use quicbed_contract::content::Checker;
use quicbed_contract::events::{ClientConnection, Events, Role};
use quicbed_contract::exit;
use quicbed_contract::options::ClientOptions;
use quicbed_contract::udp::{wait, Socket, StopSignals, RECEIVE_BUFFER};
use quicbed_endpoint_ngtcp2::connection::{configure, Application, Connection, Failed, Outgoing};
use quicbed_endpoint_ngtcp2::outbox::{
    Outbox, Traffic, RECEIVED_BYTES_PER_TURN, RECEIVES_PER_TURN, SENT_BYTES_PER_TURN,
};
use quicbed_endpoint_ngtcp2::{description, unsupported, LIBRARY, VERSION};

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
    let context = configure(quicbed_boringssl::client(options)?, &options.common, false)?;
    // ngtcp2 refers to it until it is acknowledged; it is the same on every connection.
    let request: &'static str = Box::leak(options.request().into_boxed_str());
    let mut buffer = vec![0; RECEIVE_BUFFER];
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
        let mut download = Download::new(options, &socket, &context, request)?;
        let outcome = download.run(&stop, &mut buffer);
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
    fn from(_: Failed) -> Self {
        Failure::Connection
    }
}

/// The one stream of a download: the request, then the content.
struct Transfer {
    request: &'static str,
    asked: usize,
    asked_for_all: bool,
    stream: Option<i64>,
    checker: Checker,
    finished: bool,
    reset: Option<u64>,
    t_first_byte: Option<u64>,
    t_last_byte: Option<u64>,
    cpu_at_end: Option<CpuTime>,
}

impl Application for Transfer {
    fn received(&mut self, _: i64, bytes: &[u8], last: bool) {
        if !bytes.is_empty() {
            let now = now_ns();
            self.t_first_byte.get_or_insert(now);
            self.t_last_byte = Some(now);
        }
        if last {
            self.cpu_at_end = Some(CpuTime::now());
            self.finished = true;
        }
        self.checker.receive(bytes);
    }

    fn reset(&mut self, _: i64, code: u64) {
        self.reset = Some(code);
    }

    fn next(&self, blocked: &[i64]) -> Option<Outgoing> {
        let stream = self.stream?;
        (!self.asked_for_all && !blocked.contains(&stream)).then(|| Outgoing {
            stream,
            bytes: &self.request.as_bytes()[self.asked..],
            last: true,
        })
    }

    fn taken(&mut self, _: i64, length: usize) {
        self.asked += length;
        self.asked_for_all = self.asked == self.request.len();
    }
}

/// One connection and its download.
struct Download<'a> {
    options: &'a ClientOptions,
    socket: &'a Socket,
    connection: Connection<Transfer>,
    outbox: Outbox,
    sent: Traffic,
    received: Traffic,
    cpu_at_hello: Option<CpuTime>,
    record: ClientConnection,
}

impl<'a> Download<'a> {
    fn new(
        options: &'a ClientOptions,
        socket: &'a Socket,
        context: &SslContext,
        request: &'static str,
    ) -> Result<Self, String> {
        let transfer = Transfer {
            request,
            asked: 0,
            asked_for_all: false,
            stream: None,
            checker: options.checker(),
            finished: false,
            reset: None,
            t_first_byte: None,
            t_last_byte: None,
            cpu_at_end: None,
        };
        let connection = Connection::connect(
            context,
            &options.common,
            &options.server_name,
            socket.local_address().map_err(about_socket)?,
            options.connect,
            transfer,
        )?;
        Ok(Download {
            options,
            socket,
            connection,
            outbox: Outbox::new(socket.gso(), options.common.udp_payload),
            sent: Traffic::default(),
            received: Traffic::default(),
            cpu_at_hello: None,
            record: ClientConnection::default(),
        })
    }

    /// Runs the connection from its first packet to the end of the content.
    fn run(&mut self, stop: &StopSignals, buffer: &mut [u8]) -> Result<(), Failure> {
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
                self.receive(buffer)?;
            }
            self.connection.on_timeout();
            let transfer = self.connection.application();
            if let Some(code) = transfer.reset {
                let reason = format!("stream reset by the server with code {code}");
                return Err(Failure::Failed(reason));
            }
            if transfer.finished {
                return Ok(());
            }
        }
    }

    /// Sends what ngtcp2 has to send. Returns true if there may be more.
    fn send(&mut self) -> Result<bool, Failure> {
        if self.connection.is_established() && self.connection.application().stream.is_none() {
            let stream = self.connection.open_stream();
            self.connection.application_mut().stream = stream;
        }
        let most = self.connection.burst().min(SENT_BYTES_PER_TURN);
        let mut bytes = 0;
        let mut more = true;
        while more && bytes < most {
            if self.outbox.is_empty() {
                let filled =
                    self.outbox
                        .fill(&mut self.connection, most - bytes, &mut self.sent)?;
                more = filled > 0;
                bytes += filled;
            }
            if self.cpu_at_hello.is_none() {
                self.cpu_at_hello = Some(CpuTime::now());
                self.record.t_client_hello = Some(now_ns());
            }
            if !self.outbox.flush(self.socket)? {
                more = false;
            } else if self.record.t_request_sent.is_none()
                && self.connection.application().asked_for_all
            {
                self.record.t_request_sent = Some(now_ns());
            }
        }
        self.connection.end_burst();
        Ok(more)
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Result<(), Failure> {
        let mut bytes = 0;
        for _ in 0..RECEIVES_PER_TURN {
            let Some(received) = self.socket.receive(buffer)? else {
                break;
            };
            for datagram in buffer[..received.length].chunks(received.segment) {
                self.received.add(datagram.len());
                self.connection.read(datagram);
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
        let content = self.connection.application().checker.verdict();
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
        let code = u64::from(result.is_err());
        let (connection, sent) = (&mut self.connection, &mut self.sent);
        let length = self.outbox.put(self.options.connect, |space| {
            connection.close(space, code, "")
        });
        if length > 0 {
            sent.add(length);
            let _ = self.outbox.flush(self.socket);
        }

        let packets = self.connection.packets();
        let transfer = self.connection.application();
        let mut record = self.record;
        record.t_first_byte = transfer.t_first_byte;
        record.t_last_byte = transfer.t_last_byte;
        record.bytes_requested = transfer.checker.requested();
        record.bytes_received = transfer.checker.received();
        record.content_ok = content.is_ok();
        let common = &mut record.common;
        common.t_close = Some(now_ns());
        common.index = index;
        common.ok = result.is_ok();
        common.error = result.err();
        common.t_handshake_confirmed = self.connection.confirmed();
        common.retry = Some(self.connection.after_retry());
        if common.t_handshake_complete.is_some() {
            quicbed_boringssl::read_back(self.connection.ssl(), common);
            common.aead = Some(self.options.common.aead);
            common.header_protection = Some(self.options.common.header_protection);
        }
        common.packets_sent = Some(packets.sent);
        common.packets_received = Some(packets.received);
        common.packets_lost = Some(packets.lost);
        if let (Some(start), Some(end)) = (self.cpu_at_hello, transfer.cpu_at_end) {
            let spent = end.since(start);
            common.cpu_user_ns = Some(spent.user_ns);
            common.cpu_system_ns = Some(spent.system_ns);
        }
        record
    }
}
