//! The client's part of ngtcp2: connections, and the one stream of each.

use std::net::SocketAddr;

use boring::ssl::SslContext;
use quicbed_contract::options::ClientOptions;
use quicbed_poll::answers::Outgoing;
use quicbed_poll::client::{Connector, Download};
use quicbed_poll::transfer::Transfer;
use quicbed_poll::Connection as _;

use crate::connection::{configure, Application, Connection};
use crate::Ngtcp2;

/// Makes connections.
pub struct Client {
    context: SslContext,
    /// ngtcp2 refers to it until it is acknowledged; it is the same on every connection.
    request: &'static str,
}

impl Connector for Client {
    type Library = Ngtcp2;
    type Connection = Connection<Stream>;

    fn new(options: &ClientOptions) -> Result<Self, String> {
        let context = quicbed_boringssl::client(options)?;
        Ok(Client {
            context: configure(context, &options.common, false)?,
            request: Box::leak(options.request().into_boxed_str()),
        })
    }

    fn connect(
        &mut self,
        options: &ClientOptions,
        local: SocketAddr,
    ) -> Result<Self::Connection, String> {
        let stream = Stream {
            request: self.request,
            asked: 0,
            asked_for_all: false,
            id: None,
            transfer: Transfer::new(options.checker()),
        };
        Connection::connect(
            &self.context,
            &options.common,
            &options.server_name,
            local,
            options.connect,
            stream,
        )
    }
}

/// The one stream of a download: the request, then the content.
pub struct Stream {
    request: &'static str,
    asked: usize,
    asked_for_all: bool,
    id: Option<u64>,
    transfer: Transfer,
}

impl Application for Stream {
    fn received(&mut self, _: u64, bytes: &[u8], last: bool) {
        self.transfer.received(bytes, last);
    }

    fn reset(&mut self, _: u64, code: u64) {
        self.transfer.reset(code);
    }

    fn next(&self, blocked: &[u64]) -> Option<Outgoing> {
        let stream = self.id?;
        (!self.asked_for_all && !blocked.contains(&stream)).then(|| Outgoing {
            stream,
            bytes: &self.request.as_bytes()[self.asked..],
            last: true,
        })
    }

    fn taken(&mut self, _: u64, length: usize) {
        self.asked += length;
        self.asked_for_all = self.asked == self.request.len();
    }
}

impl Download for Connection<Stream> {
    fn exchange(&mut self, _: &mut [u8]) -> Result<(), String> {
        if self.is_established() && self.application().id.is_none() {
            let id = self.open_stream();
            self.application_mut().id = id;
        }
        Ok(())
    }

    fn has_asked(&self) -> bool {
        self.application().asked_for_all
    }

    fn transfer(&self) -> &Transfer {
        &self.application().transfer
    }

    fn confirmed(&self) -> Option<u64> {
        Connection::confirmed(self)
    }

    fn after_retry(&self) -> Option<bool> {
        Some(Connection::after_retry(self))
    }
}
