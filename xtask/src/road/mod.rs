//! `cargo xtask road`: the functions that a call crosses, from a trace of the real program.
//!
//! The program is built with LLVM's counters in the crates of this workspace and runs in continuous mode, so that its
//! counters can be read while it waits: for its arguments on the command line, for a message over MCP. What is raised
//! between that moment and the reply is the road of the call: policy, records, approval, commit and rendering are in it,
//! whatever thread they run on. `DEFINITION` says what counts, and is printed with the figures.

mod profraw;
mod scenario;
mod source;
mod symbol;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use profraw::ProfileCounts;
use scenario::{CallTrace, RoadSite};
use serde_json::json;
use source::SourceIndex;
use symbol::parse_symbol;

use crate::{doc_markers, print_status, root};

/// What is counted.
const DEFINITION: &str = "A function counts when it is of this workspace, a person wrote it, its body has more than one line, and it is \
     entered between the moment when the program has its arguments or its message and the moment when the reply is printed. \
     Closures and async bodies count with their function, generic functions once. Bodies of one line are accessors, \
     constructors and forwarding functions; what derives and macros write is not on a page. Parsing the command line, the \
     settings and building the host come before that moment.";

/// The most that a call may cross.
struct RoadCeiling {
    scenario: &'static str,
    /// The ceiling that holds: no call may cross more than it did.
    held: RoadFigures,
    /// The ceiling that is wanted.
    wanted: RoadFigures,
}

/// The size of a road.
#[derive(Clone, Copy)]
struct RoadFigures {
    functions: usize,
    files: usize,
}

const CEILINGS: [RoadCeiling; 4] = [
    RoadCeiling {
        scenario: "read",
        held: RoadFigures { functions: 157, files: 46 },
        wanted: RoadFigures { functions: 30, files: 14 },
    },
    RoadCeiling {
        scenario: "read over MCP",
        held: RoadFigures { functions: 194, files: 62 },
        wanted: RoadFigures { functions: 45, files: 20 },
    },
    RoadCeiling {
        scenario: "write that asks",
        held: RoadFigures { functions: 415, files: 86 },
        wanted: RoadFigures { functions: 50, files: 20 },
    },
    RoadCeiling {
        scenario: "run_code with a commit",
        held: RoadFigures { functions: 495, files: 101 },
        wanted: RoadFigures { functions: 65, files: 24 },
    },
];

/// A function on the road.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RoadFunction {
    file: PathBuf,
    name: String,
    body_lines: usize,
}

/// The functions whose counters rose.
fn functions_between(before: &ProfileCounts, after: &ProfileCounts, index: &mut SourceIndex) -> BTreeSet<RoadFunction> {
    let was = |name: &String| before.get(name).copied().unwrap_or_default();
    let entered = after.iter().filter(|(name, count)| **count > was(name)).filter_map(|(name, _)| parse_symbol(name));
    let ours = entered.filter(|path| path.modules.first().is_some_and(|name| name.starts_with("ringfence")));
    let written = ours.filter_map(|path| {
        let (file, source) = index.find(&path)?;
        let name = path.owner.map_or_else(|| path.function.clone(), |owner| format!("{owner}::{}", path.function));
        Some(RoadFunction { file, name, body_lines: source.body_lines })
    });
    written.filter(|function| function.body_lines > 1).collect()
}

/// The road of one scenario.
struct CallRoad {
    ceiling: &'static RoadCeiling,
    functions: BTreeSet<RoadFunction>,
}

impl CallRoad {
    fn files(&self) -> usize {
        self.functions.iter().map(|function| &function.file).collect::<BTreeSet<_>>().len()
    }

    fn lines(&self) -> usize {
        self.functions.iter().map(|function| function.body_lines).sum()
    }
}

/// Traces every scenario.
fn trace(source: &Path, program: &Path) -> Result<Vec<CallRoad>, String> {
    let scratch = root().join("target/road/site");
    let mut index = SourceIndex::new(source);
    let mut roads = Vec::new();
    for ceiling in &CEILINGS {
        let site = RoadSite::new(program, scratch.clone()).map_err(|error| error.to_string())?;
        let asks = ["--preset", "ask", "--approve", "always"];
        let edits = ["--preset", "edits", "--approve", "always"];
        let write = json!({"path": "note.txt", "content": "bread\n"});
        let code = json!({"language": "bash", "code": "echo bread > note.txt"});
        let CallTrace { before, after } = match ceiling.scenario {
            "read" => site.trace_call(&[], "read_file", &json!({"path": "note.txt"})),
            "read over MCP" => site.trace_mcp_call("read_file", &json!({"path": "note.txt"})),
            "write that asks" => site.trace_call(&asks, "write_file", &write),
            _ => site.trace_call(&edits, "run_code", &code),
        }
        .map_err(|error| format!("{}: {error}", ceiling.scenario))?;
        roads.push(CallRoad { ceiling, functions: functions_between(&before, &after, &mut index) });
    }
    Ok(roads)
}

/// Builds the program with counters in the crates of this workspace, in a directory of its own.
fn build(source: &Path) -> Result<PathBuf, String> {
    let target = source.join("target/road");
    let wrapper = target.join("rustc-with-counters");
    let flags =
        "-C instrument-coverage -C llvm-args=-runtime-counter-relocation -C llvm-args=-enable-name-compression=false";
    let script = format!("#!/bin/sh\nexec \"$@\" {flags} -C debuginfo=0\n");
    let made = fs::create_dir_all(&target)
        .and_then(|()| fs::write(&wrapper, script))
        .and_then(|()| fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)));
    made.map_err(|error| error.to_string())?;
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "-p", "ringfence", "--bin", "ringfence", "--target-dir"]).arg(&target).current_dir(source);
    cargo.env("RUSTC_WORKSPACE_WRAPPER", &wrapper).env("LLVM_PROFILE_FILE", "/dev/null");
    match cargo.status() {
        Ok(status) if status.success() => Ok(target.join("debug/ringfence")),
        _ => Err("the program with counters cannot be built".to_owned()),
    }
}

/// The figures of every scenario.
fn figures(roads: &[CallRoad]) -> String {
    let mut text = "| call | functions | files | lines | held | wanted |\n|---|---|---|---|---|---|\n".to_owned();
    for road in roads {
        let RoadCeiling { scenario, held, wanted } = road.ceiling;
        let ceilings = format!("{} / {} | {} / {}", held.functions, held.files, wanted.functions, wanted.files);
        let (functions, files, lines) = (road.functions.len(), road.files(), road.lines());
        let _ = writeln!(text, "| {scenario} | {functions} | {files} | {lines} | {ceilings} |");
    }
    text
}

/// Traces the calls of this workspace, or of another checkout of it, and prints their roads. A program that was built with
/// counters before is not built again. False if a call crosses more than it may.
pub(crate) fn run(options: &[&str]) -> bool {
    let (source, program) = match options {
        [] => (root(), None),
        [directory] => (PathBuf::from(directory), None),
        [directory, program] => (PathBuf::from(directory), Some(PathBuf::from(program))),
        _ => {
            print_status("usage: cargo xtask road [CHECKOUT [PROGRAM]]");
            return false;
        }
    };
    let program = program.map_or_else(|| build(&source), Ok);
    let roads = match program.and_then(|program| trace(&source, &program)) {
        Ok(roads) => roads,
        Err(problem) => {
            print_status(&problem);
            return false;
        }
    };
    for road in &roads {
        print_status(&format!("{}:", road.ceiling.scenario));
        for RoadFunction { file, name, body_lines } in &road.functions {
            print_status(&format!("  {} {name} {body_lines}", file.display()));
        }
    }
    let figures = figures(&roads);
    print_status(&format!("{DEFINITION}\n\n{figures}"));
    let is_within = |road: &CallRoad| {
        road.functions.len() <= road.ceiling.held.functions && road.files() <= road.ceiling.held.files
    };
    let is_written = source != root() || doc_markers::write("ARCHITECTURE.md", "road", &figures);
    is_written && roads.iter().all(is_within)
}

#[cfg(test)]
mod tests {
    use super::CEILINGS;
    use crate::root;

    #[test]
    fn no_documented_road_is_longer_than_it_may_be() {
        let page = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
        for ceiling in &CEILINGS {
            let row = page.lines().find(|line| line.starts_with(&format!("| {} |", ceiling.scenario)));
            let row = row.expect("`cargo xtask road` writes a row for each scenario");
            let figures: Vec<usize> = row.split('|').filter_map(|cell| cell.trim().parse().ok()).collect();
            let [functions, files, _] = figures[..] else { panic!("{row}") };
            assert!(functions <= ceiling.held.functions && files <= ceiling.held.files, "{row}");
        }
    }
}
