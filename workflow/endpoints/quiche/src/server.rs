//! The server's part of quiche: what arrives, connections, and their streams.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use quicbed_contract::options::{Alpn, ServerOptions};
use quicbed_contract::request::MAX_REQUEST;
use quicbed_poll::answers::{Answers, Outgoing};
use quicbed_poll::server::{Arrival, ConnectionId, Listener, Serve};
use quiche::h3;

use crate::connection::{
    new_connection_id, Connection, QuicheConnection, Role, CONNECTION_ID_LENGTH,
};
use crate::http3::{failed, Http3};
use crate::token::Tokens;
use crate::{configure, noop, Quiche};

/// Makes connections.
pub struct Server {
    config: quiche::Config,
    tokens: Tokens,
}

/// The header of a client's Initial packet.
type Header = quiche::Header<'static>;

impl Listener for Server {
    type Library = Quiche;
    type Connection = Connection<Streams>;
    type Header = Header;
    type Initial = Header;
    /// Destination of the client's first Initial packet.
    type Token = Vec<u8>;

    const ID_LENGTH: usize = CONNECTION_ID_LENGTH;

    fn new(options: &ServerOptions) -> Result<Self, String> {
        let config = configure(quicbed_boringssl::server(options)?, &options.common)?;
        noop::apply(&options.common);
        let tokens = Tokens::new()?;
        Ok(Server { config, tokens })
    }

    fn header(&self, datagram: &mut [u8]) -> Option<Header> {
        quiche::Header::from_slice(datagram, CONNECTION_ID_LENGTH).ok()
    }

    fn destination(header: &Header) -> &[u8] {
        header.dcid.as_ref()
    }

    fn arrival(&self, header: Header, _: &[u8]) -> Arrival<Header> {
        match header.ty {
            quiche::Type::VersionNegotiation => Arrival::Nothing,
            _ if !quiche::version_is_supported(header.version) => Arrival::OtherVersion,
            quiche::Type::Initial => Arrival::Initial(header),
            _ => Arrival::Nothing,
        }
    }

    fn negotiate_version(&self, datagram: &mut [u8], space: &mut [u8]) -> usize {
        let answer = quiche::Header::from_slice(datagram, CONNECTION_ID_LENGTH)
            .and_then(|header| quiche::negotiate_version(&header.scid, &header.dcid, space));
        answer.unwrap_or(0)
    }

    fn addressed(initial: &Header) -> &[u8] {
        initial.dcid.as_ref()
    }

    fn new_id(&self) -> io::Result<ConnectionId> {
        new_connection_id()
    }

    fn retry(
        &self,
        initial: &Header,
        id: &[u8],
        from: SocketAddr,
        space: &mut [u8],
    ) -> io::Result<usize> {
        let token = self.tokens.make(&initial.dcid, id, from);
        let token = token.map_err(io::Error::other)?;
        let id = quiche::ConnectionId::from_ref(id);
        let (scid, dcid, version) = (&initial.scid, &initial.dcid, initial.version);
        quiche::retry(scid, dcid, &id, &token, version, space).map_err(io::Error::other)
    }

    fn verify(&self, initial: &Header, from: SocketAddr) -> Option<Vec<u8>> {
        let token = initial.token.as_deref().unwrap_or_default();
        let original = self.tokens.verify(token, &initial.dcid, from)?;
        Some(original.to_vec())
    }

    fn accept(
        &mut self,
        options: &ServerOptions,
        initial: &Header,
        token: Option<Vec<u8>>,
        id: &[u8],
        local: SocketAddr,
        from: SocketAddr,
    ) -> io::Result<Self::Connection> {
        let id = quiche::ConnectionId::from_ref(id);
        let config = &mut self.config;
        let quiche = match token {
            None => quiche::accept_with_buf_factory(&id, None, local, from, config),
            Some(original) => {
                let ids = quiche::RetryConnectionIds {
                    original_destination_cid: &quiche::ConnectionId::from_vec(original),
                    retry_source_cid: &initial.dcid,
                };
                quiche::accept_with_retry(&id, ids, local, from, config)
            }
        };
        let quiche = quiche.map_err(io::Error::other)?;
        let (streams, common) = (Streams::default(), &options.common);
        Ok(Connection::new(quiche, streams, common, local, from))
    }
}

/// The streams of a connection.
#[derive(Default)]
pub struct Streams {
    answers: Answers,
    /// From the handshake on, where HTTP/3 is spoken.
    http3: Option<Http3>,
    /// Those without room for content, emptied in each turn.
    blocked: Vec<u64>,
}

impl Role for Streams {}

impl Serve for Connection<Streams> {
    fn exchange(&mut self) {
        if self.quiche.is_established() {
            match self.alpn {
                Alpn::HqInterop => self.read_requests(),
                Alpn::H3 => self.read_http3(),
            }
            self.write_content();
        }
    }

    fn answers(&mut self) -> &mut Answers {
        &mut self.role.answers
    }

    fn draining_time(&self) -> Duration {
        self.quiche.timeout().unwrap_or_default()
    }
}

impl Connection<Streams> {
    fn read_requests(&mut self) {
        let answers = &mut self.role.answers;
        let mut bytes = [0; MAX_REQUEST + 1];
        for id in self.quiche.readable() {
            while answers.is_awaited(id) {
                let Ok((length, last)) = self.quiche.stream_recv(id, &mut bytes) else {
                    break;
                };
                answers.received(id, &bytes[..length], last);
            }
        }
    }

    fn read_http3(&mut self) {
        let Streams { answers, http3, .. } = &mut self.role;
        if http3.is_none() {
            match Http3::begin(&mut self.quiche) {
                Ok(begun) => *http3 = Some(begun),
                // the client allows none of the streams that HTTP/3 needs
                Err(problem) => {
                    let code = h3::WireErrorCode::StreamCreationError as u64;
                    // An error means that it has been closed before.
                    let _ = self.quiche.close(true, code, problem.as_bytes());
                }
            }
        }
        if let Some(http3) = http3 {
            http3.read_requests(&mut self.quiche, answers);
        }
    }

    /// Gives quiche as much content as it has room for, and no more: what does not fit would make it tell the client, in
    /// a packet each time, that it is blocked.
    fn write_content(&mut self) {
        let Streams {
            answers,
            blocked,
            http3,
        } = &mut self.role;
        blocked.clear();
        while let Some(next) = answers.next(blocked) {
            let id = next.stream;
            let written = match http3 {
                Some(http3) => http3.write(&mut self.quiche, &next),
                None => write(&mut self.quiche, &next),
            };
            match written {
                // quiche kept nothing; asking again at once would not end.
                Ok(0) if !next.bytes.is_empty() => blocked.push(id),
                Ok(written) => answers.taken(id, written),
                Err(h3::Error::Done) => blocked.push(id),
                Err(problem) => answers.fail(id, format!("stream {id}: {}", failed(problem))),
            }
        }
    }
}

/// Gives quiche the next bytes of a stream.
fn write(quiche: &mut QuicheConnection, next: &Outgoing) -> h3::Result<usize> {
    let capacity = quiche.stream_capacity(next.stream)?;
    let slice = &next.bytes[..next.bytes.len().min(capacity)];
    if slice.is_empty() && !next.bytes.is_empty() {
        return Err(h3::Error::Done);
    }
    let last = next.last && slice.len() == next.bytes.len();
    let bytes = Bytes::from_static(slice);
    let (written, _) = quiche.stream_send_zc(next.stream, bytes, last)?;
    Ok(written)
}
