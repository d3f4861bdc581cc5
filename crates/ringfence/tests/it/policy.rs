//! Rules from config files: precedence, errors, and the program's reports about them.

use std::os::unix::fs::symlink;
use std::path::PathBuf;

use expect_test::{Expect, expect};
use ringfence::config::{AppSettings, CliFlags};
use ringfence_kernel::{
    Decision, Dialect, Policy as _, PolicyAction, PolicyLayer, PolicyRequest, PolicyResource, Preset, ResourceAccess,
    TaintSet, Verdict,
};
use ringfence_testkit::host::session_without_tools;
use serde_json::{Value, json};

use crate::config::ConfigLayers;
use crate::site::{CliOutput, TestSite, cli_output};

/// A workspace with a few files.
fn site() -> TestSite {
    let site = TestSite::new();
    for path in ["README.md", "docs/a.md", "private/keys.txt", ".env"] {
        site.write(path, "x\n");
    }
    site
}

/// The user's config with this text, outside of the workspace.
fn config(site: &TestSite, text: &str) -> PathBuf {
    let path = site.root().join("user.toml");
    std::fs::write(&path, text).unwrap();
    path
}

/// A call under the user's config, and what came of it.
fn call(site: &TestSite, text: &str, tool: &str, arguments: &Value) -> CliOutput {
    let config = config(site, text);
    site.run(&["--config", config.to_str().unwrap(), "call", tool, &arguments.to_string()])
}

fn outcome(said: &CliOutput) -> String {
    if said.code == Some(0) { "ok".to_owned() } else { said.error() }
}

#[test]
fn rules_of_the_user_are_kept() {
    let write = |path: &str| ("write_file", json!({"path": path, "content": "y"}));
    let read = |path: &str| ("read_file", json!({"path": path}));
    let text = r#"
        preset = "ask"
        [[rules]]
        decision = "allow"
        effect = ["read", "overwrite"]
        path = "docs/**"
        [[rules]]
        decision = "deny"
        path = "private/**"
        because = "it is private"
    "#;
    for ((tool, arguments), expected) in [
        (write("docs/a.md"), "ok"),
        (write("README.md"), "APPROVAL_DENIED"),
        (write("Docs/new.md"), "FILE_NOT_FOUND"),
        (read("private/keys.txt"), "PERMISSION_DENIED"),
        (("list_directory", json!({"path": "private"})), "PERMISSION_DENIED"),
        (("delete_file", json!({"path": "private", "recursive": true})), "PERMISSION_DENIED"),
        (("copy_file", json!({"from": "private/keys.txt", "to": "b"})), "PERMISSION_DENIED"),
        (("copy_file", json!({"from": "README.md", "to": "private/b"})), "PERMISSION_DENIED"),
        (read("README.md"), "ok"),
        (read(".env"), "APPROVAL_DENIED"),
    ] {
        assert_eq!(outcome(&call(&site(), text, tool, &arguments)), expected, "{tool} {arguments}");
    }
}

#[test]
fn links_and_spellings_do_not_bypass_a_rule() {
    let site = site();
    symlink("private/keys.txt", site.workspace.join("innocent.txt")).unwrap();
    symlink("private", site.workspace.join("p")).unwrap();
    site.write("Private/keys.txt", "x");
    let deny = "rules = [{ decision = \"deny\", path = \"private/**\" }]";
    for path in ["innocent.txt", "p/keys.txt", "./private/../private/keys.txt", "Private/keys.txt"] {
        let said = call(&site, deny, "read_file", &json!({"path": path}));
        assert_eq!(outcome(&said), "PERMISSION_DENIED", "{path}");
    }
    // What is allowed must be so under both of its names.
    let allow = "rules = [{ decision = \"allow\", path = \"p/**\" }]";
    let said = call(&site, allow, "write_file", &json!({"path": "p/keys.txt", "content": ""}));
    assert_eq!(outcome(&said), "APPROVAL_DENIED");
    let allow = "rules = [{ decision = \"allow\", path = [\"p/**\", \"private/**\"] }]";
    let said = call(&site, allow, "write_file", &json!({"path": "p/keys.txt", "content": ""}));
    assert_eq!(outcome(&said), "ok");
}

#[test]
fn errors_do_not_reveal_denied_paths() {
    let site = site();
    symlink("private", site.workspace.join("way")).unwrap();
    let text = "preset = \"edits\"\n[[rules]]\nname = \"mine\"\ndecision = \"deny\"\npath = \"private/**\"\n";
    let patch = |path: &str| json!({"patch": format!("--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-no\n+yes\n")});
    let mut calls = vec![
        ("delete_file", json!({"path": "private"})),
        ("move_file", json!({"from": "README.md", "to": "private/keys.txt"})),
        ("move_file", json!({"from": "private/key.txt", "to": "mine"})),
        ("copy_file", json!({"from": "README.md", "to": "private/none/x"})),
        ("list_directory", json!({"path": "private/keys.txt"})),
        ("read_file", json!({"path": "way/key.txt"})),
        ("read_file", json!({"path": "way/none/deep.txt"})),
        ("list_directory", json!({"path": "way/keys.txt"})),
    ];
    for path in ["private/key.txt", "private/keys.txt/x", "private/none/deep"] {
        calls.extend([
            ("read_file", json!({"path": path})),
            ("get_file_info", json!({"path": path})),
            ("edit_file", json!({"path": path, "oldText": "a", "newText": "b"})),
            ("apply_patch", patch(path)),
            ("delete_file", json!({"path": path})),
            ("search_files", json!({"path": path, "pattern": "x"})),
            ("find_files", json!({"path": path, "glob": "*"})),
        ]);
    }
    for (tool, arguments) in calls {
        let said = call(&site, text, tool, &arguments);
        assert_eq!(said.error(), "PERMISSION_DENIED", "{tool} {arguments}: {}", said.out);
        assert!(said.out.contains("the rule `mine`") && !said.out.contains("did you mean"), "{}", said.out);
    }
    // A caller that may list gets suggestions.
    assert!(call(&site, text, "read_file", &json!({"path": "READM.md"})).out.contains("did you mean `README.md`?"));
    assert!(site.read("private/keys.txt") == "x\n" && site.workspace.join("README.md").exists());
}

#[test]
fn tool_spellings_do_not_bypass_a_rule() {
    let site = site();
    for rule in ["fs.read", "fs-read"] {
        let config = config(&site, &format!("rules = [{{ decision = \"deny\", tool = \"{rule}\" }}]"));
        for tool in ["fs.read", "fs-read"] {
            let arguments = r#"{"path":"@project/README.md"}"#;
            let options = ["--config", config.to_str().unwrap(), "--dialect", "crewagent"];
            let said = site.run(&[&options[..], &["call", tool, arguments]].concat());
            assert_eq!(said.reply()["error"]["details"]["rule"], "rule 1", "{rule} {tool}: {said:?}");
            let said = site.run(&[&options[..], &["policy", "explain", tool, arguments]].concat());
            assert!(said.out.starts_with("deny by the rule `rule 1`"), "{rule} {tool}: {said:?}");
        }
    }
}

#[test]
fn a_denial_is_a_reply_that_helps() {
    let check = |text: &str, tool: &str, arguments: Value, expected: Expect| {
        expected.assert_eq(&call(&site(), text, tool, &arguments).out);
    };
    let docs = "rules = [{ name = \"docs\", decision = \"deny\", effect = \"change\", path = \"docs/**\" }]";
    check(
        docs,
        "write_file",
        json!({"path": "docs/a.md", "content": ""}),
        expect![[
            r#"{"ok":false,"error":{"code":"PERMISSION_DENIED","message":"this would overwrite `docs/a.md`, and the rule `docs` of your config denies it; the rule covers only `effect = \"change\", path = \"docs/**\"`; `path = [\"docs/**\", \"!docs/a.md\"]` in that rule would lift this","details":{"rule":"docs","layer":"user","grant":"path = [\"docs/**\", \"!docs/a.md\"]"}}}"#
        ]],
    );
    check(
        "preset = \"read-only\"",
        "delete_file",
        json!({"path": "docs/a.md"}),
        expect![[
            r#"{"ok":false,"error":{"code":"PERMISSION_DENIED","message":"this would delete `docs/a.md`, and the preset `read-only` allows no changes, only listing and reading; `preset = \"edits\"` instead would lift this","details":{"rule":"preset read-only","layer":"preset","grant":"preset = \"edits\""}}}"#
        ]],
    );
    check(
        "",
        "write_file",
        json!({"path": "docs/a.md", "content": ""}),
        expect![[
            r#"{"ok":false,"error":{"code":"APPROVAL_DENIED","message":"not approved: no approver available; run it on a terminal to approve it (overwrite `docs/a.md`)","details":{"rule":"preset ask","layer":"preset","grant":"{ decision = \"allow\", tool = \"write_file\", mount = \"workspace\", path = \"docs/a.md\" }"}}}"#
        ]],
    );
    check(
        "",
        "read_file",
        json!({"path": ".env"}),
        expect![[
            r#"{"ok":false,"error":{"code":"APPROVAL_DENIED","message":"not approved: no approver available; run interactively to approve (read `.env`, which may hold secrets)","details":{"rule":"secret","layer":"preset"}}}"#
        ]],
    );
}

#[test]
fn the_workspace_s_own_rules_can_only_tighten() {
    let allow_all = "preset = \"edits\"\nrules = [{ decision = \"allow\" }]";
    let with = |rules: &str, tool: &str, arguments: Value| {
        let site = site();
        site.write("ringfence.toml", rules);
        outcome(&call(&site, allow_all, tool, &arguments))
    };
    let write = || json!({"path": "docs/a.md", "content": ""});
    assert_eq!(with("", "write_file", write()), "ok");
    assert_eq!(with("rules = [{ decision = \"ask\", path = \"docs\" }]", "write_file", write()), "APPROVAL_DENIED");
    assert_eq!(with("rules = [{ decision = \"deny\", path = \"docs\" }]", "write_file", write()), "PERMISSION_DENIED");
    assert_eq!(with("rules = [{ decision = \"deny\", path = \"doc\" }]", "write_file", write()), "ok");
    assert_eq!(with("preset = \"ask\"", "write_file", write()), "APPROVAL_DENIED");
    assert_eq!(with("preset = \"ask\"", "read_file", json!({"path": ".env"})), "ok");
}

#[test]
fn untrusted_workspace_allows_are_ignored_with_a_warning() {
    let site = site();
    site.write("ringfence.toml", "\n[[rules]]\ndecision = \"allow\"\npath = \"docs/**\"\n");
    let said = call(&site, "", "write_file", &json!({"path": "docs/a.md", "content": ""}));
    assert_eq!(said.error(), "APPROVAL_DENIED");
    expect![[r#"
        ringfence: warning: the workspace's ringfence.toml is not trusted, so its allow rules (1) are ignored: `ringfence policy trust` shows them
    "#]].assert_eq(&said.err);
    // Trust needs a terminal.
    let said = site.run(&["policy", "trust"]);
    assert_eq!((said.code, said.err.as_str()), (Some(2), "ringfence: this requires an interactive terminal\n"));
    assert!(!site.run(&["policy", "show"]).out.contains("docs/**"));
    let said = site.run(&["policy", "trust", "--revoke"]);
    assert_eq!((said.code, said.err.as_str()), (Some(1), "ringfence: the workspace is not trusted\n"));
    site.write("ringfence.toml", "preset = \"ask\"\n");
    let said = site.run(&["policy", "trust"]);
    assert!(said.code == Some(1) && said.err.contains("needs no trust"), "{said:?}");
    std::fs::remove_file(site.workspace.join("ringfence.toml")).unwrap();
    assert!(site.run(&["policy", "trust"]).err.contains("has no ringfence.toml"));
}

/// The decision of the layers about one access, by the library.
fn decide(settings: &AppSettings, verb: PolicyAction, path: &str) -> Verdict {
    let session = session_without_tools(Dialect::Standard);
    let place = PolicyResource {
        mount: "workspace".into(),
        requested_path: path.to_owned(),
        display_path: path.to_owned(),
        ..PolicyResource::default()
    };
    let touches = [ResourceAccess { action: verb, resource: place }];
    settings.rules().decide(&PolicyRequest::new(&session, "write_file", &touches, TaintSet::default()))
}

#[test]
fn the_owner_s_rules_hold_against_the_user_s_in_toml_and_in_json() {
    for (file, text) in [
        ("config.toml", "rules = [{ decision = \"ask\", path = \"a\" }]".to_owned()),
        ("config.json", json!({"rules": [{"decision": "ask", "path": ["a"]}]}).to_string()),
    ] {
        let layers = ConfigLayers::new();
        layers
            .write("config/config.toml", "preset = \"edits\"\n[[rules]]\ndecision = \"allow\"\npath = [\"a\", \"b\"]");
        let user = layers.load(&CliFlags::default()).unwrap();
        assert_eq!(decide(&user, PolicyAction::Overwrite, "a").layer, PolicyLayer::User);
        layers.write(&format!("managed/{file}"), &text);
        let both = layers.load(&CliFlags::default()).unwrap();
        let verdict = decide(&both, PolicyAction::Overwrite, "a");
        assert_eq!((verdict.decision, verdict.layer), (Decision::Ask, PolicyLayer::Managed));
        assert_eq!(decide(&both, PolicyAction::Overwrite, "b").decision, Decision::Allow);
    }
}

#[test]
fn the_owner_s_preset_holds_against_the_user_s_rules_and_the_user_s_own_does_not() {
    let layers = ConfigLayers::new();
    layers.write("config/config.toml", "preset = \"ask\"\nrules = [{ decision = \"allow\" }]");
    assert_eq!(
        decide(&layers.load(&CliFlags::default()).unwrap(), PolicyAction::Overwrite, "a").decision,
        Decision::Allow
    );
    let flags = CliFlags { preset: Some(Preset::ReadOnly), ..CliFlags::default() };
    assert_eq!(decide(&layers.load(&flags).unwrap(), PolicyAction::Overwrite, "a").decision, Decision::Deny);
    layers.write("managed/config.toml", "preset = \"ask\"");
    let verdict = decide(&layers.load(&CliFlags::default()).unwrap(), PolicyAction::Overwrite, "a");
    assert_eq!((verdict.decision, verdict.layer), (Decision::Ask, PolicyLayer::Managed));
}

#[test]
fn grants_hold_where_owner_and_user_have_no_rule() {
    let layers = ConfigLayers::new();
    layers.write("config/config.toml", "rules = [{ decision = \"ask\", path = \"b\" }]");
    let mut settings = layers.load(&CliFlags::default()).unwrap();
    settings.grants = settings.user_rules.clone();
    assert_eq!(decide(&settings, PolicyAction::Create, "b").layer, PolicyLayer::User);
    settings.user_rules.clear();
    assert_eq!(decide(&settings, PolicyAction::Create, "b").layer, PolicyLayer::Grants);
}

#[test]
fn a_bad_rule_is_an_error_that_shows_its_line() {
    let told = |text: &str, expected: Expect| {
        let layers = ConfigLayers::new();
        let path = layers.write("config/config.toml", text);
        let error = layers.load(&CliFlags::default()).unwrap_err().to_string();
        expected.assert_eq(&error.replace(path.to_str().unwrap(), "config.toml"));
    };
    told(
        "[[rules]]\ndecision = \"allow\"\n\n[[rules]]\nname = \"no docs\"\ndecision = \"deny\"\neffect = \"overwirte\"\n",
        expect![[r#"
            invalid config file config.toml: line 7, in the rule `no docs`: `effect`: unknown value `overwirte`: use one of list, read, create, overwrite, move, delete, fetch, lose, run, external, send, listen, look, change; did you mean `overwrite`?
            7 | effect = "overwirte""#]],
    );
    told(
        "rules = [\n  { decision = \"allow\" },\n  { decision = \"alow\" },\n]\n",
        expect![[r#"
            invalid config file config.toml: line 3, in the rule `rule 2`: `decision`: unknown value `alow`: use one of allow, ask, deny; did you mean `allow`?
            3 |   { decision = "alow" },"#]],
    );
    told(
        "[[rules]]\ndecision = \"deny\"\npaht = \"a\"\n",
        expect![[r#"
        invalid config file config.toml: TOML parse error at line 3, column 1
          |
        3 | paht = "a"
          | ^^^^
        unknown field `paht`, expected one of `decision`, `name`, `tool`, `effect`, `path`, `mount`, `host`, `agent`, `principal`, `when`, `secret`, `protected`, `assurance`, `because`, `match`, `not_match`; did you mean `path`?"#]],
    );
    told(
        "[[rules]]\n\npath = \"a\"\n",
        expect![[r#"
        invalid config file config.toml: TOML parse error at line 1, column 1
          |
        1 | [[rules]]
          | ^^^^^^^^^
        missing field `decision`"#]],
    );
    told(
        "[[rules]]\ndecision = \"deny\"\npath = [\"docs/**\", \"[a\"]\n",
        expect![[r#"
            invalid config file config.toml: line 3, in the rule `rule 1`: `path`: invalid pattern `[a`: unclosed character class; missing ']'
            3 | path = ["docs/**", "[a"]"#]],
    );
    told(
        "[[rules]]\ndecision = \"deny\"\npath = \"/etc/**\"\n",
        expect![[r#"
            invalid config file config.toml: line 3, in the rule `rule 1`: `path`: `/etc/**` never matches: paths are relative to their mount, such as `src/**`
            3 | path = "/etc/**""#]],
    );
    told(
        "[[rules]]\ndecision = \"deny\"\npath = []\n",
        expect![[r#"
            invalid config file config.toml: line 3, in the rule `rule 1`: `path`: the list is empty, so the rule never matches; omit the key to match any value
            3 | path = []"#]],
    );
    told(
        "[[rules]]\ndecision = \"deny\"\nhost = \"https://docs.rs\"\n",
        expect![[r#"
            invalid config file config.toml: line 3, in the rule `rule 1`: `host`: `https://docs.rs` has more than a host and a path; write a host such as `docs.rs` or `*.docs.rs:443/std/`
            3 | host = "https://docs.rs""#]],
    );
    told(
        "[[rules]]\ndecision = \"deny\"\nhost = \"docs.rs\"\neffect = \"read\"\n",
        expect![[r#"
            invalid config file config.toml: line 3, in the rule `rule 1`: `host`: `host` applies only to the effects `fetch`, `send` and `listen`, which this rule does not include
            3 | host = "docs.rs""#]],
    );
    told(
        "[[rules]]\ndecision = \"deny\"\nwhen = \"saw_untrusted\"\n",
        expect![[r#"
            invalid config file config.toml: line 3, in the rule `rule 1`: `when`: unknown value `saw_untrusted`: use one of read-secret, saw-untrusted, has-egress; did you mean `saw-untrusted`?
            3 | when = "saw_untrusted""#]],
    );
    told(
        "[[rules]]\ndecision = \"ask\"\nassurance = \"human\"\n",
        expect![[r#"
            invalid config file config.toml: line 3, in the rule `rule 1`: `assurance`: unknown value `human`: use one of relayed, person
            3 | assurance = "human""#]],
    );
    told(
        "[[rules]]\ndecision = \"deny\"\neffect = 5\n",
        expect![[r#"
        invalid config file config.toml: TOML parse error at line 3, column 10
          |
        3 | effect = 5
          |          ^
        expected a string or a list of strings"#]],
    );
    told(
        "[[rules]]\ndecision = \"allow\"\npath = \"src/*\"\nmatch = [\n  \"read src/a\",\n  \"read src/a/b\",\n]\n",
        expect![[r#"
            invalid config file config.toml: line 4, in the rule `rule 1`: `match`: the rule does not match `read src/a/b`, but should
            4 | match = ["#]],
    );
    told(
        "[[rules]]\ndecision = \"allow\"\npath = \"src/*\"\nnot_match = \"read src/a\"\n",
        expect![[r#"
            invalid config file config.toml: line 4, in the rule `rule 1`: `not_match`: the rule matches `read src/a`, but should not
            4 | not_match = "read src/a""#]],
    );
    told(
        "rules = \"deny\"\n",
        expect![[r#"
        invalid config file config.toml: TOML parse error at line 1, column 9
          |
        1 | rules = "deny"
          |         ^^^^^^
        invalid type: string "deny", expected a sequence"#]],
    );
}

#[test]
fn a_bad_rule_in_json_is_shown_with_its_line() {
    let told = |text: &str, expected: Expect| {
        let layers = ConfigLayers::new();
        let path = layers.write("managed/config.json", text);
        let error = layers.load(&CliFlags::default()).unwrap_err().to_string();
        expected.assert_eq(&error.replace(path.to_str().unwrap(), "config.json"));
    };
    told(
        "{\"rules\": [\n  {\"decision\": \"allow\"},\n  {\n    \"decision\": \"deny\",\n    \"effect\": \"raed\"\n  }\n]}",
        expect![[r#"
            invalid config file config.json: line 5, in the rule `rule 2`: `effect`: unknown value `raed`: use one of list, read, create, overwrite, move, delete, fetch, lose, run, external, send, listen, look, change; did you mean `read`?
            5 |     "effect": "raed""#]],
    );
    told(
        "{\"rules\": [\n\n  {\"decision\": \"allow\",\n   \"match\": \"read a\",\n   \"path\": \"b\"}\n]}",
        expect![[r#"
            invalid config file config.json: line 4, in the rule `rule 1`: `match`: the rule does not match `read a`, but should
            4 |    "match": "read a","#]],
    );
    told(
        r#"{"rules":[{"decision":"deny","efect":"read"}]}"#,
        expect![
            "invalid config file config.json: unknown field `efect`, expected one of `decision`, `name`, `tool`, `effect`, `path`, `mount`, `host`, `agent`, `principal`, `when`, `secret`, `protected`, `assurance`, `because`, `match`, `not_match` at line 1 column 36; did you mean `effect`?"
        ],
    );
}

#[test]
fn a_rule_about_a_tool_or_a_mount_that_is_not_there_is_pointed_out() {
    let site = site();
    for text in [
        "[[rules]]\ndecision = \"deny\"\ntool = \"writ_file\"\n",
        "[[rules]]\ndecision = \"deny\"\nmatch = \"writ_file a\"\n",
    ] {
        let said = call(&site, text, "read_file", &json!({"path": "README.md"}));
        assert_eq!((said.code, said.out.as_str()), (Some(2), ""));
        for word in ["user.toml line 1, in the rule `rule 1`", "`writ_file`", "did you mean `write_file`?"] {
            assert!(said.err.contains(word), "{}", said.err);
        }
    }
    // One config serves every dialect.
    for (tools, expected) in [("[\"fs.search\", \"list_dir\"]", "ok"), ("\"fs.read\"", "PERMISSION_DENIED")] {
        let text = format!("rules = [{{ decision = \"deny\", tool = {tools} }}]");
        assert_eq!(outcome(&call(&site, &text, "read_file", &json!({"path": "README.md"}))), expected, "{tools}");
    }
    let text = "rules = [{ decision = \"deny\", mount = \"@workspaec\" }, { decision = \"deny\", mount = \"state\" }]";
    let said = call(&site, text, "read_file", &json!({"path": "README.md"}));
    assert_eq!(outcome(&said), "ok");
    assert!(
        said.err.contains("the mount `workspaec`, which does not exist; did you mean `workspace`?"),
        "{}",
        said.err
    );
    assert_eq!(said.err.lines().count(), 1);
}

const RULES: &str = r#"
preset = "ask"
[[rules]]
name = "generated"
decision = "deny"
effect = "change"
path = ["docs/**", "!docs/notes/**"]
because = "edit the sources instead"
match = ["overwrite docs/a.md", "write_file docs/a.md"]
not_match = "overwrite docs/notes/a.md"
[[rules]]
decision = "allow"
host = ["docs.rs", "*.rust-lang.org"]
"#;

#[test]
fn a_decision_is_explained_and_nothing_happens() {
    let check = |options: &[&str], tool: &str, arguments: Value, expected: Expect| {
        let site = site();
        let before = site.tree();
        let config = config(&site, RULES);
        let arguments = arguments.to_string();
        let mut all = vec!["--config", config.to_str().unwrap(), "policy", "explain", tool, &arguments];
        all.extend(options);
        let said = site.run(&all);
        expected.assert_eq(&format!("exit {}\n{}{}", said.code.unwrap(), said.out, said.err));
        assert_eq!(site.tree(), before);
        let records = stdout_of(&site, &["audit", "show"]);
        assert!(!records.contains(tool), "{records}");
    };
    check(
        &[],
        "read_file",
        json!({"path": "README.md"}),
        expect![[r#"
        exit 0
        allow by the rule `preset` in the layer preset
        - read `README.md`: allow by the rule `preset` in the layer preset
    "#]],
    );
    check(
        &[],
        "write_file",
        json!({"path": "README.md", "content": ""}),
        expect![[r#"
        exit 0
        ask by the rule `preset ask` in the layer preset
        reason: this would overwrite `README.md`
        answer: from a person, or relayed by the agent's client
        grant: { decision = "allow", tool = "write_file", mount = "workspace", path = "./README.md" }
        - overwrite `README.md`: ask by the rule `preset ask` in the layer preset
    "#]],
    );
    check(
        &[],
        "write_file",
        json!({"path": "docs/a.md", "content": ""}),
        expect![[r#"
        exit 0
        deny by the rule `generated` in the layer user
        reason: this would overwrite `docs/a.md`, and the rule `generated` of your config denies it (edit the sources instead); the rule covers only `effect = "change", path = ["docs/**", "!docs/notes/**"]`; `path = ["docs/**", "!docs/notes/**", "!docs/a.md"]` in that rule would lift this
        grant: path = ["docs/**", "!docs/notes/**", "!docs/a.md"]
        - overwrite `docs/a.md`: deny by the rule `generated` in the layer user
    "#]],
    );
    check(
        &[],
        "run_code",
        json!({"language": "bash", "code": "rm -r notes"}),
        expect![[r#"
            exit 0
            allow by the rule `preset` in the layer preset
            - run `bash`: allow by the rule `preset` in the layer preset
            each change that the program makes is then decided like a change by any other tool:
            - create a file: kept (allow by the rule `preset` in the layer preset)
            - overwrite a file: requires approval to be kept (ask by the rule `preset ask` in the layer preset)
            - delete a file or directory: requires approval to be kept (ask by the rule `preset ask` in the layer preset)
            - create a protected path: requires approval to be kept (ask by the rule `protected path` in the layer preset)
            - overwrite or delete a protected path: requires approval to be kept (ask by the rule `protected path` in the layer preset)
            - overwrite or delete content that is too large to keep for undo: requires approval to be kept (ask by the rule `cannot be undone` in the layer preset)
        "#]],
    );
    check(
        &["--preset", "edits"],
        "run_code",
        json!({"language": "bash", "code": "true", "mode": "review"}),
        expect![[r#"
        exit 0
        allow by the rule `preset` in the layer preset
        - run `bash`: allow by the rule `preset` in the layer preset
        changes that the program makes then require approval, because `mode` is `review`; all of them are kept, or none:
        - create a file: requires approval to be kept (ask by the rule `review` in the layer preset)
        - overwrite a file: requires approval to be kept (ask by the rule `review` in the layer preset)
        - delete a file or directory: requires approval to be kept (ask by the rule `review` in the layer preset)
        - create a protected path: requires approval to be kept (ask by the rule `protected path` in the layer preset)
        - overwrite or delete a protected path: requires approval to be kept (ask by the rule `protected path` in the layer preset)
        - overwrite or delete content that is too large to keep for undo: requires approval to be kept (ask by the rule `cannot be undone` in the layer preset)
    "#]],
    );
    check(
        &["--preset", "edits"],
        "run_code",
        json!({"language": "bash", "code": "true", "mode": "discard"}),
        expect![[r#"
        exit 0
        allow by the rule `preset` in the layer preset
        - run `bash`: allow by the rule `preset` in the layer preset
        changes that the program makes are discarded, because `mode` is `discard`
    "#]],
    );
    check(
        &["--preset", "read-only"],
        "run_code",
        json!({"language": "bash", "code": "true"}),
        expect![[r#"
        exit 0
        allow by the rule `preset` in the layer preset
        - run `bash`: allow by the rule `preset` in the layer preset
        each change that the program makes is then decided like a change by any other tool:
        - create a file: not kept (deny by the rule `preset read-only` in the layer preset)
        - overwrite a file: not kept (deny by the rule `preset read-only` in the layer preset)
        - delete a file or directory: not kept (deny by the rule `preset read-only` in the layer preset)
        - create a protected path: not kept (deny by the rule `preset read-only` in the layer preset)
        - overwrite or delete a protected path: not kept (deny by the rule `preset read-only` in the layer preset)
        - overwrite or delete content that is too large to keep for undo: not kept (deny by the rule `preset read-only` in the layer preset)
    "#]],
    );
    check(
        &[],
        "move_file",
        json!({"from": "README.md", "to": "docs/a.md", "overwrite": true}),
        expect![[r#"
        exit 0
        deny by the rule `generated` in the layer user
        reason: this would overwrite `docs/a.md`, and the rule `generated` of your config denies it (edit the sources instead); the rule covers only `effect = "change", path = ["docs/**", "!docs/notes/**"]`; `path = ["docs/**", "!docs/notes/**", "!docs/a.md"]` in that rule would lift this
        grant: path = ["docs/**", "!docs/notes/**", "!docs/a.md"]
        - move `README.md`: allow by the rule `preset` in the layer preset
        - overwrite `docs/a.md`: deny by the rule `generated` in the layer user
    "#]],
    );
    check(
        &[],
        "read_file",
        json!({"path": ".env"}),
        expect![[r#"
        exit 0
        ask by the rule `secret` in the layer preset
        reason: this would read `.env`, which may hold secrets
        answer: from a person at ringfence's terminal or web UI
        - read `.env`: ask by the rule `secret` in the layer preset
    "#]],
    );
    check(
        &["--when", "saw-untrusted", "--when", "has-egress"],
        "read_file",
        json!({"path": ".env"}),
        expect![[r#"
            exit 0
            ask by the rule `taint combination` in the layer preset
            reason: this would read `.env`, which may hold secrets, and this session has seen untrusted content and can send data out
            answer: from a person at ringfence's terminal or web UI
            - read `.env`: ask by the rule `taint combination` in the layer preset
        "#]],
    );
    check(
        &["--preset", "read-only"],
        "write_file",
        json!({"path": "new", "content": ""}),
        expect![[r#"
        exit 0
        deny by the rule `preset read-only` in the layer preset
        reason: this would create `new`, and the preset `read-only` allows no changes, only listing and reading; `preset = "ask"` instead would lift this
        grant: preset = "ask"
        - create `new`: deny by the rule `preset read-only` in the layer preset
    "#]],
    );
    check(
        &[],
        "read_file",
        json!({"path": "none"}),
        expect![[r#"
        exit 1
        {"ok":false,"error":{"code":"FILE_NOT_FOUND","message":"`none` does not exist"}}"#]],
    );
    check(
        &[],
        "red_file",
        json!({}),
        expect![[r#"
            exit 1
            {"ok":false,"error":{"code":"UNKNOWN_TOOL","message":"unknown tool `red_file`; did you mean `read_file`?","details":{"available":["read_file","write_file","append_file","list_directory","edit_file","apply_patch","delete_file","move_file","copy_file","create_directory","get_file_info","find_files","search_files","undo","redo","list_changes","show_change","run_code","job_output","stop_job","web_fetch"]}}}"#]],
    );
    check(
        &["--dialect", "miniclaw"],
        "read_file",
        json!({"pth": "x"}),
        expect![[r#"
        exit 1
        invalid parameters: unknown field `pth`, expected `path`; did you mean `path`?"#]],
    );
}

fn stdout_of(site: &TestSite, arguments: &[&str]) -> String {
    let mut command = site.program_without_arguments();
    cli_output(command.args(arguments).output().unwrap()).out
}

#[test]
fn arguments_to_be_explained_are_read_from_standard_input() {
    let site = site();
    let said =
        crate::site::run_with_input(site.command(&["policy", "explain", "read_file", "-"]), br#"{"path":"README.md"}"#);
    assert_eq!((said.code, said.out.split(' ').next()), (Some(0), Some("allow")), "{said:?}");
    let said = site.run(&["policy", "explain", "read_file", r#"{"path":"a"}"#, "--when", "tired"]);
    assert_eq!(said.code, Some(2));
    assert!(said.err.contains("read-secret, saw-untrusted, has-egress"), "{said:?}");
}

#[test]
fn every_rule_is_shown_in_the_order_in_which_they_decide() {
    let site = site();
    site.write("ringfence.toml", "preset = \"read-only\"\n[[rules]]\ndecision = \"ask\"\neffect = \"look\"\n");
    let config = config(&site, RULES);
    let said = site.run(&["--config", config.to_str().unwrap(), "policy", "show"]);
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""));
    expect![[r#"
        workspace: can only tighten the other layers
          { name = "preset read-only", decision = "deny", effect = ["change", "lose", "external", "send"], because = "and the preset `read-only` allows no changes, only listing and reading" }
          { name = "rule 1", decision = "ask", effect = "look" }  # ringfence.toml line 2
        user: your config
          { name = "generated", decision = "deny", effect = "change", path = ["docs/**", "!docs/notes/**"], because = "edit the sources instead" }  # user.toml line 3
          { name = "rule 2", decision = "allow", host = ["docs.rs", "*.rust-lang.org"] }  # user.toml line 11
        preset: default when no other rule matches
          { name = "taint combination", decision = "ask", effect = ["fetch", "external", "send", "listen"], when = ["read-secret", "saw-untrusted"], because = "and this session has read a secret and seen untrusted content" }
          { name = "taint combination", decision = "ask", effect = ["read", "move"], when = ["saw-untrusted", "has-egress"], secret = true, because = "which may hold secrets, and this session has seen untrusted content and can send data out" }
          { name = "taint combination", decision = "ask", effect = "run", when = ["saw-untrusted", "has-egress"], secret = true, because = "which can read a committed secret, and this session has seen untrusted content and can send data out" }
          { name = "secret", decision = "ask", effect = ["read", "overwrite", "move", "delete"], secret = true, because = "which may hold secrets" }
          { name = "protected path", decision = "ask", effect = ["change", "lose"], protected = true, because = "a setting that other programs act on" }
          { name = "preset ask", decision = "ask", effect = ["overwrite", "delete"] }
          { name = "other host", decision = "ask", effect = "fetch", mount = "net", because = "a host that no rule allows" }
          { name = "search", decision = "allow", effect = "fetch", mount = "search" }
          { name = "registry", decision = "allow", effect = "fetch", mount = "registry" }
          { name = "cannot be undone", decision = "ask", effect = "lose", because = "and the current contents are not kept" }
          { name = "external", decision = "ask", effect = "external", because = "which cannot be undone" }
          { name = "other port", decision = "ask", effect = "listen", because = "a port that no rule allows" }
          { name = "sent contents", decision = "ask", effect = "send", because = "and what is sent cannot be recalled" }
          { name = "preset", decision = "allow", effect = ["look", "change", "run"] }
    "#]].assert_eq(&said.out.replace(config.to_str().unwrap(), "user.toml"));
}

/// A tree with something in it that a rule is about.
fn tree() -> TestSite {
    let site = TestSite::new();
    for path in ["a/open.txt", "a/private/keys.txt", "a/private/deep/more.txt", "b/private/other.txt"] {
        site.write(path, "needle\n");
    }
    site
}

#[test]
fn searches_and_listings_do_not_bypass_a_rule() {
    let found = |rules: &str, tool: &str, arguments: Value, list: &str, field: &str| {
        let said = call(&tree(), rules, tool, &arguments);
        let value = said.value();
        let entries = value[list].as_array().unwrap().iter();
        let name = |entry: &Value| entry.as_str().or(entry[field].as_str()).unwrap().to_owned();
        (entries.map(name).collect::<Vec<_>>().join(" "), value)
    };
    for decision in ["ask", "deny"] {
        let rule = format!("rules = [{{ decision = \"{decision}\", path = \"a/private/**\" }}]");
        let search = |path: &str| json!({"path": path, "pattern": "needle"});
        let (paths, value) = found(&rule, "search_files", search("."), "matches", "path");
        assert_eq!(paths, "a/open.txt b/private/other.txt");
        assert_eq!(value["stats"]["skippedDenied"], 2);
        assert_eq!(found(&rule, "search_files", search("a"), "matches", "path").0, "a/open.txt");
        let list = json!({"path": ".", "recursive": true});
        let (names, value) = found(&rule, "list_directory", list, "entries", "name");
        assert!(names.contains("a/private") && !names.contains("a/private/"), "{names}");
        assert!(names.contains("b/private/other.txt"), "{names}");
        assert_eq!(value["unreadable"], 1);
        let find = json!({"path": ".", "glob": "*.txt"});
        assert_eq!(found(&rule, "find_files", find, "paths", "").0, "a/open.txt b/private/other.txt");
    }
    let all = "rules = [{ decision = \"deny\", effect = \"read\", path = \"*.txt\" }]";
    let (paths, value) = found(all, "search_files", json!({"path": ".", "pattern": "needle"}), "matches", "path");
    assert_eq!((paths.as_str(), &value["stats"]["skippedDenied"]), ("", &json!(4)));
}

#[test]
fn a_directory_does_not_go_or_move_with_something_in_it_that_a_rule_is_about() {
    let delete = |path: &str| ("delete_file", json!({"path": path, "recursive": true}));
    let moved = |from: &str| ("move_file", json!({"from": from, "to": "c"}));
    let with = |effect: &str, decision: &str| {
        format!(
            "preset = \"edits\"\nrules = [{{ decision = \"{decision}\", effect = \"{effect}\", path = \"keys.txt\" }}]"
        )
    };
    for (rules, (tool, arguments), expected) in [
        (with("delete", "deny"), delete("a"), "PERMISSION_DENIED"),
        (with("delete", "ask"), delete("a"), "APPROVAL_DENIED"),
        (with("delete", "deny"), delete("b"), "ok"),
        (with("delete", "deny"), moved("a"), "ok"),
        (with("move", "deny"), moved("a"), "PERMISSION_DENIED"),
        (with("create", "deny"), moved("a"), "PERMISSION_DENIED"),
        // Under its new name, it could be read.
        (with("read", "deny"), moved("a"), "PERMISSION_DENIED"),
        (with("read", "deny"), moved("b"), "ok"),
    ] {
        let site = tree();
        let before = site.tree();
        assert_eq!(outcome(&call(&site, &rules, tool, &arguments)), expected, "{rules} {tool} {arguments}");
        assert_eq!(site.tree() == before, expected != "ok");
    }
    // Who may delete a directory and all that is in it is not asked about each file.
    let allow = "rules = [{ decision = \"allow\", path = [\"a\", \"a/**\"] }]";
    assert_eq!(outcome(&call(&tree(), allow, "delete_file", &json!({"path": "a", "recursive": true}))), "ok");
    let only = "rules = [{ decision = \"allow\", path = \"a\" }]";
    assert_eq!(
        outcome(&call(&tree(), only, "delete_file", &json!({"path": "a", "recursive": true}))),
        "APPROVAL_DENIED"
    );
}
