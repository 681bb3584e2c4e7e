//! Downloads over fresh connections, one after the other, and reports each.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quicbed_contract::clock::now_ns;
use quicbed_contract::content::Checker;
use quicbed_contract::events::{ClientConnection, Events, Role};
use quicbed_contract::exit;
use quicbed_contract::options::ClientOptions;
use quicbed_contract::udp::Socket;
use quicbed_rustls::key_log::KeyLogFile;
use quicbed_rustls::tls::{Cryptography, Trust};
use quinn::{ClientConfig, Connection, Endpoint, NoneTokenStore, TransportConfig, VarInt};
use tokio::time::timeout;

use super::observation::Observation;
use super::session::ClientCrypto;
use super::setup::{self, one_line};
use super::traffic::{Meter, Stamp, Traffic};
use crate::library::{self, LIBRARY, VERSION};

/// Chunks of content taken from quinn at once; one chunk is the content of one packet.
const CHUNKS: usize = 128;

/// How long a closed connection may take to hand its last datagram to the system.
const CLOSING: Duration = Duration::from_millis(500);

/// Application error codes of closed connections.
const DONE: VarInt = VarInt::from_u32(0);
const FAILED: VarInt = VarInt::from_u32(1);

/// Runs the program and returns its exit code.
pub fn run() -> i32 {
    let description = setup::description();
    let options = ClientOptions::from_command_line(&description);
    let mut events = setup::open_events(&description, &options.common);
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
    let cryptography = Cryptography::of(&options.common);
    let client = Client {
        trust: match &options.ca {
            Some(ca) => Trust::from_file(ca, &cryptography)?,
            None => Trust::in_any(),
        },
        cryptography,
        // A request is short.
        transport: Arc::new(setup::transport(&options.common, false)),
        key_log: KeyLogFile::open(options.common.key_log.as_deref())?,
        options,
    };
    for index in 0..options.connections {
        // quinn keeps a closed connection until late packets cannot arrive any more (RFC 9000, section 10.2). A runtime of
        // its own for each connection ends that wait, so that no connection lives on beside the next.
        let connection = setup::runtime()?.block_on(client.connection(index, events))?;
        client.key_log.flush()?;
        events.client_connection(&connection);
    }
    Ok(())
}

/// What all connections have in common.
struct Client<'a> {
    options: &'a ClientOptions,
    cryptography: Cryptography,
    trust: Trust,
    transport: Arc<TransportConfig>,
    key_log: KeyLogFile,
}

impl Client<'_> {
    /// Makes one connection on a socket of its own and reports it; the first one reports the start of the program too.
    async fn connection(
        &self,
        index: u64,
        events: &mut Events,
    ) -> Result<ClientConnection, String> {
        let traffic = Arc::<Traffic>::default();
        let meter = Meter::Connection(traffic.clone());
        let options = &self.options.common;
        let (endpoint, in_force) = Socket::bind_for(self.options.connect, options)
            .and_then(|socket| setup::endpoint(&socket, meter, options, None))
            .map_err(|error| format!("cannot make a UDP socket: {error}"))?;
        if index == 0 {
            events.start(Role::Client, LIBRARY, VERSION, &in_force);
        }

        let observation = Arc::new(Observation::new(traffic.clone()));
        let config = self.config(observation.clone());
        let mut transfer = Transfer::new(self.options);
        let work = transfer.run(self.options, &endpoint, config, &traffic);
        let outcome = match timeout(self.options.timeout, work).await {
            Ok(outcome) => outcome,
            Err(_) => {
                let seconds = self.options.timeout.as_secs_f64();
                Err(format!("not finished after {seconds} s"))
            }
        };
        let t_close = transfer.close(&endpoint, &outcome, &traffic).await;

        let client_hello = traffic.first_sent();
        let mut report = ClientConnection {
            t_client_hello: client_hello.map(|stamp| stamp.t),
            t_request_sent: transfer.request_sent.map(|stamp| stamp.t),
            t_first_byte: transfer.t_first_byte,
            t_last_byte: transfer.last_byte.map(|stamp| stamp.t),
            bytes_requested: transfer.content.requested(),
            bytes_received: transfer.content.received(),
            content_ok: transfer.content.verdict().is_ok(),
            ..ClientConnection::default()
        };
        report.common.index = index;
        report.common.ok = outcome.is_ok();
        report.common.error = outcome.err();
        report.common.t_close = Some(t_close);
        let stats = transfer.connection.map(|connection| connection.stats());
        let cpu = client_hello.zip(transfer.last_byte);
        setup::report(Role::Client, &mut report.common, &observation, stats, cpu);
        Ok(report)
    }

    fn config(&self, observation: Arc<Observation>) -> ClientConfig {
        let tls =
            self.trust
                .client_config(&self.cryptography, self.key_log.sink(), observation.clone());
        let crypto = ClientCrypto::new(Arc::new(tls), self.cryptography.initial(), observation);
        let mut config = ClientConfig::new(Arc::new(crypto));
        config.transport_config(self.transport.clone());
        config.token_store(Arc::new(NoneTokenStore));
        config
    }
}

/// One connection and its download; what is known stays here when it fails or is given up.
struct Transfer {
    connection: Option<Connection>,
    /// The handshake failed, so there is no connection to close.
    refused: bool,
    content: Checker,
    request_sent: Option<Stamp>,
    t_first_byte: Option<u64>,
    last_byte: Option<Stamp>,
}

impl Transfer {
    fn new(options: &ClientOptions) -> Self {
        Self {
            connection: None,
            refused: false,
            content: options.checker(),
            request_sent: None,
            t_first_byte: None,
            last_byte: None,
        }
    }

    async fn run(
        &mut self,
        options: &ClientOptions,
        endpoint: &Endpoint,
        config: ClientConfig,
        traffic: &Traffic,
    ) -> Result<(), String> {
        let handshake = async {
            let (address, name) = (options.connect, &options.server_name);
            let connecting = endpoint
                .connect_with(config, address, name)
                .map_err(|error| one_line(&error))?;
            connecting.await.map_err(|error| one_line(&error))
        };
        let connection = handshake.await.inspect_err(|_| self.refused = true)?;
        self.connection = Some(connection.clone());

        let (mut send, mut receive) = connection
            .open_bi()
            .await
            .map_err(|error| one_line(&error))?;
        traffic.watch_departure();
        send.write_all(options.request().as_bytes())
            .await
            .map_err(|error| one_line(&error))?;
        send.finish().map_err(|error| one_line(&error))?;

        let mut chunks = [const { Bytes::new() }; CHUNKS];
        while let Some(count) = library::read_chunks(&mut receive, &mut chunks)
            .await
            .map_err(|error| one_line(&error))?
        {
            self.receive(&chunks[..count], options.bytes);
            if self.request_sent.is_none() {
                self.request_sent = traffic.departure();
            }
            if self.content.received() > options.bytes {
                break;
            }
        }
        self.content
            .verdict()
            .map_err(|mismatch| mismatch.to_string())
    }

    /// Takes the next bytes of content, of `expected` in all.
    fn receive(&mut self, chunks: &[Bytes], expected: u64) {
        let bytes: usize = chunks.iter().map(Bytes::len).sum();
        if bytes > 0 && self.t_first_byte.is_none() {
            self.t_first_byte = Some(now_ns());
        }
        if self.last_byte.is_none() && self.content.received() + bytes as u64 >= expected {
            self.last_byte = Some(Stamp::now());
        }
        for chunk in chunks {
            self.content.receive(chunk);
        }
    }

    /// Closes the connection, sees to it that the server is told, and returns when it was closed.
    async fn close(
        &self,
        endpoint: &Endpoint,
        outcome: &Result<(), String>,
        traffic: &Traffic,
    ) -> u64 {
        let t_close = now_ns();
        let over = match &self.connection {
            Some(connection) => connection.close_reason().is_some(),
            None => self.refused,
        };
        if !over {
            traffic.watch_departure();
            match outcome {
                Ok(()) => endpoint.close(DONE, b""),
                Err(reason) => endpoint.close(FAILED, reason.as_bytes()),
            }
            // A server that cannot be told finds out by itself.
            let _ = timeout(CLOSING, traffic.departed()).await;
        }
        t_close
    }
}
