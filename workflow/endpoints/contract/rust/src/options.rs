//! The command line of the contract.

use std::ffi::OsString;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

use lexopt::prelude::*;
use serde::Serialize;

use crate::content::Checker;
use crate::{exit, request, CONTRACT};

/// Cipher suite of a connection, the only one offered or accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    Aes128Gcm,
    Aes256Gcm,
    ChaCha20Poly1305,
}

impl Cipher {
    pub const ALL: [Cipher; 3] = [
        Cipher::Aes128Gcm,
        Cipher::Aes256Gcm,
        Cipher::ChaCha20Poly1305,
    ];

    /// Value of `--cipher`.
    pub fn name(self) -> &'static str {
        match self {
            Cipher::Aes128Gcm => "aes-128-gcm",
            Cipher::Aes256Gcm => "aes-256-gcm",
            Cipher::ChaCha20Poly1305 => "chacha20-poly1305",
        }
    }

    /// IANA name of the TLS 1.3 suite.
    pub fn iana(self) -> &'static str {
        match self {
            Cipher::Aes128Gcm => "TLS_AES_128_GCM_SHA256",
            Cipher::Aes256Gcm => "TLS_AES_256_GCM_SHA384",
            Cipher::ChaCha20Poly1305 => "TLS_CHACHA20_POLY1305_SHA256",
        }
    }

    /// TLS code point of the suite (RFC 8446, appendix B.4).
    pub fn code_point(self) -> u16 {
        match self {
            Cipher::Aes128Gcm => 0x1301,
            Cipher::Aes256Gcm => 0x1302,
            Cipher::ChaCha20Poly1305 => 0x1303,
        }
    }

    pub fn from_code_point(code_point: u16) -> Option<Cipher> {
        let mut all = Cipher::ALL.into_iter();
        all.find(|cipher| cipher.code_point() == code_point)
    }
}

/// What packet protection does to the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Aead {
    /// The AEAD of the negotiated suite.
    Standard,
    /// Payload unaltered, a constant tag; what a receiver does with the tag is the library's flavour
    /// (docs/libraries.md).
    Noop,
    /// 1-RTT packets without packet protection, and without a tag.
    Noenc,
}

/// Whether QUIC headers are masked (RFC 9001, section 5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HeaderProtection {
    On,
    Off,
}

/// Congestion control algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CongestionControl {
    Cubic,
    Reno,
    Bbr,
}

impl CongestionControl {
    pub const ALL: [CongestionControl; 3] = [
        CongestionControl::Cubic,
        CongestionControl::Reno,
        CongestionControl::Bbr,
    ];

    /// Value of `--congestion-control`.
    pub fn name(self) -> &'static str {
        match self {
            CongestionControl::Cubic => "cubic",
            CongestionControl::Reno => "reno",
            CongestionControl::Bbr => "bbr",
        }
    }
}

/// When packets leave that may be sent as far as congestion control is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pacing {
    /// At once.
    Off,
    /// When the library's own pacer lets them, for which the program waits.
    Library,
    /// When the kernel sends them, which is told the times that the library computes (SO_TXTIME).
    Txtime,
}

impl Pacing {
    /// Value of `--pacing`.
    pub fn name(self) -> &'static str {
        match self {
            Pacing::Off => "off",
            Pacing::Library => "library",
            Pacing::Txtime => "txtime",
        }
    }
}

/// Application protocol of QUIC endpoints, the only one offered or accepted (ALPN, RFC 7301).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Alpn {
    /// HTTP/0.9 on streams of QUIC.
    #[default]
    #[serde(rename = "hq-interop")]
    HqInterop,
    /// HTTP/3 (RFC 9114).
    #[serde(rename = "h3")]
    H3,
}

impl Alpn {
    /// Value of `--alpn`, and the protocol's name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Alpn::HqInterop => crate::ALPN,
            Alpn::H3 => "h3",
        }
    }

    /// A list of this protocol alone as ALPN has it on the wire (RFC 7301, section 3.1).
    pub fn list(self) -> &'static [u8] {
        match self {
            Alpn::HqInterop => b"\x0ahq-interop",
            Alpn::H3 => b"\x02h3",
        }
    }
}

/// Whether datagrams are sent with generic segmentation offload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gso {
    Off,
    On,
    /// In batches of what leaves at one time.
    Paced,
}

impl Gso {
    /// Whether several datagrams may go to the kernel at once.
    pub fn is_on(self) -> bool {
        self != Gso::Off
    }
}

/// Options of clients and servers.
#[derive(Clone, Debug, PartialEq)]
pub struct CommonOptions {
    /// File for events, `-` is standard output.
    pub events: PathBuf,
    pub alpn: Alpn,
    pub cipher: Cipher,
    pub aead: Aead,
    pub header_protection: HeaderProtection,
    /// Key-exchange group as spelled on the command line; see [`crate::tls::GROUPS`].
    pub group: String,
    /// Signature algorithm of the certificate as spelled on the command line; see [`crate::tls::SIGNATURES`].
    pub signature: String,
    /// UDP payload in bytes of datagrams with the client's Initial packets, and of the server's until the handshake is
    /// complete.
    pub initial_size: usize,
    pub congestion_control: CongestionControl,
    /// `None`: what the endpoint does unasked.
    pub pacing: Option<Pacing>,
    /// Whether the queueing discipline ETF keeps to the times that the kernel is told: they are of `CLOCK_TAI`, and every
    /// datagram has one.
    pub etf: bool,
    pub gso: Gso,
    pub gro: bool,
    /// Size of a full UDP datagram in bytes, without UDP and IP headers.
    pub udp_payload: usize,
    /// Socket buffers in bytes.
    pub receive_buffer: usize,
    pub send_buffer: usize,
    /// Flow-control window of a stream and of a connection in bytes.
    pub window: u64,
    /// File that TLS secrets are appended to, in NSS key log format.
    pub key_log: Option<PathBuf>,
}

impl Default for CommonOptions {
    fn default() -> Self {
        CommonOptions {
            events: PathBuf::from("-"),
            alpn: Alpn::default(),
            cipher: Cipher::Aes128Gcm,
            aead: Aead::Standard,
            header_protection: HeaderProtection::On,
            group: "x25519".into(),
            signature: "rsa-2048".into(),
            initial_size: 1_200,
            congestion_control: CongestionControl::Cubic,
            pacing: None,
            etf: false,
            gso: Gso::On,
            gro: true,
            udp_payload: 1_472,
            receive_buffer: 6_815_744,
            send_buffer: 6_815_744,
            window: 16_777_216,
            key_log: None,
        }
    }
}

/// Options of a client.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientOptions {
    pub connect: SocketAddr,
    /// Name verified in the certificate and sent as SNI.
    pub server_name: String,
    /// PEM trust anchor; `None` if any certificate is accepted, which is for saving files only.
    pub ca: Option<PathBuf>,
    /// Bytes to ask for on each connection; as many as there can be where a file is saved.
    pub bytes: u64,
    /// File to write what arrives to; its name is that of the file asked for.
    pub save: Option<PathBuf>,
    pub connections: u64,
    /// A connection not finished within this time has failed.
    pub timeout: Duration,
    pub common: CommonOptions,
}

/// Options of a server.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerOptions {
    pub listen: SocketAddr,
    /// PEM certificate chain and key.
    pub certificate: PathBuf,
    pub private_key: PathBuf,
    /// Sizes that will be asked for.
    pub content: Vec<u64>,
    /// Directory of files that are served too.
    pub www: Option<PathBuf>,
    /// Whether the first Initial packet of every connection is answered with a Retry packet.
    pub retry: bool,
    pub common: CommonOptions,
}

/// What a command line asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Command<Options> {
    Describe,
    Run(Options),
}

/// A wrong command line, as one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageError(String);

impl UsageError {
    pub(crate) fn unknown(option: &str) -> UsageError {
        UsageError(format!("unknown option --{option}"))
    }
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

impl From<lexopt::Error> for UsageError {
    fn from(error: lexopt::Error) -> Self {
        UsageError(error.to_string())
    }
}

/// What `--describe` prints: the abilities of a build.
#[derive(Clone, Debug, Serialize)]
pub struct Description {
    pub contract: u32,
    pub library: &'static str,
    pub version: &'static str,
    /// Name and version of the TLS library.
    pub tls_library: &'static str,
    pub flavour_features: Vec<&'static str>,
    pub transport: &'static str,
    /// The first is what is spoken unasked.
    pub alpn: Vec<Alpn>,
    pub ciphers: Vec<&'static str>,
    pub aead: Vec<Aead>,
    pub header_protection: Vec<HeaderProtection>,
    pub groups: Vec<&'static str>,
    pub signatures: Vec<&'static str>,
    pub retry: bool,
    /// Whether `--initial-size` can be more than 1200.
    pub initial_size: bool,
    pub congestion_controls: Vec<CongestionControl>,
    pub pacing: Vec<Pacing>,
    pub gso: bool,
    /// Whether batches can end with what leaves at one time.
    pub gso_paced: bool,
    pub gro: bool,
    /// Whether `--www` and `--save` are known.
    pub files: bool,
}

impl Description {
    /// A QUIC endpoint that speaks `hq-interop` with all three suites and has the `noop` switches exactly when built with
    /// the feature of that name.
    pub fn quic(
        library: &'static str,
        version: &'static str,
        tls_library: &'static str,
        noop: bool,
    ) -> Description {
        let mut description = Description {
            contract: CONTRACT,
            library,
            version,
            tls_library,
            flavour_features: vec![],
            transport: "quic",
            alpn: vec![Alpn::HqInterop],
            ciphers: Cipher::ALL.map(Cipher::name).to_vec(),
            aead: vec![Aead::Standard],
            header_protection: vec![HeaderProtection::On],
            groups: vec![],
            signatures: vec![],
            retry: true,
            initial_size: true,
            congestion_controls: vec![],
            pacing: vec![Pacing::Library],
            gso: true,
            gso_paced: false,
            gro: true,
            files: true,
        };
        if noop {
            description.flavour_features.push("noop");
            description.aead.push(Aead::Noop);
            description.header_protection.push(HeaderProtection::Off);
        }
        description
    }

    /// Why this build cannot do what is asked, or `None` if it can.
    pub fn unsupported(&self, options: &CommonOptions) -> Option<String> {
        if !self.alpn.contains(&options.alpn) {
            let (library, asked) = (self.library, options.alpn.name());
            return Some(format!("the endpoints of {library} do not speak {asked}"));
        }
        if !self.ciphers.contains(&options.cipher.name()) {
            return Some(format!("{} has no {}", self.library, options.cipher.name()));
        }
        if !self.aead.contains(&options.aead) {
            return Some(match options.aead {
                Aead::Noenc => format!("{} cannot leave out packet protection", self.library),
                _ => "this build has no --aead noop, it is no noop flavour".into(),
            });
        }
        if !self.header_protection.contains(&options.header_protection) {
            return Some("this build has no --header-protection off, it is no noop flavour".into());
        }
        if !self.groups.contains(&options.group.as_str()) {
            let known = self.groups.join(", ");
            return Some(format!("no group {:?}, there are: {known}", options.group));
        }
        if !self.signatures.contains(&options.signature.as_str()) {
            let known = self.signatures.join(", ");
            let asked = &options.signature;
            return Some(format!("no signature {asked:?}, there are: {known}"));
        }
        if options.initial_size > 1_200 && !self.initial_size {
            return Some(format!("{} has no --initial-size above 1200", self.library));
        }
        let asked = options.congestion_control;
        if !self.congestion_controls.contains(&asked) {
            return Some(format!(
                "{} has no congestion control {}",
                self.library,
                asked.name()
            ));
        }
        if let Some(pacing) = options.pacing.filter(|p| !self.pacing.contains(p)) {
            return Some(format!(
                "{} has no --pacing {}",
                self.library,
                pacing.name()
            ));
        }
        if options.gso == Gso::Paced && !self.gso_paced {
            return Some(format!("{} has no --gso paced", self.library));
        }
        None
    }
}

impl ClientOptions {
    /// Reads the command line of this process. Does not return for `--describe` and for a wrong command line.
    pub fn from_command_line(description: &Description) -> ClientOptions {
        or_exit(ClientOptions::parse(arguments()), description)
    }

    /// Parses arguments without the name of the program.
    pub fn parse(
        arguments: impl IntoIterator<Item = OsString>,
    ) -> Result<Command<ClientOptions>, UsageError> {
        let mut common = CommonOptions::default();
        let (mut connect, mut server_name, mut ca, mut bytes) = (None, None, None, None);
        let (mut save, mut verify) = (None, true);
        let (mut connections, mut timeout) = (1, Duration::from_secs(60));
        let mut parser = lexopt::Parser::from_args(arguments);
        while let Some(argument) = parser.next()? {
            let Long(name) = argument else {
                return Err(argument.unexpected().into());
            };
            let name = name.to_owned();
            match name.as_str() {
                "describe" => return Ok(Command::Describe),
                "connect" => connect = Some(address(&name, &mut parser)?),
                "server-name" => server_name = Some(text(&name, &mut parser)?),
                "ca" => ca = Some(PathBuf::from(parser.value()?)),
                "verify" => verify = switch(&name, &mut parser)?,
                "bytes" => bytes = Some(number(&name, &mut parser, 0..=u64::MAX)?),
                "save" => save = Some(PathBuf::from(parser.value()?)),
                "connections" => connections = number(&name, &mut parser, 1..=u64::MAX)?,
                "timeout" => timeout = seconds(&name, &mut parser)?,
                _ => common.take(&name, &mut parser)?,
            }
        }
        common.check()?;
        if let Some(file) = &save {
            requested_name(file)?;
            if bytes.replace(u64::MAX).is_some() {
                return Err(UsageError(
                    "--bytes: not with --save, which asks for a file".into(),
                ));
            }
        }
        if !verify && save.is_none() {
            return Err(UsageError(
                "--verify off: only with --save, what is measured comes from a verified server"
                    .into(),
            ));
        }
        if !verify && ca.is_some() {
            return Err(UsageError("--ca: not with --verify off".into()));
        }
        Ok(Command::Run(ClientOptions {
            connect: required("connect", connect)?,
            server_name: required("server-name", server_name)?,
            ca: match verify {
                true => Some(required("ca", ca)?),
                false => None,
            },
            bytes: required("bytes", bytes)?,
            save,
            connections,
            timeout,
            common,
        }))
    }

    /// The request of every connection, of `hq-interop`.
    pub fn request(&self) -> String {
        format!("GET {}\r\n", self.path())
    }

    /// What every connection asks for, as the path of a URL.
    pub fn path(&self) -> String {
        let name = self.save.as_deref().and_then(|f| requested_name(f).ok());
        match name {
            Some(name) => format!("/{name}"),
            None => format!("/{}", self.bytes),
        }
    }

    /// What takes the content of one connection.
    pub fn checker(&self) -> Checker {
        match &self.save {
            Some(file) => Checker::saving(file),
            None => Checker::new(self.bytes),
        }
    }
}

/// Name by which a file that is to be saved is asked for.
fn requested_name(file: &Path) -> Result<&str, UsageError> {
    let name = file.file_name().and_then(|name| name.to_str());
    name.filter(|name| name.len() <= request::MAX_NAME)
        .filter(|name| !name.contains(|c: char| c.is_whitespace() || c.is_control()))
        .ok_or_else(|| {
            let path = file.display();
            UsageError(format!("--save {path}: its name cannot be asked for"))
        })
}

impl ServerOptions {
    /// Reads the command line of this process. Does not return for `--describe` and for a wrong command line.
    pub fn from_command_line(description: &Description) -> ServerOptions {
        let options = or_exit(ServerOptions::parse(arguments()), description);
        if let Some(directory) = &options.www {
            if let Err(error) = request::serve_files(directory) {
                eprintln!("--www {}: {error}", directory.display());
                process::exit(exit::USAGE);
            }
        }
        options
    }

    /// Parses arguments without the name of the program.
    pub fn parse(
        arguments: impl IntoIterator<Item = OsString>,
    ) -> Result<Command<ServerOptions>, UsageError> {
        let mut common = CommonOptions::default();
        let (mut listen, mut certificate, mut private_key) = (None, None, None);
        let (mut content, mut www, mut retry) = (Vec::new(), None, false);
        let mut parser = lexopt::Parser::from_args(arguments);
        while let Some(argument) = parser.next()? {
            let Long(name) = argument else {
                return Err(argument.unexpected().into());
            };
            let name = name.to_owned();
            match name.as_str() {
                "describe" => return Ok(Command::Describe),
                "listen" => listen = Some(address(&name, &mut parser)?),
                "certificate" => certificate = Some(PathBuf::from(parser.value()?)),
                "private-key" => private_key = Some(PathBuf::from(parser.value()?)),
                "content" => content.push(number(&name, &mut parser, 0..=u64::MAX)?),
                "www" => www = Some(PathBuf::from(parser.value()?)),
                "retry" => retry = switch(&name, &mut parser)?,
                _ => common.take(&name, &mut parser)?,
            }
        }
        common.check()?;
        Ok(Command::Run(ServerOptions {
            listen: required("listen", listen)?,
            certificate: required("certificate", certificate)?,
            private_key: required("private-key", private_key)?,
            content,
            www,
            retry,
            common,
        }))
    }
}

impl CommonOptions {
    /// Takes the value of one common option.
    fn take(&mut self, name: &str, parser: &mut lexopt::Parser) -> Result<(), UsageError> {
        // Linux doubles a socket buffer, and keeps it in a C int.
        let buffer = 1..=(i32::MAX / 2) as u64;
        match name {
            "events" => self.events = PathBuf::from(parser.value()?),
            "alpn" => {
                let choices = [Alpn::HqInterop, Alpn::H3].map(|a| (a.name(), a));
                self.alpn = choice(name, parser, &choices)?;
            }
            "cipher" => {
                self.cipher = choice(name, parser, &Cipher::ALL.map(|c| (c.name(), c)))?;
            }
            "aead" => {
                let choices = [
                    ("standard", Aead::Standard),
                    ("noop", Aead::Noop),
                    ("noenc", Aead::Noenc),
                ];
                self.aead = choice(name, parser, &choices)?;
            }
            "header-protection" => {
                let choices = [("on", HeaderProtection::On), ("off", HeaderProtection::Off)];
                self.header_protection = choice(name, parser, &choices)?;
            }
            "group" => self.group = text(name, parser)?,
            "signature" => self.signature = text(name, parser)?,
            "initial-size" => self.initial_size = number(name, parser, 1_200..=65_507)? as usize,
            "congestion-control" => {
                let choices = CongestionControl::ALL.map(|c| (c.name(), c));
                self.congestion_control = choice(name, parser, &choices)?;
            }
            "pacing" => {
                let choices = [Pacing::Off, Pacing::Library, Pacing::Txtime];
                self.pacing = Some(choice(name, parser, &choices.map(|p| (p.name(), p)))?);
            }
            "etf" => self.etf = switch(name, parser)?,
            "gso" => {
                let choices = [("on", Gso::On), ("off", Gso::Off), ("paced", Gso::Paced)];
                self.gso = choice(name, parser, &choices)?;
            }
            "gro" => self.gro = switch(name, parser)?,
            // RFC 9000, section 14: QUIC needs datagrams of 1200 bytes; 65 507 is the largest payload of UDP over IPv4.
            "udp-payload" => self.udp_payload = number(name, parser, 1_200..=65_507)? as usize,
            "receive-buffer" => self.receive_buffer = number(name, parser, buffer)? as usize,
            "send-buffer" => self.send_buffer = number(name, parser, buffer)? as usize,
            // RFC 9000, section 16: numbers on the wire have at most 62 bits.
            "window" => self.window = number(name, parser, 1..=(1 << 62) - 1)?,
            "key-log" => self.key_log = Some(PathBuf::from(parser.value()?)),
            _ => return Err(UsageError::unknown(name)),
        }
        Ok(())
    }

    /// What no single option can tell.
    fn check(&self) -> Result<(), UsageError> {
        if self.initial_size > self.udp_payload {
            return Err(UsageError(format!(
                "--initial-size: {} is more than --udp-payload {}",
                self.initial_size, self.udp_payload
            )));
        }
        if self.etf && self.pacing != Some(Pacing::Txtime) {
            return Err(UsageError("--etf on: only with --pacing txtime".into()));
        }
        Ok(())
    }
}

pub(crate) fn arguments() -> impl Iterator<Item = OsString> {
    std::env::args_os().skip(1)
}

fn or_exit<Options>(
    parsed: Result<Command<Options>, UsageError>,
    description: &Description,
) -> Options {
    match parsed {
        Ok(Command::Run(options)) => options,
        Ok(Command::Describe) => {
            let text = serde_json::to_string(description).expect("a description is plain data");
            println!("{text}");
            process::exit(exit::OK);
        }
        Err(error) => {
            eprintln!("{error}");
            process::exit(exit::USAGE);
        }
    }
}

pub(crate) fn required<T>(name: &str, value: Option<T>) -> Result<T, UsageError> {
    value.ok_or_else(|| UsageError(format!("--{name} is missing")))
}

pub(crate) fn text(name: &str, parser: &mut lexopt::Parser) -> Result<String, UsageError> {
    let value = parser.value()?;
    value
        .into_string()
        .map_err(|value| UsageError(format!("--{name}: not UTF-8: {value:?}")))
}

fn address(name: &str, parser: &mut lexopt::Parser) -> Result<SocketAddr, UsageError> {
    let value = text(name, parser)?;
    value
        .parse()
        .map_err(|_| UsageError(format!("--{name}: not IP:PORT: {value:?}")))
}

pub(crate) fn number(
    name: &str,
    parser: &mut lexopt::Parser,
    allowed: std::ops::RangeInclusive<u64>,
) -> Result<u64, UsageError> {
    let value = text(name, parser)?;
    match value.parse() {
        Ok(number) if allowed.contains(&number) => Ok(number),
        _ => {
            let (first, last) = (allowed.start(), allowed.end());
            Err(UsageError(format!(
                "--{name}: not a whole number from {first} to {last}: {value:?}"
            )))
        }
    }
}

fn seconds(name: &str, parser: &mut lexopt::Parser) -> Result<Duration, UsageError> {
    let value = text(name, parser)?;
    let parsed = value.parse().ok();
    parsed
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| {
            UsageError(format!(
                "--{name}: not a positive number of seconds: {value:?}"
            ))
        })
}

fn switch(name: &str, parser: &mut lexopt::Parser) -> Result<bool, UsageError> {
    choice(name, parser, &[("on", true), ("off", false)])
}

fn choice<T: Copy>(
    name: &str,
    parser: &mut lexopt::Parser,
    choices: &[(&str, T)],
) -> Result<T, UsageError> {
    let value = text(name, parser)?;
    match choices.iter().find(|(choice, _)| *choice == value) {
        Some((_, meaning)) => Ok(*meaning),
        None => {
            let names: Vec<_> = choices.iter().map(|(choice, _)| *choice).collect();
            let names = names.join(", ");
            Err(UsageError(format!(
                "--{name}: not one of {names}: {value:?}"
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: &str =
        "--connect 127.0.0.1:4433 --server-name server.test --ca ca.pem --bytes 10";
    const SERVER: &str = "--listen [::1]:4433 --certificate chain.pem --private-key key.pem";

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    fn client(more: &str) -> Result<ClientOptions, String> {
        match ClientOptions::parse(words(&format!("{CLIENT} {more}"))) {
            Ok(Command::Run(options)) => Ok(options),
            Ok(Command::Describe) => panic!("not a description"),
            Err(error) => Err(error.to_string()),
        }
    }

    fn server(more: &str) -> Result<ServerOptions, String> {
        match ServerOptions::parse(words(&format!("{SERVER} {more}"))) {
            Ok(Command::Run(options)) => Ok(options),
            Ok(Command::Describe) => panic!("not a description"),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn defaults_are_those_of_the_contract() {
        let options = client("").unwrap();
        assert_eq!(options.connect, "127.0.0.1:4433".parse().unwrap());
        assert_eq!(options.server_name, "server.test");
        assert_eq!((options.bytes, options.connections), (10, 1));
        assert_eq!(options.timeout, Duration::from_secs(60));
        assert_eq!(options.common, CommonOptions::default());
        assert_eq!(options.common.receive_buffer, 32 * 208 * 1024);
        assert_eq!(server("").unwrap().common, CommonOptions::default());
    }

    #[test]
    fn every_common_option_is_taken() {
        let options = client(
            "--events e.jsonl --alpn h3 --cipher chacha20-poly1305 --aead noop --header-protection off --group p-256 --signature ed25519 \
             --initial-size 1200 --congestion-control reno --pacing txtime --etf on --gso off --gro off --udp-payload 1200 --receive-buffer 1000 \
             --send-buffer 2000 --window 3000 --key-log keys.log",
        )
        .unwrap();
        let expected = CommonOptions {
            alpn: Alpn::H3,
            events: "e.jsonl".into(),
            cipher: Cipher::ChaCha20Poly1305,
            aead: Aead::Noop,
            header_protection: HeaderProtection::Off,
            group: "p-256".into(),
            signature: "ed25519".into(),
            initial_size: 1_200,
            congestion_control: CongestionControl::Reno,
            pacing: Some(Pacing::Txtime),
            etf: true,
            gso: Gso::Off,
            gro: false,
            udp_payload: 1_200,
            receive_buffer: 1_000,
            send_buffer: 2_000,
            window: 3_000,
            key_log: Some("keys.log".into()),
        };
        assert_eq!(options.common, expected);
    }

    #[test]
    fn role_options_are_taken() {
        let options = client("--connections 7 --timeout 0.5").unwrap();
        assert_eq!(options.connections, 7);
        assert_eq!(options.timeout, Duration::from_millis(500));
        let options = server("--content 1 --content=2 --retry on --initial-size 1400").unwrap();
        assert_eq!(options.content, [1, 2]);
        assert!(options.retry);
        assert_eq!(options.common.initial_size, 1_400);
        assert_eq!(options.listen, "[::1]:4433".parse().unwrap());
        assert_eq!(options.www, None);
        assert_eq!(server("--www files").unwrap().www, Some("files".into()));
    }

    #[test]
    fn a_file_is_asked_for_by_its_name() {
        assert_eq!(client("").unwrap().request(), "GET /10\r\n");
        let saved = |file: &str| {
            let line = CLIENT.replace("--bytes 10", &format!("--save {file}"));
            match ClientOptions::parse(words(&line)) {
                Ok(Command::Run(options)) => Ok(options.request()),
                Ok(Command::Describe) => panic!("not a description"),
                Err(error) => Err(error.to_string()),
            }
        };
        assert_eq!(saved("to/a-file.bin"), Ok("GET /a-file.bin\r\n".into()));
        for wrong in ["..", "to/\u{7f}"] {
            assert!(saved(wrong).unwrap_err().starts_with("--save"), "{wrong}");
        }
        assert!(client("--save x").unwrap_err().starts_with("--bytes"));
    }

    #[test]
    fn only_who_saves_a_file_can_leave_the_server_unverified() {
        let parsed = |line: &str| match ClientOptions::parse(words(line)) {
            Ok(Command::Run(options)) => Ok(options.ca),
            Ok(Command::Describe) => panic!("not a description"),
            Err(error) => Err(error.to_string()),
        };
        let saving = CLIENT.replace("--bytes 10", "--save x");
        let bare = saving.replace("--ca ca.pem", "");
        assert_eq!(parsed(&saving), Ok(Some("ca.pem".into())));
        assert_eq!(
            parsed(&format!("{saving} --verify on")),
            Ok(Some("ca.pem".into()))
        );
        assert_eq!(parsed(&format!("{bare} --verify off")), Ok(None));
        assert_eq!(parsed(&bare).unwrap_err(), "--ca is missing");
        let both = parsed(&format!("{saving} --verify off"));
        assert_eq!(both.unwrap_err(), "--ca: not with --verify off");
        let measured = parsed(&format!("{CLIENT} --verify off")).unwrap_err();
        assert!(measured.starts_with("--verify off: only with --save"));
    }

    #[test]
    fn describe_needs_nothing_else() {
        assert_eq!(
            ClientOptions::parse(words("--describe")),
            Ok(Command::Describe)
        );
        assert_eq!(
            ServerOptions::parse(words("--describe")),
            Ok(Command::Describe)
        );
    }

    #[test]
    fn mistakes_are_named() {
        for (line, named) in [
            ("--ciper aes-128-gcm", "--ciper"),
            ("--listen 127.0.0.1:1", "--listen"),
            (
                "--cipher aes",
                "aes-128-gcm, aes-256-gcm, chacha20-poly1305",
            ),
            ("--cipher", "--cipher"),
            ("--gso yes", "on, off, paced"),
            ("--pacing on", "off, library, txtime"),
            ("--etf on", "--pacing txtime"),
            ("--bytes -1", "--bytes"),
            ("--bytes 1k", "1k"),
            ("--connections 0", "--connections"),
            ("--timeout 0", "--timeout"),
            ("--timeout nan", "--timeout"),
            ("--connect localhost:1", "IP:PORT"),
            ("--udp-payload 1199", "1200"),
            ("--initial-size 1199", "1200"),
            ("--initial-size 1473", "--udp-payload 1472"),
            ("--retry on", "--retry"),
            ("--receive-buffer 4294967296", "--receive-buffer"),
            ("-c 1", "-c"),
            ("stray", "stray"),
        ] {
            let error = client(line).unwrap_err();
            assert!(error.contains(named), "{line}: {error}");
            assert!(!error.contains('\n'), "{line}: {error}");
        }
    }

    #[test]
    fn required_options_are_required() {
        for missing in ["--connect", "--server-name", "--ca", "--bytes"] {
            let all = words(CLIENT);
            let at = all.iter().position(|word| word == missing).unwrap();
            let rest = [&all[..at], &all[at + 2..]].concat();
            let error = ClientOptions::parse(rest).unwrap_err();
            assert_eq!(error.to_string(), format!("{missing} is missing"));
        }
    }

    #[test]
    fn a_build_says_what_it_cannot_do() {
        let mut stock = Description::quic("quiche", "1", "BoringSSL", false);
        stock.groups = vec!["x25519"];
        stock.signatures = vec!["rsa-2048"];
        stock.initial_size = false;
        stock.congestion_controls = vec![CongestionControl::Cubic];
        assert_eq!(stock.unsupported(&CommonOptions::default()), None);
        for (more, named) in [
            ("--aead noop", "--aead noop"),
            ("--header-protection off", "--header-protection off"),
            ("--group p-256", "p-256"),
            ("--signature ed25519", "ed25519"),
            ("--initial-size 1400", "--initial-size"),
            ("--congestion-control bbr", "bbr"),
            ("--pacing off", "--pacing off"),
            ("--gso paced", "--gso paced"),
        ] {
            let reason = stock.unsupported(&client(more).unwrap().common).unwrap();
            assert!(reason.contains(named), "{more}: {reason}");
        }

        let mut noop = Description::quic("quiche", "1", "BoringSSL", true);
        noop.groups = stock.groups;
        noop.signatures = stock.signatures;
        noop.congestion_controls = stock.congestion_controls;
        let asked = client("--aead noop --header-protection off")
            .unwrap()
            .common;
        assert_eq!(noop.unsupported(&asked), None);
    }

    #[test]
    fn suites_are_known_by_code_point() {
        for cipher in Cipher::ALL {
            assert_eq!(Cipher::from_code_point(cipher.code_point()), Some(cipher));
        }
        assert_eq!(Cipher::from_code_point(0x1304), None);
    }
}
