//! The catalogue of attacks as calls: spellings, links, special files, contents, and lines that are no messages.
//!
//! Every server gets each of them on a stage of its own, by the same client. Not here: what happens at the same time
//! (`races.rs`).

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::{Value, json};

use super::board::{Board, Cell, Outcome, Row};
use super::client::{Client, Reply};
use super::servers::{Act, Control, Program, edit, phrase, programs};
use super::stage::{Stage, secret};
use crate::say;

type Tries = Vec<(&'static str, Outcome)>;

/// A path that leads outside. `{BASE}` is where workspace and outside lie, `{R}` the rest of the path below outside.
struct Way {
    name: &'static str,
    path: &'static str,
    acts: &'static [Act],
    plant: fn(&Stage) -> io::Result<()>,
}

const ALL: &[Act] = &[
    Act::Read,
    Act::Info,
    Act::List,
    Act::Find,
    Act::Search,
    Act::Write,
    Act::Edit,
    Act::MakeDirectory,
    Act::Take,
    Act::Put,
];
/// What can be done with a path that is a file and has no rest.
const FILE: &[Act] = &[Act::Read, Act::Write, Act::Edit, Act::Take];

/// A path that is a link itself, which a call may have replaced: it is planted anew for the next one.
const LINK: &str = "link";

const fn spelled(name: &'static str, path: &'static str) -> Way {
    Way { name, path, acts: ALL, plant: |_| Ok(()) }
}

const WAYS: &[Way] = &[
    spelled("`../x`", "../outside/{R}"),
    spelled("`sub/../../x`", "sub/../../outside/{R}"),
    spelled(
        "forty dots and an absolute path",
        "../../../../../../../../../../../../../../../../../../..{BASE}/outside/{R}",
    ),
    spelled("an absolute path", "{BASE}/outside/{R}"),
    spelled("an absolute path with two slashes", "/{BASE}/outside/{R}"),
    spelled("a sibling whose name begins like the workspace's", "{BASE}/ws-evil/{R}"),
    spelled("`/proc/self/root`", "/proc/self/root{BASE}/outside/{R}"),
    spelled("`/proc/self/cwd/..`", "/proc/self/cwd/../outside/{R}"),
    spelled("a `file:` URL", "file://{BASE}/outside/{R}"),
    spelled("`~`", "~/{R}"),
    spelled("`$HOME`", "$HOME/{R}"),
    spelled("percent-encoded dots", "%2e%2e/outside/{R}"),
    spelled("dots encoded twice", "%252e%252e%252foutside/{R}"),
    spelled("backslashes", "..\\outside\\{R}"),
    spelled("look-alike dots and slashes", "\u{ff0e}\u{ff0e}\u{ff0f}outside/{R}"),
    spelled("spaces in front", " ../outside/{R}"),
    Way {
        name: "a link to a file, absolute",
        path: LINK,
        acts: FILE,
        plant: |stage| symlink(stage.outside().join("secret.txt"), stage.workspace().join("link")),
    },
    Way {
        name: "a link to a file, relative",
        path: LINK,
        acts: FILE,
        plant: |stage| symlink("../outside/secret.txt", stage.workspace().join("link")),
    },
    Way {
        name: "a link to a directory, absolute",
        path: "link/{R}",
        acts: ALL,
        plant: |stage| symlink(stage.outside(), stage.workspace().join("link")),
    },
    Way {
        name: "a link to a directory, relative",
        path: "sub/link/{R}",
        acts: ALL,
        plant: |stage| symlink("../../outside", stage.workspace().join("sub/link")),
    },
    Way {
        name: "a chain of links",
        path: "one/{R}",
        acts: ALL,
        plant: |stage| {
            symlink("two", stage.workspace().join("one"))?;
            symlink("sub/three", stage.workspace().join("two"))?;
            symlink("../../outside", stage.workspace().join("sub/three"))
        },
    },
    Way {
        name: "dots behind a link",
        path: "link/../{R}",
        acts: ALL,
        plant: |stage| {
            fs::create_dir(stage.outside().join("canary-5d1c/below"))?;
            symlink(stage.outside().join("canary-5d1c"), stage.workspace().join("link"))
        },
    },
    Way {
        name: "a link to the root of the process",
        path: "link{BASE}/outside/{R}",
        acts: ALL,
        plant: |stage| symlink("/proc/self/root", stage.workspace().join("link")),
    },
    Way {
        name: "a dangling link, written through",
        path: LINK,
        acts: &[Act::Write],
        plant: |stage| symlink(stage.outside().join("new.txt"), stage.workspace().join("link")),
    },
    Way {
        name: "a link out below a tree that is searched",
        path: ".",
        acts: &[Act::Find, Act::Search],
        plant: |stage| symlink(stage.outside(), stage.workspace().join("sub/link")),
    },
    Way {
        name: "where a link leads, told by an error",
        path: LINK,
        acts: &[Act::Read, Act::Write, Act::List],
        plant: |stage| symlink(stage.outside().join("canary-5d1c"), stage.workspace().join("link")),
    },
    Way {
        name: "a hard link to a file outside, changed",
        path: LINK,
        acts: &[Act::Write],
        plant: |stage| fs::hard_link(stage.outside().join("secret.txt"), stage.workspace().join("link")),
    },
];

/// What is no question of the path: one run, which tells what became of each way that it tried.
struct Case {
    name: &'static str,
    run: fn(&mut Trial) -> io::Result<Tries>,
}

const CASES: &[Case] = &[
    Case { name: "the same argument twice in one call", run: twice },
    Case {
        name: "a FIFO that nobody writes to",
        run: |trial| {
            trial.stage.pipe("pipe")?;
            Ok(trial.acts("pipe", &[Act::Read, Act::Edit]))
        },
    },
    Case {
        name: "a FIFO in a tree that is searched",
        run: |trial| {
            trial.stage.pipe("sub/pipe")?;
            Ok(trial.acts("sub", &[Act::Search]))
        },
    },
    Case {
        name: "a file of 64 MiB, read whole",
        run: |trial| {
            trial.stage.write("large", "text\n".repeat((64 << 20) / 5))?;
            Ok(trial.acts("large", &[Act::Read]))
        },
    },
    Case {
        name: "a line of 64 MiB",
        run: |trial| {
            trial.stage.write("large", "text ".repeat((64 << 20) / 5))?;
            Ok(trial.acts("large", &[Act::Read]))
        },
    },
    Case {
        name: "a directory of 20,000 entries",
        run: |trial| {
            for number in 0..20_000 {
                trial.stage.write(&format!("many/{}-{number}", "entry".repeat(12)), "")?;
            }
            Ok(trial.acts("many", &[Act::List]))
        },
    },
    Case { name: "a binary file, read as text", run: binary },
    Case {
        name: "a file that is not UTF-8, edited",
        run: |trial| edited(trial, b"caf\xe9\nhere\n", b"caf\xe9\nthere\n"),
    },
    Case { name: "CRLF, edited", run: |trial| edited(trial, b"one\r\nhere\r\ntwo\r\n", b"one\r\nthere\r\ntwo\r\n") },
    Case {
        name: "a byte order mark, edited",
        run: |trial| edited(trial, b"\xef\xbb\xbfone\nhere\n", b"\xef\xbb\xbfone\nthere\n"),
    },
    Case {
        name: "an edit that fits in two places",
        run: |trial| edited(trial, b"here\nor here\n", b"here\nor here\n"),
    },
    Case {
        name: "permissions of a file that is changed",
        run: |trial| {
            trial.stage.write("tool", "here\n")?;
            trial.stage.set_mode("tool", 0o750)?;
            trial.edit("tool", "here", "there");
            let kept = trial.stage.mode("tool") == 0o750;
            Ok(vec![("edit", if kept { Outcome::Held } else { Outcome::Lost })])
        },
    },
    Case {
        name: "a move onto another file",
        run: |trial| {
            trial.stage.write("target", "precious")?;
            let path = trial.spelled("target");
            trial.act(Act::Put, &path);
            let kept = trial.stage.read("target") == b"precious";
            Ok(vec![("move", if kept { Outcome::Held } else { Outcome::Lost })])
        },
    },
    Case {
        name: "secrets of the workspace: `.env`, a private key",
        run: |trial| {
            trial.stage.write(".env", secret())?;
            trial.stage.write("keys/id_ed25519", secret())?;
            let mut tries = trial.acts(".env", &[Act::Read]);
            tries.extend(trial.acts("keys/id_ed25519", &[Act::Read]));
            tries.extend(trial.acts(".", &[Act::Search]));
            Ok(tries)
        },
    },
    Case {
        name: "what other programs act on: a git hook, a workflow",
        run: |trial| {
            let mut tries = Vec::new();
            for name in [".git/hooks/pre-commit", ".github/workflows/ci.yml"] {
                trial.stage.write(name, "as it was")?;
                let path = trial.spelled(name);
                trial.act(Act::Write, &path);
                let kept = trial.stage.read(name) == b"as it was";
                tries.push((name, if kept { Outcome::Held } else { Outcome::Leaked }));
            }
            Ok(tries)
        },
    },
    Case { name: "lines that are no messages", run: noise },
];

/// False where ours did not hold, or the control did.
pub(crate) fn run(ours: &Path, place: &Path) -> io::Result<Board> {
    let (programs, notes) = programs(ours, Control::Unchecked);
    let mut rows = Vec::new();
    for way in WAYS {
        say(&format!("  {}", way.name));
        let cells: io::Result<Vec<Cell>> = programs.iter().map(|program| try_way(program, place, way)).collect();
        rows.push(Row { name: way.name.to_owned(), cells: cells? });
    }
    for case in CASES {
        say(&format!("  {}", case.name));
        let cells: io::Result<Vec<Cell>> = programs
            .iter()
            .map(|program| Ok(Cell::of(&(case.run)(&mut Trial::new(program, Stage::new(place)?))?)))
            .collect();
        rows.push(Row { name: case.name.to_owned(), cells: cells? });
    }
    let columns = programs.into_iter().map(|program| program.title).collect();
    Ok(Board { title: "Attacks on the file tools".to_owned(), columns, rows, notes })
}

fn try_way(program: &Program, place: &Path, way: &Way) -> io::Result<Cell> {
    let mut trial = Trial::new(program, Stage::new(place)?);
    (way.plant)(&trial.stage)?;
    let mut tries = Vec::new();
    for act in way.acts {
        let rest = match act {
            Act::Read | Act::Info | Act::Edit | Act::Take => "secret.txt",
            Act::List | Act::Find | Act::Search => "",
            Act::Write => "new.txt",
            Act::MakeDirectory => "made",
            Act::Put => "moved.txt",
        };
        let base = trial.stage.base.display().to_string();
        let path = way.path.replace("{BASE}", &base).replace("{R}", rest);
        let path = if rest.is_empty() { path.trim_end_matches(['/', '\\']).to_owned() } else { path };
        let mut spellings = vec![path.clone()];
        if !path.starts_with(['/', '~', '$']) && !path.starts_with("file:") {
            spellings.push(format!("{base}/ws/{path}"));
        }
        for spelling in spellings {
            tries.push((act.word(), trial.act(*act, &spelling)));
            if !trial.stage.is_outside_as_it_was() {
                trial.stage.restore()?;
            }
            // Whatever was moved or written over is put back.
            let _ = fs::remove_file(trial.stage.workspace().join("stolen"));
            trial.stage.write("inside.txt", "first line inside\n")?;
            if way.path == LINK {
                let _ = fs::remove_file(trial.stage.workspace().join(LINK));
                (way.plant)(&trial.stage)?;
            }
        }
    }
    Ok(Cell::of(&tries))
}

/// One server on one stage. One that hung or crashed is started anew.
struct Trial<'a> {
    program: &'a Program,
    stage: Stage,
    client: Option<Client>,
}

impl<'a> Trial<'a> {
    fn new(program: &'a Program, stage: Stage) -> Self {
        Self { program, stage, client: None }
    }

    fn client(&mut self) -> Option<&mut Client> {
        if self.client.is_none() {
            self.client = Client::start(self.program, &self.stage.base);
        }
        self.client.as_mut()
    }

    fn call(&mut self, tool: &str, arguments: &Value) -> Reply {
        let reply = self.client().map_or(Reply::Gone, |client| client.call(tool, arguments));
        if !matches!(reply, Reply::Said(_)) {
            self.client = None;
        }
        reply
    }

    /// A file of the workspace as this server wants it named.
    fn spelled(&self, name: &str) -> String {
        self.stage.workspace().join(name).display().to_string()
    }

    fn act(&mut self, act: Act, path: &str) -> Outcome {
        let Some((tool, arguments)) = phrase(self.program.dialect, act, path, &self.stage.workspace()) else {
            return Outcome::Missing;
        };
        let reply = self.call(tool, &arguments);
        self.stage.judge(&reply)
    }

    fn acts(&mut self, name: &str, acts: &[Act]) -> Tries {
        let path = self.spelled(name);
        acts.iter().map(|act| (act.word(), self.act(*act, &path))).collect()
    }

    fn edit(&mut self, name: &str, old: &str, new: &str) -> Reply {
        let (tool, arguments) = edit(self.program.dialect, &self.spelled(name), old, new);
        self.call(tool, &arguments)
    }
}

/// Refused with the file as it was, or done with everything else as it was.
fn edited(trial: &mut Trial, before: &[u8], after: &[u8]) -> io::Result<Tries> {
    trial.stage.write("edited", before)?;
    let done = trial.edit("edited", "here", "there").is_success();
    let is_right = trial.stage.read("edited") == if done && before != after { after } else { before };
    // What fits twice is to be refused.
    let is_right = is_right && !(done && before == after);
    Ok(vec![("edit", if is_right { Outcome::Held } else { Outcome::Lost })])
}

/// Refused, or given back whole, but not with other characters in the place of what it has.
fn binary(trial: &mut Trial) -> io::Result<Tries> {
    trial.stage.write("binary", b"\x7fELF\x00\xff\xfe\x80 and more")?;
    let path = trial.spelled("binary");
    let Some((tool, arguments)) = phrase(trial.program.dialect, Act::Read, &path, &trial.stage.workspace()) else {
        return Ok(Vec::new());
    };
    let reply = trial.call(tool, &arguments);
    let mangled = reply.is_success() && reply.text().contains('\u{fffd}');
    Ok(vec![("read", if mangled { Outcome::Lost } else { trial.stage.judge(&reply) })])
}

/// Who checks one of them and uses the other is led out.
fn twice(trial: &mut Trial) -> io::Result<Tries> {
    let (inside, outside) = (trial.spelled("inside.txt"), trial.stage.outside().join("secret.txt"));
    let Some((tool, _)) = phrase(trial.program.dialect, Act::Read, "", &trial.stage.workspace()) else {
        return Ok(Vec::new());
    };
    let (inside, outside) = (json!(inside), json!(outside.display().to_string()));
    let mut tries = Vec::new();
    for (way, first, second) in [("second", &inside, &outside), ("first", &outside, &inside)] {
        let parameters = format!(r#"{{"name":"{tool}","arguments":{{"path":{first},"path":{second}}}}}"#);
        let reply = trial.client().map_or(Reply::Gone, |client| client.ask_as_written("tools/call", &parameters));
        tries.push((way, trial.stage.judge(&reply)));
    }
    Ok(tries)
}

/// After each of them, the server is still there and answers.
fn noise(trial: &mut Trial) -> io::Result<Tries> {
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
    for (way, line) in lines {
        if let Some(client) = trial.client() {
            client.send(&line);
        }
        let path = trial.spelled("inside.txt");
        tries.push((way, trial.act(Act::Read, &path)));
    }
    Ok(tries)
}
