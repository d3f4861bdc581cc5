//! Image headers: the format and the dimensions of a picture, by its first bytes.
//!
//! A name proves nothing, so formats are told by their magic bytes. Nothing is decoded here.

/// An image that a model can be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ImageHeader {
    pub(crate) media_type: &'static str,
    pub(crate) width: u32,
    pub(crate) height: u32,
}

/// Bytes at the start of a file that tell whether it is an image.
pub(crate) const MAGIC_BYTES: usize = 16;

/// The media type of an image by its first bytes; `None` for anything else.
pub(crate) fn image_type(start: &[u8]) -> Option<&'static str> {
    match start {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

/// The header of an image; `None` where its dimensions cannot be read, as in a file that is cut off.
pub(crate) fn image_header(bytes: &[u8]) -> Option<ImageHeader> {
    let media_type = image_type(bytes)?;
    let (width, height) = match media_type {
        "image/png" => png_size(bytes)?,
        "image/jpeg" => jpeg_size(bytes)?,
        "image/gif" => (little_endian(bytes, 6, 2)?, little_endian(bytes, 8, 2)?),
        _ => webp_size(bytes)?,
    };
    (width > 0 && height > 0).then_some(ImageHeader { media_type, width, height })
}

fn png_size(bytes: &[u8]) -> Option<(u32, u32)> {
    (bytes.get(12..16)? == b"IHDR").then_some(())?;
    Some((big_endian(bytes, 16, 4)?, big_endian(bytes, 20, 4)?))
}

/// The segments up to the start of a frame, which has the dimensions.
fn jpeg_size(bytes: &[u8]) -> Option<(u32, u32)> {
    let mut at = 2;
    loop {
        (*bytes.get(at)? == 0xff).then_some(())?;
        let marker = *bytes.get(at + 1)?;
        match marker {
            // Fill bytes before a marker.
            0xff => at += 1,
            // Markers without a segment.
            0x01 | 0xd0..=0xd8 => at += 2,
            0xc0..=0xcf if !matches!(marker, 0xc4 | 0xc8 | 0xcc) => {
                return Some((big_endian(bytes, at + 7, 2)?, big_endian(bytes, at + 5, 2)?));
            }
            // The image data, and no frame before it.
            0xd9 | 0xda => return None,
            _ => {
                let length = usize::try_from(big_endian(bytes, at + 2, 2)?).ok()?;
                at += 2 + length.max(2);
            }
        }
    }
}

fn webp_size(bytes: &[u8]) -> Option<(u32, u32)> {
    match bytes.get(12..16)? {
        b"VP8X" => Some((little_endian(bytes, 24, 3)? + 1, little_endian(bytes, 27, 3)? + 1)),
        b"VP8L" => {
            (*bytes.get(20)? == 0x2f).then_some(())?;
            let packed = little_endian(bytes, 21, 4)?;
            Some(((packed & 0x3fff) + 1, ((packed >> 14) & 0x3fff) + 1))
        }
        b"VP8 " => {
            (bytes.get(23..26)? == [0x9d, 0x01, 0x2a]).then_some(())?;
            Some((little_endian(bytes, 26, 2)? & 0x3fff, little_endian(bytes, 28, 2)? & 0x3fff))
        }
        _ => None,
    }
}

fn big_endian(bytes: &[u8], at: usize, length: usize) -> Option<u32> {
    Some(bytes.get(at..at + length)?.iter().fold(0, |number, byte| number << 8 | u32::from(*byte)))
}

fn little_endian(bytes: &[u8], at: usize, length: usize) -> Option<u32> {
    Some(bytes.get(at..at + length)?.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{image_header, image_type};

    const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x02\x80\0\0\x01\xe0\x08\x06\0\0\0";
    const JPEG: &[u8] = b"\xff\xd8\xff\xe0\0\x04ab\xff\xff\xc2\0\x0b\x08\0\x20\0\x40\x03";
    const GIF: &[u8] = b"GIF89a\x05\0\x07\0\x80";
    const WEBP_X: &[u8] = b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0\x0f\0\0\x1f\0\0";
    const WEBP_L: &[u8] = b"RIFF\0\0\0\0WEBPVP8L\x0a\0\0\0\x2f\x0f\xc0\x07\0";
    const WEBP: &[u8] = b"RIFF\0\0\0\0WEBPVP8 \x0a\0\0\0\0\0\0\x9d\x01\x2a\x10\0\x20\0";

    #[track_caller]
    fn check(bytes: &[u8], expected: Option<(&str, u32, u32)>) {
        assert_eq!(image_header(bytes).map(|found| (found.media_type, found.width, found.height)), expected);
    }

    #[test]
    fn dimensions_are_in_the_header() {
        check(PNG, Some(("image/png", 640, 480)));
        check(JPEG, Some(("image/jpeg", 64, 32)));
        check(GIF, Some(("image/gif", 5, 7)));
        check(WEBP_X, Some(("image/webp", 16, 32)));
        check(WEBP_L, Some(("image/webp", 16, 32)));
        check(WEBP, Some(("image/webp", 16, 32)));
    }

    #[test]
    fn a_header_that_is_cut_off_has_no_dimensions() {
        for whole in [PNG, JPEG, GIF, WEBP_X, WEBP_L, WEBP] {
            assert!(image_type(&whole[..12.min(whole.len())]).is_some());
            for length in 0..13 {
                assert!(image_header(&whole[..length.min(whole.len() - 4)]).is_none() || whole == GIF, "{length}");
            }
        }
        check(b"GIF89a\0\0\x07\0", None);
        check(b"\x89PNX\r\n\x1a\n", None);
        check(b"<svg>", None);
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_strange(start in 0_usize..6, rest in proptest::collection::vec(any::<u8>(), 0..64)) {
            let magic: &[u8] = [PNG, JPEG, GIF, WEBP_X, WEBP_L, WEBP][start];
            let _ = image_header(&[&magic[..8], &rest].concat());
            let _ = image_header(&rest);
        }
    }
}
