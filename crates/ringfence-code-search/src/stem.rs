//! Porter stemmer: one form for the inflections of an English word.
//!
//! M. F. Porter, "An algorithm for suffix stripping", 1980. Total: every lower-case ASCII word has a stem, and other words
//! are their own.
//!
//! Not here: splitting text into words (`tokens.rs`).

/// Cuts a lower-case word down to its stem.
pub fn stem(word: &mut String) {
    if word.len() <= 2 || !word.bytes().all(|byte| byte.is_ascii_lowercase()) {
        return;
    }
    strip_plural(word);
    strip_past_and_participle(word);
    if word.ends_with('y') && has_vowel(&word[..word.len() - 1]) {
        replace_end(word, 1, "i");
    }
    replace_first(word, DOUBLE_SUFFIXES, 0);
    replace_first(word, LONG_SUFFIXES, 0);
    strip_last_suffix(word);
    strip_final_e(word);
}

/// Step 2.
const DOUBLE_SUFFIXES: &[(&str, &str)] = &[
    ("ational", "ate"),
    ("tional", "tion"),
    ("enci", "ence"),
    ("anci", "ance"),
    ("izer", "ize"),
    ("abli", "able"),
    ("alli", "al"),
    ("entli", "ent"),
    ("eli", "e"),
    ("ousli", "ous"),
    ("ization", "ize"),
    ("ation", "ate"),
    ("ator", "ate"),
    ("alism", "al"),
    ("iveness", "ive"),
    ("fulness", "ful"),
    ("ousness", "ous"),
    ("aliti", "al"),
    ("iviti", "ive"),
    ("biliti", "ble"),
];

/// Step 3.
const LONG_SUFFIXES: &[(&str, &str)] =
    &[("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"), ("ful", ""), ("ness", "")];

/// Step 4, the longer of two that fit first.
const LAST_SUFFIXES: &[&str] = &[
    "ement", "ance", "ence", "able", "ible", "ment", "ant", "ent", "ism", "ate", "iti", "ous", "ive", "ize", "ion",
    "al", "er", "ic", "ou",
];

/// Step 1a.
fn strip_plural(word: &mut String) {
    if word.ends_with("sses") || word.ends_with("ies") {
        replace_end(word, 2, "");
    } else if word.ends_with('s') && !word.ends_with("ss") {
        replace_end(word, 1, "");
    }
}

/// Step 1b.
fn strip_past_and_participle(word: &mut String) {
    if word.ends_with("eed") {
        if measure(&word[..word.len() - 3]) > 0 {
            replace_end(word, 1, "");
        }
        return;
    }
    let Some(suffix) = ["ed", "ing"].into_iter().find(|suffix| word.ends_with(suffix)) else { return };
    if !has_vowel(&word[..word.len() - suffix.len()]) {
        return;
    }
    replace_end(word, suffix.len(), "");
    if ["at", "bl", "iz"].into_iter().any(|end| word.ends_with(end)) {
        word.push('e');
    } else if ends_with_double_consonant(word) && !word.ends_with(['l', 's', 'z']) {
        word.pop();
    } else if measure(word) == 1 && ends_with_short_syllable(word) {
        word.push('e');
    }
}

/// Step 4.
fn strip_last_suffix(word: &mut String) {
    let Some(suffix) = LAST_SUFFIXES.iter().find(|suffix| word.ends_with(**suffix)) else { return };
    let rest = &word[..word.len() - suffix.len()];
    if measure(rest) > 1 && (*suffix != "ion" || rest.ends_with(['s', 't'])) {
        replace_end(word, suffix.len(), "");
    }
}

/// Step 5.
fn strip_final_e(word: &mut String) {
    if let Some(rest) = word.strip_suffix('e') {
        let measure = measure(rest);
        if measure > 1 || (measure == 1 && !ends_with_short_syllable(rest)) {
            word.pop();
        }
    }
    if word.ends_with("ll") && measure(word) > 1 {
        word.pop();
    }
}

/// Replaces the first suffix that fits, if enough of the word is left.
fn replace_first(word: &mut String, suffixes: &[(&str, &str)], least: usize) {
    let Some((suffix, new)) = suffixes.iter().find(|(suffix, _)| word.ends_with(suffix)) else { return };
    if measure(&word[..word.len() - suffix.len()]) > least {
        replace_end(word, suffix.len(), new);
    }
}

fn replace_end(word: &mut String, length: usize, new: &str) {
    word.truncate(word.len() - length);
    word.push_str(new);
}

fn is_consonant(word: &[u8], at: usize) -> bool {
    match word[at] {
        b'a' | b'e' | b'i' | b'o' | b'u' => false,
        b'y' => at == 0 || !is_consonant(word, at - 1),
        _ => true,
    }
}

/// Number of changes from a vowel to a consonant.
fn measure(word: &str) -> usize {
    let word = word.as_bytes();
    let mut count = 0;
    // Whether the letter before is a consonant; a `y` depends on it.
    let mut before = None;
    for byte in word {
        let consonant = match byte {
            b'a' | b'e' | b'i' | b'o' | b'u' => false,
            b'y' => before != Some(true),
            _ => true,
        };
        count += usize::from(consonant && before == Some(false));
        before = Some(consonant);
    }
    count
}

fn has_vowel(word: &str) -> bool {
    let mut before = None;
    for byte in word.bytes() {
        let consonant = match byte {
            b'a' | b'e' | b'i' | b'o' | b'u' => false,
            b'y' => before != Some(true),
            _ => true,
        };
        if !consonant {
            return true;
        }
        before = Some(consonant);
    }
    false
}

fn ends_with_double_consonant(word: &str) -> bool {
    let word = word.as_bytes();
    match word {
        [.., a, b] if a == b => !matches!(b, b'a' | b'e' | b'i' | b'o' | b'u' | b'y'),
        _ => false,
    }
}

/// Consonant, vowel, consonant, where the last is not w, x or y.
fn ends_with_short_syllable(word: &str) -> bool {
    let word = word.as_bytes();
    let Some(at) = word.len().checked_sub(3) else { return false };
    is_consonant(word, at + 2)
        && !is_consonant(word, at + 1)
        && is_consonant(word, at)
        && !matches!(word[at + 2], b'w' | b'x' | b'y')
}

#[cfg(test)]
mod tests {
    use super::stem;

    #[test]
    fn inflections_have_one_stem() {
        for (words, expected) in [
            ("caresses caress", "caress"),
            ("ponies poni", "poni"),
            ("cats cat", "cat"),
            ("agreed agree", "agre"),
            ("plastered plaster", "plaster"),
            ("motoring motor", "motor"),
            ("sing", "sing"),
            ("hopping hop", "hop"),
            ("filing file files filed", "file"),
            ("parse parsed parses parsing", "pars"),
            ("parser parsers", "parser"),
            ("happy", "happi"),
            ("sky", "sky"),
            ("relational", "relat"),
            ("connection connected connecting connections", "connect"),
            ("normalize normalizing", "normal"),
            ("hopefulness", "hope"),
            ("adjustment", "adjust"),
            ("controlling controlled", "control"),
            ("utf", "utf"),
            ("is", "is"),
            ("größen", "größen"),
        ] {
            for word in words.split(' ') {
                let mut stemmed = word.to_owned();
                stem(&mut stemmed);
                assert_eq!(stemmed, expected, "{word}");
            }
        }
    }

    #[test]
    fn every_word_of_five_letters_has_a_stem() {
        let letters = b"abeilsyntz";
        for number in 0..letters.len().pow(5) {
            let mut rest = number;
            let mut word = String::new();
            for _ in 0..5 {
                word.push(char::from(letters[rest % letters.len()]));
                rest /= letters.len();
            }
            let before = word.clone();
            stem(&mut word);
            assert!(!word.is_empty() && word.len() <= before.len() + 1, "{before}: {word}");
        }
    }
}
