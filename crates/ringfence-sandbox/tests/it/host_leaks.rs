//! Host information leaks: a jail shows nothing of the host but what is meant.

use std::fs;
use std::path::Path;

use ringfence_sandbox::{Toolchain, detect};
use ringfence_testkit::requirement::{Requirement, skip_without};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::process::geteuid;
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::fixture::{MARK, SandboxFixture, as_each_user, skip_without_opt};

/// Prints the files of `/proc` and `/sys` in which one of its arguments is found.
const SEARCH: &str = r#"
import os, sys, json
marks = MARKS
found = set()
def look(path):
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try: text = os.read(fd, 1 << 20)
        finally: os.close(fd)
    except OSError: return
    for mark in marks:
        if mark.encode() in text: found.add((path, mark))
def look_at_links(path):
    try: text = os.readlink(path)
    except OSError: return
    for mark in marks:
        if mark in text: found.add((path, mark))
own = str(os.getpid())
for top in ("/proc", "/sys"):
    for directory, below, names in os.walk(top):
        # Its own command line and environment say what it was told to look for.
        below[:] = [name for name in below if name not in ("task", "thread-self", "map_files", "attr")]
        for name in names:
            path = os.path.join(directory, name)
            if name in ("cmdline", "environ", "mem", "pagemap", "kpageflags", "kpagecount") and directory != "/proc": continue
            look(path); look_at_links(path)
print(sorted(found))
"#;

fn search(marks: &[String]) -> String {
    format!("MARKS = {marks:?}\n{SEARCH}")
}

/// Words by which the host could be known.
fn host_markers(world: &SandboxFixture) -> Vec<String> {
    let mut marks = vec![world.path().display().to_string(), MARK.1.to_owned()];
    marks.push(rustix::system::uname().nodename().to_string_lossy().into_owned());
    marks.extend(fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()));
    marks.extend(fs::read_to_string("/proc/sys/kernel/core_pattern").map(|pattern| pattern.trim().to_owned()));
    let kernel = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    marks.extend(kernel.split_whitespace().max_by_key(|word| word.len()).map(str::to_owned));
    marks.retain(|mark| mark.len() > 4);
    marks
}

#[test]
fn proc_tells_nothing_of_the_host() {
    as_each_user("host_leaks::proc_tells_nothing_of_the_host", || {
        let world = SandboxFixture::new();
        world.write("deep/file", "text");
        let ended = world.python(&search(&host_markers(&world)));
        assert_eq!((ended.stdout.text().as_str(), ended.stderr.text().as_str()), ("[]\n", ""));
    });
}

/// The kernel lists locks of open file descriptions in every process namespace. One of the jail's own shows that it lists none.
#[test]
fn proc_lists_no_file_locks() {
    as_each_user("host_leaks::proc_lists_no_file_locks", || {
        let lock = "import fcntl\nheld = open('/tmp/held', 'w')\nfcntl.flock(held, fcntl.LOCK_EX)\n";
        let ended = SandboxFixture::new().python(&format!("{lock}print(open('/proc/locks').read())"));
        assert_eq!((ended.stdout.text().as_str(), ended.stderr.text().as_str()), ("\n", ""));
    });
}

/// As in a container: the system is an overlay, whose options name directories of the machine below.
#[test]
fn mounts_tell_nothing_of_the_hosts_overlay() {
    if !geteuid().is_root() {
        return skip_without(Requirement::Root, "only root mounts an overlay over the system");
    }
    enter_private_mounts();
    let layers = tempfile::tempdir().unwrap();
    mount("none", layers.path(), "tmpfs", MountFlags::empty(), None).unwrap();
    let layer = |name: &str| {
        let path = layers.path().join(format!("mark-of-the-machine-{name}"));
        fs::create_dir(&path).unwrap();
        path.display().to_string()
    };
    for system in ["/usr", "/etc/ssl/certs"] {
        let name = system.replace('/', "-");
        let options =
            format!("lowerdir={system},upperdir={},workdir={}", layer(&format!("u{name}")), layer(&format!("w{name}")));
        let options = std::ffi::CString::new(options).unwrap();
        mount("overlay", system, "overlay", MountFlags::empty(), options.as_c_str()).unwrap();
    }
    let seen = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    assert!(seen.contains("mark-of-the-machine"), "the host does not look like a container");
    let ended =
        SandboxFixture::new().bash("cat /proc/self/mountinfo /proc/self/mountstats /proc/mounts; ls /usr/bin | wc -l");
    let told = ended.stdout.text();
    assert!(!told.contains("mark-of-the-machine") && told.contains("/usr"), "{told}");
    assert!(told.lines().last().is_some_and(|count| count.trim().parse::<u32>().unwrap() > 10), "{told}");
}

/// This thread, and the spawner that it starts, see other mounts than the rest of the machine.
fn enter_private_mounts() {
    // SAFETY: no descriptors are unshared, only what this thread sees of the files.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.unwrap();
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
}

#[test]
fn of_optional_packages_no_secrets_are_shown() {
    if !geteuid().is_root() || !Path::new("/opt").is_dir() {
        return skip_without_opt("root mounts packages");
    }
    enter_private_mounts();
    for place in ["/opt", "/usr/local"] {
        mount("none", place, "tmpfs", MountFlags::empty(), None).unwrap();
    }
    let write = |path: &str, text: &str| {
        let path = Path::new(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("/opt/tool/bin/tool", "works");
    write("/opt/tool/lib/data", "works");
    write("/usr/local/share/data", "works");
    for secret in [
        "/opt/tool/.env",
        "/opt/tool/etc/tool.conf",
        "/opt/tool/data/customers.db",
        "/opt/tool/lib/.env",
        "/opt/tool/lib/app/credentials.json",
        "/opt/tool/share/.ssh/id_rsa",
        "/usr/local/etc/npmrc",
        "/usr/local/share/app/.env",
        "/usr/local/share/app/secrets.yml",
        "/usr/local/lib/id_ed25519",
        "/opt/declared/lib/.npmrc",
    ] {
        write(secret, "secret of the host, password");
    }
    write("/opt/declared/bin/x", "");
    let mut world = SandboxFixture::new();
    world.toolchains = detect(Path::new("/root/none"));
    world.toolchains.push(Toolchain::declared(Path::new("/opt/declared")));
    let ended = world.bash(
        "cat /opt/tool/bin/tool /opt/tool/lib/data /usr/local/share/data; echo; \
         grep -rl 'secret of the host' /opt /usr/local 2>/dev/null; ls -A /usr/local/etc /opt/tool",
    );
    let expected = "worksworksworks\n/opt/tool:\nbin\nlib\nshare\n\n/usr/local/etc:\n";
    assert_eq!(ended.stdout.text(), expected, "{}", ended.stderr.text());
}
