//! Serves content made in memory, or files, until it is stopped, and reports each connection.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quicbed_contract::content::{Body, LONGEST};
use quicbed_contract::events::{Events, Role, ServerConnection};
use quicbed_contract::options::ServerOptions;
use quicbed_contract::udp::Socket;
use quicbed_contract::{exit, request};
use quicbed_rustls::key_log::KeyLogFile;
use quicbed_rustls::tls::{Cryptography, Identity};
use quinn::{Connection, ConnectionError, Incoming, SendStream, ServerConfig, VarInt};
use tokio::signal::unix::{signal, SignalKind};
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;

use super::observation::Observation;
use super::session::ServerCrypto;
use super::setup::{self, one_line};
use super::traffic::{Meter, Peers, Stamp};
use crate::library::{LIBRARY, VERSION};

/// How long it may take to read what had arrived before the server was stopped, where connections are open.
const ARRIVED: Duration = Duration::from_millis(100);

/// How long connections may take to end when the server is stopped.
const STOPPING: Duration = Duration::from_millis(500);

/// Application error codes of closed connections; a client closes with the first when it has everything.
const DONE: VarInt = VarInt::from_u32(0);
const FAILED: VarInt = VarInt::from_u32(1);

/// Runs the program and returns its exit code.
pub fn run() -> i32 {
    let description = setup::description();
    let options = ServerOptions::from_command_line(&description);
    let mut events = setup::open_events(&description, &options.common);
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
    let failed = |what: &str, error: std::io::Error| format!("{what}: {error}");
    let mut terminate =
        signal(SignalKind::terminate()).map_err(|error| failed("SIGTERM", error))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| failed("SIGINT", error))?;

    let server = Server::new(options)?;
    let peers = Arc::<Peers>::default();
    let socket = Socket::bind(options.listen, &options.common)
        .map_err(|error| failed(&format!("--listen {}", options.listen), error))?;
    let meter = Meter::Peers(peers.clone());
    let config = server.config.clone();
    let (endpoint, mut in_force) =
        setup::endpoint(&socket, meter, &options.common, Some(config))
            .map_err(|error| failed("cannot set up the UDP socket", error))?;
    let address = endpoint
        .local_addr()
        .map_err(|error| failed("cannot tell the address", error))?;
    drop(socket);
    in_force.options.retry = Some(options.retry);
    events.start(Role::Server, LIBRARY, VERSION, &in_force);
    events.ready(address);

    let mut connections = JoinSet::new();
    let mut index = 0;
    loop {
        tokio::select! {
            incoming = endpoint.accept() => {
                let incoming = incoming.ok_or("the UDP socket failed")?;
                if options.retry && !incoming.remote_address_validated() {
                    incoming.retry().map_err(|error| one_line(&error))?;
                    continue;
                }
                connections.spawn(server.accept(index, incoming, peers.clone()));
                index += 1;
            }
            Some(ended) = connections.join_next() => server.ended(ended, events)?,
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
        }
    }

    // A connection whose end had already arrived is reported as ended.
    timeout(ARRIVED, server.rest(&mut connections, events))
        .await
        .unwrap_or(Ok(()))?;
    endpoint.close(FAILED, b"the server was stopped");
    timeout(STOPPING, server.rest(&mut connections, events))
        .await
        .unwrap_or(Ok(()))
}

/// What all connections have in common.
struct Server {
    cryptography: Cryptography,
    identity: Identity,
    key_log: KeyLogFile,
    config: ServerConfig,
}

impl Server {
    fn new(options: &ServerOptions) -> Result<Self, String> {
        let cryptography = Cryptography::of(&options.common);
        let identity =
            Identity::from_files(&options.certificate, &options.private_key, &cryptography)?;
        let key_log = KeyLogFile::open(options.common.key_log.as_deref())?;
        let crypto = crypto(&cryptography, &identity, &key_log, Arc::default());
        let mut config = ServerConfig::with_crypto(Arc::new(crypto));
        let sizes = &options.content;
        let large = sizes.is_empty()
            || sizes
                .iter()
                .any(|&n| n > options.common.initial_size as u64);
        config.transport_config(Arc::new(setup::transport(&options.common, large)));
        Ok(Self {
            cryptography,
            identity,
            key_log,
            config,
        })
    }

    /// The task of one connection, from its first datagram to its report.
    fn accept(
        &self,
        index: u64,
        incoming: Incoming,
        peers: Arc<Peers>,
    ) -> impl std::future::Future<Output = ServerConnection> + Send + 'static {
        let peer = incoming.remote_address();
        let traffic = peers.traffic(peer);
        let observation = Arc::new(Observation::new(traffic.clone()));
        if incoming.remote_address_validated() {
            // There are no other tokens than those of Retry packets.
            observation.retry();
        }
        let crypto = crypto(
            &self.cryptography,
            &self.identity,
            &self.key_log,
            observation.clone(),
        );
        let mut config = self.config.clone();
        config.crypto = Arc::new(crypto);

        async move {
            let mut service = Service::default();
            let handshake = service.handshake(incoming, config).await;
            peers.forget(peer);
            let outcome = match handshake {
                Ok(connection) => service.serve(&connection).await,
                Err(error) => Err(error),
            };
            let end = Stamp::now();

            let mut report = ServerConnection {
                t_accept: traffic.first_received().map(|stamp| stamp.t),
                bytes_sent: service.bytes_sent,
                ..ServerConnection::default()
            };
            report.common.index = index;
            report.common.ok = outcome.is_ok();
            report.common.error = outcome.err();
            report.common.t_close = Some(end.t);
            let stats = service.connection.map(|connection| connection.stats());
            let cpu = traffic.first_received().map(|start| (start, end));
            setup::report(Role::Server, &mut report.common, &observation, stats, cpu);
            report
        }
    }

    /// Reports connections until none is left.
    async fn rest(
        &self,
        connections: &mut JoinSet<ServerConnection>,
        events: &mut Events,
    ) -> Result<(), String> {
        while let Some(ended) = connections.join_next().await {
            self.ended(ended, events)?;
        }
        Ok(())
    }

    fn ended(
        &self,
        ended: Result<ServerConnection, JoinError>,
        events: &mut Events,
    ) -> Result<(), String> {
        self.key_log.flush()?;
        events.server_connection(&ended.map_err(|error| one_line(&error))?);
        Ok(())
    }
}

/// TLS of one connection.
fn crypto(
    cryptography: &Cryptography,
    identity: &Identity,
    key_log: &KeyLogFile,
    observation: Arc<Observation>,
) -> ServerCrypto {
    let tls = identity.server_config(cryptography, key_log.sink(), observation.clone());
    ServerCrypto::new(Arc::new(tls), cryptography.initial(), observation)
}

/// One connection being served.
#[derive(Default)]
struct Service {
    connection: Option<Connection>,
    bytes_sent: u64,
}

impl Service {
    async fn handshake(
        &mut self,
        incoming: Incoming,
        config: ServerConfig,
    ) -> Result<Connection, String> {
        let connecting = incoming
            .accept_with(Arc::new(config))
            .map_err(|error| one_line(&error))?;
        let connection = connecting.await.map_err(|error| one_line(&error))?;
        self.connection = Some(connection.clone());
        Ok(connection)
    }

    /// Answers requests, one after the other, until the client closes the connection.
    async fn serve(&mut self, connection: &Connection) -> Result<(), String> {
        loop {
            let (send, mut receive) = match connection.accept_bi().await {
                Ok(streams) => streams,
                Err(ConnectionError::ApplicationClosed(close)) if close.error_code == DONE => {
                    return Ok(());
                }
                Err(error) => return Err(one_line(&error)),
            };
            let asked = receive.read_to_end(request::MAX_REQUEST).await;
            let answered = match asked.map_err(|error| one_line(&error)) {
                Ok(asked) => match request::parse(&asked).map_err(|error| one_line(&error)) {
                    Ok(body) => self.send(send, body).await,
                    Err(error) => Err(error),
                },
                Err(error) => Err(error),
            };
            if let Err(error) = answered {
                connection.close(FAILED, error.as_bytes());
                return Err(error);
            }
        }
    }

    /// Sends what was asked for, borrowed and not copied on its way to the packets. For each packet quinn goes through all
    /// unacknowledged pieces before it, hence long ones.
    async fn send(&mut self, mut stream: SendStream, body: Body) -> Result<(), String> {
        let mut offset = 0;
        while offset < body.length() {
            let length = (body.length() - offset).min(LONGEST as u64);
            let content = body.slice_at(offset, length as usize);
            stream
                .write_chunk(Bytes::from_static(content))
                .await
                .map_err(|error| one_line(&error))?;
            offset += length;
            self.bytes_sent += length;
        }
        stream.finish().map_err(|error| one_line(&error))
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use quicbed_contract::content::Checker;
    use quicbed_contract::options::CommonOptions;
    #[cfg(feature = "noop")]
    use quicbed_contract::options::{Aead, HeaderProtection};
    use quinn::{ClientConfig, Endpoint};

    use super::*;
    use crate::engine::session::ClientCrypto;
    use crate::engine::traffic::Traffic;
    use crate::library;
    use quicbed_rustls::tls::Trust;

    fn data(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../tls/rustls/tests/data")
            .join(name)
    }

    fn client_config(options: &CommonOptions) -> ClientConfig {
        let cryptography = Cryptography::of(options);
        let observation = Arc::<Observation>::default();
        let tls = Trust::from_file(&data("ca.pem"), &cryptography)
            .unwrap()
            .client_config(
                &cryptography,
                Arc::new(rustls::NoKeyLog),
                observation.clone(),
            );
        let crypto = ClientCrypto::new(Arc::new(tls), cryptography.initial(), observation);
        ClientConfig::new(Arc::new(crypto))
    }

    fn endpoint(options: &CommonOptions, meter: Meter, config: Option<ServerConfig>) -> Endpoint {
        let socket = Socket::bind("127.0.0.1:0".parse().unwrap(), options).unwrap();
        setup::endpoint(&socket, meter, options, config).unwrap().0
    }

    /// Downloads a few megabytes while both sides update their keys again and again.
    async fn download_with_key_updates(options: CommonOptions) {
        let options = CommonOptions {
            signature: "ecdsa-p-256".into(),
            ..options
        };
        let bytes = 8 << 20;
        let server = Server::new(&ServerOptions {
            listen: "127.0.0.1:0".parse().unwrap(),
            certificate: data("server.pem"),
            private_key: data("server.key"),
            content: vec![],
            www: None,
            retry: false,
            common: options.clone(),
        })
        .unwrap();
        let peers = Arc::<Peers>::default();
        let serving = endpoint(
            &options,
            Meter::Peers(peers.clone()),
            Some(server.config.clone()),
        );
        let address = serving.local_addr().unwrap();
        let task = tokio::spawn(async move {
            let incoming = serving.accept().await.unwrap();
            server.accept(0, incoming, peers).await
        });

        let traffic = Arc::<Traffic>::default();
        let connection = endpoint(&options, Meter::Connection(traffic), None)
            .connect_with(client_config(&options), address, "server.test")
            .unwrap()
            .await
            .unwrap();
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        let request = request::format(bytes);
        send.write_all(request.as_bytes()).await.unwrap();
        send.finish().unwrap();
        let mut content = Checker::new(bytes);
        let mut chunk = [Bytes::new()];
        let mut stream = library::read_chunks(&mut receive, &mut chunk).await;
        while stream.unwrap().is_some() {
            content.receive(&chunk[0]);
            connection.force_key_update();
            stream = library::read_chunks(&mut receive, &mut chunk).await;
        }
        assert_eq!(content.verdict(), Ok(()));
        connection.close(DONE, b"");
        let report = task.await.unwrap();
        assert_eq!(report.common.error, None);
        assert_eq!(report.bytes_sent, bytes);
    }

    #[test]
    fn keys_can_be_updated() {
        let runtime = setup::runtime().unwrap();
        runtime.block_on(download_with_key_updates(CommonOptions::default()));
    }

    #[cfg(feature = "noop")]
    #[test]
    fn keys_of_every_variant_can_be_updated() {
        let runtime = setup::runtime().unwrap();
        for aead in [Aead::Standard, Aead::Noop] {
            for header_protection in [HeaderProtection::On, HeaderProtection::Off] {
                runtime.block_on(download_with_key_updates(CommonOptions {
                    aead,
                    header_protection,
                    ..CommonOptions::default()
                }));
            }
        }
    }
}
