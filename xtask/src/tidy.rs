//! Tidiness, as tests: what the lints cannot say about this repository.

use std::fs;
use std::path::{Path, PathBuf};

use crate::vocabulary::{ENFORCED, Repository, largest_cycle};

const MAX_FILE_LINES: usize = 700;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Every Rust file below a directory, with its text.
fn sources(below: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut left = vec![repository().join(below)];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(repository()).unwrap().display().to_string();
                found.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(!found.is_empty(), "no source below {below}");
    found
}

/// Files below a directory that have one of these words in their code, without modules of tests.
fn files_with(below: &str, words: &[&str]) -> Vec<String> {
    let has = |text: &str| {
        // A module of tests is the last thing in a file.
        let mut ends = text.match_indices("#[cfg(test)]\n").map(|(at, _)| at);
        let is_module = |at: &usize| {
            let mut lines = text[*at..].lines().skip_while(|line| line.starts_with("#["));
            lines
                .next()
                .is_some_and(|line| line.trim_start_matches("pub(crate) ").starts_with("mod ") && line.ends_with('{'))
        };
        let code = &text[..ends.find(is_module).unwrap_or(text.len())];
        code.lines()
            .filter(|line| !line.trim_start().starts_with("//"))
            .any(|line| words.iter().any(|word| line.contains(word)))
    };
    let sources = sources(below);
    let of_tests: Vec<String> = sources.iter().flat_map(|(name, text)| test_modules(name, text)).collect();
    let mut files: Vec<String> = sources
        .into_iter()
        .filter(|(name, text)| !of_tests.contains(name) && has(text))
        .map(|(name, _)| name)
        .collect();
    files.sort();
    files
}

/// Files that a file declares as modules of tests.
fn test_modules(name: &str, text: &str) -> Vec<String> {
    let directory = match name.rsplit_once('/') {
        Some((above, "lib.rs" | "main.rs" | "mod.rs")) => above.to_owned(),
        _ => name.trim_end_matches(".rs").to_owned(),
    };
    let declared = text.split("#[cfg(test)]\n").skip(1).filter_map(|rest| {
        let declaration = rest.lines().next()?.trim_start_matches("pub(crate) ");
        declaration.strip_prefix("mod ")?.strip_suffix(';')
    });
    declared.map(|module| format!("{directory}/{module}.rs")).collect()
}

#[test]
fn every_file_opens_by_saying_what_it_is() {
    for (name, text) in sources("crates").into_iter().chain(sources("xtask")) {
        assert!(text.starts_with("//! "), "{name} has no header");
    }
}

#[test]
fn files_are_one_thing_each() {
    for (name, text) in sources("crates").into_iter().filter(|(name, _)| name.contains("/src/")) {
        assert!(text.lines().count() <= MAX_FILE_LINES, "{name} is longer than {MAX_FILE_LINES} lines");
    }
}

#[test]
fn no_module_is_the_file_of_another_crate() {
    for (name, text) in sources("crates").into_iter().chain(sources("xtask")) {
        let lines = text.lines().map(str::trim_start);
        let paths = lines.filter_map(|line| line.strip_prefix("#[path = \"")?.split('"').next());
        // Up to the directory of the crate, which has `src` and `tests`, and no further.
        let crate_depth = if name.starts_with("xtask/") { 1 } else { 2 };
        let depth = name.split('/').count() - 1 - crate_depth;
        for path in paths {
            let above = path.split('/').take_while(|part| *part == "..").count();
            assert!(above <= depth && !path.starts_with('/'), "{name} has {path} of another crate as a module");
        }
    }
}

#[test]
fn regular_files_are_opened_in_one_file() {
    let crates = ["fs", "audit", "crewagent", "front-matter", "project", "sys"];
    let openers = crates
        .iter()
        .flat_map(|name| files_with(&format!("crates/ringfence-{name}/src"), &["openat(", "openat2(", "open_with("]));
    let allowed = [
        ("sys/src/syscall.rs", "the calls themselves, for the others"),
        ("sys/src/directory_watch.rs", "the mount table, and the limit of watches"),
        ("sys/src/own_files.rs", "our own state directory"),
        ("audit/src/lib.rs", "the audit log, in our own state directory"),
        ("project/src/project_files.rs", "manifests, below a held directory that masks secrets"),
        ("fs/src/fence.rs", "the roots of mounts, and our own state directory"),
        ("fs/src/journal/checkpoint.rs", "the checkpoint of the journal, in our own state directory"),
        ("fs/src/journal/images.rs", "what is kept to undo changes, in a directory of our own"),
        ("fs/src/journal/log.rs", "the journal of changes, in our own state directory"),
        ("fs/src/lock.rs", "lock files, in our own state directory"),
        ("fs/src/mount/mod.rs", "directories that are listed"),
        ("fs/src/overlay/home_files.rs", "the person's home directory, where files of a profile go back"),
        ("fs/src/overlay/lower_sync.rs", "directories of a running overlay, in which secrets are hidden"),
        ("fs/src/overlay/stage.rs", "what is about to be committed, in a directory of our own"),
        ("fs/src/overlay/tree_removal.rs", "directories of a layer that is removed"),
        ("fs/src/overlay/upper.rs", "the layer that a program left, which is no mount's"),
        ("fs/src/overlay/upper_cover.rs", "the upper directory of a running overlay, outside of every mount"),
        ("fs/src/overlay/view.rs", "a file without a name, to ask for the time"),
        ("fs/src/root/mod.rs", "contents, and directories that are held"),
        ("fs/src/root/resolver.rs", "the resolvers themselves"),
        ("fs/src/root/walk.rs", "directories that are held"),
        ("fs/src/txn/stage.rs", "a file that is to be written, without a name or with a temporary one"),
        ("fs/src/txn/step.rs", "a directory that gets other permissions"),
    ];
    for opener in openers {
        assert!(allowed.iter().any(|(file, _)| opener.ends_with(&format!("ringfence-{file}"))), "{opener} opens files");
    }
}

#[test]
fn mounts_of_a_workflow_run_are_named_by_crewagent_only() {
    let allowed = [
        ("-kernel/src/dialect.rs", "the name of the workspace in each dialect, as rules match it"),
        ("-fs/src/fence.rs", "an example of an alias"),
        ("-fs/src/tools/list_directory.rs", "the description of an argument in the dialect"),
        ("-fs/src/tools/patch_args.rs", "the description of an argument in the dialect"),
        ("-fs/src/tools/read_file.rs", "the description of an argument in the dialect"),
        ("-fs/src/tools/search_files.rs", "the description of an argument in the dialect"),
        ("-fs/src/tools/write_file.rs", "the description of an argument in the dialect"),
        ("/src/agent/system_prompt.rs", "the path of the instructions in the dialect"),
        ("/src/agent/tool_prompt.rs", "the mounts that the model is told of"),
        ("/src/api/hosts.rs", "the run of a session"),
        ("/src/api/sessions.rs", "the run of a session, in the API reference"),
        ("/src/app/mod.rs", "the guard of the state, from the crate that has it"),
        ("/src/cli/common_options.rs", "the help of `--workflow-run`"),
        ("/src/config/mod.rs", "the run of a session"),
        ("/src/mcp/instructions.rs", "the mounts that the client is told of"),
    ];
    for name in ["-kernel", "-fs", "-sandbox", "-web", "-agent", ""] {
        for (file, text) in sources(&format!("crates/ringfence{name}/src")) {
            // Comments too: those of arguments are descriptions that people and models read.
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            let is_named = ["@project", "@state", "\"project\""].iter().any(|word| code.contains(word));
            let is_allowed = allowed.iter().any(|(file_end, _)| file == format!("crates/ringfence{file_end}"));
            assert!(!is_named || is_allowed, "{file} names a mount of a workflow run");
        }
    }
    assert_eq!(files_with("crates/ringfence-fs/src", &["\"state\"", "\"project\""]), [""; 0]);
}

#[test]
fn tickets_are_issued_by_invocations_only() {
    assert_eq!(files_with("crates", &["Ticket::new("]), ["crates/ringfence-kernel/src/invocation.rs"]);
}

#[test]
fn requests_are_answered_by_the_waiting_call_and_the_inbox_only() {
    let mut answering = files_with("crates", &["store.answer("]);
    // The suite that every store is held to, in the testkit, answers too.
    answering.retain(|file| file.contains("/src/") && !file.starts_with("crates/ringfence-testkit/"));
    assert_eq!(answering, ["crates/ringfence-kernel/src/ask_approval.rs", "crates/ringfence-kernel/src/inbox.rs"]);
}

#[test]
fn workspaces_are_trusted_and_sessions_resumed_by_approval_commands_only() {
    assert_eq!(
        files_with("crates/ringfence/src", &["store.trust(", "inbox.resume_session(", "desk.resume_session("]),
        ["crates/ringfence/src/api/approvals.rs", "crates/ringfence/src/cli/approvals.rs"]
    );
}

/// Files of the program, without tests, examples and benchmarks, that have one of these words in their code.
fn program_files_with(words: &[&str]) -> Vec<String> {
    let mut files = files_with("crates", words);
    files.retain(|file| file.contains("/src/") && !file.contains("/tests/"));
    files
}

#[test]
fn connections_are_opened_in_one_file() {
    let words = ["TcpStream::connect", "TcpSocket", "to_socket_addrs(", "lookup_host("];
    let (dial, ports) = ("crates/ringfence-net/src/dial.rs", "crates/ringfence-sandbox/src/published_ports.rs");
    assert_eq!(program_files_with(&words), [dial, ports]);
    // Those of published ports are in the network of a jail: its spawner makes them, and they lead nowhere else.
    let made = ["TcpStream::connect", "TcpSocket::new", "to_socket_addrs(", "lookup_host("];
    assert!(!program_files_with(&made).contains(&ports.to_owned()));
    // A socket for datagrams could send them anywhere. These only answer questions of a jail.
    let datagrams = [
        "crates/ringfence-sandbox/src/name_network.rs",
        "crates/ringfence-web/src/egress_proxy.rs",
        "crates/ringfence-web/src/name_server.rs",
    ];
    assert_eq!(program_files_with(&["UdpSocket"]), datagrams);
}

#[test]
fn tls_http_requests_and_event_streams_have_one_implementation_each() {
    assert_eq!(program_files_with(&["ClientConfig::builder"]), ["crates/ringfence-net/src/tls.rs"]);
    assert_eq!(program_files_with(&["ServerConfig::builder"]), ["crates/ringfence-net/src/tls_server.rs"]);
    assert_eq!(
        program_files_with(&["client::conn"]),
        ["crates/ringfence-net/src/exchange.rs", "crates/ringfence-net/src/relay.rs"]
    );
    // The field of an event, as a parser of bytes or of text spells it.
    let fields = ["b\"data\"", "(b\"data:", "(\"data:"];
    let parsers: Vec<String> = program_files_with(&fields);
    assert_eq!(parsers, ["crates/ringfence-net/src/sse.rs"]);
}

#[test]
fn programs_are_started_in_one_file() {
    assert_eq!(
        files_with("crates/ringfence/src", &["Command::new("]),
        ["crates/ringfence/src/process/program_launcher.rs"]
    );
}

#[test]
fn only_the_frontends_print() {
    let printers = files_with(
        "crates/ringfence/src",
        &["std::io::stdout()", "std::io::stderr()", "(io::stdout()", "(io::stderr()"],
    );
    // The third passes on what a wrapped program prints.
    let names = ["app/mod", "cli/mod", "cli/wrapped_run/mod", "process/messages", "process/progress"];
    assert_eq!(printers, names.map(|name| format!("crates/ringfence/src/{name}.rs")));
}

#[test]
fn the_continuous_check_runs_the_readmes_test_command() {
    let read = |name: &str| fs::read_to_string(repository().join(name)).unwrap();
    assert!(read(".ci/run").contains("exec cargo xtask test\n"));
    assert!(read(".github/workflows/ci.yml").contains("        run: cargo xtask test\n"));
    assert!(read("README.md").contains("$ cargo xtask test\n"));
}

#[test]
fn the_changelog_has_the_version_below_what_is_unreleased() {
    let changelog = fs::read_to_string(repository().join("CHANGELOG.md")).unwrap();
    let headings: Vec<&str> = changelog.lines().filter(|line| line.starts_with("## ")).collect();
    assert_eq!(headings[0], "## [Unreleased]");
    let version = format!("## [{}] - ", env!("CARGO_PKG_VERSION"));
    assert!(headings[1].starts_with(&version), "{} is not `{version}…`", headings[1]);
}

#[test]
fn modules_of_the_kernel_import_in_the_direction_that_the_architecture_page_states() {
    let page = fs::read_to_string(repository().join("ARCHITECTURE.md")).unwrap();
    let (_, section) = page.split_once("`crates/ringfence-kernel/src`: each module imports").unwrap();
    let lines = section.lines().skip_while(|line| !line.starts_with("| `")).take_while(|line| line.starts_with("| `"));
    let cells = lines.map(|line| line.split('|').nth(1).unwrap());
    let rows: Vec<Vec<&str>> = cells.map(|cell| cell.split('`').skip(1).step_by(2).collect()).collect();
    let row_of = |module: &str| rows.iter().position(|row| row.contains(&module));
    let read = Repository::read(&repository()).unwrap();
    let imports = read.imports("ringfence-kernel").unwrap();
    for (module, imported) in imports {
        for other in imported {
            let (row, above) = (row_of(module), row_of(other));
            assert!(row.is_some() && above.is_some(), "`{module}` or `{other}` is in no row");
            assert!(above <= row, "`{module}` imports `{other}`, which is in a row below it");
        }
    }
    assert_eq!(largest_cycle(imports), [""; 0]);
    for (name, _) in sources("crates/ringfence-kernel/src") {
        let module = name["crates/ringfence-kernel/src/".len()..].split(['/', '.']).next().unwrap();
        assert!(module == "lib" || row_of(module).is_some(), "`{module}` is in no row");
    }
}

#[test]
fn names_modules_and_words_stay_within_their_limits() {
    let measurements = Repository::read(&repository()).unwrap().measurements();
    for limit in ENFORCED {
        let found = measurements.iter().find(|measurement| measurement.limit == *limit).unwrap();
        let (title, details) = (found.title, found.details.join("\n"));
        assert!(found.holds(), "{title}: {}, limit {}\n{details}", found.value, found.most);
    }
}
