//! DNS messages (RFC 1035): one question is read, and answered with at most one address.
//!
//! Every length is checked, a name in a question is never compressed, and an answer is shorter than 512 bytes.
//!
//! Not here: which address a name has (`name_table.rs`), and sockets (`name_server.rs`).

use std::net::Ipv4Addr;

/// Bytes of the header.
const HEADER_BYTES: usize = 12;

/// Longest name on the wire, with its lengths and the final zero.
const MAX_NAME_BYTES: usize = 255;

/// Seconds for which an answer may be kept. A name has its address for the whole run.
const TTL: u32 = 60;

const TYPE_A: u16 = 1;
const CLASS_IN: u16 = 1;

/// Response code of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DnsResponseCode {
    NoError = 0,
    FormatError = 1,
    ServerFailure = 2,
    NoSuchName = 3,
    NotImplemented = 4,
    Refused = 5,
}

/// A question that was read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DnsQuestion<'a> {
    /// In lower case, without a final dot. Letters, digits, hyphens and underscores in labels.
    pub(crate) name: String,
    /// Whether an IPv4 address is asked for.
    pub(crate) wants_address: bool,
    header: [u8; HEADER_BYTES],
    /// As it was sent, in the sender's case.
    question: &'a [u8],
}

/// A message that is not answered with an address.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DnsRefusal {
    /// Not a query at all: there is no answer.
    Ignored,
    /// The answer to it.
    Response(Vec<u8>),
}

/// Reads a query.
pub(crate) fn parse_dns_query(message: &[u8]) -> Result<DnsQuestion<'_>, DnsRefusal> {
    let (header, rest) = message.split_first_chunk::<HEADER_BYTES>().ok_or(DnsRefusal::Ignored)?;
    let is_response = header[2] & 0x80 != 0;
    if is_response {
        return Err(DnsRefusal::Ignored);
    }
    let refused = |code, question: &[u8]| DnsRefusal::Response(response(header, question, code, None));
    if header[2] & 0x78 != 0 {
        return Err(refused(DnsResponseCode::NotImplemented, &[]));
    }
    if header[4..6] != [0, 1] {
        return Err(refused(DnsResponseCode::FormatError, &[]));
    }
    let (name, name_bytes) = read_name(rest).ok_or_else(|| refused(DnsResponseCode::FormatError, &[]))?;
    let question = rest.get(..name_bytes + 4).ok_or_else(|| refused(DnsResponseCode::FormatError, &[]))?;
    let field = |at: usize| question.get(name_bytes + at..).and_then(|field| field.first_chunk()).copied();
    let (kind, class) = (field(0).map(u16::from_be_bytes), field(2).map(u16::from_be_bytes));
    if class != Some(CLASS_IN) {
        return Err(refused(DnsResponseCode::Refused, question));
    }
    let name = host_name(&name).ok_or_else(|| refused(DnsResponseCode::NoSuchName, question))?;
    Ok(DnsQuestion { name, wants_address: kind == Some(TYPE_A), header: *header, question })
}

impl DnsQuestion<'_> {
    /// The answer with this address; without one, that the name has none of the kind.
    pub(crate) fn answer(&self, address: Option<Ipv4Addr>) -> Vec<u8> {
        response(&self.header, self.question, DnsResponseCode::NoError, address)
    }

    pub(crate) fn refuse(&self, code: DnsResponseCode) -> Vec<u8> {
        response(&self.header, self.question, code, None)
    }
}

/// The labels of a name, and its length on the wire. A pointer to an earlier name is not valid in a question: there is none.
fn read_name(bytes: &[u8]) -> Option<(Vec<&[u8]>, usize)> {
    let (mut labels, mut at) = (Vec::new(), 0);
    loop {
        let length = usize::from(*bytes.get(at)?);
        at += 1;
        if length == 0 {
            return Some((labels, at)).filter(|_| at <= MAX_NAME_BYTES);
        }
        if length > 63 || at + length > MAX_NAME_BYTES {
            return None;
        }
        labels.push(bytes.get(at..at + length)?);
        at += length;
    }
}

/// A host name: no other names have addresses.
fn host_name(labels: &[&[u8]]) -> Option<String> {
    let is_known = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if labels.is_empty() || !labels.iter().all(|label| label.iter().all(is_known)) {
        return None;
    }
    let labels = labels.iter().map(|label| String::from_utf8_lossy(label).to_ascii_lowercase());
    Some(labels.collect::<Vec<_>>().join("."))
}

fn response(header: &[u8; HEADER_BYTES], question: &[u8], code: DnsResponseCode, address: Option<Ipv4Addr>) -> Vec<u8> {
    let [id_high, id_low, flags, ..] = *header;
    // A response, with the opcode and the wish for recursion of the query; recursion is available.
    let mut message = vec![id_high, id_low, 0x80 | (flags & 0x79), 0x80 | code as u8];
    message.extend([0, u8::from(!question.is_empty()), 0, u8::from(address.is_some()), 0, 0, 0, 0]);
    message.extend(question);
    if let Some(address) = address {
        // The name of the question, by a pointer to it.
        message.extend([0xc0, HEADER_BYTES as u8]);
        message.extend(TYPE_A.to_be_bytes());
        message.extend(CLASS_IN.to_be_bytes());
        message.extend(TTL.to_be_bytes());
        message.extend([0, 4]);
        message.extend(address.octets());
    }
    message
}

#[cfg(test)]
pub(crate) mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::{DnsRefusal, parse_dns_query};

    /// A query of this name, whose labels are separated by dots.
    pub(crate) fn query(name: &str, kind: u16) -> Vec<u8> {
        let mut message = vec![0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.').filter(|label| !label.is_empty()) {
            message.push(u8::try_from(label.len()).unwrap());
            message.extend(label.as_bytes());
        }
        message.push(0);
        message.extend(kind.to_be_bytes());
        message.extend([0, 1]);
        message
    }

    fn refusal_code(message: &[u8]) -> Option<u8> {
        match parse_dns_query(message) {
            Err(DnsRefusal::Response(response)) => Some(response[3] & 15),
            Err(DnsRefusal::Ignored) => None,
            Ok(question) => panic!("{question:?}"),
        }
    }

    #[test]
    fn a_name_is_read_in_any_case_and_answered_as_it_was_sent() {
        for (sent, name) in [
            ("docs.rs", "docs.rs"),
            ("dOcS.Rs", "docs.rs"),
            ("docs.rs.", "docs.rs"),
            ("xn--bcher-kva.de", "xn--bcher-kva.de"),
            ("_a.b_c.org", "_a.b_c.org"),
            ("db", "db"),
        ] {
            let query = query(sent, 1);
            let question = parse_dns_query(&query).unwrap();
            assert_eq!((question.name.as_str(), question.wants_address), (name, true), "{sent}");
            let answer = question.answer(Some(Ipv4Addr::new(198, 18, 1, 1)));
            assert_eq!(answer[..12], [0xab, 0xcd, 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]);
            assert_eq!(answer[12..query.len()], query[12..], "{sent}");
            assert_eq!(answer[query.len()..], [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 198, 18, 1, 1]);
        }
    }

    #[test]
    fn other_types_have_an_empty_answer_at_once() {
        for kind in [28, 65, 16, 15, 12, 33, 255, 6] {
            let query = query("docs.rs", kind);
            let question = parse_dns_query(&query).unwrap();
            assert!(!question.wants_address);
            let answer = question.answer(None);
            assert_eq!((answer[3] & 15, &answer[6..8], answer.len()), (0, &[0, 0][..], query.len()), "{kind}");
        }
    }

    #[test]
    fn a_malformed_message_is_refused_or_ignored() {
        let good = query("docs.rs", 1);
        for end in 0..12 {
            assert_eq!(refusal_code(&good[..end]), None, "{end}");
        }
        for end in 12..good.len() {
            assert_eq!(refusal_code(&good[..end]), Some(1), "{end}");
        }
        let changed = |at: usize, to: u8| {
            let mut message = good.clone();
            message[at] = to;
            message
        };
        let long_label = "a".repeat(63);
        let long = [long_label.as_str(), &long_label, &long_label, &"b".repeat(61)].join(".");
        assert_eq!(parse_dns_query(&query(&long, 1)).unwrap().name.len(), 253);
        for (message, code) in [
            (changed(2, 0x81), None),
            (changed(2, 0x29), Some(4)),
            (changed(5, 0), Some(1)),
            (changed(5, 2), Some(1)),
            // A pointer to itself, and one to the header.
            (changed(12, 0xc0), Some(1)),
            ([&good[..12], &[0xc0, 12, 0, 1, 0, 1]].concat(), Some(1)),
            (changed(12, 64), Some(1)),
            (changed(good.len() - 1, 3), Some(5)),
            (query(&format!("{long}c"), 1), Some(1)),
            (query(&["a"; 128].join("."), 1), Some(1)),
            (query("", 1), Some(3)),
            (query("a b.org", 1), Some(3)),
            (query("a\0.org", 1), Some(3)),
            (query("b\u{fc}cher.de", 1), Some(3)),
            (query("a/b.org", 1), Some(3)),
        ] {
            assert_eq!(refusal_code(&message), code, "{message:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_bytes_make_it_panic_or_answer_at_length(bytes: Vec<u8>, at in 0_usize..40, byte: u8) {
            let mut spoiled = query("docs.rs", 1);
            if let Some(changed) = spoiled.get_mut(at) {
                *changed = byte;
            }
            for message in [&bytes, &spoiled] {
                match parse_dns_query(message) {
                    Ok(question) => prop_assert!(question.answer(Some(Ipv4Addr::LOCALHOST)).len() < 512),
                    Err(DnsRefusal::Response(response)) => prop_assert!(response.len() < 512),
                    Err(DnsRefusal::Ignored) => {}
                }
            }
        }
    }
}
