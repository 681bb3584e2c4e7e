//! The table: rows are gathered and written as row groups.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::Encoding;
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::Result;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;

/// In the order of the columns of `Table`.
const SCHEMA: &str = "
message packets {
  REQUIRED INT64 frame;
  REQUIRED INT32 interface;
  OPTIONAL INT64 time_ns;
  REQUIRED INT32 frame_bytes;
  REQUIRED INT32 captured_bytes;
  OPTIONAL BYTE_ARRAY protocol (STRING);
  OPTIONAL INT32 connection;
  OPTIONAL BYTE_ARRAY direction (STRING);
  OPTIONAL INT32 payload_bytes;
  OPTIONAL BYTE_ARRAY packet_type (STRING);
  OPTIONAL INT64 packet_number;
}";
/// Their values lie close to those of the row before; the others have few different ones.
const CLOSE: [&str; 5] = [
    "frame",
    "interface",
    "time_ns",
    "connection",
    "packet_number",
];
const ROWS: usize = 1 << 17;

/// A row; see docs/pacing.md.
#[derive(Default)]
pub struct Row {
    pub frame: i64,
    pub interface: i32,
    pub time_ns: Option<i64>,
    pub frame_bytes: i32,
    pub captured_bytes: i32,
    pub protocol: Option<&'static str>,
    pub connection: Option<i32>,
    pub direction: Option<&'static str>,
    pub payload_bytes: Option<i32>,
    pub packet_type: Option<&'static str>,
    pub packet_number: Option<i64>,
}

/// Values of a column that may be null.
struct Optional<T> {
    values: Vec<T>,
    levels: Vec<i16>,
}

impl<T> Optional<T> {
    fn new() -> Optional<T> {
        Optional {
            values: Vec::with_capacity(ROWS),
            levels: Vec::with_capacity(ROWS),
        }
    }

    fn push(&mut self, value: Option<T>) {
        self.levels.push(i16::from(value.is_some()));
        if let Some(value) = value {
            self.values.push(value);
        }
    }
}

type Group<'a> = SerializedRowGroupWriter<'a, BufWriter<File>>;

fn write<T: DataType>(group: &mut Group, values: &[T::T], levels: Option<&[i16]>) -> Result<()> {
    let mut column = group.next_column()?.expect("a column of the schema");
    column.typed::<T>().write_batch(values, levels, None)?;
    column.close()
}

fn required<T: DataType>(group: &mut Group, values: &mut Vec<T::T>) -> Result<()> {
    write::<T>(group, values, None)?;
    values.clear();
    Ok(())
}

fn optional<T: DataType>(group: &mut Group, column: &mut Optional<T::T>) -> Result<()> {
    write::<T>(group, &column.values, Some(&column.levels))?;
    column.values.clear();
    column.levels.clear();
    Ok(())
}

pub struct Table {
    writer: SerializedFileWriter<BufWriter<File>>,
    frame: Vec<i64>,
    interface: Vec<i32>,
    time_ns: Optional<i64>,
    frame_bytes: Vec<i32>,
    captured_bytes: Vec<i32>,
    protocol: Optional<ByteArray>,
    connection: Optional<i32>,
    direction: Optional<ByteArray>,
    payload_bytes: Optional<i32>,
    packet_type: Optional<ByteArray>,
    packet_number: Optional<i64>,
}

fn text(value: &'static str) -> ByteArray {
    ByteArray::from(Bytes::from_static(value.as_bytes()))
}

impl Table {
    pub fn create(path: &Path) -> Result<Table> {
        let mut properties = WriterProperties::builder()
            .set_statistics_enabled(EnabledStatistics::None)
            .set_offset_index_disabled(true);
        for name in CLOSE {
            let column = ColumnPath::from(name);
            properties = properties
                .set_column_dictionary_enabled(column.clone(), false)
                .set_column_encoding(column, Encoding::DELTA_BINARY_PACKED);
        }
        let schema = Arc::new(parse_message_type(SCHEMA)?);
        let file = BufWriter::new(File::create(path)?);
        Ok(Table {
            writer: SerializedFileWriter::new(file, schema, Arc::new(properties.build()))?,
            frame: Vec::with_capacity(ROWS),
            interface: Vec::with_capacity(ROWS),
            time_ns: Optional::new(),
            frame_bytes: Vec::with_capacity(ROWS),
            captured_bytes: Vec::with_capacity(ROWS),
            protocol: Optional::new(),
            connection: Optional::new(),
            direction: Optional::new(),
            payload_bytes: Optional::new(),
            packet_type: Optional::new(),
            packet_number: Optional::new(),
        })
    }

    pub fn push(&mut self, row: Row) -> Result<()> {
        self.frame.push(row.frame);
        self.interface.push(row.interface);
        self.time_ns.push(row.time_ns);
        self.frame_bytes.push(row.frame_bytes);
        self.captured_bytes.push(row.captured_bytes);
        self.protocol.push(row.protocol.map(text));
        self.connection.push(row.connection);
        self.direction.push(row.direction.map(text));
        self.payload_bytes.push(row.payload_bytes);
        self.packet_type.push(row.packet_type.map(text));
        self.packet_number.push(row.packet_number);
        if self.frame.len() == ROWS {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        let mut group = self.writer.next_row_group()?;
        required::<Int64Type>(&mut group, &mut self.frame)?;
        required::<Int32Type>(&mut group, &mut self.interface)?;
        optional::<Int64Type>(&mut group, &mut self.time_ns)?;
        required::<Int32Type>(&mut group, &mut self.frame_bytes)?;
        required::<Int32Type>(&mut group, &mut self.captured_bytes)?;
        optional::<ByteArrayType>(&mut group, &mut self.protocol)?;
        optional::<Int32Type>(&mut group, &mut self.connection)?;
        optional::<ByteArrayType>(&mut group, &mut self.direction)?;
        optional::<Int32Type>(&mut group, &mut self.payload_bytes)?;
        optional::<ByteArrayType>(&mut group, &mut self.packet_type)?;
        optional::<Int64Type>(&mut group, &mut self.packet_number)?;
        group.close()?;
        Ok(())
    }

    /// Writes what is left, and the end of the file.
    pub fn close(mut self) -> Result<()> {
        if !self.frame.is_empty() {
            self.flush()?;
        }
        self.writer.close()?;
        Ok(())
    }
}
