//! The one request of `hq-interop` as the contract uses it: `GET /<n>` asks for `n` bytes of content, `GET /<name>` for a
//! file of `--www`.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::OnceLock;
use std::{fmt, io, ptr, slice};

use crate::content::Body;

/// Longest name of a file, as of most file systems (NAME_MAX).
pub(crate) const MAX_NAME: usize = 255;

/// Longest request accepted: `GET /`, a name, CRLF.
pub const MAX_REQUEST: usize = 5 + MAX_NAME + 2;

/// The files of `--www` by name.
static FILES: OnceLock<HashMap<String, &'static [u8]>> = OnceLock::new();

/// From now on also the regular files in a directory are answers, as they are now. They must not shrink while they are
/// served (mmap(2)).
pub fn serve_files(directory: &Path) -> io::Result<()> {
    let mut files = HashMap::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if let (true, Some(name)) = (path.is_file(), path.file_name().and_then(|n| n.to_str())) {
            files.insert(name.to_owned(), map(&File::open(&path)?)?);
        }
    }
    FILES
        .set(files)
        .map_err(|_| io::Error::other("there are files already"))
}

/// A file's content, for as long as the program runs.
fn map(file: &File) -> io::Result<&'static [u8]> {
    let length = file.metadata()?.len() as usize;
    if length == 0 {
        return Ok(&[]); // which mmap(2) refuses
    }
    // SAFETY: the mapping is new, is only read, and stays.
    unsafe {
        let none = ptr::null_mut();
        let (protection, flags) = (libc::PROT_READ, libc::MAP_PRIVATE);
        let start = libc::mmap(none, length, protection, flags, file.as_raw_fd(), 0);
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(slice::from_raw_parts(start.cast(), length))
    }
}

/// The request for `bytes` bytes of content.
pub fn format(bytes: u64) -> String {
    format!("GET /{bytes}\r\n")
}

/// A request that is neither `GET /<n>` nor for a file that is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRequest(String);

impl fmt::Display for BadRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files = match FILES.get() {
            Some(_) => " nor for a file of --www",
            None => "",
        };
        write!(f, "request is not `GET /<bytes>`{files}: {:?}", self.0)
    }
}

impl std::error::Error for BadRequest {}

/// What a complete request asks for; the end of line may be missing, the end of the stream is enough. Files go before
/// content of a size that is their name.
pub fn parse(request: &[u8]) -> Result<Body, BadRequest> {
    let bad = || {
        let shown = &request[..request.len().min(MAX_REQUEST)];
        BadRequest(String::from_utf8_lossy(shown).into_owned())
    };
    let line = request.strip_suffix(b"\n").unwrap_or(request);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let number = line.strip_prefix(b"GET /").ok_or_else(bad)?;
    let name = std::str::from_utf8(number).unwrap_or_default();
    if let Some(file) = FILES.get().and_then(|files| files.get(name)) {
        return Ok(Body::of_file(file));
    }
    if number.is_empty() || !number.iter().all(u8::is_ascii_digit) {
        return Err(bad());
    }
    // What can still fail is a number of more than 64 bits.
    name.parse().map(Body::made).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_end_of_line_is_accepted() {
        for request in ["GET /1024", "GET /1024\n", "GET /1024\r\n", "GET /1024\r"] {
            let parsed = parse(request.as_bytes());
            assert_eq!(parsed, Ok(Body::made(1024)), "{request:?}");
        }
        assert_eq!(parse(b"GET /0\r\n"), Ok(Body::made(0)));
    }

    #[test]
    fn own_requests_are_understood_and_fit() {
        for bytes in [0, 1, 1 << 33, u64::MAX] {
            let request = format(bytes);
            assert_eq!(parse(request.as_bytes()), Ok(Body::made(bytes)));
            assert!(request.len() <= MAX_REQUEST);
        }
    }

    #[test]
    fn files_are_found_by_name_and_before_sizes() {
        let directory = std::env::temp_dir().join(format!("quicbed-www-{}", std::process::id()));
        fs::create_dir_all(directory.join("below")).unwrap();
        // no other test asks for these
        for (name, content) in [
            ("a-file.bin", "any\0thing"),
            ("31337", "elite"),
            ("empty", ""),
        ] {
            fs::write(directory.join(name), content).unwrap();
        }
        serve_files(&directory).unwrap();
        fs::remove_dir_all(&directory).unwrap();
        let body = |request: &str| parse(request.as_bytes()).map(Body::file);
        assert_eq!(body("GET /a-file.bin\r\n"), Ok(Some(&b"any\0thing"[..])));
        assert_eq!(body("GET /31337"), Ok(Some(&b"elite"[..])));
        assert_eq!(body("GET /empty"), Ok(Some(&b""[..])));
        assert_eq!(body("GET /31338"), Ok(None));
        for missing in ["GET /below", "GET /no-file", "GET /below/../a-file.bin"] {
            let reason = parse(missing.as_bytes()).unwrap_err().to_string();
            assert!(reason.contains("--www"), "{reason}");
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
