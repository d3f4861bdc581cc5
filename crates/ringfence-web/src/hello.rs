//! The first thing that a TLS client says, as far as it names a server.
//!
//! A connection that a program asks for by one name must not end up at another: the name in here has to be the one that
//! was asked for. Everything is read with its bounds; what cannot be read is refused.

/// The longest first message that is taken.
pub(crate) const LONGEST: usize = 64 << 10;

/// What is known of the name so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hello {
    /// There is more to come.
    Partial,
    /// The server that is meant, if one is named.
    Whole(Option<String>),
    /// It is no greeting of TLS, or one that hides whom it means.
    Refused(&'static str),
}

/// Reads what came so far.
pub(crate) fn read(bytes: &[u8]) -> Hello {
    match handshake(bytes) {
        Err(why) => Hello::Refused(why),
        Ok(None) if bytes.len() >= LONGEST => Hello::Refused("its greeting is too long"),
        Ok(None) => Hello::Partial,
        Ok(Some(message)) => match server_name(&message) {
            Some(Ok(name)) => Hello::Whole(name),
            Some(Err(why)) => Hello::Refused(why),
            None => Hello::Refused("its greeting cannot be read"),
        },
    }
}

/// The message in the records, once it is whole.
fn handshake(bytes: &[u8]) -> Result<Option<Vec<u8>>, &'static str> {
    let (mut message, mut rest) = (Vec::new(), bytes);
    while let Some((&kind, tail)) = rest.split_first() {
        if kind != 22 {
            return Err("it does not begin as TLS does");
        }
        let Some((_, tail)) = tail.split_at_checked(2) else { return Ok(None) };
        let Some((length, tail)) = take_number(tail, 2) else { return Ok(None) };
        if length == 0 || length > 16 << 10 {
            return Err("it does not begin as TLS does");
        }
        let Some((record, tail)) = tail.split_at_checked(length) else { return Ok(None) };
        message.extend_from_slice(record);
        rest = tail;
        let Some((&kind, after)) = message.split_first() else { continue };
        if kind != 1 {
            return Err("it does not begin as TLS does");
        }
        let Some((length, body)) = take_number(after, 3) else { continue };
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
    let (_, rest) = take_list(rest, 1)?;
    let (_, rest) = take_list(rest, 2)?;
    let (_, rest) = take_list(rest, 1)?;
    if rest.is_empty() {
        return Some(Ok(None));
    }
    let (mut extensions, _) = take_list(rest, 2)?;
    let mut name = None;
    while !extensions.is_empty() {
        let (kind, rest) = take_number(extensions, 2)?;
        let (body, rest) = take_list(rest, 2)?;
        extensions = rest;
        match kind {
            0 if name.is_some() => return Some(Err("it names a server twice")),
            0 => name = Some(only_name(body)?),
            0xfe0d => return Some(Err("it hides the server that it means (encrypted client hello)")),
            _ => {}
        }
    }
    Some(Ok(name))
}

fn only_name(extension: &[u8]) -> Option<String> {
    let (names, behind) = take_list(extension, 2)?;
    let (kind, rest) = take_number(names, 1)?;
    let (name, others) = take_list(rest, 2)?;
    let whole = kind == 0 && others.is_empty() && behind.is_empty();
    String::from_utf8(name.to_vec()).ok().filter(|_| whole)
}

fn take_number(bytes: &[u8], size: usize) -> Option<(usize, &[u8])> {
    let (number, rest) = bytes.split_at_checked(size)?;
    Some((number.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), rest))
}

/// A list whose length stands in front of it in so many bytes.
fn take_list(bytes: &[u8], size: usize) -> Option<(&[u8], &[u8])> {
    let (length, rest) = take_number(bytes, size)?;
    rest.split_at_checked(length)
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::{Hello, LONGEST, read};

    fn sized(size: usize, body: &[u8]) -> Vec<u8> {
        let length = (body.len() as u32).to_be_bytes();
        [&length[4 - size..], body].concat()
    }

    fn extension(kind: u16, body: &[u8]) -> Vec<u8> {
        [&kind.to_be_bytes()[..], &sized(2, body)].concat()
    }

    fn naming(name: &str) -> Vec<u8> {
        extension(0, &sized(2, &[&[0], &sized(2, name.as_bytes())[..]].concat()))
    }

    fn message(extensions: &[u8]) -> Vec<u8> {
        let body =
            [&[3, 3][..], &[7; 32], &sized(1, &[]), &sized(2, &[0x13, 1]), &sized(1, &[0]), &sized(2, extensions)]
                .concat();
        [&[1][..], &sized(3, &body)].concat()
    }

    fn record(part: &[u8]) -> Vec<u8> {
        [&[22, 3, 1][..], &sized(2, part)].concat()
    }

    #[test]
    fn a_name_is_found_however_it_is_cut_up() {
        let whole = message(&[extension(10, &[1, 2]), naming("pypi.org"), extension(16, &[])].concat());
        let in_one = record(&whole);
        let in_many: Vec<u8> = whole.chunks(7).flat_map(record).collect();
        for bytes in [in_one, in_many] {
            assert_eq!(read(&bytes), Hello::Whole(Some("pypi.org".to_owned())));
            for end in 0..bytes.len() {
                assert_eq!(read(&bytes[..end]), Hello::Partial, "{end}");
            }
        }
        assert_eq!(read(&record(&message(&[]))), Hello::Whole(None));
    }

    #[test]
    fn what_hides_whom_it_means_is_refused() {
        let refused = |extensions: &[u8]| matches!(read(&record(&message(extensions))), Hello::Refused(_));
        assert!(refused(&[naming("a.org"), extension(0xfe0d, &[0])].concat()));
        assert!(refused(&[naming("a.org"), naming("b.org")].concat()));
        let two = sized(2, &[&[0][..], &sized(2, b"a.org"), &[0], &sized(2, b"b.org")].concat());
        assert!(refused(&extension(0, &two)));
        assert!(refused(&extension(0, &sized(2, &[&[1][..], &sized(2, b"a.org")].concat()))));
        for bytes in
            [&b"GET / HTTP/1.1\r\n"[..], b"SSH-2.0-x", &[22, 3, 1, 0, 0], &[22, 3, 1, 0, 1, 2], &[22, 3, 1, 255, 255]]
        {
            assert!(matches!(read(bytes), Hello::Refused(_)), "{bytes:?}");
        }
        let endless = record(&[1, 255, 255, 255]).repeat(LONGEST / 9 + 1);
        assert!(matches!(read(&endless), Hello::Refused(_)));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_bytes_make_it_panic(body: Vec<u8>, at in 0_usize..80, byte: u8) {
            read(&body);
            read(&record(&body));
            let mut spoiled = record(&message(&naming("a.org")));
            if let Some(place) = spoiled.get_mut(at) {
                *place = byte;
            }
            read(&spoiled);
        }
    }
}
