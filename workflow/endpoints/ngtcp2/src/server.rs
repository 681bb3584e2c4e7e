//! The server's part of ngtcp2: what arrives, and connections.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use boring::ssl::SslContext;
use quicbed_contract::options::ServerOptions;
use quicbed_poll::answers::{Answers, Outgoing};
use quicbed_poll::server::{self, ConnectionId, Listener, Serve};

use crate::connection::{
    arrival, configure, header, new_connection_id, write_version_negotiation, Application, Arrival,
    Connection, Header, Retried, RetryTokens,
};
use crate::{Ngtcp2, CONNECTION_ID_LENGTH};

/// Makes connections.
pub struct Server {
    context: SslContext,
    tokens: RetryTokens,
}

impl Listener for Server {
    type Library = Ngtcp2;
    type Connection = Connection<Answers>;
    type Header = Header;
    type Initial = Arrival;
    type Token = Retried;

    const ID_LENGTH: usize = CONNECTION_ID_LENGTH;

    fn new(options: &ServerOptions) -> Result<Self, String> {
        let context = quicbed_boringssl::server(options)?;
        Ok(Server {
            context: configure(context, &options.common, true)?,
            tokens: RetryTokens::new()?,
        })
    }

    fn header(&self, datagram: &mut [u8]) -> Option<Header> {
        header(datagram)
    }

    fn destination(header: &Header) -> &[u8] {
        match header {
            Header::Version(id, _) | Header::Destination(id) => id,
        }
    }

    fn arrival(&self, header: Header, datagram: &[u8]) -> server::Arrival<Arrival> {
        match header {
            Header::Version(..) => server::Arrival::OtherVersion,
            Header::Destination(_) => {
                arrival(datagram).map_or(server::Arrival::Nothing, server::Arrival::Initial)
            }
        }
    }

    fn negotiate_version(&self, datagram: &mut [u8], space: &mut [u8]) -> usize {
        match header(datagram) {
            Some(Header::Version(destination, source)) => {
                write_version_negotiation(space, &destination, &source)
            }
            _ => 0,
        }
    }

    fn addressed(initial: &Arrival) -> &[u8] {
        &initial.destination
    }

    fn new_id(&self) -> io::Result<ConnectionId> {
        new_connection_id().map_err(io::Error::other)
    }

    fn retry(
        &self,
        initial: &Arrival,
        id: &[u8],
        from: SocketAddr,
        space: &mut [u8],
    ) -> io::Result<usize> {
        let written = self.tokens.write(space, initial, id, from);
        written.map_err(io::Error::other)
    }

    fn verify(&self, initial: &Arrival, from: SocketAddr) -> Option<Retried> {
        self.tokens.verify(initial, from)
    }

    fn accept(
        &mut self,
        options: &ServerOptions,
        initial: &Arrival,
        token: Option<Retried>,
        id: &[u8],
        local: SocketAddr,
        from: SocketAddr,
    ) -> io::Result<Self::Connection> {
        Connection::accept(
            &self.context,
            &options.common,
            initial,
            token.as_ref(),
            id,
            local,
            from,
            Answers::default(),
        )
        .map_err(io::Error::other)
    }
}

impl Application for Answers {
    fn received(&mut self, stream: u64, bytes: &[u8], last: bool) {
        Answers::received(self, stream, bytes, last);
    }

    fn reset(&mut self, stream: u64, _: u64) {
        Answers::reset(self, stream);
    }

    fn next(&self, blocked: &[u64]) -> Option<Outgoing> {
        Answers::next(self, blocked)
    }

    fn taken(&mut self, stream: u64, length: usize) {
        Answers::taken(self, stream, length);
    }
}

impl Serve for Connection<Answers> {
    fn exchange(&mut self) {}

    fn answers(&mut self) -> &mut Answers {
        self.application_mut()
    }

    fn take_ids(&mut self) -> (Vec<ConnectionId>, Vec<ConnectionId>) {
        Connection::take_ids(self)
    }

    fn draining_time(&self) -> Duration {
        Connection::draining_time(self)
    }
}
