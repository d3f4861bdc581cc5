//! Escape attempts inside `ringfence run`, with the settings of each profile, started by root and by a plain user.
//!
//! All attempts of a run are made in one jail. The same driver outside, where the attempts succeed, is the control.
//!
//! Not here: each attempt in a jail of its own, with its own control (`ringfence-sandbox`).

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::lchown;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use ringfence_testkit::escape_attempts::{AttemptControl, EscapeAttempt, GROUPS, WRAPPED};
use ringfence_testkit::escape_stage::{AttemptOutcome, EscapeHost, EscapeStage};
use ringfence_testkit::executable::{copy_executable, write_script};
use ringfence_testkit::requirement::{Requirement, print_note, skip_without};
use rustix::process::geteuid;
use serde_json::{Value, json};

use crate::site::{PROGRAM, TestSite};

const PROFILES: [&str; 8] = ["aider", "claude", "codex", "crush", "gemini", "goose", "opencode", "none"];

/// Variables of the keys in profiles.
const KEY_VARIABLES: [&str; 4] = ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN"];

const KEY: &str = "sk-test-7c1f0a9be2d84e6f5a3b";

/// In the environment of the process that starts the programs.
const MARK: (&str, &str) = ("RINGFENCE_TEST_TOKEN", "mark-5be81c02");

/// An unused user ID.
const PLAIN_UID: u32 = 60_603;

/// Makes each attempt in a process of its own, and prints what it said.
const DRIVER: &str = r#"
import ctypes, errno, fcntl, glob, json, mmap, os, platform, resource, shutil, signal, socket, stat, struct, sys, time, traceback
for name, program in json.load(sys.stdin):
    # Elsewhere each attempt has a jail for itself, so they use the same names.
    for made in ("way-out", "mine"):
        if os.path.isdir(made) and not os.path.islink(made): shutil.rmtree(made)
        elif os.path.lexists(made): os.unlink(made)
    hear, say = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        os.dup2(say, 1)
        os.dup2(say, 2)
        os.closerange(3, 256)
        try: exec(compile(program, name, "exec"), {})
        except BaseException: traceback.print_exc()
        sys.stdout.flush()
        os._exit(0)
    os.close(say)
    with open(hear, "rb") as said: printed = said.read().decode(errors="replace")
    os.waitpid(pid, 0)
    print(json.dumps([name, printed]), flush=True)
"#;

/// What a wrapped program has of its own, or is meant to have: attempts, and a part of what they get.
const GRANTED: [(&str, &str); 11] = [
    // The driver.
    ("see more processes than one's own and the first", "['2']"),
    ("signal a group of the server", "[2]"),
    // The workspace is at its own path, and what is beside it there is the jail's own.
    ("learn where the workspace is on the machine", "True"),
    ("learn where a directory beside is on the machine", "True"),
    ("make a directory beside the workspace", "True"),
    ("find another run's files", "'.tmp"),
    // The link and the addresses of names, which lead to our decision alone.
    ("hear of interfaces of the host", "['eth0']"),
    ("see the host's interfaces", "['  eth0:"),
    ("see the host's routes", "['eth0\\t000012C6\\t010013C6"),
    ("resolve a name", "('198.18."),
    // The bundle of certificates.
    ("be told of the server's variables", "['AWS_CA_BUNDLE', 'CARGO_HTTP_CAINFO']"),
];

#[test]
fn every_attempt_is_held_in_the_run_of_every_profile() {
    let host = EscapeHost::new();
    let site = TestSite::new();
    let binary = site.root().join("bin/ringfence");
    fs::create_dir(binary.parent().unwrap()).unwrap();
    copy_executable(Path::new(PROGRAM), &binary);
    let attempts: Vec<EscapeAttempt> =
        GROUPS.map(|(_, attempts)| attempts).into_iter().chain([WRAPPED]).flatten().copied().collect();
    let plain = if geteuid().is_root() {
        Some(PLAIN_UID)
    } else {
        skip_without(Requirement::Root, "the attempts are made by this user only");
        None
    };
    let users = if geteuid().is_root() { vec![None, plain] } else { vec![None] };
    let mut wrong = Vec::new();
    for user in users {
        give_to(site.root(), user);
        for profile in PROFILES {
            let stage = EscapeStage::new(&host);
            // Profiles put arguments of their agents before those of the command line.
            write_script(&stage.path("ws/agent"), "#!/bin/sh\nexec python3 driver.py\n");
            fs::write(stage.path("ws/driver.py"), DRIVER).unwrap();
            give_to(stage.directory.path(), user);
            let before = stage.everything();
            let mut command = site.program(&binary);
            command.arg("--workspace").arg(stage.path("ws")).args(["--approve", "never", "run", "--profile", profile]);
            command
                .args(["--", "./agent"])
                .current_dir(stage.path("ws"))
                .env(MARK.0, MARK.1)
                .env("PATH", "/usr/local/bin:/usr/bin:/bin");
            command.envs(KEY_VARIABLES.map(|name| (name, KEY)));
            let outcomes = drive(as_user(&mut command, user), &programs(&attempts, &stage, &host, &site.state));
            let is_held =
                |outcome: &AttemptOutcome| matches!(outcome, AttemptOutcome::Refused(_) | AttemptOutcome::Nothing);
            let failed = outcomes.into_iter().filter(|(name, outcome)| !is_held(outcome) && !is_granted(name, outcome));
            wrong.extend(failed.map(|(name, outcome)| format!("{profile} {user:?}: {name}: {outcome:?}")));
            if stage.everything() != before {
                wrong.push(format!("{profile} {user:?}: something outside changed"));
            }
        }
    }
    print_note(&format!("{} attempts in {} profiles", attempts.len(), PROFILES.len()));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn is_granted(name: &str, outcome: &AttemptOutcome) -> bool {
    let AttemptOutcome::Escaped(got) = outcome else { return false };
    GRANTED.iter().any(|(granted, part)| *granted == name && got.contains(part))
}

/// The control: without a jail, the driver sees most of the attempts succeed.
#[test]
fn the_same_driver_outside_of_a_jail_sees_attempts_succeed() {
    let (host, site) = (EscapeHost::new(), TestSite::new());
    let stage = EscapeStage::new(&host);
    fs::create_dir_all(&site.state).unwrap();
    let is_tried = |attempt: &&EscapeAttempt| attempt.control == AttemptControl::Works;
    let groups = GROUPS.map(|(_, attempts)| attempts).into_iter().chain([WRAPPED]);
    let attempts: Vec<EscapeAttempt> = groups.flatten().filter(is_tried).copied().collect();
    let mut python = Command::new("python3");
    python.args(["-c", DRIVER, MARK.1]).current_dir(stage.path("ws")).env("KEY", KEY).env(MARK.0, MARK.1);
    let outcomes = drive(&mut python, &programs(&attempts, &stage, &host, &site.state));
    let escaped = outcomes.iter().filter(|(_, outcome)| matches!(outcome, AttemptOutcome::Escaped(_))).count();
    assert!(escaped * 2 > attempts.len(), "{escaped} of {}: {outcomes:?}", attempts.len());
}

/// Each attempt with its whole program.
fn programs(attempts: &[EscapeAttempt], stage: &EscapeStage, host: &EscapeHost, state: &Path) -> Value {
    let words = [
        ("{STATE}", state.display().to_string()),
        ("{YEK}", KEY.chars().rev().collect()),
        ("{MARK}", MARK.1.to_owned()),
        ("{PROCESS}", MARK.1.to_owned()),
        ("{BESIDE}", stage.path("beside").display().to_string()),
    ];
    attempts.iter().map(|attempt| json!([attempt.name, stage.program(host, attempt.code, &words)])).collect()
}

/// Outcomes of the attempts by name, in a driver that this command starts.
fn drive(command: &mut Command, programs: &Value) -> Vec<(String, AttemptOutcome)> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A driver that does not start says why.
    let _ = child.stdin.take().unwrap().write_all(programs.to_string().as_bytes());
    let ended = child.wait_with_output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(!out.contains(KEY) && !err.contains(KEY), "the key is in the output");
    let lines = out.lines().map(|line| {
        let (name, printed): (String, String) = serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}: {err}"));
        (name, AttemptOutcome::read(&printed))
    });
    let lines: Vec<_> = lines.collect();
    assert_eq!(lines.len(), programs.as_array().unwrap().len(), "{err}");
    lines
}

fn as_user(command: &mut Command, user: Option<u32>) -> &mut Command {
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    command
}

/// Makes a tree a user's.
fn give_to(path: &Path, user: Option<u32>) {
    lchown(path, user, user).unwrap();
    if path.symlink_metadata().unwrap().is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| give_to(&entry.unwrap().path(), user));
    }
}
