//! The client's part of picoquic: connections, and the one stream of each.

use std::net::SocketAddr;

use quicbed_contract::options::ClientOptions;
use quicbed_poll::answers::Outgoing;
use quicbed_poll::client::{Connector, Download};
use quicbed_poll::transfer::Transfer;
use quicbed_poll::Connection as _;

use crate::connection::{Application, Connection};
use crate::endpoint::{self, Endpoint};
use crate::{io, Picoquic};

/// Makes connections.
pub struct Client {
    endpoint: Endpoint,
    /// The same on every connection.
    request: &'static str,
}

impl Connector for Client {
    type Library = Picoquic;
    type Connection = Connection<Stream>;

    fn new(options: &ClientOptions) -> Result<Self, String> {
        Ok(Client {
            endpoint: endpoint::client::<Stream>(options)?,
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
            id: None,
            transfer: Transfer::new(options.checker()),
        };
        Connection::connect(self.endpoint, local, options.connect, stream)
    }
}

/// The one stream of a download: the request, then the content.
pub struct Stream {
    request: &'static str,
    asked: usize,
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

    fn next(&self) -> Option<Outgoing> {
        (self.asked < self.request.len()).then(|| Outgoing {
            stream: self.id.unwrap_or(0),
            bytes: &self.request.as_bytes()[self.asked..],
            last: true,
            length: self.request.len() as u64,
        })
    }

    fn taken(&mut self, _: u64, length: usize) {
        self.asked += length;
    }
}

impl Download for Connection<Stream> {
    fn exchange(&mut self, _: &mut [u8]) -> Result<(), String> {
        if self.application().id.is_none() && self.is_established() {
            let id = self.open_stream();
            self.application_mut().id = Some(id);
        }
        io::lost(self.application().transfer.is_finished()).map_or(Ok(()), Err)
    }

    fn has_asked(&self) -> bool {
        let stream = self.application();
        stream.asked == stream.request.len()
    }

    fn transfer(&self) -> &Transfer {
        &self.application().transfer
    }

    fn confirmed(&self) -> Option<u64> {
        self.confirmed_at()
    }

    fn after_retry(&self) -> Option<bool> {
        Some(self.facts().retried)
    }
}
