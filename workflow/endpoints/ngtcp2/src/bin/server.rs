//! The server: all connections in one thread that waits in poll.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::process;
use std::time::{Duration, Instant};

use boring::ssl::SslContext;
use quicbed_contract::clock::{now_ns, CpuTime};
use quicbed_contract::content::{Body, PERIOD};
use quicbed_contract::events::{Events, Role, ServerConnection};
use quicbed_contract::exit;
use quicbed_contract::options::ServerOptions;
use quicbed_contract::request::{self, MAX_REQUEST};
use quicbed_contract::udp::{wait, Received, Socket, StopSignals, RECEIVE_BUFFER};
use quicbed_endpoint_ngtcp2::connection::{
    arrival, configure, header, new_connection_id, write_version_negotiation, Application, Arrival,
    Connection, ConnectionId, Header, Outgoing, RetryTokens,
};
use quicbed_endpoint_ngtcp2::outbox::{
    Outbox, Traffic, RECEIVED_BYTES_PER_TURN, RECEIVES_PER_TURN, SENT_BYTES_PER_TURN,
};
use quicbed_endpoint_ngtcp2::{description, unsupported, CONNECTION_ID_LENGTH, LIBRARY, VERSION};

/// Smaller datagrams cannot start a connection (RFC 9000, section 14.1).
const MIN_INITIAL: usize = 1_200;

/// Application error of this server for a request it does not understand.
const BAD_REQUEST: u64 = 1;

/// Application error of this server when it is stopped.
const STOPPED: u64 = 2;

/// Clients that got a Retry packet and are remembered until they come back. More are possible, only without the time and
/// size of their first datagram in the report.
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
    let context = configure(quicbed_boringssl::server(options)?, &options.common, true)?;
    let tokens = match options.retry {
        true => Some(RetryTokens::new()?),
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
        context,
        outbox: Outbox::new(socket.gso(), options.common.udp_payload),
        socket,
        local,
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
    context: SslContext,
    socket: Socket,
    local: SocketAddr,
    /// With `--retry on`.
    tokens: Option<RetryTokens>,
    retried: VecDeque<Retried>,
    outbox: Outbox,
    /// Connections by the order in which they were accepted.
    connections: HashMap<u64, Serving>,
    /// Which connection a connection ID belongs to: the client's first choice, and ours. Those of a connection that has
    /// ended stay for a while, so that late packets are not taken for a new one.
    routes: HashMap<ConnectionId, u64>,
    /// Routes of connections that have ended, and when to forget them, in the order of ending.
    ended: VecDeque<(Instant, Vec<ConnectionId>)>,
    accepted: u64,
    /// Connections that may have something to send.
    busy: Vec<u64>,
}

/// A first datagram that was answered with a Retry packet.
struct Retried {
    /// What the client will address its next datagram to.
    id: ConnectionId,
    t_accept: u64,
    cpu_at_accept: CpuTime,
    sent: Traffic,
    received: Traffic,
}

/// One connection.
struct Serving {
    connection: Connection<Answers>,
    routes: Vec<ConnectionId>,
    sent: Traffic,
    received: Traffic,
    cpu_at_accept: CpuTime,
    record: ServerConnection,
}

/// The streams of a connection.
#[derive(Default)]
struct Answers {
    streams: Vec<Stream>,
    answered: bool,
    bytes_sent: u64,
    bad_request: Option<String>,
}

struct Stream {
    id: i64,
    state: StreamState,
}

enum StreamState {
    Request(Vec<u8>),
    Answer { body: Body, sent: u64 },
}

impl Application for Answers {
    fn received(&mut self, id: i64, bytes: &[u8], last: bool) {
        let at = match self.streams.iter().position(|stream| stream.id == id) {
            Some(at) => at,
            None => {
                let state = StreamState::Request(Vec::new());
                self.streams.push(Stream { id, state });
                self.streams.len() - 1
            }
        };
        let StreamState::Request(text) = &mut self.streams[at].state else {
            return;
        };
        text.extend_from_slice(&bytes[..bytes.len().min(MAX_REQUEST + 1)]);
        if last || text.len() > MAX_REQUEST {
            match request::parse(text) {
                Ok(body) => self.streams[at].state = StreamState::Answer { body, sent: 0 },
                Err(error) => {
                    self.bad_request.get_or_insert(error.to_string());
                }
            }
        }
    }

    fn reset(&mut self, id: i64, _: u64) {
        self.streams.retain(|stream| stream.id != id);
    }

    fn next(&self, blocked: &[i64]) -> Option<Outgoing> {
        let mut free = self.streams.iter().filter(|s| !blocked.contains(&s.id));
        free.find_map(|stream| match stream.state {
            StreamState::Request(_) => None,
            StreamState::Answer { body, sent } => {
                let left = body.length() - sent;
                let bytes = body.slice_at(sent, left.min(PERIOD as u64) as usize);
                let last = bytes.len() as u64 == left;
                Some(Outgoing {
                    stream: stream.id,
                    bytes,
                    last,
                })
            }
        })
    }

    fn taken(&mut self, id: i64, taken: usize) {
        let Some(at) = self.streams.iter().position(|stream| stream.id == id) else {
            return;
        };
        if let StreamState::Answer { body, sent } = &mut self.streams[at].state {
            *sent += taken as u64;
            self.bytes_sent += taken as u64;
            if *sent == body.length() {
                self.answered = true;
                self.streams.remove(at);
            }
        }
    }
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
        let now = now_ns();
        for (number, serving) in &mut self.connections {
            if serving.connection.expiry().is_some_and(|at| at <= now) {
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
            for datagram in buffer[..received.length].chunks(received.segment) {
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
    fn take(&mut self, datagram: &[u8], received: Received) -> io::Result<()> {
        let Some(number) = self.route(datagram, received.from)? else {
            return Ok(());
        };
        let Some(serving) = self.connections.get_mut(&number) else {
            return Ok(());
        };
        serving.received.add(datagram.len());
        serving.connection.read(datagram);
        if serving.record.common.t_handshake_complete.is_none()
            && serving.connection.is_established()
        {
            serving.note_handshake();
        }
        mark_busy(&mut self.busy, number);
        Ok(())
    }

    fn route(&mut self, datagram: &[u8], from: SocketAddr) -> io::Result<Option<u64>> {
        // A short header (RFC 9000, section 17.3) starts with one byte of flags and the ID that this server chose.
        if datagram.first().is_some_and(|first| first & 0x80 == 0) {
            let id = datagram.get(1..1 + CONNECTION_ID_LENGTH);
            return Ok(id.and_then(|id| self.routes.get(id)).copied());
        }
        match header(datagram) {
            None => return Ok(None),
            Some(Header::Version(destination, source)) => {
                // Not worth waiting for: a client that misses the answer asks again.
                if datagram.len() >= MIN_INITIAL && self.outbox.is_empty() {
                    self.outbox.put(from, |space| {
                        write_version_negotiation(space, &destination, &source)
                    });
                    self.outbox.flush(&self.socket)?;
                }
                return Ok(None);
            }
            Some(Header::Destination(id)) => {
                if let Some(number) = self.routes.get(&id) {
                    return Ok(Some(*number));
                }
            }
        }
        let Some(arrival) = arrival(datagram) else {
            return Ok(None);
        };
        self.accept(&arrival, datagram.len(), from)
    }

    fn accept(
        &mut self,
        arrival: &Arrival,
        length: usize,
        from: SocketAddr,
    ) -> io::Result<Option<u64>> {
        let mut first = Retried {
            id: Vec::new(),
            t_accept: now_ns(),
            cpu_at_accept: CpuTime::now(),
            sent: Traffic::default(),
            received: Traffic::default(),
        };
        let mut answered = None;
        if let Some(tokens) = &self.tokens {
            answered = tokens.verify(arrival, from);
            if answered.is_none() {
                first.received.add(length);
                return self.send_retry(arrival, first, from).map(|()| None);
            }
            let known = self
                .retried
                .iter()
                .position(|retried| retried.id == arrival.destination);
            if let Some(known) = known.and_then(|at| self.retried.remove(at)) {
                first = known;
            }
        }
        let id = new_connection_id().map_err(io::Error::other)?;
        let connection = Connection::accept(
            &self.context,
            &self.options.common,
            arrival,
            answered.as_ref(),
            &id,
            self.local,
            from,
            Answers::default(),
        )
        .map_err(io::Error::other)?;
        let number = self.accepted;
        self.accepted += 1;
        let routes = vec![arrival.destination.clone(), id];
        for route in &routes {
            self.routes.insert(route.clone(), number);
        }
        let mut record = ServerConnection {
            t_accept: Some(first.t_accept),
            ..ServerConnection::default()
        };
        record.common.retry = Some(answered.is_some());
        let serving = Serving {
            connection,
            routes,
            sent: first.sent,
            received: first.received,
            cpu_at_accept: first.cpu_at_accept,
            record,
        };
        self.connections.insert(number, serving);
        Ok(Some(number))
    }

    fn send_retry(
        &mut self,
        arrival: &Arrival,
        mut first: Retried,
        from: SocketAddr,
    ) -> io::Result<()> {
        let Some(tokens) = &self.tokens else {
            return Ok(());
        };
        // A socket that would block is not waited for: a client that misses the answer asks again.
        if !self.outbox.flush(&self.socket)? {
            return Ok(());
        }
        let mut failed = None;
        let length = self
            .outbox
            .put(from, |space| match tokens.write(space, arrival, from) {
                Ok((length, id)) => {
                    first.id = id;
                    length
                }
                Err(error) => {
                    failed = Some(error);
                    0
                }
            });
        if let Some(error) = failed {
            return Err(io::Error::other(error));
        }
        self.outbox.flush(&self.socket)?;
        first.sent.add(length);
        if self.retried.len() == MAX_RETRIED {
            self.retried.pop_front();
        }
        self.retried.push_back(first);
        Ok(())
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
            let (new, retired) = serving.connection.take_ids();
            for id in retired {
                self.routes.remove(&id);
                serving.routes.retain(|route| *route != id);
            }
            for id in new {
                self.routes.insert(id.clone(), number);
                serving.routes.push(id);
            }
            if serving.connection.has_ended() && self.outbox.is_empty() {
                serving.report(self.options, events);
                self.end(number);
            } else if more {
                mark_busy(&mut self.busy, number);
            }
        }
        Ok(())
    }

    /// Frees a connection that has ended.
    fn end(&mut self, number: u64) {
        if let Some(serving) = self.connections.remove(&number) {
            let until = Instant::now() + serving.connection.draining_time();
            self.ended.push_back((until, serving.routes));
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
                .record
                .common
                .error
                .get_or_insert_with(|| "the server was stopped".into());
            // One try: a socket that would block is not waited for.
            if self.outbox.flush(&self.socket)? {
                serving.close(&mut self.outbox, STOPPED, "server stopped");
                self.outbox.flush(&self.socket)?;
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
        quicbed_boringssl::read_back(self.connection.ssl(), record);
    }

    /// Writes content and sends packets, for as long as it is this connection's turn. Returns true if there may be more
    /// to send.
    fn turn(&mut self, outbox: &mut Outbox, socket: &Socket) -> io::Result<bool> {
        if let Some(error) = self.connection.application_mut().bad_request.take() {
            self.close(outbox, BAD_REQUEST, &error);
            self.record.common.error.get_or_insert(error);
            outbox.flush(socket)?;
            return Ok(false);
        }
        let most = self.connection.burst().min(SENT_BYTES_PER_TURN);
        let mut bytes = 0;
        let mut more = true;
        while more && bytes < most && !self.connection.has_ended() {
            match outbox.fill(&mut self.connection, most - bytes, &mut self.sent) {
                Ok(filled) => {
                    more = filled > 0;
                    bytes += filled;
                }
                // What there is before the error goes out, then the error does.
                Err(_) => more = false,
            }
            if !outbox.flush(socket)? {
                break;
            }
        }
        self.connection.end_burst();
        if self.connection.has_ended() && outbox.is_empty() {
            self.close(outbox, 0, "");
            outbox.flush(socket)?;
            return Ok(false);
        }
        Ok(more)
    }

    /// Tells the client that the connection ends, if it is to be told.
    fn close(&mut self, outbox: &mut Outbox, code: u64, reason: &str) {
        let peer = self.connection.peer();
        let length = outbox.put(peer, |space| self.connection.close(space, code, reason));
        if length > 0 {
            self.sent.add(length);
        }
    }

    fn report(&mut self, options: &ServerOptions, events: &mut Events) {
        let answers = self.connection.application();
        self.record.bytes_sent = answers.bytes_sent;
        let error = self.record.common.error.take();
        let error = error
            .or_else(|| self.connection.reason())
            .or_else(|| self.unfinished());
        let packets = self.connection.packets();
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
        common.packets_sent = Some(packets.sent);
        common.packets_received = Some(packets.received);
        common.packets_lost = Some(packets.lost);
        common.cpu_user_ns = Some(cpu.user_ns);
        common.cpu_system_ns = Some(cpu.system_ns);
        events.server_connection(&self.record);
    }

    /// What is missing from a connection that was closed without an error.
    fn unfinished(&self) -> Option<String> {
        if self.record.common.t_handshake_complete.is_none() {
            return Some("closed before the handshake was complete".into());
        }
        let answers = self.connection.application();
        match answers.streams.is_empty() && answers.answered {
            true => None,
            false => Some("closed before everything asked for was sent".into()),
        }
    }
}
