//! Renames of directories that the workspace had before the run: the same result as without a jail.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output};

use ringfence_sandbox::RunResult;
use ringfence_testkit::requirement::{Requirement, skip_without};
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
        print(path, oct(found.st_mode), links, text, time)
";

/// Gives all of a tree an old time.
const OLD: &str = "
import os
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
