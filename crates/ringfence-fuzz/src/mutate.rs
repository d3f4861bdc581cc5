//! New inputs from old ones.
//!
//! A few changes at a time: what is nearly right gets further than what is all wrong. The same seed makes the same inputs.

/// Numbers that look random, and come again with the same seed (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct SplitMix64(pub(crate) u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below `end`; 0 where that is 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.next().checked_rem(end as u64).unwrap_or_default() as usize
    }

    pub(crate) fn choose<'a, T: ?Sized>(&mut self, list: &'a [impl AsRef<T>]) -> Option<&'a T> {
        list.get(self.below(list.len())).map(AsRef::as_ref)
    }

    /// Part of something that is so long, and not too much of it.
    fn range(&mut self, length: usize) -> std::ops::Range<usize> {
        let start = self.below(length + 1);
        let most = if self.below(4) == 0 { length } else { 32 };
        start..start + self.below((length - start).min(most) + 1)
    }
}

/// Bytes that often end or begin something.
const BYTES: &[u8] = b"\0\t\n\r \"'#%&*+,-./:;<=>?@[\\]^_`{|}~09aZ\x7f\x80\xc3\xe2\xf0\xff";

const NUMBERS: &[&str] = &[
    "0",
    "-1",
    "00",
    "1e999",
    "255",
    "256",
    "65535",
    "65536",
    "2147483648",
    "4294967295",
    "4294967296",
    "9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "99999999999999999999",
];

/// Characters that are more than a byte, invisible, or something else in another form.
const CHARACTERS: &[&str] = &[
    "é",
    "e\u{301}",
    "ß",
    "漢",
    "👍",
    "\u{feff}",
    "\u{2028}",
    "\u{202e}",
    "\u{200b}",
    "\u{ff0f}",
    "\u{fffd}",
    "\u{1f1e9}",
];

/// Changes a few bytes of an input.
pub(crate) fn mutate(input: &mut Vec<u8>, other: &[u8], tokens: &[&str], longest: usize, random: &mut SplitMix64) {
    let times = 1 + random.below(4) * random.below(3);
    for _ in 0..times {
        change(input, other, tokens, random);
        input.truncate(longest);
    }
}

fn change(input: &mut Vec<u8>, other: &[u8], tokens: &[&str], random: &mut SplitMix64) {
    let at = random.below(input.len() + 1);
    match random.below(14) {
        0 => {
            if let Some(byte) = input.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
        1 => {
            if let Some(byte) = input.get_mut(at) {
                *byte = random.below(256) as u8;
            }
        }
        2 => {
            if let Some(byte) = input.get_mut(at) {
                *byte = BYTES[random.below(BYTES.len())];
            }
        }
        3 => input.insert(at, BYTES[random.below(BYTES.len())]),
        4 => drop(input.drain(random.range(input.len()))),
        5 => {
            let part = input[random.range(input.len())].repeat(1 + random.below(8));
            insert(input, at, &part);
        }
        6 | 7 => {
            let token = random.choose::<str>(tokens).unwrap_or("\n").as_bytes();
            insert(input, at, token);
        }
        8 => {
            let token = random.choose::<str>(tokens).unwrap_or(" ").as_bytes();
            let end = input.len().min(at + token.len());
            input.splice(at..end, token.iter().copied());
        }
        9 => {
            let part = &other[random.range(other.len())];
            insert(input, at, part);
        }
        10 => {
            input.truncate(at);
            input.extend_from_slice(&other[random.below(other.len() + 1)..]);
        }
        11 => {
            let number = random.choose::<str>(NUMBERS).unwrap_or_default().as_bytes();
            let digits = digits(input, at);
            input.splice(digits, number.iter().copied());
        }
        12 => insert(input, at, random.choose::<str>(CHARACTERS).unwrap_or_default().as_bytes()),
        _ => change_lines(input, random),
    }
}

fn insert(input: &mut Vec<u8>, at: usize, part: &[u8]) {
    input.splice(at..at, part.iter().copied());
}

/// The next number from here on, or nothing at the end.
fn digits(input: &[u8], from: usize) -> std::ops::Range<usize> {
    let start = input[from..].iter().position(u8::is_ascii_digit).map_or(input.len(), |at| from + at);
    let length = input[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    start..start + length
}

/// Takes out a line, doubles one, or changes two of them for each other.
fn change_lines(input: &mut Vec<u8>, random: &mut SplitMix64) {
    let mut lines: Vec<&[u8]> = input.split_inclusive(|byte| *byte == b'\n').collect();
    let (one, two) = (random.below(lines.len()), random.below(lines.len()));
    if lines.is_empty() {
        return;
    }
    match random.below(3) {
        0 => drop(lines.remove(one)),
        1 => lines.insert(one, lines[two]),
        _ => lines.swap(one, two),
    }
    *input = lines.concat();
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::{SplitMix64, mutate};

    fn inputs(seed: u64) -> Vec<Vec<u8>> {
        let mut random = SplitMix64(seed);
        let mutated = |_| {
            let mut input = b"one 1\ntwo 22\n".to_vec();
            mutate(&mut input, b"other", &["token"], 64, &mut random);
            input
        };
        (0..2_000).map(mutated).collect()
    }

    #[test]
    fn a_seed_makes_the_same_inputs_again_and_another_makes_others() {
        assert_eq!(inputs(1), inputs(1));
        assert_ne!(inputs(1), inputs(2));
    }

    #[test]
    fn inputs_differ_and_have_a_longest() {
        let all = inputs(3);
        assert!(all.iter().all(|input| input.len() <= 64));
        assert!(all.iter().collect::<HashSet<_>>().len() > 1_000);
        assert!(all.iter().any(|input| input.windows(5).any(|word| word == b"token")));
    }

    #[test]
    fn nothing_can_be_changed_too() {
        let mut random = SplitMix64(4);
        for _ in 0..1_000 {
            mutate(&mut Vec::new(), b"", &[], 8, &mut random);
        }
    }
}
