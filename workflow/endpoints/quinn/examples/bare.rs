//! A transfer with nothing but quinn, which `make bench` holds the endpoints against: the library's own
//! windows, TLS session and socket, no events, no counts, and content that nobody compares.
//!
//! `bare server ADDRESS CERTIFICATE KEY` answers every request, eight bytes with the number of bytes asked for;
//! `bare client ADDRESS CA BYTES` makes one.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use quicbed_contract::options::CommonOptions;
use quicbed_contract::udp::Socket;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, Endpoint, EndpointConfig, Incoming, ServerConfig, TokioRuntime};
use rustls::crypto::ring::{cipher_suite, default_provider};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::TLS13;
use rustls::RootCertStore;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Sizes that perf programs of libraries have: of a socket's buffers, of what is written at once, and of what is read.
const BUFFER: usize = 2 << 20;
const PIECE: usize = 1 << 20;
const CHUNKS: usize = 32;

static ZEROES: [u8; PIECE] = [0; PIECE];

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["server", address, certificate, key] => serve(address.parse()?, certificate, key).await,
        ["client", address, ca, bytes] => download(address.parse()?, ca, bytes.parse()?).await,
        _ => Err("bare server ADDRESS CERTIFICATE KEY | bare client ADDRESS CA BYTES".into()),
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: vec![cipher_suite::TLS13_AES_128_GCM_SHA256],
        ..default_provider()
    })
}

fn endpoint(address: SocketAddr, config: Option<ServerConfig>) -> Outcome<Endpoint> {
    let options = CommonOptions {
        receive_buffer: BUFFER,
        send_buffer: BUFFER,
        ..CommonOptions::default()
    };
    let socket = Socket::bind(address, &options)?.try_clone_std()?;
    let runtime = Arc::new(TokioRuntime);
    Ok(Endpoint::new(
        EndpointConfig::default(),
        config,
        socket,
        runtime,
    )?)
}

async fn serve(address: SocketAddr, certificate: &str, key: &str) -> Outcome<()> {
    let chain = CertificateDer::pem_file_iter(certificate)?.collect::<Result<_, _>>()?;
    let tls = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from_pem_file(key)?)?;
    let config = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls)?));
    let endpoint = endpoint(address, Some(config))?;
    while let Some(incoming) = endpoint.accept().await {
        tokio::spawn(answer(incoming));
    }
    Ok(())
}

/// Answers until the client closes the connection.
async fn answer(incoming: Incoming) -> Outcome<()> {
    let connection = incoming.await?;
    loop {
        let (mut send, mut receive) = connection.accept_bi().await?;
        let mut asked = [0; 8];
        receive.read_exact(&mut asked).await?;
        let mut left = u64::from_be_bytes(asked);
        while left > 0 {
            let length = left.min(PIECE as u64);
            let piece = Bytes::from_static(&ZEROES[..length as usize]);
            send.write_chunk(piece).await?;
            left -= length;
        }
        send.finish()?;
    }
}

async fn download(address: SocketAddr, ca: &str, bytes: u64) -> Outcome<()> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca)?)?;
    let tls = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
    let endpoint = endpoint("127.0.0.1:0".parse()?, None)?;
    let connection = endpoint.connect_with(config, address, "server")?.await?;
    let (mut send, mut receive) = connection.open_bi().await?;
    send.write_all(&bytes.to_be_bytes()).await?;
    send.finish()?;
    let mut chunks = [const { Bytes::new() }; CHUNKS];
    let mut received = 0;
    while let Some(count) = receive.read_chunks(&mut chunks).await? {
        received += chunks[..count].iter().map(Bytes::len).sum::<usize>();
    }
    if received as u64 != bytes {
        return Err(format!("received {received} of {bytes} bytes").into());
    }
    Ok(())
}
