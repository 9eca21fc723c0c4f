//! Compressed captures, which are recognised by their first bytes.

use std::io::Read;

/// A format of compressed files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    Gzip,
    Zstd,
    Lz4,
}

impl Compression {
    /// Returns the format of a file by its first bytes: RFC 1952, RFC 8878 (section 3.1), and LZ4's frame format. A
    /// skippable frame is zstd's: pzstd begins with it.
    pub fn of(magic: [u8; 4]) -> Option<Compression> {
        match u32::from_le_bytes(magic) {
            _ if magic.starts_with(&[0x1F, 0x8B, 0x08]) => Some(Compression::Gzip),
            0xFD2F_B528 | 0x184D_2A50..=0x184D_2A5F => Some(Compression::Zstd),
            // Frames, and the legacy format.
            0x184D_2204 | 0x184C_2102 => Some(Compression::Lz4),
            _ => None,
        }
    }

    /// Returns the program that unpacks it.
    pub fn program(self) -> &'static str {
        match self {
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
            Compression::Lz4 => "lz4",
        }
    }

    /// Returns the contents of `reader`; `None` if this build has no support for compressed files. They need at most
    /// 128 MiB of memory: zstd refuses frames with a larger window.
    #[cfg_attr(not(feature = "compression"), expect(clippy::unused_self, clippy::unnecessary_wraps))]
    pub fn unpacked(self, reader: impl Read + Send + 'static) -> std::io::Result<Option<Box<dyn Read + Send>>> {
        #[cfg(feature = "compression")]
        return Ok(Some(match self {
            Compression::Gzip => Box::new(flate2::read::MultiGzDecoder::new(reader)),
            Compression::Zstd => Box::new(zstd::stream::read::Decoder::new(reader)?),
            Compression::Lz4 => Box::new(lz4_flex::frame::FrameDecoder::new(reader)),
        }));
        #[cfg(not(feature = "compression"))]
        {
            drop(reader);
            Ok(None)
        }
    }
}
