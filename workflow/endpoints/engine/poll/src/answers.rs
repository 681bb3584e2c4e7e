//! What a server is asked for and answers on the streams of a connection, whatever library they are of.

use quicbed_contract::content::{Body, PERIOD};
use quicbed_contract::request::{self, MAX_REQUEST};

/// Content of a stream on its way out.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing {
    pub stream: u64,
    /// The next bytes, which stay where they are as long as the process lives.
    pub bytes: &'static [u8],
    /// Whether the stream ends with them.
    pub last: bool,
    /// Bytes that the stream carries in all.
    pub length: u64,
}

/// The streams of a connection.
#[derive(Default)]
pub struct Answers {
    streams: Vec<Stream>,
    answered: bool,
    pub(crate) bytes_sent: u64,
    pub(crate) bad_request: Option<String>,
    pub(crate) error: Option<String>,
}

struct Stream {
    id: u64,
    state: State,
}

/// What a stream of the client is about.
enum State {
    Request(Vec<u8>),
    Answer {
        body: Body,
        sent: u64,
    },
    /// What was asked for was not understood.
    Refused,
}

impl Answers {
    /// Bytes of a stream have arrived, in order; `last` with the end of the stream.
    pub fn received(&mut self, id: u64, bytes: &[u8], last: bool) {
        let at = match self.streams.iter().position(|stream| stream.id == id) {
            Some(at) => at,
            None => {
                let state = State::Request(Vec::new());
                self.streams.push(Stream { id, state });
                self.streams.len() - 1
            }
        };
        let State::Request(text) = &mut self.streams[at].state else {
            return;
        };
        text.extend_from_slice(&bytes[..bytes.len().min(MAX_REQUEST + 1)]);
        if last || text.len() > MAX_REQUEST {
            self.streams[at].state = match request::parse(text) {
                Ok(body) => State::Answer { body, sent: 0 },
                Err(error) => {
                    self.bad_request.get_or_insert(error.to_string());
                    State::Refused
                }
            };
        }
    }

    /// Whether a stream is still to ask for something.
    pub fn is_awaited(&self, id: u64) -> bool {
        let stream = self.streams.iter().find(|stream| stream.id == id);
        stream.is_none_or(|stream| matches!(stream.state, State::Request(_)))
    }

    /// The client has given up sending on a stream.
    pub fn reset(&mut self, id: u64) {
        self.streams.retain(|stream| stream.id != id);
    }

    /// A stream cannot be answered.
    pub fn fail(&mut self, id: u64, reason: String) {
        self.reset(id);
        self.error.get_or_insert(reason);
    }

    /// What is to be sent next of the streams that are not `blocked` by flow control.
    pub fn next(&self, blocked: &[u64]) -> Option<Outgoing> {
        let mut free = self.streams.iter().filter(|s| !blocked.contains(&s.id));
        free.find_map(|stream| match stream.state {
            State::Request(_) | State::Refused => None,
            State::Answer { body, sent } => {
                let left = body.length() - sent;
                let bytes = body.slice_at(sent, left.min(PERIOD as u64) as usize);
                let last = bytes.len() as u64 == left;
                Some(Outgoing {
                    stream: stream.id,
                    bytes,
                    last,
                    length: body.length(),
                })
            }
        })
    }

    /// The library has taken `taken` bytes of a stream, and its end if asked for and all bytes are.
    pub fn taken(&mut self, id: u64, taken: usize) {
        let Some(at) = self.streams.iter().position(|stream| stream.id == id) else {
            return;
        };
        if let State::Answer { body, sent } = &mut self.streams[at].state {
            *sent += taken as u64;
            self.bytes_sent += taken as u64;
            if *sent == body.length() {
                self.answered = true;
                self.streams.remove(at);
            }
        }
    }

    /// Whether something was asked for, and all of it is with the library.
    pub(crate) fn are_complete(&self) -> bool {
        self.streams.is_empty() && self.answered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_sent_in_turn_and_then_forgotten() {
        let mut answers = Answers::default();
        assert!(!answers.are_complete());
        answers.received(0, b"GET ", false);
        assert!(answers.is_awaited(0));
        assert!(answers.next(&[]).is_none());
        answers.received(
            0,
            request::format(5).strip_prefix("GET ").unwrap().as_bytes(),
            true,
        );
        answers.received(4, request::format(0).as_bytes(), true);
        assert!(!answers.is_awaited(0));
        let next = answers.next(&[]).unwrap();
        assert_eq!((next.stream, next.bytes.len(), next.last), (0, 5, true));
        assert_eq!(next.length, 5);
        let other = answers.next(&[0]).unwrap();
        assert_eq!((other.stream, other.bytes.len(), other.last), (4, 0, true));
        answers.taken(0, 3);
        assert_eq!(answers.next(&[]).unwrap().bytes, &next.bytes[3..]);
        answers.taken(0, 2);
        answers.taken(4, 0);
        assert_eq!(answers.bytes_sent, 5);
        assert!(answers.are_complete());
    }

    #[test]
    fn a_request_that_is_none_is_told_once() {
        let mut answers = Answers::default();
        answers.received(0, &[b'x'; MAX_REQUEST + 1], false);
        assert!(answers.bad_request.take().is_some());
        assert!(!answers.is_awaited(0));
        answers.received(0, b"x", true);
        assert!(answers.bad_request.is_none());
        assert!(answers.next(&[]).is_none());
        answers.reset(0);
        assert!(!answers.are_complete());
    }
}
