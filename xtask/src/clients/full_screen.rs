//! The full screen of Claude Code inside `ringfence run`, in tmux: `clients run tui`.
//!
//! A shell in tmux starts it; a prompt is typed, its command runs, the window changes its size, ^Z stops it to the shell, `fg`
//! continues it, and it ends. The model is scripted. Nothing of the terminal may be left changed.
//!
//! Not here: agents without a terminal, and the network with the hosts of providers (`wrapped.rs`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::external_tools::succeeds;
use crate::{print_status, root};

/// Time for what is to be on the screen.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// How often the prompt is typed.
const MAX_TRIES: usize = 5;

/// A shell in a terminal of tmux.
pub(super) struct TmuxSession {
    socket: PathBuf,
}

impl TmuxSession {
    /// A shell with the environment of this command, in its directory.
    pub(super) fn start(socket: &Path, environment: &Command) -> Result<Self, String> {
        let session = Self { socket: socket.to_owned() };
        let mut command = session.command(&["-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "30"]);
        command.args(["bash", "--noprofile", "--norc"]).env_clear();
        for (name, value) in environment.get_envs() {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
        command.env("PS1", "ready> ").env("TERM", "xterm-256color");
        if let Some(directory) = environment.get_current_dir() {
            command.current_dir(directory);
        }
        succeeds(&mut command).then_some(session).ok_or_else(|| "tmux does not start".to_owned())
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("tmux");
        command.arg("-S").arg(&self.socket).args(words);
        command
    }

    pub(super) fn screen(&self) -> String {
        let printed = self.command(&["capture-pane", "-p"]).output();
        printed.map(|printed| String::from_utf8_lossy(&printed.stdout).into_owned()).unwrap_or_default()
    }

    /// Waits for a text. Fails with what is on the screen.
    pub(super) fn until(&self, text: &str) -> Result<(), String> {
        self.until_that(text, |screen| screen.contains(text))
    }

    pub(super) fn until_that(&self, what: &str, holds: impl Fn(&str) -> bool) -> Result<(), String> {
        self.within(MAX_WAIT, what, holds)
    }

    /// Questions in place are answered with a no meanwhile.
    fn within(&self, time: Duration, what: &str, holds: impl Fn(&str) -> bool) -> Result<(), String> {
        let began = Instant::now();
        loop {
            let screen = self.screen();
            if screen.contains("[y] yes  [n] no") {
                let asked = screen.lines().find(|line| line.starts_with("this would fetch")).unwrap_or_default();
                print_status(&format!("tui: asked in place: {asked}"));
                self.keys(&["n"])?;
            }
            if screen.contains("reason (optional") {
                self.keys(&["Enter"])?;
            }
            if holds(&screen) {
                return Ok(());
            }
            if began.elapsed() > time {
                return Err(format!("not on the screen: {what}\n{}", screen.trim_end()));
            }
            std::thread::sleep(Duration::from_millis(300));
        }
    }

    pub(super) fn keys(&self, names: &[&str]) -> Result<(), String> {
        let words = [&["send-keys"], names].concat();
        succeeds(&mut self.command(&words)).then_some(()).ok_or_else(|| "tmux does not answer".to_owned())
    }

    /// Types a line.
    pub(super) fn line(&self, text: &str) -> Result<(), String> {
        self.keys(&["-l", text])?;
        self.keys(&["Enter"])
    }

    pub(super) fn resize(&self, columns: &str, rows: &str) -> Result<(), String> {
        let words = ["resize-window", "-x", columns, "-y", rows];
        succeeds(&mut self.command(&words)).then_some(()).ok_or_else(|| "tmux does not answer".to_owned())
    }

    /// The settings of the terminal as the shell sees them.
    pub(super) fn modes(&self, file: &Path) -> Result<String, String> {
        // A file of an earlier answer is not this one.
        let _ = fs::remove_file(file);
        self.line(&format!("clear; stty -g > {0}.new && mv {0}.new {0}", file.display()))?;
        let began = Instant::now();
        while began.elapsed() < MAX_WAIT {
            if let Ok(modes) = fs::read_to_string(file) {
                return Ok(modes);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(format!("the shell does not answer\n{}", self.screen()))
    }
}

impl Drop for TmuxSession {
    fn drop(&mut self) {
        let _ = succeeds(&mut self.command(&["kill-server"]));
    }
}

/// One session of Claude Code. Fails with what was missing on the screen.
pub(super) fn check(environment: &Command, program: &Path, directory: &Path, made: &Path) -> Result<(), String> {
    let ringfence = root().join("target/debug/ringfence");
    let tmux = TmuxSession::start(&directory.join("tmux"), environment)?;
    tmux.until("ready>")?;
    let before = tmux.modes(&directory.join("modes"))?;
    tmux.line(&format!(
        "{} run --end later -- {} --dangerously-skip-permissions",
        ringfence.display(),
        program.display()
    ))?;
    // The line for prompts.
    let has_prompt = |screen: &str| screen.contains("bypass permissions on") || screen.contains("? for shortcuts");
    tmux.until_that("the prompt of Claude Code", has_prompt)?;
    print_status("tui: the prompt is on the screen");
    // A question in place takes no key that was meant for the agent, so what was typed may be gone.
    let typed = (0..MAX_TRIES).find_map(|_| {
        tmux.keys(&["C-u"]).and_then(|()| tmux.keys(&["-l", super::wrapped::PROMPT])).ok()?;
        tmux.within(Duration::from_secs(6), "the prompt's text", |screen| screen.contains(super::wrapped::PROMPT)).ok()
    });
    typed.ok_or_else(|| format!("the prompt cannot be typed\n{}", tmux.screen()))?;
    tmux.keys(&["Enter"])?;
    tmux.until("Done.")?;
    print_status("tui: the task is done");
    if made.exists() {
        return Err("the file reached the workspace before the review".to_owned());
    }
    tmux.resize("77", "20")?;
    tmux.until_that("a frame of 77 columns", |screen| {
        has_prompt(screen) && screen.lines().any(|line| (70..=77).contains(&line.chars().filter(|c| *c == '─').count()))
    })?;
    print_status("tui: resized");
    tmux.keys(&["C-z"])?;
    tmux.until("Stopped")?;
    let stopped = tmux.modes(&directory.join("modes"))?;
    tmux.line("fg")?;
    tmux.until_that("the prompt after `fg`", has_prompt)?;
    print_status("tui: stopped to the shell, and continued");
    // Twice within a second ends it.
    tmux.keys(&["C-c", "C-c"])?;
    tmux.until("kept as layer")?;
    tmux.line("echo code=$?")?;
    tmux.until("code=0")?;
    let after = tmux.modes(&directory.join("modes"))?;
    if stopped != before || after != before {
        return Err("`stty -g` differs".to_owned());
    }
    print_status("tui: ended; `stty -g` is as before, also while it was stopped");
    Ok(())
}
