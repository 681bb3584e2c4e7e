//! Headers of QUIC packets (RFC 9000, section 17; RFC 9369 for version 2), as far as an observer can read them.

const VERSION_1: u32 = 0x0000_0001;
const VERSION_2: u32 = 0x6b33_43cf;
const LONGEST_CID: usize = 20;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Initial,
    ZeroRtt,
    Handshake,
    Retry,
    VersionNegotiation,
    OneRtt,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Initial => "initial",
            Kind::ZeroRtt => "0rtt",
            Kind::Handshake => "handshake",
            Kind::Retry => "retry",
            Kind::VersionNegotiation => "version-negotiation",
            Kind::OneRtt => "1rtt",
        }
    }
}

/// A connection ID.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Cid {
    size: u8,
    bytes: [u8; LONGEST_CID],
}

impl Cid {
    fn new(text: &[u8]) -> Cid {
        let mut bytes = [0; LONGEST_CID];
        bytes[..text.len()].copy_from_slice(text);
        Cid {
            size: text.len() as u8,
            bytes,
        }
    }

    pub fn len(&self) -> usize {
        usize::from(self.size)
    }
}

/// The part of a long header that every version has (RFC 8999).
pub struct Long {
    pub kind: Kind,
    pub destination: Cid,
    pub source: Cid,
}

pub enum Header {
    Long(Long),
    Short,
    /// Not of a version that is known.
    Unknown,
    /// The captured bytes end within the header.
    Cut,
}

/// Whether the payload of a datagram begins with a long or a short header.
pub fn parse(payload: &[u8]) -> Header {
    let Some(first) = payload.first() else {
        return Header::Cut;
    };
    if first & 0x80 == 0 {
        return Header::Short;
    }
    let Some(version) = payload.get(1..5) else {
        return Header::Cut;
    };
    let version = u32::from_be_bytes([version[0], version[1], version[2], version[3]]);
    let kind = match (version, (first >> 4) & 3) {
        (0, _) => Kind::VersionNegotiation,
        (VERSION_1, 0) | (VERSION_2, 1) => Kind::Initial,
        (VERSION_1, 1) | (VERSION_2, 2) => Kind::ZeroRtt,
        (VERSION_1, 2) | (VERSION_2, 3) => Kind::Handshake,
        (VERSION_1, 3) | (VERSION_2, 0) => Kind::Retry,
        _ => return Header::Unknown,
    };
    let mut rest = &payload[5..];
    let mut cids = [Cid::default(); 2];
    for cid in &mut cids {
        let Some(&size) = rest.first() else {
            return Header::Cut;
        };
        let size = usize::from(size);
        if size > LONGEST_CID {
            return Header::Unknown;
        }
        let Some(text) = rest.get(1..1 + size) else {
            return Header::Cut;
        };
        *cid = Cid::new(text);
        rest = &rest[1 + size..];
    }
    Header::Long(Long {
        kind,
        destination: cids[0],
        source: cids[1],
    })
}

/// The packet number of a short header without header protection, whole (RFC 9000, appendix A.3).
///
/// `largest` is the largest one seen of this sender. `None` where the header was not captured.
pub fn number(payload: &[u8], cid_bytes: usize, largest: Option<u64>) -> Option<u64> {
    let size = usize::from(payload[0] & 3) + 1;
    let field = payload.get(1 + cid_bytes..1 + cid_bytes + size)?;
    let truncated = field
        .iter()
        .fold(0u64, |value, byte| value << 8 | u64::from(*byte));
    let expected = largest.map_or(0, |number| number + 1);
    let window = 1u64 << (8 * size);
    let candidate = (expected & !(window - 1)) | truncated;
    Some(if candidate + window / 2 <= expected {
        candidate + window
    } else if candidate > expected + window / 2 && candidate >= window {
        candidate - window
    } else {
        candidate
    })
}
