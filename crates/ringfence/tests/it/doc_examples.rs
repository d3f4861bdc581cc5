//! Pages whose commands are run, and print what the pages show: the README, the worked run in `examples/crew`, a session in
//! each dialect; and the program that shows the library.

use std::path::{Path, PathBuf};

use ringfence_kernel::Dialect;

use crate::site::{PROGRAM, TestSite, cli_output};

/// A command and what it prints, as a page has them.
#[derive(Debug)]
struct PageCommand {
    command: String,
    output: String,
}

#[test]
fn the_worked_run_prints_what_its_readme_shows() {
    let example = repository().join("examples/crew");
    let site = TestSite::new();
    copy_tree(&example, &site.current);
    let count = run_page(&site, &example.join("README.md"));
    assert!(count > 15, "only {count} commands were found");
    let state = walk(&site.state).into_iter().find(|path| path.ends_with("workflow.md")).unwrap();
    let state = std::fs::read_to_string(state).unwrap();
    for line in ["currentNodeId: \"done\"", "stepsCompleted: [\"gather\", \"draft\", \"review\", \"done\"]"] {
        assert!(state.contains(line), "{line} is not in:\n{state}");
    }
}

#[test]
fn the_session_of_the_readme_prints_what_it_shows() {
    let page = std::fs::read_to_string(repository().join("README.md")).unwrap();
    let shown: Vec<PageCommand> =
        commands(&page).into_iter().filter(|shown| shown.command.starts_with("ringfence ")).collect();
    assert!(shown.len() > 3, "only {} commands were found", shown.len());
    run_commands(&TestSite::new(), &shown);
}

#[test]
fn the_sessions_of_the_dialects_print_what_their_pages_show() {
    for dialect in Dialect::ALL.map(Dialect::name) {
        let site = TestSite::new();
        let count = run_page(&site, &repository().join(format!("docs/dialects/{dialect}.md")));
        assert!(count > 10, "only {count} commands of {dialect} were found");
    }
}

#[test]
fn the_program_of_the_library_s_page_is_the_one_that_is_built_and_reads_a_file() {
    let page = std::fs::read_to_string(repository().join("docs/library.md")).unwrap();
    let source = std::fs::read_to_string(repository().join("crates/ringfence/examples/library.rs")).unwrap();
    assert!(page.contains(&format!("```rust\n{source}```\n")), "docs/library.md does not have examples/library.rs");
    let site = TestSite::new();
    site.write("notes/today.md", "milk\n");
    let tests = std::env::current_exe().unwrap();
    let program = tests.parent().unwrap().parent().unwrap().join("examples/library");
    let said = cli_output(site.program(program).arg(&site.workspace).arg("notes/today.md").output().unwrap());
    assert_eq!(said.value()["content"], "milk\n");
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs every command of a page, and compares what it prints. Gives how many there were.
fn run_page(site: &TestSite, page: &Path) -> usize {
    let shown = commands(&std::fs::read_to_string(page).unwrap());
    run_commands(site, &shown);
    shown.len()
}

fn run_commands(site: &TestSite, shown: &[PageCommand]) {
    let program = Path::new(PROGRAM).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    for PageCommand { command, output } in shown {
        let mut shell = site.program("sh");
        shell.args(["-c", command]).env("PATH", &path);
        if site.current.join("config.toml").exists() {
            shell.env("RINGFENCE_CONFIG", "config.toml");
        }
        let done = shell.output().unwrap();
        let printed = String::from_utf8(done.stdout).unwrap();
        let complained = String::from_utf8_lossy(&done.stderr);
        assert!(agrees(printed.trim_end(), output), "{command}\nprinted:\n{printed}{complained}\nshown:\n{output}");
    }
}

/// Everything in the blocks of a page that begins with `$ `, with the lines below it.
fn commands(text: &str) -> Vec<PageCommand> {
    let mut shown: Vec<PageCommand> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        match line {
            "```console" => inside = true,
            "```" => inside = false,
            _ if !inside => {}
            _ => match (line.strip_prefix("$ "), shown.last_mut()) {
                (Some(command), _) => shown.push(PageCommand { command: command.to_owned(), output: String::new() }),
                (None, Some(last)) if last.output.is_empty() => line.clone_into(&mut last.output),
                (None, Some(last)) => last.output = format!("{}\n{line}", last.output),
                (None, None) => panic!("output without a command: {line}"),
            },
        }
    }
    // A block may have an empty line between two commands.
    shown.iter_mut().for_each(|shown| shown.output.truncate(shown.output.trim_end().len()));
    shown
}

/// Whether a text is what a page shows, where `…` stands for anything.
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

fn walk(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(walk(&path)) } else { files.push(path) }
    }
    files.sort();
    files
}
