//! Rule matching: paths, hosts and effects, and what evades none.

use ringfence_kernel::Decision::{Allow, Ask, Deny};
use ringfence_kernel::{
    Assurance, LayeredRules, MCP_MOUNT, Policy as _, PolicyAction, PolicyLayer, PolicyRequest, PolicyResource, Preset,
    ResourceAccess, Session, TaintSet,
};
use serde_json::{Value, json};

use super::{access, access_through_link, decide, decide_with, rule, session, user_rules};

#[test]
fn a_rule_names_its_source_and_its_mounts() {
    let plain = rule(json!({"decision": "deny"}));
    assert_eq!((plain.source(), plain.mount_names().count()), (None, 0));
    let written = rule(json!({"decision": "deny", "mount": ["pkg", "@data"]})).with_source("a line 3".to_owned());
    assert_eq!(written.source(), Some("a line 3"));
    assert_eq!(written.mount_names().collect::<Vec<_>>(), ["pkg", "data"]);
}

#[test]
fn a_rule_is_about_what_its_keys_say() {
    let about = |text: Value, access: ResourceAccess| decide_with(&user_rules([text]), &[access], &[]).decision == Deny;
    let write = |path: &str| access(PolicyAction::Overwrite, path);
    assert!(about(json!({"decision": "deny"}), write("a")));
    assert!(about(json!({"decision": "deny", "tool": ["edit_file", "write_file"]}), write("a")));
    assert!(!about(json!({"decision": "deny", "tool": "edit_file"}), write("a")));
    assert!(about(json!({"decision": "deny", "agent": "writer"}), write("a")));
    assert!(!about(json!({"decision": "deny", "agent": "reader"}), write("a")));
    assert!(about(json!({"decision": "deny", "principal": "test"}), write("a")));
    assert!(!about(json!({"decision": "deny", "principal": "writer"}), write("a")));
    assert!(about(json!({"decision": "deny", "mount": "@workspace"}), write("a")));
    assert!(about(json!({"decision": "deny", "mount": "project", "match": "read @workspace/a"}), write("a")));
    assert!(!about(json!({"decision": "deny", "mount": "pkg", "not_match": "read @project/a"}), write("a")));
    assert!(!about(json!({"decision": "deny", "path": "**"}), access(PolicyAction::Fetch, "docs.rs:443")));
    assert!(!about(json!({"decision": "deny", "secret": false}), access(PolicyAction::Fetch, "docs.rs:443")));
    assert!(about(json!({"decision": "deny", "mount": "net"}), access(PolicyAction::Fetch, "docs.rs:443")));
    assert!(!about(json!({"decision": "deny", "host": "*"}), write("docs.rs:443")));
    assert!(!about(json!({"decision": "deny", "path": "**"}), access(PolicyAction::Run, "python")));
    assert!(!about(json!({"decision": "deny", "host": "*"}), access(PolicyAction::Run, "python")));
    assert!(about(json!({"decision": "deny", "effect": "run"}), access(PolicyAction::Run, "python")));
    let call = |tool: &str| {
        let resource = PolicyResource {
            mount: MCP_MOUNT.into(),
            requested_path: tool.to_owned(),
            display_path: tool.to_owned(),
            ..PolicyResource::default()
        };
        ResourceAccess { action: PolicyAction::External, resource }
    };
    // A rule about files does not match MCP tools, unless the rule names them.
    assert!(!about(json!({"decision": "deny", "path": "**"}), call("github/list")));
    assert!(!about(json!({"decision": "deny", "secret": true}), call("github/.env")));
    assert!(about(json!({"decision": "deny", "effect": "external"}), call("github/list")));
    assert!(about(json!({"decision": "deny", "effect": "external", "path": "github/*"}), call("github/list")));
    assert!(!about(json!({"decision": "deny", "effect": "external", "path": "github/*"}), call("other/list")));
    assert!(about(json!({"decision": "deny", "mount": "mcp", "path": "github/*"}), call("github/list")));
    assert!(!about(json!({"decision": "deny", "mount": "mcp"}), write("github/list")));
    let allows = |text: Value| decide_with(&user_rules([text]), &[call("github/list")], &[]).decision == Allow;
    assert!(!allows(json!({"decision": "allow", "path": "**"})));
    assert!(allows(json!({"decision": "allow", "effect": "external", "path": "github/**"})));
    let asked = decide_with(&user_rules([]), &[call("github/list")], &[]);
    assert_eq!((asked.decision, asked.assurance), (Ask, Assurance::Person));
    assert_eq!(asked.reason, "this would call the external tool `github/list`, which cannot be undone");
    assert_eq!(
        asked.grant.unwrap(),
        r#"{ decision = "allow", tool = "write_file", effect = "external", path = "github/list" }"#
    );
    assert!(about(json!({"decision": "deny", "secret": true}), write(".env")));
    assert!(!about(json!({"decision": "deny", "secret": true}), write("a")));
    assert!(about(json!({"decision": "deny", "protected": true, "secret": false}), write(".git/x")));
    let groups = [
        // What moves can be read under its new name.
        ("look", [true, true, false, false, true, false, false, false, false, false, false, false]),
        ("change", [false, false, true, true, true, true, false, false, false, false, false, false]),
    ];
    for (word, expected) in groups {
        let is =
            PolicyAction::ALL.map(|action| about(json!({"decision": "deny", "effect": word}), access(action, "a:1")));
        assert_eq!(is, expected, "{word}");
    }
    for action in PolicyAction::ALL {
        let is = PolicyAction::ALL
            .map(|other| about(json!({"decision": "deny", "effect": action.as_str()}), access(other, "a:1")));
        let reads = |other: PolicyAction| action == PolicyAction::Read && other == PolicyAction::Move;
        assert_eq!(is, PolicyAction::ALL.map(|other| other == action || reads(other)), "{action:?}");
    }
    let allowed = user_rules([json!({"decision": "ask"})])
        .with_layer(PolicyLayer::Managed, vec![rule(json!({"decision": "allow", "effect": "look"}))]);
    let is = PolicyAction::ALL.map(|action| decide(&allowed, action, "a:1") == Allow);
    assert_eq!(is, [true, true, false, false, false, false, false, false, false, false, false, false]);
}

#[test]
fn a_host_that_may_be_reached_is_not_a_port_that_may_be_opened() {
    let decided = |text: Value, address: &str| decide(&user_rules([text]), PolicyAction::Listen, address);
    for (text, address, expected) in [
        (json!({"decision": "allow", "host": ["localhost:8080", "127.0.0.1:8080"]}), "127.0.0.1:8080", Ask),
        (json!({"decision": "allow", "effect": "fetch"}), "127.0.0.1:8080", Ask),
        (json!({"decision": "allow", "effect": "listen", "host": "127.0.0.1:8080"}), "127.0.0.1:8080", Allow),
        (json!({"decision": "allow", "effect": "listen", "host": "127.0.0.1:8080"}), "0.0.0.0:8080", Ask),
        (json!({"decision": "allow", "effect": "listen"}), "127.0.0.1:8080", Allow),
        (json!({"decision": "deny", "host": "0.0.0.0"}), "0.0.0.0:8080", Deny),
        (json!({"decision": "deny", "effect": "listen"}), "127.0.0.1:8080", Deny),
        (json!({"decision": "deny", "effect": "fetch"}), "127.0.0.1:8080", Ask),
    ] {
        assert_eq!(decided(text.clone(), address), expected, "{text} {address}");
    }
}

#[test]
fn a_rule_about_an_agent_is_not_about_a_session_without_one() {
    let policy = user_rules([json!({"decision": "deny", "agent": "writer"})]);
    let session = Session { agent: None, ..session() };
    let accesses = [access(PolicyAction::Read, "a")];
    let question = PolicyRequest::new(&session, "read_file", &accesses, TaintSet::default());
    assert_eq!(policy.decide(&question).decision, Allow);
}

#[test]
fn a_tool_with_a_dot_in_its_name_has_two_spellings() {
    let accesses = [access(PolicyAction::Read, "a")];
    let session = session();
    for name in ["fs.read", "fs-read"] {
        let policy = user_rules([json!({"decision": "deny", "tool": name})]);
        let question = PolicyRequest::new(&session, "fs.read", &accesses, TaintSet::default());
        assert_eq!(policy.decide(&question).decision, Deny, "{name}");
    }
}

#[test]
fn an_allow_must_hold_for_the_given_and_the_resolved_path_and_the_others_for_one() {
    let both = |text: Value, given: &str, resolved: &str| {
        decide_with(&user_rules([text]), &[access_through_link(PolicyAction::Read, given, Some(resolved))], &[])
            .decision
    };
    let allow = || json!({"decision": "allow", "path": ["docs/**", "keys/.env"]});
    assert_eq!(both(allow(), "docs/.env", "docs/sub/.env"), Allow);
    assert_eq!(both(allow(), "keys/.env", "docs/.env"), Allow);
    assert_eq!(both(allow(), "docs/.env", "other/.env"), Ask);
    assert_eq!(both(allow(), "other/.env", "docs/.env"), Ask);
    for decision in ["ask", "deny"] {
        let text = || json!({"decision": decision, "path": "private/**"});
        for (given, resolved) in [("private/a", "b"), ("b", "private/a"), ("private/a", "private/b")] {
            assert_eq!(both(text(), given, resolved).name(), decision);
        }
        assert_eq!(both(text(), "a", "b"), Allow);
        // Each key may be met by another one of the names.
        let mixed = json!({"decision": decision, "path": "docs/**", "secret": true});
        assert_eq!(both(mixed, "docs/a", "id_rsa").name(), decision);
    }
    assert_eq!(both(json!({"decision": "allow", "secret": true}), "a", ".env"), Ask);
    assert_eq!(both(json!({"decision": "allow", "secret": false, "path": "**"}), "a", ".env"), Ask);
}

#[test]
fn other_spellings_slip_by_no_rule_and_in_by_none() {
    for spelling in ["Private/a", "PRIVATE/A", "priv\u{200b}ate/a", "private./a"] {
        assert_eq!(
            decide(&user_rules([json!({"decision": "deny", "path": "private/**"})]), PolicyAction::Read, spelling),
            Deny
        );
        let allow = LayeredRules::from_preset(Preset::Ask)
            .with_layer(PolicyLayer::User, vec![rule(json!({"decision": "allow", "path": "private/**"}))]);
        assert_eq!(decide(&allow, PolicyAction::Overwrite, spelling), Ask);
    }
    let but = json!({"decision": "deny", "path": ["src/**", "!src/free/**"]});
    assert_eq!(decide(&user_rules([but.clone()]), PolicyAction::Read, "src/free/a"), Allow);
    assert_eq!(decide(&user_rules([but]), PolicyAction::Read, "src/FREE/a"), Deny);
}

#[test]
fn a_plan_without_accesses_is_asked_about_or_denied_and_never_allowed() {
    let decide = |text: Value, layer: PolicyLayer| {
        decide_with(&LayeredRules::from_preset(Preset::Edits).with_layer(layer, vec![rule(text)]), &[], &[]).decision
    };
    for layer in [PolicyLayer::Managed, PolicyLayer::User, PolicyLayer::Grants, PolicyLayer::Workspace] {
        assert_eq!(decide(json!({"decision": "allow"}), layer), Ask);
        assert_eq!(decide(json!({"decision": "allow", "tool": "write_file"}), layer), Ask);
        assert_eq!(decide(json!({"decision": "deny"}), layer), Deny);
        assert_eq!(decide(json!({"decision": "deny", "tool": "write_file"}), layer), Deny);
        assert_eq!(decide(json!({"decision": "deny", "tool": "read_file"}), layer), Ask);
        for narrower in [
            json!({"path": "a"}),
            json!({"effect": "read"}),
            json!({"mount": "pkg"}),
            json!({"host": "a.b"}),
            json!({"secret": true}),
            json!({"protected": false}),
            json!({"when": "read-secret"}),
        ] {
            let mut text = narrower;
            text["decision"] = json!("deny");
            assert_eq!(decide(text.clone(), layer), Ask, "{text}");
        }
    }
}
