//! Secrets in toolchain directories that a jail shows, by their names.
//!
//! A file that is a secret by its name in a workspace is one in `/opt` and `/usr/local` too. Published files, such as
//! the packages of the system, installed libraries, registries of crates and the Nix store, are not searched: they have
//! no secrets, and test keys that builds need.
//!
//! Not here: hiding them (`mounts.rs`, `bwrap_launcher.rs`).

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use ringfence_kernel::sensitivity;

/// A directory with more entries is not looked through, and not shown.
const MAX_ENTRIES: usize = 1_000_000;

/// Directories of system settings, in which programs keep tokens for all users. Programs of a jail need none of them.
const SETTINGS_DIRS: [&str; 2] = ["usr/local/etc", "usr/etc"];

/// The part of the system that packages do not own.
const LOCAL_PREFIX: &str = "usr/local";

/// Parts of paths, one below the other, whose contents are published.
const PUBLISHED_PATHS: [&[&str]; 7] = [
    &[".cargo", "registry"],
    &[".cargo", "git"],
    &[".rustup"],
    &["nix", "store"],
    &["etc"],
    &["go", "pkg", "mod"],
    &[".cache", "uv"],
];

/// Names of directories, or their beginnings, that hold installed libraries and manuals. Those are published, have test keys
/// in them, and are most of what there is.
const LIBRARY_DIRS: [&str; 12] = [
    "site-packages",
    "dist-packages",
    "node_modules",
    "python2",
    "python3",
    "perl5",
    "gems",
    "include",
    "man",
    "doc",
    "locale",
    "icons",
];

/// Repositories among the published directories; their files have the URL they were fetched from, perhaps with a token
/// in it.
const REPOSITORY_GLOBS: [&str; 6] =
    ["db/*", "checkouts/*/*/.git", "index/*/.git", "cache/vcs/*", "git-v0/db/*", "git-v0/checkouts/*/*/.git"];
const FILES_WITH_URLS: [&str; 3] = ["config", "FETCH_HEAD", "logs/HEAD"];

/// Settings of programs that are public unless there is a token in them.
const MAYBE_TOKEN_FILES: [&str; 8] =
    ["npmrc", "pip.conf", "gitconfig", ".gitconfig", ".condarc", "settings.xml", "gradle.properties", "credentials"];

/// A hidden path below a mounted directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SecretPath {
    File(PathBuf),
    Directory(PathBuf),
}

/// Those below a cache of a toolchain. Files that are named by their contents have no names that tell.
pub(crate) fn find_cache_secrets(cache: &Path) -> Option<Vec<SecretPath>> {
    let root = Path::new("/");
    find_secrets_in(root, cache.strip_prefix(root).ok()?, &|path| is_library(path) || is_digest_prefix(path))
}

/// Those below a directory, which is named by its path from the host's root. Nothing, if there is too much to look through.
pub(crate) fn find_secrets(host: &Path, directory: &Path) -> Option<Vec<SecretPath>> {
    find_secrets_in(host, directory, &is_library)
}

fn find_secrets_in(host: &Path, directory: &Path, is_skipped: &dyn Fn(&Path) -> bool) -> Option<Vec<SecretPath>> {
    if PUBLISHED_PATHS.iter().any(|parts| has_parts(directory, parts)) {
        return Some(urls_with_credentials(&host.join(directory)));
    }
    let mut found: Vec<SecretPath> = Vec::new();
    for settings in SETTINGS_DIRS.map(Path::new) {
        if let Ok(below) = settings.strip_prefix(directory)
            && host.join(settings).is_dir()
        {
            found.push(SecretPath::Directory(below.to_owned()));
        }
    }
    // Of the system, packages own all but one directory.
    let start = match Path::new(LOCAL_PREFIX).strip_prefix(directory) {
        Ok(local) => local.to_owned(),
        Err(_) if is_package_owned(directory) => return Some(found),
        Err(_) => PathBuf::new(),
    };
    let mut left = vec![start];
    let mut entries = 0;
    while let Some(below) = left.pop() {
        for entry in fs::read_dir(host.join(directory).join(&below)).into_iter().flatten().flatten() {
            entries += 1;
            let (path, kind) = (below.join(entry.file_name()), entry.file_type().ok()?);
            if found.contains(&SecretPath::Directory(path.clone())) {
                continue;
            }
            let is_secret = (kind.is_dir() || kind.is_file()) && is_named_secret(&path);
            if kind.is_dir() && is_secret {
                found.push(SecretPath::Directory(path));
            } else if kind.is_dir() {
                left.extend((!is_skipped(&path)).then_some(path));
            } else if kind.is_file() && (is_secret || may_hold_token(&path)) && !is_public(&entry.path()) {
                found.push(SecretPath::File(path));
            }
        }
        if entries > MAX_ENTRIES {
            return None;
        }
    }
    found.sort();
    Some(found)
}

/// Files of repositories that name a user in an address.
fn urls_with_credentials(root: &Path) -> Vec<SecretPath> {
    let mut found = Vec::new();
    for pattern in REPOSITORY_GLOBS {
        let mut repositories = vec![PathBuf::new()];
        for part in Path::new(pattern) {
            repositories = repositories.iter().flat_map(|above| matching(root, above, part)).collect();
        }
        let files = repositories.iter().flat_map(|repository| FILES_WITH_URLS.map(|name| repository.join(name)));
        let names_user =
            |path: &PathBuf| fs::read_to_string(root.join(path)).is_ok_and(|text| has_url_credentials(&text));
        found.extend(files.filter(names_user).map(SecretPath::File));
    }
    found
}

/// Entries of this name in a directory; a star stands for every one.
fn matching(root: &Path, above: &Path, part: &std::ffi::OsStr) -> Vec<PathBuf> {
    if part != "*" {
        return Some(above.join(part)).filter(|path| root.join(path).is_dir()).into_iter().collect();
    }
    let entries = fs::read_dir(root.join(above)).into_iter().flatten().flatten();
    entries.map(|entry| above.join(entry.file_name())).collect()
}

fn is_package_owned(directory: &Path) -> bool {
    ["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"].iter().any(|name| directory == Path::new(name))
}

fn has_parts(directory: &Path, parts: &[&str]) -> bool {
    let names: Vec<&std::ffi::OsStr> = directory.iter().collect();
    names.windows(parts.len()).any(|window| window.iter().zip(parts).all(|(name, part)| name == part))
}

/// By its own name and that of the directory above: what is further up was looked at before. A name that is not text may be
/// anything.
fn is_named_secret(path: &Path) -> bool {
    let above = path.parent().and_then(Path::file_name).map(Path::new).unwrap_or(Path::new(""));
    let last = path.file_name().map(|name| above.join(name)).unwrap_or_default();
    last.to_str().is_none_or(|last| sensitivity(last).secret)
}

fn is_library(directory: &Path) -> bool {
    let name = directory.file_name().and_then(std::ffi::OsStr::to_str).unwrap_or_default();
    LIBRARY_DIRS.iter().any(|known| {
        let rest = name.strip_prefix(known);
        rest.is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'))
    })
}

/// Whether a directory has the first two digits of digests as its name, as those of content-addressed stores have.
fn is_digest_prefix(directory: &Path) -> bool {
    let name = directory.file_name().map(std::ffi::OsStr::as_encoded_bytes).unwrap_or_default();
    name.len() == 2 && name.iter().all(u8::is_ascii_hexdigit)
}

fn may_hold_token(path: &Path) -> bool {
    path.file_name().is_some_and(|name| MAYBE_TOKEN_FILES.iter().any(|known| name == *known))
}

/// Certificates and public keys have the names of private ones, and programs need them. Settings are public without a token.
fn is_public(path: &Path) -> bool {
    const START: u64 = 1 << 20;
    let mut text = Vec::new();
    let read = fs::File::open(path).and_then(|file| file.take(START).read_to_end(&mut text));
    if read.is_err() {
        return false;
    }
    let text = String::from_utf8_lossy(&text);
    if may_hold_token(path) {
        return has_no_token(&text);
    }
    let is_key = path.extension().is_some_and(|end| end == "pem" || end == "key");
    let says = |word: &str| text.contains(word);
    is_key && (says("BEGIN CERTIFICATE") || says("PUBLIC KEY")) && !says("PRIVATE KEY")
}

/// Whether settings name no token or password, and no address with a user in front.
pub(crate) fn has_no_token(settings: &str) -> bool {
    let text = settings.to_lowercase();
    let words = ["token", "secret", "password", "passwd", "credential", "authorization", "auth"];
    !words.iter().any(|word| text.contains(word)) && !has_url_credentials(&text)
}

/// Whether an address in a text has a user in front of its host.
fn has_url_credentials(text: &str) -> bool {
    let hosts = text.lines().flat_map(|line| line.split("://").skip(1));
    hosts.filter_map(|rest| rest.split(['/', ' ']).next()).any(|host| host.contains('@'))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::{SecretPath, find_secrets};

    const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\nx\n";

    #[track_caller]
    fn check(directory: &str, files: &[(&str, &str)], expected: &[SecretPath]) {
        let host = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = host.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        assert_eq!(find_secrets(host.path(), Path::new(directory)).unwrap(), expected, "{directory}");
    }

    fn file(path: &str) -> SecretPath {
        SecretPath::File(path.into())
    }

    fn directory(path: &str) -> SecretPath {
        SecretPath::Directory(path.into())
    }

    #[test]
    fn workspace_secret_names_are_secret_in_toolchains() {
        let files = [
            ("opt/tool/bin/tool", ""),
            ("opt/tool/lib/.env", "KEY=x"),
            ("opt/tool/lib/deep/er/id_rsa", "x"),
            ("opt/tool/lib/app/.ssh/config", "x"),
            ("opt/tool/lib/certs/cacert.pem", CERTIFICATE),
            ("opt/tool/lib/python3.12/test/key.pem", "-----BEGIN PRIVATE KEY-----"),
            ("opt/tool/lib/node_modules/a/.env", "of a package"),
            ("opt/tool/lib/server.pem", "-----BEGIN CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\n"),
            ("opt/tool/lib/npmrc", "registry=https://a/\n"),
            ("opt/tool/lib/x/npmrc", "//a/:_authToken=x\n"),
            ("opt/tool/lib/pip.conf", "index-url = https://me:x@pypi/\n"),
        ];
        let expected = [
            file(".env"),
            file("deep/er/id_rsa"),
            file("pip.conf"),
            file("server.pem"),
            file("x/npmrc"),
            directory("app/.ssh"),
        ];
        check("opt/tool/lib", &files, &expected);
    }

    #[test]
    fn of_the_system_the_local_part_is_looked_through() {
        let files = [
            ("usr/share/doc/x/secrets.yaml", "of a package"),
            ("usr/local/share/app/secrets.yaml", "x"),
            ("usr/local/etc/npmrc", "x"),
            ("usr/local/bin/tool", ""),
        ];
        check("usr", &files, &[file("local/share/app/secrets.yaml"), directory("local/etc")]);
        check("lib", &files, &[]);
    }

    #[test]
    fn published_files_are_not_masked() {
        let files = [("home/u/.cargo/registry/src/a/tests/server.key", "x"), ("nix/store/a/.env", "x")];
        check("home/u/.cargo/registry", &files, &[]);
        check("nix/store", &files, &[]);
        let files = [
            ("home/u/.cargo/git/db/a-1/FETCH_HEAD", "1234\t\tbranch 'main' of https://x:key@host/a"),
            ("home/u/.cargo/git/db/b-1/FETCH_HEAD", "1234\t\tbranch 'main' of https://host/b"),
            ("home/u/.cargo/git/checkouts/a-1/12/.git/config", "url = https://key@host/a"),
        ];
        let expected = [file("db/a-1/FETCH_HEAD"), file("checkouts/a-1/12/.git/config")];
        check("home/u/.cargo/git", &files, &expected);
        check("etc/ssl/certs", &[("etc/ssl/certs/a.pem", CERTIFICATE)], &[]);
    }
}
