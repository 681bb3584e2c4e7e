//! Headers of packets as a server reads them before there is a connection, and Version Negotiation packets.

use quicbed_poll::server::ConnectionId;

/// QUIC version 1 (RFC 9000, section 15).
const QUIC_V1: u32 = 1;

/// Longest connection ID of QUIC version 1 (RFC 9000, section 17.2).
const LONGEST_ID: usize = 20;

/// What the header of a datagram says to a server (RFC 8999, section 5.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub version: u32,
    pub destination: ConnectionId,
    pub source: ConnectionId,
    /// Of an Initial packet of QUIC version 1.
    pub token: Option<Vec<u8>>,
}

/// What is left of a datagram.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    /// A variable-length integer (RFC 9000, section 16).
    fn number(&mut self) -> Option<u64> {
        let first = self.byte()?;
        let more = self.take((1 << (first >> 6)) - 1)?;
        let start = u64::from(first & 0x3f);
        Some(more.iter().fold(start, |n, byte| n << 8 | u64::from(*byte)))
    }

    fn id(&mut self) -> Option<&'a [u8]> {
        let length = self.byte()?;
        self.take(length.into())
    }
}

impl Header {
    /// Reads a long header, `None` if there is none.
    pub fn read(datagram: &[u8]) -> Option<Header> {
        let mut rest = Rest(datagram);
        let first = rest.byte()?;
        if first & 0x80 == 0 {
            return None;
        }
        let version = u32::from_be_bytes(rest.take(4)?.try_into().ok()?);
        let (destination, source) = (rest.id()?.to_vec(), rest.id()?.to_vec());
        let mut token = None;
        if version == QUIC_V1 {
            if destination.len() > LONGEST_ID || source.len() > LONGEST_ID {
                return None;
            }
            if first & 0x70 == 0x40 {
                let length = rest.number()?.try_into().ok()?;
                token = Some(rest.take(length)?.to_vec());
            }
        }
        Some(Header {
            version,
            destination,
            source,
            token,
        })
    }

    pub fn is_of_other_version(&self) -> bool {
        self.version != QUIC_V1
    }

    /// Writes a Version Negotiation packet (RFC 9000, section 17.2.1) in answer. Returns its length, 0 without room.
    pub fn negotiate_version(&self, unused: u8, space: &mut [u8]) -> usize {
        let mut packet = vec![0x80 | unused, 0, 0, 0, 0];
        for id in [&self.source, &self.destination] {
            packet.push(id.len() as u8);
            packet.extend_from_slice(id);
        }
        packet.extend_from_slice(&QUIC_V1.to_be_bytes());
        match space.get_mut(..packet.len()) {
            Some(room) => {
                room.copy_from_slice(&packet);
                packet.len()
            }
            None => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn initial(token: &[u8]) -> Vec<u8> {
        let mut packet = vec![0xc3, 0, 0, 0, 1, 3, b'd', b's', b't', 2, b's', b'r'];
        packet.push(token.len() as u8);
        packet.extend_from_slice(token);
        packet.extend_from_slice(&[0x44, 0xb0]);
        packet
    }

    #[test]
    fn an_initial_packet_is_read() {
        let header = Header::read(&initial(b"token")).unwrap();
        assert_eq!(header.destination, b"dst");
        assert_eq!(header.source, b"sr");
        assert_eq!(header.token.as_deref(), Some(&b"token"[..]));
        assert!(!header.is_of_other_version());
        assert_eq!(Header::read(&initial(b"")).unwrap().token.unwrap(), b"");
    }

    #[test]
    fn what_is_cut_or_no_long_header_is_none() {
        let whole = initial(b"token");
        for length in 0..whole.len() - 2 {
            assert_eq!(Header::read(&whole[..length]), None, "{length}");
        }
        assert_eq!(Header::read(&[0x43; 40]), None);
        let mut long = vec![0xc0, 0, 0, 0, 1, 21];
        long.extend_from_slice(&[0; 60]);
        assert_eq!(Header::read(&long), None);
    }

    #[test]
    fn other_versions_are_answered_with_ids_exchanged() {
        let mut packet = initial(b"");
        packet[4] = 9;
        let header = Header::read(&packet).unwrap();
        assert!(header.is_of_other_version());
        assert_eq!(header.token, None);
        let mut space = [0; 64];
        let length = header.negotiate_version(0x15, &mut space);
        let expected = b"\x95\0\0\0\0\x02sr\x03dst\0\0\0\x01";
        assert_eq!(&space[..length], expected);
        assert_eq!(header.negotiate_version(0, &mut space[..4]), 0);
    }
}
