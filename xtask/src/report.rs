//! `cargo xtask bench … --json` and `--write`: what a bench printed, as JSON, or as a block of `docs/benchmarks.md`.
//!
//! The bench runs as it always does, in a process of its own, and its lines are passed on as they come. So a figure in the
//! documentation is one that was printed, beside the machine that it was printed on and the command that prints it again.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::{doc_markers, print_status};

const DOCUMENT: &str = "docs/benchmarks.md";

/// First words of cargo's own output.
const CARGO_NOISE: [&str; 7] = ["cargo ", "Compiling", "Finished", "Running", "Blocking", "Downloading", "Downloaded"];

/// Runs a bench, and reports it. False if it failed, or could not be reported.
pub(crate) fn report(words: &[&str], as_json: bool, write: bool) -> bool {
    let before = machine();
    let Some(lines) = lines_of(words) else { return false };
    let name = words.join(" ");
    if as_json && !print_json(&name, &before, &lines) {
        return false;
    }
    !write || write_block(&name, &before, &lines)
}

/// The output, or `None` if it failed.
fn lines_of(words: &[&str]) -> Option<Vec<String>> {
    let mut child = Command::new("sh")
        .args(["-c", "exec \"$0\" \"$@\" 2>&1"])
        .arg(std::env::current_exe().ok()?)
        .arg("bench")
        .args(words)
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    let mut lines = Vec::new();
    for line in BufReader::new(child.stdout.take()?).lines() {
        let line = line.ok()?;
        print_status(&line);
        if !CARGO_NOISE.iter().any(|noise| line.trim_start().starts_with(noise)) {
            lines.push(line.trim_end().to_owned());
        }
    }
    child.wait().ok()?.success().then_some(lines)
}

/// The machine in a line: how many cores of what, which kernel, and how busy it is.
pub(crate) fn machine() -> String {
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
    let processors = read("/proc/cpuinfo");
    let named = |key: &str| {
        let line = processors.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let model = named("model name").unwrap_or_else(|| "an unknown processor".to_owned());
    let kernel = read("/proc/sys/kernel/osrelease");
    let kernel = kernel.split('-').next().unwrap_or_default();
    let load = read("/proc/loadavg");
    let load = load.split(' ').next().unwrap_or_default();
    format!("{cores} cores of {model}, Linux {}, load {load} at the start", kernel.trim())
}

#[expect(clippy::print_stdout, reason = "this is what `--json` is for")]
fn print_json(name: &str, machine: &str, lines: &[String]) -> bool {
    let figures: Vec<Value> = lines.iter().filter_map(|line| figure(line)).collect();
    let report = json!({"bench": name, "machine": machine, "figures": figures});
    println!("{report:#}");
    std::io::stdout().flush().is_ok()
}

/// A line with numbers in it: what it is about, and the numbers with their units. `None` for prose.
fn figure(line: &str) -> Option<Value> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let start = line.find("  ").filter(|_| !line.starts_with(' ')).or_else(|| {
        let indent = line.len() - line.trim_start().len();
        line[indent..].find("  ").map(|at| at + indent)
    })?;
    let title = line[..start].trim();
    let numbers: Vec<Value> = words
        .iter()
        .enumerate()
        .skip(title.split_whitespace().count())
        .filter_map(|(at, word)| {
            let (value, attached) = number(word)?;
            let next = words.get(at + 1).filter(|next| number(next).is_none() && attached.is_empty());
            let unit = next.map_or(attached, |next| next.trim_matches([',', '(', ')', ';']).to_owned());
            Some(json!({"value": value, "unit": unit}))
        })
        .collect();
    (!numbers.is_empty()).then(|| json!({"title": title, "numbers": numbers, "line": line.trim()}))
}

/// A word that begins with a number, and what is attached to it, such as `12.5ms`.
fn number(word: &str) -> Option<(f64, String)> {
    let word = word.trim_matches([',', '(', ')', ';']);
    let end = word.find(|c: char| !c.is_ascii_digit() && c != '.' && c != ',').unwrap_or(word.len());
    let value = word[..end].replace(',', "").parse().ok()?;
    Some((value, word[end..].to_owned()))
}

/// Writes the lines between their marks in the document.
fn write_block(name: &str, machine: &str, lines: &[String]) -> bool {
    doc_markers::write(DOCUMENT, &format!("bench {name}"), &block(name, machine, lines))
}

fn block(name: &str, machine: &str, lines: &[String]) -> String {
    // Where there are tables at the end, they have all of it. Text in columns stays as it is.
    let text = match lines.iter().position(|line| line.starts_with('|')) {
        Some(tables) => lines[tables..].join("\n").trim_matches('\n').to_owned(),
        None => format!("```text\n{}\n```", lines.join("\n").trim_matches('\n')),
    };
    format!("`cargo xtask bench {name}`, on {machine}:\n\n{text}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{block, figure};

    #[test]
    fn a_line_of_figures_is_a_title_and_numbers_with_units() {
        for (line, title, numbers) in [
            ("  ours                     7.5 MB   12.0 MB", "ours", json!([[7.5, "MB"], [12.0, "MB"]])),
            ("the call alone                    26.3 µs", "the call alone", json!([[26.3, "µs"]])),
            ("read 4 KiB   1,253 / 684 a second", "read 4 KiB", json!([[1253.0, "/"], [684.0, "a"]])),
            ("  ours   best 12.5ms (1.20)", "ours", json!([[12.5, "ms"], [1.2, ""]])),
        ] {
            let found = figure(line).unwrap();
            let pairs: Vec<_> =
                found["numbers"].as_array().unwrap().iter().map(|n| json!([n["value"], n["unit"]])).collect();
            assert_eq!((&found["title"], json!(pairs)), (&json!(title), numbers), "{line}");
        }
        assert_eq!(figure("200 rounds, interleaved"), None);
        assert_eq!(figure(""), None);
    }

    #[test]
    fn a_block_has_the_tables_or_what_was_set_in_columns() {
        let block =
            |lines: &[&str]| block("fs", "a machine", &lines.iter().map(|&line| line.into()).collect::<Vec<_>>());
        let head = "`cargo xtask bench fs`, on a machine:\n\n";
        assert_eq!(block(&["said first", "| a |", "| 1 |", ""]), format!("{head}| a |\n| 1 |"));
        assert_eq!(block(&["", "a  1"]), format!("{head}```text\na  1\n```"));
    }
}
