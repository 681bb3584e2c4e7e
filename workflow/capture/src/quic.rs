//! Headers of QUIC packets (RFC 9000, section 17; RFC 9369 for version 2), as far as an observer can read them.

use std::sync::LazyLock;

const LONGEST_CID: usize = 20;

/// Versions that are read, each with what its four long header types are: the table of quicbed.wire.quicwire.
static VERSIONS: LazyLock<Vec<(u32, [Kind; 4])>> =
    LazyLock::new(|| versions(include_str!("../../quicbed/wire/versions.csv")));

fn versions(table: &str) -> Vec<(u32, [Kind; 4])> {
    const COLUMNS: [(usize, Kind); 4] = [
        (4, Kind::Initial),
        (5, Kind::ZeroRtt),
        (6, Kind::Handshake),
        (7, Kind::Retry),
    ];
    let row = |line: &str| {
        let fields: Vec<&str> = line.split(',').collect();
        let mut kinds = [Kind::Initial; 4];
        for (column, kind) in COLUMNS {
            let value: usize = fields[column].parse().expect("a type of a long header");
            kinds[value] = kind;
        }
        let version = u32::from_str_radix(fields[0], 16).expect("a version");
        (version, kinds)
    };
    table.lines().skip(1).map(row).collect()
}

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
    /// Of a version that is not known.
    Unknown(u32),
    /// Not well-formed.
    Malformed,
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
    let kind = if version == 0 {
        Some(Kind::VersionNegotiation)
    } else {
        let known = VERSIONS.iter().find(|(one, _)| *one == version);
        known.map(|(_, kinds)| kinds[usize::from((first >> 4) & 3)])
    };
    let mut rest = &payload[5..];
    let mut cids = [Cid::default(); 2];
    for cid in &mut cids {
        let Some(&size) = rest.first() else {
            return Header::Cut;
        };
        let size = usize::from(size);
        let Some(text) = rest.get(1..1 + size) else {
            return Header::Cut;
        };
        // of other versions, and those that are negotiated, they may be longer (RFC 8999, 5.3)
        if size <= LONGEST_CID {
            *cid = Cid::new(text);
        } else if kind.is_some_and(|kind| kind != Kind::VersionNegotiation) {
            return Header::Malformed;
        }
        rest = &rest[1 + size..];
    }
    match kind {
        None => Header::Unknown(version),
        Some(kind) => Header::Long(Long {
            kind,
            destination: cids[0],
            source: cids[1],
        }),
    }
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
