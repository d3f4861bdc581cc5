//! Bounds of extraction: hostile files.

use std::time::Duration;

use crate::{CodeQuery, CodeSymbol, ExtractionLimits, RankingMethod, SourceLanguage, SymbolCorpus, extract_symbols};

fn extract(path: &str, source: &[u8], limits: &ExtractionLimits) -> Vec<CodeSymbol> {
    extract_symbols(SourceLanguage::of_path(path).unwrap(), source, limits)
}

const PATHS: [&str; 9] = ["a.rs", "a.py", "a.js", "a.ts", "a.go", "a.java", "a.c", "a.rb", "a.cpp"];

#[test]
fn deep_nesting_ends() {
    for path in PATHS {
        for (open, close) in
            [("{", "}"), ("(", ")"), ("[", "]"), ("fn a() {", "}"), ("class A {", "}"), ("if x:\n ", "")]
        {
            let source =
                format!("{}{}", open.repeat(1000), close.repeat(1000)).replace("){", "){\n").replace("}}", "}\n}");
            extract(path, source.as_bytes(), &ExtractionLimits::default());
        }
        let deep: String = (0..200).map(|depth| format!("{}if x:\n", " ".repeat(depth))).collect();
        extract(path, deep.as_bytes(), &ExtractionLimits::default());
    }
}

#[test]
fn the_number_of_symbols_is_bounded() {
    let source = "fn a() {}\n".repeat(100);
    let limits = ExtractionLimits { symbols: 10, ..ExtractionLimits::default() };
    assert_eq!(extract("a.rs", source.as_bytes(), &limits).len(), 10);
    let source = "def a\nend\n".repeat(100);
    assert_eq!(extract("a.rb", source.as_bytes(), &limits).len(), 10);
}

#[test]
fn long_binary_and_generated_files_have_no_symbols() {
    let limits = ExtractionLimits { file_bytes: 1000, ..ExtractionLimits::default() };
    let check = |source: &str| assert!(extract("a.js", source.as_bytes(), &limits).is_empty());
    check(&"function a() {}\n".repeat(100));
    check("function a() {}\0");
    let limits = ExtractionLimits::default();
    let check = |source: &str| assert!(extract("a.js", source.as_bytes(), &limits).is_empty());
    check(&"function a() {}".repeat(2000));
}

#[test]
fn without_time_to_parse_symbols_are_found_by_lines() {
    let limits = ExtractionLimits { parse_time: Duration::ZERO, ..ExtractionLimits::default() };
    let source = "fn first() {\n    1;\n}\n".repeat(400);
    let found = extract("a.rs", source.as_bytes(), &limits);
    assert_eq!((found.len(), found[0].name.as_str()), (400, "first"));
}

#[test]
fn invalid_text_is_read_as_far_as_it_is_text() {
    let found = extract("a.rs", b"fn caf\xff() { \xfe }\nfn tea() {}\n", &ExtractionLimits::default());
    assert!(found.iter().any(|symbol| symbol.name == "tea"));
}

mod fuzz {
    use super::*;

    /// Any bytes in any language have symbols within the file, which can be indexed and searched.
    #[test]
    fn sources_have_symbols_within_bounds() {
        let limits = ExtractionLimits { symbols: 100, ..ExtractionLimits::default() };
        ringfence_fuzz::FuzzTarget::new("symbols", env!("CARGO_MANIFEST_DIR")).check(|bytes| {
            let (first, source) = bytes.split_first().unwrap_or((&0, &[]));
            let path = PATHS[usize::from(*first) % PATHS.len()];
            let found = extract(path, source, &limits);
            let lines = source.iter().filter(|byte| **byte == b'\n').count() + 1;
            assert!(found.len() <= limits.symbols);
            for symbol in &found {
                assert!(1 <= symbol.start_line && symbol.start_line <= symbol.end_line);
                assert!(symbol.end_line as usize <= lines, "{symbol:?} of {lines} lines");
                assert!(symbol.signature.len() <= 500 && symbol.body.len() <= (16 << 10) + 1000);
            }
            let mut corpus = SymbolCorpus::default();
            corpus.add_file(path, SourceLanguage::of_path(path).unwrap(), &found, None);
            let query = CodeQuery::new(&String::from_utf8_lossy(source));
            let ranked = corpus.search(&query, None, RankingMethod::Learned, 5, |_| true);
            found.iter().map(|symbol| symbol.kind.name()).chain(ranked.first().map(|_| "found")).collect::<Vec<_>>()
        });
    }
}
