//! Retry packets and the tokens in them (RFC 9000, section 8.1.2).

use std::net::{IpAddr, SocketAddr};

use boring::hash::hmac_sha256;
use boring::memcmp;
use quicbed_contract::clock::now_ns;

/// A token is accepted for this long.
const LIFETIME_NS: u64 = 10_000_000_000;

/// Bytes of the token's time and of its authentication code.
const TIME: usize = 8;
const MAC: usize = 32;

/// Makes and recognises tokens: the time of making, the destination connection ID of the client's first Initial packet,
/// and a code over these, the client's address and the connection ID that the Retry packet gives it.
pub struct Tokens {
    secret: [u8; 32],
}

impl Tokens {
    pub fn new() -> Result<Tokens, String> {
        let mut secret = [0; 32];
        boring::rand::rand_bytes(&mut secret)
            .map_err(|error| format!("no random bytes: {error}"))?;
        Ok(Tokens { secret })
    }

    /// A token for the client at `from`, whose first Initial packet went to `original` and whose next will go to `id`.
    pub fn make(&self, original: &[u8], id: &[u8], from: SocketAddr) -> Result<Vec<u8>, String> {
        let mut token = now_ns().to_be_bytes().to_vec();
        token.extend_from_slice(original);
        let mac = self.mac(&token, id, from)?;
        token.extend_from_slice(&mac);
        Ok(token)
    }

    /// The connection ID of the client's first Initial packet, if `token` was made by [`Tokens::make`] for this client and
    /// its present destination `id`, not too long ago.
    pub fn verify<'a>(&self, token: &'a [u8], id: &[u8], from: SocketAddr) -> Option<&'a [u8]> {
        let (content, mac) = token.split_at_checked(token.len().checked_sub(MAC)?)?;
        let (time, original) = content.split_at_checked(TIME)?;
        let made = u64::from_be_bytes(time.try_into().ok()?);
        let genuine = memcmp::eq(mac, &self.mac(content, id, from).ok()?);
        let fresh = now_ns().saturating_sub(made) <= LIFETIME_NS;
        (genuine && fresh).then_some(original)
    }

    fn mac(&self, content: &[u8], id: &[u8], from: SocketAddr) -> Result<[u8; MAC], String> {
        let ip = match from.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        // Only the last part has no length that is fixed or told.
        let length = [id.len() as u8];
        let port = from.port().to_be_bytes();
        let message = [&ip.octets()[..], &port, &length, id, content].concat();
        hmac_sha256(&self.secret, &message).map_err(|error| format!("no Retry token: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_own_token_for_this_client_is_recognised() {
        let tokens = Tokens::new().unwrap();
        let from: SocketAddr = "127.0.0.1:5000".parse().unwrap();
        let token = tokens.make(b"original", b"next", from).unwrap();
        assert_eq!(tokens.verify(&token, b"next", from), Some(&b"original"[..]));
        assert_eq!(tokens.verify(&token, b"other", from), None);
        let elsewhere = "127.0.0.1:5001".parse().unwrap();
        assert_eq!(tokens.verify(&token, b"next", elsewhere), None);
        let others = Tokens::new().unwrap();
        assert_eq!(others.verify(&token, b"next", from), None);
        for changed in 0..token.len() {
            let mut forged = token.clone();
            forged[changed] ^= 1;
            assert_eq!(tokens.verify(&forged, b"next", from), None, "{changed}");
            assert_eq!(tokens.verify(&token[..changed], b"next", from), None);
        }
    }

    #[test]
    fn an_old_token_is_worth_nothing() {
        let tokens = Tokens::new().unwrap();
        let from: SocketAddr = "[::1]:5000".parse().unwrap();
        let mut token = (now_ns() - 2 * LIFETIME_NS).to_be_bytes().to_vec();
        let mac = tokens.mac(&token, b"next", from).unwrap();
        token.extend_from_slice(&mac);
        assert_eq!(tokens.verify(&token, b"next", from), None);
    }
}
