//! Connections, numbered in the order of their first packet, and who of the two ends sends.
//!
//! A connection is a pair of addresses and ports; a TCP SYN with another sequence number, or an Initial packet of a
//! client with other connection IDs, begins a new one there. A connection that moves to other addresses counts as
//! another one there.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use crate::frames::{reversed, Key, Packet, Protocol};
use crate::quic::{self, Cid, Header, Kind, Long};

/// Connections that are told apart; memory is bounded by it.
const MOST: usize = 1 << 18;

/// Shortest datagram with a client's first packet (RFC 9000, 14.1): what has such a length, and the two highest bits of a
/// long header, is taken for QUIC whatever its version is.
const LEAST_OPENING: usize = 1200;
const LONG_AND_FIXED: u8 = 0xc0;

const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// What a row has of a packet's connection; `None` for what is not known.
#[derive(Default)]
pub struct Known {
    pub connection: Option<i32>,
    pub from_client: Option<bool>,
    pub kind: Option<Kind>,
    pub number: Option<i64>,
    /// Whether the captured bytes end within the QUIC header.
    pub cut: bool,
    /// The version of QUIC that is not read.
    pub unread: Option<u32>,
}

/// One of the two ends of a flow: 0 sent its first packet.
type Side = u8;

/// A pair of addresses and ports, and the connection on it now.
#[derive(Default)]
struct Flow {
    connection: i32,
    client: Option<Side>,
    /// Whether the caller told who is the client.
    told: bool,
    is_quic: bool,
    /// Sequence number of the SYN.
    first_sequence: Option<u32>,
    /// The client's own connection ID, and what it calls the server by: its first choice, the Retry's, the server's.
    client_cid: Option<Cid>,
    server_cids: [Option<Cid>; 3],
    largest: [Option<u64>; 2],
}

pub struct Connections {
    server: Option<Key>,
    visible_numbers: bool,
    by_key: HashMap<Key, (u32, Side)>,
    flows: Vec<Flow>,
    /// The last packets' keys, one a direction: most packets are of the same flow as the one before.
    recent: [(Key, u32, Side); 2],
    pub count: i32,
    /// Packets of flows beyond the most that are told apart.
    pub unknown: u64,
}

impl Connections {
    pub fn new(server: Option<SocketAddr>, visible_numbers: bool) -> Connections {
        Connections {
            server: server.map(server_key),
            visible_numbers,
            by_key: HashMap::new(),
            flows: Vec::new(),
            recent: [([0; 40], 0, 0); 2],
            count: 0,
            unknown: 0,
        }
    }

    /// Sorts a packet in.
    pub fn packet(&mut self, packet: &Packet) -> Known {
        let Some((index, side)) = self.flow(&packet.key) else {
            self.unknown += 1;
            return Known::default();
        };
        let flow = &mut self.flows[index as usize];
        let mut known = Known::default();
        match packet.protocol {
            Protocol::Tcp => tcp(flow, side, packet, &mut self.count),
            Protocol::Udp if packet.payload_bytes > 0 => {
                udp(
                    flow,
                    side,
                    packet,
                    self.visible_numbers,
                    &mut self.count,
                    &mut known,
                );
            }
            Protocol::Udp => {}
        }
        known.connection = Some(flow.connection);
        known.from_client = flow.client.map(|client| client == side);
        known
    }

    fn flow(&mut self, key: &Key) -> Option<(u32, Side)> {
        for (recent, index, side) in &self.recent {
            if recent == key {
                return Some((*index, *side));
            }
        }
        let found = match self.by_key.get(key) {
            Some(found) => *found,
            None if self.flows.len() == MOST => return None,
            None => {
                let index = self.flows.len() as u32;
                let client = self.server.and_then(|server| {
                    let tail = |key: &Key| key[19..37] == server[19..37];
                    if tail(key) {
                        Some(0)
                    } else if tail(&reversed(key)) {
                        Some(1)
                    } else {
                        None
                    }
                });
                self.flows.push(Flow {
                    connection: self.count,
                    client,
                    told: client.is_some(),
                    is_quic: client.is_some(),
                    ..Flow::default()
                });
                self.count += 1;
                self.by_key.insert(*key, (index, 0));
                // packets from an end to itself have one key
                self.by_key.entry(reversed(key)).or_insert((index, 1));
                (index, 0)
            }
        };
        self.recent[usize::from(found.1)] = (*key, found.0, found.1);
        Some(found)
    }
}

/// A key with this destination.
fn server_key(server: SocketAddr) -> Key {
    let mut key: Key = [0; 40];
    let address = match server.ip() {
        // as frames::parse writes it
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    key[19..35].copy_from_slice(&address);
    key[35..37].copy_from_slice(&server.port().to_be_bytes());
    key
}

/// Begins another connection on the same addresses and ports.
fn again(flow: &mut Flow, count: &mut i32) {
    *flow = Flow {
        connection: *count,
        client: flow.client.filter(|_| flow.told),
        told: flow.told,
        is_quic: flow.is_quic,
        ..Flow::default()
    };
    *count += 1;
}

fn tcp(flow: &mut Flow, side: Side, packet: &Packet, count: &mut i32) {
    if packet.flags & SYN == 0 {
        return;
    }
    if packet.flags & ACK != 0 {
        flow.client.get_or_insert(1 - side);
        return;
    }
    if flow
        .first_sequence
        .is_some_and(|first| first != packet.sequence)
    {
        again(flow, count);
    }
    flow.first_sequence = Some(packet.sequence);
    flow.client.get_or_insert(side);
}

fn udp(
    flow: &mut Flow,
    side: Side,
    packet: &Packet,
    visible: bool,
    count: &mut i32,
    known: &mut Known,
) {
    let payload = packet.payload;
    match quic::parse(payload) {
        Header::Long(header) => {
            flow.is_quic = true;
            known.kind = Some(header.kind);
            long(flow, side, &header, count);
        }
        Header::Short if flow.is_quic => {
            known.kind = Some(Kind::OneRtt);
            if visible {
                if let Some(size) = short_cid_bytes(flow, side) {
                    let largest = &mut flow.largest[usize::from(side)];
                    match quic::number(payload, size, *largest) {
                        Some(number) => {
                            *largest = Some(largest.map_or(number, |before| before.max(number)));
                            known.number = Some(number as i64);
                        }
                        None => known.cut = true,
                    }
                }
            }
        }
        Header::Cut => known.cut = true,
        Header::Unknown(version) => {
            let opening = payload[0] & LONG_AND_FIXED == LONG_AND_FIXED
                && packet.payload_bytes >= LEAST_OPENING;
            known.unread = (flow.is_quic || opening).then_some(version);
        }
        Header::Short | Header::Malformed => {}
    }
}

fn long(flow: &mut Flow, side: Side, header: &Long, count: &mut i32) {
    if header.kind == Kind::Initial {
        flow.client.get_or_insert(side);
    }
    if flow.client == Some(side) {
        if header.kind == Kind::Initial {
            let other = flow
                .client_cid
                .is_some_and(|before| before != header.source)
                || (flow.client_cid.is_some()
                    && header.source.len() == 0
                    && !flow.server_cids.contains(&Some(header.destination)));
            if other {
                again(flow, count);
                flow.client = Some(side);
            }
            flow.client_cid = Some(header.source);
            flow.server_cids[0].get_or_insert(header.destination);
        }
    } else if flow.client.is_some() {
        match header.kind {
            Kind::Retry => flow.server_cids[1] = Some(header.source),
            Kind::Initial | Kind::Handshake => {
                flow.server_cids[2] = Some(header.source);
                // where only the server's packets were captured
                flow.client_cid.get_or_insert(header.destination);
            }
            _ => {}
        }
    }
}

/// Length of the connection ID in short headers of a side: the one that the other side chose.
fn short_cid_bytes(flow: &Flow, side: Side) -> Option<usize> {
    let chosen = if flow.client == Some(side) {
        flow.server_cids[2]
    } else {
        flow.client_cid
    };
    chosen.map(|cid| cid.len())
}
