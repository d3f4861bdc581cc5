//! The jails that programs are put into: ours, those of others as they are usually called, and none.
//!
//! The others are fetched below `target/tmp/attack` on the first run, by `npm` and, where it is available, by `apt-get
//! download`; nothing is installed on the machine. Programs on the `PATH` are used as they are.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::json;

use crate::root;

const SRT_PACKAGE: &str = "@anthropic-ai/sandbox-runtime@0.0.83";
/// Debian packages that the peers need.
const PACKAGES: [&str; 4] = ["bubblewrap", "socat", "ripgrep", "libwrap0"];
const PYTHON: &str = "/usr/bin/python3";
const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SandboxKind {
    Ours,
    Bubblewrap,
    Srt,
    Bare,
}

#[derive(Clone, Debug)]
pub(crate) struct PeerSandbox {
    pub(crate) title: &'static str,
    pub(crate) jail: SandboxKind,
    program: PathBuf,
    /// Its `PATH`.
    path: Option<PathBuf>,
    pub(crate) libraries: Option<PathBuf>,
}

impl PeerSandbox {
    pub(crate) fn bare() -> Self {
        Self { title: "control: bare", jail: SandboxKind::Bare, program: PYTHON.into(), path: None, libraries: None }
    }

    /// The command that runs a program, which is a text and lies in `program.py` too, for the workspace `ws`.
    pub(crate) fn command_line(&self, base: &Path, text: &str) -> Vec<OsString> {
        let (workspace, script) = (base.join("ws"), base.join("program.py"));
        let mut words: Vec<OsString> = vec![self.program.clone().into()];
        match self.jail {
            SandboxKind::Ours => {
                let arguments = json!({"language": "python", "code": text, "timeout": 50}).to_string();
                let mut mount = OsString::from("beside=");
                mount.push(base.join("beside"));
                mount.push(":ro");
                words.extend(["call", "run_code", &arguments, "--preset", "edits", "--workspace"].map(OsString::from));
                words.extend([workspace.into_os_string(), "--mount".into(), mount]);
            }
            SandboxKind::Bubblewrap => {
                words.extend(["--unshare-all", "--die-with-parent", "--new-session"].map(OsString::from));
                words.extend(
                    ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"].map(OsString::from),
                );
                words.extend(["--bind".into(), workspace.clone().into(), workspace.clone().into()]);
                words.extend(["--chdir".into(), workspace.into(), "--".into(), PYTHON.into(), script.into()]);
            }
            SandboxKind::Srt => {
                words.extend(["--settings".into(), base.join("settings.json").into_os_string(), "-c".into()]);
                // Our paths have no character that a shell would interpret.
                words.push(format!("{PYTHON} {}", script.display()).into());
            }
            SandboxKind::Bare => words.push(script.into()),
        }
        words
    }

    pub(crate) fn search_path(&self) -> OsString {
        let mut path = OsString::new();
        if let Some(own) = &self.path {
            path.push(own);
            path.push(":");
        }
        path.push(SYSTEM_PATH);
        path
    }
}

/// The programs, where every user can run them.
pub(crate) struct SandboxTools {
    ours: PathBuf,
    bwrap: Option<PathBuf>,
    srt: Option<PathBuf>,
    programs: PathBuf,
    /// Missing peers, and the reasons.
    pub(crate) notes: Vec<String>,
}

impl SandboxTools {
    pub(crate) fn fetch(ours: &Path, dir: &Path) -> io::Result<Self> {
        let kept = root().join("target/tmp/attack");
        fs::create_dir_all(&kept)?;
        fetch_packages(&kept)?;
        let srt = kept.join("node_modules/.bin/srt");
        if !srt.exists() {
            // Whether it is there is what counts.
            let _ = Command::new("npm").args(["install", "--silent", "--prefix"]).arg(&kept).arg(SRT_PACKAGE).status();
        }
        let programs = dir.join("programs");
        copy(&kept, &programs)?;
        let own = dir.join("ringfence");
        fs::copy(ours, &own)?;
        let found = |path: PathBuf| path.exists().then_some(path);
        let bwrap = found(programs.join("usr/bin/bwrap")).or_else(|| found("/usr/bin/bwrap".into()));
        let srt = found(programs.join("node_modules/.bin/srt"));
        let mut notes = Vec::new();
        for (title, is_there) in [("bubblewrap", bwrap.is_some()), ("sandbox-runtime (srt)", srt.is_some())] {
            if !is_there {
                notes.push(format!("skipped: `{title}`, which cannot be fetched here"));
            }
        }
        Ok(Self { ours: own, bwrap, srt, programs, notes })
    }

    /// Ours first, without the control.
    pub(crate) fn sandboxes(&self) -> Vec<PeerSandbox> {
        let path = self.programs.join("usr/bin");
        let ours = PeerSandbox {
            title: "ringfence",
            jail: SandboxKind::Ours,
            program: self.ours.clone(),
            path: None,
            libraries: None,
        };
        let bwrap = self.bwrap.clone().map(|program| PeerSandbox {
            title: "bubblewrap",
            jail: SandboxKind::Bubblewrap,
            program,
            path: None,
            libraries: None,
        });
        let srt = self.srt.clone().map(|program| PeerSandbox {
            title: "sandbox-runtime (srt)",
            jail: SandboxKind::Srt,
            program,
            path: Some(path),
            libraries: libraries(&self.programs),
        });
        std::iter::once(ours).chain(bwrap).chain(srt).collect()
    }
}

/// Unpacks what the machine does not have itself.
fn fetch_packages(kept: &Path) -> io::Result<()> {
    if kept.join("usr/bin/bwrap").exists() {
        return Ok(());
    }
    let packages = kept.join("packages");
    fs::create_dir_all(&packages)?;
    let quiet = |command: &mut Command| {
        // Whether the programs are there is what counts.
        let _ = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    };
    quiet(Command::new("apt-get").arg("download").args(PACKAGES).current_dir(&packages));
    for package in fs::read_dir(&packages)? {
        quiet(Command::new("dpkg").arg("-x").arg(package?.path()).arg(kept));
    }
    fs::remove_dir_all(packages)
}

/// The directory of the libraries that came with the packages.
fn libraries(programs: &Path) -> Option<PathBuf> {
    let directories = fs::read_dir(programs.join("usr/lib")).ok()?.flatten();
    directories.map(|entry| entry.path()).find(|path| path.join("libwrap.so.0").exists())
}

/// With its links as links.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let status = Command::new("cp").arg("-a").args([from, to]).status()?;
    if !status.success() {
        return Err(io::Error::other("the programs cannot be copied"));
    }
    let status = Command::new("chmod").args(["-R", "a+rX"]).arg(to).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other("the programs cannot be shown to others")) }
}
