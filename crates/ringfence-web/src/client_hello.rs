//! TLS ClientHello SNI parsing.
//!
//! A connection that a program asks for by one name must not end up at another: the name in here has to be the one that
//! was asked for. Everything is read with its bounds; what cannot be read is refused.

/// The longest first message that is taken.
pub(crate) const MAX_HELLO_BYTES: usize = 64 << 10;

/// The server name, as far as it was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClientHello {
    /// There is more to come.
    Partial,
    /// The server that is meant, if one is named.
    Complete(Option<String>),
    /// Not a TLS ClientHello, or one that hides its server name.
    Refused(&'static str),
}

/// Reads what came so far.
pub(crate) fn parse_client_hello(bytes: &[u8]) -> ClientHello {
    match reassemble_handshake(bytes) {
        Err(why) => ClientHello::Refused(why),
        Ok(None) if bytes.len() >= MAX_HELLO_BYTES => ClientHello::Refused("its ClientHello is too long"),
        Ok(None) => ClientHello::Partial,
        Ok(Some(message)) => match server_name(&message) {
            Some(Ok(name)) => ClientHello::Complete(name),
            Some(Err(why)) => ClientHello::Refused(why),
            None => ClientHello::Refused("its ClientHello cannot be parsed"),
        },
    }
}

/// The message in the records, once it is whole.
fn reassemble_handshake(bytes: &[u8]) -> Result<Option<Vec<u8>>, &'static str> {
    let (mut message, mut rest) = (Vec::new(), bytes);
    while let Some((&kind, tail)) = rest.split_first() {
        if kind != 22 {
            return Err("it does not start with a TLS ClientHello");
        }
        let Some((_, tail)) = tail.split_at_checked(2) else { return Ok(None) };
        let Some((length, tail)) = take_integer(tail, 2) else { return Ok(None) };
        if length == 0 || length > 16 << 10 {
            return Err("it does not start with a TLS ClientHello");
        }
        let Some((record, tail)) = tail.split_at_checked(length) else { return Ok(None) };
        message.extend_from_slice(record);
        rest = tail;
        let Some((&kind, after)) = message.split_first() else { continue };
        if kind != 1 {
            return Err("it does not start with a TLS ClientHello");
        }
        let Some((length, body)) = take_integer(after, 3) else { continue };
        if let Some(body) = body.get(..length) {
            return Ok(Some(body.to_vec()));
        }
    }
    Ok(None)
}

/// Nothing where the message does not read.
fn server_name(message: &[u8]) -> Option<Result<Option<String>, &'static str>> {
    // A version and random bytes, then three lists that say nothing about the server.
    let rest = message.get(34..)?;
    let (_, rest) = take_length_prefixed(rest, 1)?;
    let (_, rest) = take_length_prefixed(rest, 2)?;
    let (_, rest) = take_length_prefixed(rest, 1)?;
    if rest.is_empty() {
        return Some(Ok(None));
    }
    let (mut extensions, _) = take_length_prefixed(rest, 2)?;
    let mut name = None;
    while !extensions.is_empty() {
        let (kind, rest) = take_integer(extensions, 2)?;
        let (body, rest) = take_length_prefixed(rest, 2)?;
        extensions = rest;
        match kind {
            0 if name.is_some() => return Some(Err("its ClientHello has more than one server name")),
            0 => name = Some(single_server_name(body)?),
            0xfe0d => return Some(Err("it uses encrypted ClientHello, which hides the server name")),
            _ => {}
        }
    }
    Some(Ok(name))
}

fn single_server_name(extension: &[u8]) -> Option<String> {
    let (names, behind) = take_length_prefixed(extension, 2)?;
    let (kind, rest) = take_integer(names, 1)?;
    let (name, others) = take_length_prefixed(rest, 2)?;
    let whole = kind == 0 && others.is_empty() && behind.is_empty();
    String::from_utf8(name.to_vec()).ok().filter(|_| whole)
}

fn take_integer(bytes: &[u8], size: usize) -> Option<(usize, &[u8])> {
    let (number, rest) = bytes.split_at_checked(size)?;
    Some((number.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), rest))
}

/// A list with a length prefix of `size` bytes.
fn take_length_prefixed(bytes: &[u8], size: usize) -> Option<(&[u8], &[u8])> {
    let (length, rest) = take_integer(bytes, size)?;
    rest.split_at_checked(length)
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::{ClientHello, MAX_HELLO_BYTES, parse_client_hello};

    fn length_prefixed(size: usize, body: &[u8]) -> Vec<u8> {
        let length = (body.len() as u32).to_be_bytes();
        [&length[4 - size..], body].concat()
    }

    fn extension(kind: u16, body: &[u8]) -> Vec<u8> {
        [&kind.to_be_bytes()[..], &length_prefixed(2, body)].concat()
    }

    fn server_name_extension(name: &str) -> Vec<u8> {
        extension(0, &length_prefixed(2, &[&[0], &length_prefixed(2, name.as_bytes())[..]].concat()))
    }

    fn message(extensions: &[u8]) -> Vec<u8> {
        let body = [
            &[3, 3][..],
            &[7; 32],
            &length_prefixed(1, &[]),
            &length_prefixed(2, &[0x13, 1]),
            &length_prefixed(1, &[0]),
            &length_prefixed(2, extensions),
        ]
        .concat();
        [&[1][..], &length_prefixed(3, &body)].concat()
    }

    fn record(part: &[u8]) -> Vec<u8> {
        [&[22, 3, 1][..], &length_prefixed(2, part)].concat()
    }

    #[test]
    fn a_name_is_found_however_it_is_cut_up() {
        let whole = message(&[extension(10, &[1, 2]), server_name_extension("pypi.org"), extension(16, &[])].concat());
        let in_one = record(&whole);
        let in_many: Vec<u8> = whole.chunks(7).flat_map(record).collect();
        for bytes in [in_one, in_many] {
            assert_eq!(parse_client_hello(&bytes), ClientHello::Complete(Some("pypi.org".to_owned())));
            for end in 0..bytes.len() {
                assert_eq!(parse_client_hello(&bytes[..end]), ClientHello::Partial, "{end}");
            }
        }
        assert_eq!(parse_client_hello(&record(&message(&[]))), ClientHello::Complete(None));
    }

    #[test]
    fn a_client_hello_without_a_clear_server_name_is_refused() {
        let refused =
            |extensions: &[u8]| matches!(parse_client_hello(&record(&message(extensions))), ClientHello::Refused(_));
        assert!(refused(&[server_name_extension("a.org"), extension(0xfe0d, &[0])].concat()));
        assert!(refused(&[server_name_extension("a.org"), server_name_extension("b.org")].concat()));
        let two = length_prefixed(
            2,
            &[&[0][..], &length_prefixed(2, b"a.org"), &[0], &length_prefixed(2, b"b.org")].concat(),
        );
        assert!(refused(&extension(0, &two)));
        assert!(refused(&extension(0, &length_prefixed(2, &[&[1][..], &length_prefixed(2, b"a.org")].concat()))));
        for bytes in
            [&b"GET / HTTP/1.1\r\n"[..], b"SSH-2.0-x", &[22, 3, 1, 0, 0], &[22, 3, 1, 0, 1, 2], &[22, 3, 1, 255, 255]]
        {
            assert!(matches!(parse_client_hello(bytes), ClientHello::Refused(_)), "{bytes:?}");
        }
        let endless = record(&[1, 255, 255, 255]).repeat(MAX_HELLO_BYTES / 9 + 1);
        assert!(matches!(parse_client_hello(&endless), ClientHello::Refused(_)));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_bytes_make_it_panic(body: Vec<u8>, at in 0_usize..80, byte: u8) {
            parse_client_hello(&body);
            parse_client_hello(&record(&body));
            let mut spoiled = record(&message(&server_name_extension("a.org")));
            if let Some(changed) = spoiled.get_mut(at) {
                *changed = byte;
            }
            parse_client_hello(&spoiled);
        }
    }
}
