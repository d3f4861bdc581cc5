//! Strict modes: our own files are used only where no other user could have written them.
//!
//! The same rule as ssh has for its keys: a file and every directory above it are owned by this user or root, and
//! writable by no other user. Another writer could choose the policy, the tokens and the audit log. A sticky directory
//! above, such as `/tmp`, prevents others from replacing entries, and a group whose only member is this user is not
//! another user. With a POSIX ACL, the group bits of the mode are its mask and not the group's, so no group is exempt.
//!
//! Not here: making these files (each has its owner's modes where it is made).

use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::lgetxattr;
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::codec::io_text::IoText;

const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
const OTHERS_ENTER: u32 = 0o011;
const STICKY: u32 = 0o1000;

const ACCESS_ACL: &str = "system.posix_acl_access";
const DEFAULT_ACL: &str = "system.posix_acl_default";

/// The longest value that an extended attribute can have.
const LONGEST_ACL: usize = 64 << 10;

/// Links that a path may lead through, as for the kernel.
const MAX_LINKS: usize = 40;

/// Below the state directory: what is looked into as well, because keys are in it.
const AUDIT_DIRECTORY: &str = "audit";

/// A file or directory of ours that others could have written.
#[derive(Debug, thiserror::Error)]
pub enum UnsafePermissionsError {
    #[error(
        "`{path}` belongs to another user (uid {owner}), who could change {what}; use a directory of your own, or `chown` it"
    )]
    Owner { path: String, owner: u32, what: &'static str },
    #[error("other users can write to `{path}` (mode {mode:04o}), and so change {what}; run `chmod go-w {path}`")]
    Mode { path: String, mode: u32, what: &'static str },
    #[error(
        "the default ACL of `{path}` lets other users write to new files in it, and so change {what}; run `setfacl -k {path}`"
    )]
    DefaultAcl { path: String, what: &'static str },
    #[error("`{path}` cannot be checked for who may write to it: {}", IoText(.source))]
    Stat { path: String, source: std::io::Error },
}

/// Checks a config file, and every directory above it.
pub(crate) fn check_config(file: &Path) -> Result<(), UnsafePermissionsError> {
    check_path(file, "your config")
}

/// Checks the state directory, every directory above it and what is in it. One that is missing is made by us later.
pub(crate) fn check_state(state: &Path) -> Result<(), UnsafePermissionsError> {
    const WHAT: &str = "ringfence's state";
    check_path(state, WHAT)?;
    for directory in [state.to_owned(), state.join(AUDIT_DIRECTORY)] {
        check_new_files(&directory, WHAT)?;
        for entry in entries(&directory)? {
            if let Some(found) = stat(&entry)? {
                check(&entry, &found, WHAT)?;
            }
        }
    }
    Ok(())
}

/// Checks from the root down to `path`, as far as it exists, along every link: a user who can replace a link chooses
/// the file.
fn check_path(path: &Path, what: &'static str) -> Result<(), UnsafePermissionsError> {
    let failed = |path: &Path, source| UnsafePermissionsError::Stat { path: path.display().to_string(), source };
    let mut path = std::path::absolute(path).map_err(|source| failed(path, source))?;
    for _ in 0..MAX_LINKS {
        let Some(link) = check_to_link(&path, what)? else { return Ok(()) };
        let target = std::fs::read_link(&link).map_err(|source| failed(&link, source))?;
        let rest = path.strip_prefix(&link).map(Path::to_owned).unwrap_or_default();
        path = link.parent().unwrap_or(&link).join(target);
        if !rest.as_os_str().is_empty() {
            path.push(rest);
        }
    }
    Err(failed(&path, Errno::LOOP.into()))
}

/// The same down to the first link, if there is one.
fn check_to_link(path: &Path, what: &'static str) -> Result<Option<PathBuf>, UnsafePermissionsError> {
    let above: Vec<&Path> = path.ancestors().collect();
    for ancestor in above.into_iter().rev() {
        let Some(found) = stat(ancestor)? else { break };
        let is_above = ancestor != path;
        if !(is_above && found.is_dir() && found.mode() & STICKY != 0 && is_own_or_root(&found)) {
            check(ancestor, &found, what)?;
        }
        if found.is_symlink() {
            return Ok(Some(ancestor.to_owned()));
        }
    }
    Ok(None)
}

fn check(path: &Path, found: &Metadata, what: &'static str) -> Result<(), UnsafePermissionsError> {
    let shown = || path.display().to_string();
    if !is_own_or_root(found) {
        return Err(UnsafePermissionsError::Owner { path: shown(), owner: found.uid(), what });
    }
    // The modes of a link say nothing; that it is ours does.
    if found.is_symlink() {
        return Ok(());
    }
    let mode = found.mode() & 0o7777;
    let group_writes = mode & GROUP_WRITES != 0;
    let is_excused = group_writes && is_private_group(found.gid()) && read_acl(path, ACCESS_ACL)?.is_none();
    match mode & OTHERS_WRITE != 0 || (group_writes && !is_excused) {
        true => Err(UnsafePermissionsError::Mode { path: shown(), mode, what }),
        false => Ok(()),
    }
}

/// Checks what a directory gives to files that are made in it. Where others cannot enter, they reach none of these.
fn check_new_files(directory: &Path, what: &'static str) -> Result<(), UnsafePermissionsError> {
    match std::fs::metadata(directory) {
        Ok(found) if found.is_dir() && found.mode() & OTHERS_ENTER != 0 => {}
        _ => return Ok(()),
    }
    // A final link was checked by `walk`, so its target directory is meant.
    let is_open = read_acl(&directory.join("."), DEFAULT_ACL)?.is_some_and(|acl| acl_lets_others_write(&acl));
    match is_open {
        true => Err(UnsafePermissionsError::DefaultAcl { path: directory.display().to_string(), what }),
        false => Ok(()),
    }
}

/// A POSIX ACL as the kernel gives it, if there is one.
fn read_acl(path: &Path, name: &str) -> Result<Option<Vec<u8>>, UnsafePermissionsError> {
    let mut acl = vec![0; LONGEST_ACL];
    match lgetxattr(path, name, &mut acl[..]) {
        Ok(length) => {
            acl.truncate(length);
            Ok(Some(acl))
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOENT) => Ok(None),
        Err(error) => Err(UnsafePermissionsError::Stat { path: path.display().to_string(), source: error.into() }),
    }
}

/// Whether an ACL lets a user write who is neither this one nor root. One that cannot be read does.
fn acl_lets_others_write(acl: &[u8]) -> bool {
    const VERSION: [u8; 4] = 2_u32.to_le_bytes();
    const USER: u16 = 0x02;
    const GROUP: u16 = 0x08;
    const MASK: u16 = 0x10;
    const OTHER: u16 = 0x20;
    const WRITE: u16 = 0x02;
    let Some((entries, [])) = acl.strip_prefix(&VERSION).map(<[u8]>::as_chunks::<8>) else { return true };
    let entries = entries.iter().map(|&[t0, t1, p0, p1, i0, i1, i2, i3]| {
        let (tag, permissions) = (u16::from_le_bytes([t0, t1]), u16::from_le_bytes([p0, p1]));
        (tag, permissions & WRITE != 0, u32::from_le_bytes([i0, i1, i2, i3]))
    });
    let mask_writes = entries.clone().all(|(tag, writes, _)| tag != MASK || writes);
    entries.into_iter().any(|(tag, writes, id)| match tag {
        USER => writes && mask_writes && id != 0 && id != geteuid().as_raw(),
        GROUP => writes && mask_writes && !is_private_group(id),
        OTHER => writes,
        _ => false,
    })
}

fn is_own_or_root(found: &Metadata) -> bool {
    found.uid() == 0 || found.uid() == geteuid().as_raw()
}

fn stat(path: &Path) -> Result<Option<Metadata>, UnsafePermissionsError> {
    match std::fs::symlink_metadata(path) {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(source) => Err(UnsafePermissionsError::Stat { path: path.display().to_string(), source }),
    }
}

fn entries(directory: &Path) -> Result<Vec<PathBuf>, UnsafePermissionsError> {
    let listed = std::fs::read_dir(directory).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
    match listed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        listed => {
            listed.map_err(|source| UnsafePermissionsError::Stat { path: directory.display().to_string(), source })
        }
    }
}

/// Whether this user is the only member of a group, as distributions make one for each user.
fn is_private_group(gid: u32) -> bool {
    let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    is_group_of(geteuid().as_raw(), gid, &read("/etc/passwd"), &read("/etc/group"))
}

fn is_group_of(uid: u32, gid: u32, users: &str, groups: &str) -> bool {
    const NAME: usize = 0;
    const NUMBER: usize = 2;
    const FIRST_GROUP_OR_MEMBERS: usize = 3;
    let field = |line: &str, at: usize| line.split(':').nth(at).unwrap_or_default().to_owned();
    let has = |line: &str, at: usize, number: u32| field(line, at).parse() == Ok(number);
    let Some(user) = users.lines().find(|line| has(line, NUMBER, uid)) else { return false };
    let Some(group) = groups.lines().find(|line| has(line, NUMBER, gid)) else { return false };
    let others = users.lines().any(|line| has(line, FIRST_GROUP_OR_MEMBERS, gid) && !has(line, NUMBER, uid));
    let members = field(group, FIRST_GROUP_OR_MEMBERS);
    !others && members.split(',').all(|member| member.is_empty() || member == field(user, NAME))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    use rustix::fs::{XattrFlags, removexattr, setxattr};
    use rustix::io::Errno;

    use super::{UnsafePermissionsError, check_config, check_state, is_group_of};

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    /// A state directory that others may enter, with a log in it.
    fn open_to_all() -> (tempfile::TempDir, std::path::PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        set(directory.path(), 0o755);
        let state = directory.path().join("state");
        fs::create_dir_all(state.join("audit")).unwrap();
        fs::write(state.join("audit/key"), "k").unwrap();
        fs::write(state.join("tokens"), "t").unwrap();
        for path in [state.clone(), state.join("audit"), state.join("audit/key"), state.join("tokens")] {
            let mode = if path.is_dir() { 0o755 } else { 0o644 };
            set(&path, mode);
        }
        (directory, state)
    }

    #[test]
    fn files_writable_by_others_are_refused() {
        let (directory, state) = open_to_all();
        check_state(&state).unwrap();
        for (path, mode) in [
            (directory.path().to_owned(), 0o777),
            (state.clone(), 0o757),
            (state.clone(), 0o1777),
            (state.join("audit"), 0o777),
            (state.join("audit/key"), 0o646),
            (state.join("tokens"), 0o666),
        ] {
            let before = fs::metadata(&path).unwrap().permissions();
            set(&path, mode);
            let refused = check_state(&state).unwrap_err();
            assert!(
                matches!(&refused, UnsafePermissionsError::Mode { path: named, .. } if Path::new(named) == path),
                "{refused}"
            );
            assert!(refused.to_string().contains(&format!("chmod go-w {}", path.display())), "{refused}");
            fs::set_permissions(&path, before).unwrap();
            check_state(&state).unwrap();
        }
    }

    #[test]
    fn a_sticky_directory_above_is_safe_and_a_closed_one_excuses_nothing() {
        let (directory, state) = open_to_all();
        set(directory.path(), 0o1777);
        check_state(&state).unwrap();
        set(&state, 0o777);
        check_state(&state).unwrap_err();
        set(directory.path(), 0o700);
        check_state(&state).unwrap_err();
        set(&state, 0o700);
        set(&state.join("audit/key"), 0o606);
        check_state(&state).unwrap_err();
        check_state(&directory.path().join("not/there/yet")).unwrap();
    }

    const USER_OBJ: u16 = 0x01;
    const USER: u16 = 0x02;
    const GROUP_OBJ: u16 = 0x04;
    const GROUP: u16 = 0x08;
    const MASK: u16 = 0x10;
    const OTHER: u16 = 0x20;
    const NO_ID: u32 = u32::MAX;
    const STRANGER: u32 = 54321;

    /// Sets a POSIX ACL. False where the file system has none.
    fn set_acl(path: &Path, name: &str, entries: &[(u16, u16, u32)]) -> bool {
        let mut acl = 2_u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            acl.extend(tag.to_le_bytes().into_iter().chain(permissions.to_le_bytes()).chain(id.to_le_bytes()));
        }
        match setxattr(path, name, &acl, XattrFlags::empty()) {
            Ok(()) => true,
            Err(Errno::OPNOTSUPP) => false,
            Err(error) => panic!("{name} of {}: {error}", path.display()),
        }
    }

    #[test]
    fn a_mode_that_is_the_mask_of_an_access_list_is_not_excused_by_a_private_group() {
        let (_directory, state) = open_to_all();
        for path in [state.clone(), state.join("audit"), state.join("audit/key"), state.join("tokens")] {
            let before = fs::metadata(&path).unwrap().permissions();
            let entries = |mask| {
                let all = if path.is_dir() { 7 } else { 6 };
                [
                    (USER_OBJ, all, NO_ID),
                    (USER, all, STRANGER),
                    (GROUP_OBJ, 4, NO_ID),
                    (MASK, mask, NO_ID),
                    (OTHER, 4, NO_ID),
                ]
            };
            if !set_acl(&path, "system.posix_acl_access", &entries(6)) {
                return;
            }
            let refused = check_state(&state).unwrap_err();
            assert!(
                matches!(&refused, UnsafePermissionsError::Mode { path: named, .. } if Path::new(named) == path),
                "{refused}"
            );
            // An ACL whose mask denies writing is safe, and so is the result of `chmod go-w`.
            assert!(set_acl(&path, "system.posix_acl_access", &entries(4)));
            check_state(&state).unwrap();
            fs::set_permissions(&path, before).unwrap();
            check_state(&state).unwrap();
        }
    }

    #[test]
    fn a_default_access_list_that_lets_others_write_to_new_files_is_refused() {
        let (_directory, state) = open_to_all();
        let own = rustix::process::geteuid().as_raw();
        let cases = [
            (USER, 6, STRANGER, 7, true),
            (GROUP, 6, STRANGER, 7, true),
            (USER, 6, STRANGER, 5, false),
            (USER, 5, STRANGER, 7, false),
            (USER, 7, own, 7, false),
            (USER, 7, 0, 7, false),
        ];
        for directory in [state.clone(), state.join("audit")] {
            for (tag, permissions, id, mask, is_refused) in cases {
                let entries = [
                    (USER_OBJ, 7, NO_ID),
                    (tag, permissions, id),
                    (GROUP_OBJ, 5, NO_ID),
                    (MASK, mask, NO_ID),
                    (OTHER, 5, NO_ID),
                ];
                let mut sorted = entries;
                sorted.sort_by_key(|entry| entry.0);
                set(&directory, 0o755);
                if !set_acl(&directory, "system.posix_acl_default", &sorted) {
                    return;
                }
                let checked = check_state(&state);
                let is_named = |error: &UnsafePermissionsError| {
                    error.to_string().contains(&format!("setfacl -k {}", directory.display()))
                };
                assert_eq!(checked.as_ref().is_err_and(is_named), is_refused, "{entries:?}: {checked:?}");
                // In a directory that no other user can enter, the files are out of reach.
                set(&directory, 0o700);
                check_state(&state).unwrap();
            }
            let world_writable = [(USER_OBJ, 7, NO_ID), (GROUP_OBJ, 5, NO_ID), (OTHER, 7, NO_ID)];
            set(&directory, 0o755);
            assert!(set_acl(&directory, "system.posix_acl_default", &world_writable));
            check_state(&state).unwrap_err();
            removexattr(&directory, "system.posix_acl_default").unwrap();
            check_state(&state).unwrap();
        }
    }

    #[test]
    fn a_config_file_is_checked_like_state() {
        let (directory, state) = open_to_all();
        let file = state.join("tokens");
        check_config(&file).unwrap();
        set(&file, 0o606);
        check_config(&file).unwrap_err();
        // A link to it does not bypass the check.
        let link = directory.path().join("config.toml");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        check_config(&link).unwrap_err();
    }

    #[test]
    fn a_link_that_others_could_replace_is_not_followed() {
        let (directory, state) = open_to_all();
        let (open, own) = (directory.path().join("open"), directory.path().join("own"));
        fs::create_dir(&open).unwrap();
        std::os::unix::fs::symlink("../state", open.join("link")).unwrap();
        std::os::unix::fs::symlink(directory.path().join("open/link/audit"), &own).unwrap();
        for path in [state.join("../open/link"), open.join("link/audit"), own.clone(), own.join("key")] {
            set(&open, 0o755);
            check_config(&path).unwrap();
            set(&open, 0o1777);
            check_config(&path).unwrap();
            set(&open, 0o777);
            let refused = check_config(&path).unwrap_err();
            assert!(
                matches!(&refused, UnsafePermissionsError::Mode { path, .. } if path.ends_with("open")),
                "{refused}"
            );
        }
        std::os::unix::fs::symlink("loop", directory.path().join("loop")).unwrap();
        check_config(&directory.path().join("loop/x")).unwrap_err();
    }

    #[test]
    fn the_group_that_is_one_user_s_own_may_write() {
        let users = "root:x:0:0::/root:/bin/sh\nsync:x:4:0::/:/bin/sync\nme:x:1000:1000::/home/me:/bin/sh\nyou:x:1001:1001::/:/bin/sh\n";
        let groups = "root:x:0:\nme:x:1000:\nstaff:x:50:me,you\nmine:x:60:me\n";
        for (uid, gid, expected) in
            [(1000, 1000, true), (1000, 60, true), (1000, 50, false), (0, 0, false), (1000, 1001, false), (7, 7, false)]
        {
            assert_eq!(is_group_of(uid, gid, users, groups), expected, "{uid} {gid}");
        }
        // Another user has it as their primary group.
        assert!(!is_group_of(1000, 1000, &format!("{users}it:x:1002:1000::/:\n"), groups));
    }
}
