//! Generated `/etc` of the jail.
//!
//! A few files are made here: one user, one host, no names to resolve. A few of the host's are shown read-only because
//! programs do not work without them. Everything else, such as passwords, keys, the host's name and its identity, is not
//! there: what is not in these two lists is not in the jail.
//!
//! Not here: mounting.

use std::fs;
use std::path::{Path, PathBuf};

/// The one user of the jail.
pub(crate) const USER: &str = "user";
pub(crate) const UID: u32 = 1000;
pub(crate) const GID: u32 = 1000;

/// Host name of the jail.
pub(crate) const HOSTNAME: &str = "jail";

/// Files that are made, by their names in `/etc`. Without a `localtime`, the time is UTC.
pub(crate) fn files() -> &'static [(&'static str, &'static str)] {
    &[
        // User IDs that are not mapped into the jail show up as `nobody`.
        (
            "passwd",
            "user:x:1000:1000::/tmp/home:/bin/sh\nnobody:x:65534:65534:not in the jail:/nonexistent:/bin/false\n",
        ),
        ("group", "user:x:1000:\nnogroup:x:65534:\n"),
        ("hosts", "127.0.0.1 localhost jail\n::1 localhost jail\n"),
        ("hostname", "jail\n"),
        ("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\nservices: files\nprotocols: files\n"),
        // A port on which nothing listens: the C library is refused at once. musl does not hear of that, and waits as long
        // as it is told to; others take no time for the shortest.
        ("resolv.conf", "nameserver 127.0.0.1\noptions timeout:0 attempts:1\n"),
        ("host.conf", "multi on\n"),
        ("timezone", "Etc/UTC\n"),
        ("shells", "/bin/sh\n/bin/bash\n"),
    ]
}

/// Files of the host's `/etc` that are shown where they exist. All of them are public, and the same on every machine
/// with the same packages. A star stands for any ending.
const HOST_FILES: [&str; 28] = [
    // The loader.
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "ld-musl-*",
    // Which certificates to believe. The keys in `ssl/private` are not shown.
    "ssl/certs",
    "ssl/cert.pem",
    "ssl/openssl.cnf",
    "ca-certificates",
    "ca-certificates.conf",
    "pki/ca-trust/extracted",
    "pki/tls/certs",
    "pki/tls/cert.pem",
    "pki/tls/openssl.cnf",
    "crypto-policies",
    // Which of several programs is meant.
    "alternatives",
    // Names for numbers.
    "mime.types",
    "protocols",
    "services",
    "magic",
    "magic.mime",
    // Parts of packages that live here.
    "fonts",
    "java-*",
    "perl",
    "python3*",
    "R",
    "terminfo",
    // Which system this is.
    "debian_version",
    "os-release",
];

/// Those that are there, as paths relative to `etc`, sorted.
pub(crate) fn host_files(etc: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = HOST_FILES.iter().flat_map(|shown| present(etc, shown)).collect();
    found.sort();
    found
}

fn present(etc: &Path, shown: &str) -> Vec<PathBuf> {
    let Some(beginning) = shown.strip_suffix('*') else {
        return Some(PathBuf::from(shown)).filter(|path| etc.join(path).exists()).into_iter().collect();
    };
    let entries = fs::read_dir(etc).into_iter().flatten().flatten();
    let names = entries.map(|entry| PathBuf::from(entry.file_name()));
    names.filter(|name| name.to_string_lossy().starts_with(beginning) && etc.join(name).exists()).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::{GID, HOSTNAME, UID, USER, files, host_files};
    use crate::environment;

    fn generated_file(name: &str) -> &'static str {
        files().iter().find(|(file, _)| *file == name).unwrap().1
    }

    #[test]
    fn the_files_agree_with_each_other() {
        let user = format!("{USER}:x:{UID}:{GID}::{}:/bin/sh\n", environment::HOME);
        assert!(generated_file("passwd").starts_with(&user));
        assert!(generated_file("group").starts_with(&format!("{USER}:x:{GID}:\n")));
        assert_eq!(generated_file("hostname"), format!("{HOSTNAME}\n"));
        assert!(generated_file("hosts").lines().all(|line| line.ends_with(HOSTNAME)));
    }

    #[test]
    fn generated_files_are_not_taken_from_the_host() {
        let shown = host_files(Path::new("/etc"));
        for (name, _) in files() {
            assert!(!shown.contains(&PathBuf::from(name)), "{name}");
        }
    }

    #[test]
    fn only_what_is_listed_is_shown() {
        let etc = tempfile::tempdir().unwrap();
        let names = [
            "shadow",
            "gshadow",
            "hostname",
            "machine-id",
            "ssh/key",
            "ssl/private/key",
            "ssl/certs/x.pem",
            "krb5.keytab",
            "python3.12/x",
            "python3/y",
            "pythonrc",
            "sudoers",
            "fstab",
            "ld.so.cache",
            "environment",
            "gitconfig",
        ];
        for name in names {
            let path = etc.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let shown: Vec<String> = host_files(etc.path()).iter().map(|path| path.display().to_string()).collect();
        assert_eq!(shown, ["ld.so.cache", "python3", "python3.12", "ssl/certs"]);
    }
}
