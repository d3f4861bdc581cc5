//! The git tools: what they show, what a commit keeps, and what they ask about.

use ringfence_testkit::mcp_client::StdioMcpClient;
use serde_json::{Value, json};

use crate::run_code_git::{git, repository, seen};
use crate::site::TestSite;

const GIT: [&str; 2] = ["--toolset", "git"];

#[track_caller]
fn call(site: &TestSite, tool: &str, arguments: &Value) -> Value {
    site.call_with(&GIT, tool, arguments).reply()
}

/// The text of a reply has these lines.
#[track_caller]
fn check(site: &TestSite, tool: &str, arguments: &Value, field: &str, expected: &str) {
    let reply = call(site, tool, arguments);
    assert_eq!(reply["value"][field].as_str().map(str::trim_end), Some(expected), "{tool} {arguments}: {reply}");
}

#[track_caller]
fn check_error(site: &TestSite, tool: &str, arguments: &Value, code: &str, message: &str) {
    let (before, reply) = (site.tree(), call(site, tool, arguments));
    assert_eq!(reply["error"]["code"], code, "{tool} {arguments}: {reply}");
    assert!(reply["error"]["message"].as_str().unwrap().contains(message), "{tool} {arguments}: {reply}");
    assert_eq!(site.tree(), before, "{tool} {arguments}");
    assert!(!reply.to_string().contains(site.root().to_str().unwrap()), "{reply}");
}

#[test]
fn a_repository_is_shown_as_git_shows_it() {
    let site = repository();
    site.write("README.md", "one\n2\nthree\n");
    site.write("new dir/file", "x\n");
    site.write("src/lib.rs", "pub fn two() {}\n");
    git(&site, &["mv", "src/lib.rs", "src/main.rs"]);
    git(&site, &["restore", "--staged", "--worktree", "--", "src/lib.rs"]);
    git(&site, &["add", "src/main.rs"]);

    let status = call(&site, "git_status", &json!({}));
    assert_eq!(status["value"]["branch"], "main");
    let files: Vec<&str> =
        status["value"]["files"].as_array().unwrap().iter().map(|file| file["status"].as_str().unwrap()).collect();
    assert_eq!(files, [" M", "A ", "??"], "{status}");

    let patch = git(&site, &["diff", "--no-ext-diff"]);
    check(&site, "git_diff", &json!({}), "diff", patch.trim_end());
    check(&site, "git_diff", &json!({"paths": ["README.md"]}), "diff", patch.trim_end());
    check(&site, "git_diff", &json!({"paths": ["src"]}), "diff", "");
    check(&site, "git_diff", &json!({"staged": true}), "diff", git(&site, &["diff", "--cached"]).trim_end());
    check(
        &site,
        "git_diff",
        &json!({"stat": true, "range": "HEAD"}),
        "diff",
        "README.md +1 -1\nsrc/main.rs +1 -0\n2 files +2 -1",
    );
    check(&site, "git_diff", &json!({"range": "main..other"}), "diff", git(&site, &["diff", "main..other"]).trim_end());
    check(&site, "git_diff", &json!({"range": "main..other", "stat": "true"}), "diff", "src/other.rs +1 -0");

    let head = git(&site, &["rev-parse", "--short", "HEAD"]);
    check(&site, "git_log", &json!({}), "log", &format!("{} 2026-01-01 A Person: (HEAD -> main) first", head.trim()));
    check(
        &site,
        "git_log",
        &json!({"range": "other", "paths": ["src"], "limit": 1}),
        "log",
        &format!("{} 2026-01-01 A Person: (other) other", git(&site, &["rev-parse", "--short", "other"]).trim()),
    );
    let patches = call(&site, "git_log", &json!({"range": "main..other", "patch": true}));
    let text = patches["value"]["log"].as_str().unwrap();
    assert!(
        text.starts_with("commit ") && text.contains("\n    other\n") && text.contains("+pub fn other() {}"),
        "{text}"
    );
}

#[test]
fn arguments_are_values_and_never_options() {
    let site = repository();
    for (tool, arguments, code, message) in [
        ("git_diff", json!({"range": "--output=stolen"}), "INVALID_ARGS", "not an option"),
        ("git_log", json!({"range": "-p"}), "INVALID_ARGS", "not an option"),
        ("git_log", json!({"range": "main\nother"}), "INVALID_ARGS", "control characters"),
        ("git_log", json!({"range": "absent"}), "INVALID_ARGS", "bad revision 'absent'"),
        ("git_log", json!({"limit": 0}), "INVALID_ARGS", "from 1 to 1000"),
        ("git_diff", json!({"paths": ["-p"]}), "INVALID_ARGS", "must not begin with `-`"),
        ("git_diff", json!({"paths": ["../outside"]}), "INVALID_PATH", "`..`"),
        ("git_diff", json!({"paths": ["/etc/passwd"]}), "INVALID_PATH", "inside the workspace"),
        ("git_status", json!({"repo": "src"}), "FILE_NOT_FOUND", "no git repository"),
        ("git_commit", json!({"message": " "}), "INVALID_ARGS", "must have text"),
        ("git_commit", json!({"message": "x", "paths": ["absent"]}), "INVALID_ARGS", "absent"),
        ("git_commit", json!({"message": "x"}), "EXECUTION_ERROR", "nothing"),
    ] {
        check_error(&site, tool, &arguments, code, message);
    }
    // Not a pattern, and nothing else that git reads into a path.
    check(&site, "git_diff", &json!({"range": "main..other", "paths": ["*.rs"]}), "diff", "");
    check(&site, "git_diff", &json!({"range": "main..other", "paths": [":(top)src"]}), "diff", "");
}

/// A commit is kept without a question, and one undo gives back every byte.
#[test]
fn a_commit_is_one_change_and_undone_to_the_byte() {
    for (prepare, arguments) in [
        (&["add", "README.md"][..], json!({"message": "staged"})),
        (&["status"], json!({"message": "named\n\nWith a body.", "paths": ["README.md", "new"]})),
        (&["add", "README.md"], json!({"message": "named beside staged", "paths": ["new"]})),
        (&["mv", "src/lib.rs", "src/main.rs"], json!({"message": "moved", "paths": ["src"]})),
    ] {
        let site = repository();
        site.write("README.md", "other\n");
        site.write("new/file", "x\n");
        git(&site, prepare);
        let (before, tree) = (seen(&site), site.tree());
        let reply = call(&site, "git_commit", &arguments);
        let head = git(&site, &["rev-parse", "HEAD"]);
        assert_eq!(reply["value"]["commit"], head.trim(), "{reply}");
        let message = git(&site, &["log", "-1", "--format=%B"]);
        assert_eq!(message.trim_end(), arguments["message"].as_str().unwrap());
        seen(&site);
        let change = reply["value"]["change"].as_str().unwrap();
        assert_eq!(site.run(&["undo", change]).code, Some(0), "{reply}");
        assert_eq!((seen(&site), site.tree()), (before, tree), "{arguments}");
    }
}

#[test]
fn a_commit_of_a_protected_path_asks_and_keeps_nothing_without_an_answer() {
    let site = repository();
    site.write(".github/workflows/ci.yml", "on: pull_request\n");
    check_error(&site, "git_commit", &json!({"message": "ci", "paths": ["."]}), "APPROVAL_DENIED", ".git");
    seen(&site);
}

#[test]
fn hooks_of_the_repository_run_in_the_jail() {
    let site = repository();
    let hook = site.workspace.join(".git/hooks/pre-commit");
    let set_hook = |script: &str| {
        std::fs::create_dir_all(hook.parent().unwrap()).unwrap();
        std::fs::write(&hook, script).unwrap();
        std::fs::set_permissions(&hook, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    };
    site.write("README.md", "other\n");
    set_hook(
        "#!/bin/sh\npwd; echo formatted > README.md; git add README.md; cat /etc/shadow 2>/dev/null && exit 1; exit 0\n",
    );
    let reply = call(&site, "git_commit", &json!({"message": "by hook", "paths": ["README.md"]}));
    assert!(reply["value"]["output"].as_str().unwrap().contains("/workspace"), "{reply}");
    assert_eq!(git(&site, &["show", "HEAD:README.md"]), "formatted\n");

    set_hook("#!/bin/sh\necho left > left-behind; echo 'style is wrong' >&2; exit 1\n");
    site.write("README.md", "more\n");
    let arguments = json!({"message": "refused", "paths": ["README.md"]});
    check_error(&site, "git_commit", &arguments, "EXECUTION_ERROR", "style is wrong");
}

#[test]
fn a_commit_has_the_name_of_the_person_and_nothing_else_of_their_config() {
    let site = repository();
    git(&site, &["config", "--unset", "user.name"]);
    git(&site, &["config", "--unset", "user.email"]);
    site.write("README.md", "other\n");
    let arguments = json!({"message": "mine", "paths": ["README.md"]});
    check_error(&site, "git_commit", &arguments, "EXECUTION_ERROR", "");
    let global = "[user]\n\tname = Some One\n\temail = one@example.org\n[core]\n\thooksPath = /tmp\n[commit]\n\tgpgSign = true\n";
    std::fs::write(site.home.join(".gitconfig"), global).unwrap();
    let reply = call(&site, "git_commit", &arguments);
    assert_eq!(reply["ok"], true, "{reply}");
    assert_eq!(git(&site, &["log", "-1", "--format=%an <%ae> %cn"]).trim(), "Some One <one@example.org> Some One");
}

#[test]
fn contents_of_secrets_and_denied_files_are_not_shown() {
    let site = repository();
    site.write(".env", "TOKEN=in-history\n");
    site.write("private/plan", "plan in history\n");
    git(&site, &["add", "-A"]);
    git(&site, &["commit", "-qm", "secrets"]);
    site.write("private/plan", "plan of today\n");
    site.write("README.md", "shown\n");
    std::fs::create_dir_all(site.config.join("ringfence")).unwrap();
    let rule = "[[rules]]\ndecision = \"deny\"\neffect = \"read\"\npath = \"private/**\"\n";
    std::fs::write(site.config.join("ringfence/config.toml"), rule).unwrap();
    for (tool, arguments) in [
        ("git_diff", json!({})),
        ("git_diff", json!({"range": "HEAD~1"})),
        ("git_log", json!({"patch": true})),
        ("git_diff", json!({"range": "HEAD~1", "stat": true})),
        ("git_status", json!({})),
    ] {
        let reply = call(&site, tool, &arguments);
        assert_eq!(reply["ok"], true, "{tool} {arguments}: {reply}");
        for hidden in ["in-history", "plan in", "plan of"] {
            assert!(!reply.to_string().contains(hidden), "{tool} {arguments}: {reply}");
        }
        assert!(reply.to_string().contains("README.md"), "{reply}");
        assert!(reply["value"]["hidden"].to_string().contains(".env"), "{tool} {arguments}: {reply}");
    }
    check_error(&site, "git_diff", &json!({"paths": [".env"]}), "APPROVAL_DENIED", ".env");
    check_error(&site, "git_diff", &json!({"paths": ["private"]}), "PERMISSION_DENIED", "private");
    // In trees below the root, and in contents alone, paths are others than the policy knows.
    let object = |name: &str| git(&site, &["rev-parse", name]).trim().to_owned();
    let (root, directory, file) = (object("HEAD^{tree}"), object("HEAD:private"), object("HEAD:private/plan"));
    let named = ["HEAD:private", "HEAD:private..HEAD:private", "HEAD:private/plan", ":private/plan"];
    let trees = [&root, &directory, &file].map(|object| [object.clone(), format!("{root}..{object}")]);
    // Forms that git reads as the end of a range, and that look as if they had parents.
    let described = [&directory, &file].map(|object| format!("HEAD..x^--g{object}"));
    for range in named.map(str::to_owned).into_iter().chain(trees.into_iter().flatten()).chain(described) {
        let reply = call(&site, "git_diff", &json!({"range": range}));
        assert_eq!(reply["ok"], false, "{range}: {reply}");
        assert!(!reply.to_string().contains("plan in"), "{range}: {reply}");
    }
}

/// Headers of a patch are made of names, and a name may look like a part of one.
#[test]
fn names_do_not_pass_contents_off_as_those_of_another_file() {
    let site = repository();
    let lines: String = (0..20).map(|number| format!("KEY{number}=in-history\n")).collect();
    site.write(".env", &lines);
    git(&site, &["add", "-f", "-A"]);
    git(&site, &["commit", "-qm", "secret"]);
    // `diff --git a/.env b/Q b/.env b/Q` is also the header of the file `.env b/Q`.
    std::fs::create_dir_all(site.workspace.join("Q b/.env b")).unwrap();
    git(&site, &["mv", ".env", "Q b/.env b/Q"]);
    site.write("Q b/.env b/Q", format!("{lines}more\n"));
    git(&site, &["add", "-f", "-A"]);
    git(&site, &["commit", "-qm", "moved"]);
    for (tool, arguments) in [
        ("git_diff", json!({"range": "HEAD~1..HEAD"})),
        ("git_log", json!({"patch": true, "limit": 1})),
        ("git_diff", json!({"range": "HEAD~1..HEAD", "stat": true})),
    ] {
        let reply = call(&site, tool, &arguments);
        assert_eq!(reply["ok"], true, "{reply}");
        assert!(!reply.to_string().contains("in-history"), "{tool} {arguments}: {reply}");
    }
}

/// Neither a link to the repository nor one in it leads around a rule.
#[test]
fn a_rule_holds_for_every_name_of_a_repository() {
    let site = TestSite::in_memory();
    site.write("real/private/plan", "plan in history\n");
    site.write("real/README.md", "one\n");
    for arguments in [&["init", "-q", "-b", "main"][..], &["add", "-A"], &["commit", "-qm", "first"]] {
        git(&site, &[&["-C", "real"], arguments].concat());
    }
    site.write("real/private/plan", "plan of today\n");
    std::os::unix::fs::symlink("real", site.workspace.join("link")).unwrap();
    std::fs::create_dir(site.workspace.join("bare")).unwrap();
    std::os::unix::fs::symlink("../real/.git", site.workspace.join("bare/.git")).unwrap();
    std::fs::create_dir_all(site.config.join("ringfence")).unwrap();
    let rule = "[[rules]]\ndecision = \"deny\"\neffect = \"read\"\npath = \"real/private/**\"\n";
    std::fs::write(site.config.join("ringfence/config.toml"), rule).unwrap();
    for repo in ["real", "link", "bare"] {
        for (tool, arguments) in [
            ("git_diff", json!({"repo": repo})),
            ("git_diff", json!({"repo": repo, "range": "HEAD"})),
            ("git_log", json!({"repo": repo, "patch": true})),
        ] {
            let reply = call(&site, tool, &arguments).to_string();
            assert!(!reply.contains("plan in") && !reply.contains("plan of"), "{tool} {arguments}: {reply}");
        }
    }
}

#[test]
fn names_are_shown_escaped() {
    let site = repository();
    site.write("a\n?? b\u{1b}[2J", "x\n");
    let text = site.call_with(&["--toolset", "git", "--dialect", "claude"], "git_status", &json!({}));
    assert!(!text.out.contains("\n?? b") && !text.out.contains('\u{1b}'), "{text:?}");
    git(&site, &["add", "-A"]);
    let text = call(&site, "git_diff", &json!({"staged": true, "stat": true}));
    let diff = text["value"]["diff"].as_str().unwrap();
    assert!(!diff.contains("\n?? b") && !diff.contains('\u{1b}'), "{text}");
}

#[test]
fn a_repository_below_the_workspace_is_named() {
    let site = TestSite::in_memory();
    site.write("sub/a", "one\n");
    git(&site, &["-C", "sub", "init", "-q", "-b", "main"]);
    let commit = json!({"message": "first", "paths": ["sub/a"], "repo": "sub"});
    git(&site, &["-C", "sub", "config", "user.name", "A Person"]);
    git(&site, &["-C", "sub", "config", "user.email", "person@example.org"]);
    let reply = call(&site, "git_commit", &commit);
    assert_eq!(reply["ok"], true, "{reply}");
    site.write("sub/a", "two\n");
    check(&site, "git_diff", &json!({"repo": "sub", "paths": ["sub/a"], "stat": true}), "diff", "a +1 -1");
    check_error(&site, "git_diff", &json!({"repo": "sub", "paths": ["b"]}), "INVALID_PATH", "not in the repository");
    // A file in the place of `.git` names a repository elsewhere.
    std::fs::create_dir(site.workspace.join("linked")).unwrap();
    site.write("linked/.git", "gitdir: ../sub/.git\n");
    check_error(&site, "git_status", &json!({"repo": "linked"}), "FILE_NOT_FOUND", "no git repository");
}

#[test]
fn the_tools_are_offered_on_request() {
    let site = repository();
    let names = |arguments: &[&str]| -> Vec<(String, bool)> {
        let mut client = StdioMcpClient::with_handshake(&site, arguments, json!({}));
        let said = client.request("tools/list", json!({}));
        let tools = said["result"]["tools"].as_array().unwrap().iter();
        let git = tools.filter(|tool| tool["name"].as_str().unwrap().starts_with("git_"));
        let listed = git.map(|tool| {
            assert!(tool.get("_meta").is_none(), "loaded when they are asked for: {tool}");
            (tool["name"].as_str().unwrap().to_owned(), tool["annotations"]["readOnlyHint"] == true)
        });
        listed.collect()
    };
    let names_of_all = ["git_status", "git_diff", "git_log", "git_commit", "git_fetch", "git_push"];
    let all = names_of_all
        .map(|name| (name, matches!(name, "git_status" | "git_diff" | "git_log")))
        .map(|(name, only_reads)| (name.to_owned(), only_reads));
    assert_eq!(names(&[]), []);
    for dialect in ["standard", "claude", "codex", "gemini"] {
        assert_eq!(names(&["--toolset", "git", "--dialect", dialect]), all, "{dialect}");
    }
    let unknown = site.run(&["tools", "--toolset", "gti"]);
    assert!(unknown.err.contains("unknown toolset `gti`; available: code, git, project"), "{unknown:?}");
    std::fs::create_dir_all(site.config.join("ringfence")).unwrap();
    std::fs::write(site.config.join("ringfence/config.toml"), "toolsets = [\"git\"]\n").unwrap();
    assert_eq!(names(&[]), all);
}
