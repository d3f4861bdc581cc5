//! Git in programs: what it does to a repository is data, as long as it leads to nothing protected.

use std::process::Command;

use ringfence_kernel::{ErrorKind, Taint};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::run_code::{bash, run_with, run_with_listener, test_app};
use crate::site::TestSite;

/// Runs git on the host, as the person would.
#[track_caller]
pub(crate) fn git(site: &TestSite, arguments: &[&str]) -> String {
    let mut command = Command::new("git");
    command.current_dir(&site.workspace).args(arguments).env_clear().env("PATH", std::env::var("PATH").unwrap());
    command.env("HOME", &site.home).env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_OPTIONAL_LOCKS", "0");
    for (name, value) in [("NAME", "A Person"), ("EMAIL", "person@example.org"), ("DATE", "2026-01-01T00:00:00Z")] {
        command.env(format!("GIT_AUTHOR_{name}"), value).env(format!("GIT_COMMITTER_{name}"), value);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A repository with a branch `other` that differs from `main` in ordinary files, and one `risky` that has another workflow.
pub(crate) fn repository() -> TestSite {
    repository_at(TestSite::in_memory())
}

/// The same in another place.
pub(crate) fn repository_at(site: TestSite) -> TestSite {
    site.write("README.md", "one\ntwo\nthree\n");
    site.write("src/lib.rs", "pub fn one() {}\n");
    site.write(".github/workflows/ci.yml", "on: push\n");
    git(&site, &["init", "-q", "-b", "main"]);
    git(&site, &["config", "user.name", "A Person"]);
    git(&site, &["config", "user.email", "person@example.org"]);
    git(&site, &["add", "-A"]);
    git(&site, &["commit", "-qm", "first"]);
    for (branch, path, content) in [
        ("other", "src/other.rs", "pub fn other() {}\n"),
        ("conflicting", "README.md", "one\nother\nthree\n"),
        ("risky", ".github/workflows/ci.yml", "on: pull_request\n"),
    ] {
        git(&site, &["switch", "-qc", branch, "main"]);
        site.write(path, content);
        git(&site, &["add", "-A"]);
        git(&site, &["commit", "-qm", branch]);
    }
    git(&site, &["switch", "-q", "main"]);
    site
}

/// A person's view of a repository.
pub(crate) fn seen(site: &TestSite) -> (String, String, String) {
    git(site, &["fsck", "--strict"]);
    (
        git(site, &["status", "--porcelain", "-b"]),
        git(site, &["log", "--all", "--format=%H %D"]),
        site.read(".git/HEAD"),
    )
}

fn edits(site: &TestSite, code: &str) -> Value {
    run_with(site, &["--preset", "edits"], &bash(&format!("set -e\n{code}"))).reply()
}

/// Git in a program works without approval, and one undo reverts it.
#[track_caller]
fn check_kept(code: &str) {
    let site = repository();
    let (before, tree) = (seen(&site), site.tree());
    let reply = edits(&site, code);
    assert_eq!((&reply["ok"], &reply["value"]["committed"]), (&json!(true), &json!("all")), "{code}: {reply}");
    assert_eq!(reply["value"]["exitCode"], 0, "{code}: {reply}");
    assert_ne!(site.tree(), tree, "{code}");
    seen(&site);
    let change = reply["value"]["change"].as_str().unwrap();
    assert_eq!(site.run(&["undo", change]).code, Some(0), "{code}");
    assert_eq!((seen(&site), site.tree()), (before, tree), "{code}");
}

/// The changes by git are discarded, and the repository and its worktree are as before.
#[track_caller]
fn check_refused(code: &str, named: &str) {
    check_refused_in(&repository(), code, named);
}

#[track_caller]
fn check_refused_in(site: &TestSite, code: &str, named: &str) {
    let (before, tree) = (seen(site), site.tree());
    let reply = edits(site, code);
    assert_eq!(reply["error"]["code"], "APPROVAL_DENIED", "{code}: {reply}");
    let paths = reply["error"]["details"]["notKept"].to_string();
    assert!(paths.contains(named), "{code}: no {named} in {reply}");
    assert_eq!((seen(site), site.tree()), (before, tree), "{code}: {reply}");
}

#[test]
fn everyday_git_is_kept_without_a_question_and_undone_as_one() {
    for code in [
        "echo more >> README.md; git add README.md",
        "echo more >> README.md; git commit -qam more",
        "echo new > new.rs; git add new.rs; git commit -qm new",
        "git switch -q other",
        "git switch -qc fresh; echo x > x; git add x; git commit -qm x",
        "echo more >> README.md; git stash -q",
        "echo more >> README.md; git stash -q; git stash pop -q",
        "echo more > README.md; git add README.md; git restore --staged README.md",
        "git merge -q other",
        "git merge -q --no-ff -m merged other",
        "echo mine > mine; git add mine; git commit -qm mine; git merge -q -m merged other",
        "git switch -q other; git rebase -q conflicting",
        "git cherry-pick other >/dev/null",
        "git mv README.md READ.md; git commit -qm moved",
        "git rm -q README.md; git commit -qm removed",
        "git tag -a v1 -m v1; git tag light; git branch -q more; git branch -qd more",
        "git pack-refs --all",
        "git repack -qad",
        "git commit -q --amend -m other --no-edit",
        "git reset -q --hard other",
        "git checkout -q --detach other",
        "git update-index --index-version 4; echo x > x; git add x",
    ] {
        check_kept(code);
    }
}

#[test]
fn looking_at_a_repository_changes_nothing_and_drops_nothing() {
    for preset in ["ask", "edits"] {
        for lock in ["", "export GIT_OPTIONAL_LOCKS=1; "] {
            let site = repository();
            let code = format!("{lock}touch README.md; git status -s; git diff; git log --oneline; echo new > new.txt");
            let reply = run_with(&site, &["--preset", preset], &bash(&code)).reply();
            assert_eq!(reply["value"]["committed"], "all", "{preset} {lock}: {reply}");
            assert_eq!(
                reply["value"]["changes"],
                json!([{"path": "new.txt", "kind": "created", "size": 4}]),
                "{reply}"
            );
        }
    }
}

#[test]
fn references_to_protected_paths_require_approval() {
    for (code, named) in [
        // A branch, also one that is not checked out, and the worktree lacks it.
        ("git switch -q risky", ".git/HEAD"),
        ("git merge -q risky", ".git/"),
        ("git update-ref refs/heads/main risky", ".git/refs/heads/main"),
        ("git symbolic-ref HEAD refs/heads/risky", ".git/HEAD"),
        ("git read-tree risky", ".git/index"),
        ("git cherry-pick risky >/dev/null", ".git/"),
        (
            "b=$(echo evil | git hash-object -w --stdin); git update-index --add --cacheinfo 100644,$b,.vscode/tasks.json",
            ".git/index",
        ),
        (
            "b=$(echo evil | git hash-object -w --stdin); t=$(printf '100644 blob %s\\tAGENTS.md\\n' $b | git mktree); \
             git branch -q hidden $(git commit-tree -m x $t)",
            ".git/refs/heads/hidden",
        ),
        (
            "b=$(echo evil | git hash-object -w --stdin); t=$(printf '100644 blob %s\\t.gitattributes\\n' $b | git mktree); \
             git update-ref refs/stash $(git commit-tree -m x -p HEAD -p $(git commit-tree -m y $t) HEAD^{tree})",
            ".git/refs/stash",
        ),
        (
            "b=$(echo evil | git hash-object -w --stdin); t=$(printf '100644 blob %s\\tAGENTS.md\\n' $b | git mktree); \
             git commit-tree -m x $t > .git/MERGE_AUTOSTASH",
            ".git/MERGE_AUTOSTASH",
        ),
        // Flags that hide, and objects that stand for others.
        ("git update-index --skip-worktree README.md", ".git/index"),
        ("git update-index --assume-unchanged README.md", ".git/index"),
        ("git replace HEAD other", ".git/refs/replace"),
        ("git update-ref refs/heads/x $(git rev-parse other); git replace HEAD other; git pack-refs --all", ".git/"),
        // Settings, and names that are not known.
        ("git config core.fsmonitor ./evil", ".git/config"),
        ("echo x > .git/hooks/post-commit", ".git/hooks/post-commit"),
        ("mkdir -p .git/info; echo '* filter=x' > .git/info/attributes", ".git/info/attributes"),
        ("echo x > .git/info/grafts", ".git/info/grafts"),
        ("git sparse-checkout set src", ".git/info/sparse-checkout"),
        ("echo /elsewhere > .git/objects/info/alternates", ".git/objects/info/alternates"),
        ("echo x > .git/whatever", ".git/whatever"),
        // Without these there is no repository, or no history.
        ("rm .git/HEAD", ".git/HEAD"),
        ("rm -r .git/refs", ".git/refs"),
        ("git rev-parse HEAD > .git/shallow", ".git/shallow"),
        // A link that brings settings, in a tree and in the worktree.
        ("ln -s src .cargo", ".cargo"),
        (
            "b=$(printf src | git hash-object -w --stdin); git update-index --add --cacheinfo 120000,$b,.cargo",
            ".git/index",
        ),
        (
            "b=$(printf src | git hash-object -w --stdin); t=$(printf '120000 blob %s\\t.cargo\\n' $b | git mktree); \
             git branch -q linked $(git commit-tree -m x $t)",
            ".git/refs/heads/linked",
        ),
        // The next commit copies the file that it names to where a program reads it.
        (
            "h=$(git rev-parse HEAD); mkdir -p .git/rr-cache/$h; printf '%s\\t/etc/passwd\\0' $h > .git/MERGE_RR",
            ".git/MERGE_RR",
        ),
        ("mkdir -p .git/rr-cache/x; echo x > .git/rr-cache/x/postimage", ".git/rr-cache/x/postimage"),
        ("git commit-graph write --reachable", ".git/objects/info"),
        (
            "git multi-pack-index write || git repack -qd && git multi-pack-index write",
            ".git/objects/pack/multi-pack-index",
        ),
        ("git worktree add -q /tmp/w other", ".git/worktrees"),
        ("git -c protocol.file.allow=always submodule --quiet add ./ sub", ".git"),
    ] {
        check_refused(code, named);
    }
}

#[test]
fn a_packed_reference_that_leads_to_a_protected_path_is_not_uncovered_unasked() {
    for code in ["rm .git/refs/heads/covered", "rm -r .git/refs/heads", "mv .git/refs/heads/covered .git/refs/heads/x"]
    {
        let site = repository();
        git(&site, &["branch", "covered", "risky"]);
        git(&site, &["pack-refs", "--all"]);
        git(&site, &["update-ref", "refs/heads/covered", "main"]);
        check_refused_in(&site, code, ".git/refs/heads");
    }
}

#[test]
fn hooks_are_protected_wherever_the_repository_has_them() {
    for (line, path) in [
        ("hooksPath = scripts/git", "scripts/git/pre-commit"),
        ("HOOKSPATH=\"./scripts\" # ours", "scripts/deep/x.sh"),
        ("hookspath = sub/../scripts/", "scripts/post-checkout"),
    ] {
        let site = repository();
        site.write("scripts/git/commit-msg", "");
        let config = site.read(".git/config");
        site.write(".git/config", format!("{config}[user]\nhooksPath = src\n[Core] {line}\n"));
        check_refused_in(&site, &format!("mkdir -p scripts/deep; echo x > {path}; rmdir scripts/deep || true"), path);
        assert_eq!(edits(&site, "echo x > src/new.rs")["value"]["committed"], "all", "{line}");
    }
    let site = repository();
    site.write("tools/hooks/commit-msg", "");
    std::fs::remove_dir_all(site.workspace.join(".git/hooks")).unwrap();
    std::os::unix::fs::symlink("../tools/hooks", site.workspace.join(".git/hooks")).unwrap();
    check_refused_in(&site, "echo x > tools/hooks/pre-commit", "tools/hooks/pre-commit");
}

#[test]
fn settings_are_protected_where_a_link_of_their_directory_leads() {
    for code in ["echo x > cfg/tasks.json", "echo x > cfg/tasks.json; git add cfg; git commit -qm tasks"] {
        let site = repository();
        site.write("cfg/old", "");
        std::os::unix::fs::symlink("cfg", site.workspace.join(".vscode")).unwrap();
        check_refused_in(&site, code, "cfg/tasks.json");
        assert_eq!(edits(&site, "echo x > src/new.rs")["value"]["committed"], "all", "{code}");
    }
}

/// A repository that tracks a secret, a file that a link of a secret's name leads to, and a directory of secrets.
fn repository_with_secrets() -> TestSite {
    let site = repository();
    site.write(".env", "KEY=1\n");
    site.write("settings.txt", "KEY=2\n");
    site.write(".ssh/config", "Host x\n");
    std::os::unix::fs::symlink("settings.txt", site.workspace.join(".env.local")).unwrap();
    git(&site, &["add", "-Af"]);
    git(&site, &["commit", "-qm", "secrets"]);
    site
}

#[test]
fn a_mask_is_never_committed_in_the_place_of_a_tracked_file() {
    let other_index = "cp .git/index /tmp/i; export GIT_INDEX_FILE=/tmp/i";
    for (code, masked) in [
        ("git add -A".to_owned(), ".env"),
        ("echo more >> README.md; git commit -qam more".to_owned(), ".env"),
        ("git add .env".to_owned(), ".env"),
        ("git add settings.txt; git commit -qm settings".to_owned(), "settings.txt"),
        ("git add -A .ssh; git commit -qm ssh".to_owned(), ".ssh"),
        ("git add .env; git commit -qm emptied; git reset -q --soft HEAD~".to_owned(), ".env"),
        // A tree that the index never had.
        (
            format!(
                "{other_index}; git add settings.txt; git branch -q x $(git commit-tree -m x -p HEAD $(git write-tree))"
            ),
            "settings.txt",
        ),
        (
            format!(
                "{other_index}; git add -A .ssh; git tag -a -m x x $(git commit-tree -m x -p HEAD $(git write-tree))"
            ),
            ".ssh",
        ),
    ] {
        let site = repository_with_secrets();
        let (before, tree) = (seen(&site), site.tree());
        let reply = edits(&site, &code);
        let error = reply["error"].to_string();
        assert!(error.contains(&format!("`{masked}` is masked in programs")), "{code}: {reply}");
        assert!(error.contains("git restore --staged"), "{code}: {reply}");
        assert_ne!(reply["error"]["code"], "APPROVAL_DENIED", "{code}: {reply}");
        git(&site, &["fsck", "--strict"]);
        if !code.starts_with("echo") {
            assert_eq!((seen(&site), site.tree()), (before, tree), "{code}: {reply}");
        }
    }
}

/// Objects may be packed, so a program can read what is committed, and its session counts as one that did.
#[test]
fn a_program_that_can_read_a_committed_secret_adds_its_taint() {
    let check = |site: &TestSite, is_committed: bool| {
        let app = test_app(site);
        let run = || {
            let code = bash("wc -c < .env; git show HEAD:.env || true");
            run_with_listener(&app, &code, &CancellationToken::new(), || {}).0
        };
        let reply = run();
        let value = serde_json::from_str::<Value>(&reply.text).unwrap()["value"].clone();
        // The file is masked, and its objects are not.
        let printed = if is_committed { "0\nKEY=1\n" } else { "0\n" };
        assert_eq!(value["stdout"], printed, "{}", reply.text);
        assert_eq!(app.session.taint.contains(Taint::ReadSecret), is_committed);
        [Taint::SawUntrusted, Taint::HasEgress].into_iter().for_each(|taint| app.session.taint.add(taint));
        let expected = is_committed.then_some(ErrorKind::ApprovalDenied);
        let reply = run();
        assert_eq!(reply.error_kind(), expected, "{}", reply.text);
        assert!(!reply.text.contains("KEY=1"), "{}", reply.text);
    };
    let site = repository_with_secrets();
    check(&site, true);
    git(&site, &["gc", "-q"]);
    check(&site, true);
    let site = repository();
    site.write(".env", "KEY=1\n");
    check(&site, false);
}

#[test]
fn what_git_does_beside_a_mask_is_judged_as_before() {
    for code in [
        "echo more >> README.md; git add README.md; git commit -qm more",
        "git add -A; git restore --staged .env settings.txt .ssh; echo x > x; git add x",
        "git switch -q -c fresh; git commit -q --allow-empty -m x",
    ] {
        let site = repository_with_secrets();
        let reply = edits(&site, code);
        assert_eq!(reply["value"]["committed"], "all", "{code}: {reply}");
        assert_eq!(git(&site, &["show", "HEAD:.env"]), "KEY=1\n", "{code}");
    }
    // The file itself is empty, or was in the history.
    let site = repository_with_secrets();
    site.write(".env", "");
    check_refused_in(&site, "git add .env", ".git/index");
    git(&site, &["commit", "-qam", "emptied"]);
    site.write(".env", "KEY=3\n");
    git(&site, &["commit", "-qam", "filled"]);
    check_refused_in(&site, "git reset -q HEAD~", ".git/index");
    check_refused_in(&repository_with_secrets(), "git rm -q --cached .env", ".git/index");
}

#[test]
fn a_cache_in_the_index_is_only_replaced_where_git_does_not_use_it() {
    // Git gives up the cache of another directory than it works in, and makes its own.
    for config in ["true", "keep"] {
        let site = repository();
        git(&site, &["config", "core.untrackedCache", config]);
        git(&site, &["update-index", "--force-untracked-cache"]);
        git(&site, &["-c", "core.untrackedCache=keep", "status"]);
        let index = std::fs::read(site.workspace.join(".git/index")).unwrap();
        assert!(index.windows(4).any(|name| name == b"UNTR"));
        let reply = edits(&site, "export GIT_OPTIONAL_LOCKS=1; touch README.md; git status -s; echo new > new.txt");
        assert_eq!(reply["value"]["committed"], "all", "{config}: {reply}");
        assert_eq!(std::fs::read(site.workspace.join(".git/index")).unwrap(), index, "{config}");
        if config == "true" {
            let reply = edits(&site, "echo more >> README.md; git add README.md; git status -s");
            assert_eq!(reply["value"]["committed"], "all", "{reply}");
        }
    }
    for (name, arguments) in [
        ("UNTR", ["-c", "core.untrackedCache=keep", "update-index", "--force-untracked-cache"]),
        ("FSMN", ["-c", "core.fsmonitor=/bin/true", "update-index", "--fsmonitor"]),
    ] {
        let site = repository();
        git(&site, &arguments);
        let forged = format!(
            "cp .git/index /tmp/old; git rm -q --cached README.md; python3 - <<'END'\n\
             def split(path):\n    \
                 data = open(path, 'rb').read()[:-20]\n    \
                 at = data.find(b'{name}')\n    \
                 end = at + 8 + int.from_bytes(data[at + 4:at + 8], 'big')\n    \
                 return (data[:at] + data[end:], data[at:end]) if at >= 0 else (data, b'')\n\
             cache = bytearray(split('/tmp/old')[1])\n\
             cache[-2] ^= 1\n\
             open('.git/index', 'wb').write(split('.git/index')[0] + cache + bytes(20))\n\
             END\n"
        );
        check_refused_in(&site, &forged, ".git/index");
    }
    let site = repository();
    git(&site, &["update-index", "--force-untracked-cache"]);
    let reply = edits(&site, "git update-index --no-untracked-cache; echo x > x; git add x");
    assert_eq!(reply["value"]["committed"], "all", "{reply}");
}

#[test]
fn an_object_that_is_not_what_its_name_says_makes_nothing_data() {
    let lie = "import os, subprocess, zlib\n\
        run = lambda *a, **k: subprocess.run(a, check=True, capture_output=True, **k).stdout.strip().decode()\n\
        blob = run('git', 'hash-object', '-w', '--stdin', input=b'evil')\n\
        evil = run('git', 'mktree', input=f'100644 blob {blob}\\tAGENTS.md\\n'.encode())\n\
        good = run('git', 'rev-parse', 'HEAD^{tree}')\n\
        commit = run('git', 'cat-file', 'commit', 'HEAD').replace(good, evil).encode() + b'\\n'\n\
        name = run('git', 'commit-tree', '-m', 'x', good)\n\
        path = f'.git/objects/{name[:2]}/{name[2:]}'\n\
        os.chmod(path, 0o644)\n\
        open(path, 'wb').write(zlib.compress(b'commit %d\\0' % len(commit) + commit))\n\
        open('.git/refs/heads/lie', 'w').write(name + '\\n')\n";
    let site = repository();
    let (before, tree) = (seen(&site), site.tree());
    let arguments = json!({"language": "python", "code": lie});
    let reply = run_with(&site, &["--preset", "edits"], &arguments).reply();
    assert_eq!(reply["error"]["code"], "APPROVAL_DENIED", "{reply}");
    assert_eq!((seen(&site), site.tree()), (before, tree));
}

#[test]
fn an_incomplete_git_operation_is_refused_whole() {
    for (code, named) in [
        ("echo mine > README.md; git commit -qam mine; git rebase conflicting || true", ".git/rebase-merge"),
        ("echo mine > README.md; git commit -qam mine; git merge conflicting || true; git config a.b c", ".git/config"),
        (
            "echo mine > README.md; git commit -qam mine; git cherry-pick conflicting || true; git config a.b c",
            ".git/config",
        ),
        ("git mv README.md .vscode.json; git mv src/lib.rs .envrc", ".envrc"),
        ("git switch -q other; git config a.b c", "src/other.rs"),
    ] {
        check_refused(code, named);
    }
}

/// The repository with edits that a person has not committed, and files that are not tracked.
fn dirty_repository() -> TestSite {
    let site = repository();
    site.write("src/lib.rs", "pub fn mine() {}\n");
    site.write("README.md", "one\ntwo\nmine\n");
    site.write("notes.txt", "not tracked\n");
    site.write("drafts/one.txt", "not tracked either\n");
    site
}

/// Contents that git took out of the worktree must not be lost with the data that has them.
#[test]
fn uncommitted_work_survives_a_git_operation_that_is_refused() {
    for (code, named) in [
        ("git stash -q; git config a.b c", ".git/config"),
        ("git stash -q; echo own > README.md; git config a.b c", ".git/config"),
        ("git stash -qu; git config a.b c", "notes.txt"),
        ("git stash -qu; git config a.b c", "drafts"),
        ("git stash push -q src/lib.rs; git config a.b c", "src/lib.rs"),
        ("git reset -q --hard; git config a.b c", "README.md"),
        ("git reset -q --hard other; git config a.b c", "README.md"),
        ("git checkout -q -- README.md; git config a.b c", "README.md"),
        ("git restore src; git config a.b c", "src/lib.rs"),
        ("git commit -qam wip; git reset -q --hard HEAD~; git config a.b c", "README.md"),
        ("git add -A; git commit -qm wip; git switch -q other; git config a.b c", "notes.txt"),
        ("git commit -qam wip; git switch -q --detach HEAD~; echo own >> README.md; git config a.b c", "README.md"),
        ("git add -A; git reset -q --hard; git config a.b c", "notes.txt"),
        ("git switch -q -f other; git config a.b c", "README.md"),
    ] {
        check_refused_in(&dirty_repository(), code, named);
    }
}

#[test]
fn a_stash_with_a_protected_file_is_refused_whole() {
    let site = dirty_repository();
    site.write(".github/workflows/ci.yml", "on: pull_request\n");
    check_refused_in(&site, "git stash", ".git/refs/stash");
    check_refused_in(&site, "git stash -u", ".git/refs/stash");
}

#[test]
fn what_a_rebase_stashed_is_refused_with_it() {
    let site = repository();
    site.write("src/lib.rs", "pub fn mine() {}\n");
    let code = "echo mine > README.md; git commit -qm mine README.md; git rebase --autostash conflicting || true";
    check_refused_in(&site, code, ".git/rebase-merge");
}

#[test]
fn a_mode_that_git_stashed_is_refused_with_the_stash() {
    let site = repository();
    let file = site.workspace.join("src/lib.rs");
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    check_refused_in(&site, "git stash -q; git config a.b c", "src/lib.rs");
}

/// The other direction: what git brings back stays in the stash, and in the merge.
#[test]
fn an_operation_that_brings_contents_back_is_refused_whole() {
    let site = dirty_repository();
    git(&site, &["stash", "-qu"]);
    check_refused_in(&site, "git stash pop -q; git config a.b c", "drafts/one.txt");
    check_refused_in(&site, "git stash pop -q; git config a.b c", "README.md");

    let site = repository();
    site.write("README.md", "one\nmine\nthree\n");
    git(&site, &["commit", "-qam", "mine"]);
    git(&site, &["-c", "alias.try=!git merge -q conflicting || true", "try"]);
    check_refused_in(&site, "git merge --abort; git config a.b c", "README.md");
}

/// Where a repository cannot be read, nothing is overwritten or deleted without it.
#[test]
fn uncommitted_work_survives_in_a_repository_that_cannot_be_read() {
    let site = dirty_repository();
    git(&site, &["update-index", "--split-index"]);
    check_refused_in(&site, "git stash -qu", "README.md");
}

#[test]
fn uncommitted_work_of_a_submodule_survives() {
    let site = repository();
    git(&site, &["-c", "protocol.file.allow=always", "submodule", "add", "-q", "./", "sub"]);
    git(&site, &["commit", "-qm", "with a submodule"]);
    site.write("sub/README.md", "mine\n");
    check_refused_in(&site, "cd sub; git stash -q", "sub/README.md");
}

/// Without a change of the repository, git writes files like any other program.
#[test]
fn changes_of_the_worktree_alone_are_kept() {
    for (code, status) in [
        ("git checkout -q -- README.md", " M src/lib.rs\n?? drafts/\n?? notes.txt\n"),
        ("git clean -qfd", " M README.md\n M src/lib.rs\n"),
    ] {
        let site = dirty_repository();
        let reply = edits(&site, code);
        assert_eq!(reply["value"]["committed"], "all", "{code}: {reply}");
        assert_eq!(git(&site, &["status", "--porcelain"]), status, "{code}");
    }
    for (code, status) in [
        ("rm notes.txt; git config a.b c", " M README.md\n M src/lib.rs\n?? drafts/\n"),
        ("git clean -qfd; git config a.b c", " M README.md\n M src/lib.rs\n"),
        (
            "echo own > src/lib.rs; chmod +x README.md; git add -A; git config a.b c",
            " M README.md\n M src/lib.rs\n?? drafts/\n?? notes.txt\n",
        ),
    ] {
        let site = dirty_repository();
        let reply = edits(&site, code);
        assert_eq!(reply["error"]["details"]["committed"], "some", "{code}: {reply}");
        assert_eq!(git(&site, &["status", "--porcelain"]), status, "{code}");
    }
}

#[test]
fn edits_are_kept_when_only_the_repository_is_refused() {
    let site = repository();
    let reply = edits(&site, "echo more >> README.md; echo new > new.rs; git add -A; git config a.b c");
    let details = &reply["error"]["details"];
    assert_eq!(details["committed"], "some", "{reply}");
    assert_eq!(git(&site, &["status", "--porcelain"]), " M README.md\n?? new.rs\n");
    git(&site, &["fsck", "--strict"]);
}

#[test]
fn under_ask_a_commit_waits_for_an_answer_and_new_files_are_kept() {
    let site = repository();
    let code = "echo new > new.rs; git add -A; git commit -qm new";
    let reply = run_with(&site, &["--preset", "ask"], &bash(code)).reply();
    assert_eq!(reply["error"]["details"]["kept"], json!([{"path": "new.rs", "kind": "created", "size": 4}]), "{reply}");
    assert_eq!(git(&site, &["status", "--porcelain"]), "?? new.rs\n");
}

#[test]
fn only_a_repository_that_was_there_has_data() {
    for code in [
        "git init -q sub; cd sub; git commit -q --allow-empty -m x",
        "rm -rf .git; git init -q -b main; git commit -q --allow-empty -m x",
        "git init -q --bare bare",
        "mv .git sub.git",
    ] {
        check_refused(
            &format!("export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=b; {code}"),
            "",
        );
    }
}
