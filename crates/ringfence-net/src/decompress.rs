//! Content decoding (gzip, br, zstd), up to a number of bytes.
//!
//! Decoded bytes are counted as they are produced: of a body that would fill the memory, no more than the bound is ever
//! held. One encoding is decoded; a body that is encoded twice is refused.

use std::io::{self, Write};

use brotli_decompressor::DecompressorWriter;
use flate2::write::{MultiGzDecoder, ZlibDecoder};
use zstd::stream::raw::{DParameter, Decoder as RawZstd};
use zstd::stream::zio;

/// A buffer of the decoders.
const BUFFER_BYTES: usize = 16 << 10;

/// The largest window that HTTP has for zstd (RFC 9659), as a power of two.
const ZSTD_WINDOW_LOG: u32 = 23;

/// Accepted encodings, as a value of the header `accept-encoding`.
pub(crate) const ACCEPT_ENCODING_VALUE: &str = "gzip, br, zstd";

/// Takes a body as it comes.
pub(crate) enum BodyDecoder {
    Plain(BoundedBuffer),
    Gzip(MultiGzDecoder<BoundedBuffer>),
    Deflate(ZlibDecoder<BoundedBuffer>),
    Brotli(Box<DecompressorWriter<BoundedBuffer>>),
    Zstd(Box<zio::Writer<BoundedBuffer, RawZstd<'static>>>),
}

/// The part of a body within a limit.
#[derive(Debug, Default)]
pub(crate) struct BoundedBuffer {
    pub(crate) bytes: Vec<u8>,
    pub(crate) limit: usize,
    /// There was more.
    pub(crate) truncated: bool,
}

impl Write for BoundedBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = self.limit.saturating_sub(self.bytes.len());
        if bytes.len() > room {
            self.bytes.extend_from_slice(bytes.get(..room).unwrap_or_default());
            self.truncated = true;
            return Err(io::Error::other("the bound is reached"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl BodyDecoder {
    /// For a body with this header `content-encoding`.
    pub(crate) fn new(encoding: &str, most: usize) -> Result<Self, String> {
        let sink = BoundedBuffer { limit: most, ..BoundedBuffer::default() };
        let names: Vec<String> = encoding
            .split(',')
            .map(|name| name.trim().to_ascii_lowercase())
            .filter(|name| !matches!(name.as_str(), "" | "identity"))
            .collect();
        match names.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            [] => Ok(Self::Plain(sink)),
            ["gzip" | "x-gzip"] => Ok(Self::Gzip(MultiGzDecoder::new(sink))),
            ["deflate"] => Ok(Self::Deflate(ZlibDecoder::new(sink))),
            ["br"] => Ok(Self::Brotli(Box::new(DecompressorWriter::new(sink, BUFFER_BYTES)))),
            ["zstd"] => {
                let mut raw = RawZstd::new().map_err(|cause| cause.to_string())?;
                raw.set_parameter(DParameter::WindowLogMax(ZSTD_WINDOW_LOG)).map_err(|cause| cause.to_string())?;
                Ok(Self::Zstd(Box::new(zio::Writer::new(sink, raw))))
            }
            [_] => Err("its content encoding was not requested".to_owned()),
            _ => Err("it has more than one content encoding".to_owned()),
        }
    }

    /// The next piece. False when nothing more is taken.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> io::Result<bool> {
        let written = match self {
            Self::Plain(sink) => sink.write_all(bytes),
            Self::Gzip(decoder) => decoder.write_all(bytes),
            Self::Deflate(decoder) => decoder.write_all(bytes),
            Self::Brotli(decoder) => decoder.write_all(bytes),
            Self::Zstd(decoder) => decoder.write_all(bytes).and_then(|()| decoder.flush()),
        };
        match written {
            Ok(()) => Ok(true),
            Err(_) if self.sink().truncated => Ok(false),
            Err(cause) => Err(cause),
        }
    }

    /// All of it. Fails where the body ended too early.
    pub(crate) fn finish(mut self) -> io::Result<BoundedBuffer> {
        if self.sink().truncated {
            return Ok(std::mem::take(self.sink_mut()));
        }
        let finished = match &mut self {
            Self::Plain(_) => Ok(()),
            Self::Gzip(decoder) => decoder.try_finish(),
            Self::Deflate(decoder) => decoder.try_finish(),
            Self::Brotli(decoder) => decoder.close(),
            Self::Zstd(decoder) => decoder.finish(),
        };
        match finished {
            Err(cause) if !self.sink().truncated => Err(cause),
            _ => Ok(std::mem::take(self.sink_mut())),
        }
    }

    fn sink(&self) -> &BoundedBuffer {
        match self {
            Self::Plain(sink) => sink,
            Self::Gzip(decoder) => decoder.get_ref(),
            Self::Deflate(decoder) => decoder.get_ref(),
            Self::Brotli(decoder) => decoder.get_ref(),
            Self::Zstd(decoder) => decoder.writer(),
        }
    }

    fn sink_mut(&mut self) -> &mut BoundedBuffer {
        match self {
            Self::Plain(sink) => sink,
            Self::Gzip(decoder) => decoder.get_mut(),
            Self::Deflate(decoder) => decoder.get_mut(),
            Self::Brotli(decoder) => decoder.get_mut(),
            Self::Zstd(decoder) => decoder.writer_mut(),
        }
    }
}
