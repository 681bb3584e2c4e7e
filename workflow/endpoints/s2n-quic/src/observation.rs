//! What s2n-quic's events tell of a connection.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard};

use quicbed_contract::clock::{now_ns, CpuTime};
use quicbed_contract::events::{ConnectionCommon, Role};
use quicbed_contract::options::{Aead, Cipher, HeaderProtection};
use quicbed_contract::tls;
use s2n_quic::provider::event;
use s2n_quic::provider::event::events::{
    ApplicationProtocolInformation, CipherSuite, ConnectionClosed, DatagramReceived, DatagramSent,
    Frame, FrameSent, HandshakeStatus, HandshakeStatusUpdated, KeyExchangeGroup, PacketHeader,
    PacketLost, PacketReceived, TlsExporterReady, TlsHandshakeFailed, TlsServerHello,
};
use s2n_quic::provider::event::{ConnectionInfo, ConnectionMeta};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::Notify;

/// Offset and value of `random` in a ServerHello that is a HelloRetryRequest (RFC 8446, section 4.1.3), behind four
/// bytes of handshake header and two of version.
const RANDOM_OFFSET: usize = 6;
const HELLO_RETRY_REQUEST: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91,
    0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

/// A moment: time in nanoseconds of CLOCK_MONOTONIC, and CPU time the process had used by then.
#[derive(Clone, Copy, Debug)]
pub struct Stamp {
    pub t: u64,
    pub cpu: CpuTime,
}

impl Stamp {
    pub fn now() -> Self {
        Self {
            t: now_ns(),
            cpu: CpuTime::now(),
        }
    }
}

/// UDP datagrams, bytes of UDP payload, and QUIC packets lost.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    datagrams_sent: u64,
    bytes_sent: u64,
    datagrams_received: u64,
    bytes_received: u64,
    packets_lost: u64,
}

/// What is known of a connection; a field is `None` until it is.
#[derive(Clone, Debug, Default)]
struct Observed {
    first_sent: Option<Stamp>,
    created: Option<Stamp>,
    request_sent: Option<u64>,
    complete: Option<u64>,
    confirmed: Option<u64>,
    closed: Option<Stamp>,
    handshake: Option<Counts>,
    total: Option<Counts>,
    retry: bool,
    hello_retry_request: Option<bool>,
    cipher: Option<&'static str>,
    group: Option<&'static str>,
    signature: Option<&'static str>,
    alpn: Option<String>,
    tls_error: Option<String>,
    /// Why the connection ended, if not because the client had everything.
    failure: Option<String>,
}

/// Collects what is told of a connection.
#[derive(Debug, Default)]
pub struct Observation {
    observed: Mutex<Observed>,
    /// Bytes of content given to the library.
    pub bytes_sent: AtomicU64,
    departed: Notify,
}

impl Observation {
    fn lock(&self) -> MutexGuard<'_, Observed> {
        self.observed
            .lock()
            .expect("nothing panics while observing")
    }

    /// Just before the first datagram was handed over.
    pub fn first_sent(&self) -> Option<Stamp> {
        self.lock().first_sent
    }

    /// Just before the first datagram with a part of the request was handed over.
    pub fn request_sent(&self) -> Option<u64> {
        self.lock().request_sent
    }

    /// When the server's first datagram of the connection was received.
    pub fn created(&self) -> Option<Stamp> {
        self.lock().created
    }

    /// When the connection was closed.
    pub fn closed(&self) -> Option<Stamp> {
        self.lock().closed
    }

    /// Why the connection failed, `None` if it did not.
    pub fn failure(&self) -> Option<String> {
        self.lock().failure.clone()
    }

    /// What TLS said about a failed handshake.
    pub fn tls_error(&self) -> Option<String> {
        self.lock().tls_error.clone()
    }

    /// Notes why the connection will be closed; the first reason counts.
    pub fn fail(&self, reason: &str) {
        let mut observed = self.lock();
        observed.failure.get_or_insert_with(|| reason.into());
    }

    /// A Retry packet was sent before this connection.
    pub fn retry(&self) {
        self.lock().retry = true;
    }

    /// Waits until the last datagram is on its way.
    pub async fn departed(&self) {
        self.departed.notified().await;
    }

    /// Fills in what is known. Packets are UDP datagrams; a datagram of a handshake can hold several QUIC packets.
    pub fn report(
        &self,
        common: &mut ConnectionCommon,
        role: Role,
        protection: (Aead, HeaderProtection),
    ) {
        let observed = self.lock().clone();
        common.t_handshake_complete = observed.complete;
        common.t_handshake_confirmed = observed.confirmed;
        common.hello_retry_request = match role {
            Role::Client => observed.hello_retry_request,
            _ => None,
        };
        common.retry = Some(observed.retry);
        common.cipher = observed.cipher;
        common.group = observed.group;
        common.signature = observed.signature;
        common.alpn = observed.alpn;
        if let Some(handshake) = observed.handshake {
            // s2n-tls negotiates nothing else for QUIC.
            common.tls_version = Some("TLSv1.3".into());
            common.aead = Some(protection.0);
            common.header_protection = Some(protection.1);
            common.handshake_packets_sent = Some(handshake.datagrams_sent);
            common.handshake_packets_received = Some(handshake.datagrams_received);
            common.handshake_bytes_sent = Some(handshake.bytes_sent);
            common.handshake_bytes_received = Some(handshake.bytes_received);
        }
        if let Some(total) = observed.total {
            common.packets_sent = Some(total.datagrams_sent);
            common.packets_received = Some(total.datagrams_received);
            common.packets_lost = Some(total.packets_lost);
        }
    }
}

/// What the subscriber keeps of one connection: counts of its own, and what it shares with the rest of the program.
pub struct Connection {
    counts: Counts,
    closed: bool,
    request_sent: bool,
    pub observation: Arc<Observation>,
}

/// Subscribes to the events of all connections.
pub struct Subscriber<const CLIENT: bool> {
    /// What observes the next connection; a new one for each if there is none.
    observation: Option<Arc<Observation>>,
    /// Where observations of closed connections go.
    closed: Option<UnboundedSender<Arc<Observation>>>,
}

impl Subscriber<true> {
    /// For a client's single connection.
    pub fn of_client(observation: Arc<Observation>) -> Self {
        Self {
            observation: Some(observation),
            closed: None,
        }
    }
}

impl Subscriber<false> {
    /// For a server.
    pub fn of_server(closed: UnboundedSender<Arc<Observation>>) -> Self {
        Self {
            observation: None,
            closed: Some(closed),
        }
    }
}

impl<const CLIENT: bool> event::Subscriber for Subscriber<CLIENT> {
    type ConnectionContext = Connection;

    fn create_connection_context(&mut self, _: &ConnectionMeta, _: &ConnectionInfo) -> Connection {
        let observation = self.observation.clone().unwrap_or_default();
        observation.lock().created = Some(Stamp::now());
        Connection {
            counts: Counts::default(),
            closed: false,
            request_sent: false,
            observation,
        }
    }

    fn on_datagram_sent(
        &mut self,
        context: &mut Connection,
        _: &ConnectionMeta,
        event: &DatagramSent,
    ) {
        if CLIENT && context.counts.datagrams_sent == 0 {
            let mut observed = context.observation.lock();
            observed.first_sent.get_or_insert_with(Stamp::now);
        }
        context.counts.datagrams_sent += 1;
        context.counts.bytes_sent += u64::from(event.len);
        if context.closed {
            context.observation.departed.notify_one();
        }
    }

    fn on_datagram_received(
        &mut self,
        context: &mut Connection,
        _: &ConnectionMeta,
        event: &DatagramReceived,
    ) {
        context.counts.datagrams_received += 1;
        context.counts.bytes_received += u64::from(event.len);
    }

    fn on_packet_received(
        &mut self,
        context: &mut Connection,
        _: &ConnectionMeta,
        event: &PacketReceived,
    ) {
        if CLIENT && matches!(event.packet_header, PacketHeader::Retry { .. }) {
            context.observation.retry();
        }
    }

    fn on_packet_lost(&mut self, context: &mut Connection, _: &ConnectionMeta, _: &PacketLost) {
        context.counts.packets_lost += 1;
    }

    fn on_frame_sent(&mut self, context: &mut Connection, _: &ConnectionMeta, event: &FrameSent) {
        if CLIENT && !context.request_sent && matches!(event.frame, Frame::Stream { .. }) {
            context.request_sent = true;
            context.observation.lock().request_sent = Some(now_ns());
        }
    }

    fn on_tls_server_hello(
        &mut self,
        context: &mut Connection,
        _: &ConnectionMeta,
        event: &TlsServerHello,
    ) {
        let hello = event.payload.concat();
        let random = hello.get(RANDOM_OFFSET..RANDOM_OFFSET + HELLO_RETRY_REQUEST.len());
        let mut observed = context.observation.lock();
        let seen = observed.hello_retry_request == Some(true);
        observed.hello_retry_request = Some(seen || random == Some(&HELLO_RETRY_REQUEST));
    }

    fn on_application_protocol_information(
        &mut self,
        context: &mut Connection,
        _: &ConnectionMeta,
        event: &ApplicationProtocolInformation,
    ) {
        let alpn = String::from_utf8_lossy(event.chosen_application_protocol).into_owned();
        context.observation.lock().alpn = Some(alpn);
    }

    fn on_key_exchange_group(
        &mut self,
        context: &mut Connection,
        _: &ConnectionMeta,
        event: &KeyExchangeGroup,
    ) {
        let known = tls::GROUPS
            .iter()
            .find(|group| group.tls_name == event.chosen_group_name);
        context.observation.lock().group = known.map(|group| group.tls_name);
    }

    fn on_tls_exporter_ready(
        &mut self,
        context: &mut Connection,
        _: &ConnectionMeta,
        event: &TlsExporterReady,
    ) {
        let cipher = match event.session.cipher_suite() {
            CipherSuite::TLS_AES_128_GCM_SHA256 { .. } => Some(Cipher::Aes128Gcm),
            CipherSuite::TLS_AES_256_GCM_SHA384 { .. } => Some(Cipher::Aes256Gcm),
            CipherSuite::TLS_CHACHA20_POLY1305_SHA256 { .. } => Some(Cipher::ChaCha20Poly1305),
            _ => None,
        };
        let mut observed = context.observation.lock();
        observed.cipher = cipher.map(Cipher::iana);
        observed.signature = event.session.signature_scheme();
    }

    fn on_tls_handshake_failed(
        &mut self,
        context: &mut Connection,
        _: &ConnectionMeta,
        event: &TlsHandshakeFailed,
    ) {
        context.observation.lock().tls_error = Some(event.error.to_string());
    }

    fn on_handshake_status_updated(
        &mut self,
        context: &mut Connection,
        _: &ConnectionMeta,
        event: &HandshakeStatusUpdated,
    ) {
        let now = now_ns();
        let mut observed = context.observation.lock();
        match event.status {
            HandshakeStatus::Complete { .. } => {
                observed.complete = Some(now);
                observed.handshake = Some(context.counts);
            }
            // On the server both are one moment (RFC 9001, section 4.1.2).
            HandshakeStatus::Confirmed { .. } if !CLIENT => observed.confirmed = observed.complete,
            HandshakeStatus::Confirmed { .. } => observed.confirmed = Some(now),
            _ => {}
        }
    }

    fn on_connection_closed(
        &mut self,
        context: &mut Connection,
        _: &ConnectionMeta,
        event: &ConnectionClosed,
    ) {
        context.closed = true;
        let mut observed = context.observation.lock();
        observed.closed = Some(Stamp::now());
        observed.total = Some(context.counts);
        let early = || "closed before the handshake was complete".to_owned();
        let reason = reason(&event.error, observed.tls_error.as_deref())
            .or_else(|| observed.complete.is_none().then(early));
        if let Some(reason) = reason {
            observed.failure.get_or_insert(reason);
        }
        drop(observed);
        if let Some(closed) = &self.closed {
            // The program is about to end if nobody wants to know any more.
            let _ = closed.send(context.observation.clone());
        }
    }
}

/// Why a connection was closed, `None` if by an end that was done.
pub fn reason(error: &s2n_quic::connection::Error, tls_error: Option<&str>) -> Option<String> {
    use s2n_quic::connection::Error;
    match error {
        Error::Closed { .. } => None,
        Error::Application { error, .. } if **error == 0 => None,
        Error::Transport { .. } => Some(tls_error.map_or_else(|| error.to_string(), str::to_owned)),
        _ => Some(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_is_done_is_no_failure() {
        use s2n_quic::connection::Error;
        use s2n_quic_core::{frame::ConnectionClose, transport, varint::VarInt};
        let closed = |code| {
            Error::from(ConnectionClose {
                error_code: VarInt::from_u8(code),
                frame_type: None,
                reason: None,
            })
        };
        assert_eq!(reason(&closed(0), None), None);
        let failed = reason(&closed(1), None).unwrap();
        assert!(failed.contains("application"), "{failed}");
        let refused = Error::from(transport::Error::INTERNAL_ERROR);
        assert!(reason(&refused, None).is_some());
        assert_eq!(reason(&refused, Some("why")), Some("why".into()));
    }
}
