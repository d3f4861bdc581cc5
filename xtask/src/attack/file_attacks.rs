//! The catalogue of attacks as calls: spellings, links, special files, contents, and malformed protocol lines.
//!
//! Every server gets each of them on a stage of its own, by the same client. Not here: what happens at the same time
//! (`races.rs`).

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::{Value, json};

use super::mcp_client::{AttackClient, AttackReply};
use super::peer_servers::{ControlMode, FileOperation, ServerProgram, edit_call, programs, tool_call};
use super::scoreboard::{AttackOutcome, ScoreCell, ScoreRow, Scoreboard};
use super::testbed::{AttackTestbed, secret};
use crate::print_status;

type AttackTries = Vec<(&'static str, AttackOutcome)>;

/// A path that leads outside. `{BASE}` is where workspace and outside lie, `{R}` the rest of the path below outside.
struct EscapePath {
    name: &'static str,
    path: &'static str,
    operations: &'static [FileOperation],
    plant: fn(&AttackTestbed) -> io::Result<()>,
}

const ALL_OPERATIONS: &[FileOperation] = &[
    FileOperation::Read,
    FileOperation::Info,
    FileOperation::List,
    FileOperation::Find,
    FileOperation::Search,
    FileOperation::Write,
    FileOperation::Edit,
    FileOperation::MakeDirectory,
    FileOperation::MoveOut,
    FileOperation::MoveIn,
];
/// Operations on a path that is a file and has no rest.
const FILE_OPERATIONS: &[FileOperation] =
    &[FileOperation::Read, FileOperation::Write, FileOperation::Edit, FileOperation::MoveOut];

/// A path that is a link itself, which a call may have replaced: it is planted again for the next one.
const LINK_NAME: &str = "link";

const fn escape_path(name: &'static str, path: &'static str) -> EscapePath {
    EscapePath { name, path, operations: ALL_OPERATIONS, plant: |_| Ok(()) }
}

const ESCAPE_PATHS: &[EscapePath] = &[
    escape_path("`../x`", "../outside/{R}"),
    escape_path("`sub/../../x`", "sub/../../outside/{R}"),
    escape_path(
        "forty dots and an absolute path",
        "../../../../../../../../../../../../../../../../../../..{BASE}/outside/{R}",
    ),
    escape_path("an absolute path", "{BASE}/outside/{R}"),
    escape_path("an absolute path with two slashes", "/{BASE}/outside/{R}"),
    escape_path("a sibling whose name begins like the workspace's", "{BASE}/ws-evil/{R}"),
    escape_path("`/proc/self/root`", "/proc/self/root{BASE}/outside/{R}"),
    escape_path("`/proc/self/cwd/..`", "/proc/self/cwd/../outside/{R}"),
    escape_path("a `file:` URL", "file://{BASE}/outside/{R}"),
    escape_path("`~`", "~/{R}"),
    escape_path("`$HOME`", "$HOME/{R}"),
    escape_path("percent-encoded dots", "%2e%2e/outside/{R}"),
    escape_path("dots encoded twice", "%252e%252e%252foutside/{R}"),
    escape_path("backslashes", "..\\outside\\{R}"),
    escape_path("look-alike dots and slashes", "\u{ff0e}\u{ff0e}\u{ff0f}outside/{R}"),
    escape_path("spaces in front", " ../outside/{R}"),
    EscapePath {
        name: "a link to a file, absolute",
        path: LINK_NAME,
        operations: FILE_OPERATIONS,
        plant: |stage| symlink(stage.outside().join("secret.txt"), stage.workspace().join("link")),
    },
    EscapePath {
        name: "a link to a file, relative",
        path: LINK_NAME,
        operations: FILE_OPERATIONS,
        plant: |stage| symlink("../outside/secret.txt", stage.workspace().join("link")),
    },
    EscapePath {
        name: "a link to a directory, absolute",
        path: "link/{R}",
        operations: ALL_OPERATIONS,
        plant: |stage| symlink(stage.outside(), stage.workspace().join("link")),
    },
    EscapePath {
        name: "a link to a directory, relative",
        path: "sub/link/{R}",
        operations: ALL_OPERATIONS,
        plant: |stage| symlink("../../outside", stage.workspace().join("sub/link")),
    },
    EscapePath {
        name: "a chain of links",
        path: "one/{R}",
        operations: ALL_OPERATIONS,
        plant: |stage| {
            symlink("two", stage.workspace().join("one"))?;
            symlink("sub/three", stage.workspace().join("two"))?;
            symlink("../../outside", stage.workspace().join("sub/three"))
        },
    },
    EscapePath {
        name: "dots behind a link",
        path: "link/../{R}",
        operations: ALL_OPERATIONS,
        plant: |stage| {
            fs::create_dir(stage.outside().join("canary-5d1c/below"))?;
            symlink(stage.outside().join("canary-5d1c"), stage.workspace().join("link"))
        },
    },
    EscapePath {
        name: "a link to the root of the process",
        path: "link{BASE}/outside/{R}",
        operations: ALL_OPERATIONS,
        plant: |stage| symlink("/proc/self/root", stage.workspace().join("link")),
    },
    EscapePath {
        name: "a dangling link, written through",
        path: LINK_NAME,
        operations: &[FileOperation::Write],
        plant: |stage| symlink(stage.outside().join("new.txt"), stage.workspace().join("link")),
    },
    EscapePath {
        name: "a link out of a searched tree",
        path: ".",
        operations: &[FileOperation::Find, FileOperation::Search],
        plant: |stage| symlink(stage.outside(), stage.workspace().join("sub/link")),
    },
    EscapePath {
        name: "the target of a link, revealed by an error",
        path: LINK_NAME,
        operations: &[FileOperation::Read, FileOperation::Write, FileOperation::List],
        plant: |stage| symlink(stage.outside().join("canary-5d1c"), stage.workspace().join("link")),
    },
    EscapePath {
        name: "a hard link to a file outside, changed",
        path: LINK_NAME,
        operations: &[FileOperation::Write],
        plant: |stage| fs::hard_link(stage.outside().join("secret.txt"), stage.workspace().join("link")),
    },
];

/// A case that is not about a path: one run, which reports the result of each attempt.
struct ServerAttackCase {
    name: &'static str,
    run: fn(&mut AttackTrial) -> io::Result<AttackTries>,
}

const CASES: &[ServerAttackCase] = &[
    ServerAttackCase { name: "the same argument twice in one call", run: duplicate_argument_case },
    ServerAttackCase {
        name: "a FIFO without a writer",
        run: |trial| {
            trial.stage.pipe("pipe")?;
            Ok(trial.perform_all("pipe", &[FileOperation::Read, FileOperation::Edit]))
        },
    },
    ServerAttackCase {
        name: "a FIFO in a searched tree",
        run: |trial| {
            trial.stage.pipe("sub/pipe")?;
            Ok(trial.perform_all("sub", &[FileOperation::Search]))
        },
    },
    ServerAttackCase {
        name: "a file of 64 MiB, read whole",
        run: |trial| {
            trial.stage.write("large", "text\n".repeat((64 << 20) / 5))?;
            Ok(trial.perform_all("large", &[FileOperation::Read]))
        },
    },
    ServerAttackCase {
        name: "a line of 64 MiB",
        run: |trial| {
            trial.stage.write("large", "text ".repeat((64 << 20) / 5))?;
            Ok(trial.perform_all("large", &[FileOperation::Read]))
        },
    },
    ServerAttackCase {
        name: "a directory of 20,000 entries",
        run: |trial| {
            for number in 0..20_000 {
                trial.stage.write(&format!("many/{}-{number}", "entry".repeat(12)), "")?;
            }
            Ok(trial.perform_all("many", &[FileOperation::List]))
        },
    },
    ServerAttackCase { name: "a binary file, read as text", run: binary_case },
    ServerAttackCase {
        name: "a file that is not UTF-8, edited",
        run: |trial| edit_case(trial, b"caf\xe9\nhere\n", b"caf\xe9\nthere\n"),
    },
    ServerAttackCase {
        name: "CRLF, edited",
        run: |trial| edit_case(trial, b"one\r\nhere\r\ntwo\r\n", b"one\r\nthere\r\ntwo\r\n"),
    },
    ServerAttackCase {
        name: "a byte order mark, edited",
        run: |trial| edit_case(trial, b"\xef\xbb\xbfone\nhere\n", b"\xef\xbb\xbfone\nthere\n"),
    },
    ServerAttackCase {
        name: "an edit with two matches",
        run: |trial| edit_case(trial, b"here\nor here\n", b"here\nor here\n"),
    },
    ServerAttackCase {
        name: "permissions of a changed file",
        run: |trial| {
            trial.stage.write("tool", "here\n")?;
            trial.stage.set_mode("tool", 0o750)?;
            trial.edit("tool", "here", "there");
            let kept = trial.stage.mode("tool") == 0o750;
            Ok(vec![("edit", if kept { AttackOutcome::Held } else { AttackOutcome::Lost })])
        },
    },
    ServerAttackCase {
        name: "a move onto another file",
        run: |trial| {
            trial.stage.write("target", "precious")?;
            let path = trial.workspace_path("target");
            trial.perform(FileOperation::MoveIn, &path);
            let kept = trial.stage.read("target") == b"precious";
            Ok(vec![("move", if kept { AttackOutcome::Held } else { AttackOutcome::Lost })])
        },
    },
    ServerAttackCase {
        name: "secrets of the workspace: `.env`, a private key",
        run: |trial| {
            trial.stage.write(".env", secret())?;
            trial.stage.write("keys/id_ed25519", secret())?;
            let mut tries = trial.perform_all(".env", &[FileOperation::Read]);
            tries.extend(trial.perform_all("keys/id_ed25519", &[FileOperation::Read]));
            tries.extend(trial.perform_all(".", &[FileOperation::Search]));
            Ok(tries)
        },
    },
    ServerAttackCase {
        name: "protected paths: a git hook, a CI workflow",
        run: |trial| {
            let mut tries = Vec::new();
            for name in [".git/hooks/pre-commit", ".github/workflows/ci.yml"] {
                trial.stage.write(name, "as it was")?;
                let path = trial.workspace_path(name);
                trial.perform(FileOperation::Write, &path);
                let kept = trial.stage.read(name) == b"as it was";
                tries.push((name, if kept { AttackOutcome::Held } else { AttackOutcome::Leaked }));
            }
            Ok(tries)
        },
    },
    ServerAttackCase { name: "malformed protocol lines", run: malformed_message_case },
];

/// False where ours did not hold, or the control did.
pub(crate) fn run(ours: &Path, dir: &Path) -> io::Result<Scoreboard> {
    let (programs, notes) = programs(ours, ControlMode::Unchecked);
    let mut rows = Vec::new();
    for attempt in ESCAPE_PATHS {
        print_status(&format!("  {}", attempt.name));
        let cells: io::Result<Vec<ScoreCell>> =
            programs.iter().map(|program| try_escape_path(program, dir, attempt)).collect();
        rows.push(ScoreRow { name: attempt.name.to_owned(), cells: cells? });
    }
    for case in CASES {
        print_status(&format!("  {}", case.name));
        let cells: io::Result<Vec<ScoreCell>> = programs
            .iter()
            .map(|program| {
                Ok(ScoreCell::worst_of(&(case.run)(&mut AttackTrial::new(program, AttackTestbed::new(dir)?))?))
            })
            .collect();
        rows.push(ScoreRow { name: case.name.to_owned(), cells: cells? });
    }
    let columns = programs.into_iter().map(|program| program.title).collect();
    Ok(Scoreboard { title: "Attacks on the file tools".to_owned(), columns, rows, notes })
}

fn try_escape_path(program: &ServerProgram, dir: &Path, attempt: &EscapePath) -> io::Result<ScoreCell> {
    let mut trial = AttackTrial::new(program, AttackTestbed::new(dir)?);
    (attempt.plant)(&trial.stage)?;
    let mut tries = Vec::new();
    for act in attempt.operations {
        let rest = match act {
            FileOperation::Read | FileOperation::Info | FileOperation::Edit | FileOperation::MoveOut => "secret.txt",
            FileOperation::List | FileOperation::Find | FileOperation::Search => "",
            FileOperation::Write => "new.txt",
            FileOperation::MakeDirectory => "made",
            FileOperation::MoveIn => "moved.txt",
        };
        let base = trial.stage.base.display().to_string();
        let path = attempt.path.replace("{BASE}", &base).replace("{R}", rest);
        let path = if rest.is_empty() { path.trim_end_matches(['/', '\\']).to_owned() } else { path };
        let mut spellings = vec![path.clone()];
        if !path.starts_with(['/', '~', '$']) && !path.starts_with("file:") {
            spellings.push(format!("{base}/ws/{path}"));
        }
        for spelling in spellings {
            tries.push((act.label(), trial.perform(*act, &spelling)));
            if !trial.stage.is_outside_unchanged() {
                trial.stage.restore()?;
            }
            // Whatever was moved or written over is put back.
            let _ = fs::remove_file(trial.stage.workspace().join("stolen"));
            trial.stage.write("inside.txt", "first line inside\n")?;
            if attempt.path == LINK_NAME {
                let _ = fs::remove_file(trial.stage.workspace().join(LINK_NAME));
                (attempt.plant)(&trial.stage)?;
            }
        }
    }
    Ok(ScoreCell::worst_of(&tries))
}

/// One server on one testbed. One that hung or crashed is started again.
struct AttackTrial<'a> {
    program: &'a ServerProgram,
    stage: AttackTestbed,
    client: Option<AttackClient>,
}

impl<'a> AttackTrial<'a> {
    fn new(program: &'a ServerProgram, stage: AttackTestbed) -> Self {
        Self { program, stage, client: None }
    }

    fn client(&mut self) -> Option<&mut AttackClient> {
        if self.client.is_none() {
            self.client = AttackClient::start(self.program, &self.stage.base);
        }
        self.client.as_mut()
    }

    fn call(&mut self, tool: &str, arguments: &Value) -> AttackReply {
        let reply = self.client().map_or(AttackReply::Exited, |client| client.call(tool, arguments));
        if !matches!(reply, AttackReply::Message(_)) {
            self.client = None;
        }
        reply
    }

    /// A file of the workspace as this server wants it named.
    fn workspace_path(&self, name: &str) -> String {
        self.stage.workspace().join(name).display().to_string()
    }

    fn perform(&mut self, act: FileOperation, path: &str) -> AttackOutcome {
        let Some((tool, arguments)) = tool_call(self.program.dialect, act, path, &self.stage.workspace()) else {
            return AttackOutcome::NotApplicable;
        };
        let reply = self.call(tool, &arguments);
        self.stage.classify_reply(&reply)
    }

    fn perform_all(&mut self, name: &str, acts: &[FileOperation]) -> AttackTries {
        let path = self.workspace_path(name);
        acts.iter().map(|act| (act.label(), self.perform(*act, &path))).collect()
    }

    fn edit(&mut self, name: &str, old: &str, new: &str) -> AttackReply {
        let (tool, arguments) = edit_call(self.program.dialect, &self.workspace_path(name), old, new);
        self.call(tool, &arguments)
    }
}

/// Refused with the file as it was, or done with everything else as it was.
fn edit_case(trial: &mut AttackTrial, before: &[u8], after: &[u8]) -> io::Result<AttackTries> {
    trial.stage.write("edited", before)?;
    let done = trial.edit("edited", "here", "there").is_success();
    let is_right = trial.stage.read("edited") == if done && before != after { after } else { before };
    // An ambiguous edit is to be refused.
    let is_right = is_right && !(done && before == after);
    Ok(vec![("edit", if is_right { AttackOutcome::Held } else { AttackOutcome::Lost })])
}

/// Refused, or returned whole, but not with replaced characters.
fn binary_case(trial: &mut AttackTrial) -> io::Result<AttackTries> {
    trial.stage.write("binary", b"\x7fELF\x00\xff\xfe\x80 and more")?;
    let path = trial.workspace_path("binary");
    let Some((tool, arguments)) =
        tool_call(trial.program.dialect, FileOperation::Read, &path, &trial.stage.workspace())
    else {
        return Ok(Vec::new());
    };
    let reply = trial.call(tool, &arguments);
    let mangled = reply.is_success() && reply.text().contains('\u{fffd}');
    Ok(vec![("read", if mangled { AttackOutcome::Lost } else { trial.stage.classify_reply(&reply) })])
}

/// A server that checks one of them and uses the other can be led outside.
fn duplicate_argument_case(trial: &mut AttackTrial) -> io::Result<AttackTries> {
    let (inside, outside) = (trial.workspace_path("inside.txt"), trial.stage.outside().join("secret.txt"));
    let Some((tool, _)) = tool_call(trial.program.dialect, FileOperation::Read, "", &trial.stage.workspace()) else {
        return Ok(Vec::new());
    };
    let (inside, outside) = (json!(inside), json!(outside.display().to_string()));
    let mut tries = Vec::new();
    for (attempt, first, second) in [("second", &inside, &outside), ("first", &outside, &inside)] {
        let parameters = format!(r#"{{"name":"{tool}","arguments":{{"path":{first},"path":{second}}}}}"#);
        let reply =
            trial.client().map_or(AttackReply::Exited, |client| client.call_method_raw("tools/call", &parameters));
        tries.push((attempt, trial.stage.classify_reply(&reply)));
    }
    Ok(tries)
}

/// After each of them, the server is still there and answers.
fn malformed_message_case(trial: &mut AttackTrial) -> io::Result<AttackTries> {
    let deep = "[".repeat(100_000);
    let long = json!({"jsonrpc": "2.0", "id": 900, "method": "tools/call", "params": {"name": "x".repeat(4 << 20)}});
    let lines = [
        ("no JSON", "hello".to_owned()),
        ("NUL", "\0\0\0".to_owned()),
        ("deep brackets", deep),
        ("no method", r#"{"jsonrpc":"2.0","id":901}"#.to_owned()),
        ("4 MiB of a name", long.to_string()),
    ];
    let mut tries = Vec::new();
    for (attempt, line) in lines {
        if let Some(client) = trial.client() {
            client.send(&line);
        }
        let path = trial.workspace_path("inside.txt");
        tries.push((attempt, trial.perform(FileOperation::Read, &path)));
    }
    Ok(tries)
}
