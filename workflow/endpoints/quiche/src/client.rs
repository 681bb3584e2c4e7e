//! The client's part of quiche: connections, and the one stream of each.

use std::net::SocketAddr;

use quicbed_contract::clock::now_ns;
use quicbed_contract::options::{Alpn, ClientOptions};
use quicbed_poll::client::{Connector, Download};
use quicbed_poll::transfer::Transfer;

use crate::connection::{new_connection_id, Connection, QuicheConnection, Role};
use crate::http3::Http3;
use crate::{configure, noop, pq, Quiche};

/// The client's first bidirectional stream (RFC 9000, section 2.1).
const STREAM: u64 = 0;

/// Makes connections.
pub struct Client {
    config: quiche::Config,
}

impl Connector for Client {
    type Library = Quiche;
    type Connection = Connection<Stream>;

    fn new(options: &ClientOptions) -> Result<Self, String> {
        let config = configure(quicbed_boringssl::client(options)?, &options.common)?;
        noop::apply(&options.common);
        Ok(Client { config })
    }

    fn connect(
        &mut self,
        options: &ClientOptions,
        local: SocketAddr,
    ) -> Result<Self::Connection, String> {
        let failed = |error: &dyn std::error::Error| format!("cannot make a connection: {error}");
        let id = quiche::ConnectionId::from_vec(new_connection_id().map_err(|e| failed(&e))?);
        let name = Some(options.server_name.as_str());
        let (peer, config) = (options.connect, &mut self.config);
        let quiche = quiche::connect_with_buffer_factory(name, &id, local, peer, config)
            .map_err(|e| failed(&e))?;
        let stream = Stream {
            request: options.request(),
            path: options.path(),
            authority: options.server_name.clone(),
            http3: None,
            asked: false,
            transfer: Transfer::new(options.checker()),
            confirmed: None,
        };
        let common = &options.common;
        Ok(Connection::new(quiche, stream, common, local, peer))
    }
}

/// The one stream of a download: the request, then the content.
pub struct Stream {
    request: String,
    path: String,
    authority: String,
    /// From the request on, where HTTP/3 is spoken.
    http3: Option<Http3>,
    asked: bool,
    transfer: Transfer,
    confirmed: Option<u64>,
}

impl Role for Stream {
    fn received(&mut self, connection: &QuicheConnection) {
        if self.confirmed.is_none() && pq::is_confirmed(connection) == Some(true) {
            self.confirmed = Some(now_ns());
        }
    }
}

impl Download for Connection<Stream> {
    fn exchange(&mut self, chunk: &mut [u8]) -> Result<(), String> {
        if !self.quiche.is_established() {
            return Ok(());
        }
        if self.alpn == Alpn::H3 {
            return self.exchange_http3(chunk);
        }
        let Connection { quiche, role, .. } = self;
        let failed = |error| format!("quiche: {error}");
        if !role.asked {
            quiche
                .stream_send(STREAM, role.request.as_bytes(), true)
                .map_err(failed)?;
            role.asked = true;
        }
        while !role.transfer.is_finished() {
            match quiche.stream_recv(STREAM, chunk) {
                Ok((length, last)) => role.transfer.received(&chunk[..length], last),
                Err(quiche::Error::Done) => break,
                Err(quiche::Error::StreamReset(code)) => {
                    role.transfer.reset(code);
                    break;
                }
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(())
    }

    fn has_asked(&self) -> bool {
        self.role.asked
    }

    fn transfer(&self) -> &Transfer {
        &self.role.transfer
    }

    fn confirmed(&self) -> Option<u64> {
        self.role.confirmed
    }

    /// The server's parameters, which TLS authenticates, say whether there was a Retry packet.
    fn after_retry(&self) -> Option<bool> {
        let parameters = self.quiche.peer_transport_params()?;
        Some(parameters.retry_source_connection_id.is_some())
    }
}

impl Connection<Stream> {
    fn exchange_http3(&mut self, chunk: &mut [u8]) -> Result<(), String> {
        let Connection { quiche, role, .. } = self;
        let http3 = match &mut role.http3 {
            Some(http3) => http3,
            none => none.insert(Http3::ask(quiche, &role.authority, &role.path)?),
        };
        role.asked = true;
        http3.receive(quiche, chunk, &mut role.transfer)
    }
}
