//! HTTP/3 of quiche (RFC 9114): one request a stream, answered with content.

use bytes::Bytes;
use quicbed_poll::answers::{Answers, Outgoing};
use quicbed_poll::transfer::Transfer;
use quiche::h3::{self, Event, Header, NameValue};

use crate::connection::QuicheConnection;

/// H3_NO_ERROR (RFC 9114, section 8.1). The contract's errors of a connection are counted from it.
pub const NO_ERROR: u64 = 0x100;

/// Unidirectional streams that a peer may open: control, two of QPACK, and some whose type means nothing (RFC 9114,
/// section 6.2).
const UNIDIRECTIONAL_STREAMS: u64 = 100;

/// Bytes of a header section that are taken at most (SETTINGS_MAX_FIELD_SECTION_SIZE, RFC 9114, section 4.2.2).
const MAX_FIELD_SECTION: u64 = 16_384;

/// Bytes that type and length of a DATA frame take at most: content comes in pieces of less than 2^30 bytes (RFC 9000,
/// section 16).
const DATA_HEADER: usize = 5;

/// Lets a peer open the streams that HTTP/3 needs.
pub fn allow(config: &mut quiche::Config, window: u64) {
    config.set_initial_max_streams_uni(UNIDIRECTIONAL_STREAMS);
    config.set_initial_max_stream_data_uni(window);
}

/// HTTP/3 on a connection whose handshake is complete.
pub struct Http3 {
    layer: h3::Connection,
    /// A client's request, and whether it was answered with status 200.
    request: u64,
    accepted: bool,
    /// Streams of a server that have their header section.
    begun: Vec<u64>,
}

/// An error in the library's words: those of QUIC for one of its transport.
pub fn failed(error: h3::Error) -> String {
    match error {
        h3::Error::TransportError(error) => format!("quiche: {error}"),
        error => format!("HTTP/3: {error}"),
    }
}

impl Http3 {
    /// Opens the streams of this side.
    pub fn begin(quiche: &mut QuicheConnection) -> Result<Http3, String> {
        let mut config = h3::Config::new().map_err(failed)?;
        config.set_max_field_section_size(MAX_FIELD_SECTION);
        let layer = h3::Connection::with_transport(quiche, &config).map_err(failed)?;
        Ok(Http3 {
            layer,
            request: 0,
            accepted: false,
            begun: Vec::new(),
        })
    }

    /// Asks for a path.
    pub fn ask(
        quiche: &mut QuicheConnection,
        authority: &str,
        path: &str,
    ) -> Result<Http3, String> {
        let mut http3 = Http3::begin(quiche)?;
        let request = [
            Header::new(b":method", b"GET"),
            Header::new(b":scheme", b"https"),
            Header::new(b":authority", authority.as_bytes()),
            Header::new(b":path", path.as_bytes()),
        ];
        let sent = http3.layer.send_request(quiche, &request, true);
        http3.request = sent.map_err(failed)?;
        Ok(http3)
    }

    /// Takes what has arrived of the answer. `chunk` is room for it.
    pub fn receive(
        &mut self,
        quiche: &mut QuicheConnection,
        chunk: &mut [u8],
        transfer: &mut Transfer,
    ) -> Result<(), String> {
        loop {
            let event = match self.layer.poll(quiche) {
                Ok((stream, event)) if stream == self.request => event,
                Ok(_) => continue,
                Err(h3::Error::Done) => return Ok(()),
                Err(error) => return Err(failed(error)),
            };
            match event {
                Event::Headers { list, .. } if !self.accepted => self.take_status(&list)?,
                Event::Data if self.accepted => {
                    while let Ok(length) = self.layer.recv_body(quiche, self.request, chunk) {
                        transfer.received(&chunk[..length], false);
                    }
                }
                Event::Finished if self.accepted => transfer.received(&[], true),
                Event::Data | Event::Finished => {
                    return Err("HTTP/3: the answer has no status".into());
                }
                Event::Reset(code) => transfer.reset(code),
                // trailers, and what is not about the answer
                Event::Headers { .. } | Event::PriorityUpdate | Event::GoAway => {}
            }
        }
    }

    fn take_status(&mut self, list: &[Header]) -> Result<(), String> {
        match field(list, b":status") {
            Some(b"200") => self.accepted = true,
            // an interim response (RFC 9114, section 4.1)
            Some([b'1', _, _]) => {}
            other => {
                let status = other.unwrap_or(b"nothing");
                let status = String::from_utf8_lossy(&status[..status.len().min(20)]);
                return Err(format!("HTTP/3: status {status:?} instead of 200"));
            }
        }
        Ok(())
    }

    /// Takes the requests that have arrived. What ends the connection, it tells itself.
    pub fn read_requests(&mut self, quiche: &mut QuicheConnection, answers: &mut Answers) {
        while let Ok((stream, event)) = self.layer.poll(quiche) {
            match event {
                Event::Headers { list, .. } if answers.is_awaited(stream) => {
                    let method = field(&list, b":method").unwrap_or_default();
                    let path = field(&list, b":path").unwrap_or_default();
                    answers.received(stream, &[method, b" ", path].concat(), true);
                }
                // the body of a request
                Event::Data => {
                    let mut room = [0; 1_024];
                    while self.layer.recv_body(quiche, stream, &mut room).is_ok() {}
                }
                Event::Reset(_) => answers.reset(stream),
                _ => {}
            }
        }
    }

    /// Gives quiche the next piece of an answer, as much as it has room for. Returns how many bytes of content it took.
    pub fn write(
        &mut self,
        quiche: &mut QuicheConnection,
        next: &Outgoing,
    ) -> Result<usize, h3::Error> {
        let stream = next.stream;
        if !self.begun.contains(&stream) {
            let response = [
                Header::new(b":status", b"200"),
                Header::new(b"content-length", next.length.to_string().as_bytes()),
            ];
            match self.layer.send_response(quiche, stream, &response, false) {
                Ok(()) => self.begun.push(stream),
                Err(h3::Error::StreamBlocked) => return Err(h3::Error::Done),
                Err(error) => return Err(error),
            }
        }
        let room = quiche.stream_capacity(stream)?.saturating_sub(DATA_HEADER);
        let slice = &next.bytes[..next.bytes.len().min(room)];
        if slice.is_empty() && !next.bytes.is_empty() {
            return Err(h3::Error::Done);
        }
        let last = next.last && slice.len() == next.bytes.len();
        let mut bytes = Bytes::from_static(slice);
        let written = self.layer.send_body_zc(quiche, stream, &mut bytes, last)?;
        if last && written == slice.len() {
            self.begun.retain(|begun| *begun != stream);
        }
        Ok(written)
    }
}

/// The value of a field in a header section.
fn field<'a>(list: &'a [Header], name: &[u8]) -> Option<&'a [u8]> {
    let found = list.iter().find(|header| header.name() == name);
    found.map(|header| header.value())
}
