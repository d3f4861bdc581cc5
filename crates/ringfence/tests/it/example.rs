//! The worked run in `examples/crew`: every command of its README is run, and prints what the README shows.

use std::path::Path;

use crate::site::{PROGRAM, Site};

/// A command and what it prints, as the README has them.
#[derive(Debug)]
struct Shown {
    command: String,
    output: String,
}

#[test]
fn the_worked_run_prints_what_its_readme_shows() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/crew");
    let site = Site::new();
    copy_tree(&example, &site.current);
    let program = Path::new(PROGRAM).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let shown = commands(&std::fs::read_to_string(example.join("README.md")).unwrap());
    assert!(shown.len() > 15, "only {} commands were found", shown.len());
    for Shown { command, output } in shown {
        let mut shell = site.program("sh");
        shell.args(["-c", &command]).env("PATH", &path).env("RINGFENCE_CONFIG", "config.toml");
        let done = shell.output().unwrap();
        let printed = String::from_utf8(done.stdout).unwrap();
        let complained = String::from_utf8_lossy(&done.stderr);
        assert!(agrees(printed.trim_end(), &output), "{command}\nprinted:\n{printed}{complained}\nshown:\n{output}");
    }
    let state = walk(&site.state).into_iter().find(|path| path.ends_with("workflow.md")).unwrap();
    let state = std::fs::read_to_string(state).unwrap();
    for line in ["currentNodeId: \"done\"", "stepsCompleted: [\"gather\", \"draft\", \"review\", \"done\"]"] {
        assert!(state.contains(line), "{line} is not in:\n{state}");
    }
}

/// Everything in the blocks of the README that begins with `$ `, with the lines below it.
fn commands(text: &str) -> Vec<Shown> {
    let mut shown: Vec<Shown> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        match line {
            "```console" => inside = true,
            "```" => inside = false,
            _ if !inside => {}
            _ => match (line.strip_prefix("$ "), shown.last_mut()) {
                (Some(command), _) => shown.push(Shown { command: command.to_owned(), output: String::new() }),
                (None, Some(last)) if last.output.is_empty() => line.clone_into(&mut last.output),
                (None, Some(last)) => last.output = format!("{}\n{line}", last.output),
                (None, None) => panic!("output without a command: {line}"),
            },
        }
    }
    shown
}

/// Whether a text is what the README shows, where `…` stands for anything.
fn agrees(printed: &str, shown: &str) -> bool {
    let mut parts = shown.split('…');
    let mut rest = match printed.strip_prefix(parts.next().unwrap_or_default()) {
        Some(rest) => rest,
        None => return false,
    };
    let parts: Vec<&str> = parts.collect();
    for (index, part) in parts.iter().enumerate() {
        let found = if index + 1 == parts.len() {
            rest.ends_with(part).then(|| rest.len() - part.len())
        } else {
            rest.find(part)
        };
        match found {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.is_empty()
}

fn copy_tree(from: &Path, to: &Path) {
    for path in walk(from) {
        let copy = to.join(path.strip_prefix(from).unwrap());
        std::fs::create_dir_all(copy.parent().unwrap()).unwrap();
        std::fs::copy(&path, copy).unwrap();
    }
}

fn walk(directory: &Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(walk(&path)) } else { files.push(path) }
    }
    files.sort();
    files
}
