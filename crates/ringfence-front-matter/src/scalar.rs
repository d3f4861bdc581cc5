//! Scalar resolution by the core schema of YAML 1.2, and nothing of 1.1.
//!
//! A number is one only if JSON carries it without loss; otherwise it stays the text that it was.

use serde_json::{Number, Value};

pub(super) fn resolve(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        _ => number(text).map_or_else(|| Value::String(text.to_owned()), Value::Number),
    }
}

fn number(text: &str) -> Option<Number> {
    if let Some(digits) = text.strip_prefix("0o") {
        return parse_radix(digits, 8);
    }
    if let Some(digits) = text.strip_prefix("0x") {
        return parse_radix(digits, 16);
    }
    if is_digits(unsigned(text)) {
        let signed = text.parse::<i64>().map(Number::from);
        return signed.or_else(|_| text.parse::<u64>().map(Number::from)).ok();
    }
    let written = YamlDecimal::parse(text)?;
    let number = Number::from_f64(text.parse().ok()?)?;
    let kept = YamlDecimal::parse(&number.to_string())?;
    if written == kept { Some(number) } else { None }
}

fn parse_radix(digits: &str, radix: u32) -> Option<Number> {
    // The standard library would take a sign here.
    let valid = digits.chars().all(|digit| digit.is_digit(radix));
    if valid { u64::from_str_radix(digits, radix).ok().map(Number::from) } else { None }
}

fn unsigned(text: &str) -> &str {
    text.strip_prefix(['+', '-']).unwrap_or(text)
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The digits that count and the power of ten: the same for all spellings of a number but its sign.
#[derive(Debug, PartialEq, Eq)]
struct YamlDecimal {
    digits: String,
    exponent: i64,
}

impl YamlDecimal {
    fn parse(text: &str) -> Option<Self> {
        let (mantissa, exponent) = match unsigned(text).split_once(['e', 'E']) {
            Some((mantissa, exponent)) if is_digits(unsigned(exponent)) => (mantissa, exponent.parse::<i64>().ok()?),
            Some(_) => return None,
            None => (unsigned(text), 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all = format!("{whole}{fraction}");
        if !is_digits(&all) {
            return None;
        }
        let counting = all.trim_end_matches('0');
        let digits = counting.trim_start_matches('0').to_owned();
        if digits.is_empty() {
            return Some(Self { digits, exponent: 0 });
        }
        let shift = i64::try_from(all.len() - counting.len()).ok()? - i64::try_from(fraction.len()).ok()?;
        Some(Self { digits, exponent: exponent.checked_add(shift)? })
    }
}
