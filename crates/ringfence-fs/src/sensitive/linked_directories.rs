//! Targets of symbolic links to directories in a workspace.
//!
//! Where `.vscode` is a link to `cfg`, an editor that opens `.vscode/tasks.json` reads `cfg/tasks.json`. So a path in such a
//! directory is as sensitive as it would be below the link.
//!
//! Not here: which links are looked for, and when (`root_scan.rs`).

use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;

use ringfence_kernel::sync::RwLock;
use ringfence_kernel::{Sensitivity, sensitivity, settings_through_link};

use crate::path::name::escape;
use crate::root::{MountRoot, open_no_follow};
use crate::sys::syscall::readlinkat;

/// As the kernel counts them.
const MOST_FOLLOWED: usize = 40;

/// More links are not kept: each path that is judged is compared with all of them.
const MOST_LINKS: usize = 2000;

/// The links of a mount that lead to directories inside it.
#[derive(Debug, Default)]
pub(crate) struct LinkedDirectories {
    links: RwLock<Vec<DirectoryLink>>,
}

/// A link, and the directory that it leads to, both as paths below the root.
#[derive(Debug, PartialEq, Eq)]
struct DirectoryLink {
    link: String,
    /// Empty for the root.
    target: Vec<u8>,
}

impl LinkedDirectories {
    pub(crate) fn add(&self, link: &str, target: &[u8]) {
        let target = if target == b"." { Vec::new() } else { target.to_vec() };
        let found = DirectoryLink { link: link.to_owned(), target };
        let mut links = self.links.write();
        if links.len() < MOST_LINKS && !links.contains(&found) {
            links.push(found);
        }
    }

    /// Number of links that are known. It grows with each that is added.
    pub(crate) fn count(&self) -> usize {
        self.links.read().len()
    }

    /// Sensitivity of a path, which goes through no link, by the names of links above it.
    pub(crate) fn sensitivity(&self, path: &[u8]) -> Sensitivity {
        let links = self.links.read();
        let inside = links.iter().filter_map(|known| Some((known, relative_to_folded(path, &known.target)?)));
        let named = inside.map(|(known, rest)| sensitivity(&format!("{}/{}", known.link, escape(rest))));
        named.fold(Sensitivity::default(), Sensitivity::union)
    }

    /// Whether a path is a directory that settings are looked for in by way of a link, or has one in it: what is done to the
    /// directory is done to them.
    pub(crate) fn affects(&self, path: &[u8]) -> bool {
        let links = self.links.read();
        let mut targets = links.iter().filter(|known| relative_to_folded(&known.target, path).is_some());
        !path.is_empty() && targets.any(|known| is_sensitive_link(&known.link))
    }
}

/// Resolves a path as other programs do: also through absolute links, as long as these lead inside. Nothing outside is
/// read.
pub(crate) fn followed_inside(mount: &MountRoot, path: &[u8]) -> Option<Vec<u8>> {
    let names = |path: &[u8]| -> Vec<Vec<u8>> {
        let names = path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
        names.rev().map(<[u8]>::to_vec).collect()
    };
    let (mut here, mut ahead, mut followed): (Vec<Vec<u8>>, _, _) = (Vec::new(), names(path), 0);
    while let Some(name) = ahead.pop() {
        if name == b".." {
            here.pop()?;
            continue;
        }
        let parent = open_no_follow(mount, &here.join(&b'/'))?;
        let Ok(target) = readlinkat(parent.as_fd(), name.as_slice()) else {
            here.push(name);
            continue;
        };
        followed += 1;
        if followed > MOST_FOLLOWED {
            return None;
        }
        let target = target.to_bytes();
        if target.starts_with(b"/") {
            here.clear();
            let below = |root: &[u8]| target.strip_prefix(root).filter(|rest| matches!(rest, [] | [b'/', ..]));
            ahead.extend(names(mount.host_roots.iter().find_map(|root| below(root.as_os_str().as_bytes()))?));
        } else {
            ahead.extend(names(target));
        }
    }
    Some(here.join(&b'/'))
}

/// Whether a link of this name, or something below it, is sensitive.
pub(crate) fn is_sensitive_link(link: &str) -> bool {
    sensitivity(link).is_any() || settings_through_link(link).is_some()
}

/// The rest of a path below a directory, on a case-insensitive file system.
fn relative_to_folded<'a>(path: &'a [u8], directory: &[u8]) -> Option<&'a [u8]> {
    if directory.is_empty() {
        return Some(path);
    }
    let (start, rest) = path.split_at_checked(directory.len())?;
    match rest {
        _ if !start.eq_ignore_ascii_case(directory) => None,
        b"" => Some(rest),
        rest => rest.strip_prefix(b"/"),
    }
}

#[cfg(test)]
mod tests {
    use super::LinkedDirectories;

    #[test]
    fn a_path_is_as_sensitive_as_below_the_link() {
        let linked = LinkedDirectories::default();
        linked.add(".vscode", b"cfg");
        linked.add(".github", b"a/meta");
        linked.add(".ssh", b"keys");
        for path in ["cfg", "cfg/tasks.json", "CFG/deep/x", "a/meta/workflows/ci.yml", "a/meta/notes.md", "keys/x"] {
            assert!(linked.sensitivity(path.as_bytes()).protected, "{path}");
        }
        for path in ["", "a", "a/meta", "a/meta/FUNDING.yml", "cfg2/tasks.json", "x/cfg/tasks.json"] {
            assert!(!linked.sensitivity(path.as_bytes()).is_any(), "{path}");
        }
        assert!(linked.sensitivity(b"keys/deep/x").secret && !linked.sensitivity(b"cfg/x").secret);
        for (path, expected) in [("a", true), ("a/meta", true), ("cfg", true), ("a/meta/x", false), ("", false)] {
            assert_eq!(linked.affects(path.as_bytes()), expected, "{path}");
        }
    }
}
