//! Programs that a repository can make git run: plain git runs many of them, the reading tools none.

use std::path::Path;
use std::process::Command;

use ringfence::app::{App, build_app};
use ringfence::approval::deny_all;
use ringfence::config::{CliFlags, load};
use ringfence_kernel::{Preset, ToolCall};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::run_code_git::git;
use crate::site::TestSite;

/// What the planted program leaves behind.
const MARK: &str = "RAN";

/// Plants a program in a repository.
type PlantVector = fn(&TestSite);

/// Each way in which a repository names a program.
const VECTORS: [(&str, PlantVector); 16] = [
    ("fsmonitor", |site| config(site, "[core]\n\tfsmonitor = ./evil.sh\n")),
    ("include", |site| {
        site.write(".git/more", "[core]\n\tfsmonitor = ./evil.sh\n");
        config(site, "[include]\n\tpath = more\n");
    }),
    ("conditional include", |site| {
        site.write(".git/more", "[core]\n\tfsmonitor = ./evil.sh\n");
        config(site, "[includeIf \"gitdir:/\"]\n\tpath = more\n");
    }),
    ("worktree config", |site| {
        site.write(".git/config.worktree", "[core]\n\tfsmonitor = ./evil.sh\n");
        config(site, "[core]\n\trepositoryformatversion = 1\n[extensions]\n\tworktreeConfig = true\n");
    }),
    ("common directory", |site| {
        for name in ["objects", "refs"] {
            copy(&site.workspace.join(".git").join(name), &site.workspace.join("common"));
        }
        site.write("common/config", "[core]\n\trepositoryformatversion = 0\n\tfsmonitor = ./evil.sh\n");
        site.write(".git/commondir", "../common\n");
    }),
    ("clean filter", |site| filter(site, ".gitattributes", "clean")),
    ("filter process", |site| filter(site, ".gitattributes", "process")),
    ("filter of the repository's own attributes", |site| filter(site, ".git/info/attributes", "clean")),
    ("external diff", |site| config(site, "[diff]\n\texternal = ./evil.sh\n")),
    ("diff driver", |site| driver(site, "command")),
    ("text conversion", |site| driver(site, "textconv")),
    ("hooks", |site| {
        for hook in ["post-index-change", "pre-commit", "reference-transaction", "post-checkout", "fsmonitor-watchman"]
        {
            copy(&site.workspace.join("evil.sh"), &site.workspace.join(".git/hooks").join(hook));
        }
    }),
    ("path of hooks", |site| {
        copy(&site.workspace.join("evil.sh"), &site.workspace.join("planted/post-index-change"));
        config(site, "[core]\n\thooksPath = planted\n");
    }),
    ("signature program", |site| {
        let head = git(site, &["cat-file", "commit", "HEAD"]);
        let (headers, message) = head.split_once("\n\n").unwrap();
        let signature = "gpgsig -----BEGIN PGP SIGNATURE-----\n \n x\n -----END PGP SIGNATURE-----";
        site.write("signed", format!("{headers}\n{signature}\n\n{message}"));
        let signed = git(site, &["hash-object", "-t", "commit", "-w", "signed"]);
        git(site, &["update-ref", "refs/heads/main", signed.trim()]);
        config(site, "[log]\n\tshowSignature = true\n[gpg]\n\tprogram = ./evil.sh\n");
    }),
    ("missing objects of a partial clone", |site| {
        let blob = git(site, &["rev-parse", "HEAD~1:a.txt"]);
        let (directory, file) = blob.trim().split_at(2);
        std::fs::remove_file(site.workspace.join(".git/objects").join(directory).join(file)).unwrap();
        config(
            site,
            "[core]\n\trepositoryformatversion = 1\n[extensions]\n\tpartialClone = origin\n\
             [remote \"origin\"]\n\turl = .\n\tpromisor = true\n\tuploadpack = ./evil.sh\n",
        );
    }),
    ("config of a submodule", |site| {
        let nested = |arguments: &[&str]| git(site, &[&["-C", "nested"], arguments].concat());
        std::fs::create_dir(site.workspace.join("nested")).unwrap();
        nested(&["init", "-q"]);
        nested(&["commit", "-q", "--allow-empty", "-m", "nested"]);
        let head = nested(&["rev-parse", "HEAD"]);
        git(site, &["update-index", "--add", "--cacheinfo", &format!("160000,{},nested", head.trim())]);
        git(site, &["commit", "-qm", "nested", "--only", "nested"]);
        site.write("nested/.git/config", "[core]\n\trepositoryformatversion = 0\n\tfsmonitor = ../evil.sh\n");
    }),
];

/// Each call that reads, and the same with plain git.
fn commands() -> [(&'static str, Value, &'static [&'static str]); 9] {
    [
        ("git_status", json!({}), &["status"]),
        ("git_diff", json!({}), &["diff"]),
        ("git_diff", json!({"staged": true}), &["diff", "--staged"]),
        ("git_diff", json!({"range": "HEAD~1..HEAD"}), &["diff", "HEAD~1..HEAD"]),
        ("git_diff", json!({"stat": true}), &["diff", "--stat"]),
        ("git_diff", json!({"paths": ["a.txt"]}), &["diff", "--", "a.txt"]),
        ("git_log", json!({}), &["log"]),
        ("git_log", json!({"patch": true}), &["log", "-p"]),
        (
            "git_log",
            json!({"patch": true, "range": "HEAD~1..HEAD", "paths": ["a.txt"]}),
            &["log", "-p", "HEAD~1..HEAD", "--", "a.txt"],
        ),
    ]
}

fn config(site: &TestSite, text: &str) {
    let path = site.workspace.join(".git/config");
    let own = std::fs::read_to_string(&path).unwrap();
    std::fs::write(path, own + text).unwrap();
}

fn filter(site: &TestSite, attributes: &str, kind: &str) {
    site.write(attributes, "*.txt filter=evil\n");
    config(site, &format!("[filter \"evil\"]\n\t{kind} = ./evil.sh\n"));
}

fn driver(site: &TestSite, kind: &str) {
    site.write(".gitattributes", "*.txt diff=evil\n");
    config(site, &format!("[diff \"evil\"]\n\t{kind} = ./evil.sh\n"));
}

#[track_caller]
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to.parent().unwrap()).unwrap();
    std::fs::create_dir_all(if from.is_dir() { to } else { to.parent().unwrap() }).unwrap();
    assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
}

/// A repository with two commits, a staged change and one that is not.
fn planted(plant: PlantVector) -> TestSite {
    let site = TestSite::in_memory();
    git(&site, &["init", "-q", "-b", "main", "--template="]);
    site.write(".git/info/exclude", "evil.sh\nRAN\nplanted\ncommon\nsigned\n");
    for content in ["one\n", "one\ntwo\n"] {
        site.write("a.txt", content);
        site.write("b.txt", content);
        git(&site, &["add", "a.txt", "b.txt"]);
        git(&site, &["commit", "-qm", content.trim()]);
    }
    let places = format!("/workspace {}", site.workspace.display());
    let script = format!(
        "#!/bin/sh\nfor d in {places}; do [ -d \"$d\" ] && : > \"$d/{MARK}\"; done\ncat \"$@\" 2>/dev/null\nexit 0\n"
    );
    site.write("evil.sh", script);
    std::fs::set_permissions(site.workspace.join("evil.sh"), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    plant(&site);
    site.write("b.txt", "staged\n");
    git_unsafe(&site.workspace, &["-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "add", "b.txt"]);
    site.write("a.txt", "unstaged\n");
    let _ = std::fs::remove_file(site.workspace.join(MARK));
    site
}

/// Plain git, as a tool that runs it on the host would.
fn git_unsafe(directory: &Path, arguments: &[&str]) {
    let mut command = Command::new("git");
    command
        .current_dir(directory)
        .arg("--no-pager")
        .args(arguments)
        .env_clear()
        .env("PATH", std::env::var("PATH").unwrap());
    command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
    command.output().unwrap();
}

fn app(site: &TestSite) -> App {
    let environment = site.environment();
    let workspace = Some(site.workspace.to_str().unwrap().to_owned());
    let toolsets = vec!["git".to_owned()];
    let flags = CliFlags { workspace, toolsets, preset: Some(Preset::Edits), ..CliFlags::default() };
    build_app(load(&flags, &environment).unwrap(), &environment, Box::new(deny_all())).unwrap()
}

fn call(app: &App, tool: &str, arguments: &Value) -> Value {
    let call = ToolCall { id: "1".to_owned(), name: tool.to_owned(), arguments: arguments.to_string() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let reply = runtime.block_on(app.host.call(&app.session, call, &CancellationToken::new())).unwrap();
    serde_json::from_str(&reply.text).unwrap()
}

#[test]
fn reading_a_repository_runs_none_of_its_programs_and_plain_git_runs_many() {
    let (mut cells, mut ran_plainly) = (0, 0);
    let mut ran = Vec::new();
    for (name, plant) in VECTORS {
        let site = planted(plant);
        let (before, app) = (site.tree(), app(&site));
        for (tool, arguments, plain) in commands() {
            cells += 1;
            let reply = call(&app, tool, &arguments);
            let message = reply["error"]["message"].as_str().unwrap_or_default();
            if message.contains("git wrote") {
                ran.push(format!("{name}: {tool} {arguments}"));
            }
            // A repository that is not what it seems, or has too little in it, cannot be read.
            let may_fail = ["common directory", "missing objects of a partial clone"].contains(&name);
            assert!(reply["ok"] == true || may_fail, "{name}: {tool} {arguments}: {reply}");

            let control = TestSite::in_memory();
            copy(&site.workspace.join("."), &control.workspace);
            // The control's own path is not the one in the program, so the mark is where the program was planted.
            git_unsafe(&control.workspace, plain);
            ran_plainly += usize::from(std::fs::remove_file(site.workspace.join(MARK)).is_ok());
        }
        assert_eq!(site.tree(), before, "{name}: nothing is written");
    }
    println!("programs ran in {} of {cells} cells with the tools, in {ran_plainly} with plain git", ran.len());
    assert_eq!(ran, [""; 0]);
    assert!(ran_plainly >= 50, "plain git ran only {ran_plainly} of {cells}: the programs are not planted well");
}

/// The mark of a program in the jail would be seen: a plain git there leaves it.
#[test]
fn a_planted_program_in_the_jail_leaves_its_mark() {
    let (_, plant) = VECTORS[0];
    let site = planted(plant);
    let reply = call(
        &app(&site),
        "run_code",
        &json!({"code": "git status >/dev/null; git diff >/dev/null", "mode": "discard"}),
    );
    let marks = reply["value"]["changes"].as_array().unwrap().iter().filter(|change| change["path"] == MARK).count();
    assert_eq!(marks, 1, "{reply}");
}
