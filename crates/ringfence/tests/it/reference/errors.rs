//! `docs/reference/errors.md`: the one taxonomy, what each dialect calls its kinds, and what they mean.

use std::path::Path;

use ringfence_kernel::{Dialect, ErrorKind, ToolError};

use super::{check_page, head, opening, row};

/// Doc comments of the error kinds, by their names there.
fn meanings() -> Vec<(String, String)> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ringfence-kernel/src/error.rs");
    let source = std::fs::read_to_string(source).unwrap();
    let (_, kinds) = source.split_once("pub enum ErrorKind {\n").unwrap();
    let (kinds, _) = kinds.split_once("\n}").unwrap();
    let mut found = Vec::new();
    let mut meaning = String::new();
    for line in kinds.lines().map(str::trim) {
        match line.strip_prefix("///") {
            Some(words) => meaning.push_str(words),
            None => found.push((line.trim_end_matches(',').to_owned(), std::mem::take(&mut meaning))),
        }
    }
    found
}

#[test]
fn the_reference_of_errors_is_the_taxonomy() {
    let what = "\
Every failed call returns one of these errors, in every dialect. The model receives it as a reply: the message says what
happened, to what, and what to do next, and never contains a host path, a secret or file contents. The reply of `standard`
and `crewagent` is `{\"ok\":false,\"error\":{\"code\",\"message\",\"details\"?}}`; the reply of `miniclaw` is one line, `category: message`.

Several kinds may share a name in a dialect. Output outside any dialect, such as the audit log, uses the names of `standard`.
[Operations](../operations.md#by-symptom) explains how to resolve them.
";
    let meanings = meanings();
    let names: Vec<String> = ErrorKind::ALL.iter().map(|kind| format!("{kind:?}")).collect();
    assert_eq!(meanings.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>(), names, "every kind is in `ALL`");
    let mut text = opening("Errors", "`ErrorKind` and `Dialect`", what);
    text.push_str(&head(["`standard`", "`miniclaw`", "`crewagent`", "when"]));
    for (kind, (_, meaning)) in ErrorKind::ALL.into_iter().zip(&meanings) {
        let error = ToolError::new(kind, "");
        let [standard, miniclaw, crewagent] = [Dialect::Standard, Dialect::Miniclaw, Dialect::Crewagent]
            .map(|dialect| format!("`{}`", dialect.error_code(&error)));
        text.push_str(&row([&standard, &miniclaw, &crewagent, meaning]));
    }
    let empty = ["path", "old_text"].map(|field| {
        let error = ToolError::invalid(field, "must not be empty");
        assert_eq!(Dialect::Miniclaw.error_code(&error), "invalid_path");
        format!("`{field}`")
    });
    text.push_str(&format!("\nIn `miniclaw` an empty {} is an `invalid_path`, as in MiniClaw.\n", empty.join(" or ")));
    check_page("errors.md", text);
}
