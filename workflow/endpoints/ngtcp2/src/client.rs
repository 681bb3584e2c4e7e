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
        self.connect_for(options, local, Transfer::new(options.checker()))
    }
}

impl Client {
    /// The same, with what takes the answer.
    pub fn connect_for<A: Answer>(
        &self,
        options: &ClientOptions,
        local: SocketAddr,
        answer: A,
    ) -> Result<Connection<Stream<A>>, String> {
        let stream = Stream {
            request: self.request,
            asked: 0,
            asked_for_all: false,
            id: None,
            answer,
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

/// What takes the answer to a request.
pub trait Answer {
    /// Bytes have arrived, in order; `last` with the end of the stream.
    fn received(&mut self, bytes: &[u8], last: bool);

    /// The server has given up sending.
    fn reset(&mut self, code: u64);
}

impl Answer for Transfer {
    fn received(&mut self, bytes: &[u8], last: bool) {
        Transfer::received(self, bytes, last);
    }

    fn reset(&mut self, code: u64) {
        Transfer::reset(self, code);
    }
}

/// The one stream of a download: the request, then the content.
pub struct Stream<A = Transfer> {
    request: &'static str,
    asked: usize,
    asked_for_all: bool,
    id: Option<u64>,
    pub answer: A,
}

impl<A: Answer> Connection<Stream<A>> {
    /// Opens the stream of the request as soon as the connection is established.
    pub fn ask(&mut self) {
        if self.is_established() && self.application().id.is_none() {
            let id = self.open_stream();
            self.application_mut().id = id;
        }
    }

    /// Whether the library has all of the request.
    pub fn asked(&self) -> bool {
        self.application().asked_for_all
    }
}

impl<A: Answer> Application for Stream<A> {
    fn received(&mut self, _: u64, bytes: &[u8], last: bool) {
        self.answer.received(bytes, last);
    }

    fn reset(&mut self, _: u64, code: u64) {
        self.answer.reset(code);
    }

    fn next(&self, blocked: &[u64]) -> Option<Outgoing> {
        let stream = self.id?;
        (!self.asked_for_all && !blocked.contains(&stream)).then(|| Outgoing {
            stream,
            bytes: &self.request.as_bytes()[self.asked..],
            last: true,
            length: self.request.len() as u64,
        })
    }

    fn taken(&mut self, _: u64, length: usize) {
        self.asked += length;
        self.asked_for_all = self.asked == self.request.len();
    }
}

impl Download for Connection<Stream> {
    fn exchange(&mut self, _: &mut [u8]) -> Result<(), String> {
        self.ask();
        Ok(())
    }

    fn has_asked(&self) -> bool {
        self.asked()
    }

    fn transfer(&self) -> &Transfer {
        &self.application().answer
    }

    fn confirmed(&self) -> Option<u64> {
        Connection::confirmed(self)
    }

    fn after_retry(&self) -> Option<bool> {
        Some(Connection::after_retry(self))
    }
}
