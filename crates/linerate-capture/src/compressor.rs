//! Writes compressed captures. In builds without the feature `compression`, a [`Compressor`] cannot be created.

#[cfg(not(feature = "compression"))]
use std::convert::Infallible as Encoder;
use std::io::{self, Write};
use std::path::Path;

use linerate_core::error::{Error, Result};

use crate::Output;

/// The compression level of zstd: the fastest that is not negative.
#[cfg(feature = "compression")]
const LEVEL: i32 = 1;

#[cfg(feature = "compression")]
type Encoder = Box<zstd::stream::write::Encoder<'static, Output>>;

/// Compresses what is written to it into an [`Output`], with zstd.
///
/// ```
/// use std::io::Write;
/// use linerate::capture::{Compressor, Output, Reader};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("a.pcap.zst");
/// let mut compressor = Compressor::start(Output::create(&path)?)?;
/// # let bytes = [0xA1B23C4Du32, 4 << 16 | 2, 0, 0, 262144, 1].map(u32::to_le_bytes).concat();
/// compressor.write_all(&bytes)?; // the beginning of a pcap file
/// compressor.finish()?;
/// # drop(compressor);
/// assert!(Reader::open(&path)?.next(&mut Vec::new())?.is_none());
/// # Ok(()) }
/// ```
pub struct Compressor(Encoder);

impl Compressor {
    /// Returns whether a file of this name is to be compressed: it ends with `.zst`.
    ///
    /// # Errors
    /// [`ErrorKind::NotBuilt`](linerate_core::ErrorKind::NotBuilt) if it is, but this build cannot.
    pub fn is_for(path: &Path) -> Result<bool> {
        match path.extension().is_some_and(|ending| ending == "zst") {
            true if cfg!(not(feature = "compression")) => {
                Err(Error::not_built(path.display().to_string(), "compression"))
            }
            is_compressed => Ok(is_compressed),
        }
    }

    /// Starts to compress into `output`.
    ///
    /// # Errors
    /// [`ErrorKind::NotBuilt`](linerate_core::ErrorKind::NotBuilt), or zstd has too little memory.
    pub fn start(output: Output) -> Result<Compressor> {
        #[cfg(feature = "compression")]
        return match zstd::stream::write::Encoder::new(output, LEVEL) {
            Ok(encoder) => Ok(Compressor(Box::new(encoder))),
            Err(source) => Err(Error::system("starting zstd", source)),
        };
        #[cfg(not(feature = "compression"))]
        {
            drop(output);
            Err(Error::not_built("zstd", "compression"))
        }
    }

    /// Writes the end of the compressed data.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn finish(&mut self) -> io::Result<()> {
        #[cfg(feature = "compression")]
        return self.0.do_finish().map(drop);
        #[cfg(not(feature = "compression"))]
        match self.0 {}
    }

    /// Returns the output.
    pub fn output(&self) -> &Output {
        #[cfg(feature = "compression")]
        return self.0.get_ref();
        #[cfg(not(feature = "compression"))]
        match self.0 {}
    }
}

impl Write for Compressor {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        #[cfg(feature = "compression")]
        return self.0.write(bytes);
        #[cfg(not(feature = "compression"))]
        {
            let _ = bytes;
            match self.0 {}
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        #[cfg(feature = "compression")]
        return self.0.flush();
        #[cfg(not(feature = "compression"))]
        match self.0 {}
    }
}
