//! Connections that begin when it is their time, whatever has become of those before: an open loop, many of them in
//! flight, on one thread that waits in the kernel. A client that waits for an answer before it asks again asks less of a
//! server that is slow, and measures that server too rarely (coordinated omission); this one does not.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ffi::OsString;
use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::{env, mem, process, ptr};

use quicbed_contract::clock::now_ns;
use quicbed_contract::content::Checker;
use quicbed_contract::events::{ClientConnection, Events, OptionsInForce, Role};
use quicbed_contract::exit;
use quicbed_contract::options::{ClientOptions, Command, Description};
use quicbed_contract::udp::{wake_promptly, Socket, RECEIVE_BUFFER};
use quicbed_poll::client::Connector;
use quicbed_poll::{Connection as _, Library, Traffic};
use serde::Serialize;

use crate::client::{Answer, Client, Stream};
use crate::connection::Connection;
use crate::{Ngtcp2, LIBRARY, VERSION};

/// Time before the first connection may begin, in which the loop gets going.
const LEAD_NS: u64 = 20_000_000;

/// Sockets that are looked at in one turn.
const READY_PER_TURN: usize = 16;

/// The longest `--hold`: less than the idle timeout, after which a connection is lost that nothing is sent on.
const LONGEST_HOLD_S: f64 = 20.0;

/// Part of a hold after which the server is asked with a PING whether it still has the connection.
const ASKED_AFTER: f64 = 0.6;

/// Room for any datagram that is sent.
const DATAGRAM: usize = 65_535;

/// What `--rate`, `--seed` and `--hold` ask for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrivals {
    /// Connections that begin in a second, in the mean.
    per_s: f64,
    seed: u64,
    /// Seconds that connections stay open once all have their answers.
    hold: Option<f64>,
}

impl Arrivals {
    /// Takes `--rate`, `--seed` and `--hold` out of a command line. Returns them, if there is a rate, and the other words.
    fn take(
        words: impl IntoIterator<Item = OsString>,
    ) -> Result<(Option<Arrivals>, Vec<OsString>), String> {
        let (mut rate, mut seed, mut hold, mut others) = (None, None, None, Vec::new());
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            let text = word.to_string_lossy();
            let (name, value) = match text.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None => (text.into_owned(), None),
            };
            if !matches!(name.as_str(), "--rate" | "--seed" | "--hold") {
                others.push(word);
                continue;
            }
            let value = match value {
                Some(value) => value,
                None => words
                    .next()
                    .ok_or_else(|| format!("{name} needs a value"))?
                    .to_string_lossy()
                    .into_owned(),
            };
            match name.as_str() {
                "--rate" => {
                    let parsed = value.parse().ok();
                    let positive = parsed.filter(|rate: &f64| rate.is_finite() && *rate > 0.0);
                    rate = Some(positive.ok_or_else(|| {
                        format!("--rate: not a positive number of connections a second: {value:?}")
                    })?);
                }
                "--hold" => {
                    let parsed = value.parse().ok();
                    let within = parsed.filter(|seconds| (0.1..=LONGEST_HOLD_S).contains(seconds));
                    hold = Some(within.ok_or_else(|| {
                        format!("--hold: not 0.1 to {LONGEST_HOLD_S} seconds: {value:?}")
                    })?);
                }
                _ => {
                    seed = Some(value.parse().map_err(|_| {
                        format!(
                            "--seed: not a whole number from 0 to {}: {value:?}",
                            u64::MAX
                        )
                    })?);
                }
            }
        }
        match (rate, seed) {
            (None, Some(_)) => Err("--seed: only with --rate".into()),
            (None, None) if hold.is_some() => Err("--hold: only with --rate".into()),
            (None, None) => Ok((None, others)),
            (Some(per_s), seed) => {
                let seed = seed.unwrap_or(0);
                Ok((Some(Arrivals { per_s, seed, hold }), others))
            }
        }
    }

    /// When connections begin, in nanoseconds from the first: a Poisson process, so that the gaps between them are
    /// independent and exponentially distributed.
    fn offsets(self) -> impl Iterator<Item = u64> {
        let mut state = self.seed;
        let mut at = 0.0;
        std::iter::once(0).chain(std::iter::repeat_with(move || {
            // at most 1 - 2^-53, so that the logarithm is finite
            let uniform = (next(&mut state) >> 11) as f64 / (1_u64 << 53) as f64;
            at += -(1.0 - uniform).ln() / self.per_s;
            (at * 1e9) as u64
        }))
    }
}

/// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[derive(Serialize)]
struct Described {
    #[serde(flatten)]
    description: Description,
    open_loop: bool,
}

#[derive(Serialize)]
struct InForce {
    #[serde(flatten)]
    of_library: <Ngtcp2 as Library>::InForce,
    rate: f64,
    seed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    hold: Option<f64>,
}

/// Runs the client, with or without `--rate`, and returns its exit code.
pub fn client() -> i32 {
    let usage = |error: &dyn std::fmt::Display| -> ! {
        eprintln!("{error}");
        process::exit(exit::USAGE);
    };
    let (arrivals, others) = match Arrivals::take(env::args_os().skip(1)) {
        Ok(taken) => taken,
        Err(error) => usage(&error),
    };
    let options = match ClientOptions::parse(others) {
        Ok(Command::Run(options)) => options,
        Ok(Command::Describe) => {
            let described = Described {
                description: Ngtcp2::description(),
                open_loop: true,
            };
            let text = serde_json::to_string(&described).expect("a description is plain data");
            println!("{text}");
            return exit::OK;
        }
        Err(error) => usage(&error),
    };
    match arrivals {
        None => quicbed_poll::client::run::<Client>(),
        Some(_) if options.save.is_some() => usage(&"--rate: not with --save"),
        Some(arrivals) => run(&options, arrivals),
    }
}

fn run(options: &ClientOptions, arrivals: Arrivals) -> i32 {
    let mut events = Events::open(&options.common.events);
    if let Some(reason) = Ngtcp2::unsupported(&options.common) {
        events.exit_unsupported(&reason);
    }
    let finished = match begin_all(options, arrivals, &mut events) {
        Ok(finished) => finished,
        Err(reason) => events.exit_failed(&reason),
    };
    // Only now: writing would delay what is in flight.
    for record in finished {
        events.client_connection(&record);
    }
    events.end();
    match events.failed() {
        0 => exit::OK,
        _ => exit::FAILED,
    }
}

/// The content that a connection asked for.
struct Content {
    checker: Checker,
    t_first_byte: Option<u64>,
    t_last_byte: Option<u64>,
    finished: bool,
    reset: Option<u64>,
}

impl Answer for Content {
    fn received(&mut self, bytes: &[u8], last: bool) {
        if !bytes.is_empty() {
            let now = now_ns();
            self.t_first_byte.get_or_insert(now);
            self.t_last_byte = Some(now);
        }
        self.finished |= last;
        self.checker.receive(bytes);
    }

    fn reset(&mut self, code: u64) {
        self.reset = Some(code);
    }
}

/// Begins every connection at its time and sees all of them end, in the order of their ends.
fn begin_all(
    options: &ClientOptions,
    arrivals: Arrivals,
    events: &mut Events,
) -> Result<Vec<ClientConnection>, String> {
    wake_promptly();
    let mut generator = Generator::new(options)?;
    let in_force = InForce {
        of_library: generator.in_force()?,
        rate: arrivals.per_s,
        seed: arrivals.seed,
        hold: arrivals.hold,
    };
    generator.holding = arrivals.hold.is_some();
    events.start(Role::Client, LIBRARY, VERSION, &in_force);
    let first = now_ns() + LEAD_NS;
    let mut starts = (0..options.connections)
        .zip(arrivals.offsets())
        .map(|(index, offset)| (index, first + offset))
        .peekable();
    loop {
        // One at a time, so that answers do not wait for all that should have begun already.
        if let Some((index, intended)) = starts.next_if(|(_, intended)| *intended <= now_ns()) {
            generator.begin(index, intended);
        }
        generator.run_timers();
        let mut due = match starts.peek() {
            None if generator.in_flight == 0 => break,
            due => due.map(|(_, intended)| *intended),
        };
        if let Some(seconds) = arrivals.hold.filter(|_| due.is_none()) {
            due = generator.hold(seconds);
        }
        generator.take_answers(due)?;
    }
    Ok(generator.finished)
}

/// Connections in flight, each with its socket.
struct Generator<'a> {
    options: &'a ClientOptions,
    client: Client,
    poll: OwnedFd,
    flights: Vec<Option<Flight<'a>>>,
    free: Vec<usize>,
    in_flight: usize,
    /// Whether connections stay open when they have their answers.
    holding: bool,
    /// Those of `in_flight` that do.
    held: usize,
    /// When they are closed, once all are held.
    release: Option<u64>,
    /// When a flight is to be looked at again; those of flights that have ended stay until then.
    timers: BinaryHeap<Reverse<(u64, usize)>>,
    datagrams: Vec<u8>,
    finished: Vec<ClientConnection>,
}

impl<'a> Generator<'a> {
    fn new(options: &'a ClientOptions) -> Result<Self, String> {
        // SAFETY: a new descriptor that nobody else owns, or an error.
        let poll = unsafe {
            match libc::epoll_create1(libc::EPOLL_CLOEXEC) {
                -1 => return Err(about_socket(io::Error::last_os_error())),
                fd => OwnedFd::from_raw_fd(fd),
            }
        };
        Ok(Generator {
            options,
            client: Client::new(options)?,
            poll,
            flights: Vec::new(),
            free: Vec::new(),
            in_flight: 0,
            holding: false,
            held: 0,
            release: None,
            timers: BinaryHeap::new(),
            datagrams: vec![0; RECEIVE_BUFFER],
            finished: Vec::with_capacity(options.connections.min(1 << 20) as usize),
        })
    }

    /// The options in force, of a socket like those of the connections.
    fn in_force(&self) -> Result<<Ngtcp2 as Library>::InForce, String> {
        let common = &self.options.common;
        let socket = Socket::bind_for(self.options.connect, common).map_err(about_socket)?;
        let mut in_force = socket.in_force(common).map_err(about_socket)?;
        in_force.pacing = Some(quicbed_poll::pacing(common));
        // Datagrams of a handshake are sent one by one.
        let in_force = OptionsInForce {
            gso: false,
            gso_paced: false,
            ..in_force
        };
        Ok(Ngtcp2::in_force(in_force))
    }

    fn begin(&mut self, index: u64, intended: u64) {
        let begun = now_ns();
        let slot = self.free.pop().unwrap_or(self.flights.len());
        match Flight::new(self.options, &self.client, &self.poll, slot, index) {
            Ok(mut flight) => {
                flight.record.t_intended = Some(intended);
                flight.record.t_begun = Some(begun);
                flight.deadline = begun + self.options.timeout.as_nanos() as u64;
                if slot == self.flights.len() {
                    self.flights.push(None);
                }
                self.flights[slot] = Some(flight);
                self.in_flight += 1;
                self.turn(slot, false);
            }
            Err(reason) => {
                self.free.push(slot);
                let mut record = ClientConnection {
                    t_intended: Some(intended),
                    t_begun: Some(begun),
                    bytes_requested: self.options.bytes,
                    ..ClientConnection::default()
                };
                record.common.index = index;
                record.common.error = Some(reason);
                self.finished.push(record);
            }
        }
    }

    /// Does what there is to do for a flight, and sets its timer or ends it.
    fn turn(&mut self, slot: usize, readable: bool) {
        let Some(flight) = self.flights.get_mut(slot).and_then(Option::as_mut) else {
            return;
        };
        let outcome = match readable {
            true => flight.receive(&mut self.datagrams),
            false => Ok(()),
        };
        match outcome.and_then(|()| flight.go_on(&mut self.datagrams)) {
            Ok(true) if self.holding && !flight.held => {
                flight.held = true;
                flight.deadline = u64::MAX;
                self.held += 1;
                // what is to be acknowledged still is
                self.turn(slot, false);
            }
            Ok(false) => {
                let due = flight.due();
                if due < flight.timer {
                    flight.timer = due;
                    self.timers.push(Reverse((due, slot)));
                }
            }
            outcome => {
                let flight = self.flights[slot].take().expect("it was there above");
                self.free.push(slot);
                self.in_flight -= 1;
                self.held -= usize::from(flight.held);
                let finished = flight.finish(outcome.err(), &mut self.datagrams);
                self.finished.push(finished);
            }
        }
    }

    /// Says, once all connections are held, that they are; closes them later. Returns when that is, if it is known.
    ///
    /// Meanwhile each one asks the server for a sign that it has not forgotten it.
    fn hold(&mut self, seconds: f64) -> Option<u64> {
        let slots = 0..self.flights.len();
        match self.release {
            None if self.held == self.in_flight => {
                println!("held {}", self.held);
                let asked_after = (seconds * ASKED_AFTER * 1e9) as u64;
                self.release = Some(now_ns() + (seconds * 1e9) as u64);
                for slot in slots {
                    if let Some(flight) = &mut self.flights[slot] {
                        flight.packets_before = flight.connection.packets().received;
                        flight.connection.keep_alive(asked_after);
                    }
                    self.turn(slot, false);
                }
            }
            Some(release) if release <= now_ns() => {
                for slot in slots {
                    if let Some(flight) = &mut self.flights[slot] {
                        flight.released = true;
                    }
                    self.turn(slot, false);
                }
            }
            _ => {}
        }
        self.release
    }

    fn run_timers(&mut self) {
        while let Some(&Reverse((at, slot))) = self.timers.peek() {
            if at > now_ns() {
                break;
            }
            self.timers.pop();
            if let Some(flight) = self.flights[slot].as_mut().filter(|f| f.timer == at) {
                flight.timer = u64::MAX;
                self.turn(slot, false);
            }
        }
    }

    /// Waits until a datagram has come, a timer is due or, if there is a further one, the next connection; takes the
    /// datagrams.
    fn take_answers(&mut self, next: Option<u64>) -> Result<(), String> {
        let timer = self.timers.peek().map(|Reverse((at, _))| *at);
        let due = next.into_iter().chain(timer).min();
        let mut fd = libc::pollfd {
            fd: self.poll.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let left = due.map_or(1_000_000_000, |due| due.saturating_sub(now_ns()));
        let time = libc::timespec {
            tv_sec: (left / 1_000_000_000) as libc::time_t,
            tv_nsec: (left % 1_000_000_000) as libc::c_long,
        };
        // SAFETY: one initialised pollfd and a timespec, which outlive the call.
        if unsafe { libc::ppoll(&mut fd, 1, &time, ptr::null()) } <= 0 {
            return match io::Error::last_os_error() {
                error if fd.revents == 0 && error.kind() != io::ErrorKind::InvalidInput => Ok(()),
                error => Err(about_socket(error)),
            };
        }
        // SAFETY: epoll_event is plain data.
        let mut ready: [libc::epoll_event; READY_PER_TURN] = unsafe { mem::zeroed() };
        let room = READY_PER_TURN as i32;
        // SAFETY: there is room for so many events.
        let count = unsafe { libc::epoll_wait(fd.fd, ready.as_mut_ptr(), room, 0) };
        for event in &ready[..usize::try_from(count).unwrap_or(0)] {
            self.turn(event.u64 as usize, true);
        }
        Ok(())
    }
}

fn about_socket(error: io::Error) -> String {
    format!("socket: {error}")
}

/// A connection in flight.
struct Flight<'a> {
    options: &'a ClientOptions,
    socket: Socket,
    /// The socket as epoll knows it.
    _watched: UdpSocket,
    connection: Connection<Stream<Content>>,
    /// A datagram that the socket would not take.
    waiting: Vec<u8>,
    deadline: u64,
    /// The earliest entry among the timers.
    timer: u64,
    /// Whether it has its answer and stays open, and whether it is to be closed now.
    held: bool,
    released: bool,
    /// That had arrived when all connections were held.
    packets_before: u64,
    sent: Traffic,
    received: Traffic,
    record: ClientConnection,
}

impl<'a> Flight<'a> {
    fn new(
        options: &'a ClientOptions,
        client: &Client,
        poll: &OwnedFd,
        slot: usize,
        index: u64,
    ) -> Result<Self, String> {
        let socket = Socket::bind_for(options.connect, &options.common).map_err(about_socket)?;
        let local = socket.local_address().map_err(about_socket)?;
        let watched = socket.try_clone_std().map_err(about_socket)?;
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: slot as u64,
        };
        // SAFETY: both descriptors are valid, and the event outlives the call.
        let added = unsafe {
            libc::epoll_ctl(
                poll.as_raw_fd(),
                libc::EPOLL_CTL_ADD,
                watched.as_raw_fd(),
                &mut event,
            )
        };
        if added != 0 {
            return Err(about_socket(io::Error::last_os_error()));
        }
        let content = Content {
            checker: options.checker(),
            t_first_byte: None,
            t_last_byte: None,
            finished: false,
            reset: None,
        };
        let mut record = ClientConnection::default();
        record.common.index = index;
        Ok(Flight {
            options,
            socket,
            _watched: watched,
            connection: client.connect_for(options, local, content)?,
            waiting: Vec::new(),
            deadline: 0,
            timer: u64::MAX,
            held: false,
            released: false,
            packets_before: 0,
            sent: Traffic::default(),
            received: Traffic::default(),
            record,
        })
    }

    /// When it is to be looked at if nothing arrives.
    fn due(&self) -> u64 {
        let soon = match self.waiting.is_empty() {
            true => u64::MAX,
            false => now_ns() + 1_000_000,
        };
        let expiry = self.connection.expiry().unwrap_or(u64::MAX);
        self.deadline.min(expiry).min(soon)
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Result<(), Option<String>> {
        let failed = |error| Some(about_socket(error));
        while let Some(received) = self.socket.receive(buffer).map_err(failed)? {
            for datagram in buffer[..received.length].chunks_mut(received.segment) {
                self.received.add(datagram.len());
                self.connection.read(datagram, received.from);
                let record = &mut self.record.common;
                if record.t_handshake_complete.is_none() && self.connection.is_established() {
                    record.t_handshake_complete = Some(now_ns());
                    record.handshake_packets_sent = Some(self.sent.datagrams);
                    record.handshake_bytes_sent = Some(self.sent.bytes);
                    record.handshake_packets_received = Some(self.received.datagrams);
                    record.handshake_bytes_received = Some(self.received.bytes);
                }
            }
        }
        Ok(())
    }

    /// Runs timers, asks, and sends. Returns whether all has arrived; the reason of an end is `None` if the connection
    /// has it.
    fn go_on(&mut self, buffer: &mut [u8]) -> Result<bool, Option<String>> {
        self.connection.on_timeout();
        self.connection.ask();
        self.send(buffer)?;
        let content = &self.connection.application().answer;
        if let Some(code) = content.reset {
            let reason = format!("stream reset by the server with code {code}");
            return Err(Some(reason));
        }
        if self.held {
            return self.stays();
        }
        if content.finished {
            return Ok(true);
        }
        if self.connection.has_ended() {
            return Err(None);
        }
        if now_ns() >= self.deadline {
            let seconds = self.options.timeout.as_secs_f64();
            return Err(Some(format!("not finished within {seconds} s")));
        }
        Ok(false)
    }

    /// What a connection is that is held: to be closed, given up by the server, or still open.
    fn stays(&mut self) -> Result<bool, Option<String>> {
        if self.connection.has_ended() {
            let reason = self.connection.reason().unwrap_or_default();
            let told = format!("ended while it was held open: {reason}");
            return Err(Some(told.trim_end_matches([':', ' ']).to_owned()));
        }
        if self.released && self.connection.packets().received == self.packets_before {
            return Err(Some(
                "the server did not answer a PING while it was held open".into(),
            ));
        }
        Ok(self.released)
    }

    fn send(&mut self, buffer: &mut [u8]) -> Result<(), Option<String>> {
        loop {
            let mut datagram = mem::take(&mut self.waiting);
            if datagram.is_empty() {
                let full = self.connection.datagram_size().min(DATAGRAM);
                let length = match self.connection.write(&mut buffer[..full]) {
                    Ok(0) => break,
                    Ok(length) => length,
                    Err(failed) => return Err(failed.0),
                };
                self.sent.add(length);
                datagram.extend_from_slice(&buffer[..length]);
            }
            self.record.t_client_hello.get_or_insert_with(now_ns);
            let (length, to) = (datagram.len(), self.connection.peer());
            let sent = self.socket.send(&datagram, length, to, None);
            if sent.map_err(|error| Some(about_socket(error)))? < length {
                self.waiting = datagram;
                break;
            }
            if self.record.t_request_sent.is_none() && self.connection.asked() {
                self.record.t_request_sent = Some(now_ns());
            }
        }
        self.connection.end_burst();
        Ok(())
    }

    /// Closes the connection and tells what it was. Error 0 tells the server that everything arrived.
    fn finish(mut self, failure: Option<Option<String>>, buffer: &mut [u8]) -> ClientConnection {
        let content = self.connection.application().answer.checker.verdict();
        let outcome = match failure {
            None => content.clone().map_err(|mismatch| mismatch.to_string()),
            Some(reason) => Err(reason
                .or_else(|| self.connection.reason())
                .unwrap_or_else(|| "closed by the peer before the end".into())),
        };
        self.waiting.clear();
        self.connection.close(u64::from(outcome.is_err()), "");
        let _ = self.send(buffer);
        let packets = self.connection.packets();
        let mut record = self.record;
        let answer = &self.connection.application().answer;
        record.t_first_byte = answer.t_first_byte;
        record.t_last_byte = answer.t_last_byte;
        record.bytes_requested = answer.checker.requested();
        record.bytes_received = answer.checker.received();
        record.content_ok = content.is_ok();
        let common = &mut record.common;
        common.t_close = Some(now_ns());
        common.ok = outcome.is_ok();
        common.error = outcome.err();
        common.t_handshake_confirmed = self.connection.confirmed();
        common.retry = Some(self.connection.after_retry());
        if common.t_handshake_complete.is_some() {
            self.connection.read_back(common);
            common.aead = Some(self.options.common.aead);
            common.header_protection = Some(self.options.common.header_protection);
        }
        common.packets_sent = Some(packets.sent);
        common.packets_received = Some(packets.received);
        common.packets_lost = Some(packets.lost);
        record
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(line: &str) -> Result<(Option<Arrivals>, Vec<OsString>), String> {
        Arrivals::take(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn rate_and_seed_are_taken_out_of_the_command_line() {
        let (arrivals, others) = take("--bytes 1 --rate 12.5 --seed=7 --events e").unwrap();
        assert_eq!(
            arrivals,
            Some(Arrivals {
                per_s: 12.5,
                seed: 7,
                hold: None
            })
        );
        assert_eq!(
            others,
            ["--bytes", "1", "--events", "e"].map(OsString::from)
        );
        assert_eq!(take("--bytes 1").unwrap().0, None);
    }

    #[test]
    fn a_rate_that_is_none_is_refused() {
        for (line, said) in [
            ("--rate 0", "--rate: not a positive number"),
            ("--rate -1", "--rate: not a positive number"),
            ("--rate inf", "--rate: not a positive number"),
            ("--rate", "--rate needs a value"),
            ("--rate 1 --hold 0", "--hold: not 0.1 to 20 seconds"),
            ("--rate 1 --hold 60", "--hold: not 0.1 to 20 seconds"),
            ("--hold 1", "--hold: only with --rate"),
            ("--rate 1 --seed x", "--seed: not a whole number"),
            ("--seed 1", "--seed: only with --rate"),
        ] {
            let error = take(line).unwrap_err();
            assert!(error.contains(said), "{line}: {error}");
        }
    }

    #[test]
    fn gaps_are_those_of_a_poisson_process() {
        let arrivals = Arrivals {
            hold: None,
            per_s: 1000.0,
            seed: 1,
        };
        let times: Vec<u64> = arrivals.offsets().take(100_001).collect();
        assert_eq!(times[0], 0);
        let gaps: Vec<f64> = times.windows(2).map(|w| (w[1] - w[0]) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let squares = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>();
        let deviation = (squares / gaps.len() as f64).sqrt();
        // of the exponential distribution both are 1 ms
        assert!((mean / 1e6 - 1.0).abs() < 0.02, "{mean}");
        assert!((deviation / 1e6 - 1.0).abs() < 0.03, "{deviation}");
        let again: Vec<u64> = arrivals.offsets().take(100).collect();
        assert_eq!(again, times[..100]);
    }
}
