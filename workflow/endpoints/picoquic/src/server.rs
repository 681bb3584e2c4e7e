//! The server's part of picoquic: what arrives, and connections.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use quicbed_contract::options::ServerOptions;
use quicbed_poll::answers::{Answers, Outgoing};
use quicbed_poll::server::{Arrival, ConnectionId, Listener, Serve};

use crate::connection::{random, Address, Application, Connection};
use crate::endpoint::{self, Endpoint};
use crate::header::Header;
use crate::{ffi, Picoquic};

/// Makes connections.
pub struct Server {
    endpoint: Endpoint,
    local: Address,
}

/// A client's Initial packet.
pub struct Initial {
    header: Header,
    /// picoquic makes a Retry packet out of the whole datagram.
    datagram: Vec<u8>,
}

impl Listener for Server {
    type Library = Picoquic;
    type Connection = Connection<Answers>;
    type Header = Header;
    type Initial = Initial;
    /// picoquic reads it again with the packet.
    type Token = ();

    const ID_LENGTH: usize = ffi::ID_LENGTH;

    fn new(options: &ServerOptions) -> Result<Self, String> {
        Ok(Server {
            endpoint: endpoint::server::<Answers>(options)?,
            local: Address::from(options.listen),
        })
    }

    fn header(&self, datagram: &mut [u8]) -> Option<Header> {
        Header::read(datagram)
    }

    fn destination(header: &Header) -> &[u8] {
        &header.destination
    }

    fn arrival(&self, header: Header, datagram: &[u8]) -> Arrival<Initial> {
        match &header.token {
            _ if header.version == 0 => Arrival::Nothing,
            _ if header.is_of_other_version() => Arrival::OtherVersion,
            None => Arrival::Nothing,
            Some(_) => Arrival::Initial(Initial {
                header,
                datagram: datagram.to_vec(),
            }),
        }
    }

    fn negotiate_version(&self, datagram: &mut [u8], space: &mut [u8]) -> usize {
        let unused = random::<1>().map_or(0, |[byte]| byte);
        Header::read(datagram).map_or(0, |header| header.negotiate_version(unused, space))
    }

    fn addressed(initial: &Initial) -> &[u8] {
        &initial.header.destination
    }

    fn new_id(&self) -> io::Result<ConnectionId> {
        let id = random::<{ ffi::ID_LENGTH }>();
        id.map(|id| id.to_vec()).map_err(io::Error::other)
    }

    fn retry(
        &self,
        initial: &Initial,
        id: &[u8],
        from: SocketAddr,
        space: &mut [u8],
    ) -> io::Result<usize> {
        let mut datagram = initial.datagram.clone();
        let from = Address::from(from);
        debug_assert_eq!(id.len(), ffi::ID_LENGTH);
        // SAFETY: everything passed is valid during the call.
        Ok(unsafe {
            ffi::qp_retry(
                self.endpoint.as_ptr(),
                datagram.as_mut_ptr(),
                datagram.len(),
                from.pointer(),
                self.local.pointer(),
                id.as_ptr(),
                space.as_mut_ptr(),
                space.len(),
            )
        })
    }

    fn verify(&self, initial: &Initial, from: SocketAddr) -> Option<()> {
        let Header {
            destination, token, ..
        } = &initial.header;
        let token = token.as_deref().unwrap_or_default();
        let from = Address::from(from);
        // SAFETY: everything passed is valid during the call.
        let genuine = unsafe {
            ffi::qp_token_is_genuine(
                self.endpoint.as_ptr(),
                token.as_ptr(),
                token.len(),
                from.pointer(),
                destination.as_ptr(),
                destination.len(),
            )
        };
        genuine.then_some(())
    }

    fn accept(
        &mut self,
        _: &ServerOptions,
        initial: &Initial,
        token: Option<()>,
        id: &[u8],
        local: SocketAddr,
        from: SocketAddr,
    ) -> io::Result<Self::Connection> {
        // After a Retry packet the client has the ID that the token is bound to; picoquic takes a new one all the same.
        debug_assert!(token.is_none() || initial.header.destination.len() == id.len());
        Connection::accept(self.endpoint, id, local, from, Answers::default())
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

    fn next(&self) -> Option<Outgoing> {
        Answers::next(self, &[])
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
        Duration::from_micros(self.facts().draining_us)
    }
}
