//! Serves content made in memory, or files, until it is stopped, and reports each connection.

use std::error::Error;
use std::fmt::Display;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use bytes::Bytes;
use quicbed_contract::content::{Body, PERIOD};
use quicbed_contract::events::{Events, Role, ServerConnection};
use quicbed_contract::options::{Aead, CongestionControl, HeaderProtection, ServerOptions};
use quicbed_contract::udp::Socket;
use quicbed_contract::{exit, request};
use s2n_quic::application;
use s2n_quic::provider::endpoint_limits::{ConnectionAttempt, Limiter, Outcome};
use s2n_quic::provider::tls::s2n_tls;
use s2n_quic::provider::tls::s2n_tls::config::Config;
use s2n_quic::provider::{congestion_controller, endpoint_limits};
use s2n_quic::stream::BidirectionalStream;
use s2n_quic::{Connection, Server};
use tokio::signal::unix::{signal, SignalKind};
use tokio::sync::mpsc::{unbounded_channel, UnboundedSender};
use tokio::sync::watch;
use tokio::task::{yield_now, JoinSet};
use tokio::time::timeout;

use crate::key_log::KeyLogFile;
use crate::observation::{self, Observation, Subscriber};
use crate::protection;
use crate::setup::{self, InForce, LIBRARY, VERSION};

/// How long it may take to read what had arrived before the server was stopped, where connections are open.
const ARRIVED: Duration = Duration::from_millis(100);

/// How long connections may take to end when the server is stopped.
const STOPPING: Duration = Duration::from_millis(500);

/// Turns of the runtime in which the datagrams handed over reach the system.
const TURNS: usize = 8;

/// How long a handshake may take; a client has its own limit.
const HANDSHAKE: Duration = Duration::from_secs(60);

/// Application error code of connections the server closes.
const FAILED: u32 = 1;

/// Runs the program and returns its exit code.
pub fn run() -> i32 {
    let description = setup::description();
    let options = ServerOptions::from_command_line(&description);
    let mut events = setup::open_events(&description, &options.common, options.listen);
    let outcome =
        setup::runtime().and_then(|runtime| runtime.block_on(serve(&options, &mut events)));
    if let Err(reason) = outcome {
        events.exit_failed(&reason);
    }
    events.end();
    exit::OK
}

/// Serves until SIGTERM or SIGINT. Fails only for what concerns the program; a failed connection is an event.
async fn serve(options: &ServerOptions, events: &mut Events) -> Result<(), String> {
    let failed = |what: &str, error: io::Error| format!("{what}: {error}");
    let mut terminate =
        signal(SignalKind::terminate()).map_err(|error| failed("SIGTERM", error))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| failed("SIGINT", error))?;

    let key_log = KeyLogFile::open(options.common.key_log.as_deref())?;
    let tls = tls(options, &key_log)?;
    let socket = Socket::bind(options.listen, &options.common)
        .map_err(|error| failed(&format!("--listen {}", options.listen), error))?;
    let (closed, mut reports) = unbounded_channel();
    let mut server = start(options, tls, &socket, closed)?;
    let address =
        (socket.local_address()).map_err(|error| failed("cannot tell the address", error))?;
    let mut in_force = InForce::read(&socket, &options.common)
        .map_err(|error| failed("cannot look at the UDP socket", error))?;
    drop(socket);
    in_force.options.retry = Some(options.retry);
    events.start(Role::Server, LIBRARY, VERSION, &in_force);
    events.ready(address);

    let mut reporter = Reporter {
        retry: options.retry,
        protection: protection::probe(),
        key_log,
        events,
    };
    let (stop, stopped) = watch::channel(false);
    let mut services = JoinSet::new();
    loop {
        tokio::select! {
            connection = server.accept() => {
                let connection = connection.ok_or("s2n-quic has ended")?;
                services.spawn(attend(connection, stopped.clone()));
            }
            Some(observation) = reports.recv() => reporter.report(&observation)?,
            Some(_) = services.join_next() => {}
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
        }
    }

    // A connection whose end had already arrived is reported as ended.
    let arrived = async {
        while !services.is_empty() {
            tokio::select! {
                Some(observation) = reports.recv() => reporter.report(&observation)?,
                Some(_) = services.join_next() => {}
            }
        }
        Ok::<(), String>(())
    };
    timeout(ARRIVED, arrived).await.unwrap_or(Ok(()))?;

    let mut open = services.len();
    stop.send_replace(true);
    let rest = async {
        while open > 0 {
            tokio::select! {
                Some(observation) = reports.recv() => reporter.report(&observation)?,
                Some(_) = services.join_next() => open -= 1,
            }
        }
        for _ in 0..TURNS {
            yield_now().await;
        }
        while let Ok(observation) = reports.try_recv() {
            reporter.report(&observation)?;
        }
        Ok(())
    };
    timeout(STOPPING, rest).await.unwrap_or(Ok(()))
}

/// The TLS configuration of all connections.
fn tls(options: &ServerOptions, key_log: &KeyLogFile) -> Result<Config, String> {
    let (certificate, private_key) = (&options.certificate, &options.private_key);
    let failed = |error: &dyn Display| {
        format!(
            "--certificate {}, --private-key {}: {error}",
            certificate.display(),
            private_key.display()
        )
    };
    let chain = fs::read(certificate).map_err(|error| failed(&error))?;
    let key = fs::read(private_key).map_err(|error| failed(&error))?;
    let tls = || {
        let mut tls = setup::tls(key_log)?;
        tls.load_pem(&chain, &key)?;
        tls.build()
    };
    tls().map_err(|error| failed(&error))
}

fn start(
    options: &ServerOptions,
    tls: Config,
    socket: &Socket,
    closed: UnboundedSender<Arc<Observation>>,
) -> Result<Server, String> {
    let (address, common) = (options.listen, &options.common);
    let io = setup::io(socket, common, address)
        .map_err(|error| format!("cannot set up the UDP socket: {error}"))?;
    let limits = setup::limits(common, HANDSHAKE)?;
    let sizes = &options.content;
    let large = sizes.is_empty() || sizes.iter().any(|&n| n > common.initial_size as u64);
    let mtu = setup::mtu(common, address, large)?;
    let admission = Admission {
        retry: options.retry,
        limits: endpoint_limits::Default::default(),
    };
    let start = || -> Result<_, Box<dyn Error>> {
        let builder = Server::builder()
            .with_tls(s2n_tls::Server::from_loader(tls))?
            .with_io(io)?
            .with_limits(limits)?
            .with_mtu(mtu)?
            .with_endpoint_limits(admission)?
            .with_event(Subscriber::of_server(closed))?;
        Ok(match common.congestion_control {
            CongestionControl::Bbr => builder
                .with_congestion_controller(congestion_controller::Bbr::default())?
                .start()?,
            _ => builder
                .with_congestion_controller(congestion_controller::Cubic::default())?
                .start()?,
        })
    };
    start().map_err(|error| format!("cannot start s2n-quic: {error}"))
}

/// Which connections are answered with a Retry packet: those without a token, for only they are asked about.
struct Admission {
    retry: bool,
    limits: endpoint_limits::Default,
}

impl Limiter for Admission {
    fn on_connection_attempt(&mut self, attempt: &ConnectionAttempt) -> Outcome {
        match self.retry {
            true => Outcome::retry(),
            false => self.limits.on_connection_attempt(attempt),
        }
    }
}

/// Writes what became of connections.
struct Reporter<'a> {
    retry: bool,
    protection: (Aead, HeaderProtection),
    key_log: KeyLogFile,
    events: &'a mut Events,
}

impl Reporter<'_> {
    fn report(&mut self, observation: &Observation) -> Result<(), String> {
        self.key_log.flush()?;
        if self.retry {
            // There are no other tokens than those of Retry packets.
            observation.retry();
        }
        let created = observation.created();
        let mut report = ServerConnection {
            t_accept: created.map(|stamp| stamp.t),
            bytes_sent: observation.bytes_sent.load(Relaxed),
            ..ServerConnection::default()
        };
        let common = &mut report.common;
        common.index = self.events.connections();
        common.error = observation.failure();
        common.ok = common.error.is_none();
        if let Some(closed) = observation.closed() {
            common.t_close = Some(closed.t);
            let cpu = created.map(|created| closed.cpu.since(created.cpu));
            common.cpu_user_ns = cpu.map(|cpu| cpu.user_ns);
            common.cpu_system_ns = cpu.map(|cpu| cpu.system_ns);
        }
        observation.report(common, Role::Server, self.protection);
        self.events.server_connection(&report);
        Ok(())
    }
}

/// Serves one connection until its client closes it, it fails, or the server is stopped.
async fn attend(mut connection: Connection, mut stopped: watch::Receiver<bool>) {
    let observation = connection
        .query_event_context(|context: &observation::Connection| context.observation.clone());
    // A connection that is gone has been reported.
    let Ok(observation) = observation else { return };
    let handle = connection.handle();
    let failed = tokio::select! {
        served = answer(&mut connection, &observation) => served.err(),
        _ = stopped.wait_for(|stopped| *stopped) => Some("the server was stopped".into()),
    };
    if let Some(reason) = failed {
        observation.fail(&reason);
        handle.close(application::Error::from(FAILED));
        // The last datagram has to get away before the runtime ends.
        let _ = timeout(STOPPING / 2, observation.departed()).await;
    }
}

/// Answers requests, one after the other. A connection that is closed is no failure here: its observation knows.
async fn answer(connection: &mut Connection, observation: &Observation) -> Result<(), String> {
    while let Ok(Some(mut stream)) = connection.accept_bidirectional_stream().await {
        let asked = read(&mut stream).await.map_err(|error| error.to_string())?;
        let body = request::parse(&asked).map_err(|error| error.to_string())?;
        let sent = send(stream, body, observation).await;
        sent.map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Everything a stream brings, up to one byte more than a request can have.
async fn read(stream: &mut BidirectionalStream) -> Result<Vec<u8>, s2n_quic::stream::Error> {
    let mut asked = Vec::new();
    while let Some(chunk) = stream.receive().await? {
        asked.extend_from_slice(&chunk);
        if asked.len() > request::MAX_REQUEST {
            break;
        }
    }
    Ok(asked)
}

/// Sends what was asked for, borrowed and not copied on its way to the packets.
async fn send(
    mut stream: BidirectionalStream,
    body: Body,
    observation: &Observation,
) -> Result<(), s2n_quic::stream::Error> {
    let mut offset = 0;
    while offset < body.length() {
        let length = (body.length() - offset).min(PERIOD as u64);
        let content = body.slice_at(offset, length as usize);
        stream.send(Bytes::from_static(content)).await?;
        offset += length;
        observation.bytes_sent.fetch_add(length, Relaxed);
    }
    stream.finish()
}
