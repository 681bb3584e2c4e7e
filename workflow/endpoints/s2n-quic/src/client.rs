//! Downloads over fresh connections, one after the other, and reports each.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quicbed_contract::clock::now_ns;
use quicbed_contract::content::Checker;
use quicbed_contract::events::{ClientConnection, Events, Role};
use quicbed_contract::exit;
use quicbed_contract::options::{Aead, ClientOptions, CongestionControl, HeaderProtection};
use quicbed_contract::udp::Socket;
use s2n_quic::application;
use s2n_quic::client::Connect;
use s2n_quic::connection::Handle;
use s2n_quic::provider::congestion_controller;
use s2n_quic::provider::tls::s2n_tls;
use s2n_quic::provider::tls::s2n_tls::config::Config;
use s2n_quic::stream::BidirectionalStream;
use s2n_quic::Client;
use tokio::task::yield_now;
use tokio::time::timeout;

use crate::key_log::KeyLogFile;
use crate::observation::{self, Observation, Stamp, Subscriber};
use crate::protection;
use crate::setup::{self, InForce, LIBRARY, VERSION};

/// Chunks of content taken from s2n-quic at once.
const CHUNKS: usize = 64;

/// How long a closed connection may take to hand over its last datagram.
const CLOSING: Duration = Duration::from_millis(500);

/// Turns of the runtime in which the datagrams handed over reach the system.
const TURNS: usize = 8;

/// Application error codes of closed connections.
const DONE: u32 = 0;
const FAILED: u32 = 1;

/// Runs the program and returns its exit code.
pub fn run() -> i32 {
    let description = setup::description();
    let options = ClientOptions::from_command_line(&description);
    let mut events = setup::open_events(&description, &options.common, options.connect);
    if let Err(reason) = download(&options, &mut events) {
        events.exit_failed(&reason);
    }
    events.end();
    match events.failed() {
        0 => exit::OK,
        _ => exit::FAILED,
    }
}

/// Makes all connections. Fails only for what concerns the program; a failed connection is an event.
fn download(options: &ClientOptions, events: &mut Events) -> Result<(), String> {
    let key_log = KeyLogFile::open(options.common.key_log.as_deref())?;
    let downloads = Downloads {
        options,
        tls: tls(options.ca.as_deref(), &key_log)?,
        protection: protection::probe(),
    };
    for index in 0..options.connections {
        // s2n-quic keeps a closed connection until late packets cannot arrive any more (RFC 9000, section 10.2). A
        // runtime of its own for each connection ends that wait, so that no connection lives on beside the next.
        let connection = setup::runtime()?.block_on(downloads.connection(index, events))?;
        key_log.flush()?;
        events.client_connection(&connection);
    }
    Ok(())
}

/// The TLS configuration of a client, which accepts any certificate without a trust anchor.
fn tls(ca: Option<&Path>, key_log: &KeyLogFile) -> Result<Config, String> {
    let set_up = |error: s2n_tls::error::Error| format!("cannot set up TLS: {error}");
    let mut tls = setup::tls(key_log).map_err(set_up)?;
    match ca {
        Some(ca) => {
            let failed = |error: &dyn std::fmt::Display| format!("--ca {}: {error}", ca.display());
            let pem = fs::read(ca).map_err(|error| failed(&error))?;
            tls.trust_pem(&pem).map_err(|error| failed(&error))?;
        }
        None => {
            // SAFETY: is for clients that are not to know whom they talk to, as here.
            unsafe { tls.disable_x509_verification() }.map_err(set_up)?;
        }
    }
    tls.build().map_err(set_up)
}

/// What all connections have in common.
struct Downloads<'a> {
    options: &'a ClientOptions,
    tls: Config,
    protection: (Aead, HeaderProtection),
}

impl Downloads<'_> {
    /// Makes one connection on a socket of its own and reports it; the first one reports the start of the program too.
    async fn connection(
        &self,
        index: u64,
        events: &mut Events,
    ) -> Result<ClientConnection, String> {
        let observation = Arc::<Observation>::default();
        let socket = Socket::bind_for(self.options.connect, &self.options.common)
            .map_err(|error| format!("cannot make a UDP socket: {error}"))?;
        let client = self.client(&socket, observation.clone())?;
        if index == 0 {
            let in_force = InForce::read(&socket, &self.options.common)
                .map_err(|error| format!("cannot look at the UDP socket: {error}"))?;
            events.start(Role::Client, LIBRARY, VERSION, &in_force);
        }
        drop(socket);

        let mut transfer = Transfer::new(self.options);
        let work = transfer.run(self.options, &client, &observation);
        let outcome = match timeout(self.options.timeout, work).await {
            Ok(outcome) => outcome,
            Err(_) => {
                let seconds = self.options.timeout.as_secs_f64();
                Err(format!("not finished after {seconds} s"))
            }
        };
        let t_close = transfer.close(&outcome, &observation).await;

        let client_hello = observation.first_sent();
        let mut report = ClientConnection {
            t_client_hello: client_hello.map(|stamp| stamp.t),
            t_request_sent: observation.request_sent(),
            t_first_byte: transfer.t_first_byte,
            t_last_byte: transfer.last_byte.map(|stamp| stamp.t),
            bytes_requested: transfer.content.requested(),
            bytes_received: transfer.content.received(),
            content_ok: transfer.content.verdict().is_ok(),
            ..ClientConnection::default()
        };
        let common = &mut report.common;
        common.index = index;
        common.ok = outcome.is_ok();
        common.error = outcome.err();
        common.t_close = Some(t_close);
        if let Some((start, end)) = client_hello.zip(transfer.last_byte) {
            let cpu = end.cpu.since(start.cpu);
            common.cpu_user_ns = Some(cpu.user_ns);
            common.cpu_system_ns = Some(cpu.system_ns);
        }
        observation.report(common, Role::Client, self.protection);
        Ok(report)
    }

    fn client(&self, socket: &Socket, observation: Arc<Observation>) -> Result<Client, String> {
        let (peer, options) = (self.options.connect, &self.options.common);
        let io = setup::io(socket, options, peer)
            .map_err(|error| format!("cannot set up the UDP socket: {error}"))?;
        // The program's own time limit is to end a handshake, if anything.
        let limits = setup::limits(options, self.options.timeout + CLOSING)?;
        // A request is short.
        let mtu = setup::mtu(options, peer, false)?;
        let tls = s2n_tls::Client::from_loader(self.tls.clone());
        let start = || -> Result<_, Box<dyn Error>> {
            let builder = Client::builder()
                .with_tls(tls)?
                .with_io(io)?
                .with_limits(limits)?
                .with_mtu(mtu)?
                .with_event(Subscriber::of_client(observation))?;
            Ok(match options.congestion_control {
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
}

/// One connection and its download; what is known stays here when it fails or is given up.
struct Transfer {
    connection: Option<Handle>,
    content: Checker,
    t_first_byte: Option<u64>,
    last_byte: Option<Stamp>,
}

impl Transfer {
    fn new(options: &ClientOptions) -> Self {
        Self {
            connection: None,
            content: options.checker(),
            t_first_byte: None,
            last_byte: None,
        }
    }

    async fn run(
        &mut self,
        options: &ClientOptions,
        client: &Client,
        observation: &Observation,
    ) -> Result<(), String> {
        let said = |error: s2n_quic::connection::Error| {
            let reason = observation::reason(&error, observation.tls_error().as_deref());
            reason.unwrap_or_else(|| "the server closed the connection".into())
        };
        let connect = Connect::new(options.connect).with_server_name(options.server_name.as_str());
        let (mut connection, _streams) = client.connect(connect).await.map_err(said)?.split();
        self.connection = Some(connection.clone());
        let stream = connection.open_bidirectional_stream().await.map_err(said)?;
        let transferred = self.download(stream, options).await;
        transferred.map_err(|error| match error {
            s2n_quic::stream::Error::ConnectionError { error, .. } => said(error),
            other => other.to_string(),
        })?;
        self.content
            .verdict()
            .map_err(|mismatch| mismatch.to_string())
    }

    async fn download(
        &mut self,
        mut stream: BidirectionalStream,
        options: &ClientOptions,
    ) -> Result<(), s2n_quic::stream::Error> {
        stream.send(Bytes::from(options.request())).await?;
        stream.finish()?;
        let mut chunks = [const { Bytes::new() }; CHUNKS];
        loop {
            let (count, is_open) = stream.receive_vectored(&mut chunks).await?;
            self.receive(&mut chunks[..count], options.bytes);
            if !is_open || self.content.received() > options.bytes {
                return Ok(());
            }
        }
    }

    /// Takes the next bytes of content, of `expected` in all, out of `chunks`.
    fn receive(&mut self, chunks: &mut [Bytes], expected: u64) {
        let bytes: usize = chunks.iter().map(Bytes::len).sum();
        if bytes > 0 && self.t_first_byte.is_none() {
            self.t_first_byte = Some(now_ns());
        }
        if self.last_byte.is_none() && self.content.received() + bytes as u64 >= expected {
            self.last_byte = Some(Stamp::now());
        }
        for chunk in chunks {
            self.content.receive(&std::mem::take(chunk));
        }
    }

    /// Closes the connection, sees to it that the server is told, and returns when it was closed.
    async fn close(&self, outcome: &Result<(), String>, observation: &Observation) -> u64 {
        let t_close = now_ns();
        if let Some(connection) = &self.connection {
            let over = observation.closed().is_some();
            let code = if outcome.is_ok() { DONE } else { FAILED };
            connection.close(application::Error::from(code));
            if !over {
                // A server that cannot be told finds out by itself.
                let _ = timeout(CLOSING, observation.departed()).await;
            }
        }
        for _ in 0..TURNS {
            yield_now().await;
        }
        t_close
    }
}
