//! Frames down to UDP or TCP. Fragments of IP packets are passed over, as whatever is neither.

const ETHERNET: i32 = 1;
const RAW: i32 = 101;
const SLL: i32 = 113;
const IPV4: i32 = 228;
const IPV6: i32 = 229;
const SLL2: i32 = 276;

const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
const IPV6_FRAGMENT: u8 = 44;

/// Addresses and ports of a packet: protocol, source address and port, destination address and port; zeros.
pub type Key = [u8; 40];

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Udp,
    Tcp,
}

/// A UDP datagram or TCP segment.
pub struct Packet<'a> {
    pub protocol: Protocol,
    pub key: Key,
    /// What was captured of the payload.
    pub payload: &'a [u8],
    /// Length of the payload on the link, by the headers.
    pub payload_bytes: usize,
    /// TCP sequence number and flags.
    pub sequence: u32,
    pub flags: u8,
}

pub enum Parsed<'a> {
    Packet(Packet<'a>),
    /// Neither UDP nor TCP, or not well-formed.
    Other,
    /// The captured bytes end before the payload begins.
    Short,
}

/// Whether frames of a link type can be parsed.
pub fn known(link: i32) -> bool {
    matches!(link, ETHERNET | RAW | SLL | IPV4 | IPV6 | SLL2)
}

fn be16(data: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([data[at], data[at + 1]])
}

/// Parses the captured bytes of a frame, from the link-layer header on.
pub fn parse(data: &[u8], link: i32) -> Parsed<'_> {
    let (mut kind_at, mut start) = match link {
        ETHERNET => (12, 14),
        SLL => (14, 16),
        SLL2 => (0, 20),
        _ => return network(data),
    };
    loop {
        if data.len() < start {
            return Parsed::Short;
        }
        match be16(data, kind_at) {
            0x8100 | 0x88a8 => (kind_at, start) = (start + 2, start + 4),
            0x0800 | 0x86dd => return network(&data[start..]),
            _ => return Parsed::Other,
        }
    }
}

fn network(data: &[u8]) -> Parsed<'_> {
    match data.first().map(|first| first >> 4) {
        None => Parsed::Short,
        Some(4) => ipv4(data),
        Some(6) => ipv6(data),
        Some(_) => Parsed::Other,
    }
}

fn ipv4(data: &[u8]) -> Parsed<'_> {
    if data.len() < 20 {
        return Parsed::Short;
    }
    let header = usize::from(data[0] & 0x0f) * 4;
    let total = usize::from(be16(data, 2));
    if header < 20 || total < header || be16(data, 6) & 0x3fff != 0 {
        return Parsed::Other;
    }
    let mut key: Key = [0; 40];
    key[11..13].copy_from_slice(&[0xff, 0xff]);
    key[13..17].copy_from_slice(&data[12..16]);
    key[29..31].copy_from_slice(&[0xff, 0xff]);
    key[31..35].copy_from_slice(&data[16..20]);
    let body = data.get(header..total.min(data.len())).unwrap_or_default();
    transport(key, data[9], body, total - header)
}

fn ipv6(data: &[u8]) -> Parsed<'_> {
    if data.len() < 40 {
        return Parsed::Short;
    }
    let mut length = usize::from(be16(data, 4));
    let mut protocol = data[6];
    let mut key: Key = [0; 40];
    key[1..17].copy_from_slice(&data[8..24]);
    key[19..35].copy_from_slice(&data[24..40]);
    let mut body = &data[40..data.len().min(40 + length)];
    // hop-by-hop options, routing header, destination options: next header, then units of 8 bytes less one
    while matches!(protocol, 0 | 43 | 60) {
        if length < 8 {
            return Parsed::Other;
        }
        if body.len() < 8 {
            return Parsed::Short;
        }
        let size = (usize::from(body[1]) + 1) * 8;
        if size > length {
            return Parsed::Other;
        }
        protocol = body[0];
        body = body.get(size..).unwrap_or_default();
        length -= size;
    }
    if protocol == IPV6_FRAGMENT {
        return Parsed::Other;
    }
    transport(key, protocol, body, length)
}

fn transport(mut key: Key, protocol: u8, body: &[u8], length: usize) -> Parsed<'_> {
    let needed = match protocol {
        PROTOCOL_UDP => 8,
        PROTOCOL_TCP => 20,
        _ => return Parsed::Other,
    };
    if length < needed {
        return Parsed::Other;
    }
    if body.len() < needed {
        return Parsed::Short;
    }
    key[0] = protocol;
    key[17..19].copy_from_slice(&body[0..2]);
    key[35..37].copy_from_slice(&body[2..4]);
    if protocol == PROTOCOL_UDP {
        let size = usize::from(be16(body, 4));
        if !(8..=length).contains(&size) {
            return Parsed::Other;
        }
        return Parsed::Packet(Packet {
            protocol: Protocol::Udp,
            key,
            payload: &body[8..size.min(body.len())],
            payload_bytes: size - 8,
            sequence: 0,
            flags: 0,
        });
    }
    let header = usize::from(body[12] >> 4) * 4;
    if !(20..=length).contains(&header) {
        return Parsed::Other;
    }
    Parsed::Packet(Packet {
        protocol: Protocol::Tcp,
        key,
        payload: body.get(header..).unwrap_or_default(),
        payload_bytes: length - header,
        sequence: u32::from_be_bytes([body[4], body[5], body[6], body[7]]),
        flags: body[13],
    })
}

/// The key of packets in the other direction.
pub fn reversed(key: &Key) -> Key {
    let mut other = *key;
    other[1..19].copy_from_slice(&key[19..37]);
    other[19..37].copy_from_slice(&key[1..19]);
    other
}
