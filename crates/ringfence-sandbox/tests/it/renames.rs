//! Renames of directories that the workspace had before the run: the same result as without a jail.

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output};

use ringfence_sandbox::{Isolation, RunResult};
use ringfence_testkit::requirement::{Requirement, skip_without};
use rustix::fs::{AtFlags, Dir, Mode, OFlags, openat, statat};
use rustix::process::geteuid;

use crate::fixture::{PLAIN_UID, SandboxFixture, as_each_user, chown_to_plain_user};

/// Lists a tree: kind, mode, hard links, contents, targets of links, and times that are not of the run itself.
const LIST: &str = "
import hashlib, os, stat
for place, directories, files in os.walk('.'):
    if place == '.' and '.git' in directories: directories.remove('.git')
    directories.sort()
    for name in sorted(directories + files):
        path = os.path.join(place, name)
        found = os.lstat(path)
        kind = stat.S_IFMT(found.st_mode)
        text = os.readlink(path) if kind == stat.S_IFLNK else ''
        if kind == stat.S_IFREG:
            readable = open(path, 'rb') if os.access(path, os.R_OK) else None
            text = hashlib.sha256(readable.read()).hexdigest()[:12] if readable else 'unreadable'
        links = found.st_nlink if kind == stat.S_IFREG else '-'
        time = found.st_mtime_ns if found.st_mtime < 2e9 and found.st_mtime_ns % 1000 == 7 else 'now'
        named = [] if kind == stat.S_IFLNK else os.listxattr(path)
        print(path, oct(found.st_mode), links, text, time, [name for name in named if name == 'user.note'])
";

/// Gives all of a tree an old time, and a directory in it an attribute.
const OLD: &str = "
import os
os.setxattr('src/a', 'user.note', b'text')
for place, directories, files in os.walk('.', topdown=False):
    for name in directories + files: os.utime(os.path.join(place, name), ns=(10**18 + 7, 10**18 + 7), follow_symlinks=False)
";

/// A tree with something of each kind.
const TREE: &str = "mkdir -p src/a/b/c src/empty other && echo one > src/one && echo two > src/a/two && echo three > src/a/b/c/three \
    && ln -s one src/link && ln -s /etc/passwd src/a/out && ln -s nowhere src/a/b/broken && chmod 750 src/a && echo s > src/a/run \
    && chmod 755 src/a/run && mkfifo src/a/pipe && echo o > other/o";

struct RenameCase {
    name: &'static str,
    /// What is there before the run, besides the tree.
    setup: &'static str,
    script: &'static str,
}

const CASES: &[RenameCase] = &[
    RenameCase { name: "mv", setup: "", script: "mv -T src lib" },
    RenameCase { name: "os.rename", setup: "", script: "python3 -c 'import os; os.rename(\"src\", \"lib\")'" },
    RenameCase {
        name: "git mv",
        setup: "rm src/a/pipe; git init -q . && git add -A && git -c user.name=a -c user.email=a@b commit -qm x",
        script: "git mv src lib && git status --porcelain && git ls-files",
    },
    RenameCase {
        name: "onto an empty directory",
        setup: "mkdir -m 700 lib",
        script: "python3 -c 'import os; os.replace(\"src\", \"lib\")'",
    },
    RenameCase {
        name: "onto a directory with entries",
        setup: "mkdir lib && echo > lib/x",
        script: "python3 -c 'import os; os.replace(\"src\", \"lib\")' 2>&1 | tail -1",
    },
    RenameCase {
        name: "onto a file",
        setup: "echo > lib",
        script: "python3 -c 'import os; os.replace(\"src\", \"lib\")' 2>&1 | tail -1",
    },
    RenameCase {
        name: "into itself",
        setup: "",
        script: "python3 -c 'import os; os.rename(\"src\", \"src/a/new\")' 2>&1 | tail -1",
    },
    RenameCase {
        name: "onto its parent",
        setup: "",
        script: "python3 -c 'import os; os.rename(\"src/a\", \"src\")' 2>&1 | tail -1",
    },
    RenameCase {
        name: "without the right to",
        setup: "chmod 555 src",
        script: "python3 -c 'import os; os.rename(\"src/a\", \"a\")' 2>&1 | tail -1",
    },
    RenameCase { name: "onto itself", setup: "", script: "python3 -c 'import os; os.rename(\"src\", \"./src/\")'" },
    RenameCase { name: "with slashes", setup: "", script: "python3 -c 'import os; os.rename(\"src//\", \"./lib/\")'" },
    RenameCase { name: "noreplace", setup: "mkdir lib", script: "mv -nT src lib; mv -nT src lib2 && ls" },
    RenameCase { name: "two levels", setup: "mkdir -p x/y", script: "mv src/a/b x/y/ && mv -T x/y src/a/y" },
    RenameCase {
        name: "twice and back",
        setup: "",
        script: "mv -T src lib && mv -T lib more && echo n > more/a/new && mv -T more src && mv -T src/a a",
    },
    RenameCase {
        name: "after a change of directories",
        setup: "",
        script: "cd src/a && mv -T b ../c && cd ../.. && ls src",
    },
    RenameCase {
        name: "with descriptors of directories",
        setup: "mkdir there",
        script: "python3 -c 'import os\n\
                 a, b = os.open(\"src\", os.O_RDONLY), os.open(\"there\", os.O_RDONLY)\n\
                 os.rename(\"a\", \"b\", src_dir_fd=a, dst_dir_fd=b)\nos.rename(\"/proc/self/../../workspace/other\", \"c\", dst_dir_fd=b) \
                 if os.path.isdir(\"/workspace\") else os.rename(\"other\", \"c\", dst_dir_fd=b)'",
    },
    RenameCase {
        name: "read-only entries",
        setup: "chmod 444 src/one; chmod 555 src/a/b src",
        script: "mv -T src lib",
    },
    RenameCase {
        name: "hard links",
        setup: "ln src/one src/a/b/same; ln src/one src/same; echo single > src/single",
        script: "mv -T src lib && echo more >> lib/one",
    },
    RenameCase {
        name: "changed before",
        setup: "",
        script: "echo 1 >> src/one; rm src/a/two; mkdir src/a/new; echo n > src/a/new/n; rm -r src/a/b; mv src/a/run src/ran; mv -T src lib",
    },
    RenameCase {
        name: "a build directory",
        setup: "mkdir -p target/debug/deps && for i in $(seq 50); do echo $i > target/debug/deps/$i.o; done",
        script: "mv target target.old && mkdir -p target/debug && echo x > target/debug/x && rm -r target.old",
    },
    RenameCase {
        name: "many entries",
        setup: "mkdir big && cd big && for d in $(seq 10); do mkdir $d; (cd $d; for i in $(seq 300); do echo $d $i > f$i; done); done; cd ..",
        script: "python3 -c 'import os; os.rename(\"big\", \"large\")' && ls large/10 | wc -l",
    },
    RenameCase {
        name: "threads at once",
        setup: "for d in $(seq 12); do mkdir -p d$d/x; echo $d > d$d/x/f; done",
        script: "python3 -c 'import os, threading\n\
                 def work(d): os.rename(f\"d{d}\", f\"e{d}\"); os.rename(f\"e{d}/x\", f\"x{d}\")\n\
                 all = [threading.Thread(target=work, args=(d,)) for d in range(1, 13)]\n\
                 [t.start() for t in all]; [t.join() for t in all]'",
    },
    RenameCase {
        name: "in memory, and to there",
        setup: "",
        script: "d=$(mktemp -d); mkdir $d/x; echo y > $d/x/y; mv -T $d/x $d/z && cat $d/z/y; rm -r $d",
    },
    RenameCase {
        name: "node",
        setup: "",
        script: "! command -v node > /dev/null || node -e 'fs.renameSync(\"src\", \"lib\"); fs.renameSync(\"lib/a\", \"a\")'",
    },
    RenameCase { name: "a file", setup: "", script: "mv src/one src/uno && mv src/a/two other/ && mv src/link l" },
];

#[test]
fn directories_are_renamed_as_without_a_jail() {
    as_each_user("renames::directories_are_renamed_as_without_a_jail", || {
        if Command::new("python3").arg("--version").output().is_err() {
            return skip_without(Requirement::Python, "there is no `python3`");
        }
        for case in CASES {
            let world = SandboxFixture::new();
            let bare = tempfile::tempdir().unwrap();
            for directory in [world.path(), bare.path()] {
                chown_to_plain_user(directory);
                bash(directory, &format!("{TREE} && {{ {} ; }}", or_true(case.setup)));
                python(directory, OLD);
            }
            let ended = world.bash(case.script);
            let expected = bash(bare.path(), case.script);
            assert_eq!((said(&ended), ended.exit_code), expected, "{}", case.name);
            let listed = world_list(&world, case.script);
            assert_eq!(listed, python(bare.path(), LIST), "{}", case.name);
        }
    });
}

fn or_true(script: &str) -> &str {
    if script.is_empty() { "true" } else { script }
}

/// Output and errors.
fn said(ended: &RunResult) -> String {
    ended.stdout.text() + &ended.stderr.text()
}

/// The tree after a script.
fn world_list(world: &SandboxFixture, script: &str) -> String {
    let list = format!("{{ {script}\n}} > /dev/null 2>&1; cd /workspace; python3 - <<'END'\n{LIST}\nEND");
    let ended = world.bash(&list);
    assert_eq!(ended.stderr.text(), "");
    ended.stdout.text()
}

/// A program outside of the jail, as the plain user that programs in the jail are.
fn bare(program: &str, script: &str, directory: &Path) -> Output {
    let mut command = Command::new(program);
    command.args(["-c", script]).current_dir(directory).env("HOME", directory);
    if geteuid().is_root() {
        command.uid(PLAIN_UID).gid(PLAIN_UID);
    }
    command.output().unwrap()
}

fn bash(directory: &Path, script: &str) -> (String, i32) {
    let ended = bare("bash", script, directory);
    let said = String::from_utf8_lossy(&ended.stdout).into_owned() + &String::from_utf8_lossy(&ended.stderr);
    (said, ended.status.code().unwrap())
}

fn python(directory: &Path, script: &str) -> String {
    let ended = bare("python3", script, directory);
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    String::from_utf8(ended.stdout).unwrap()
}

#[test]
fn a_directory_with_a_masked_secret_stays_where_it_is() {
    as_each_user("renames::a_directory_with_a_masked_secret_stays_where_it_is", || {
        let mut world = SandboxFixture::new();
        for name in ["src/one", "src/deep/.env", "src/deep/two"] {
            world.write(name, "text");
        }
        world.masked = vec!["src/deep/.env".into()];
        chown_to_plain_user(world.path());
        let ended = world.python(
            "import os\nfor old, new in (('src', 'lib'), ('src/deep', 'deep')):\n    \
             try: os.rename(old, new); print('renamed')\n    except OSError as error: print(error.errno)\n\
             print(sorted(os.listdir('.')), sorted(os.listdir('src/deep')), os.path.getsize('src/deep/.env'))",
        );
        assert_eq!(said(&ended), "18\n18\n['src'] ['.env', 'two'] 0\n");
        assert_eq!(names(ended.upper.as_ref().unwrap(), "."), Vec::<String>::new(), "nothing was copied up");
    });
}

/// A thread exchanges a directory of the tree and a link to one outside of it, all the time. The control moves entries by
/// their paths, as a naive implementation would.
#[test]
fn a_link_that_is_swapped_in_leads_nowhere() {
    as_each_user("renames::a_link_that_is_swapped_in_leads_nowhere", || {
        let world = SandboxFixture::new();
        bash(world.path(), "chmod 755 .");
        for number in 0..40 {
            world.write(&format!("src{number}/file"), "inside");
            world.write(&format!("src{number}/last/file"), "inside");
        }
        chown_to_plain_user(world.path());
        let ended = world.python(SWAP);
        assert_eq!(said(&ended), "40 whole, outside: untouched\ncontrol: moved what is outside\n");
    });
}

const SWAP: &str = r#"
import ctypes, errno, os, threading
libc = ctypes.CDLL(None)
EXCHANGE, AT_FDCWD = 2, -100

def outside():
    os.makedirs('outside', exist_ok=True)
    for name in 'abc': open('outside/' + name, 'w').write('outside')

def untouched(): return sorted(os.listdir('outside')) == ['a', 'b', 'c']

def race(tree, rename):
    """Renames a tree while a directory in it is exchanged with a link."""
    os.mkdir(tree + '/dir'); open(tree + '/dir/file', 'w').close(); os.symlink('../outside', tree + '/link')
    over = threading.Event()
    directory = os.open(tree, os.O_RDONLY)
    def swap():
        while not over.is_set(): libc.renameat2(directory, b'dir', directory, b'link', EXCHANGE)
    thread = threading.Thread(target=swap); thread.start()
    try: rename(tree, tree + '-new')
    # What changes meanwhile may keep it from being renamed, or the old tree from being removed.
    except OSError as error: assert error.errno in (errno.EXDEV, errno.EBUSY), error
    finally: over.set(); thread.join(); os.close(directory)

def by_helper(old, new): os.rename(old, new)

def by_paths(old, new):
    os.makedirs(new, exist_ok=True)
    for name in os.listdir(old):
        path = os.path.join(old, name)
        try:
            if os.path.isdir(path) and not os.path.islink(path): by_paths(path, os.path.join(new, name))
            else: os.rename(path, os.path.join(new, name))
        except OSError: pass

outside()
whole = 0
for number in range(40):
    race(f'src{number}', by_helper)
    whole += any(os.path.isfile(tree + '/last/file') and os.path.isfile(tree + '/file') for tree in (f'src{number}', f'src{number}-new'))
print(whole, 'whole, outside:', 'untouched' if untouched() else sorted(os.listdir('outside')))
for number in range(20000):
    os.mkdir(f'control{number}')
    race(f'control{number}', by_paths)
    if not untouched(): print('control: moved what is outside'); break
"#;

#[test]
fn a_rename_is_finished_when_its_program_is_killed() {
    as_each_user("renames::a_rename_is_finished_when_its_program_is_killed", || {
        let world = SandboxFixture::new();
        for number in 0..2000 {
            world.write(&format!("big/{}/{number}", number % 10), "text");
        }
        chown_to_plain_user(world.path());
        // A child of the program; and the program itself.
        for target in ["$!", "$$"] {
            let ended = world.bash(&format!(
                "python3 -c 'import os; os.rename(\"big\", \"large\")' & while [ ! -e large ]; do :; done; kill -9 {target}; wait"
            ));
            let upper = ended.upper.unwrap();
            let moved: usize = (0..10).map(|number| names(&upper, &format!("large/{number}")).len()).sum();
            assert_eq!(moved, 2000, "{target}");
            let old = statat(&upper, "big", AtFlags::SYMLINK_NOFOLLOW).unwrap();
            assert_eq!((old.st_mode & 0o170_000, old.st_rdev), (0o020_000, 0), "{target}: a whiteout");
        }
    });
}

#[test]
fn other_calls_are_answered_while_a_directory_is_renamed() {
    as_each_user("renames::other_calls_are_answered_while_a_directory_is_renamed", || {
        let world = SandboxFixture::new();
        for number in 0..1000 {
            world.write(&format!("big/{number}"), "text");
        }
        chown_to_plain_user(world.path());
        let ended = world.python(
            "import fcntl, os, threading\nfile = open('lock', 'w'); locks = 0\n\
             thread = threading.Thread(target=os.rename, args=('big', 'large')); thread.start()\n\
             while thread.is_alive(): fcntl.flock(file, fcntl.LOCK_EX); os.rename('lock', 'lock'); locks += 1\n\
             print(locks > 0, len(os.listdir('large')), os.path.exists('big'))",
        );
        assert_eq!(said(&ended), "True 1000 False\n");
    });
}

/// A program may keep itself from renaming. The helper does not have its rules.
#[test]
fn a_program_with_landlock_rules_of_its_own_gets_no_helper() {
    as_each_user("renames::a_program_with_landlock_rules_of_its_own_gets_no_helper", || {
        let world = SandboxFixture::new();
        world.write("src/one", "text");
        world.write("other/one", "text");
        chown_to_plain_user(world.path());
        let ended = world.python(
            "import ctypes, os, struct\nlibc = ctypes.CDLL(None, use_errno=True)\nos.rename('other', 'another')\n\
             rules = struct.pack('Q', 1 << 4)  # removing directories\n\
             ruleset = libc.syscall(444, rules, len(rules), 0)\n\
             if os.fork() == 0: os._exit(1 if libc.syscall(446, ruleset, 0) else 0)\n\
             restricted = os.wait()[1] == 0\n\
             try: os.rename('src', 'lib'); print('renamed')\n\
             except OSError as error: print('EXDEV' if error.errno == 18 and restricted else 'renamed')",
        );
        // Where memory is counted, programs have no rules of their own.
        let expected = if ended.isolation.contains(&Isolation::Cgroup) { "EXDEV\n" } else { "renamed\n" };
        assert_eq!(said(&ended), expected);
    });
}

#[test]
fn paths_that_cannot_be_read_get_the_error_of_the_kernel() {
    as_each_user("renames::paths_that_cannot_be_read_get_the_error_of_the_kernel", || {
        let world = SandboxFixture::new();
        world.write("src/one", "text");
        chown_to_plain_user(world.path());
        let ended = world.python(
            "import ctypes, mmap, os\nlibc = ctypes.CDLL(None, use_errno=True)\n\
             def call(old, new): return libc.rename(old, new) and os.strerror(ctypes.get_errno())\n\
             print(call(None, b'x'), '|', call(b'src', None), '|', call(b's' * 5000, b'x'), '|', call(b'', b'x'))\n\
             print(call(b'src', b'x' * 300), '|', libc.renameat(77, b'src', 78, b'x'), os.path.exists('src/one'))\n\
             # A path that ends with its page, with nothing mapped behind.\n\
             libc.mmap.restype = ctypes.c_void_p\n\
             page = libc.mmap(None, 8192, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, ctypes.c_long(0))\n\
             libc.munmap(ctypes.c_void_p(page + 4096), 4096)\n\
             ctypes.memmove(page + 4096 - 4, b'src\\0', 4)\n\
             print(call(ctypes.c_void_p(page + 4096 - 4), b'lib'), os.listdir('lib'))",
        );
        let expected = "Bad address | Bad address | File name too long | No such file or directory\n\
                        File name too long | -1 True\n0 ['one']\n";
        assert_eq!(said(&ended), expected);
    });
}

/// Names in a directory of the upper layer.
fn names(upper: &OwnedFd, path: &str) -> Vec<String> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = openat(upper, path, flags, Mode::empty()).unwrap();
    let entries = Dir::new(directory).unwrap().map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    entries.filter(|name| name != "." && name != "..").collect()
}
