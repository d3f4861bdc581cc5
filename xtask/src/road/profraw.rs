//! LLVM raw profiles: which functions were entered, by name.
//!
//! The format is that of compiler-rt's `InstrProfData.inc`, version 10, for a 64-bit little-endian machine: a header, a
//! record for each function, its counters, and the names. A record refers to its name by the start of the name's MD5.
//! In continuous mode the file is the memory of the counters, so that it can be read while the program runs.

use std::collections::BTreeMap;

/// `\xfflprofr\x81`.
const MAGIC: u64 = 0xff6c_7072_6f66_7281;

/// The version that this toolchain writes; the upper bits are flags.
const VERSION: u64 = 10;

/// Bytes of the header, and of the record of a function.
const HEADER_BYTES: usize = 16 * 8;
const RECORD_BYTES: usize = 64;

/// How often the counters of each function were raised, by mangled name.
pub(super) type ProfileCounts = BTreeMap<String, u64>;

/// Reads a profile.
pub(super) fn read_counts(bytes: &[u8]) -> Result<ProfileCounts, String> {
    let header = |index: usize| u64_at(bytes, index * 8);
    if header(0)? != MAGIC || header(1)? & 0x00ff_ffff_ffff_ffff != VERSION {
        return Err(format!("not a raw profile of version {VERSION}"));
    }
    let size = |index: usize| header(index).and_then(|value| usize::try_from(value).map_err(|error| error.to_string()));
    let (binary_ids, records, counters) = (size(2)?, size(3)?, size(5)?);
    let counters_delta = header(10)?;
    let records_at = HEADER_BYTES + binary_ids;
    let counters_at = records_at + records * RECORD_BYTES + size(4)?;
    let names_at = counters_at + counters * 8 + size(6)? + size(7)? + size(8)?;
    let names = bytes.get(names_at..names_at + size(9)?).ok_or("the names are cut off")?;
    let names = read_names(names)?;
    let mut counts = ProfileCounts::new();
    for index in 0..records {
        let at = records_at + index * RECORD_BYTES;
        let Some(name) = names.get(&u64_at(bytes, at)?) else { continue };
        // The reference is relative to the record that it is in.
        let base = counters_delta.wrapping_sub((index * RECORD_BYTES) as u64);
        let first = usize::try_from(u64_at(bytes, at + 16)?.wrapping_sub(base)).map_err(|error| error.to_string())?;
        let own = u64_at(bytes, at + 48)? & u64::from(u32::MAX);
        let mut sum = 0u64;
        for counter in 0..usize::try_from(own).map_err(|error| error.to_string())? {
            sum = sum.saturating_add(u64_at(bytes, counters_at + first + counter * 8)?);
        }
        *counts.entry(name.clone()).or_default() += sum;
    }
    Ok(counts)
}

fn u64_at(bytes: &[u8], at: usize) -> Result<u64, String> {
    let part = bytes.get(at..at + 8).and_then(|part| part.try_into().ok());
    part.map(u64::from_le_bytes).ok_or_else(|| "the profile is cut off".to_owned())
}

/// The names by the start of their MD5. They come in chunks, each with its length and the length of its compressed form,
/// which is zero here.
fn read_names(mut bytes: &[u8]) -> Result<BTreeMap<u64, String>, String> {
    let mut names = BTreeMap::new();
    loop {
        // Chunks are padded with zeros.
        bytes = &bytes[bytes.iter().take_while(|byte| **byte == 0).count()..];
        if bytes.is_empty() {
            return Ok(names);
        }
        let length = read_uleb(&mut bytes)?;
        if read_uleb(&mut bytes)? != 0 {
            return Err("the names are compressed".to_owned());
        }
        let (chunk, rest) = bytes.split_at_checked(length).ok_or("the names are cut off")?;
        bytes = rest;
        for name in String::from_utf8_lossy(chunk).split('\u{1}') {
            // A private function has the name of its file in front.
            let symbol = name.rsplit([':', ';']).next().unwrap_or_default();
            names.insert(md5_start(name.as_bytes()), symbol.to_owned());
        }
    }
}

fn read_uleb(bytes: &mut &[u8]) -> Result<usize, String> {
    let (mut value, mut shift) = (0usize, 0u32);
    loop {
        let (byte, rest) = bytes.split_first().ok_or("the names are cut off")?;
        *bytes = rest;
        value |= usize::from(byte & 0x7f).checked_shl(shift).ok_or("a length is too long")?;
        shift += 7;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
}

/// The first eight bytes of the MD5 of a text, as RFC 1321 has it. Nothing secret depends on it.
fn md5_start(text: &[u8]) -> u64 {
    const SHIFTS: [[u32; 4]; 4] = [[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]];
    let mut state = [0x6745_2301u32, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];
    let mut message = text.to_vec();
    message.push(0x80);
    message.resize(message.len().next_multiple_of(64) + if message.len() % 64 > 56 { 64 } else { 0 }, 0);
    let end = message.len() - 8;
    message[end..].copy_from_slice(&(text.len() as u64 * 8).to_le_bytes());
    for block in message.chunks_exact(64) {
        let words: Vec<u32> =
            block.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect();
        let [mut a, mut b, mut c, mut d] = state;
        for step in 0..64 {
            let (mix, word) = match step / 16 {
                0 => ((b & c) | (!b & d), step),
                1 => ((d & b) | (!d & c), (5 * step + 1) % 16),
                2 => (b ^ c ^ d, (3 * step + 5) % 16),
                _ => (c ^ (b | !d), (7 * step) % 16),
            };
            // The sine of the step, as the standard has it.
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::cast_precision_loss,
                reason = "it is below 2^32"
            )]
            let constant = (((step + 1) as f64).sin().abs() * 4_294_967_296.0) as u32;
            let turned = a.wrapping_add(mix).wrapping_add(constant).wrapping_add(words[word]);
            (a, d, c) = (d, c, b);
            b = b.wrapping_add(turned.rotate_left(SHIFTS[step / 16][step % 4]));
        }
        for (part, add) in state.iter_mut().zip([a, b, c, d]) {
            *part = part.wrapping_add(add);
        }
    }
    u64::from(state[0]) | u64::from(state[1]) << 32
}

#[cfg(test)]
mod tests {
    use super::{md5_start, read_counts, read_names};

    #[test]
    fn names_are_found_by_their_md5() {
        // The vectors of RFC 1321.
        assert_eq!(md5_start(b""), u64::from_le_bytes([0xd4, 0x1d, 0x8c, 0xd9, 0x8f, 0x00, 0xb2, 0x04]));
        assert_eq!(md5_start(b"abc"), u64::from_le_bytes([0x90, 0x01, 0x50, 0x98, 0x3c, 0xd2, 0x4f, 0xb0]));
        let digits = b"12345678901234567890123456789012345678901234567890123456789012345678901234567890";
        assert_eq!(md5_start(digits), u64::from_le_bytes([0x57, 0xed, 0xf4, 0xa2, 0x2b, 0xe3, 0xc9, 0x55]));
    }

    #[test]
    fn a_damaged_profile_is_an_error() {
        assert!(read_counts(b"").is_err() && read_counts(&[0; 400]).is_err());
        assert!(read_names(&[9, 0, b'a']).is_err() && read_names(&[1, 1, b'a']).is_err());
        assert_eq!(read_names(&[3, 0, b'a', 1, b'b', 0, 0]).unwrap().len(), 2);
    }
}
