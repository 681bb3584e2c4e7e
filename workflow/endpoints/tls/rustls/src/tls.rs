//! TLS configurations: one cipher suite, one group, one signature scheme, certificates verified unless told otherwise, no
//! resumption, the scheme noted.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

#[cfg(feature = "noop")]
use quicbed_contract::options::{Aead, HeaderProtection};
use quicbed_contract::options::{Cipher, CommonOptions};
use quicbed_contract::ALPN;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::ring::cipher_suite;
use rustls::crypto::{self, ring, CryptoProvider, SupportedKxGroup, WebPkiSupportedAlgorithms};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::quic::Suite;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::{CertifiedKey, Signer, SigningKey};
use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, Error, KeyLog, RootCertStore,
    ServerConfig, SignatureAlgorithm, SignatureScheme, SupportedCipherSuite, Tls13CipherSuite,
};

use crate::groups;
use crate::signatures::{self, Algorithm};

/// Is told which scheme the server's CertificateVerify of a connection is signed with.
pub trait SignatureObserver: fmt::Debug + Send + Sync {
    /// It was signed or verified with `scheme`.
    fn signed(&self, scheme: SignatureScheme);
}

/// The cryptography of every connection of a program.
#[derive(Clone)]
pub struct Cryptography {
    provider: Arc<CryptoProvider>,
    signature: Algorithm,
    initial: Suite,
}

impl Cryptography {
    /// That of a supported variant.
    pub fn of(options: &CommonOptions) -> Self {
        let suite = match options.cipher {
            Cipher::Aes128Gcm => cipher_suite::TLS13_AES_128_GCM_SHA256,
            Cipher::Aes256Gcm => cipher_suite::TLS13_AES_256_GCM_SHA384,
            Cipher::ChaCha20Poly1305 => cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        };
        let suite = suite.tls13().expect("all three are TLS 1.3 suites");
        let group = groups::find(&options.group).expect("other groups are unsupported");
        let signature =
            signatures::find(&options.signature).expect("other algorithms are unsupported");
        Self::new(packet_protection(suite, options), group.group, signature)
    }

    /// `suite`, `group` and the scheme of `signature` are the only ones offered or accepted.
    fn new(
        suite: &'static Tls13CipherSuite,
        group: &'static dyn SupportedKxGroup,
        signature: Algorithm,
    ) -> Self {
        let standard = aes_128_gcm();
        Self {
            provider: Arc::new(CryptoProvider {
                cipher_suites: vec![SupportedCipherSuite::Tls13(suite)],
                kx_groups: vec![group],
                signature_verification_algorithms: signature.verification,
                ..ring::default_provider()
            }),
            signature,
            initial: Suite {
                suite: standard,
                quic: standard.quic.expect("rustls has AES-128-GCM for QUIC"),
            },
        }
    }

    /// What protects Initial packets: AES-128-GCM and its header protection in every variant (RFC 9001, section 5.2).
    pub fn initial(&self) -> Suite {
        self.initial
    }
}

/// `suite` itself for standard protection, so that it costs the NOOP flavour no more than the stock one.
#[cfg(feature = "noop")]
fn packet_protection(
    suite: &'static Tls13CipherSuite,
    options: &CommonOptions,
) -> &'static Tls13CipherSuite {
    match (options.aead, options.header_protection) {
        (Aead::Standard, HeaderProtection::On) => suite,
        (aead, header_protection) => crate::protection::variant(
            suite,
            aead == Aead::Noop,
            header_protection == HeaderProtection::On,
        ),
    }
}

#[cfg(not(feature = "noop"))]
fn packet_protection(
    suite: &'static Tls13CipherSuite,
    _: &CommonOptions,
) -> &'static Tls13CipherSuite {
    suite
}

/// The suite of Initial packets, and the one NOOP stands in for.
pub fn aes_128_gcm() -> &'static Tls13CipherSuite {
    match cipher_suite::TLS13_AES_128_GCM_SHA256.tls13() {
        Some(suite) => suite,
        None => unreachable!("a TLS 1.3 suite by its name"),
    }
}

/// Trust in the certificates of one PEM file, or in any.
pub struct Trust {
    certificates: Option<Arc<WebPkiServerVerifier>>,
}

impl Trust {
    pub fn from_file(ca: &Path, cryptography: &Cryptography) -> Result<Self, String> {
        let failed = |error: &dyn fmt::Display| format!("--ca {}: {error}", ca.display());
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(ca).map_err(|e| failed(&e))? {
            let certificate = certificate.map_err(|e| failed(&e))?;
            roots.add(certificate).map_err(|e| failed(&e))?;
        }
        let provider = cryptography.provider.clone();
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|e| failed(&e))?;
        Ok(Self {
            certificates: Some(verifier),
        })
    }

    /// Whatever the certificate is; that the server has its key is verified all the same.
    pub fn in_any() -> Self {
        Self { certificates: None }
    }

    /// The TLS configuration of one client connection.
    pub fn client_config(
        &self,
        cryptography: &Cryptography,
        key_log: Arc<dyn KeyLog>,
        observer: Arc<dyn SignatureObserver>,
    ) -> ClientConfig {
        let verifier = ObservingVerifier {
            certificates: self.certificates.clone(),
            algorithms: cryptography.provider.signature_verification_algorithms,
            observer,
        };
        let mut config = ClientConfig::builder_with_provider(cryptography.provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("every suite and group is for TLS 1.3")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        config.alpn_protocols = vec![ALPN.into()];
        config.resumption = Resumption::disabled();
        config.key_log = key_log;
        config
    }
}

/// Verifies as rustls does; the signature scheme is noted on the way.
#[derive(Debug)]
struct ObservingVerifier {
    /// Of certificate and server name; `None` accepts all.
    certificates: Option<Arc<WebPkiServerVerifier>>,
    algorithms: WebPkiSupportedAlgorithms,
    observer: Arc<dyn SignatureObserver>,
}

impl ServerCertVerifier for ObservingVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match &self.certificates {
            Some(verifier) => verifier.verify_server_cert(
                end_entity,
                intermediates,
                server_name,
                ocsp_response,
                now,
            ),
            None => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        crypto::verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let valid =
            crypto::verify_tls13_signature(message, certificate, signature, &self.algorithms)?;
        self.observer.signed(signature.scheme);
        Ok(valid)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }

    fn root_hint_subjects(&self) -> Option<&[DistinguishedName]> {
        self.certificates.as_ref()?.root_hint_subjects()
    }
}

/// A server's certificate chain and private key.
#[derive(Clone)]
pub struct Identity {
    certified: Arc<CertifiedKey>,
}

impl Identity {
    pub fn from_files(
        certificate: &Path,
        private_key: &Path,
        cryptography: &Cryptography,
    ) -> Result<Self, String> {
        let failed = |error: &dyn fmt::Display| {
            format!(
                "--certificate {}, --private-key {}: {error}",
                certificate.display(),
                private_key.display()
            )
        };
        let chain = CertificateDer::pem_file_iter(certificate)
            .and_then(|certificates| certificates.collect::<Result<Vec<_>, _>>())
            .map_err(|e| failed(&e))?;
        let key = PrivateKeyDer::from_pem_file(private_key).map_err(|e| failed(&e))?;
        let certified = cryptography
            .signature
            .certified_key(chain, key)
            .map_err(|e| failed(&e))?;
        Ok(Self {
            certified: Arc::new(certified),
        })
    }

    /// The TLS configuration of one server connection.
    pub fn server_config(
        &self,
        cryptography: &Cryptography,
        key_log: Arc<dyn KeyLog>,
        observer: Arc<dyn SignatureObserver>,
    ) -> ServerConfig {
        let resolver = ObservingResolver(Arc::new(CertifiedKey {
            cert: self.certified.cert.clone(),
            key: Arc::new(ObservingKey {
                key: self.certified.key.clone(),
                observer,
            }),
            ocsp: None,
        }));
        let mut config = ServerConfig::builder_with_provider(cryptography.provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("every suite and group is for TLS 1.3")
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(resolver));
        config.alpn_protocols = vec![ALPN.into()];
        config.send_tls13_tickets = 0;
        config.key_log = key_log;
        config
    }
}

/// The server's key, noting which of its schemes signs.
#[derive(Debug)]
struct ObservingKey {
    key: Arc<dyn SigningKey>,
    observer: Arc<dyn SignatureObserver>,
}

impl SigningKey for ObservingKey {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let signer = self.key.choose_scheme(offered)?;
        self.observer.signed(signer.scheme());
        Some(signer)
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.key.algorithm()
    }
}

#[derive(Debug)]
struct ObservingResolver(Arc<CertifiedKey>);

impl ResolvesServerCert for ObservingResolver {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }
}
