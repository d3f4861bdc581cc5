//! `ringfence layers branch`: changes of a layer as one commit, made by the real git in the jail.
//!
//! Not here: what may be kept of a layer (`ringfence-fs`).

use ringfence::app::build_person_app;
use ringfence::config::{CliFlags, load};
use ringfence_kernel::{Assurance, ToolCall};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::run_code_git::{git, repository_at, seen};
use crate::site::{CliOutput, TestSite, cli_output};

/// Where a wrapped program can have its workspace at its own path.
fn repository() -> TestSite {
    repository_at(TestSite::new())
}

fn run(site: &TestSite, options: &[&str], script: &str) -> CliOutput {
    let mut program = site.program_without_arguments();
    program.arg("--workspace").arg(&site.workspace).arg("run").args(options).args(["--", "sh", "-c", script]);
    cli_output(program.output().unwrap())
}

/// Runs a script in a layer, and gives the layer's id.
#[track_caller]
fn layer(site: &TestSite, script: &str) -> String {
    let ended = run(site, &[], &format!("set -e\n{script}"));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let id = ended.err.split_once("kept as layer ").and_then(|(_, rest)| rest.split(';').next());
    id.unwrap_or_else(|| panic!("{ended:?}")).to_owned()
}

#[track_caller]
fn branched(site: &TestSite, id: &str, paths: &[&str]) -> CliOutput {
    let output = site.run(&[&["layers", "branch", id][..], paths].concat());
    assert_eq!(output.code, Some(0), "{output:?}");
    output
}

#[track_caller]
fn check_refused(site: &TestSite, id: &str, message: &str) {
    let before = site.tree();
    let output = site.run(&["layers", "branch", id]);
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(output.err.contains(message), "{output:?}");
    assert_eq!(site.tree(), before, "{output:?}");
}

/// Status and path of each difference between the current commit and the branch.
fn difference(site: &TestSite, id: &str) -> Vec<String> {
    let names = git(site, &["diff", "--no-renames", "--name-status", "HEAD", &format!("ringfence/{id}")]);
    names.lines().map(|line| line.replace('\t', " ")).collect()
}

/// Everything but the repository.
fn work_tree(site: &TestSite) -> Vec<(String, String)> {
    let is_ours = |(path, _): &(String, String)| !path.starts_with(".git/");
    site.tree().into_iter().map(|(path, text)| (path, format!("{text:?}"))).filter(is_ours).collect()
}

#[test]
fn a_branch_has_one_commit_and_nothing_else_is_another() {
    let site = repository();
    site.write("mine.txt", "not committed\n");
    git(&site, &["add", "mine.txt"]);
    let (before, tree, files) = (seen(&site), site.tree(), work_tree(&site));
    let id = layer(
        &site,
        "echo four >> README.md; mkdir -p 'new dir'; echo x > 'new dir/a b'; printf '#!/bin/sh\\n' > run.sh
         chmod +x run.sh; ln -s README.md link; git mv src/lib.rs src/main.rs",
    );
    let output = branched(&site, &id, &[]);
    assert!(output.err.contains(&format!("to the branch ringfence/{id}")), "{output:?}");
    assert!(
        output.err.contains("not on the branch: `.git`: changes of the repository itself are not committed"),
        "{output:?}"
    );
    assert_eq!(
        difference(&site, &id),
        ["M README.md", "A link", "A new dir/a b", "A run.sh", "D src/lib.rs", "A src/main.rs"]
    );
    let branch = format!("ringfence/{id}");
    assert_eq!(git(&site, &["log", "-1", "--format=%an <%ae> %cn %P", &branch]), {
        let head = git(&site, &["rev-parse", "HEAD"]);
        format!("A Person <person@example.org> A Person {head}")
    });
    let message = git(&site, &["log", "-1", "--format=%B", &branch]);
    assert_eq!(message.trim_end(), format!("Changes by sh\n\nRingfence-Program: sh\nRingfence-Layer: {id}"));
    let modes = git(&site, &["ls-tree", &branch, "run.sh", "link", "README.md"]);
    assert_eq!(modes.lines().map(|line| &line[..6]).collect::<Vec<_>>(), ["100644", "120000", "100755"]);
    // The index still has what the person staged, and the layer everything that it had.
    let after = seen(&site);
    assert_eq!((&after.0, &after.2), (&before.0, &before.2));
    assert_eq!(work_tree(&site), files);
    assert!(site.run(&["layers", "review", &id, "--plain"]).out.contains("new dir/a b"));
    // One undo gives back every byte.
    assert_eq!(site.run(&["undo"]).code, Some(0));
    assert_eq!((seen(&site), site.tree()), (before, tree));
}

#[test]
fn some_paths_are_committed_and_a_second_branch_is_refused() {
    let site = repository();
    let id = layer(&site, "echo a > a.txt; mkdir d; echo b > d/b.txt; echo c > d/c.txt; rm -r src");
    branched(&site, &id, &["d/b.txt", "src"]);
    assert_eq!(difference(&site, &id), ["A d/b.txt", "D src/lib.rs"]);
    seen(&site);
    check_refused(&site, &id, &format!("the branch `ringfence/{id}` exists already"));
    // A file in the place of a directory, and a directory in that of a file.
    let id = layer(&site, "rm -r src README.md; echo file > src; mkdir README.md; echo x > README.md/x");
    branched(&site, &id, &[]);
    assert_eq!(difference(&site, &id), ["D README.md", "A README.md/x", "A src", "D src/lib.rs"]);
    seen(&site);
}

/// The call that the review screen makes.
#[test]
fn some_hunks_of_a_file_are_committed() {
    let site = repository();
    let lines = |first: &str, last: &str| {
        let middle: String = (2..40).map(|number| format!("{number}\n")).collect();
        format!("{first}\n{middle}{last}\n")
    };
    site.write("long.txt", lines("1", "40"));
    git(&site, &["add", "long.txt"]);
    git(&site, &["commit", "-qm", "long"]);
    let id = layer(&site, "sed -i 's/^1$/first/; s/^40$/last/' long.txt");
    let flags = CliFlags { workspace: Some(site.workspace.to_str().unwrap().to_owned()), ..CliFlags::default() };
    let environment = site.environment();
    let settings = load(&flags, &environment).unwrap();
    let person = build_person_app(settings, &environment, Assurance::Person, None).unwrap();
    let arguments = json!({"layer": id, "items": [{"path": "long.txt", "hunks": [1]}]}).to_string();
    let call = ToolCall { id: "1".to_owned(), name: "branch_layer".to_owned(), arguments };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let reply = runtime.block_on(person.host.call(&person.session, call, &CancellationToken::new())).unwrap();
    let value = &serde_json::from_str::<Value>(&reply.text).unwrap()["value"];
    assert_eq!(value["kept"], json!([{"path": "long.txt", "kind": "modified", "hunks": [1]}]), "{}", reply.text);
    assert_eq!(git(&site, &["show", &format!("ringfence/{id}:long.txt")]), lines("1", "last"));
    assert_eq!(site.read("long.txt"), lines("1", "40"));
    seen(&site);
}

#[test]
fn the_end_of_a_run_can_be_a_branch() {
    let site = repository();
    let script = "echo more >> README.md; mkdir .claude; echo '{}' > .claude/settings.json";
    let ended = run(&site, &["--end", "branch", "--preset", "edits"], script);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let id = ended.err.split_once("ringfence/").and_then(|(_, rest)| rest.split(' ').next()).unwrap();
    // What needs approval waits in the layer, as for `--end keep`.
    assert_eq!(difference(&site, id), ["M README.md"]);
    assert!(ended.err.contains("not on the branch: `.claude"), "{ended:?}");
    assert_eq!(site.read("README.md"), "one\ntwo\nthree\n");
}

/// Settings, hooks, filters and attributes of the layer and of the repository: none of their programs runs, and nothing of
/// the layer's `.git` is obeyed.
#[test]
fn no_program_of_a_repository_or_a_layer_runs() {
    let site = repository();
    let canary = site.root().join("canary");
    let touch = format!("#!/bin/sh\ntouch {} /tmp/canary; echo canary >&2; exit 1\n", canary.display());
    let program = site.root().join("evil");
    std::fs::write(&program, &touch).unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let program = program.to_str().unwrap();
    for name in ["clean", "smudge", "process"] {
        git(&site, &["config", &format!("filter.evil.{name}"), program]);
    }
    git(&site, &["config", "filter.evil.required", "true"]);
    let before = git(&site, &["log", "--all", "--format=%H"]);
    let script = format!(
        "echo more >> README.md; echo '*.bin filter=evil' > .gitattributes; echo x > x.bin
         for hook in reference-transaction pre-commit post-commit post-index-change; do
             printf '{}' > .git/hooks/$hook; chmod +x .git/hooks/$hook
         done
         git config core.fsmonitor {program}; git config core.hooksPath .git/hooks
         git config user.name Mallory; git config commit.gpgSign true; git config gpg.program {program}
         echo '* filter=evil' > .git/info/attributes; echo ref: refs/heads/other > .git/HEAD",
        touch.replace('\n', "\\n"),
    );
    let id = layer(&site, &script);
    let output = branched(&site, &id, &[]);
    assert!(output.err.contains("not on the branch: `x.bin`: a filter of git changes it"), "{output:?}");
    assert!(!output.err.contains("canary"), "{output:?}");
    assert!(!canary.exists());
    assert_eq!(git(&site, &["diff", "--name-only", "main", &format!("ringfence/{id}")]), ".gitattributes\nREADME.md\n");
    assert_eq!(git(&site, &["log", "-1", "--format=%an %P", &format!("ringfence/{id}")]), {
        format!("A Person {}", git(&site, &["rev-parse", "main"]))
    });
    assert!(!site.read(".git/config").contains("Mallory") && site.read(".git/HEAD").contains("refs/heads/main"));
    assert!(!site.workspace.join(".git/hooks/pre-commit").exists());
    // Commits of before, and one.
    assert_eq!(git(&site, &["log", "--all", "--format=%H"]).lines().count(), before.lines().count() + 1);
    git(&site, &["fsck", "--strict"]);
}

#[test]
fn commits_of_the_program_itself_are_not_taken_over() {
    let site = repository();
    let before = seen(&site);
    let id = layer(
        &site,
        "export GIT_AUTHOR_NAME=Mallory GIT_COMMITTER_NAME=Mallory; echo a > a.txt; git add a.txt; git commit -qm one
         echo more >> README.md; git commit -qam two; git branch -f other HEAD; git tag v1",
    );
    let output = branched(&site, &id, &[]);
    assert!(output.err.contains("not on the branch: `.git`"), "{output:?}");
    assert_eq!(difference(&site, &id), ["M README.md", "A a.txt"]);
    assert_eq!(git(&site, &["log", "--format=%an", &format!("HEAD..ringfence/{id}")]), "A Person\n");
    assert_eq!(git(&site, &["tag"]), "");
    let after = seen(&site);
    assert_eq!((before.0, before.2), (after.0, after.2));
}

#[test]
fn ignored_files_secrets_and_other_repositories_are_left_out_and_said_so() {
    let site = repository();
    site.write(".gitignore", "build/\n*.log\n");
    site.write("tracked.log", "1\n");
    site.write("nested/file", "1\n");
    git(&site, &["add", "-f", ".gitignore", "tracked.log"]);
    git(&site, &["commit", "-qm", "ignore"]);
    git(&site, &["init", "-q", "nested"]);
    let id = layer(
        &site,
        "mkdir build; echo x > build/x; echo y > build/y; echo l > new.log; echo 2 > tracked.log; echo KEY=1 > .env
         echo 2 > nested/file; git init -q made; echo x > made/x; mkdir empty; echo ok > ok",
    );
    let output = branched(&site, &id, &[]);
    assert_eq!(difference(&site, &id), ["A ok", "M tracked.log"]);
    for (path, why) in [
        ("build", "git ignores it"),
        ("new.log", "git ignores it"),
        (".env", "secrets are not committed"),
        ("nested", "it is a repository of its own"),
        ("made", "it is a repository of its own"),
    ] {
        let is_said = output.err.contains(&format!("not on the branch: `{path}`: {why}"));
        // A secret may have been refused before that.
        let is_refused = path == ".env" && output.err.contains("not on the branch: `.env`");
        assert!(is_said || is_refused, "{path}: {output:?}");
    }
    seen(&site);
    git(&site, &["branch", "-qD", &format!("ringfence/{id}")]);
    let none = site.run(&["layers", "branch", &id, "build"]);
    assert!(none.err.contains("nothing of it can be on a branch: `build`: git ignores it"), "{none:?}");
}

#[test]
fn line_endings_are_those_of_the_repository() {
    let site = repository();
    site.write(".gitattributes", "*.txt text\n");
    git(&site, &["add", "-A"]);
    git(&site, &["commit", "-qm", "attributes"]);
    let id = layer(&site, "printf 'a\\r\\nb\\r\\n' > a.txt; printf 'a\\r\\n' > a.bin");
    branched(&site, &id, &[]);
    assert_eq!(git(&site, &["show", &format!("ringfence/{id}:a.txt")]), "a\nb\n");
    assert_eq!(git(&site, &["show", &format!("ringfence/{id}:a.bin")]), "a\r\n");
}

#[test]
fn without_a_commit_to_begin_with_the_message_says_what_to_do() {
    let site = TestSite::new();
    let id = layer(&site, "echo x > x");
    check_refused(&site, &id, "the workspace is not the top directory of a git repository");
    git(&site, &["init", "-q", "-b", "main"]);
    check_refused(&site, &id, "git does not know your name");
    git(&site, &["config", "user.name", "A Person"]);
    git(&site, &["config", "user.email", "person@example.org"]);
    check_refused(&site, &id, "the repository has no commit that a branch could begin with");
    git(&site, &["commit", "--allow-empty", "-qm", "start"]);
    git(&site, &["branch", "ringfence"]);
    check_refused(&site, &id, "a branch named `ringfence` stands in the way");
    git(&site, &["branch", "-m", "ringfence", "ours"]);
    branched(&site, &id, &[]);
    site.write("x", "x\n");
    git(&site, &["add", "x"]);
    git(&site, &["commit", "-qm", "the same"]);
    git(&site, &["branch", "-D", &format!("ringfence/{id}")]);
    check_refused(&site, &id, "nothing is left in the layer");
}

#[test]
fn a_file_that_both_changed_is_a_conflict_and_is_not_on_the_branch() {
    let site = repository();
    let id = layer(&site, "echo theirs > README.md; echo x > x");
    site.write("README.md", "mine\n");
    let output = branched(&site, &id, &[]);
    assert_eq!(difference(&site, &id), ["A x"]);
    assert!(output.err.contains("not on the branch: `README.md`"), "{output:?}");
}

/// Git stores an object once: what a later commit, a merge or the index needs is not removed with the branch.
#[test]
fn an_undo_removes_no_object_that_something_else_uses() {
    type Commands = &'static [&'static [&'static str]];
    // A command that writes an object which is there renews its time, and that is a conflict already: these do not.
    let cases: [(&str, Commands); 3] = [
        ("a branch or tag that leads to one of its commits", &[&["merge", "-q", "--ff-only", "ringfence/ID"]]),
        ("an index that has one of its files", &[&["update-index", "--add", "--cacheinfo", "100644,BLOB,a.txt"]]),
        (
            "a later commit that has one of its objects",
            &[&["merge", "-q", "--no-ff", "-m", "merged", "ringfence/ID"], &["rm", "-q", "--cached", "a.txt"]],
        ),
    ];
    for (user, commands) in cases {
        let site = repository();
        let id = layer(&site, "echo a > a.txt");
        branched(&site, &id, &[]);
        let blob = git(&site, &["rev-parse", &format!("ringfence/{id}:a.txt")]);
        for command in commands {
            let words = command.iter().map(|word| word.replace("ID", &id).replace("BLOB", blob.trim()));
            let command: Vec<String> = words.collect();
            git(&site, &command.iter().map(String::as_str).collect::<Vec<_>>());
        }
        let tree = site.tree();
        let undone = site.run(&["undo"]);
        assert_eq!(undone.code, Some(1), "{user}: {undone:?}");
        assert!(undone.err.contains(user), "{user}: {undone:?}");
        assert_eq!(site.tree(), tree, "{user}");
        git(&site, &["fsck", "--strict"]);
    }
    // Commits of other files do not matter, unless one of their objects came to a directory that is new.
    let site = repository();
    for number in 0..256 {
        let directory = site.workspace.join(format!(".git/objects/{number:02x}"));
        std::fs::create_dir_all(directory).unwrap();
    }
    let id = layer(&site, "echo a > a.txt");
    branched(&site, &id, &[]);
    site.write("b.txt", "b\n");
    git(&site, &["add", "b.txt"]);
    git(&site, &["commit", "-qm", "another file"]);
    assert_eq!(site.run(&["undo"]).code, Some(0));
    assert_eq!(git(&site, &["branch", "--list", "ringfence/*"]), "");
    seen(&site);
}
