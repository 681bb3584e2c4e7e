//! Frames down to UDP or TCP. Fragments of IP packets are passed over, as whatever is neither.

const NULL: i32 = 0;
const ETHERNET: i32 = 1;
const PPP: i32 = 9;
const PPP_HDLC: i32 = 50;
const LOOP: i32 = 108;
const RAW: i32 = 101;
const SLL: i32 = 113;
const IPV4: i32 = 228;
const IPV6: i32 = 229;
const SLL2: i32 = 276;

const SLL_OUTGOING: u16 = 4;

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

/// Where in a cooked capture a frame was seen: the index of the interface, or in version 1 whether it was sent.
pub fn tap(data: &[u8], link: i32) -> Option<u32> {
    match link {
        SLL => Some(u32::from(be16(data.get(..2)?, 0) == SLL_OUTGOING)),
        SLL2 => Some(u32::from_be_bytes(data.get(4..8)?.try_into().ok()?)),
        _ => None,
    }
}

pub enum Parsed<'a> {
    Packet(Packet<'a>),
    /// Neither UDP nor TCP, or not well-formed.
    Other,
    /// A fragment of either.
    Fragment,
    /// The captured bytes end before the payload begins.
    Short,
}

/// Whether frames of a link type can be parsed.
pub fn known(link: i32) -> bool {
    matches!(
        link,
        NULL | ETHERNET | PPP | PPP_HDLC | RAW | LOOP | SLL | IPV4 | IPV6 | SLL2
    )
}

fn be16(data: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([data[at], data[at + 1]])
}

/// Parses the captured bytes of a frame, from the link-layer header on; `wire` is its length on the link.
pub fn parse(data: &[u8], link: i32, wire: usize) -> Parsed<'_> {
    let (mut kind_at, mut start) = match link {
        ETHERNET => (12, 14),
        SLL => (14, 16),
        SLL2 => (0, 20),
        NULL | LOOP => return loopback(data, wire),
        PPP | PPP_HDLC => return ppp(data, wire),
        _ => return network(data, 0, wire),
    };
    loop {
        if data.len() < start {
            return Parsed::Short;
        }
        match be16(data, kind_at) {
            0x8100 | 0x88a8 | 0x9100 => (kind_at, start) = (start + 2, start + 4),
            0x0800 | 0x86dd => return network(data, start, wire),
            _ => return Parsed::Other,
        }
    }
}

/// A BSD loopback: an address family in the order of the machine that captured, which need not be that of the file.
fn loopback(data: &[u8], wire: usize) -> Parsed<'_> {
    let Some(family) = data.get(..4) else {
        return Parsed::Short;
    };
    match family {
        [0, 0, 0, number] | [number, 0, 0, 0] if matches!(number, 2 | 10 | 24 | 28 | 30) => {
            network(data, 4, wire)
        }
        _ => Parsed::Other,
    }
}

/// PPP (RFC 1661), with address and control bytes (RFC 1662) or without them.
fn ppp(data: &[u8], wire: usize) -> Parsed<'_> {
    let start = if data.starts_with(&[0xff, 0x03]) {
        2
    } else {
        0
    };
    match data.get(start..start + 2) {
        None => Parsed::Short,
        // a first byte of 0 may be left out (RFC 1661, 6.5)
        Some([0x21 | 0x57, _]) => network(data, start + 1, wire),
        Some([0x00, 0x21 | 0x57]) => network(data, start + 2, wire),
        Some(_) => Parsed::Other,
    }
}

fn network(data: &[u8], start: usize, wire: usize) -> Parsed<'_> {
    let data = &data[start.min(data.len())..];
    let left = wire.saturating_sub(start);
    match data.first().map(|first| first >> 4) {
        None => Parsed::Short,
        Some(4) => ipv4(data, left),
        Some(6) => ipv6(data, left),
        Some(_) => Parsed::Other,
    }
}

fn fragment<'a>(protocol: Option<&u8>) -> Parsed<'a> {
    match protocol {
        Some(&(PROTOCOL_UDP | PROTOCOL_TCP)) => Parsed::Fragment,
        _ => Parsed::Other,
    }
}

/// A length of 0 in a header stands for what is left of the frame: the network card was to cut the packet.
fn ipv4(data: &[u8], left: usize) -> Parsed<'_> {
    if data.len() < 20 {
        return Parsed::Short;
    }
    let header = usize::from(data[0] & 0x0f) * 4;
    let total = match usize::from(be16(data, 2)) {
        0 => left,
        total => total,
    };
    if header < 20 || total < header {
        return Parsed::Other;
    }
    if be16(data, 6) & 0x3fff != 0 {
        return fragment(data.get(9));
    }
    let mut key: Key = [0; 40];
    key[11..13].copy_from_slice(&[0xff, 0xff]);
    key[13..17].copy_from_slice(&data[12..16]);
    key[29..31].copy_from_slice(&[0xff, 0xff]);
    key[31..35].copy_from_slice(&data[16..20]);
    let body = data.get(header..total.min(data.len())).unwrap_or_default();
    transport(key, data[9], body, total - header)
}

fn ipv6(data: &[u8], left: usize) -> Parsed<'_> {
    if data.len() < 40 {
        return Parsed::Short;
    }
    let mut length = match usize::from(be16(data, 4)) {
        0 => left.saturating_sub(40),
        length => length,
    };
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
    // neither an offset nor more to come: a whole packet (RFC 6946)
    if protocol == IPV6_FRAGMENT && length >= 8 && body.len() >= 8 && be16(body, 2) & !0x6 == 0 {
        protocol = body[0];
        body = &body[8..];
        length -= 8;
    }
    if protocol == IPV6_FRAGMENT {
        return fragment(body.first());
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
        let size = match usize::from(be16(body, 4)) {
            0 => length,
            size => size,
        };
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
