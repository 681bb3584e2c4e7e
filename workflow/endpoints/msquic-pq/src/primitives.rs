//! Times the operations of a handshake through the functions of libcrypto that quictls' libssl itself calls
//! (`ssl/s3_lib.c`, `ssl/statem/`), with the provider.

use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::fs;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::slice;
use std::time::Duration;

use quicbed_contract::events::{Events, Role};
use quicbed_contract::exit;
use quicbed_contract::options::CommonOptions;
use quicbed_contract::primitives::{time, Operation, Options, Primitive};
use quicbed_contract::tls::{self as table, signature};
use serde::Serialize;

use crate::ffi;
use crate::{description, tls, LIBRARY, VERSION};

/// What the `start` event tells.
#[derive(Serialize)]
struct InForce<'a> {
    milliseconds: u128,
    groups: &'a [String],
    signatures: Vec<&'a str>,
}

/// Runs the program and returns its exit code.
pub fn run() -> i32 {
    let options = Options::from_command_line();
    let mut events = Events::open(&options.events);
    let names = options.signatures.iter().map(|(name, _)| name.as_str());
    let in_force = InForce {
        milliseconds: options.duration.as_millis(),
        groups: &options.groups,
        signatures: names.collect(),
    };
    events.start(Role::Primitives, LIBRARY, VERSION, &in_force);
    let begun = tls::configure(&CommonOptions::default(), None);
    if let Err(reason) = begun.and_then(|()| measure(&options, &mut events)) {
        events.exit_failed(&reason);
    }
    events.end();
    exit::OK
}

fn measure(options: &Options, events: &mut Events) -> Result<(), String> {
    let has = description();
    for name in &options.groups {
        let known = table::group(name).filter(|group| has.groups.contains(&group.name));
        let Some(group) = known else {
            events.unsupported(name, "there is no such group");
            continue;
        };
        let timed = time_group(group, has.tls_library, options.duration);
        for primitive in timed.map_err(|error| format!("{name}: {error}"))? {
            events.primitive(&primitive);
        }
    }
    for (name, directory) in &options.signatures {
        if !has.signatures.contains(&name.as_str()) {
            events.unsupported(name, "quictls has no such signature algorithm");
            continue;
        }
        let timed = time_signature(name, directory, has.tls_library, options.duration);
        for primitive in timed.map_err(|error| format!("{name}: {error}"))? {
            events.primitive(&primitive);
        }
    }
    Ok(())
}

/// An object of libcrypto, freed with it.
struct Owned<T>(NonNull<T>, unsafe extern "C" fn(*mut T));

impl<T> Owned<T> {
    fn new(pointer: *mut T, free: unsafe extern "C" fn(*mut T)) -> Result<Owned<T>, String> {
        let pointer = NonNull::new(pointer).ok_or_else(failure)?;
        Ok(Owned(pointer, free))
    }

    fn get(&self) -> *mut T {
        self.0.as_ptr()
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: the function belongs to the type, and the pointer to nobody else.
        unsafe { self.1(self.get()) }
    }
}

type Key = Owned<ffi::EVP_PKEY>;

/// The oldest error of libcrypto's queue in words; empties the queue.
fn failure() -> String {
    // SAFETY: the result is null or a static string.
    let reason = unsafe {
        let code = ffi::ERR_get_error();
        ffi::ERR_clear_error();
        ffi::ERR_reason_error_string(code).as_ref()
    };
    match reason {
        // SAFETY: as above.
        Some(reason) => unsafe { CStr::from_ptr(reason) }
            .to_string_lossy()
            .into_owned(),
        None => "quictls failed without a reason".into(),
    }
}

fn check(result: c_int) -> Result<(), String> {
    match result {
        1.. => Ok(()),
        _ => Err(failure()),
    }
}

/// A group as libssl makes keys of it.
struct Group {
    algorithm: CString,
    curve: CString,
    kem: bool,
}

impl Group {
    fn new(group: &table::Group) -> Result<Group, String> {
        // providers/common/capabilities.c has the names of what is not of the provider.
        let (algorithm, curve) = match group.name {
            "x25519" => ("X25519", "X25519"),
            "x448" => ("X448", "X448"),
            "p-256" => ("EC", "prime256v1"),
            "p-384" => ("EC", "secp384r1"),
            "p-521" => ("EC", "secp521r1"),
            _ => (group.tls_name, group.tls_name),
        };
        let text = |name: &str| CString::new(name).map_err(|error| error.to_string());
        Ok(Group {
            algorithm: text(algorithm)?,
            curve: text(curve)?,
            kem: group.liboqs.is_some(),
        })
    }

    /// `ssl_generate_pkey_group()`, or `ssl_generate_param_group()`.
    fn generate(&self, parameters: bool) -> Result<Key, String> {
        let mut key = ptr::null_mut();
        // SAFETY: the context and the strings live during the calls, which write nothing but the key.
        unsafe {
            let (library, name, any) = (ptr::null_mut(), self.algorithm.as_ptr(), ptr::null());
            let context = ffi::EVP_PKEY_CTX_new_from_name(library, name, any);
            let context = Owned::new(context, ffi::EVP_PKEY_CTX_free)?;
            check(match parameters {
                true => ffi::EVP_PKEY_paramgen_init(context.get()),
                false => ffi::EVP_PKEY_keygen_init(context.get()),
            })?;
            let curve = self.curve.as_ptr();
            check(ffi::EVP_PKEY_CTX_set_group_name(context.get(), curve))?;
            check(match parameters {
                true => ffi::EVP_PKEY_paramgen(context.get(), &mut key),
                false => ffi::EVP_PKEY_keygen(context.get(), &mut key),
            })?;
        }
        Owned::new(key, ffi::EVP_PKEY_free)
    }

    /// The other side's key out of its share: the server's way to make it, or the client's with its own key.
    fn parse(&self, own: Option<&Key>, share: &[u8]) -> Result<Key, String> {
        let key = match own {
            None => self.generate(true)?,
            // SAFETY: it has no arguments.
            Some(_) => Owned::new(unsafe { ffi::EVP_PKEY_new() }, ffi::EVP_PKEY_free)?,
        };
        // SAFETY: the keys and the share live during the calls.
        unsafe {
            if let Some(own) = own {
                check(ffi::EVP_PKEY_copy_parameters(key.get(), own.get()))?;
            }
            let (data, length) = (share.as_ptr(), share.len());
            check(ffi::EVP_PKEY_set1_encoded_public_key(
                key.get(),
                data,
                length,
            ))?;
        }
        Ok(key)
    }

    /// The server's share for a client's, with the secret computed.
    fn answer(&self, share: &[u8]) -> Result<Vec<u8>, String> {
        let client = self.parse(None, share)?;
        if !self.kem {
            let own = self.generate(false)?;
            let answer = encode(&own)?;
            derive(&own, &client)?;
            return Ok(answer);
        }
        let context = context_of(&client)?;
        let (mut length, mut secret_length) = (0, 0);
        let (none, no_secret) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the buffers have the sizes that the first call tells.
        unsafe {
            check(ffi::EVP_PKEY_encapsulate_init(context.get(), ptr::null()))?;
            check(ffi::EVP_PKEY_encapsulate(
                context.get(),
                none,
                &mut length,
                no_secret,
                &mut secret_length,
            ))?;
            let (mut answer, mut secret) = (vec![0; length], vec![0; secret_length]);
            check(ffi::EVP_PKEY_encapsulate(
                context.get(),
                answer.as_mut_ptr(),
                &mut length,
                secret.as_mut_ptr(),
                &mut secret_length,
            ))?;
            Ok(answer)
        }
    }

    /// What the client does with the server's share.
    fn finish(&self, own: &Key, answer: &[u8]) -> Result<(), String> {
        if !self.kem {
            return derive(own, &self.parse(Some(own), answer)?);
        }
        let context = context_of(own)?;
        let mut length = 0;
        let (data, answer_length) = (answer.as_ptr(), answer.len());
        // SAFETY: the buffer has the size that the first call tells.
        unsafe {
            check(ffi::EVP_PKEY_decapsulate_init(context.get(), ptr::null()))?;
            check(ffi::EVP_PKEY_decapsulate(
                context.get(),
                ptr::null_mut(),
                &mut length,
                data,
                answer_length,
            ))?;
            let mut secret = vec![0; length];
            check(ffi::EVP_PKEY_decapsulate(
                context.get(),
                secret.as_mut_ptr(),
                &mut length,
                data,
                answer_length,
            ))
        }
    }
}

fn context_of(key: &Key) -> Result<Owned<ffi::EVP_PKEY_CTX>, String> {
    // SAFETY: the key lives during the call, and has a reference of its own in the context.
    let context =
        unsafe { ffi::EVP_PKEY_CTX_new_from_pkey(ptr::null_mut(), key.get(), ptr::null()) };
    Owned::new(context, ffi::EVP_PKEY_CTX_free)
}

/// A key share.
fn encode(key: &Key) -> Result<Vec<u8>, String> {
    let mut data = ptr::null_mut();
    // SAFETY: the function allocates what it tells the length of.
    unsafe {
        let length = ffi::EVP_PKEY_get1_encoded_public_key(key.get(), &mut data);
        if length == 0 {
            return Err(failure());
        }
        let share = slice::from_raw_parts(data, length).to_vec();
        ffi::CRYPTO_free(data.cast(), c"".as_ptr(), 0);
        Ok(share)
    }
}

/// `ssl_derive()` without the key schedule.
fn derive(own: &Key, other: &Key) -> Result<(), String> {
    let context = context_of(own)?;
    let mut length = 0;
    // SAFETY: the buffer has the size that the first call tells.
    unsafe {
        check(ffi::EVP_PKEY_derive_init(context.get()))?;
        check(ffi::EVP_PKEY_derive_set_peer(context.get(), other.get()))?;
        check(ffi::EVP_PKEY_derive(
            context.get(),
            ptr::null_mut(),
            &mut length,
        ))?;
        let mut secret = vec![0; length];
        check(ffi::EVP_PKEY_derive(
            context.get(),
            secret.as_mut_ptr(),
            &mut length,
        ))
    }
}

/// Version of liboqs and what of it computes a KEM on this processor; `None` if it has none of this name.
pub(crate) fn implementation_of(kem: &str) -> Option<String> {
    extern "C" {
        // ../../../crypto/pq/pq.h
        fn quicbed_kem_find(name: *const c_char) -> *const c_void;
        fn quicbed_kem_implementation(kem: *const c_void) -> *const c_char;
    }
    let name = CString::new(kem).ok()?;
    // SAFETY: what is found lives as long as the program, and tells a static string.
    unsafe {
        let found = quicbed_kem_find(name.as_ptr());
        let told = (!found.is_null()).then(|| CStr::from_ptr(quicbed_kem_implementation(found)))?;
        Some(told.to_string_lossy().into_owned())
    }
}

fn time_group(
    known: &table::Group,
    tls_library: &str,
    duration: Duration,
) -> Result<Vec<Primitive>, String> {
    let kem = known.liboqs.and_then(implementation_of);
    let implementation = match (kem, known.classical) {
        (None, _) => tls_library.to_owned(),
        (Some(kem), None) => kem,
        (Some(kem), Some(_)) if known.pq_first => format!("{kem} + {tls_library}"),
        (Some(kem), Some(_)) => format!("{tls_library} + {kem}"),
    };
    let group = Group::new(known)?;
    let share = encode(&group.generate(false)?)?;
    let answer = group.answer(&share)?;
    let keygen = time(duration, || {
        Ok::<_, String>(|| encode(&group.generate(false)?).map(drop))
    })?;
    let encapsulate = time(duration, || {
        Ok::<_, String>(|| group.answer(&share).map(drop))
    })?;
    let decapsulate = time(duration, || {
        let own = group.generate(false)?;
        let answer = group.answer(&encode(&own)?)?;
        let group = &group;
        Ok::<_, String>(move || group.finish(&own, &answer))
    })?;
    let primitive = |operation, samples_ns, bytes| Primitive {
        kind: "group",
        name: known.name.into(),
        operation,
        implementation: implementation.clone(),
        samples_ns,
        bytes,
    };
    Ok(vec![
        primitive(Operation::Keygen, keygen, Some(share.len())),
        primitive(Operation::Encapsulate, encapsulate, Some(answer.len())),
        primitive(Operation::Decapsulate, decapsulate, None),
    ])
}

/// A server's key, its certificate and the CA that a client trusts.
struct Identity {
    key: Key,
    certificate: Owned<ffi::X509>,
    der: Vec<u8>,
    store: Owned<ffi::X509_STORE>,
    digest: Option<&'static CStr>,
    pss: bool,
}

impl Identity {
    fn load(name: &str, directory: &Path) -> Result<Identity, String> {
        let ca = directory.join("ca.pem");
        let ca_text = CString::new(ca.as_os_str().as_encoded_bytes());
        let ca_text = ca_text.map_err(|error| error.to_string())?;
        // SAFETY: the inputs live during the calls, and are kept by none of them.
        let (key, certificate, store) = unsafe {
            let none = ptr::null_mut();
            let key = read(&directory.join("server.key"), |bio| {
                let key = ffi::PEM_read_bio_PrivateKey(bio, none, None, none.cast());
                Owned::new(key, ffi::EVP_PKEY_free)
            })?;
            let none = ptr::null_mut();
            let certificate = read(&directory.join("server.pem"), |bio| {
                let certificate = ffi::PEM_read_bio_X509(bio, none, None, none.cast());
                Owned::new(certificate, ffi::X509_free)
            })?;
            let store = Owned::new(ffi::X509_STORE_new(), ffi::X509_STORE_free)?;
            check(ffi::X509_STORE_load_file(store.get(), ca_text.as_ptr()))
                .map_err(|error| format!("{}: {error}", ca.display()))?;
            (key, certificate, store)
        };
        let mut data = ptr::null_mut();
        // SAFETY: the function allocates what it tells the length of.
        let der = unsafe {
            let length = ffi::i2d_X509(certificate.get(), &mut data);
            check(length)?;
            let der = slice::from_raw_parts(data, length as usize).to_vec();
            ffi::CRYPTO_free(data.cast(), c"".as_ptr(), 0);
            der
        };
        let scheme = signature(name).map_or("", |known| known.tls_name);
        let digest = match scheme {
            "rsa_pss_rsae_sha256" | "ecdsa_secp256r1_sha256" => Some(c"SHA256"),
            "ecdsa_secp384r1_sha384" => Some(c"SHA384"),
            // Ed25519 has its own
            _ => None,
        };
        Ok(Identity {
            key,
            certificate,
            der,
            store,
            digest,
            pss: scheme.starts_with("rsa_pss"),
        })
    }

    fn digest(&self) -> *const c_char {
        self.digest.map_or(ptr::null(), CStr::as_ptr)
    }

    unsafe fn pad(&self, context: *mut ffi::EVP_PKEY_CTX) -> Result<(), String> {
        if self.pss {
            let padding = ffi::RSA_PKCS1_PSS_PADDING as c_int;
            check(ffi::EVP_PKEY_CTX_set_rsa_padding(context, padding))?;
            let length = ffi::RSA_PSS_SALTLEN_DIGEST;
            check(ffi::EVP_PKEY_CTX_set_rsa_pss_saltlen(context, length))?;
        }
        Ok(())
    }

    /// `tls_construct_cert_verify()`
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, String> {
        let (mut inner, mut length) = (ptr::null_mut(), 0);
        let (data, bytes) = (message.as_ptr(), message.len());
        // SAFETY: the buffer has the size that the first call of EVP_DigestSign tells.
        unsafe {
            let context = Owned::new(ffi::EVP_MD_CTX_new(), ffi::EVP_MD_CTX_free)?;
            check(ffi::EVP_DigestSignInit_ex(
                context.get(),
                &mut inner,
                self.digest(),
                ptr::null_mut(),
                ptr::null(),
                self.key.get(),
                ptr::null(),
            ))?;
            self.pad(inner)?;
            let none = ptr::null_mut();
            check(ffi::EVP_DigestSign(
                context.get(),
                none,
                &mut length,
                data,
                bytes,
            ))?;
            let mut signature = vec![0; length];
            let into = signature.as_mut_ptr();
            check(ffi::EVP_DigestSign(
                context.get(),
                into,
                &mut length,
                data,
                bytes,
            ))?;
            signature.truncate(length);
            Ok(signature)
        }
    }

    /// `tls_process_cert_verify()`
    fn verify(&self, message: &[u8], signature: &[u8]) -> Result<(), String> {
        let mut inner = ptr::null_mut();
        // SAFETY: everything lives during the calls.
        unsafe {
            let context = Owned::new(ffi::EVP_MD_CTX_new(), ffi::EVP_MD_CTX_free)?;
            check(ffi::EVP_DigestVerifyInit_ex(
                context.get(),
                &mut inner,
                self.digest(),
                ptr::null_mut(),
                ptr::null(),
                ffi::X509_get0_pubkey(self.certificate.get()),
                ptr::null(),
            ))?;
            self.pad(inner)?;
            check(ffi::EVP_DigestVerify(
                context.get(),
                signature.as_ptr(),
                signature.len(),
                message.as_ptr(),
                message.len(),
            ))
        }
    }

    /// The certificate as it arrives: a client has not seen it before.
    fn parse(&self) -> Result<Owned<ffi::X509>, String> {
        let mut data = self.der.as_ptr();
        // SAFETY: the bytes live during the call.
        let certificate = unsafe { ffi::d2i_X509(ptr::null_mut(), &mut data, self.der.len() as _) };
        Owned::new(certificate, ffi::X509_free)
    }

    fn verify_chain(&self, certificate: &Owned<ffi::X509>) -> Result<(), String> {
        // SAFETY: everything lives during the calls.
        unsafe {
            let context = Owned::new(ffi::X509_STORE_CTX_new(), ffi::X509_STORE_CTX_free)?;
            check(ffi::X509_STORE_CTX_init(
                context.get(),
                self.store.get(),
                certificate.get(),
                ptr::null_mut(),
            ))?;
            let purpose = c"ssl_server".as_ptr();
            check(ffi::X509_STORE_CTX_set_default(context.get(), purpose))?;
            check(ffi::X509_verify_cert(context.get()))
        }
    }
}

/// Reads a file in PEM format.
fn read<T>(
    file: &Path,
    parse: impl FnOnce(*mut ffi::BIO) -> Result<T, String>,
) -> Result<T, String> {
    let told = |error: String| format!("{}: {error}", file.display());
    let text = fs::read(file).map_err(|error| told(error.to_string()))?;
    // SAFETY: the text outlives the BIO.
    let bio = unsafe { ffi::BIO_new_mem_buf(text.as_ptr().cast(), text.len() as c_int) };
    let bio = Owned::new(bio, ffi::BIO_free_all)?;
    parse(bio.get()).map_err(told)
}

/// CertificateVerify on both sides, and the certificate against the CA.
fn time_signature(
    name: &str,
    directory: &Path,
    tls_library: &str,
    duration: Duration,
) -> Result<Vec<Primitive>, String> {
    let identity = Identity::load(name, directory)?;
    // RFC 8446, section 4.4.3: 64 spaces, a context string, a zero and the transcript hash
    let context: &[u8] = b"TLS 1.3, server CertificateVerify\0";
    let message = [&[0x20; 64][..], context, &[0xa5; 32]].concat();
    let signature = identity.sign(&message)?;
    let sign = time(duration, || {
        Ok::<_, String>(|| identity.sign(&message).map(drop))
    })?;
    let verify = time(duration, || {
        Ok::<_, String>(|| identity.verify(&message, &signature))
    })?;
    let chain = time(duration, || {
        let certificate = identity.parse()?;
        let identity = &identity;
        Ok::<_, String>(move || identity.verify_chain(&certificate))
    })?;
    let primitive = |operation, samples_ns, bytes| Primitive {
        kind: "signature",
        name: name.into(),
        operation,
        implementation: tls_library.into(),
        samples_ns,
        bytes,
    };
    Ok(vec![
        primitive(Operation::Sign, sign, Some(signature.len())),
        primitive(Operation::Verify, verify, None),
        primitive(Operation::VerifyChain, chain, Some(identity.der.len())),
    ])
}
