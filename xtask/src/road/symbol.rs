//! Rust v0 symbol names: the module in which a function was written, its type, and its name.
//!
//! Of a method the module is that of its `impl`, which need not be the one of the type. Closures and the bodies of async
//! functions belong to the function that they are in.

/// A function, as its symbol has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SymbolPath {
    /// The crate, and the modules in it.
    pub(super) modules: Vec<String>,
    /// The type or the trait of a method.
    pub(super) owner: Option<String>,
    /// Empty for the path of a module or a type.
    pub(super) function: String,
}

/// The path of a symbol. Nothing where it has a form that no function of ours has.
pub(super) fn parse_symbol(symbol: &str) -> Option<SymbolPath> {
    let text = symbol.strip_prefix("_R")?;
    SymbolParser { text: text.as_bytes(), at: 0, depth: 0 }.path().filter(|path| !path.function.is_empty())
}

struct SymbolParser<'a> {
    text: &'a [u8],
    at: usize,
    depth: usize,
}

impl SymbolParser<'_> {
    fn path(&mut self) -> Option<SymbolPath> {
        self.depth += 1;
        if self.depth > 200 {
            return None;
        }
        let path = match self.next()? {
            b'C' => {
                let name = self.identifier()?;
                SymbolPath { modules: vec![name], ..SymbolPath::default() }
            }
            kind @ (b'M' | b'X') => {
                self.disambiguator()?;
                let place = self.path()?;
                let owner = self.type_name()?;
                if kind == b'X' {
                    self.path()?;
                }
                SymbolPath { modules: place.modules, owner, function: String::new() }
            }
            b'Y' => {
                self.type_name()?;
                let mut declared = self.path()?;
                let owner = declared.modules.pop();
                SymbolPath { modules: declared.modules, owner, function: String::new() }
            }
            b'N' => {
                let space = self.next()?;
                let mut path = self.path()?;
                let name = self.identifier()?;
                match space {
                    b'v' => path.function = name,
                    b't' if path.owner.is_none() && path.function.is_empty() => path.modules.push(name),
                    _ => {}
                }
                path
            }
            b'I' => {
                let path = self.path()?;
                while !self.take(b'E') {
                    self.generic_argument()?;
                }
                path
            }
            b'B' => self.backref(Self::path)?,
            _ => return None,
        };
        self.depth -= 1;
        Some(path)
    }

    fn generic_argument(&mut self) -> Option<()> {
        if self.take(b'L') {
            return self.base62().map(drop);
        }
        if self.take(b'K') {
            return self.constant();
        }
        self.type_name().map(drop)
    }

    /// Passes over a type. Its own name, where it has one.
    fn type_name(&mut self) -> Option<Option<String>> {
        self.depth += 1;
        if self.depth > 200 {
            return None;
        }
        let name = match *self.text.get(self.at)? {
            b'a'..=b'z' => {
                self.at += 1;
                None
            }
            b'A' => {
                self.at += 1;
                self.type_name()?;
                self.constant()?;
                None
            }
            b'S' | b'P' | b'O' => {
                self.at += 1;
                self.type_name()?
            }
            b'R' | b'Q' => {
                self.at += 1;
                if self.take(b'L') {
                    self.base62()?;
                }
                self.type_name()?
            }
            b'T' => {
                self.at += 1;
                while !self.take(b'E') {
                    self.type_name()?;
                }
                None
            }
            b'F' => {
                self.at += 1;
                self.binder()?;
                self.take(b'U');
                if self.take(b'K') && !self.take(b'C') {
                    self.identifier()?;
                }
                while !self.take(b'E') {
                    self.type_name()?;
                }
                self.type_name()?;
                None
            }
            b'D' => {
                self.at += 1;
                self.dyn_bounds()?
            }
            b'B' => {
                self.at += 1;
                self.backref(Self::type_name)?
            }
            _ => self.path()?.modules.pop(),
        };
        self.depth -= 1;
        Some(name)
    }

    fn dyn_bounds(&mut self) -> Option<Option<String>> {
        self.binder()?;
        let mut name = None;
        while !self.take(b'E') {
            name = name.or(self.path()?.modules.pop());
            while self.take(b'p') {
                self.identifier()?;
                self.type_name()?;
            }
        }
        self.next().filter(|byte| *byte == b'L')?;
        self.base62()?;
        Some(name)
    }

    fn constant(&mut self) -> Option<()> {
        if self.take(b'p') {
            return Some(());
        }
        if self.take(b'B') {
            return self.backref(Self::constant);
        }
        self.next().filter(u8::is_ascii_lowercase)?;
        while self.next()? != b'_' {}
        Some(())
    }

    fn binder(&mut self) -> Option<()> {
        if self.take(b'G') {
            self.base62()?;
        }
        Some(())
    }

    /// Reads what an earlier place has.
    fn backref<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        let start = self.base62()?;
        let here = std::mem::replace(&mut self.at, start);
        let found = (start < here).then(|| read(self)).flatten();
        self.at = here;
        found
    }

    fn disambiguator(&mut self) -> Option<()> {
        if self.take(b's') {
            self.base62()?;
        }
        Some(())
    }

    fn identifier(&mut self) -> Option<String> {
        self.disambiguator()?;
        let is_punycode = self.take(b'u');
        let mut length = 0usize;
        while let Some(digit) = self.text.get(self.at).filter(|byte| byte.is_ascii_digit()) {
            length = length.checked_mul(10)?.checked_add(usize::from(digit - b'0'))?;
            self.at += 1;
        }
        self.take(b'_');
        let name = self.text.get(self.at..self.at.checked_add(length)?)?;
        self.at += length;
        (!is_punycode).then(|| String::from_utf8_lossy(name).into_owned())
    }

    fn base62(&mut self) -> Option<usize> {
        let mut value = 0usize;
        if self.take(b'_') {
            return Some(0);
        }
        loop {
            let digit = match self.next()? {
                byte @ b'0'..=b'9' => byte - b'0',
                byte @ b'a'..=b'z' => byte - b'a' + 10,
                byte @ b'A'..=b'Z' => byte - b'A' + 36,
                b'_' => return value.checked_add(1),
                _ => return None,
            };
            value = value.checked_mul(62)?.checked_add(usize::from(digit))?;
        }
    }

    fn take(&mut self, wanted: u8) -> bool {
        let is_next = self.text.get(self.at) == Some(&wanted);
        self.at += usize::from(is_next);
        is_next
    }

    fn next(&mut self) -> Option<u8> {
        let byte = *self.text.get(self.at)?;
        self.at += 1;
        Some(byte)
    }
}

#[cfg(test)]
mod tests {
    use super::parse_symbol;

    #[track_caller]
    fn check(symbol: &str, modules: &[&str], owner: Option<&str>, function: &str) {
        let path = parse_symbol(symbol).unwrap();
        assert_eq!(
            (path.modules.as_slice(), path.owner.as_deref()),
            (modules.map_owned().as_slice(), owner),
            "{symbol}"
        );
        assert_eq!(path.function, function, "{symbol}");
    }

    trait MapOwned {
        fn map_owned(&self) -> Vec<String>;
    }

    impl MapOwned for [&str] {
        fn map_owned(&self) -> Vec<String> {
            self.iter().map(|text| (*text).to_owned()).collect()
        }
    }

    #[test]
    fn a_function_is_where_it_was_written() {
        check("_RNvCsjMaewn57Afh_1t4main", &["t"], None, "main");
        check("_RNvXNtCsjMaewn57Afh_1t5innerNtB2_1ANtB2_1T2go", &["t", "inner"], Some("A"), "go");
        check("_RNCNvXNtCsjMaewn57Afh_1t5innerNtB4_1ANtB4_1T2go0B6_", &["t", "inner"], Some("A"), "go");
        check("_RINvNtC3std3mem8align_ofdE", &["std", "mem"], None, "align_of");
    }

    #[test]
    fn other_texts_are_no_paths() {
        for text in ["", "main", "_R", "_RNv", "_RB_", "_RNvB_4main", "_ZN4main"] {
            assert_eq!(parse_symbol(text), None, "{text}");
        }
    }
}
