//! Caches of toolchains: directories of the person that lie below cache layers of wrapped programs, read-only.
//!
//! Only the cache itself is opened, without following a link, so that settings and keys beside it stay out. Files in it
//! that are secrets by their names are masked, as in toolchains. A cache that is not there has an empty lower directory.
//!
//! Not here: which caches a run has, and their layers (`ringfence-fs`).

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use rustix::io::Errno;

use crate::sys::held_path;
use crate::toolchain_secrets::{SecretPath, find_cache_secrets};

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Permissions of a cache that is not there.
const DEFAULT_MODE: u32 = 0o755;

/// A cache of a toolchain.
#[derive(Debug)]
pub struct ToolCache {
    /// Relative to the home directory.
    pub path: PathBuf,
    pub(crate) lower: Option<CacheLower>,
}

/// The person's own cache.
#[derive(Debug)]
pub(crate) struct CacheLower {
    pub(crate) directory: OwnedFd,
    pub(crate) host_path: PathBuf,
    pub(crate) masked: Vec<SecretPath>,
}

/// A reason why a cache of the person is not shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ToolCacheProblem {
    #[error("it is a symbolic link, or below one")]
    Link,
    #[error("it is not a directory that you can read")]
    Unreadable,
    #[error("it has too many files to look through for secrets")]
    TooLarge,
}

impl ToolCache {
    /// The cache at this path below a home directory, with the reason if the person's own is left out.
    pub fn find(home: &Path, path: &Path) -> (Self, Option<ToolCacheProblem>) {
        let (lower, problem) = match find_lower(home, path) {
            Ok(lower) => (lower, None),
            Err(problem) => (None, Some(problem)),
        };
        (Self { path: path.to_owned(), lower }, problem)
    }

    /// Whether the person has this cache.
    pub fn is_present(&self) -> bool {
        self.lower.is_some()
    }

    /// Permissions of the directory.
    pub(crate) fn mode(&self) -> u32 {
        let found = self.lower.as_ref().and_then(|lower| fstat(&lower.directory).ok());
        // Its owner works in it, whatever was done to it.
        found.map_or(DEFAULT_MODE, |found| found.st_mode & 0o777 | 0o700)
    }
}

fn find_lower(home: &Path, path: &Path) -> Result<Option<CacheLower>, ToolCacheProblem> {
    let Ok(home) = openat(CWD, home, DIRECTORY, Mode::empty()) else { return Ok(None) };
    let strict = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let directory = match openat2(home.as_fd(), path, DIRECTORY, Mode::empty(), strict) {
        Ok(directory) => directory,
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::LOOP | Errno::XDEV) => return Err(ToolCacheProblem::Link),
        Err(_) => return Err(ToolCacheProblem::Unreadable),
    };
    let host_path = held_path(&directory).map_err(|_| ToolCacheProblem::Unreadable)?;
    let masked = find_cache_secrets(&host_path).ok_or(ToolCacheProblem::TooLarge)?;
    Ok(Some(CacheLower { directory, host_path, masked }))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::{ToolCache, ToolCacheProblem};
    use crate::toolchain_secrets::SecretPath;

    #[test]
    fn a_cache_is_found_without_following_a_link() {
        let home = tempfile::tempdir().unwrap();
        let at = |path: &str| home.path().join(path);
        fs::create_dir_all(at(".npm/_cacache/index-v5")).unwrap();
        fs::create_dir_all(at("elsewhere/pip")).unwrap();
        symlink("elsewhere", at(".cache")).unwrap();
        symlink(at("elsewhere/pip"), at(".m2")).unwrap();
        fs::write(at("file"), "").unwrap();
        let check = |path: &str, is_present: bool, problem: Option<ToolCacheProblem>| {
            let (cache, found) = ToolCache::find(home.path(), Path::new(path));
            assert_eq!((cache.is_present(), found), (is_present, problem), "{path}");
        };
        check(".npm/_cacache", true, None);
        check(".cargo/registry", false, None);
        check(".cache/pip", false, Some(ToolCacheProblem::Link));
        check(".m2", false, Some(ToolCacheProblem::Link));
        check("file", false, Some(ToolCacheProblem::Unreadable));
    }

    #[test]
    fn secrets_in_a_cache_are_found() {
        let home = tempfile::tempdir().unwrap();
        for (path, text) in [
            (".gradle/caches/modules-2/files-2.1/a.jar", ""),
            (".gradle/caches/gradle.properties", "repoPassword=x"),
            (".gradle/caches/deep/er/id_rsa", "x"),
            (".npm/_cacache/content-v2/sha512/ab/cd/ef01", "x"),
            (".npm/_cacache/.npmrc", "//a/:_authToken=x"),
            ("go/pkg/mod/cache/vcs/ab12/config", "url = https://me:key@host/a"),
            ("go/pkg/mod/example.org/a@v1/testdata/server.key", "of a package"),
        ] {
            fs::create_dir_all(home.path().join(path).parent().unwrap()).unwrap();
            fs::write(home.path().join(path), text).unwrap();
        }
        let masked = |path: &str| ToolCache::find(home.path(), Path::new(path)).0.lower.unwrap().masked;
        let file = |path: &str| SecretPath::File(path.into());
        assert_eq!(masked(".gradle/caches"), [file("deep/er/id_rsa"), file("gradle.properties")]);
        assert_eq!(masked(".npm/_cacache"), [file(".npmrc")]);
        assert_eq!(masked("go/pkg/mod"), [file("cache/vcs/ab12/config")]);
    }
}
