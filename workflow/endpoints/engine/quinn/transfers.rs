//! Client and server as programs, over loopback: what they exchange, how they fail, and what they tell about it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::{CLIENT, INITIAL_SIZES, SERVER};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tls/rustls/tests/data")
        .join(name)
}

fn events(text: &str) -> Vec<Value> {
    let parse = |line| serde_json::from_str(line).expect("an event is one line of JSON");
    text.lines().map(parse).collect()
}

fn connections(events: &[Value]) -> Vec<&Value> {
    let is_connection = |event: &&Value| event["event"] == "connection";
    events.iter().filter(is_connection).collect()
}

struct Server {
    process: Child,
    output: BufReader<std::process::ChildStdout>,
    seen: Vec<Value>,
}

impl Server {
    fn start(options: &[&str]) -> Self {
        let mut process = Command::new(SERVER)
            .args(["--listen", "127.0.0.1:0"])
            .arg("--certificate")
            .arg(data("server.pem"))
            .arg("--private-key")
            .arg(data("server.key"))
            .args(["--signature", "ecdsa-p-256"])
            .args(options)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let mut server = Self {
            process,
            output,
            seen: Vec::new(),
        };
        server.wait_for("ready");
        server
    }

    fn wait_for(&mut self, kind: &str) {
        while self.seen.last().is_none_or(|event| event["event"] != kind) {
            self.see(kind);
        }
    }

    fn wait_for_connections(&mut self, count: usize) {
        while connections(&self.seen).len() < count {
            self.see("connection");
        }
    }

    fn see(&mut self, kind: &str) {
        let mut line = String::new();
        assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "no {kind}");
        self.seen.extend(events(&line));
    }

    fn address(&self) -> String {
        let ready = self.seen.iter().find(|event| event["event"] == "ready");
        format!("127.0.0.1:{}", ready.unwrap()["port"])
    }

    fn signal(&self, name: &str) {
        let id = self.process.id().to_string();
        let status = Command::new("kill").args([name, &id]).status().unwrap();
        assert!(status.success());
    }

    /// Stops the server and returns all its events.
    fn stop(mut self) -> Vec<Value> {
        self.signal("-TERM");
        self.wait_for("end");
        assert_eq!(self.process.wait().unwrap().code(), Some(0));
        std::mem::take(&mut self.seen)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn client(address: &str, options: &[&str]) -> Command {
    let mut command = Command::new(CLIENT);
    let has = |name| options.contains(&name);
    if !has("--ca") {
        command.arg("--ca").arg(data("ca.pem"));
    }
    if !has("--server-name") {
        command.args(["--server-name", "server.test"]);
    }
    if !has("--signature") {
        command.args(["--signature", "ecdsa-p-256"]);
    }
    command.args(["--connect", address]).args(options);
    command
}

fn result(output: Output) -> (Option<i32>, Vec<Value>) {
    let text = String::from_utf8(output.stdout).unwrap();
    let events = events(&text);
    assert_eq!(events.last().unwrap()["event"], "end");
    (output.status.code(), events)
}

/// Downloads with the same options on both sides and returns the events of client and server.
fn transfer(both: &[&str], only_client: &[&str]) -> (Vec<Value>, Vec<Value>) {
    let server = Server::start(both);
    let options = [both, only_client].concat();
    let (code, client) = result(client(&server.address(), &options).output().unwrap());
    assert_eq!(code, Some(0), "{both:?}: {client:?}");
    (client, server.stop())
}

/// The error of a client that has to fail.
fn failure(command: &mut Command) -> String {
    let (code, events) = result(command.output().unwrap());
    assert_eq!(code, Some(1));
    let connection = connections(&events)[0];
    assert_eq!(connection["ok"], false);
    connection["error"].as_str().unwrap().to_owned()
}

#[test]
fn every_suite_and_group_is_negotiated_and_told_by_both() {
    for (cipher, suite, group, name) in [
        ("aes-128-gcm", "TLS_AES_128_GCM_SHA256", "x25519", "x25519"),
        (
            "aes-256-gcm",
            "TLS_AES_256_GCM_SHA384",
            "p-256",
            "secp256r1",
        ),
        (
            "chacha20-poly1305",
            "TLS_CHACHA20_POLY1305_SHA256",
            "p-384",
            "secp384r1",
        ),
    ] {
        let both = ["--cipher", cipher, "--group", group];
        let (client, server) = transfer(&both, &["--bytes", "1000000"]);
        for events in [&client, &server] {
            let connection = connections(events)[0];
            assert_eq!(connection["ok"], true);
            assert_eq!(connection["cipher"], suite);
            assert_eq!(connection["group"], name);
            assert_eq!(connection["signature"], "ecdsa_secp256r1_sha256");
            assert_eq!(connection["alpn"], "hq-interop");
            assert_eq!(connection["tls_version"], "TLSv1.3");
            assert_eq!(connection["aead"], "standard");
            assert_eq!(connection["header_protection"], "on");
        }
        let (client, server) = (connections(&client)[0], connections(&server)[0]);
        assert_eq!(client["bytes_received"], 1_000_000);
        assert_eq!(client["content_ok"], true);
        assert_eq!(server["bytes_sent"], 1_000_000);
        let times = [
            &client["t_client_hello"],
            &server["t_accept"],
            &client["t_handshake_complete"],
            &client["t_request_sent"],
            &client["t_first_byte"],
            &client["t_last_byte"],
            &client["t_close"],
            &server["t_close"],
        ];
        let times = times.map(|time| time.as_u64().unwrap());
        assert!(times.is_sorted(), "{times:?}");
    }
}

#[test]
fn one_socket_after_the_other_serves_many_connections() {
    let (client, server) = transfer(&[], &["--bytes", "1", "--connections", "20"]);
    for events in [&client, &server] {
        let connections = connections(events);
        assert_eq!(connections.len(), 20);
        assert!(connections
            .iter()
            .all(|connection| connection["ok"] == true));
        let end = events.last().unwrap();
        assert_eq!(
            (&end["connections"], &end["failed"]),
            (&20.into(), &0.into())
        );
    }
    for connection in connections(&client) {
        assert_eq!(connection["handshake_packets_sent"], 1);
        assert_eq!(connection["handshake_bytes_sent"], 1200);
        assert_eq!(connection["hello_retry_request"], false);
        assert_eq!(connection["retry"], false);
        assert_eq!(connection["signature"], "ecdsa_secp256r1_sha256");
        let times = [
            &connection["t_handshake_complete"],
            &connection["t_handshake_confirmed"],
            &connection["t_close"],
        ];
        let times = times.map(|time| time.as_u64().unwrap());
        assert!(times.is_sorted(), "{times:?}");
    }
    for connection in connections(&server) {
        let complete = &connection["t_handshake_complete"];
        assert_eq!(&connection["t_handshake_confirmed"], complete);
        assert_eq!(connection["retry"], false);
    }
}

#[test]
fn a_retry_is_told_by_both() {
    let server = Server::start(&["--retry", "on"]);
    assert_eq!(server.seen[0]["options"]["retry"], true);
    let options = ["--bytes", "1", "--connections", "3"];
    let (code, client) = result(client(&server.address(), &options).output().unwrap());
    assert_eq!(code, Some(0));
    let server = server.stop();
    for events in [&client, &server] {
        let connections = connections(events);
        assert_eq!(connections.len(), 3);
        for connection in connections {
            assert_eq!(connection["retry"], true);
            assert_eq!(connection["ok"], true);
        }
    }
    // One ClientHello without and one with the token.
    let connection = connections(&client)[0];
    assert_eq!(connection["handshake_packets_sent"], 2);
    assert_eq!(connection["handshake_bytes_sent"], 2400);
}

#[test]
fn the_initial_size_is_kept_until_the_handshake_is_complete() {
    for &size in INITIAL_SIZES {
        let text = size.to_string();
        // Content of one byte takes no larger datagrams, content of a megabyte does.
        for bytes in [1, 1_000_000] {
            let content = bytes.to_string();
            let server = Server::start(&["--initial-size", &text, "--content", &content]);
            let options = ["--initial-size", &text, "--bytes", &content];
            let (code, client) = result(client(&server.address(), &options).output().unwrap());
            assert_eq!(code, Some(0));
            let server = server.stop();
            let (client, server) = (connections(&client)[0], connections(&server)[0]);
            assert_eq!(client["handshake_bytes_sent"], size);
            let number = |name: &str| server[name].as_u64().unwrap();
            assert!(number("handshake_bytes_sent") <= size * number("handshake_packets_sent"));
            if bytes > 1 {
                let fewest = bytes / 1472;
                assert!(number("packets_sent") > fewest);
                // Less than a flight or two of small datagrams above what large ones need.
                assert!(
                    number("packets_sent") < fewest + 100,
                    "{}",
                    server["packets_sent"]
                );
            }
        }
    }
}

#[test]
fn offloads_and_sizes_can_be_set() {
    let both = [
        "--gso",
        "off",
        "--gro",
        "off",
        "--udp-payload",
        "1200",
        "--receive-buffer",
        "100000",
        "--send-buffer",
        "50000",
        "--window",
        "30000",
        "--congestion-control",
        "reno",
    ];
    let (client, server) = transfer(&both, &["--bytes", "300000"]);
    for events in [&client, &server] {
        let options = &events[0]["options"];
        assert_eq!(options["gso"], false);
        assert_eq!(options["gro"], false);
        assert_eq!(options["receive_buffer"], 100_000);
        assert_eq!(options["send_buffer"], 50_000);
    }
    assert_eq!(connections(&client)[0]["handshake_bytes_sent"], 1200);
}

#[test]
fn datagrams_of_any_size_arrive_with_offloads() {
    for size in ["1200", "8972", "16384"] {
        let (client, server) = transfer(&["--udp-payload", size], &["--bytes", "3000000"]);
        assert_eq!(connections(&client)[0]["content_ok"], true);
        let sent = connections(&server)[0]["packets_sent"].as_u64().unwrap();
        let size: u64 = size.parse().unwrap();
        assert!(sent * size >= 3_000_000, "{sent} datagrams of {size} bytes");
    }
    let options = ["--udp-payload", "16385", "--bytes", "1"];
    let (code, _) = result(client("127.0.0.1:1", &options).output().unwrap());
    assert_eq!(code, Some(127));
}

#[test]
fn nothing_can_be_asked_for() {
    let (client, _) = transfer(&[], &["--bytes", "0"]);
    let connection = connections(&client)[0];
    assert_eq!(connection["content_ok"], true);
    assert!(connection["t_first_byte"].is_null());
}

#[test]
fn a_server_that_cannot_be_trusted_is_refused() {
    let mut server = Server::start(&[]);
    let address = server.address();
    let other_ca = data("other-ca.pem");
    let options = ["--bytes", "1", "--ca", other_ca.to_str().unwrap()];
    let error = failure(&mut client(&address, &options));
    assert!(error.contains("UnknownIssuer"), "{error}");
    server.wait_for_connections(1);

    let options = ["--bytes", "1", "--server-name", "other.test"];
    let error = failure(&mut client(&address, &options));
    assert!(error.contains("not valid for name"), "{error}");
    // the server may notice later than the next client comes
    server.wait_for_connections(2);

    let (code, _) = result(client(&address, &["--bytes", "1"]).output().unwrap());
    assert_eq!(code, Some(0));
    let events = server.stop();
    let ok: Vec<_> = connections(&events)
        .iter()
        .map(|c| c["ok"] == true)
        .collect();
    assert_eq!(ok, [false, false, true]);
}

#[test]
fn nothing_else_than_what_was_asked_for_is_negotiated() {
    let server = Server::start(&[]);
    for (options, named) in [
        (["--signature", "ecdsa-p-384"], "NoSignatureSchemesInCommon"),
        (["--cipher", "chacha20-poly1305"], "NoCipherSuitesInCommon"),
        (["--group", "p-256"], "NoKxGroupsInCommon"),
    ] {
        let options = [&options[..], &["--bytes", "1"]].concat();
        let error = failure(&mut client(&server.address(), &options));
        assert!(error.contains(named), "{error}");
    }
}

#[test]
fn a_silent_server_is_given_up() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let error = failure(&mut client(&address, &["--bytes", "1", "--timeout", "0.2"]));
    assert_eq!(error, "not finished after 0.2 s");
}

/// CPU time a process has used.
fn cpu_ns(process: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{process}/schedstat")).unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_stopped_server_tells_its_client() {
    let server = Server::start(&[]);
    // noq ends a connection when many frames of a larger window wait behind a gap.
    let options = ["--bytes", "1000000000000", "--window", "1048576"];
    let mut command = client(&server.address(), &options);
    let mut running = command.stdout(Stdio::piped()).spawn().unwrap();
    // A handshake takes a few milliseconds of CPU time: with so many the transfer is on its way.
    let mut output = BufReader::new(running.stdout.take().unwrap());
    let mut text = String::new();
    while cpu_ns(running.id()) < 200_000_000 {
        assert_eq!(running.try_wait().unwrap(), None);
        thread::sleep(Duration::from_millis(5));
    }
    let events = server.stop();
    assert_eq!(connections(&events)[0]["ok"], false);
    while output.read_line(&mut text).unwrap() > 0 {}
    assert_eq!(running.wait().unwrap().code(), Some(1));
    assert!(text.contains("the server was stopped"), "{text}");
}

#[test]
fn secrets_are_logged_by_both() {
    let directory = std::env::temp_dir();
    let id = std::process::id();
    let [ours, theirs] =
        ["client", "server"].map(|role| directory.join(format!("quicbed-{id}-{role}")));
    let server = Server::start(&["--key-log", theirs.to_str().unwrap()]);
    let options = ["--bytes", "1", "--key-log", ours.to_str().unwrap()];
    let (code, _) = result(client(&server.address(), &options).output().unwrap());
    server.stop();
    let [ours, theirs] = [ours, theirs].map(|path| {
        let text = fs::read_to_string(&path).unwrap();
        fs::remove_file(path).unwrap();
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    });
    assert_eq!(code, Some(0));
    assert_eq!(ours.len(), 5);
    assert_eq!(ours, theirs);
}

#[cfg(not(feature = "noop"))]
#[test]
fn a_stock_build_has_no_noop() {
    for options in [["--aead", "noop"], ["--header-protection", "off"]] {
        let options = [&options[..], &["--bytes", "1"]].concat();
        let (code, events) = result(client("127.0.0.1:1", &options).output().unwrap());
        assert_eq!(code, Some(127));
        assert_eq!(events[0]["event"], "unsupported");
    }
}

#[cfg(feature = "noop")]
#[test]
fn every_variant_is_told_by_both() {
    for cipher in ["aes-128-gcm", "aes-256-gcm", "chacha20-poly1305"] {
        for aead in ["standard", "noop"] {
            for header_protection in ["on", "off"] {
                let both = [
                    "--cipher",
                    cipher,
                    "--aead",
                    aead,
                    "--header-protection",
                    header_protection,
                ];
                let (client, server) = transfer(&both, &["--bytes", "1000000"]);
                for events in [&client, &server] {
                    let connection = connections(events)[0];
                    assert_eq!(connection["ok"], true);
                    assert_eq!(connection["aead"], aead);
                    assert_eq!(connection["header_protection"], header_protection);
                }
            }
        }
    }
}
