//! The server: all connections in one thread that waits in poll.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::process;
use std::time::{Duration, Instant};

use bytes::Bytes;
use quicbed_contract::clock::{now_ns, CpuTime};
use quicbed_contract::content::{self, PERIOD};
use quicbed_contract::events::{Events, Role, ServerConnection};
use quicbed_contract::exit;
use quicbed_contract::options::ServerOptions;
use quicbed_contract::request::{self, MAX_REQUEST};
use quicbed_contract::udp::{wait, Received, Socket, StopSignals, RECEIVE_BUFFER};
use quicbed_endpoint_quiche::transport::{
    new_connection_id, open_key_log, Connection, Outbox, Traffic, CONNECTION_ID_LENGTH,
    RECEIVED_BYTES_PER_TURN, RECEIVES_PER_TURN, SENT_BYTES_PER_TURN,
};
use quicbed_endpoint_quiche::{configure, description, noop, tls, unsupported, LIBRARY, VERSION};

/// Smaller datagrams cannot start a connection (RFC 9000, section 14.1).
const MIN_INITIAL: usize = 1_200;

/// Application error of this server for a request it does not understand.
const BAD_REQUEST: u64 = 1;

/// Application error of this server when it is stopped.
const STOPPED: u64 = 2;

fn main() {
    let options = ServerOptions::from_command_line(&description());
    let mut events = Events::open(&options.common.events);
    if let Some(reason) = unsupported(&options.common) {
        events.exit_unsupported(&reason);
    }
    if let Err(reason) = run(&options, &mut events) {
        events.exit_failed(&reason);
    }
    events.end();
    process::exit(exit::OK);
}

fn run(options: &ServerOptions, events: &mut Events) -> Result<(), String> {
    let stop = StopSignals::install().map_err(|error| format!("cannot take signals: {error}"))?;
    let key_log = open_key_log(options.common.key_log.as_deref())
        .map_err(|error| format!("--key-log: {error}"))?;
    let config = configure(tls::server(options)?, &options.common)
        .map_err(|error| format!("cannot set up quiche: {error}"))?;
    noop::apply(&options.common);

    let about_socket = |error: io::Error| format!("--listen {}: {error}", options.listen);
    let socket = Socket::bind(options.listen, &options.common).map_err(about_socket)?;
    let local = socket.local_address().map_err(about_socket)?;
    let in_force = socket.in_force(&options.common).map_err(about_socket)?;
    events.start(Role::Server, LIBRARY, VERSION, &in_force);

    let mut server = Server {
        options,
        outbox: Outbox::new(&socket, options.common.udp_payload),
        socket,
        local,
        config,
        key_log,
        connections: HashMap::new(),
        routes: HashMap::new(),
        accepted: 0,
        busy: Vec::new(),
    };
    events.ready(local);
    server.serve(&stop, events).map_err(about_socket)
}

struct Server<'a> {
    options: &'a ServerOptions,
    socket: Socket,
    local: SocketAddr,
    config: quiche::Config,
    key_log: Option<File>,
    outbox: Outbox,
    /// Connections by the order in which they were accepted.
    connections: HashMap<u64, Serving>,
    /// Which connection a connection ID belongs to: the client's first choice, and ours.
    routes: HashMap<Vec<u8>, u64>,
    accepted: u64,
    /// Connections that may have something to send.
    busy: Vec<u64>,
}

/// One connection.
struct Serving {
    connection: Connection,
    routes: [Vec<u8>; 2],
    streams: HashMap<u64, Stream>,
    sent: Traffic,
    received: Traffic,
    cpu_at_accept: CpuTime,
    error: Option<String>,
    answered: bool,
    reported: bool,
    record: ServerConnection,
}

/// What a stream of the client is about.
enum Stream {
    Request(Vec<u8>),
    Answer { length: u64, sent: u64 },
}

impl Server<'_> {
    fn serve(&mut self, stop: &StopSignals, events: &mut Events) -> io::Result<()> {
        let mut buffer = vec![0; RECEIVE_BUFFER];
        loop {
            // While the socket would block, nothing else can be sent either.
            let timeout = match self.busy.is_empty() || !self.outbox.is_empty() {
                true => self.next_timeout(),
                false => Some(Duration::ZERO),
            };
            let wakeup = wait(&self.socket, stop, !self.outbox.is_empty(), timeout)?;
            if wakeup.readable {
                self.receive(&mut buffer)?;
            }
            self.run_timers();
            self.send(events)?;
            // Only now, so that a connection whose end had already arrived is reported as ended.
            if wakeup.stop {
                return self.stop(events);
            }
        }
    }

    fn next_timeout(&self) -> Option<Duration> {
        let timeouts = self
            .connections
            .values()
            .filter_map(|serving| serving.connection.timeout());
        timeouts.min()
    }

    fn run_timers(&mut self) {
        let now = Instant::now();
        for (number, serving) in &mut self.connections {
            if serving
                .connection
                .timeout_instant()
                .is_some_and(|instant| instant <= now)
            {
                serving.connection.on_timeout();
                mark_busy(&mut self.busy, *number);
            }
        }
    }

    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        let mut bytes = 0;
        for _ in 0..RECEIVES_PER_TURN {
            let Some(received) = self.socket.receive(buffer)? else {
                break;
            };
            for datagram in buffer[..received.length].chunks_mut(received.segment) {
                self.take(datagram, received)?;
            }
            bytes += received.length;
            if bytes >= RECEIVED_BYTES_PER_TURN {
                break;
            }
        }
        Ok(())
    }

    /// Gives a datagram to the connection it belongs to, a new one if it starts one.
    fn take(&mut self, datagram: &mut [u8], received: Received) -> io::Result<()> {
        let Some(number) = self.route(datagram, received.from)? else {
            return Ok(());
        };
        let Some(serving) = self.connections.get_mut(&number) else {
            return Ok(());
        };
        serving.received.add(datagram.len());
        // An error either concerns a packet to be ignored or has closed the connection, which is seen later.
        let info = quiche::RecvInfo {
            from: received.from,
            to: self.local,
        };
        let _ = serving.connection.recv(datagram, info);
        if serving.record.common.t_handshake_complete.is_none()
            && serving.connection.is_established()
        {
            serving.note_handshake();
        }
        mark_busy(&mut self.busy, number);
        Ok(())
    }

    fn route(&mut self, datagram: &mut [u8], from: SocketAddr) -> io::Result<Option<u64>> {
        // A short header (RFC 9000, section 17.3) starts with one byte of flags and the ID that this server chose.
        if datagram.first().is_some_and(|first| first & 0x80 == 0) {
            let id = datagram.get(1..1 + CONNECTION_ID_LENGTH);
            return Ok(id.and_then(|id| self.routes.get(id)).copied());
        }
        let Ok(header) = quiche::Header::from_slice(datagram, CONNECTION_ID_LENGTH) else {
            return Ok(None);
        };
        if let Some(number) = self.routes.get(header.dcid.as_ref()) {
            return Ok(Some(*number));
        }
        if datagram.len() < MIN_INITIAL {
            return Ok(None);
        }
        if !quiche::version_is_supported(header.version) {
            // Not worth waiting for: a client that misses the answer asks again.
            if header.ty != quiche::Type::VersionNegotiation && self.outbox.is_empty() {
                let mut answer = [0; MIN_INITIAL];
                if let Ok(length) =
                    quiche::negotiate_version(&header.scid, &header.dcid, &mut answer)
                {
                    self.outbox.put(&answer[..length], from);
                    self.outbox.flush(&self.socket)?;
                }
            }
            return Ok(None);
        }
        match header.ty {
            quiche::Type::Initial => self.accept(&header, from).map(Some),
            _ => Ok(None),
        }
    }

    fn accept(&mut self, header: &quiche::Header, from: SocketAddr) -> io::Result<u64> {
        let t_accept = now_ns();
        let cpu_at_accept = CpuTime::now();
        let id = new_connection_id()?;
        let mut connection =
            quiche::accept_with_buf_factory(&id, None, self.local, from, &mut self.config)
                .map_err(io::Error::other)?;
        if let Some(file) = &self.key_log {
            connection.set_keylog(Box::new(file.try_clone()?));
        }
        let number = self.accepted;
        self.accepted += 1;
        let routes = [header.dcid.to_vec(), id.to_vec()];
        for route in &routes {
            self.routes.insert(route.clone(), number);
        }
        let record = ServerConnection {
            t_accept: Some(t_accept),
            ..ServerConnection::default()
        };
        let serving = Serving {
            connection,
            routes,
            streams: HashMap::new(),
            sent: Traffic::default(),
            received: Traffic::default(),
            cpu_at_accept,
            error: None,
            answered: false,
            reported: false,
            record,
        };
        self.connections.insert(number, serving);
        Ok(number)
    }

    /// Lets every busy connection answer and send, as far as the socket takes it.
    fn send(&mut self, events: &mut Events) -> io::Result<()> {
        if !self.outbox.flush(&self.socket)? {
            return Ok(());
        }
        for number in std::mem::take(&mut self.busy) {
            let Some(serving) = self.connections.get_mut(&number) else {
                continue;
            };
            // After a blocked socket the rest keeps its place in the queue.
            let more = !self.outbox.is_empty() || serving.turn(&mut self.outbox, &self.socket)?;
            if more {
                mark_busy(&mut self.busy, number);
            }
            serving.report_if_over(self.options, events);
            if serving.connection.is_closed() {
                self.forget(number);
            }
        }
        Ok(())
    }

    fn forget(&mut self, number: u64) {
        if let Some(serving) = self.connections.remove(&number) {
            for route in &serving.routes {
                self.routes.remove(route);
            }
        }
    }

    /// Ends all connections because the server ends.
    fn stop(&mut self, events: &mut Events) -> io::Result<()> {
        let mut numbers: Vec<_> = self.connections.keys().copied().collect();
        numbers.sort_unstable();
        for number in numbers {
            let Some(serving) = self.connections.get_mut(&number) else {
                continue;
            };
            if !serving.reported {
                serving
                    .error
                    .get_or_insert_with(|| "the server was stopped".into());
                let _ = serving.connection.close(true, STOPPED, b"server stopped");
                // One try: a socket that would block is not waited for.
                if self.outbox.flush(&self.socket)? {
                    serving.turn(&mut self.outbox, &self.socket)?;
                }
                serving.report(self.options, events);
            }
        }
        Ok(())
    }
}

fn mark_busy(busy: &mut Vec<u64>, number: u64) {
    // Datagrams come in runs, so looking at the last is nearly always enough; the rest is a short list.
    if busy.last() != Some(&number) && !busy.contains(&number) {
        busy.push(number);
    }
}

impl Serving {
    fn note_handshake(&mut self) {
        let record = &mut self.record.common;
        record.t_handshake_complete = Some(now_ns());
        record.handshake_packets_sent = Some(self.sent.datagrams);
        record.handshake_bytes_sent = Some(self.sent.bytes);
        record.handshake_packets_received = Some(self.received.datagrams);
        record.handshake_bytes_received = Some(self.received.bytes);
        tls::read_back(&mut self.connection, record);
    }

    /// Reads requests, writes content and sends packets, for as long as it is this connection's turn. Returns true if
    /// there may be more to send.
    fn turn(&mut self, outbox: &mut Outbox, socket: &Socket) -> io::Result<bool> {
        if self.connection.is_established() {
            self.read_requests();
            self.write_content();
        }
        let mut bytes = 0;
        while bytes < SENT_BYTES_PER_TURN {
            match outbox.fill(&mut self.connection, &mut self.sent) {
                Ok(0) => return Ok(false),
                Ok(filled) => bytes += filled,
                Err(error) => {
                    self.error.get_or_insert_with(|| format!("quiche: {error}"));
                    return Ok(false);
                }
            }
            if !outbox.flush(socket)? {
                return Ok(true);
            }
        }
        Ok(true)
    }

    fn read_requests(&mut self) {
        let mut bytes = [0; MAX_REQUEST + 1];
        for id in self.connection.readable() {
            let stream = self
                .streams
                .entry(id)
                .or_insert_with(|| Stream::Request(Vec::new()));
            let Stream::Request(text) = stream else {
                continue;
            };
            let mut over = false;
            while let Ok((length, finished)) = self.connection.stream_recv(id, &mut bytes) {
                text.extend_from_slice(&bytes[..length]);
                over = finished || text.len() > MAX_REQUEST;
                if over {
                    break;
                }
            }
            if over {
                match request::parse(text) {
                    Ok(length) => *stream = Stream::Answer { length, sent: 0 },
                    Err(error) => {
                        let error = error.to_string();
                        let _ = self.connection.close(true, BAD_REQUEST, error.as_bytes());
                        self.error.get_or_insert(error);
                        return;
                    }
                }
            }
        }
    }

    /// Gives quiche as much content as it has room for, and no more: what does not fit would make it tell the client, in
    /// a packet each time, that it is blocked.
    fn write_content(&mut self) {
        let connection = &mut self.connection;
        let record = &mut self.record;
        let (answered, error) = (&mut self.answered, &mut self.error);
        self.streams.retain(|id, stream| {
            let Stream::Answer { length, sent } = stream else {
                return true;
            };
            loop {
                let left = *length - *sent;
                let written = connection.stream_capacity(*id).and_then(|capacity| {
                    let most = left.min(PERIOD as u64) as usize;
                    let slice = content::slice_at(*sent, most.min(capacity));
                    if slice.is_empty() && left > 0 {
                        return Err(quiche::Error::Done);
                    }
                    let last = slice.len() as u64 == left;
                    let (written, _) =
                        connection.stream_send_zc(*id, Bytes::from_static(slice), last)?;
                    Ok(written as u64)
                });
                match written {
                    // quiche kept nothing; asking again at once would not end.
                    Ok(0) if left > 0 => return true,
                    Ok(written) => {
                        *sent += written;
                        record.bytes_sent += written;
                        if written == left {
                            *answered = true;
                            return false;
                        }
                    }
                    Err(quiche::Error::Done) => return true,
                    Err(problem) => {
                        error.get_or_insert_with(|| format!("stream {id}: {problem}"));
                        return false;
                    }
                }
            }
        });
    }

    fn report_if_over(&mut self, options: &ServerOptions, events: &mut Events) {
        let over = self.connection.is_draining() || self.connection.is_closed();
        if over && !self.reported {
            self.report(options, events);
        }
    }

    fn report(&mut self, options: &ServerOptions, events: &mut Events) {
        self.reported = true;
        let closed = tls::close_reason(&mut self.connection);
        let error = self.error.take().or(closed).or_else(|| self.unfinished());
        let stats = self.connection.stats();
        let cpu = CpuTime::now().since(self.cpu_at_accept);
        let common = &mut self.record.common;
        common.index = events.connections();
        common.ok = error.is_none();
        common.error = error;
        common.t_close = Some(now_ns());
        if common.t_handshake_complete.is_some() {
            common.aead = Some(options.common.aead);
            common.header_protection = Some(options.common.header_protection);
        }
        common.packets_sent = Some(stats.sent as u64);
        common.packets_received = Some(stats.recv as u64);
        common.packets_lost = Some(stats.lost as u64);
        common.cpu_user_ns = Some(cpu.user_ns);
        common.cpu_system_ns = Some(cpu.system_ns);
        events.server_connection(&self.record);
    }

    /// What is missing from a connection that was closed without an error.
    fn unfinished(&self) -> Option<String> {
        if self.record.common.t_handshake_complete.is_none() {
            return Some("closed before the handshake was complete".into());
        }
        match self.streams.is_empty() && self.answered {
            true => None,
            false => Some("closed before everything asked for was sent".into()),
        }
    }
}
