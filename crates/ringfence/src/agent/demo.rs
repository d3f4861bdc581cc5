//! `ringfence demo`: a whole session in a temporary workspace, and an undo, for somebody who has neither model nor key.
//!
//! Only the model is played, from `demo.jsonl`. The files, the fence, the jail, the question, the record and the undo are the
//! ones that everybody has. What the demo says of itself at the end it has checked: whether the letter beside the workspace
//! was seen, whether the record is whole, whether every file is as it was.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fmt, io};

use clap::Args;
use ringfence_agent::provider::Kind;
use ringfence_agent::{Event, Front, provider};
use ringfence_fs::{Verified, verify};
use ringfence_kernel::{Assurance, Bits};
use serde_json::{Value, json};

use super::fronts::{Progress, Writer};
use super::open_model::provider_of;
use super::{Making, NO_ANSWER, Voice, approver, one_prompt};
use crate::approve::Approve;
use crate::changes_text;
use crate::cli::{Failure, make_call};
use crate::config::{Environment, Flags, Settings, load};
use crate::mode::Modes;
use crate::terminal::Terminal;
use crate::wire::wire_for_person;

const SCRIPT: &str = include_str!("demo.jsonl");

const PROMPT: &str = "Sum up my notes, and put rye bread on the list.";

const FILES: [(&str, &str); 2] =
    [("notes/today.md", "- milk\n- bread\n- call Ada\n"), ("README.md", "# A place for notes\n")];

#[derive(Debug, Args)]
pub(crate) struct DemoOptions {
    /// Say yes to the one question of the demo, instead of asking you.
    #[arg(long)]
    yes: bool,
}

/// Why the demo could not be played.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DemoError {
    #[error("a temporary directory for the demo cannot be made: {0}")]
    Place(io::Error),
}

pub(crate) fn demo(environment: &Environment, options: &DemoOptions, voice: Voice) -> Result<u8, Failure> {
    let place = Place::make(environment).map_err(DemoError::Place)?;
    let environment = &place.environment(environment);
    let settings = place.settings(environment, options)?;
    let out = Arc::new(Writer::new(voice.out));
    out.put(&beginning(&place.word));

    let terminal = Some(Terminal::new(&settings, environment)).filter(Terminal::is_there);
    let asked = terminal.is_some() && !options.yes;
    let front = Arc::new(Watching {
        progress: Progress { out: Arc::clone(&out), terminal },
        word: place.word.clone(),
        seen: AtomicBool::new(false),
    });
    let shown: Arc<dyn Front> = Arc::clone(&front) as Arc<dyn Front>;
    let approver = approver(&settings, environment, &shown);
    let model = provider::open(provider_of(Kind::Scripted(SCRIPT.to_owned()), String::new(), "demo".to_owned()))
        .map_err(super::NoModel::from)?;
    let making = Making {
        settings: settings.clone(),
        environment,
        model: Arc::from(model),
        front: shown,
        approver,
        modes: Modes::default(),
        bits: Bits::default(),
        also: None,
    };
    let made = making.make(None)?;
    let session = made.wired.session.id.clone();
    one_prompt(made, PROMPT)?;
    let seen = front.seen.load(Ordering::Relaxed);
    out.put(match seen {
        false => {
            "\nThe model says that it read the letter. It did not: the lines above are the host's, from the record.\n"
        }
        true => "\nThe letter was read. This should not have happened: please report it.\n",
    });
    if !asked && !options.yes {
        out.put("(Nobody could be asked here, so the edit was refused. At a terminal you decide; `--yes` decides for you.)\n");
    }

    out.put("\n== The record\n");
    let record = verify(&settings.state, &[]);
    out.put(&match &record {
        Ok(Verified { records, .. }) => format!("{records} records, each with the hash of the one before: ok\n"),
        Err(broken) => format!("broken: {broken}\n"),
    });

    out.put("\n== The undo\n");
    let undone = undo(settings, environment, &session.to_string(), &out)?;
    let as_it_was = place.is_as_it_was();
    out.put(match as_it_was {
        true => "Every file is as it was, to the byte.\n",
        false => "Something is not as it was. This should not have happened: please report it.\n",
    });
    out.put(NEXT);
    Ok(if !seen && record.is_ok() && undone && as_it_was { super::ANSWERED } else { NO_ANSWER })
}

/// Takes back all that the session did, as a person would.
fn undo(settings: Settings, environment: &Environment, session: &str, out: &Writer) -> Result<bool, Failure> {
    let wired = wire_for_person(settings, environment, Assurance::Person, None)?;
    let said = |tool: &str, arguments: Value, form: fn(&Value) -> String| {
        let reply = make_call(&wired, tool.to_owned(), arguments.to_string())?;
        let value: Value = serde_json::from_str(&reply.text).unwrap_or_default();
        out.put(&match reply.error {
            None => form(&value["value"]),
            Some(_) => format!("{}\n", value["error"]["message"].as_str().unwrap_or_default()),
        });
        Ok::<_, Failure>(reply.error.is_none())
    };
    out.put("$ ringfence log\n");
    let listed = said("list_changes", json!({"session": session}), changes_text::listed)?;
    out.put("$ ringfence undo --session …\n");
    Ok(listed && said("undo", json!({"session": session}), changes_text::undone)?)
}

fn beginning(word: &str) -> String {
    format!(
        "A real session in a temporary workspace: real files, the real fence, a real record. Only the model is played.

The workspace has notes, a README, and `shortcut.txt`, a link that leads out of it. Beside the workspace lies a letter,
which says `{word}`. You can read it; the agent tries to.

== The prompt
{PROMPT}

"
    )
}

const NEXT: &str = "
== What to try next
  ringfence doctor                                  which walls stand on this machine
  ringfence init                                    a commented config for the directory that you are in
  ringfence mcp install claude-code --workspace .   the tools in the agent that you have (or codex, zed, …)
  ringfence agent --workspace . \"what is here?\"     our own agent, with a model of yours
  ringfence serve --workspace .                     the page: watch, decide and undo in a browser
";

/// Shows what happens, and looks out for what must not.
struct Watching {
    progress: Progress,
    word: String,
    seen: AtomicBool,
}

impl fmt::Debug for Watching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watching")
    }
}

impl Front for Watching {
    fn hear(&self, event: &Event<'_>) {
        let text = match event {
            Event::Result { text, .. } | Event::Output { text, .. } => text,
            _ => "",
        };
        if text.contains(&self.word) {
            self.seen.store(true, Ordering::Relaxed);
        }
        if let Event::Answered { text } = event
            && !text.is_empty()
        {
            self.progress.out.put(&format!("\n{text}\n"));
        }
        self.progress.hear(event);
    }
}

/// A directory of our own with a workspace and a letter in it, gone with this value.
struct Place {
    directory: PathBuf,
    /// What the letter says.
    word: String,
}

impl Place {
    fn make(environment: &Environment) -> io::Result<Self> {
        let random = || {
            let mut bytes = [0; 8];
            getrandom::fill(&mut bytes).map(|()| format!("{:016x}", u64::from_ne_bytes(bytes)))
        };
        let (name, word) = (random().map_err(io::Error::other)?, random().map_err(io::Error::other)?);
        let temporary = environment.variables.0.get("TMPDIR").filter(|directory| directory.starts_with('/'));
        let directory = Path::new(temporary.map_or("/tmp", String::as_str)).join(format!("ringfence-demo-{name}"));
        DirBuilder::new().mode(0o700).create(&directory)?;
        let place = Self { directory, word };
        for (path, contents) in FILES {
            let file = place.workspace().join(path);
            fs::create_dir_all(file.parent().unwrap_or(&place.directory))?;
            fs::write(file, contents)?;
        }
        fs::write(place.directory.join("letter.txt"), format!("{}\n", place.word))?;
        symlink("../letter.txt", place.workspace().join("shortcut.txt"))?;
        Ok(place)
    }

    fn workspace(&self) -> PathBuf {
        self.directory.join("workspace")
    }

    /// What a person has, but for their config and what they keep: neither is used.
    fn environment(&self, environment: &Environment) -> Environment {
        Environment {
            current: self.directory.clone(),
            config: None,
            config_file: None,
            state: Some(self.directory.join("state")),
            ..environment.clone()
        }
    }

    fn settings(&self, environment: &Environment, options: &DemoOptions) -> Result<Settings, Failure> {
        let flags = Flags { workspace: Some("workspace".to_owned()), ..Flags::default() };
        let settings = load(&flags, environment)?;
        let approve = if options.yes { Approve::Always } else { settings.approve };
        Ok(Settings { approve, ..settings })
    }

    fn is_as_it_was(&self) -> bool {
        let expected: BTreeMap<PathBuf, &str> =
            FILES.iter().map(|(path, contents)| (self.workspace().join(path), *contents)).collect();
        let same = expected.iter().all(|(file, contents)| fs::read(file).is_ok_and(|now| now == contents.as_bytes()));
        let notes = fs::read_dir(self.workspace().join("notes")).map_or(0, Iterator::count);
        same && notes == 1
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}
