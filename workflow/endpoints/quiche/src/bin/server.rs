//! The server: all connections in one thread that waits in poll.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::process;
use std::time::{Duration, Instant};

use bytes::Bytes;
use quicbed_contract::clock::{now_ns, CpuTime};
use quicbed_contract::content::{Body, PERIOD};
use quicbed_contract::events::{Events, Role, ServerConnection};
use quicbed_contract::exit;
use quicbed_contract::options::ServerOptions;
use quicbed_contract::request::{self, MAX_REQUEST};
use quicbed_contract::udp::{wait, Received, Socket, StopSignals, RECEIVE_BUFFER};
use quicbed_endpoint_quiche::token::Tokens;
use quicbed_endpoint_quiche::transport::{
    new_connection_id, Connection, Outbox, Traffic, CONNECTION_ID_LENGTH, RECEIVED_BYTES_PER_TURN,
    RECEIVES_PER_TURN, SENT_BYTES_PER_TURN,
};
use quicbed_endpoint_quiche::{
    closing, configure, description, noop, unsupported, LIBRARY, VERSION,
};

/// Smaller datagrams cannot start a connection (RFC 9000, section 14.1).
const MIN_INITIAL: usize = 1_200;

/// Application error of this server for a request it does not understand.
const BAD_REQUEST: u64 = 1;

/// Application error of this server when it is stopped.
const STOPPED: u64 = 2;

/// Clients that got a Retry packet and are remembered until they come back. More are possible, only without the time and
/// size of their first datagrams in the report.
const MAX_RETRIED: usize = 256;

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
    let config = configure(quicbed_boringssl::server(options)?, &options.common)
        .map_err(|error| format!("cannot set up quiche: {error}"))?;
    noop::apply(&options.common);
    let tokens = match options.retry {
        true => Some(Tokens::new()?),
        false => None,
    };

    let about_socket = |error: io::Error| format!("--listen {}: {error}", options.listen);
    let socket = Socket::bind(options.listen, &options.common).map_err(about_socket)?;
    let local = socket.local_address().map_err(about_socket)?;
    let mut in_force = socket.in_force(&options.common).map_err(about_socket)?;
    in_force.retry = Some(options.retry);
    events.start(
        Role::Server,
        LIBRARY,
        VERSION,
        &quicbed_boringssl::InForce::new(in_force),
    );

    let mut server = Server {
        options,
        outbox: Outbox::new(&socket, options.common.udp_payload),
        socket,
        local,
        config,
        tokens,
        retried: VecDeque::new(),
        connections: HashMap::new(),
        routes: HashMap::new(),
        ended: VecDeque::new(),
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
    /// With `--retry on`.
    tokens: Option<Tokens>,
    retried: VecDeque<Retried>,
    outbox: Outbox,
    /// Connections by the order in which they were accepted.
    connections: HashMap<u64, Serving>,
    /// Which connection a connection ID belongs to: the client's first choice, and ours. Those of a connection that has
    /// ended stay for a while, so that late packets are not taken for a new one.
    routes: HashMap<Vec<u8>, u64>,
    /// Routes of connections that have ended, and when to forget them, in the order of ending.
    ended: VecDeque<(Instant, [Vec<u8>; 2])>,
    accepted: u64,
    /// Connections that may have something to send.
    busy: Vec<u64>,
}

/// First datagrams that were answered with a Retry packet.
struct Retried {
    /// What they were addressed to.
    original: Vec<u8>,
    /// What the client will address its next datagrams to.
    id: quiche::ConnectionId<'static>,
    t_accept: u64,
    cpu_at_accept: CpuTime,
    sent: Traffic,
    received: Traffic,
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
    /// What ended the connection on this side, in the library's words.
    failure: Option<String>,
    answered: bool,
    record: ServerConnection,
}

/// What a stream of the client is about.
enum Stream {
    Request(Vec<u8>),
    Answer { body: Body, sent: u64 },
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
            self.forget_ended();
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
        let info = quiche::RecvInfo {
            from: received.from,
            to: self.local,
        };
        // If that closes the connection, it is seen later.
        closing::receive(
            &mut serving.connection,
            datagram,
            info,
            &mut serving.failure,
        );
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
            quiche::Type::Initial => self.accept(&header, datagram.len(), from),
            _ => Ok(None),
        }
    }

    /// Starts a connection with a client's Initial packet, or answers it with a Retry packet.
    fn accept(
        &mut self,
        header: &quiche::Header,
        length: usize,
        from: SocketAddr,
    ) -> io::Result<Option<u64>> {
        let id = new_connection_id()?;
        let mut first = Retried {
            original: header.dcid.to_vec(),
            id: id.clone(),
            t_accept: now_ns(),
            cpu_at_accept: CpuTime::now(),
            sent: Traffic::default(),
            received: Traffic::default(),
        };
        let connection = match &self.tokens {
            None => quiche::accept_with_buf_factory(&id, None, self.local, from, &mut self.config),
            Some(tokens) => {
                let token = header.token.as_deref().unwrap_or_default();
                let Some(original) = tokens.verify(token, &header.dcid, from) else {
                    return self.send_retry(header, length, first, from).map(|()| None);
                };
                let known = self.retried.iter().position(|r| r.id == header.dcid);
                if let Some(known) = known.and_then(|at| self.retried.remove(at)) {
                    first = known;
                }
                let ids = quiche::RetryConnectionIds {
                    original_destination_cid: &quiche::ConnectionId::from_ref(original),
                    retry_source_cid: &header.dcid,
                };
                quiche::accept_with_retry(&id, ids, self.local, from, &mut self.config)
            }
        };
        let connection = connection.map_err(io::Error::other)?;
        let number = self.accepted;
        self.accepted += 1;
        let routes = [header.dcid.to_vec(), id.to_vec()];
        for route in &routes {
            self.routes.insert(route.clone(), number);
        }
        let mut record = ServerConnection {
            t_accept: Some(first.t_accept),
            ..ServerConnection::default()
        };
        record.common.retry = Some(self.tokens.is_some());
        let serving = Serving {
            connection,
            routes,
            streams: HashMap::new(),
            sent: first.sent,
            received: first.received,
            cpu_at_accept: first.cpu_at_accept,
            error: None,
            failure: None,
            answered: false,
            record,
        };
        self.connections.insert(number, serving);
        Ok(Some(number))
    }

    /// Answers a first datagram of `length` bytes. One ClientHello may need several, which all get the same answer.
    fn send_retry(
        &mut self,
        header: &quiche::Header,
        length: usize,
        first: Retried,
        from: SocketAddr,
    ) -> io::Result<()> {
        let Some(tokens) = &self.tokens else {
            return Ok(());
        };
        // A socket that would block is not waited for: a client that misses the answer asks again.
        if !self.outbox.flush(&self.socket)? {
            return Ok(());
        }
        let known = self.retried.iter_mut().find(|r| r.original == *header.dcid);
        let retried = match known {
            Some(known) => known,
            None => {
                if self.retried.len() == MAX_RETRIED {
                    self.retried.pop_front();
                }
                self.retried.push_back(first);
                let last = self.retried.len() - 1;
                &mut self.retried[last]
            }
        };
        retried.received.add(length);
        let token = tokens.make(&header.dcid, &retried.id, from);
        let token = token.map_err(io::Error::other)?;
        let mut answer = [0; MIN_INITIAL];
        let length = quiche::retry(
            &header.scid,
            &header.dcid,
            &retried.id,
            &token,
            header.version,
            &mut answer,
        )
        .map_err(io::Error::other)?;
        retried.sent.add(length);
        self.outbox.put(&answer[..length], from);
        self.outbox.flush(&self.socket).map(drop)
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
            let connection = &serving.connection;
            if (connection.is_draining() || connection.is_closed()) && self.outbox.is_empty() {
                serving.report(self.options, events);
                self.end(number);
            } else if more {
                mark_busy(&mut self.busy, number);
            }
        }
        Ok(())
    }

    /// Frees a connection that has ended: quiche sends nothing more.
    fn end(&mut self, number: u64) {
        if let Some(serving) = self.connections.remove(&number) {
            let draining = serving.connection.timeout().unwrap_or_default();
            self.ended
                .push_back((Instant::now() + draining, serving.routes));
        }
    }

    fn forget_ended(&mut self) {
        if self.ended.is_empty() {
            return;
        }
        let now = Instant::now();
        while self.ended.front().is_some_and(|(until, _)| *until <= now) {
            for route in self
                .ended
                .pop_front()
                .into_iter()
                .flat_map(|(_, routes)| routes)
            {
                self.routes.remove(&route);
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
        let now = now_ns();
        record.t_handshake_complete = Some(now);
        // For a server they are the same (RFC 9001, section 4.1.2).
        record.t_handshake_confirmed = Some(now);
        record.handshake_packets_sent = Some(self.sent.datagrams);
        record.handshake_bytes_sent = Some(self.sent.bytes);
        record.handshake_packets_received = Some(self.received.datagrams);
        record.handshake_bytes_received = Some(self.received.bytes);
        quicbed_boringssl::read_back(self.connection.as_mut(), record);
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
                    Ok(body) => *stream = Stream::Answer { body, sent: 0 },
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
            let Stream::Answer { body, sent } = stream else {
                return true;
            };
            loop {
                let left = body.length() - *sent;
                let written = connection.stream_capacity(*id).and_then(|capacity| {
                    let most = left.min(PERIOD as u64) as usize;
                    let slice = body.slice_at(*sent, most.min(capacity));
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

    fn report(&mut self, options: &ServerOptions, events: &mut Events) {
        let closed = closing::reason(&mut self.connection, self.failure.as_deref());
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
