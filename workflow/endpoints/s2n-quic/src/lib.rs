//! Client and server of the endpoint contract on s2n-quic, with s2n-tls and AWS-LC.
//!
//! Both run on tokio's current-thread runtime: one thread for input, output and protocol. Input and output are
//! s2n-quic's own. What happens is told by a subscriber of s2n-quic's events ([`observation`]); cipher suite, group and
//! signature scheme are fixed by a security policy of our own ([`policy`]).

pub mod client;
mod key_log;
mod observation;
mod policy;
mod protection;
pub mod server;
mod setup;
