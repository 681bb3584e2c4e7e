//! Declarations of `c/library.h`.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// Length of the connection IDs that both roles choose, in bytes.
pub const ID_LENGTH: usize = 16;

pub type Id = [u8; ID_LENGTH];

#[repr(C)]
pub struct Settings {
    pub server: bool,
    pub retry: bool,
    pub noop_aead: bool,
    pub no_header_protection: bool,
    pub cipher: u16,
    pub group: u16,
    pub signature: u16,
    pub initial_size: u16,
    pub udp_payload: u16,
    pub window: u64,
    pub idle_timeout_ms: u64,
    pub group_algorithm: *const c_char,
    pub congestion_control: *const c_char,
    pub alpn: *const c_char,
    pub server_name: *const c_char,
    pub ca: *const c_char,
    pub certificate: *const c_char,
    pub private_key: *const c_char,
    pub key_log: *const c_char,
}

#[repr(C)]
pub struct Application {
    pub received: unsafe extern "C" fn(*mut c_void, u64, *const u8, usize, bool),
    pub reset: unsafe extern "C" fn(*mut c_void, u64, u64),
    pub waiting: unsafe extern "C" fn(*mut c_void, *mut u64) -> bool,
    pub available: unsafe extern "C" fn(*mut c_void, u64, usize, *mut bool) -> usize,
    pub write: unsafe extern "C" fn(*mut c_void, u64, *mut u8, usize),
    pub new_id: unsafe extern "C" fn(*mut c_void, *const u8),
}

#[repr(C)]
pub struct Facts {
    pub established: bool,
    pub confirmed: bool,
    pub ended: bool,
    pub retried: bool,
    pub by_peer: bool,
    pub of_application: bool,
    pub idle: bool,
    pub hello_retry_request: bool,
    pub cipher: u16,
    pub group: u16,
    pub signature: u16,
    pub code: u64,
    pub sent: u64,
    pub received: u64,
    pub lost: u64,
    pub draining_us: u64,
    pub reason: *const c_char,
    pub alpn: *const c_char,
}

#[repr(C)]
pub struct Endpoint {
    _private: [u8; 0],
}

#[repr(C)]
pub struct Connection {
    _private: [u8; 0],
}

extern "C" {
    pub fn qp_now() -> u64;
    pub fn qp_expiry(connection: *const Connection) -> u64;
    pub fn qp_open(
        settings: *const Settings,
        application: *const Application,
        reason: *mut c_char,
        room: usize,
    ) -> *mut Endpoint;
    pub fn qp_connect(
        endpoint: *mut Endpoint,
        peer: *const libc::sockaddr,
        program: *mut c_void,
    ) -> *mut Connection;
    pub fn qp_accept(
        endpoint: *mut Endpoint,
        id: *const u8,
        program: *mut c_void,
    ) -> *mut Connection;
    pub fn qp_free(connection: *mut Connection);
    pub fn qp_read(
        connection: *mut Connection,
        datagram: *mut u8,
        length: usize,
        from: *const libc::sockaddr,
        local: *const libc::sockaddr,
    );
    pub fn qp_write(
        connection: *mut Connection,
        space: *mut u8,
        room: usize,
        many: bool,
        size: *mut usize,
        to: *mut libc::sockaddr_storage,
    ) -> usize;
    pub fn qp_datagram_size(connection: *const Connection) -> usize;
    pub fn qp_open_stream(connection: *mut Connection) -> u64;
    pub fn qp_end(connection: *mut Connection, code: u64, reason: *const c_char);
    pub fn qp_tell(connection: *mut Connection, facts: *mut Facts);
    pub fn qp_ids(connection: *const Connection, ids: *mut Id, most: usize) -> usize;
    pub fn qp_retry(
        endpoint: *mut Endpoint,
        datagram: *mut u8,
        length: usize,
        from: *const libc::sockaddr,
        local: *const libc::sockaddr,
        id: *const u8,
        space: *mut u8,
        room: usize,
    ) -> usize;
    pub fn qp_token_is_genuine(
        endpoint: *mut Endpoint,
        token: *const u8,
        length: usize,
        from: *const libc::sockaddr,
        id: *const u8,
        id_length: usize,
    ) -> bool;
    pub fn qp_random(bytes: *mut u8, length: usize) -> bool;
    pub fn qp_has_group(group: u16, algorithm: *const c_char) -> bool;
    pub fn qp_has_signature(signature: u16, algorithm: *const c_char) -> bool;
    pub fn qp_alert(alert: c_uint) -> *const c_char;
    pub fn qp_aes_hardware() -> c_int;
    pub fn qp_cannot_run() -> *const c_char;
    pub fn qp_choose_io(way: c_uint);
    pub fn qp_choose_place(address: *const libc::sockaddr, peer: bool);
    pub fn qp_cannot_io() -> *const c_char;
    pub fn qp_io_mode() -> *const c_char;
    pub fn qp_io_lost(finished: bool) -> *const c_char;
}

#[cfg(feature = "pq")]
#[repr(C)]
pub struct Exchange {
    _private: [u8; 0],
}

#[cfg(feature = "pq")]
#[repr(C)]
pub struct Signer {
    _private: [u8; 0],
}

#[cfg(feature = "pq")]
extern "C" {
    pub fn qp_share(group: u16, algorithm: *const c_char, made: *mut *mut Exchange) -> usize;
    pub fn qp_answer(
        group: u16,
        algorithm: *const c_char,
        client: *const Exchange,
        answer: *mut *mut u8,
    ) -> usize;
    pub fn qp_finish(client: *mut Exchange, answer: *const u8, length: usize) -> bool;
    pub fn qp_forget(client: *mut Exchange);
    pub fn qp_signer(
        signature: u16,
        ca: *const c_char,
        certificate: *const c_char,
        private_key: *const c_char,
        reason: *mut c_char,
        room: usize,
    ) -> *mut Signer;
    pub fn qp_sign(signer: *mut Signer) -> usize;
    pub fn qp_verify(signer: *mut Signer) -> bool;
    pub fn qp_parse(signer: *mut Signer) -> bool;
    pub fn qp_verify_chain(signer: *mut Signer) -> bool;
    pub fn qp_certificate_length(signer: *const Signer) -> usize;
}
