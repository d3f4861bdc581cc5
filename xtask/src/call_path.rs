//! `cargo xtask road`: the functions, files and lines on the path of one call from the command line to the disk.
//!
//! The call is a read that memory can answer, the shortest one. It reaches the disk twice: when the plan opens the
//! file, and when the run reads it. `ARCHITECTURE.md` has this table; a test keeps it up to date.

use std::collections::BTreeSet;
use std::fs;

use crate::{print_status, root};

/// The way there, which both have in common.
const COMMON: [CallPathStep; 7] = [
    CallPathStep("crates/ringfence/src/cli/mod.rs", "make_call", 1),
    CallPathStep("crates/ringfence-kernel/src/call.rs", "call", 1),
    CallPathStep("crates/ringfence-kernel/src/call.rs", "call_with_progress", 1),
    CallPathStep("crates/ringfence-kernel/src/call.rs", "drive", 1),
    CallPathStep("crates/ringfence-kernel/src/call.rs", "try_inline", 1),
    CallPathStep("crates/ringfence-kernel/src/call.rs", "advance_on_this_thread", 1),
    CallPathStep("crates/ringfence-kernel/src/call.rs", "advance", 1),
];

/// From there to the file that is opened.
const PLAN: [CallPathStep; 5] = [
    CallPathStep("crates/ringfence-kernel/src/invocation.rs", "plan", 1),
    CallPathStep("crates/ringfence-kernel/src/tool_binding.rs", "plan", 2),
    CallPathStep("crates/ringfence-fs/src/tools/read_file.rs", "plan", 1),
    CallPathStep("crates/ringfence-fs/src/mount/mod.rs", "open_content", 1),
    CallPathStep("crates/ringfence-fs/src/mount/mod.rs", "open", 1),
];

/// From there to its contents.
const RUN: [CallPathStep; 4] = [
    CallPathStep("crates/ringfence-kernel/src/invocation.rs", "run", 1),
    CallPathStep("crates/ringfence-kernel/src/tool_binding.rs", "run", 2),
    CallPathStep("crates/ringfence-fs/src/tools/read_file.rs", "run", 1),
    CallPathStep("crates/ringfence-fs/src/read/content.rs", "read_start", 1),
];

/// A function: its file, its name, and which of those that are called so in the file it is, where traits declare others.
struct CallPathStep(&'static str, &'static str, usize);

impl CallPathStep {
    /// From its `fn` to its last brace.
    fn lines(&self) -> Result<usize, String> {
        let Self(file, name, which) = self;
        let text = fs::read_to_string(root().join(file)).map_err(|error| format!("{file}: {error}"))?;
        let starts: Vec<usize> = text.match_indices(&format!("fn {name}")).map(|(at, _)| at).collect();
        let is_whole = |at: &&usize| text[**at + 3 + name.len()..].starts_with(['(', '<']);
        let at = starts.iter().filter(is_whole).nth(which - 1).ok_or_else(|| format!("no `{name}` in {file}"))?;
        let line = text[..*at].rfind('\n').map_or(0, |newline| newline + 1);
        let indent = text[line..].len() - text[line..].trim_start().len();
        let end = format!("\n{}}}", " ".repeat(indent));
        let length = text[line..].find(&end).ok_or_else(|| format!("`{name}` in {file} has no end"))?;
        Ok(text[line..line + length].lines().count() + 1)
    }
}

/// The printed table.
fn table() -> Result<(String, [usize; 4]), String> {
    let mut text = "| function | file | lines |\n|---|---|---|\n".to_owned();
    let (mut lines, mut files) = (0, BTreeSet::new());
    let parts = [("", &COMMON[..]), ("plan: ", &PLAN[..]), ("run: ", &RUN[..])];
    for (part, step) in parts.iter().flat_map(|(part, steps)| steps.iter().map(move |step| (part, step))) {
        let CallPathStep(file, name, _) = step;
        let count = step.lines()?;
        text.push_str(&format!("| {part}`{name}` | `{file}` | {count} |\n"));
        lines += count;
        files.insert(*file);
    }
    let deep = COMMON.len() + PLAN.len().max(RUN.len());
    let all = COMMON.len() + PLAN.len() + RUN.len();
    text.push_str(&format!(
        "\n{deep} functions deep to the disk, both times; {all} in all, in {} files, {lines} lines.\n",
        files.len()
    ));
    Ok((text, [deep, all, files.len(), lines]))
}

/// False if a function of the path is not where this file says.
pub(crate) fn run() -> bool {
    match table() {
        Ok((text, _)) => {
            print_status(&text);
            true
        }
        Err(problem) => {
            print_status(&problem);
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::table;
    use crate::root;

    #[test]
    fn the_call_path_is_short_and_documented() {
        let (text, [deep, _, files, lines]) = table().unwrap();
        assert!(deep <= 12 && files <= 8 && lines <= 500, "{text}");
        let architecture = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
        assert!(architecture.contains(&text), "ARCHITECTURE.md should have what `cargo xtask road` prints:\n{text}");
    }
}
