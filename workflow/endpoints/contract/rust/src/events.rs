//! The events an endpoint writes: JSON lines, times in `CLOCK_MONOTONIC` nanoseconds, `null` for what cannot be told.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::process;

use serde::Serialize;

use crate::clock::{max_rss_bytes, now_ns, run_delay_ns, CpuTime};
use crate::options::{Aead, CommonOptions, CongestionControl, Gso, HeaderProtection, Pacing};
use crate::primitives::Primitive;
use crate::{exit, CONTRACT};

/// Which end of a connection a program is, or that it times primitives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Client,
    Server,
    Primitives,
}

/// Options in force after the start, read back where the system can tell.
#[derive(Clone, Debug, Serialize)]
pub struct OptionsInForce {
    pub cipher: &'static str,
    pub aead: Aead,
    pub header_protection: HeaderProtection,
    pub group: String,
    pub signature: String,
    pub initial_size: usize,
    /// Of a server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<bool>,
    pub congestion_control: CongestionControl,
    /// `None`: the library does what it does unasked, and cannot tell.
    pub pacing: Option<Pacing>,
    /// Told where it is on.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub etf: bool,
    pub gso: bool,
    pub gso_paced: bool,
    pub gro: bool,
    pub udp_payload: usize,
    /// Bytes of payload as `--receive-buffer` counts them, which is half of what `getsockopt(SO_RCVBUF)` tells (socket(7)).
    pub receive_buffer: usize,
    pub send_buffer: usize,
    pub window: u64,
}

impl OptionsInForce {
    /// The options asked for; what the system can tell is to be overwritten with what it told.
    pub fn asked(options: &CommonOptions) -> OptionsInForce {
        OptionsInForce {
            cipher: options.cipher.name(),
            aead: options.aead,
            header_protection: options.header_protection,
            group: options.group.clone(),
            signature: options.signature.clone(),
            initial_size: options.initial_size,
            retry: None,
            congestion_control: options.congestion_control,
            pacing: options.pacing,
            etf: options.etf,
            gso: options.gso.is_on(),
            gso_paced: options.gso == Gso::Paced,
            gro: options.gro,
            udp_payload: options.udp_payload,
            receive_buffer: options.receive_buffer,
            send_buffer: options.send_buffer,
            window: options.window,
        }
    }
}

/// What is known about a connection on both sides.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ConnectionCommon {
    pub index: u64,
    pub ok: bool,
    /// Why not, as one line.
    pub error: Option<String>,
    pub t_handshake_complete: Option<u64>,
    /// RFC 9001, section 4.1.2.
    pub t_handshake_confirmed: Option<u64>,
    pub hello_retry_request: Option<bool>,
    /// Whether a Retry packet was sent or received.
    pub retry: Option<bool>,
    pub t_close: Option<u64>,
    /// TLS names, read back from the TLS library.
    pub cipher: Option<&'static str>,
    pub group: Option<&'static str>,
    pub signature: Option<&'static str>,
    pub alpn: Option<String>,
    pub tls_version: Option<String>,
    pub aead: Option<Aead>,
    pub header_protection: Option<HeaderProtection>,
    pub handshake_packets_sent: Option<u64>,
    pub handshake_packets_received: Option<u64>,
    pub handshake_bytes_sent: Option<u64>,
    pub handshake_bytes_received: Option<u64>,
    pub packets_sent: Option<u64>,
    pub packets_received: Option<u64>,
    pub packets_lost: Option<u64>,
    pub cpu_user_ns: Option<u64>,
    pub cpu_system_ns: Option<u64>,
}

/// A connection as its client saw it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ClientConnection {
    #[serde(flatten)]
    pub common: ConnectionCommon,
    /// When it was to begin; only of a client with `--rate`, as the next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub t_intended: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub t_begun: Option<u64>,
    pub t_client_hello: Option<u64>,
    pub t_request_sent: Option<u64>,
    pub t_first_byte: Option<u64>,
    pub t_last_byte: Option<u64>,
    pub bytes_requested: u64,
    pub bytes_received: u64,
    pub content_ok: bool,
}

/// A connection as its server saw it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ServerConnection {
    #[serde(flatten)]
    pub common: ConnectionCommon,
    pub t_accept: Option<u64>,
    pub bytes_sent: u64,
}

#[derive(Serialize)]
struct Start<'a, Options: Serialize> {
    contract: u32,
    role: Role,
    library: &'a str,
    version: &'a str,
    pid: u32,
    options: &'a Options,
}

#[derive(Serialize)]
struct Ready {
    address: String,
    port: u16,
}

#[derive(Serialize)]
struct Reason<'a> {
    reason: &'a str,
}

#[derive(Serialize)]
struct NamedReason<'a> {
    name: &'a str,
    reason: &'a str,
}

#[derive(Serialize)]
struct End {
    connections: u64,
    failed: u64,
    cpu_user_ns: u64,
    cpu_system_ns: u64,
    run_delay_ns: Option<u64>,
    max_rss_bytes: Option<u64>,
}

#[derive(Serialize)]
struct Line<'a, Body: Serialize> {
    event: &'static str,
    t: u64,
    #[serde(flatten)]
    body: &'a Body,
}

/// Writes events, each as one line in one write, and counts connections for the last one.
pub struct Events {
    out: Box<dyn Write + Send>,
    connections: u64,
    failed: u64,
}

impl Events {
    /// Opens `--events`; `-` is standard output. Exits with a line on standard error if that is impossible.
    pub fn open(path: &Path) -> Events {
        if path == Path::new("-") {
            return Events::to(Box::new(io::stdout()));
        }
        match File::create(path) {
            Ok(file) => Events::to(Box::new(file)),
            Err(error) => {
                eprintln!("--events {}: {error}", path.display());
                process::exit(exit::FAILED);
            }
        }
    }

    /// Writes events to `out`.
    pub fn to(out: Box<dyn Write + Send>) -> Events {
        Events {
            out,
            connections: 0,
            failed: 0,
        }
    }

    /// Connections reported so far, which is the index of the next one.
    pub fn connections(&self) -> u64 {
        self.connections
    }

    /// Connections reported with `ok` false.
    pub fn failed(&self) -> u64 {
        self.failed
    }

    /// Writes one event. A program that cannot write events is useless: it ends with a line on standard error.
    fn write<Body: Serialize>(&mut self, event: &'static str, body: &Body) {
        let line = Line {
            event,
            t: now_ns(),
            body,
        };
        let mut text = serde_json::to_vec(&line).expect("an event is plain data");
        text.push(b'\n');
        if let Err(error) = self.out.write_all(&text).and_then(|()| self.out.flush()) {
            eprintln!("cannot write events: {error}");
            process::exit(exit::FAILED);
        }
    }

    pub fn start<Options: Serialize>(
        &mut self,
        role: Role,
        library: &str,
        version: &str,
        options: &Options,
    ) {
        let pid = process::id();
        self.write(
            "start",
            &Start {
                contract: CONTRACT,
                role,
                library,
                version,
                pid,
                options,
            },
        );
    }

    pub fn ready(&mut self, address: std::net::SocketAddr) {
        let ready = Ready {
            address: address.ip().to_string(),
            port: address.port(),
        };
        self.write("ready", &ready);
    }

    pub fn client_connection(&mut self, connection: &ClientConnection) {
        self.count(connection.common.ok);
        self.write("connection", connection);
    }

    pub fn server_connection(&mut self, connection: &ServerConnection) {
        self.count(connection.common.ok);
        self.write("connection", connection);
    }

    fn count(&mut self, ok: bool) {
        self.connections += 1;
        self.failed += u64::from(!ok);
    }

    pub fn primitive(&mut self, primitive: &Primitive) {
        self.write("primitive", primitive);
    }

    /// Says that this build does not have an algorithm, and goes on.
    pub fn unsupported(&mut self, name: &str, reason: &str) {
        self.write("unsupported", &NamedReason { name, reason });
    }

    pub fn error(&mut self, reason: &str) {
        self.write("error", &Reason { reason });
    }

    /// The last event.
    pub fn end(&mut self) {
        let cpu = CpuTime::now();
        let end = End {
            connections: self.connections,
            failed: self.failed,
            cpu_user_ns: cpu.user_ns,
            cpu_system_ns: cpu.system_ns,
            run_delay_ns: run_delay_ns(),
            max_rss_bytes: max_rss_bytes(),
        };
        self.write("end", &end);
    }

    /// Ends the program because this build cannot do what is asked.
    pub fn exit_unsupported(mut self, reason: &str) -> ! {
        eprintln!("unsupported: {reason}");
        self.write("unsupported", &Reason { reason });
        self.end();
        process::exit(exit::UNSUPPORTED);
    }

    /// Ends the program because it failed.
    pub fn exit_failed(mut self, reason: &str) -> ! {
        eprintln!("{reason}");
        self.error(reason);
        self.end();
        process::exit(exit::FAILED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn written(act: impl FnOnce(&mut Events)) -> Vec<Value> {
        let sink = Sink::default();
        act(&mut Events::to(Box::new(sink.clone())));
        let bytes = sink.0.lock().unwrap().clone();
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.ends_with('\n'));
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.collect()
    }

    fn keys(event: &Value) -> Vec<&str> {
        event
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect()
    }

    #[test]
    fn start_names_program_and_options() {
        let options = OptionsInForce::asked(&CommonOptions::default());
        let events = written(|e| e.start(Role::Client, "quiche", "0.30.0", &options));
        let start = &events[0];
        assert_eq!(start["event"], "start");
        assert_eq!(start["contract"], CONTRACT);
        assert_eq!(start["role"], "client");
        assert_eq!(start["pid"], process::id());
        assert_eq!(start["options"]["cipher"], "aes-128-gcm");
        assert_eq!(start["options"]["aead"], "standard");
        assert_eq!(start["options"]["header_protection"], "on");
        assert_eq!(start["options"]["congestion_control"], "cubic");
        assert_eq!(start["options"]["window"], 16_777_216);
    }

    #[test]
    fn ready_tells_address_and_port() {
        let events = written(|e| e.ready("[::1]:4433".parse().unwrap()));
        assert_eq!(events[0]["address"], "::1");
        assert_eq!(events[0]["port"], 4433);
    }

    #[test]
    fn unknown_values_are_null_and_never_left_out() {
        let events = written(|e| {
            e.client_connection(&ClientConnection::default());
            e.server_connection(&ServerConnection::default());
        });
        let both = [
            "index",
            "ok",
            "error",
            "t_handshake_complete",
            "t_handshake_confirmed",
            "hello_retry_request",
            "retry",
            "t_close",
            "cipher",
            "group",
            "signature",
            "alpn",
            "tls_version",
            "aead",
            "header_protection",
            "handshake_packets_sent",
            "handshake_packets_received",
            "handshake_bytes_sent",
            "handshake_bytes_received",
            "packets_sent",
            "packets_received",
            "packets_lost",
            "cpu_user_ns",
            "cpu_system_ns",
            "event",
            "t",
        ];
        let client = [
            "t_client_hello",
            "t_request_sent",
            "t_first_byte",
            "t_last_byte",
            "bytes_requested",
            "bytes_received",
            "content_ok",
        ];
        let server = ["t_accept", "bytes_sent"];
        for (event, own) in [(&events[0], &client[..]), (&events[1], &server[..])] {
            let mut expected = [&both[..], own].concat();
            let mut found = keys(event);
            expected.sort_unstable();
            found.sort_unstable();
            assert_eq!(found, expected);
            assert!(event["cipher"].is_null());
        }
    }

    #[test]
    fn times_of_an_open_loop_are_told_where_there_is_one() {
        let events = written(|e| {
            e.client_connection(&ClientConnection {
                t_intended: Some(5),
                t_begun: Some(6),
                ..ClientConnection::default()
            });
        });
        assert_eq!(events[0]["t_intended"], 5);
        assert_eq!(events[0]["t_begun"], 6);
    }

    #[test]
    fn end_counts_connections() {
        let events = written(|e| {
            let mut connection = ClientConnection::default();
            e.client_connection(&connection);
            connection.common.ok = true;
            e.client_connection(&connection);
            e.end();
        });
        let end = events.last().unwrap();
        assert_eq!(end["event"], "end");
        assert_eq!(
            (&end["connections"], &end["failed"]),
            (&2.into(), &1.into())
        );
        assert!(end["max_rss_bytes"].as_u64().unwrap() > 0);
        assert!(end["t"].as_u64().unwrap() >= events[0]["t"].as_u64().unwrap());
    }
}
