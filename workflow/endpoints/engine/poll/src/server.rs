//! The server: all connections in one thread.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use quicbed_contract::clock::{now_ns, CpuTime};
use quicbed_contract::events::{Events, Role, ServerConnection};
use quicbed_contract::exit;
use quicbed_contract::options::{Pacing, ServerOptions};
use quicbed_contract::udp::{wait, wake_promptly, Received, Socket, StopSignals, RECEIVE_BUFFER};

use crate::answers::Answers;
use crate::outbox::Outbox;
use crate::{
    pacing, Connection, Failed, Library, Traffic, RECEIVED_BYTES_PER_TURN, RECEIVES_PER_TURN,
    SENT_BYTES_PER_TURN,
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

/// A connection ID.
pub type ConnectionId = Vec<u8>;

/// What a datagram to an unknown connection is.
pub enum Arrival<Initial> {
    /// Nothing that a server answers.
    Nothing,
    /// A packet of a version that the library does not speak.
    OtherVersion,
    /// The first packet of a client.
    Initial(Initial),
}

/// Makes the connections of a server, and answers what starts none.
pub trait Listener: Sized {
    type Library: Library;
    type Connection: Serve;

    /// The long header of a packet (RFC 9000, section 17.2).
    type Header;

    /// A client's Initial packet.
    type Initial;

    /// What a genuine token in an Initial packet tells.
    type Token;

    /// Length of the connection IDs that this server chooses, in bytes.
    const ID_LENGTH: usize;

    fn new(options: &ServerOptions) -> Result<Self, String>;

    /// Reads the header that a datagram begins with.
    fn header(&self, datagram: &mut [u8]) -> Option<Self::Header>;

    fn destination(header: &Self::Header) -> &[u8];

    /// What a datagram of at least 1200 bytes with this header is, when nobody knows its destination.
    fn arrival(&self, header: Self::Header, datagram: &[u8]) -> Arrival<Self::Initial>;

    /// Writes a Version Negotiation packet for a datagram into `space`. Returns its length, 0 for none.
    fn negotiate_version(&self, datagram: &mut [u8], space: &mut [u8]) -> usize;

    /// Destination of an Initial packet.
    fn addressed(initial: &Self::Initial) -> &[u8];

    /// A connection ID that nobody can guess or repeat.
    fn new_id(&self) -> io::Result<ConnectionId>;

    /// Writes a Retry packet that gives the client the destination `id`. Returns its length.
    fn retry(
        &self,
        initial: &Self::Initial,
        id: &[u8],
        from: SocketAddr,
        space: &mut [u8],
    ) -> io::Result<usize>;

    /// Recognises the token of an Initial packet that answers a Retry packet.
    fn verify(&self, initial: &Self::Initial, from: SocketAddr) -> Option<Self::Token>;

    /// A connection of this server's `id` for an Initial packet, which is then read.
    fn accept(
        &mut self,
        options: &ServerOptions,
        initial: &Self::Initial,
        token: Option<Self::Token>,
        id: &[u8],
        local: SocketAddr,
        from: SocketAddr,
    ) -> io::Result<Self::Connection>;
}

/// A server's connection.
pub trait Serve: Connection {
    /// Reads requests into [`Serve::answers`] and gives the library content of them, unless both come by themselves when
    /// packets are read and written.
    fn exchange(&mut self);

    fn answers(&mut self) -> &mut Answers;

    /// Connection IDs made for the client to use, and those it does not use any more, since the last call.
    fn take_ids(&mut self) -> (Vec<ConnectionId>, Vec<ConnectionId>) {
        Default::default()
    }

    /// Time for which packets of a connection that has ended can still arrive (RFC 9000, section 10.2).
    fn draining_time(&self) -> Duration;
}

/// Runs the program and returns its exit code.
pub fn run<L: Listener>() -> i32 {
    let options = ServerOptions::from_command_line(&L::Library::description());
    let mut events = Events::open(&options.common.events);
    if let Some(reason) = L::Library::unsupported(&options.common) {
        events.exit_unsupported(&reason);
    }
    if let Err(reason) = serve::<L>(&options, &mut events) {
        events.exit_failed(&reason);
    }
    events.end();
    exit::OK
}

fn serve<L: Listener>(options: &ServerOptions, events: &mut Events) -> Result<(), String> {
    let stop = StopSignals::install().map_err(|error| format!("cannot take signals: {error}"))?;
    if pacing(&options.common) == Pacing::Library {
        wake_promptly();
    }
    let listener = L::new(options)?;

    let about_socket = |error: io::Error| format!("--listen {}: {error}", options.listen);
    let socket = Socket::bind(options.listen, &options.common).map_err(about_socket)?;
    let local = socket.local_address().map_err(about_socket)?;
    let mut in_force = socket.in_force(&options.common).map_err(about_socket)?;
    in_force.retry = Some(options.retry);
    let in_force = crate::in_force::<L::Library>(in_force, &options.common);
    events.start(
        Role::Server,
        L::Library::NAME,
        L::Library::VERSION,
        &in_force,
    );

    let mut server = Server {
        options,
        listener,
        outbox: Outbox::new(socket.gso(), &options.common),
        socket,
        local,
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

struct Server<'a, L: Listener> {
    options: &'a ServerOptions,
    listener: L,
    socket: Socket,
    local: SocketAddr,
    retried: VecDeque<Retried>,
    outbox: Outbox,
    /// Connections by the order in which they were accepted.
    connections: HashMap<u64, Serving<L::Connection>>,
    /// Which connection a connection ID belongs to: the client's first choice, and ours. Those of a connection that has
    /// ended stay for a while, so that late packets are not taken for a new one.
    routes: HashMap<ConnectionId, u64>,
    /// Routes of connections that have ended, and when to forget them, in the order of ending.
    ended: VecDeque<(Instant, Vec<ConnectionId>)>,
    accepted: u64,
    /// Connections that may have something to send.
    busy: Vec<u64>,
}

/// What was exchanged with a client before there was a connection.
struct First {
    t_accept: u64,
    cpu_at_accept: CpuTime,
    sent: Traffic,
    received: Traffic,
}

/// First datagrams that were answered with a Retry packet.
struct Retried {
    /// What they were addressed to.
    original: ConnectionId,
    /// What the client will address its next datagrams to.
    id: ConnectionId,
    first: First,
}

/// One connection.
struct Serving<C: Serve> {
    connection: C,
    routes: Vec<ConnectionId>,
    sent: Traffic,
    received: Traffic,
    cpu_at_accept: CpuTime,
    error: Option<String>,
    record: ServerConnection,
}

impl<L: Listener> Server<'_, L> {
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
        let now = L::Connection::now();
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
        serving.connection.read(datagram, received.from);
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
            let id = datagram.get(1..1 + L::ID_LENGTH);
            return Ok(id.and_then(|id| self.routes.get(id)).copied());
        }
        let Some(header) = self.listener.header(datagram) else {
            return Ok(None);
        };
        if let Some(number) = self.routes.get(L::destination(&header)) {
            return Ok(Some(*number));
        }
        if datagram.len() < MIN_INITIAL {
            return Ok(None);
        }
        match self.listener.arrival(header, datagram) {
            Arrival::Nothing => Ok(None),
            Arrival::OtherVersion => {
                // Not worth waiting for: a client that misses the answer asks again.
                if self.outbox.is_empty() {
                    let listener = &self.listener;
                    self.outbox
                        .put(from, |space| listener.negotiate_version(datagram, space));
                    self.outbox.flush(&self.socket)?;
                }
                Ok(None)
            }
            Arrival::Initial(initial) => self.accept(&initial, datagram.len(), from),
        }
    }

    /// Starts a connection with a client's Initial packet, or answers it with a Retry packet.
    fn accept(
        &mut self,
        initial: &L::Initial,
        length: usize,
        from: SocketAddr,
    ) -> io::Result<Option<u64>> {
        let mut first = First {
            t_accept: now_ns(),
            cpu_at_accept: CpuTime::now(),
            sent: Traffic::default(),
            received: Traffic::default(),
        };
        let mut token = None;
        if self.options.retry {
            token = self.listener.verify(initial, from);
            if token.is_none() {
                return self.send_retry(initial, length, first, from).map(|()| None);
            }
            let known = self
                .retried
                .iter()
                .position(|retried| retried.id == L::addressed(initial));
            if let Some(known) = known.and_then(|at| self.retried.remove(at)) {
                first = known.first;
            }
        }
        let id = self.listener.new_id()?;
        let connection =
            self.listener
                .accept(self.options, initial, token, &id, self.local, from)?;
        let number = self.accepted;
        self.accepted += 1;
        let routes = vec![L::addressed(initial).to_vec(), id];
        for route in &routes {
            self.routes.insert(route.clone(), number);
        }
        let mut record = ServerConnection {
            t_accept: Some(first.t_accept),
            ..ServerConnection::default()
        };
        record.common.retry = Some(self.options.retry);
        let serving = Serving {
            connection,
            routes,
            sent: first.sent,
            received: first.received,
            cpu_at_accept: first.cpu_at_accept,
            error: None,
            record,
        };
        self.connections.insert(number, serving);
        Ok(Some(number))
    }

    /// Answers a first datagram of `length` bytes. One ClientHello may need several, which all get the same answer.
    fn send_retry(
        &mut self,
        initial: &L::Initial,
        length: usize,
        first: First,
        from: SocketAddr,
    ) -> io::Result<()> {
        // A socket that would block is not waited for: a client that misses the answer asks again.
        if !self.outbox.flush(&self.socket)? {
            return Ok(());
        }
        let original = L::addressed(initial);
        let at = match self.retried.iter().position(|r| r.original == original) {
            Some(at) => at,
            None => {
                if self.retried.len() == MAX_RETRIED {
                    self.retried.pop_front();
                }
                self.retried.push_back(Retried {
                    original: original.to_vec(),
                    id: self.listener.new_id()?,
                    first,
                });
                self.retried.len() - 1
            }
        };
        let retried = &mut self.retried[at];
        retried.first.received.add(length);
        let (listener, id) = (&self.listener, &retried.id);
        let mut written = Ok(0);
        let length = self.outbox.put(from, |space| {
            written = listener.retry(initial, id, from, space);
            *written.as_ref().unwrap_or(&0)
        });
        written?;
        retried.first.sent.add(length);
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

    /// Frees a connection that has ended: it sends nothing more.
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
                .error
                .get_or_insert_with(|| "the server was stopped".into());
            serving.connection.close(STOPPED, "server stopped");
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

impl<C: Serve> Serving<C> {
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
        self.connection.read_back(record);
    }

    /// Reads requests, writes content and sends packets, for as long as it is this connection's turn. Returns true if
    /// there may be more to send.
    fn turn(&mut self, outbox: &mut Outbox, socket: &Socket) -> io::Result<bool> {
        self.connection.exchange();
        if let Some(error) = self.connection.answers().bad_request.take() {
            self.connection.close(BAD_REQUEST, &error);
            self.error.get_or_insert(error);
        }
        let most = self.connection.burst().min(SENT_BYTES_PER_TURN);
        let mut bytes = 0;
        let mut more = true;
        while more && bytes < most {
            let batch = self.connection.batch(most - bytes);
            match outbox.fill(&mut self.connection, batch, &mut self.sent) {
                Ok(filled) => {
                    more = filled > 0;
                    bytes += filled;
                }
                // What there is before the error goes out, then the library's words on it.
                Err(Failed(None)) => {}
                Err(Failed(Some(error))) => {
                    self.error.get_or_insert(error);
                    more = false;
                }
            }
            if !outbox.flush(socket)? {
                more = true;
                break;
            }
        }
        self.connection.end_burst();
        Ok(more)
    }

    fn report(&mut self, options: &ServerOptions, events: &mut Events) {
        let answers = self.connection.answers();
        self.record.bytes_sent = answers.bytes_sent;
        let failed = answers.error.take();
        let error = self.error.take().or(failed);
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
    fn unfinished(&mut self) -> Option<String> {
        if self.record.common.t_handshake_complete.is_none() {
            return Some("closed before the handshake was complete".into());
        }
        match self.connection.answers().are_complete() {
            true => None,
            false => Some("closed before everything asked for was sent".into()),
        }
    }
}
