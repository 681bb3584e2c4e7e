//! The TLS session quinn drives, over the same rustls connection and with the same rustls keys as quinn's own, which keeps
//! that connection to itself: this one reads back what was negotiated and notes when the handshake is complete.

use std::any::Any;
use std::io::Cursor;
use std::sync::Arc;

use quicbed_rustls::probe::PacketProtection;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::crypto::{
    self, ExportKeyingMaterialError, HeaderKey, KeyPair, PacketKey, UnsupportedVersion,
};
use quinn::{ConnectError, Side, TransportErrorCode};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::TransportError;
use rustls::pki_types::ServerName;
use rustls::quic::{ClientConnection, ServerConnection};
use rustls::quic::{Connection, KeyChange, Keys, Secrets, Suite, Version};

use super::observation::Observation;
use crate::library::{self, DestinationId, Shared};

/// The QUIC version these endpoints speak, as on the wire (RFC 9000).
pub const QUIC_V1: u32 = 1;

/// TLS of one client connection.
pub struct ClientCrypto {
    tls: Arc<rustls::ClientConfig>,
    initial: Suite,
    /// quinn's own, for what needs no session: checking a Retry packet.
    quinn: Arc<QuicClientConfig>,
    observation: Arc<Observation>,
}

impl ClientCrypto {
    /// `initial` protects the Initial packets and has to be standard AES-128-GCM.
    pub fn new(
        tls: Arc<rustls::ClientConfig>,
        initial: Suite,
        observation: Arc<Observation>,
    ) -> Self {
        let quinn = QuicClientConfig::with_initial(tls.clone(), initial)
            .expect("Initial packets are protected with AES-128-GCM");
        Self {
            tls,
            initial,
            quinn: Arc::new(quinn),
            observation,
        }
    }
}

impl crypto::ClientConfig for ClientCrypto {
    fn start_session(
        self: Shared<Self>,
        version: u32,
        server_name: &str,
        params: &TransportParameters,
    ) -> Result<Box<dyn crypto::Session>, ConnectError> {
        let tls_version = tls_version(version)?;
        let invalid = || ConnectError::InvalidServerName(server_name.into());
        let name = ServerName::try_from(server_name)
            .map_err(|_| invalid())?
            .to_owned();
        let tls = ClientConnection::new(self.tls.clone(), tls_version, name, encode(params))
            .map_err(|_| invalid())?;
        let (quinn, params, server_name) = (self.quinn.clone(), *params, server_name.to_owned());
        let observation = self.observation.clone();
        let is_valid_retry = move |destination: DestinationId, header: &[u8], payload: &[u8]| {
            let session = crypto::ClientConfig::start_session(
                library::share(&quinn),
                version,
                &server_name,
                &params,
            );
            let valid = session.is_ok_and(|s| s.is_valid_retry(destination, header, payload));
            if valid {
                observation.retry();
            }
            valid
        };
        Ok(Box::new(Session {
            tls: Connection::Client(tls),
            side: Side::Client,
            version: tls_version,
            initial: self.initial,
            next_secrets: None,
            announced: false,
            is_valid_retry: Box::new(is_valid_retry),
            observation: self.observation.clone(),
        }))
    }
}

/// TLS of one server connection.
pub struct ServerCrypto {
    tls: Arc<rustls::ServerConfig>,
    initial: Suite,
    /// quinn's own, for what needs no session: Initial keys and Retry packets.
    quinn: Arc<QuicServerConfig>,
    observation: Arc<Observation>,
}

impl ServerCrypto {
    /// `initial` protects the Initial packets and has to be standard AES-128-GCM.
    pub fn new(
        tls: Arc<rustls::ServerConfig>,
        initial: Suite,
        observation: Arc<Observation>,
    ) -> Self {
        let quinn = QuicServerConfig::with_initial(tls.clone(), initial)
            .expect("Initial packets are protected with AES-128-GCM");
        Self {
            tls,
            initial,
            quinn: Arc::new(quinn),
            observation,
        }
    }
}

impl crypto::ServerConfig for ServerCrypto {
    fn initial_keys(
        &self,
        version: u32,
        destination: DestinationId,
    ) -> Result<crypto::Keys, UnsupportedVersion> {
        crypto::ServerConfig::initial_keys(&*self.quinn, version, destination)
    }

    fn retry_tag(&self, version: u32, destination: DestinationId, packet: &[u8]) -> [u8; 16] {
        crypto::ServerConfig::retry_tag(&*self.quinn, version, destination, packet)
    }

    fn start_session(
        self: Shared<Self>,
        version: u32,
        params: &TransportParameters,
    ) -> Box<dyn crypto::Session> {
        let version =
            tls_version(version).expect("quinn starts sessions of supported versions only");
        let tls = ServerConnection::new(self.tls.clone(), version, encode(params))
            .expect("the server's TLS configuration is fit for QUIC");
        Box::new(Session {
            tls: Connection::Server(tls),
            side: Side::Server,
            version,
            initial: self.initial,
            next_secrets: None,
            announced: false,
            is_valid_retry: Box::new(|_, _, _| false),
            observation: self.observation.clone(),
        })
    }
}

/// Whether a Retry packet is genuine: destination connection id of the first Initial packet, header and payload of the Retry.
type RetryCheck = dyn Fn(DestinationId, &[u8], &[u8]) -> bool + Send + Sync;

struct Session {
    tls: Connection,
    side: Side,
    version: Version,
    initial: Suite,
    next_secrets: Option<Secrets>,
    /// quinn has been told that `handshake_data` is there.
    announced: bool,
    is_valid_retry: Box<RetryCheck>,
    observation: Arc<Observation>,
}

impl crypto::Session for Session {
    fn initial_keys(&self, destination: DestinationId, side: Side) -> crypto::Keys {
        boxed(
            self.initial
                .keys(&destination[..], side.into(), self.version),
        )
    }

    /// The negotiated ALPN protocol as `Vec<u8>`.
    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        let protocol = self.tls.alpn_protocol()?.to_vec();
        Some(Box::new(protocol))
    }

    /// The endpoints never look at it: rustls has verified the certificate.
    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        None
    }

    /// There is no resumption, hence no 0-RTT.
    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        None
    }

    fn early_data_accepted(&self) -> Option<bool> {
        match self.side {
            Side::Client => Some(false),
            Side::Server => None,
        }
    }

    fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    fn read_handshake(&mut self, buf: &[u8]) -> Result<bool, TransportError> {
        let handshaking = self.tls.is_handshaking();
        self.tls.read_hs(buf).map_err(|error| {
            let code = self
                .tls
                .alert()
                .map_or(TransportErrorCode::PROTOCOL_VIOLATION, |alert| {
                    TransportErrorCode::crypto(alert.into())
                });
            library::transport_error(code, error.to_string())
        })?;
        if handshaking && !self.tls.is_handshaking() {
            self.observation.complete(&self.tls);
        }
        let ready = !self.announced && self.tls.alpn_protocol().is_some();
        self.announced |= ready;
        Ok(ready)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        self.tls
            .quic_transport_parameters()
            .map(|encoded| TransportParameters::read(self.side, &mut Cursor::new(encoded)))
            .transpose()
            .map_err(TransportError::from)
    }

    fn write_handshake(&mut self, buf: &mut Vec<u8>) -> Option<crypto::Keys> {
        match self.tls.write_hs(buf)? {
            KeyChange::Handshake { keys } => {
                let mut keys = boxed(keys);
                keys.header.local = Box::new(HandshakeKey {
                    key: keys.header.local,
                    observation: self.observation.clone(),
                });
                Some(keys)
            }
            KeyChange::OneRtt { keys, next } => {
                self.next_secrets = Some(next);
                self.observation.protect(PacketProtection::probe(
                    &*keys.local.packet,
                    &*keys.local.header,
                ));
                Some(boxed(keys))
            }
        }
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        let keys = self.next_secrets.as_mut()?.next_packet_keys();
        Some(KeyPair {
            local: Box::new(keys.local),
            remote: Box::new(keys.remote),
        })
    }

    fn is_valid_retry(&self, destination: DestinationId, header: &[u8], payload: &[u8]) -> bool {
        (self.is_valid_retry)(destination, header, payload)
    }

    fn export_keying_material(
        &self,
        output: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        self.tls
            .export_keying_material(output, label, Some(context))
            .map(drop)
            .map_err(|_| ExportKeyingMaterialError)
    }
}

/// A key of Handshake packets that tells when it is discarded: quinn has no other sign of the confirmed handshake.
struct HandshakeKey {
    key: Box<dyn HeaderKey>,
    observation: Arc<Observation>,
}

impl HeaderKey for HandshakeKey {
    fn decrypt(&self, packet_number_offset: usize, packet: &mut [u8]) {
        self.key.decrypt(packet_number_offset, packet);
    }

    fn encrypt(&self, packet_number_offset: usize, packet: &mut [u8]) {
        self.key.encrypt(packet_number_offset, packet);
    }

    fn sample_size(&self) -> usize {
        self.key.sample_size()
    }
}

impl Drop for HandshakeKey {
    fn drop(&mut self) {
        self.observation.discard_handshake_keys();
    }
}

fn tls_version(version: u32) -> Result<Version, UnsupportedVersion> {
    match version {
        QUIC_V1 => Ok(Version::V1),
        _ => Err(UnsupportedVersion),
    }
}

fn encode(params: &TransportParameters) -> Vec<u8> {
    let mut encoded = Vec::new();
    params.write(&mut encoded);
    encoded
}

/// rustls' keys in the boxes quinn implements its key traits for; quinn's own session makes the same ones.
fn boxed(keys: Keys) -> crypto::Keys {
    crypto::Keys {
        header: KeyPair {
            local: Box::new(keys.local.header),
            remote: Box::new(keys.remote.header),
        },
        packet: KeyPair {
            local: Box::new(keys.local.packet),
            remote: Box::new(keys.remote.packet),
        },
    }
}
