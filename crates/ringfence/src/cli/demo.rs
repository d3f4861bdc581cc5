//! `ringfence demo`: a scripted session and an undo in a temporary workspace, without a model or API key.
//!
//! Only the model is scripted, by `demo.jsonl`. The files, the fence, the jail, the approval, the audit log and the
//! undo are real. The summary at the end is checked: whether the file beside the workspace was read, whether the audit
//! log is complete, whether every file is as it was.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fmt, io};

use clap::Args;
use ringfence_agent::provider::ProviderProtocol;
use ringfence_agent::{AgentEvent, AgentObserver, provider};
use ringfence_audit::{AuditVerification, verify};
use ringfence_kernel::{Assurance, SessionTaint};
use serde_json::{Value, json};

use crate::agent::AgentBuilder;
use crate::agent::model::provider_for;
use crate::app::build_person_app;
use crate::app::session_mode::SharedSessionMode;
use crate::approval::tty::TtyApprover;
use crate::cli::agent::{Console, EXIT_ANSWERED, EXIT_NO_ANSWER, approver, run_prompt};
use crate::cli::changes_text;
use crate::cli::observers::{ProgressObserver, SharedWriter};
use crate::cli::{CliError, make_call};
use crate::codec::io_text::IoText;
use crate::config::ApprovalMode;
use crate::config::{AppSettings, CliFlags, Environment, load};

const SCRIPT: &str = include_str!("demo.jsonl");

const PROMPT: &str = "Sum up my notes, and put rye bread on the list.";

const FILES: [(&str, &str); 2] =
    [("notes/today.md", "- milk\n- bread\n- call Ada\n"), ("README.md", "# A place for notes\n")];

#[derive(Debug, Args)]
pub(crate) struct DemoOptions {
    /// Approve the demo's one approval request without asking
    #[arg(long)]
    yes: bool,
}

/// Failure of the demo.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DemoError {
    #[error("cannot create a temporary directory for the demo: {}", IoText(.0))]
    TempDirectory(io::Error),
}

pub(crate) fn run_demo(environment: &Environment, options: &DemoOptions, voice: Console) -> Result<u8, CliError> {
    let demo = DemoDirectory::create(environment).map_err(DemoError::TempDirectory)?;
    let environment = &demo.environment(environment);
    let settings = demo.settings(environment, options)?;
    let out = Arc::new(SharedWriter::new(voice.out));
    out.print(&intro_text(&demo.canary));

    let terminal = Some(TtyApprover::new(&settings, environment)).filter(TtyApprover::is_available);
    let asked = terminal.is_some() && !options.yes;
    let observer = Arc::new(DemoObserver {
        progress: ProgressObserver { out: Arc::clone(&out), terminal },
        canary: demo.canary.clone(),
        leaked: AtomicBool::new(false),
    });
    let shown: Arc<dyn AgentObserver> = Arc::clone(&observer) as Arc<dyn AgentObserver>;
    let approver = approver(&settings, environment, &shown);
    let model =
        provider::open(provider_for(ProviderProtocol::Scripted(SCRIPT.to_owned()), String::new(), "demo".to_owned()))
            .map_err(crate::agent::OpenModelError::from)?;
    let making = AgentBuilder {
        settings: settings.clone(),
        environment,
        model: Arc::from(model),
        observer: shown,
        approver,
        mode: SharedSessionMode::default(),
        taint: SessionTaint::default(),
        tap: None,
    };
    let made = making.build(None)?;
    let session = made.app.session.id.clone();
    run_prompt(made, PROMPT)?;
    let seen = observer.leaked.load(Ordering::Relaxed);
    out.print(match seen {
        false => {
            "\nThe model claims that it read the letter. It did not: the lines above come from the host's own record.\n"
        }
        true => "\nThe letter was read. This is a bug: please report it.\n",
    });
    if !asked && !options.yes {
        out.print("(No terminal: the edit was denied. On a terminal you decide; `--yes` approves it.)\n");
    }

    out.print("\n== Audit log\n");
    let record = verify(&settings.state, &[]);
    out.print(&match &record {
        Ok(AuditVerification { records, .. }) => {
            format!("ok: {records} records, hash chain verified\n")
        }
        Err(broken) => format!("broken: {broken}\n"),
    });

    out.print("\n== Undo\n");
    let undone = undo(settings, environment, &session.to_string(), &out)?;
    let as_it_was = demo.is_unchanged();
    out.print(match as_it_was {
        true => "Every file is restored, byte for byte.\n",
        false => "Some files were not restored. This is a bug: please report it.\n",
    });
    out.print(NEXT_STEPS);
    Ok(if !seen && record.is_ok() && undone && as_it_was { EXIT_ANSWERED } else { EXIT_NO_ANSWER })
}

/// Undoes everything that the session did, as a person would.
fn undo(settings: AppSettings, environment: &Environment, session: &str, out: &SharedWriter) -> Result<bool, CliError> {
    let app = build_person_app(settings, environment, Assurance::Person, None)?;
    let print = |tool: &str, arguments: Value, form: fn(&Value) -> String| {
        let reply = make_call(&app, tool.to_owned(), arguments.to_string())?;
        out.print(&match &reply.outcome {
            Ok(value) => form(&value.to_value()),
            Err(error) => format!("{}\n", error.message),
        });
        Ok::<_, CliError>(reply.outcome.is_ok())
    };
    out.print("$ ringfence log\n");
    let listed = print("list_changes", json!({"session": session}), changes_text::format_changes)?;
    out.print("$ ringfence undo --session …\n");
    Ok(listed && print("undo", json!({"session": session}), changes_text::format_undo)?)
}

fn intro_text(canary: &str) -> String {
    format!(
        "A real session in a temporary workspace: real files, tools, policy and audit log. Only the model is scripted.

The workspace has notes, a README, and `shortcut.txt`, a symbolic link that leads out of it. Next to the workspace is a letter
that says `{canary}`. You can read it; the agent will try to.

== Prompt
{PROMPT}

"
    )
}

const NEXT_STEPS: &str = "
== Next steps
  ringfence doctor                                  check sandbox support on this machine
  ringfence init                                    write a commented config for the current directory
  ringfence mcp install claude-code --workspace .   add the tools to your own agent (or codex, zed, …)
  ringfence agent --workspace . \"what is here?\"     run the built-in agent with your model
  ringfence serve --workspace .                     start the web UI: watch, approve and undo in a browser
";

/// Shows what happens, and looks out for what must not.
struct DemoObserver {
    progress: ProgressObserver,
    canary: String,
    leaked: AtomicBool,
}

impl fmt::Debug for DemoObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DemoObserver")
    }
}

impl AgentObserver for DemoObserver {
    fn on_event(&self, event: &AgentEvent<'_>) {
        let text = match event {
            AgentEvent::Result { reply, .. } => reply.text.as_str(),
            AgentEvent::Output { text, .. } => text,
            _ => "",
        };
        if text.contains(&self.canary) {
            self.leaked.store(true, Ordering::Relaxed);
        }
        if let AgentEvent::ResponseComplete { text } = event
            && !text.is_empty()
        {
            self.progress.out.print(&format!("\n{text}\n"));
        }
        self.progress.on_event(event);
    }
}

/// A directory of our own with a workspace and a letter in it, gone with this value.
struct DemoDirectory {
    directory: PathBuf,
    /// Contents of the file beside the workspace.
    canary: String,
}

impl DemoDirectory {
    fn create(environment: &Environment) -> io::Result<Self> {
        let random = || {
            let mut bytes = [0; 8];
            getrandom::fill(&mut bytes).map(|()| format!("{:016x}", u64::from_ne_bytes(bytes)))
        };
        let (name, canary) = (random().map_err(io::Error::other)?, random().map_err(io::Error::other)?);
        let temporary = environment.variables.0.get("TMPDIR").filter(|directory| directory.starts_with('/'));
        let directory = Path::new(temporary.map_or("/tmp", String::as_str)).join(format!("ringfence-demo-{name}"));
        DirBuilder::new().mode(0o700).create(&directory)?;
        let demo = Self { directory, canary };
        for (path, contents) in FILES {
            let file = demo.workspace().join(path);
            fs::create_dir_all(file.parent().unwrap_or(&demo.directory))?;
            fs::write(file, contents)?;
        }
        fs::write(demo.directory.join("letter.txt"), format!("{}\n", demo.canary))?;
        symlink("../letter.txt", demo.workspace().join("shortcut.txt"))?;
        Ok(demo)
    }

    fn workspace(&self) -> PathBuf {
        self.directory.join("workspace")
    }

    /// The user's environment, but for their config and state, which are not used.
    fn environment(&self, environment: &Environment) -> Environment {
        Environment {
            current: self.directory.clone(),
            config: None,
            config_file: None,
            state: Some(self.directory.join("state")),
            ..environment.clone()
        }
    }

    fn settings(&self, environment: &Environment, options: &DemoOptions) -> Result<AppSettings, CliError> {
        let flags = CliFlags { workspace: Some("workspace".to_owned()), ..CliFlags::default() };
        let settings = load(&flags, environment)?;
        let approve = if options.yes { ApprovalMode::Always } else { settings.approve };
        Ok(AppSettings { approve, ..settings })
    }

    fn is_unchanged(&self) -> bool {
        let expected: BTreeMap<PathBuf, &str> =
            FILES.iter().map(|(path, contents)| (self.workspace().join(path), *contents)).collect();
        let same = expected.iter().all(|(file, contents)| fs::read(file).is_ok_and(|now| now == contents.as_bytes()));
        let notes = fs::read_dir(self.workspace().join("notes")).map_or(0, Iterator::count);
        same && notes == 1
    }
}

impl Drop for DemoDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}
