//! Request paths: matched against globs after decoding.
//!
//! A path that two readers could take for different ones is refused before it is matched: dot segments, empty segments,
//! encoded separators, parameters after `;`, and whatever decodes twice.
//!
//! Not here: what a match means (`request_guard.rs`).

/// A path of a request, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestPath {
    segments: Vec<String>,
}

/// A glob of paths: `*` within a segment, `**` for any number of segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PathPattern {
    segments: Vec<PatternSegment>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PatternSegment {
    /// Any number of segments.
    Any,
    /// One segment: the parts between its `*`.
    One(Vec<String>),
}

/// Invalid path pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid path `{pattern}`: {problem}")]
pub struct PathPatternError {
    pattern: String,
    problem: &'static str,
}

impl RequestPath {
    /// Reads the path of a request target. Fails with what makes it ambiguous.
    pub(crate) fn parse(raw: &str) -> Result<Self, &'static str> {
        let rest = raw.strip_prefix('/').ok_or("the path does not begin with `/`")?;
        let raw_segments: Vec<&str> = rest.split('/').collect();
        let last = raw_segments.len() - 1;
        let mut segments = Vec::with_capacity(raw_segments.len());
        for (index, raw) in raw_segments.iter().enumerate() {
            if raw.is_empty() && index != last {
                return Err("the path has an empty segment");
            }
            let segment = decode_segment(raw)?;
            if segment == "." || segment == ".." {
                return Err("the path has a dot segment");
            }
            segments.push(segment);
        }
        Ok(Self { segments })
    }
}

fn decode_segment(raw: &str) -> Result<String, &'static str> {
    let mut decoded = Vec::with_capacity(raw.len());
    let mut bytes = raw.bytes();
    while let Some(byte) = bytes.next() {
        let byte = match byte {
            b'%' => {
                let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
                let (high, low) = (digit(bytes.next()), digit(bytes.next()));
                let value = high.zip(low).and_then(|(high, low)| u8::try_from(high << 4 | low).ok());
                value.ok_or("the path has an invalid escape")?
            }
            plain => plain,
        };
        match byte {
            b'/' | b'\\' => return Err("the path has an encoded separator or a backslash"),
            b';' => return Err("the path has parameters after `;`"),
            b'%' => return Err("the path is encoded twice"),
            byte if byte.is_ascii_control() => return Err("the path has a control character"),
            byte => decoded.push(byte),
        }
    }
    String::from_utf8(decoded).map_err(|_| "the path is not UTF-8")
}

impl PathPattern {
    /// Reads a glob such as `/v1/**`.
    pub(crate) fn parse(text: &str) -> Result<Self, PathPatternError> {
        let wrong = |problem| PathPatternError { pattern: text.to_owned(), problem };
        let rest = text.strip_prefix('/').ok_or_else(|| wrong("it must begin with `/`"))?;
        let texts: Vec<&str> = rest.split('/').collect();
        let last = texts.len() - 1;
        let mut segments = Vec::with_capacity(texts.len());
        for (index, segment) in texts.into_iter().enumerate() {
            segments.push(match segment {
                "**" => PatternSegment::Any,
                "." | ".." => return Err(wrong("it has a dot segment")),
                "" if index != last => return Err(wrong("it has an empty segment")),
                _ if segment.contains("**") => return Err(wrong("`**` must be a segment of its own")),
                _ if segment.contains(['%', ';', '\\', '?', '#']) => {
                    return Err(wrong("write it decoded, without `%`, `;`, `\\`, `?` and `#`"));
                }
                _ => PatternSegment::One(segment.split('*').map(str::to_owned).collect()),
            });
        }
        Ok(Self { segments })
    }

    /// Whether the path is one of those. `**` at the end stands for at least one segment, which may be empty: `/v1/**` has `/v1/`, and not `/v1`.
    pub(crate) fn matches(&self, path: &RequestPath) -> bool {
        let (pattern, path) = (&self.segments, &path.segments);
        // Where to go on after the last `**`: a segment that it took may be one more.
        let (mut at, mut taken, mut retry) = (0, 0, None);
        loop {
            match pattern.get(at) {
                Some(PatternSegment::Any) if at + 1 == pattern.len() => return taken < path.len(),
                Some(PatternSegment::Any) => {
                    at += 1;
                    retry = Some((at, taken));
                    continue;
                }
                Some(PatternSegment::One(parts))
                    if path.get(taken).is_some_and(|segment| segment_matches(parts, segment)) =>
                {
                    (at, taken) = (at + 1, taken + 1);
                    continue;
                }
                None if taken == path.len() => return true,
                _ => {}
            }
            let Some((after, from)) = retry.filter(|(_, from)| *from < path.len()) else { return false };
            (at, taken, retry) = (after, from + 1, Some((after, from + 1)));
        }
    }
}

/// Whether a segment is these parts with any text between them.
fn segment_matches(parts: &[String], segment: &str) -> bool {
    let [first, middle @ .., last] = parts else { return parts.iter().all(|only| only == segment) };
    let Some(mut rest) = segment.strip_prefix(first.as_str()).and_then(|rest| rest.strip_suffix(last.as_str())) else {
        return false;
    };
    middle.iter().all(|part| match rest.split_once(part.as_str()) {
        Some((_, after)) => {
            rest = after;
            true
        }
        None => false,
    })
}

#[cfg(test)]
mod tests {
    use super::{PathPattern, RequestPath};

    fn matches(pattern: &str, path: &str) -> bool {
        PathPattern::parse(pattern).unwrap().matches(&RequestPath::parse(path).unwrap())
    }

    #[test]
    fn a_pattern_matches_the_decoded_path() {
        for (pattern, path, expected) in [
            ("/v1/**", "/v1/messages", true),
            ("/v1/**", "/v1/messages/batches", true),
            ("/v1/**", "/v1/", true),
            ("/v1/**", "/v1", false),
            ("/v1/**", "/v10/messages", false),
            ("/v1/**", "/V1/messages", false),
            ("/v1/**", "/%761/messages", true),
            ("/v1/messages", "/v1/messages", true),
            ("/v1/messages", "/v1/messages/", false),
            ("/v1/messages", "/v1/message%73", true),
            ("/", "/", true),
            ("/**", "/", true),
            ("/**", "/a/b", true),
            ("/*/b", "/a/b", true),
            ("/*/b", "/a/c/b", false),
            ("/**/b", "/b", true),
            ("/**/b", "/a/c/b", true),
            ("/**/b", "/a/b/c", false),
            ("/**/b/**", "/a/b/c", true),
            ("/**/b/**", "/a/b", false),
            ("/repos/*/*/git-receive-pack", "/repos/o/n/git-receive-pack", true),
            ("/a*c*e", "/abcde", true),
            ("/a*c*e", "/ae", false),
            ("/ab*b", "/ab", false),
            ("/*", "/", true),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn an_ambiguous_path_is_refused() {
        for path in [
            "",
            "*",
            "v1",
            "//",
            "//v1",
            "/v1//x",
            "/v1/../x",
            "/v1/..",
            "/./x",
            "/v1/%2e%2e/x",
            "/v1/%2E./x",
            "/a%2fb",
            "/a%2Fb",
            "/a%5cb",
            "/a\\b",
            "/a;b",
            "/..;/x",
            "/a%3bb",
            "/%252e%252e/x",
            "/a%",
            "/a%2",
            "/a%zz",
            "/a%00",
            "/a%0d",
            "/a%ff",
            "/a%+1",
        ] {
            assert!(RequestPath::parse(path).is_err(), "{path}");
        }
    }

    #[test]
    fn an_invalid_pattern_is_refused() {
        for pattern in ["", "v1", "/a//b", "/../a", "/a**", "/a%2f", "/a;b", "/a?b", "/a#b", "/a\\b"] {
            assert!(PathPattern::parse(pattern).is_err(), "{pattern}");
        }
    }
}
