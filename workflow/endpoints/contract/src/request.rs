//! The one request of `hq-interop` as the contract uses it: `GET /<n>` asks for `n` bytes of content.

use std::fmt;

/// Longest request accepted: `GET /`, the 20 digits of the largest 64-bit number, CRLF.
pub const MAX_REQUEST: usize = 27;

/// The request for `bytes` bytes of content.
pub fn format(bytes: u64) -> String {
    format!("GET /{bytes}\r\n")
}

/// A request that is not `GET /<n>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRequest(String);

impl fmt::Display for BadRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request is not `GET /<bytes>`: {:?}", self.0)
    }
}

impl std::error::Error for BadRequest {}

/// Number of bytes asked for by a complete request; the end of line may be missing, the end of the stream is enough.
pub fn parse(request: &[u8]) -> Result<u64, BadRequest> {
    let bad = || {
        let shown = &request[..request.len().min(MAX_REQUEST)];
        BadRequest(String::from_utf8_lossy(shown).into_owned())
    };
    let line = request.strip_suffix(b"\n").unwrap_or(request);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let number = line.strip_prefix(b"GET /").ok_or_else(bad)?;
    if number.is_empty() || !number.iter().all(u8::is_ascii_digit) {
        return Err(bad());
    }
    // Digits are ASCII; what can still fail is a number of more than 64 bits.
    std::str::from_utf8(number)
        .ok()
        .and_then(|digits| digits.parse().ok())
        .ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_end_of_line_is_accepted() {
        for request in ["GET /1024", "GET /1024\n", "GET /1024\r\n", "GET /1024\r"] {
            assert_eq!(parse(request.as_bytes()), Ok(1024), "{request:?}");
        }
        assert_eq!(parse(b"GET /0\r\n"), Ok(0));
    }

    #[test]
    fn own_requests_are_understood_and_fit() {
        for bytes in [0, 1, 1 << 33, u64::MAX] {
            let request = format(bytes);
            assert_eq!(parse(request.as_bytes()), Ok(bytes));
            assert!(request.len() <= MAX_REQUEST);
        }
    }

    #[test]
    fn anything_else_is_refused() {
        let requests: [&[u8]; 11] = [
            b"",
            b"GET /",
            b"GET /\r\n",
            b"GET /1x\r\n",
            b"GET /+1\r\n",
            b"GET / 1\r\n",
            b"GET /1 HTTP/1.1\r\n",
            b"POST /1\r\n",
            b"get /1\r\n",
            b"GET /18446744073709551616\r\n",
            b"GET /1\r\n\r\n",
        ];
        for request in requests {
            assert!(
                parse(request).is_err(),
                "{:?}",
                String::from_utf8_lossy(request)
            );
        }
    }
}
