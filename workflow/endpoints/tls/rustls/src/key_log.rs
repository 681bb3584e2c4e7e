//! TLS secrets in NSS key log format, kept in memory while a connection runs: no file is written during a transfer.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use rustls::{KeyLog, NoKeyLog};

/// Where secrets go: nowhere, or to the file of `--key-log` each time a connection is over.
pub struct KeyLogFile {
    file: Option<File>,
    buffer: Arc<Buffer>,
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
            buffer: Arc::default(),
        })
    }

    /// What rustls logs to.
    pub fn sink(&self) -> Arc<dyn KeyLog> {
        match self.file {
            Some(_) => self.buffer.clone(),
            None => Arc::new(NoKeyLog),
        }
    }

    /// Appends the secrets logged since the last call to the file.
    pub fn flush(&self) -> Result<(), String> {
        let Some(mut file) = self.file.as_ref() else {
            return Ok(());
        };
        let lines = std::mem::take(&mut *self.buffer.lock());
        file.write_all(lines.as_bytes())
            .map_err(|error| format!("--key-log: {error}"))
    }
}

#[derive(Debug, Default)]
struct Buffer(Mutex<String>);

impl Buffer {
    fn lock(&self) -> MutexGuard<'_, String> {
        self.0.lock().expect("nothing panics while logging keys")
    }
}

impl KeyLog for Buffer {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        let line = format!("{label} {} {}\n", hex(client_random), hex(secret));
        self.lock().push_str(&line);
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_appended_once() {
        let path = std::env::temp_dir().join(format!("quicbed-key-log-{}", std::process::id()));
        std::fs::write(&path, "# kept\n").unwrap();
        let key_log = KeyLogFile::open(Some(&path)).unwrap();
        key_log
            .sink()
            .log("CLIENT_TRAFFIC_SECRET_0", &[1, 0xab], &[0xff]);
        key_log.flush().unwrap();
        key_log.flush().unwrap();
        let written = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(written, "# kept\nCLIENT_TRAFFIC_SECRET_0 01ab ff\n");
    }

    #[test]
    fn nothing_is_kept_without_a_file() {
        let key_log = KeyLogFile::open(None).unwrap();
        assert!(!key_log.sink().will_log("CLIENT_TRAFFIC_SECRET_0"));
    }
}
