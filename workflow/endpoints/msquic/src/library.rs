//! MsQuic's interface: the library itself, its settings and credentials, and what it tells about connections.

use std::ffi::{c_void, CString};
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::path::Path;
use std::ptr;
use std::sync::mpsc::Sender;
use std::thread;

use quicbed_contract::events::ConnectionCommon;
use quicbed_contract::options::{Aead, Cipher, CommonOptions, CongestionControl, Pacing};
use quicbed_contract::ALPN;

use crate::ffi::{self, HQUIC, QUIC_ADDR, QUIC_BUFFER};
use crate::{failed, hooks, initial_mtu, largest_mtu, pacing, SUCCESS};

/// A connection without a packet for this long is dead. Long enough that only a lost peer gets there.
const IDLE_TIMEOUT_MS: u64 = 30_000;

/// Streams a client may have open at once.
const MAX_STREAMS: u16 = 100;

/// Who a configuration is for.
pub enum Credentials<'a> {
    /// Verifies the server, or accepts any without a trust anchor.
    Client { ca: Option<&'a Path> },
    Server {
        certificate: &'a Path,
        private_key: &'a Path,
    },
}

/// MsQuic with one registration, which has the worker threads, and one configuration. It lives as long as the process.
#[derive(Clone, Copy)]
pub struct Library {
    pub api: &'static ffi::QUIC_API_TABLE,
    pub registration: HQUIC,
    pub configuration: HQUIC,
}

// SAFETY: MsQuic's functions and handles may be used from any thread.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

/// Calls a function of MsQuic's table.
#[macro_export]
macro_rules! call {
    ($library:expr, $function:ident $(, $argument:expr)*) => {
        ($library.api.$function.expect("MsQuic fills its whole table"))($($argument),*)
    };
}

/// The application protocol, as MsQuic takes it.
pub fn alpn() -> QUIC_BUFFER {
    QUIC_BUFFER {
        Length: ALPN.len() as u32,
        Buffer: ALPN.as_ptr().cast_mut(),
    }
}

/// The flow-control window in force: the largest power of two that is not above the one asked for, the only kind that
/// MsQuic takes.
pub fn window(options: &CommonOptions) -> u32 {
    let asked = options.window.min(1 << 31) as u32;
    1 << asked.ilog2()
}

impl Library {
    /// Starts MsQuic. [`crate::tls::configure`] has to come before.
    pub fn open(options: &CommonOptions, credentials: &Credentials) -> Result<Library, String> {
        let check = |what: &str, status: u32| match failed(status) {
            false => Ok(()),
            true => Err(format!("MsQuic: {what}: {}", describe(status))),
        };
        #[cfg(feature = "noop")]
        crate::noop::configure(options)?;
        // SAFETY: pointers are valid during the calls; MsQuic keeps none of them but handles, which it made itself.
        unsafe {
            let mut api = ptr::null();
            check("start", ffi::MsQuicOpenVersion(2, &mut api))?;
            let api = &*api.cast::<ffi::QUIC_API_TABLE>();
            let mut library = Library {
                api,
                registration: ptr::null_mut(),
                configuration: ptr::null_mut(),
            };
            let profile = ffi::QUIC_REGISTRATION_CONFIG {
                AppName: c"quicbed".as_ptr(),
                ExecutionProfile: PROFILE,
            };
            let opened = call!(
                library,
                RegistrationOpen,
                &profile,
                &mut library.registration
            );
            check("registration", opened)?;
            // Opening the registration has tried out the offloads of the kernel.
            hooks::configure(options);
            let settings = settings(options);
            let opened = call!(
                library,
                ConfigurationOpen,
                library.registration,
                &alpn(),
                1,
                &settings,
                mem::size_of_val(&settings) as u32,
                ptr::null_mut(),
                &mut library.configuration
            );
            check("configuration", opened)?;
            check("credentials", library.load(options, credentials)?)?;
            Ok(library)
        }
    }

    unsafe fn load(
        &self,
        options: &CommonOptions,
        credentials: &Credentials,
    ) -> Result<u32, String> {
        let text = |path: &Path| {
            let path = path.as_os_str().as_encoded_bytes();
            CString::new(path).map_err(|error| error.to_string())
        };
        let mut config: ffi::QUIC_CREDENTIAL_CONFIG = mem::zeroed();
        config.Flags = ffi::QUIC_CREDENTIAL_FLAG_SET_ALLOWED_CIPHER_SUITES;
        config.AllowedCipherSuites = match options.cipher {
            Cipher::Aes128Gcm => ffi::QUIC_ALLOWED_CIPHER_SUITE_AES_128_GCM_SHA256,
            Cipher::Aes256Gcm => ffi::QUIC_ALLOWED_CIPHER_SUITE_AES_256_GCM_SHA384,
            Cipher::ChaCha20Poly1305 => ffi::QUIC_ALLOWED_CIPHER_SUITE_CHACHA20_POLY1305_SHA256,
        };
        Ok(match credentials {
            Credentials::Client { ca } => {
                let ca = ca.map(text).transpose()?;
                config.Type = ffi::QUIC_CREDENTIAL_TYPE_NONE;
                config.Flags |= ffi::QUIC_CREDENTIAL_FLAG_CLIENT;
                match &ca {
                    Some(ca) => {
                        config.Flags |=
                            ffi::QUIC_CREDENTIAL_FLAG_USE_TLS_BUILTIN_CERTIFICATE_VALIDATION
                                | ffi::QUIC_CREDENTIAL_FLAG_SET_CA_CERTIFICATE_FILE;
                        config.CaCertificateFile = ca.as_ptr();
                    }
                    None => config.Flags |= ffi::QUIC_CREDENTIAL_FLAG_NO_CERTIFICATE_VALIDATION,
                }
                call!(
                    self,
                    ConfigurationLoadCredential,
                    self.configuration,
                    &config
                )
            }
            Credentials::Server {
                certificate,
                private_key,
            } => {
                let (certificate, private_key) = (text(certificate)?, text(private_key)?);
                let mut files = ffi::QUIC_CERTIFICATE_FILE {
                    PrivateKeyFile: private_key.as_ptr(),
                    CertificateFile: certificate.as_ptr(),
                };
                config.Type = ffi::QUIC_CREDENTIAL_TYPE_CERTIFICATE_FILE;
                config.__bindgen_anon_1.CertificateFile = &mut files;
                call!(
                    self,
                    ConfigurationLoadCredential,
                    self.configuration,
                    &config
                )
            }
        })
    }

    /// Sets a parameter of a handle, or a global one of no handle.
    ///
    /// # Safety
    /// The handle is null or open.
    unsafe fn set<Value>(
        &self,
        handle: HQUIC,
        parameter: u32,
        value: &Value,
    ) -> Result<(), String> {
        let length = mem::size_of::<Value>() as u32;
        let value = ptr::from_ref(value).cast();
        match call!(self, SetParam, handle, parameter, length, value) {
            SUCCESS => Ok(()),
            status => Err(format!(
                "MsQuic: parameter {parameter:#x}: {}",
                describe(status)
            )),
        }
    }

    /// Reads a parameter of a handle.
    ///
    /// # Safety
    /// The handle is open, and any bytes are a `Value`.
    unsafe fn get<Value>(&self, handle: HQUIC, parameter: u32) -> Option<Value> {
        let mut value: Value = mem::zeroed();
        let mut length = mem::size_of::<Value>() as u32;
        let read = ptr::from_mut(&mut value).cast();
        (call!(self, GetParam, handle, parameter, &mut length, read) == SUCCESS).then_some(value)
    }

    /// Asks for connections without 1-RTT packet protection, if that is what the options want.
    ///
    /// # Safety
    /// The handle is open.
    pub unsafe fn choose_protection(
        &self,
        connection: HQUIC,
        options: &CommonOptions,
    ) -> Result<(), String> {
        match options.aead {
            Aead::Noenc => self.set(
                connection,
                ffi::QUIC_PARAM_CONN_DISABLE_1RTT_ENCRYPTION,
                &1_u8,
            ),
            _ => Ok(()),
        }
    }

    /// What packet protection the connection has. The other end may have wanted another.
    ///
    /// # Safety
    /// The handle is open.
    pub unsafe fn protection(&self, connection: HQUIC, options: &CommonOptions) -> Aead {
        let off: Option<u8> = self.get(connection, ffi::QUIC_PARAM_CONN_DISABLE_1RTT_ENCRYPTION);
        match (options.aead, off) {
            (_, Some(1)) => Aead::Noenc,
            (Aead::Noenc, _) => Aead::Standard,
            (asked, _) => asked,
        }
    }

    /// Writes down what MsQuic counted.
    ///
    /// # Safety
    /// The handle is open.
    pub unsafe fn count(&self, connection: HQUIC, record: &mut ConnectionCommon) {
        let counted: Option<ffi::QUIC_STATISTICS_V2> =
            self.get(connection, ffi::QUIC_PARAM_CONN_STATISTICS_V2);
        if let Some(counted) = counted {
            record.packets_sent = Some(counted.SendTotalPackets);
            record.packets_received = Some(counted.RecvTotalPackets);
            let spurious = counted.SendSpuriousLostPackets;
            record.packets_lost = Some(counted.SendSuspectedLostPackets.saturating_sub(spurious));
        }
    }

    /// Address and port of a listener.
    ///
    /// # Safety
    /// The handle is open.
    pub unsafe fn local_address(&self, listener: HQUIC) -> Option<SocketAddr> {
        let address: QUIC_ADDR = self.get(listener, ffi::QUIC_PARAM_LISTENER_LOCAL_ADDRESS)?;
        hooks::socket_address(ptr::from_ref(&address).cast())
    }

    /// Answers every first Initial packet with a Retry packet: no memory may be spent on handshakes without one.
    pub fn always_retry(&self) -> Result<(), String> {
        let parameter = ffi::QUIC_PARAM_GLOBAL_RETRY_MEMORY_PERCENT;
        // SAFETY: there is no handle.
        unsafe { self.set(ptr::null_mut(), parameter, &0_u16) }
    }

    /// Sends a connection to an address, whatever name it asks for.
    ///
    /// # Safety
    /// The handle is open.
    pub unsafe fn direct(&self, connection: HQUIC, to: SocketAddr) -> Result<(), String> {
        self.set(
            connection,
            ffi::QUIC_PARAM_CONN_REMOTE_ADDRESS,
            &quic_address(to),
        )
    }
}

/// Worker threads of the registration share those of the datapath.
const PROFILE: ffi::QUIC_EXECUTION_PROFILE = ffi::QUIC_EXECUTION_PROFILE_LOW_LATENCY;

fn settings(options: &CommonOptions) -> ffi::QUIC_SETTINGS {
    // SAFETY: all zeroes are settings of which none is set.
    let mut settings: ffi::QUIC_SETTINGS = unsafe { mem::zeroed() };
    settings.IdleTimeoutMs = IDLE_TIMEOUT_MS;
    settings.HandshakeIdleTimeoutMs = IDLE_TIMEOUT_MS;
    settings.PeerBidiStreamCount = MAX_STREAMS;
    settings.StreamRecvWindowDefault = window(options);
    settings.ConnFlowControlWindow = window(options);
    settings.MinimumMtu = initial_mtu(options) as u16;
    settings.MaximumMtu = largest_mtu(options) as u16;
    settings.CongestionControlAlgorithm = match options.congestion_control {
        CongestionControl::Bbr => ffi::QUIC_CONGESTION_CONTROL_ALGORITHM_BBR as u16,
        _ => ffi::QUIC_CONGESTION_CONTROL_ALGORITHM_CUBIC as u16,
    };
    // Content is sent from where it lies.
    settings.set_SendBufferingEnabled(0);
    settings.set_PacingEnabled((pacing(options) == Pacing::Library).into());
    // SAFETY: flags have no invalid values.
    let given = unsafe { &mut settings.__bindgen_anon_1.IsSet };
    given.set_IdleTimeoutMs(1);
    given.set_HandshakeIdleTimeoutMs(1);
    given.set_PeerBidiStreamCount(1);
    given.set_StreamRecvWindowDefault(1);
    given.set_ConnFlowControlWindow(1);
    given.set_MinimumMtu(1);
    given.set_MaximumMtu(1);
    given.set_CongestionControlAlgorithm(1);
    given.set_SendBufferingEnabled(1);
    given.set_PacingEnabled(1);
    settings
}

pub fn quic_address(address: SocketAddr) -> QUIC_ADDR {
    // SAFETY: all zeroes are an address of no family.
    let mut quic: QUIC_ADDR = unsafe { mem::zeroed() };
    match address {
        SocketAddr::V4(v4) => {
            quic.Ipv4.sin_family = libc::AF_INET as u16;
            quic.Ipv4.sin_port = v4.port().to_be();
            quic.Ipv4.sin_addr.s_addr = u32::from(*v4.ip()).to_be();
        }
        SocketAddr::V6(v6) => {
            quic.Ipv6.sin6_family = libc::AF_INET6 as u16;
            quic.Ipv6.sin6_port = v6.port().to_be();
            quic.Ipv6.sin6_scope_id = v6.scope_id();
            quic.Ipv6.sin6_addr.__in6_u.__u6_addr8 = v6.ip().octets();
        }
    }
    quic
}

/// A status of MsQuic, which is an error number of the system or one of TLS, in words.
pub fn describe(status: u32) -> String {
    /// `TLS_ERROR_BASE` and `CERT_ERROR_BASE`
    const TLS: u32 = 200_000_256;
    const CERTIFICATE: u32 = 200_000_512;
    match status {
        TLS..CERTIFICATE => format!("TLS alert {}", status - TLS),
        CERTIFICATE.. => format!("certificate error {}", status - CERTIFICATE),
        _ => io::Error::from_raw_os_error(status as i32).to_string(),
    }
}

/// Why a connection was closed by this end's MsQuic or by the peer's transport.
pub fn transport_error(status: u32, code: u64) -> String {
    // RFC 9000, section 20.1: 0x0100 to 0x01ff carry a TLS alert
    match code {
        0x100..0x200 => format!("TLS alert {}", code - 0x100),
        0 => describe(status),
        _ => format!("{} (transport error {code:#x})", describe(status)),
    }
}

/// Blocks SIGTERM and SIGINT in this thread and those it starts, and sends a message when one arrives.
pub fn on_stop<Message: Send + 'static>(
    sender: Sender<Message>,
    message: fn() -> Message,
) -> Result<(), String> {
    // SAFETY: the set is initialised by sigemptyset.
    let set = unsafe {
        let mut set: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGTERM);
        libc::sigaddset(&mut set, libc::SIGINT);
        match libc::pthread_sigmask(libc::SIG_BLOCK, &set, ptr::null_mut()) {
            0 => set,
            error => return Err(io::Error::from_raw_os_error(error).to_string()),
        }
    };
    thread::spawn(move || {
        let mut signal = 0;
        // SAFETY: both pointers are valid.
        if unsafe { libc::sigwait(&set, &mut signal) } == 0 {
            // Nobody listens any more when the program ends.
            let _ = sender.send(message());
        }
    });
    Ok(())
}

/// Context pointers of MsQuic's callbacks.
pub fn context<T>(value: Box<T>) -> *mut c_void {
    Box::into_raw(value).cast()
}
