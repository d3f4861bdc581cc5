//! Git reader tests, on repositories that git made.

#![expect(clippy::disallowed_methods, reason = "git makes these files, and the test reads them, without any mount")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use proptest::prelude::{any, proptest};
use ringfence_kernel::{CallCommitState, CallContext, CallLimits, Dialect, IoMode};

use crate::git::{
    GitFile, GitIndex, GitObjectStore, GitReadBudget, GitReadError, GitRefStore, RepositoryFiles, blob_names, oids_in,
    parse_oid,
};

struct GitTestDir(PathBuf);

impl RepositoryFiles for GitTestDir {
    fn open(&self, path: &[u8]) -> Result<Option<GitFile>, GitReadError> {
        let path = self.0.join(std::str::from_utf8(path).unwrap());
        match fs::metadata(&path) {
            Ok(about) if about.is_file() => {
                let fd = fs::File::open(path).unwrap().into();
                Ok(Some(GitFile { fd, size: about.len() }))
            }
            _ => Ok(None),
        }
    }

    fn names(&self, path: &[u8]) -> Result<Vec<Vec<u8>>, GitReadError> {
        let Ok(entries) = fs::read_dir(self.0.join(std::str::from_utf8(path).unwrap())) else { return Ok(Vec::new()) };
        Ok(entries.map(|entry| entry.unwrap().file_name().into_encoded_bytes()).collect())
    }
}

#[track_caller]
fn git(directory: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("git");
    command.current_dir(directory).args(["-c", "user.name=a", "-c", "user.email=b"]).args(arguments);
    let output = command.env("HOME", directory).env("GIT_CONFIG_NOSYSTEM", "1").output().unwrap();
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A repository with a few commits, in which everything is loose.
fn repository() -> tempfile::TempDir {
    let made = tempfile::tempdir().unwrap();
    git(made.path(), &["init", "-q", "-b", "main"]);
    for round in 0..6u32 {
        fs::create_dir_all(made.path().join(format!("d{}/deep", round % 3))).unwrap();
        let long: String = (0..200 + round).map(|line| format!("line {line} of a long text\n")).collect();
        fs::write(made.path().join("long.txt"), long).unwrap();
        fs::write(made.path().join(format!("d{}/deep/f{round}", round % 3)), round.to_string()).unwrap();
        if round == 4 {
            fs::remove_dir_all(made.path().join("d0")).unwrap();
        }
        git(made.path(), &["add", "-A"]);
        git(made.path(), &["commit", "-qm", &round.to_string()]);
        git(made.path(), &["tag", "-a", "-m", "x", &format!("v{round}")]);
    }
    made
}

/// Compares the differences between every two versions with those that git prints, and verifies every object file.
#[track_caller]
fn check(made: &Path) {
    let files = GitTestDir(made.join(".git"));
    let (limits, signal) = (CallLimits::for_dialect(Dialect::Standard), CallCommitState::new());
    let cx = CallContext::new(&limits, IoMode::Blocking, &signal);
    let budget = GitReadBudget::new(&cx);
    let (store, refs) = (GitObjectStore::open(&files, &budget).unwrap(), GitRefStore::open(&files, &budget).unwrap());
    let tree = |version: u32| {
        let oid = refs.resolve(format!("refs/tags/v{version}").as_bytes()).unwrap().unwrap();
        store.tree_of(&oid).unwrap()
    };
    for (old, new) in [(0, 1), (1, 5), (5, 0), (3, 4)] {
        let arguments = ["diff-tree", "-r", "-t", "--name-only", &format!("v{old}"), &format!("v{new}")];
        let expected: BTreeSet<Vec<u8>> = git(made, &arguments).lines().map(|line| line.as_bytes().to_vec()).collect();
        let found = store.differences(Some(tree(new)), &[tree(old)]).unwrap();
        assert_eq!(found.into_iter().map(|one| one.path).collect::<BTreeSet<_>>(), expected, "{old} {new}");
    }
    for name in files.names(b"objects/pack").unwrap() {
        let path = [b"objects/pack/".as_slice(), &name].concat();
        assert_eq!(store.is_intact(&path), Ok(true), "{}", String::from_utf8_lossy(&path));
    }
    let expected: Vec<Vec<u8>> = git(made, &["ls-files"]).lines().map(|line| line.as_bytes().to_vec()).collect();
    let index = GitIndex::parse(&fs::read(made.join(".git/index")).unwrap()).unwrap();
    assert_eq!(index.entries.keys().map(|(path, _)| path.clone()).collect::<Vec<_>>(), expected);
}

#[test]
fn loose_objects_packs_with_deltas_and_every_version_of_an_index_are_read() {
    let made = repository();
    check(made.path());
    for arguments in [
        &["update-index", "--index-version", "4"][..],
        &["repack", "-qadf", "--depth=50"],
        &["pack-refs", "--all"],
        &["update-index", "--index-version", "2"],
        &["-c", "repack.useDeltaBaseOffset=false", "repack", "-qadf"],
    ] {
        git(made.path(), arguments);
        check(made.path());
    }
}

#[test]
fn a_staged_file_is_found_in_every_version_of_an_index() {
    let made = repository();
    fs::write(made.path().join("d1/empty"), "").unwrap();
    std::os::unix::fs::symlink("x", made.path().join("d1/link")).unwrap();
    git(made.path(), &["add", "-A"]);
    let path = made.path().join(".git/index");
    let find = |wanted: &str| GitIndex::find_file(&fs::read(&path).unwrap(), |path| path == wanted.as_bytes());
    for version in ["2", "3", "4"] {
        git(made.path(), &["update-index", "--index-version", version]);
        for (wanted, is_found) in [("d1/deep/f1", true), ("long.txt", true), ("d1/empty", false), ("d1/link", false)] {
            let expected = is_found.then(|| wanted.as_bytes().to_vec());
            assert_eq!(find(wanted), Ok(expected), "{wanted} in version {version}");
        }
    }
    git(made.path(), &["update-index", "--split-index"]);
    assert!(find("nothing").is_err());
    for broken in [&b""[..], b"DIRC", b"DIRC\0\0\0\x02\0\0\0\x01aaaaaaaaaaaaaaaaaaaaaaaa"] {
        assert!(GitIndex::find_file(broken, |_| true).is_err(), "{broken:?}");
    }
}

#[test]
fn an_index_that_has_cached_another_tree_than_its_entries_make_is_not_read() {
    let made = repository();
    let path = made.path().join(".git/index");
    let honest = fs::read(&path).unwrap();
    let at = honest.windows(4).position(|window| window == b"TREE").unwrap();
    // The tree of the root is behind its name, its counts and a newline.
    let oid = at + 8 + honest[at + 8..].iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let mut lying = honest.clone();
    lying[oid] ^= 1;
    assert!(GitIndex::parse(&honest).is_ok());
    assert_eq!(
        GitIndex::parse(&lying).unwrap_err(),
        GitReadError("the index caches a tree that does not match its entries")
    );
}

#[test]
fn an_index_that_git_would_read_in_another_way_is_not_read() {
    let made = repository();
    let path = made.path().join(".git/index");
    git(made.path(), &["update-index", "--index-version", "2"]);
    let mut extended = fs::read(&path).unwrap();
    assert!(GitIndex::parse(&extended).is_ok());
    // Behind the head, the flags of the first entry: git takes two more bytes for flags, and not for the path.
    extended[12 + 60] |= 0x40;
    assert_eq!(GitIndex::parse(&extended).unwrap_err(), GitReadError("the index cannot be read"));

    git(made.path(), &["update-index", "--index-version", "4"]);
    let whole = fs::read(&path).unwrap();
    let (first, count) = ("d1/deep/f1", git(made.path(), &["ls-files"]).lines().count());
    assert_eq!(git(made.path(), &["ls-files"]).lines().next(), Some(first));
    let with_blocks = |blocks: &[(usize, usize)]| {
        let numbers = blocks.iter().flat_map(|(offset, count)| [*offset, *count]).map(|one| one as u32);
        let data: Vec<u8> = std::iter::once(1).chain(numbers).flat_map(u32::to_be_bytes).collect();
        let (body, hash) = whole.split_at(whole.len() - 20);
        GitIndex::parse(&[body, b"IEOT", &(data.len() as u32).to_be_bytes(), &data, hash].concat())
    };
    assert!(with_blocks(&[(12, count)]).is_ok());
    // The path of the second entry begins as the first one does, and git would read it without that.
    let second = 12 + 62 + 1 + first.len() + 1;
    assert_eq!(with_blocks(&[(12, 1), (second, count - 1)]).unwrap_err(), GitReadError("the index cannot be read"));
}

#[test]
fn a_cache_of_untracked_files_tells_where_git_uses_it() {
    let made = repository();
    git(made.path(), &["update-index", "--force-untracked-cache"]);
    let index = GitIndex::parse(&fs::read(made.path().join(".git/index")).unwrap()).unwrap();
    let data = index.caches.get(b"UNTR".as_slice()).unwrap();
    let real = made.path().canonicalize().unwrap();
    assert_eq!(GitIndex::untracked_cache_location(data), Some(real.as_os_str().as_encoded_bytes()));
    for data in
        [b"".as_slice(), b"\x05", b"\x05Location", b"\x20Location /workspace\0", b"\x05/workspace, system Linux\0"]
    {
        assert_eq!(GitIndex::untracked_cache_location(data), None, "{data:?}");
    }
}

#[test]
fn the_empty_file_has_the_name_that_git_gives_it() {
    assert_eq!(crate::git::object::oid_of("blob", b""), crate::git::EMPTY_BLOB);
}

#[test]
fn a_pack_that_has_another_object_under_a_name_is_not_honest() {
    let made = repository();
    git(made.path(), &["repack", "-qadf"]);
    let files = GitTestDir(made.path().join(".git"));
    let names = files.names(b"objects/pack").unwrap();
    let name = names.iter().find(|name| name.ends_with(b".idx")).unwrap();
    let path = made.path().join(".git/objects/pack").join(std::str::from_utf8(name).unwrap());
    let mut index = fs::read(&path).unwrap();
    let count = u32::from_be_bytes(index[8 + 255 * 4..8 + 256 * 4].try_into().unwrap()) as usize;
    // Two objects are exchanged.
    let offsets = 8 + 1024 + count * 24;
    for byte in 0..4 {
        index.swap(offsets + byte, offsets + 4 + byte);
    }
    fs::remove_file(&path).unwrap();
    fs::write(&path, index).unwrap();
    let (limits, signal) = (CallLimits::for_dialect(Dialect::Standard), CallCommitState::new());
    let cx = CallContext::new(&limits, IoMode::Blocking, &signal);
    let budget = GitReadBudget::new(&cx);
    let store = GitObjectStore::open(&files, &budget).unwrap();
    assert_eq!(store.is_intact(&[b"objects/pack/".as_slice(), name].concat()), Ok(false));
}

proptest! {
    #[test]
    fn nothing_that_a_program_writes_panics(bytes: Vec<u8>, edits: Vec<(u16, u8)>, version in any::<bool>()) {
        let mut index = b"DIRC\0\0\0\x02\0\0\0\x01".to_vec();
        index[7] = if version { 4 } else { 2 };
        index.extend([0; 62]);
        index.extend(b"path\0\0\0\0\0\0TREE\0\0\0\x19\x001 0\n");
        index.extend(&bytes);
        for (at, byte) in edits {
            let at = usize::from(at) % index.len();
            index[at] = byte;
        }
        let _ = GitIndex::parse(&index);
        let _ = GitIndex::parse(&bytes);
        let _ = crate::git::parse_oids(&bytes, &[0, 1]);
        let made = tempfile::tempdir().unwrap();
        let pack = made.path().join("objects/pack");
        fs::create_dir_all(&pack).unwrap();
        let mut idx = b"\xfftOc\0\0\0\x02".to_vec();
        idx.extend((0..256u32).flat_map(|_| 1u32.to_be_bytes()));
        idx.extend([0; 20 + 4]);
        idx.extend(12u32.to_be_bytes());
        fs::write(pack.join("pack-x.idx"), idx).unwrap();
        fs::write(pack.join("pack-x.pack"), [b"PACK\0\0\0\x02\0\0\0\x01".as_slice(), &bytes].concat()).unwrap();
        fs::write(made.path().join("packed-refs"), &bytes).unwrap();
        let files = GitTestDir(made.path().to_owned());
        let (limits, signal) = (CallLimits::for_dialect(Dialect::Standard), CallCommitState::new());
        let cx = CallContext::new(&limits, IoMode::Blocking, &signal);
        let budget = GitReadBudget::new(&cx);
        let _ = GitRefStore::open(&files, &budget);
        let store = GitObjectStore::open(&files, &budget).unwrap();
        let _ = store.is_intact(b"objects/pack/pack-x.idx");
    }
}

#[test]
fn contents_have_the_name_that_git_gives_them_with_either_line_ending() {
    let directory = tempfile::tempdir().unwrap();
    git(directory.path(), &["init", "-q"]);
    for (name, contents) in [("lf", "one\ntwo\n"), ("crlf", "one\r\ntwo\r\n"), ("lone", "one\rtwo"), ("empty", "")] {
        fs::write(directory.path().join(name), contents).unwrap();
        let named = |options: &[&str]| {
            let printed =
                git(directory.path(), &[&["-c", "core.safecrlf=false"], options, &["hash-object", name]].concat());
            parse_oid(printed.trim().as_bytes()).unwrap()
        };
        let names = blob_names(contents.as_bytes());
        assert_eq!(names.first(), Some(&named(&[])), "{name}");
        assert_eq!(names.last(), Some(&named(&["-c", "core.autocrlf=input"])), "{name}");
    }
}

#[test]
fn every_name_of_an_object_in_a_text_is_found() {
    let (one, other) = ("1".repeat(40), "ab".repeat(20));
    let text = format!("{one}\t{other} refs/x\n{one}{other}\nref: refs/heads/main\n<{}>\n", "2".repeat(40));
    let expected = [one, other, "2".repeat(40)].map(|name| parse_oid(name.as_bytes()).unwrap());
    assert_eq!(oids_in(text.as_bytes()), BTreeSet::from(expected));
}
