//! TLS secrets in NSS key log format, kept in memory while a connection runs: no file is written during a transfer.

use std::ffi::{c_int, c_void};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::slice;
use std::sync::{Mutex, MutexGuard};

use s2n_quic::provider::tls::s2n_tls::config;
use s2n_quic::provider::tls::s2n_tls::error::Error;
use s2n_quic::provider::tls::s2n_tls::ffi::s2n_connection;

/// Where secrets go: nowhere, or to the file of `--key-log` each time a connection is over.
pub struct KeyLogFile {
    file: Option<File>,
    lines: &'static Lines,
}

impl KeyLogFile {
    /// Opens the file for appending; it is made readable for its owner only.
    pub fn open(path: Option<&Path>) -> Result<Self, String> {
        let open = |path: &Path| {
            OpenOptions::new()
                .append(true)
                .create(true)
                .mode(0o600)
                .open(path)
                .map_err(|error| format!("--key-log {}: {error}", path.display()))
        };
        Ok(Self {
            file: path.map(open).transpose()?,
            // s2n-tls holds on to it.
            lines: Box::leak(Box::default()),
        })
    }

    /// Lets connections of a configuration log their secrets if there is a file.
    pub fn log_from(&self, config: &mut config::Builder) -> Result<(), Error> {
        if self.file.is_some() {
            let lines = std::ptr::from_ref(self.lines).cast_mut().cast();
            // SAFETY: the lines live as long as the process.
            unsafe { config.set_key_log_callback(Some(append), lines) }?;
        }
        Ok(())
    }

    /// Appends the secrets logged since the last call to the file.
    pub fn flush(&self) -> Result<(), String> {
        let Some(mut file) = self.file.as_ref() else {
            return Ok(());
        };
        let lines = std::mem::take(&mut *self.lines.lock());
        file.write_all(&lines)
            .map_err(|error| format!("--key-log: {error}"))
    }
}

#[derive(Default)]
struct Lines(Mutex<Vec<u8>>);

impl Lines {
    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().expect("nothing panics while logging keys")
    }
}

/// `s2n_key_log_fn`: a line without its end.
unsafe extern "C" fn append(
    lines: *mut c_void,
    _: *mut s2n_connection,
    line: *mut u8,
    length: usize,
) -> c_int {
    // SAFETY: `log_from` passed the lines, s2n-tls a line of this length.
    let (lines, line) = unsafe { (&*lines.cast::<Lines>(), slice::from_raw_parts(line, length)) };
    let mut lines = lines.lock();
    lines.extend_from_slice(line);
    lines.push(b'\n');
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_appended_once() {
        let path = std::env::temp_dir().join(format!("quicbed-s2n-key-log-{}", std::process::id()));
        std::fs::write(&path, "# kept\n").unwrap();
        let key_log = KeyLogFile::open(Some(&path)).unwrap();
        let mut line = *b"CLIENT_TRAFFIC_SECRET_0 01ab ff";
        let lines = std::ptr::from_ref(key_log.lines).cast_mut().cast();
        // SAFETY: as s2n-tls calls it; the connection is not looked at.
        unsafe { append(lines, std::ptr::null_mut(), line.as_mut_ptr(), line.len()) };
        key_log.flush().unwrap();
        key_log.flush().unwrap();
        let written = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(written, "# kept\nCLIENT_TRAFFIC_SECRET_0 01ab ff\n");
    }
}
