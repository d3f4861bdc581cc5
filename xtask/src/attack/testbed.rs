//! Testbed for attacks: a workspace, and beside it files that must not be read or changed.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::mcp_client::AttackReply;
use super::scoreboard::AttackOutcome;

/// The text that is searched for and edited: the line before the secret. It reveals nothing.
pub(crate) const SEARCHED_LINE: &str = "first line";

/// Contents, a name and a size of the files outside. No request reveals them.
const SECRET: &str = "host-secret-5d1c";
const CANARY: &str = "canary-5d1c";
const SECRET_SIZE: usize = 48_611;

/// Directories beside the workspace: one with another name, and one whose name begins with the workspace's.
const OUTSIDE: [&str; 2] = ["outside", "ws-evil"];

/// More than this in one reply is of no use to a model.
const MAX_REPLY_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct AttackTestbed {
    pub(crate) base: PathBuf,
}

impl AttackTestbed {
    pub(crate) fn new(dir: &Path) -> io::Result<Self> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let base = dir.join(format!("stage-{}-{number}", std::process::id()));
        fs::create_dir_all(base.join("ws/sub"))?;
        let stage = Self { base };
        stage.write("inside.txt", format!("{SEARCHED_LINE} inside\n"))?;
        stage.write("sub/inside.txt", format!("{SEARCHED_LINE} inside\n"))?;
        stage.restore()?;
        Ok(stage)
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.base.join("ws")
    }

    pub(crate) fn outside(&self) -> PathBuf {
        self.base.join("outside")
    }

    /// A file in the workspace.
    pub(crate) fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> io::Result<()> {
        let path = self.workspace().join(name);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(path, contents)
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.workspace().join(name)).unwrap_or_default()
    }

    pub(crate) fn set_mode(&self, name: &str, mode: u32) -> io::Result<()> {
        fs::set_permissions(self.workspace().join(name), fs::Permissions::from_mode(mode))
    }

    pub(crate) fn mode(&self, name: &str) -> u32 {
        fs::metadata(self.workspace().join(name)).map_or(0, |it| it.mode() & 0o7777)
    }

    /// A named pipe in the workspace.
    pub(crate) fn pipe(&self, name: &str) -> io::Result<()> {
        let made = Command::new("mkfifo").arg(self.workspace().join(name)).status()?;
        if made.success() { Ok(()) } else { Err(io::Error::other("mkfifo failed")) }
    }

    /// Restores the files outside. The directories themselves stay: links and races lead to them.
    pub(crate) fn restore(&self) -> io::Result<()> {
        for directory in OUTSIDE.map(|name| self.base.join(name)) {
            fs::create_dir_all(&directory)?;
            for entry in fs::read_dir(&directory)? {
                let entry = entry?;
                let is_directory = entry.file_type()?.is_dir();
                if is_directory { fs::remove_dir_all(entry.path())? } else { fs::remove_file(entry.path())? }
            }
            fs::create_dir(directory.join(CANARY))?;
            fs::write(directory.join("secret.txt"), secret())?;
        }
        Ok(())
    }

    pub(crate) fn is_outside_unchanged(&self) -> bool {
        OUTSIDE.iter().all(|name| {
            let entries = fs::read_dir(self.base.join(name)).into_iter().flatten().flatten();
            let looks = entries.map(|entry| {
                let size = entry.metadata().map_or(0, |it| if it.is_file() { it.len() } else { 0 });
                (entry.file_name(), size)
            });
            let expected = [(CANARY.into(), 0), ("secret.txt".into(), SECRET_SIZE as u64)];
            looks.collect::<BTreeMap<_, _>>() == BTreeMap::from(expected)
        })
    }

    /// The outcome of a call, by its reply and the disk afterwards.
    pub(crate) fn classify_reply(&self, reply: &AttackReply) -> AttackOutcome {
        let text = reply.text();
        let stolen = fs::symlink_metadata(self.workspace().join("stolen")).is_ok_and(|it| it.is_file())
            && String::from_utf8_lossy(&self.read("stolen")).contains(SECRET);
        let is_told = text.contains(SECRET) || text.contains(CANARY) || has_number(&text, SECRET_SIZE);
        match reply {
            _ if is_told || stolen || !self.is_outside_unchanged() => AttackOutcome::Leaked,
            AttackReply::TimedOut => AttackOutcome::Hung,
            AttackReply::Exited => AttackOutcome::Crashed,
            AttackReply::Message(_) if text.len() > MAX_REPLY_BYTES => AttackOutcome::Flooded,
            AttackReply::Message(_) => AttackOutcome::Held,
        }
    }
}

impl Drop for AttackTestbed {
    fn drop(&mut self) {
        // A directory that cannot be removed does no harm.
        let _ = fs::remove_dir_all(&self.base);
    }
}

/// As a number of its own, and not in the middle of a hash or a time.
fn has_number(text: &str, number: usize) -> bool {
    let number = number.to_string();
    text.match_indices(&number).any(|(at, _)| {
        let before = text.get(..at).and_then(|before| before.chars().next_back());
        let after = text.get(at + number.len()..).and_then(|after| after.chars().next());
        let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '.' || c == '-');
        !is_part(before) && !is_part(after)
    })
}

/// The same as outside, for what is a secret inside.
pub(crate) fn secret() -> String {
    let text = format!("{SEARCHED_LINE} {SECRET}\n");
    let padding = SECRET_SIZE.saturating_sub(text.len());
    text + &"x".repeat(padding)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_not_found_in_a_hash_or_a_time() {
        for (text, found) in [
            (r#""size":48611,"#, true),
            ("size: 48611\n", true),
            ("a48611b", false),
            ("12:00:01.48611Z", false),
            ("1486110", false),
        ] {
            assert_eq!(has_number(text, SECRET_SIZE), found, "{text}");
        }
    }
}
