//! Content decoding (gzip, deflate, br, zstd), as the bytes come.
//!
//! Decoded bytes go to a writer as they are produced: of a body that would fill the memory, no more is ever held than the
//! writer takes. One encoding is decoded; a body that is encoded twice is refused.

use std::fmt;
use std::io::{self, Write};

use brotli_decompressor::DecompressorWriter;
use flate2::write::{MultiGzDecoder, ZlibDecoder};
use flate2::{Decompress, FlushDecompress, Status};
use zstd::stream::raw::{DParameter, Decoder as RawZstd};
use zstd::stream::zio;

/// A buffer of the decoders.
const BUFFER_BYTES: usize = 16 << 10;

/// The largest window that HTTP has for zstd (RFC 9659), as a power of two.
const ZSTD_WINDOW_LOG: u32 = 23;

/// Accepted encodings, as a value of the header `accept-encoding`.
pub(crate) const ACCEPT_ENCODING_VALUE: &str = "gzip, br, zstd";

/// Decodes a body as it comes, into a writer that decides how much is taken.
pub struct ContentDecoder<W: Write>(DecoderKind<W>);

enum DecoderKind<W: Write> {
    Plain(W),
    Gzip(MultiGzDecoder<W>),
    Deflate(ZlibDecoder<W>),
    Brotli(Box<DecompressorWriter<W>>),
    Zstd(Box<zio::Writer<W, RawZstd<'static>>>),
}

impl<W: Write> fmt::Debug for ContentDecoder<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContentDecoder").finish_non_exhaustive()
    }
}

/// Takes a body as it comes, up to a number of bytes.
pub(crate) struct BodyDecoder(ContentDecoder<BoundedBuffer>);

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

impl<W: Write> ContentDecoder<W> {
    /// For a body with this header `content-encoding`. Fails with what is wrong with it.
    pub fn new(encoding: &str, sink: W) -> Result<Self, String> {
        let names: Vec<String> = encoding
            .split(',')
            .map(|name| name.trim().to_ascii_lowercase())
            .filter(|name| !matches!(name.as_str(), "" | "identity"))
            .collect();
        let kind = match names.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            [] => DecoderKind::Plain(sink),
            ["gzip" | "x-gzip"] => DecoderKind::Gzip(MultiGzDecoder::new(sink)),
            ["deflate"] => DecoderKind::Deflate(ZlibDecoder::new(sink)),
            ["br"] => DecoderKind::Brotli(Box::new(DecompressorWriter::new(sink, BUFFER_BYTES))),
            ["zstd"] => {
                let mut raw = RawZstd::new().map_err(|cause| cause.to_string())?;
                raw.set_parameter(DParameter::WindowLogMax(ZSTD_WINDOW_LOG)).map_err(|cause| cause.to_string())?;
                DecoderKind::Zstd(Box::new(zio::Writer::new(sink, raw)))
            }
            [_] => return Err("its content encoding was not requested".to_owned()),
            _ => return Err("it has more than one content encoding".to_owned()),
        };
        Ok(Self(kind))
    }

    /// The next piece. An error is the writer's, or the piece cannot be decoded.
    pub fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.0 {
            DecoderKind::Plain(sink) => sink.write_all(bytes),
            DecoderKind::Gzip(decoder) => decoder.write_all(bytes),
            DecoderKind::Deflate(decoder) => decoder.write_all(bytes),
            DecoderKind::Brotli(decoder) => decoder.write_all(bytes),
            DecoderKind::Zstd(decoder) => decoder.write_all(bytes).and_then(|()| decoder.flush()),
        }
    }

    /// Hands everything to the writer that can be decoded so far.
    pub fn flush(&mut self) -> io::Result<()> {
        match &mut self.0 {
            DecoderKind::Plain(sink) => sink.flush(),
            DecoderKind::Gzip(decoder) => decoder.flush(),
            DecoderKind::Deflate(decoder) => decoder.flush(),
            DecoderKind::Brotli(decoder) => decoder.flush(),
            DecoderKind::Zstd(decoder) => decoder.flush(),
        }
    }

    /// After the last piece. Fails where the body ended too early.
    pub fn finish(&mut self) -> io::Result<()> {
        match &mut self.0 {
            DecoderKind::Plain(sink) => sink.flush(),
            DecoderKind::Gzip(decoder) => decoder.try_finish(),
            DecoderKind::Deflate(decoder) => decoder.try_finish(),
            DecoderKind::Brotli(decoder) => decoder.close(),
            DecoderKind::Zstd(decoder) => decoder.finish(),
        }
    }

    /// The writer.
    pub fn sink(&self) -> &W {
        match &self.0 {
            DecoderKind::Plain(sink) => sink,
            DecoderKind::Gzip(decoder) => decoder.get_ref(),
            DecoderKind::Deflate(decoder) => decoder.get_ref(),
            DecoderKind::Brotli(decoder) => decoder.get_ref(),
            DecoderKind::Zstd(decoder) => decoder.writer(),
        }
    }

    /// The writer.
    pub fn sink_mut(&mut self) -> &mut W {
        match &mut self.0 {
            DecoderKind::Plain(sink) => sink,
            DecoderKind::Gzip(decoder) => decoder.get_mut(),
            DecoderKind::Deflate(decoder) => decoder.get_mut(),
            DecoderKind::Brotli(decoder) => decoder.get_mut(),
            DecoderKind::Zstd(decoder) => decoder.writer_mut(),
        }
    }
}

/// The zlib stream at the beginning of some bytes, and how long it is. `None` if it is not all there, is not valid, or
/// decodes to more than `most` bytes.
pub fn inflate_first(bytes: &[u8], most: usize) -> Option<(Vec<u8>, usize)> {
    let mut decoder = Decompress::new(true);
    // One more, so that what is too long is seen.
    let mut decoded = Vec::with_capacity(most + 1);
    let status = decoder.decompress_vec(bytes, &mut decoded, FlushDecompress::Finish).ok()?;
    let length = usize::try_from(decoder.total_in()).ok()?;
    (status == Status::StreamEnd && decoded.len() <= most).then_some((decoded, length))
}

impl BodyDecoder {
    /// For a body with this header `content-encoding`.
    pub(crate) fn new(encoding: &str, most: usize) -> Result<Self, String> {
        ContentDecoder::new(encoding, BoundedBuffer { limit: most, ..BoundedBuffer::default() }).map(Self)
    }

    /// The next piece. False when nothing more is taken.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> io::Result<bool> {
        match self.0.push(bytes) {
            Ok(()) => Ok(true),
            Err(_) if self.0.sink().truncated => Ok(false),
            Err(cause) => Err(cause),
        }
    }

    /// All of it. Fails where the body ended too early.
    pub(crate) fn finish(mut self) -> io::Result<BoundedBuffer> {
        if !self.0.sink().truncated
            && let Err(cause) = self.0.finish()
            && !self.0.sink().truncated
        {
            return Err(cause);
        }
        Ok(std::mem::take(self.0.sink_mut()))
    }
}
