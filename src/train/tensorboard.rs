//! TensorBoard event files: scalars as `Event` messages (tensorflow/core/util/event.proto, framework/summary.proto) in
//! TFRecord framing (tensorflow/core/lib/io/record_writer.h): length, masked CRC of the length, data, masked CRC of the
//! data, all little-endian. The CRC is CRC-32C (Castagnoli).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::{Error, Result};

/// One event file; TensorBoard reads all that lie in a folder as one run.
pub struct EventFile {
    path: PathBuf,
    file: File,
}

impl EventFile {
    /// A new file in `folder`. `restart`: TensorBoard forgets what earlier files say of this step and later ones.
    pub fn create(folder: &Path, restart: Option<usize>) -> Result<Self> {
        std::fs::create_dir_all(folder).map_err(Error::io(folder))?;
        let seconds = now() as u64;
        let mut path = folder.join(format!("events.out.tfevents.{seconds:010}.fullband"));
        for n in 1.. {
            if !path.exists() {
                break;
            }
            path = folder.join(format!("events.out.tfevents.{seconds:010}.fullband.{n}"));
        }
        let file = File::create(&path).map_err(Error::io(&path))?;
        let mut events = Self { path, file };
        events.write(&event(0, now(), |m| m.bytes(3, b"brain.Event:2")))?;
        if let Some(step) = restart {
            // SessionLog { status: START }
            events.write(&event(step, now(), |m| m.message(7, |log| log.varint(1, 1))))?;
        }
        Ok(events)
    }

    pub fn scalars(&mut self, step: usize, values: &BTreeMap<String, f64>) -> Result<()> {
        let summary = |summary: &mut Message| {
            for (tag, value) in values {
                summary.message(1, |v| {
                    v.bytes(1, tag.as_bytes());
                    v.float(2, *value as f32);
                });
            }
        };
        self.write(&event(step, now(), |m| m.message(5, summary)))
    }

    fn write(&mut self, data: &[u8]) -> Result<()> {
        self.file.write_all(&framed(data)).map_err(Error::io(&self.path))
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |t| t.as_secs_f64())
}

fn event(step: usize, wall_time: f64, fill: impl FnOnce(&mut Message)) -> Vec<u8> {
    let mut message = Message::default();
    message.double(1, wall_time);
    message.varint(2, step as u64);
    fill(&mut message);
    message.0
}

/// A protobuf message being written.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn raw_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn tag(&mut self, field: u64, wire: u64) {
        self.raw_varint(field << 3 | wire);
    }

    fn varint(&mut self, field: u64, value: u64) {
        self.tag(field, 0);
        self.raw_varint(value);
    }

    fn double(&mut self, field: u64, value: f64) {
        self.tag(field, 1);
        self.0.extend(value.to_le_bytes());
    }

    fn float(&mut self, field: u64, value: f32) {
        self.tag(field, 5);
        self.0.extend(value.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, value: &[u8]) {
        self.tag(field, 2);
        self.raw_varint(value.len() as u64);
        self.0.extend(value);
    }

    fn message(&mut self, field: u64, fill: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        fill(&mut inner);
        self.bytes(field, &inner.0);
    }
}

fn framed(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let mut out = length.to_vec();
    out.extend(masked_crc(&length).to_le_bytes());
    out.extend(data);
    out.extend(masked_crc(data).to_le_bytes());
    out
}

/// CRCs of data that holds CRCs are weak, so TFRecord rotates and shifts them.
fn masked_crc(data: &[u8]) -> u32 {
    crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

fn crc32c(data: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0u32; 256];
        let mut i = 0;
        while i < 256 {
            let mut crc = i as u32;
            let mut bit = 0;
            while bit < 8 {
                crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
                bit += 1;
            }
            table[i] = crc;
            i += 1;
        }
        table
    };
    !data.iter().fold(!0, |crc, byte| crc >> 8 ^ TABLE[((crc ^ *byte as u32) & 0xff) as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of RFC 3720, appendix B.4.
    #[test]
    fn the_crc_is_castagnoli() {
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    /// Payloads of a file, each CRC checked.
    fn payloads(mut bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        while !bytes.is_empty() {
            let crc = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            let n = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            assert_eq!(crc(8), masked_crc(&bytes[..8]));
            let data = &bytes[12..12 + n];
            assert_eq!(crc(12 + n), masked_crc(data));
            out.push(data.to_vec());
            bytes = &bytes[16 + n..];
        }
        out
    }

    /// Field number and content of each field, in order.
    fn fields(mut bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
        fn varint(bytes: &mut &[u8]) -> u64 {
            let mut value = 0;
            for shift in (0..).step_by(7) {
                let byte = bytes[0];
                *bytes = &bytes[1..];
                value |= ((byte & 0x7f) as u64) << shift;
                if byte < 0x80 {
                    break;
                }
            }
            value
        }
        let mut out = Vec::new();
        while !bytes.is_empty() {
            let tag = varint(&mut bytes);
            let n = match tag & 7 {
                0 => {
                    out.push((tag >> 3, varint(&mut bytes).to_le_bytes().to_vec()));
                    continue;
                }
                1 => 8,
                2 => varint(&mut bytes) as usize,
                5 => 4,
                wire => panic!("wire type {wire}"),
            };
            out.push((tag >> 3, bytes[..n].to_vec()));
            bytes = &bytes[n..];
        }
        out
    }

    #[test]
    fn scalars_can_be_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut events = EventFile::create(folder.path(), Some(300)).unwrap();
        let values = [("eval/fused".to_string(), 0.5), ("train/loss".to_string(), 1.25)].into_iter().collect();
        events.scalars(300, &values).unwrap();
        let events: Vec<_> = payloads(&std::fs::read(&events.path).unwrap()).iter().map(|p| fields(p)).collect();
        assert_eq!(events.len(), 3);
        assert_eq!(events[0][2], (3, b"brain.Event:2".to_vec()));
        assert_eq!((events[1][1].1[..2].to_vec(), events[1][2].clone()), (vec![44, 1], (7, vec![8, 1])));
        let (number, summary) = &events[2][2];
        assert_eq!(*number, 5);
        let read: Vec<(String, f32)> = fields(summary)
            .iter()
            .map(|(_, value)| {
                let value = fields(value);
                let number = f32::from_le_bytes(value[1].1[..].try_into().unwrap());
                (String::from_utf8(value[0].1.clone()).unwrap(), number)
            })
            .collect();
        assert_eq!(read, [("eval/fused".to_string(), 0.5), ("train/loss".to_string(), 1.25)]);
        // A second session of the same second has a file of its own.
        EventFile::create(folder.path(), None).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
