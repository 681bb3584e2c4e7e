//! From the blocks of a capture to rows, and what is wrong with it.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use pcap_parser::pcapng::Block;
use pcap_parser::traits::{PcapNGPacketBlock, PcapReaderIterator};
use pcap_parser::{LegacyPcapReader, OptionCode, PcapBlockOwned, PcapError, PcapNGReader};
use serde::Serialize;

use crate::connections::Connections;
use crate::frames::{self, Parsed, Protocol};
use crate::input::{Input, Packing, State};
use crate::plain::Plain;
use crate::table::{Row, Table};
use crate::Options;

/// Longest record or block believed; a frame has at most `LONGEST_FRAME` bytes.
const BUFFER: usize = 1 << 20;
/// Largest captured length believed: tcpdump's own limit (MAXIMUM_SNAPLEN).
const LONGEST_FRAME: u32 = 262_144;
const MOST_INTERFACES: usize = 1 << 16;
/// Interfaces of cooked captures that are told apart, beside the one that each names first.
const MOST_TAPS: usize = 1 << 12;
/// Versions that are named.
const MOST_VERSIONS: usize = 5;
const PACKET_BLOCK: u32 = 2;
const PACKET_BLOCK_HEADER: usize = 20;
const PROGRESS: Duration = Duration::from_secs(1);
const FRAMES_BETWEEN_CLOCKS: i64 = 1 << 14;
const NS_PER_S: u64 = 1_000_000_000;
const PCAPNG: u32 = 0x0a0d_0d0a;
const SIMPLE_BLOCK_FRAME: usize = 16;

/// What a capture is, and what is wrong with it; frames are counted from 1, as Wireshark does.
#[derive(Serialize, Default)]
pub struct Summary {
    format: &'static str,
    packing: Packing,
    interfaces: usize,
    frames: i64,
    connections: i32,
    /// Frames with a UDP datagram or a TCP segment.
    packets: i64,
    /// Frames with neither.
    other_frames: i64,
    /// Frames with a fragment of either.
    fragment_frames: i64,
    first_fragment: Option<i64>,
    /// Datagrams of versions of QUIC that are not read, and those versions, the first few.
    unread_datagrams: i64,
    first_unread: Option<i64>,
    unread_versions: Vec<u32>,
    /// Frames captured so short that a header the table needs is not whole.
    short_frames: i64,
    first_short: Option<i64>,
    /// Frames stamped before the one before of their interface.
    backward_frames: i64,
    first_backward: Option<i64>,
    /// Frames of pcapng that have no time.
    unstamped_frames: i64,
    /// Packets of connections beyond the most that are told apart.
    unknown_connection: u64,
    /// Frames that the capturing program says it has lost; null where the file does not tell.
    dropped_frames: Option<u64>,
    /// Where and how the file ends too early.
    truncated: Option<String>,
}

struct Interface {
    link: i32,
    /// Units of time in a second, and seconds to add.
    units: u64,
    offset_s: i64,
    snap: u32,
    last_ns: i64,
    dropped: Option<u64>,
    /// What a cooked capture calls the interface that it was first seen on.
    tap: Option<u32>,
}

struct Reading<'a> {
    plain: Option<Plain>,
    options: &'a Options,
    state: Rc<State>,
    size: u64,
    table: Table,
    connections: Connections,
    summary: Summary,
    /// Interfaces of the section; those of earlier ones are only counted.
    interfaces: Vec<Interface>,
    earlier_interfaces: usize,
    /// Further interfaces of cooked captures, by the one that they are of.
    taps: HashMap<(usize, u32), i32>,
    earlier_dropped: Option<u64>,
    said: Instant,
}

pub fn read(options: &Options) -> Result<Summary, String> {
    let named = |problem: String| format!("{}: {problem}", options.capture.display());
    let (input, state, packing, size) = Input::open(&options.capture, options.most_unpacked)
        .map_err(|error| named(format!("cannot be read: {error}")))?;
    let written =
        |error: parquet::errors::ParquetError| format!("{}: {error}", options.output.display());
    let plain = options.frames.as_deref().map(Plain::create).transpose()?;
    let mut reading = Reading {
        plain,
        options,
        state,
        size,
        table: Table::create(&options.output).map_err(written)?,
        connections: Connections::new(options.server, options.visible_numbers),
        summary: Summary {
            packing,
            ..Summary::default()
        },
        interfaces: Vec::new(),
        earlier_interfaces: 0,
        taps: HashMap::new(),
        earlier_dropped: None,
        said: Instant::now(),
    };
    reading.all(input).map_err(named)?;
    let Reading {
        table,
        mut summary,
        connections,
        interfaces,
        plain,
        ..
    } = reading;
    summary.interfaces = reading.earlier_interfaces + interfaces.len() + reading.taps.len();
    summary.connections = connections.count;
    summary.unknown_connection = connections.unknown;
    summary.dropped_frames = sum(reading.earlier_dropped, &interfaces);
    table.close().map_err(written)?;
    plain.map_or(Ok(()), Plain::close)?;
    Ok(summary)
}

fn sum(earlier: Option<u64>, interfaces: &[Interface]) -> Option<u64> {
    interfaces
        .iter()
        .filter_map(|one| one.dropped)
        .chain(earlier)
        .reduce(u64::saturating_add)
}

impl Reading<'_> {
    fn all(&mut self, mut input: Input) -> Result<(), String> {
        let mut start = [0; 4];
        let got = std::io::Read::read(&mut input, &mut start).map_err(|_| self.failure())?;
        if got < 4 {
            return Err("at byte 0: the file ends within its header; capture again".into());
        }
        let whole = std::io::Read::chain(&start[..], Filled(input));
        if u32::from_le_bytes(start) == PCAPNG {
            self.summary.format = "pcapng";
            let reader = PcapNGReader::new(BUFFER, Filled(whole));
            let reader = reader.map_err(|error| self.opening(&error))?;
            self.blocks(reader)
        } else {
            self.summary.format = "pcap";
            let reader = LegacyPcapReader::new(BUFFER, Filled(whole));
            let reader = reader.map_err(|error| self.opening(&error))?;
            self.blocks(reader)
        }
    }

    /// Why reading failed.
    fn failure(&self) -> String {
        self.state
            .error
            .borrow_mut()
            .take()
            .unwrap_or_else(|| "cannot be read".into())
    }

    fn opening(&self, error: &PcapError<&[u8]>) -> String {
        match error {
            PcapError::ReadError => self.failure(),
            PcapError::Incomplete(_) => {
                "at byte 0: the file ends within its header; capture again".into()
            }
            _ => "at byte 0: neither pcap nor pcapng, nor one of them in gzip or zstd".into(),
        }
    }

    fn blocks(&mut self, mut reader: impl PcapReaderIterator) -> Result<(), String> {
        let mut big_endian = false;
        let mut units = 0;
        loop {
            let at = reader.consumed();
            let offset = match reader.next() {
                Ok((offset, block)) => {
                    match block {
                        PcapBlockOwned::Legacy(block) => {
                            if u64::from(block.ts_usec) >= units {
                                let frame = self.summary.frames + 1;
                                let fraction = block.ts_usec;
                                return Err(format!(
                                    "at byte {at}: frame {frame} has {fraction} as its fraction of a second; \
                                     the file is damaged there: capture again"
                                ));
                            }
                            let told = [block.ts_sec, block.ts_usec, block.caplen, block.origlen];
                            if told == [0; 4] {
                                self.truncated(at, "the file holds zeros from there on");
                                return Ok(());
                            }
                            let ns = i64::from(block.ts_sec) * NS_PER_S as i64
                                + i64::from(block.ts_usec) * (NS_PER_S / units) as i64;
                            self.frame(at, 0, Some(ns), block.origlen, block.caplen, block.data)?;
                        }
                        PcapBlockOwned::LegacyHeader(header) => {
                            if (header.version_major, header.version_minor) != (2, 4) {
                                return Err(format!(
                                    "at byte 4: pcap version {}.{}; only 2.4 is known",
                                    header.version_major, header.version_minor
                                ));
                            }
                            units = if header.is_nanosecond_precision() { NS_PER_S } else { 1_000_000 };
                            // the upper half of the field describes a frame check sequence
                            self.interface(header.network.0 & 0xffff, units, 0, header.snaplen)?;
                        }
                        PcapBlockOwned::NG(block) => self.block(at, block, &mut big_endian)?,
                    }
                    offset
                }
                Err(PcapError::Eof) => {
                    if self.state.cut.get() {
                        self.truncated(at, "the compressed data end too early");
                    }
                    return Ok(());
                }
                Err(PcapError::UnexpectedEof) => {
                    let left = reader.data();
                    // of a block that is whole and says it holds more than it does, nothing is missing
                    if self.summary.format == "pcapng" && block_bytes(left, big_endian) <= left.len() {
                        return Err(damaged(at));
                    }
                    let size = left.len();
                    self.truncated(at, &format!("the file ends {size} bytes into a record"));
                    return Ok(());
                }
                Err(PcapError::Incomplete(_)) => {
                    let before = reader.data().len();
                    reader.refill().map_err(|_| self.failure())?;
                    if reader.data().len() == before && !reader.reader_exhausted() {
                        return Err(damaged(at));
                    }
                    continue;
                }
                Err(PcapError::BufferTooSmall) => {
                    return Err(format!(
                        "at byte {at}: a record longer than {BUFFER} bytes; the file is damaged there: capture again"
                    ))
                }
                Err(_) => return Err(damaged(at)),
            };
            reader.consume_noshift(offset);
        }
    }

    fn truncated(&mut self, at: usize, problem: &str) {
        self.summary.truncated = Some(format!("at byte {at}: {problem}"));
    }

    fn interface(&mut self, link: i32, units: u64, offset_s: i64, snap: u32) -> Result<(), String> {
        if self.interfaces.len() == MOST_INTERFACES {
            return Err(format!(
                "describes more than {MOST_INTERFACES} interfaces; the file is damaged"
            ));
        }
        let last_ns = i64::MIN;
        self.interfaces.push(Interface {
            link,
            units,
            offset_s,
            snap,
            last_ns,
            dropped: None,
            tap: None,
        });
        Ok(())
    }

    fn block(&mut self, at: usize, block: Block, big_endian: &mut bool) -> Result<(), String> {
        match block {
            Block::SectionHeader(header) => {
                *big_endian = header.big_endian();
                self.earlier_dropped = sum(self.earlier_dropped, &self.interfaces);
                self.earlier_interfaces += self.interfaces.len();
                self.interfaces.clear();
            }
            Block::InterfaceDescription(one) => {
                let value = |code| one.options.iter().find(|option| option.code == code);
                let units = value(OptionCode::IfTsresol).and_then(|option| option.value.first());
                let units = resolution(units.copied().unwrap_or(6))
                    .ok_or_else(|| format!("at byte {at}: times of a unit that no clock has"))?;
                let offset = value(OptionCode::IfTsoffset).and_then(|option| option.value.get(..8));
                let offset_s = offset.map_or(0, |bytes| eight(bytes, *big_endian) as i64);
                self.interface(one.linktype.0, units, offset_s, one.snaplen)?;
            }
            Block::EnhancedPacket(one) => {
                let index = one.if_id as usize;
                let Some(interface) = self.interfaces.get(index) else {
                    return Err(undescribed(at));
                };
                let ticks = u64::from(one.ts_high) << 32 | u64::from(one.ts_low);
                let ns = nanoseconds(ticks, interface).ok_or_else(|| {
                    format!("at byte {at}: a frame of a time that no clock showed")
                })?;
                self.frame(
                    at,
                    index,
                    Some(ns),
                    one.origlen,
                    one.caplen,
                    one.packet_data(),
                )?;
            }
            // obsolete, and still found
            Block::Unknown(one) if is_packet_block(one.block_type, *big_endian) => {
                let header = one.data.get(..PACKET_BLOCK_HEADER);
                let header = header.ok_or_else(|| damaged(at))?;
                let word = |place: usize| four(&header[place..place + 4], *big_endian);
                let index = usize::from(two(&header[..2], *big_endian));
                let Some(interface) = self.interfaces.get(index) else {
                    return Err(undescribed(at));
                };
                let ns = nanoseconds(u64::from(word(4)) << 32 | u64::from(word(8)), interface);
                let ns = ns.ok_or_else(|| {
                    format!("at byte {at}: a frame of a time that no clock showed")
                })?;
                let (captured, wire) = (word(12), word(16));
                let rest = &one.data[PACKET_BLOCK_HEADER..];
                let data = rest.get(..captured as usize).ok_or_else(|| damaged(at))?;
                self.frame(at, index, Some(ns), wire, captured, data)?;
            }
            Block::SimplePacket(one) => {
                let Some(interface) = self.interfaces.first() else {
                    return Err(undescribed(at));
                };
                let snap = if interface.snap == 0 {
                    u32::MAX
                } else {
                    interface.snap
                };
                let held = (one.block_len1 as usize)
                    .saturating_sub(SIMPLE_BLOCK_FRAME)
                    .min(one.data.len());
                let captured = one.origlen.min(snap).min(held as u32);
                self.frame(
                    at,
                    0,
                    None,
                    one.origlen,
                    captured,
                    &one.data[..captured as usize],
                )?;
            }
            Block::InterfaceStatistics(one) => {
                if let Some(interface) = self.interfaces.get_mut(one.if_id as usize) {
                    let told = one.options.iter().filter(|option| {
                        matches!(option.code, OptionCode::IsbIfDrop | OptionCode::IsbOsDrop)
                    });
                    // the numbers count from the beginning: those of the last block hold
                    let lost = told
                        .filter_map(|option| option.value.get(..8))
                        .map(|bytes| eight(bytes, *big_endian));
                    interface.dropped = lost.reduce(u64::saturating_add).or(interface.dropped);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The number of the interface of a frame: a cooked capture may have several, which its frames name.
    fn tap(&mut self, interface: usize, data: &[u8]) -> i32 {
        let one = &mut self.interfaces[interface];
        let index = self.earlier_interfaces + interface;
        let tap = frames::tap(data, one.link).filter(|tap| *one.tap.get_or_insert(*tap) != *tap);
        let Some(tap) = tap else {
            return index as i32;
        };
        let next = MOST_INTERFACES as i32 + self.taps.len() as i32;
        match self.taps.get(&(index, tap)) {
            Some(number) => *number,
            // more than any machine has are one
            None if self.taps.len() == MOST_TAPS => next,
            None => *self.taps.entry((index, tap)).or_insert(next),
        }
    }

    fn frame(
        &mut self,
        at: usize,
        interface: usize,
        time_ns: Option<i64>,
        wire: u32,
        captured: u32,
        data: &[u8],
    ) -> Result<(), String> {
        let number = self.summary.frames + 1;
        if captured > LONGEST_FRAME || captured > wire || wire > i32::MAX as u32 {
            return Err(format!(
                "at byte {at}: frame {number} says {captured} bytes were captured of {wire}; \
                 the file is damaged there: capture again"
            ));
        }
        self.summary.frames = number;
        let number_of_tap = self.tap(interface, data);
        let one = &mut self.interfaces[interface];
        if !frames::known(one.link) {
            return Err(format!(
                "frame {number} is of link type {}; known are Ethernet, Linux cooked, PPP, BSD loopback and raw IP: \
                 capture on one of these",
                one.link
            ));
        }
        if let Some(plain) = &mut self.plain {
            plain.frame(number, one.link, time_ns, wire, &data[..captured as usize])?;
        }
        match time_ns {
            Some(ns) if ns < one.last_ns => {
                self.summary.backward_frames += 1;
                self.summary.first_backward.get_or_insert(number);
                one.last_ns = ns;
            }
            Some(ns) => one.last_ns = ns,
            None => self.summary.unstamped_frames += 1,
        }
        let mut row = Row {
            frame: number,
            interface: number_of_tap,
            time_ns,
            frame_bytes: wire as i32,
            captured_bytes: captured as i32,
            ..Row::default()
        };
        let mut short = false;
        match frames::parse(data, one.link, wire as usize) {
            Parsed::Packet(packet) => {
                let known = self.connections.packet(&packet);
                self.summary.packets += 1;
                if let Some(version) = known.unread {
                    let summary = &mut self.summary;
                    summary.unread_datagrams += 1;
                    summary.first_unread.get_or_insert(number);
                    let named = &mut summary.unread_versions;
                    if named.len() < MOST_VERSIONS && !named.contains(&version) {
                        named.push(version);
                    }
                }
                row.protocol = Some(if packet.protocol == Protocol::Udp {
                    "udp"
                } else {
                    "tcp"
                });
                row.payload_bytes = Some(packet.payload_bytes as i32);
                row.connection = known.connection;
                row.direction =
                    known
                        .from_client
                        .map(|client| if client { "to_server" } else { "to_client" });
                row.packet_type = known.kind.map(|kind| kind.name());
                row.packet_number = known.number;
                short = known.cut && captured < wire;
            }
            Parsed::Fragment => {
                self.summary.fragment_frames += 1;
                self.summary.first_fragment.get_or_insert(number);
            }
            Parsed::Short if captured < wire => short = true,
            Parsed::Short | Parsed::Other => self.summary.other_frames += 1,
        }
        if short {
            self.summary.short_frames += 1;
            self.summary.first_short.get_or_insert(number);
        }
        self.table.push(row).map_err(|error| {
            format!(
                "{} cannot be written: {error}",
                self.options.output.display()
            )
        })?;
        if number % FRAMES_BETWEEN_CLOCKS == 0 && self.said.elapsed() >= PROGRESS {
            self.said = Instant::now();
            eprintln!("progress {} {} {number}", self.state.taken.get(), self.size);
        }
        Ok(())
    }
}

/// Length of a pcapng block, by its header; more than any where that is not there.
fn block_bytes(data: &[u8], big_endian: bool) -> usize {
    let Some(field) = data.get(4..8) else {
        return usize::MAX;
    };
    four(field, big_endian) as usize
}

/// Units of time in a second (draft-ietf-opsawg-pcapng, if_tsresol): a power of ten, or of two with the highest bit.
fn resolution(value: u8) -> Option<u64> {
    if value & 0x80 == 0 {
        10u64.checked_pow(value.into())
    } else {
        1u64.checked_shl((value & 0x7f).into())
    }
}

/// Types of unknown blocks are as in the file, whatever its byte order.
fn is_packet_block(kind: u32, big_endian: bool) -> bool {
    kind == if big_endian {
        PACKET_BLOCK.swap_bytes()
    } else {
        PACKET_BLOCK
    }
}

fn two(bytes: &[u8], big_endian: bool) -> u16 {
    let bytes = <[u8; 2]>::try_from(bytes).expect("two bytes");
    if big_endian {
        u16::from_be_bytes(bytes)
    } else {
        u16::from_le_bytes(bytes)
    }
}

fn four(bytes: &[u8], big_endian: bool) -> u32 {
    let bytes = <[u8; 4]>::try_from(bytes).expect("four bytes");
    if big_endian {
        u32::from_be_bytes(bytes)
    } else {
        u32::from_le_bytes(bytes)
    }
}

fn eight(bytes: &[u8], big_endian: bool) -> u64 {
    let bytes = <[u8; 8]>::try_from(bytes).expect("eight bytes");
    if big_endian {
        u64::from_be_bytes(bytes)
    } else {
        u64::from_le_bytes(bytes)
    }
}

fn damaged(at: usize) -> String {
    format!(
        "at byte {at}: no block or record of a capture; the file is damaged there: capture again"
    )
}

fn undescribed(at: usize) -> String {
    format!("at byte {at}: a frame of an interface that is not described; the file is damaged")
}

/// Nanoseconds since 1970; `None` if they are not in 64 bits.
fn nanoseconds(ticks: u64, interface: &Interface) -> Option<i64> {
    let ns = if interface.units == NS_PER_S {
        ticks
    } else {
        let (seconds, rest) = (ticks / interface.units, ticks % interface.units);
        let fraction = u128::from(rest) * u128::from(NS_PER_S) / u128::from(interface.units);
        seconds
            .checked_mul(NS_PER_S)?
            .checked_add(fraction as u64)?
    };
    i64::try_from(ns)
        .ok()?
        .checked_add(interface.offset_s.checked_mul(NS_PER_S as i64)?)
}

/// A reader whose every read fills its buffer, except at the end: what the parsers take for granted.
struct Filled<R>(R);

impl<R: std::io::Read> std::io::Read for Filled<R> {
    fn read(&mut self, space: &mut [u8]) -> std::io::Result<usize> {
        let mut filled = 0;
        while filled < space.len() {
            match self.0.read(&mut space[filled..])? {
                0 => break,
                size => filled += size,
            }
        }
        Ok(filled)
    }
}
