//! The tools for projects: what they reply, and what they leave behind.
//!
//! Runs the cargo and rustfmt that these tests were built with. Other runners are tried by `cargo xtask runners`.

use std::path::Path;

use ringfence_testkit::mcp_client::StdioMcpClient;
use serde_json::{Value, json};

use crate::site::TestSite;

const PROJECT: [&str; 2] = ["--toolset", "project"];

/// A line for the config of a site: the toolchain of this build.
pub(crate) fn rust_toolchain() -> String {
    let toolchain = Path::new(env!("CARGO")).parent().and_then(Path::parent).unwrap();
    format!("[run_code]\ntoolchains = [{toolchain:?}]\n")
}

/// A package with a test that passes and one that fails.
pub(crate) fn write_package(site: &TestSite) {
    site.write("Cargo.toml", "[package]\nname = \"basket\"\nversion = \"0.1.0\"\nedition = \"2024\"\n");
    site.write("Cargo.lock", "version = 4\n\n[[package]]\nname = \"basket\"\nversion = \"0.1.0\"\n");
    site.write(
        "src/lib.rs",
        "//! Prices.\n\npub fn total(prices: &[u32]) -> u32 {\n    prices.iter().sum()\n}\n\n#[cfg(test)]\nmod tests {\n    \
         #[test]\n    fn prices_are_added() {\n        assert_eq!(super::total(&[1, 2]), 3);\n    }\n\n    #[test]\n    \
         fn nothing_is_free() {\n        assert_eq!(super::total(&[]), 1);\n    }\n}\n",
    );
}

fn site(config: &str) -> TestSite {
    let site = TestSite::new();
    std::fs::create_dir_all(site.config.join("ringfence")).unwrap();
    std::fs::write(site.config.join("ringfence/config.toml"), rust_toolchain() + config).unwrap();
    site
}

#[track_caller]
fn call(site: &TestSite, tool: &str, arguments: &Value) -> Value {
    let reply = site.call_with(&PROJECT, tool, arguments).reply();
    assert!(!reply.to_string().contains(site.root().to_str().unwrap()), "{reply}");
    reply
}

/// The reply is an error, and nothing has changed.
#[track_caller]
fn check_error(site: &TestSite, tool: &str, arguments: &Value, code: &str, message: &str) {
    let (before, reply) = (site.tree(), call(site, tool, arguments));
    assert_eq!(reply["error"]["code"], code, "{tool} {arguments}: {reply}");
    assert!(reply["error"]["message"].as_str().unwrap().contains(message), "{tool} {arguments}: {reply}");
    assert_eq!(site.tree(), before, "{tool} {arguments}");
}

#[test]
fn tests_are_run_and_nothing_is_kept() {
    let site = site("");
    write_package(&site);
    let before = site.tree();
    let reply = call(&site, "run_tests", &json!({}));
    let value = &reply["value"];
    assert_eq!(value["verdict"], "failed", "{reply}");
    assert_eq!((&value["passed"], &value["failed"], &value["errors"]), (&json!(1), &json!(1), &json!(0)));
    let failure = &value["failures"][0];
    assert_eq!((&failure["file"], &failure["line"]), (&json!("src/lib.rs"), &json!(16)), "{reply}");
    assert_eq!(failure["name"], "tests::nothing_is_free");

    let reply = call(&site, "run_tests", &json!({"path": "src/lib.rs", "name": "added"}));
    assert_eq!((&reply["value"]["verdict"], &reply["value"]["passed"]), (&json!("passed"), &json!(1)), "{reply}");
    check_error(
        &site,
        "run_tests",
        &json!({"name": "no such test"}),
        "EXECUTION_ERROR",
        "no test has this in its name",
    );
    assert_eq!(site.tree(), before);

    site.write("src/lib.rs", "pub fn total() -> u32 {\n    \"one\"\n}\n");
    let reply = call(&site, "run_tests", &json!({}));
    let value = &reply["value"];
    assert_eq!((&value["verdict"], &value["errors"]), (&json!("failed"), &json!(1)), "{reply}");
    assert_eq!((&value["failures"][0]["file"], &value["failures"][0]["line"]), (&json!("src/lib.rs"), &json!(2)));
}

#[test]
fn a_run_that_is_not_a_pass_is_never_one() {
    let commands = |command: &str| {
        let site = site(&format!("[project]\ntest = {command:?}\n"));
        site.write("README.md", "");
        site
    };
    let reply = call(&commands("echo fine; touch made"), "run_tests", &json!({}));
    assert_eq!((&reply["value"]["verdict"], &reply["value"]["exitCode"]), (&json!("passed"), &json!(0)), "{reply}");
    let reply = call(&commands("echo no; exit 3"), "run_tests", &json!({}));
    assert_eq!((&reply["value"]["verdict"], &reply["value"]["exitCode"]), (&json!("failed"), &json!(3)), "{reply}");
    assert!(reply["value"]["printed"].as_str().unwrap().contains("no report; tests are not counted"), "{reply}");
    let slow = commands("sleep 100");
    check_error(&slow, "run_tests", &json!({"timeout": 1}), "TIMEOUT", "after 1 s");

    // A runner that the sandbox does not have, and one that exits with 0 although it reports a failure.
    let site = site("");
    site.write("package.json", r#"{"scripts": {"test": "jest"}}"#);
    check_error(&site, "run_tests", &json!({}), "UNAVAILABLE", "`jest` is not installed");
    site.write(
        "node_modules/.bin/jest",
        "#!/bin/sh\nfor word; do case $word in --outputFile=*) report=${word#*=};; esac; done\n\
         echo '{\"testResults\":[{\"assertionResults\":[{\"status\":\"failed\",\"title\":\"t\"}]}]}' > $report\n",
    );
    let make_executable = |path: &str| {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(site.workspace.join(path), std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    make_executable("node_modules/.bin/jest");
    check_error(&site, "run_tests", &json!({}), "EXECUTION_ERROR", "exited with 0, but its report has failures");
    site.write("node_modules/.bin/jest", "#!/bin/sh\necho all is well\n");
    check_error(&site, "run_tests", &json!({}), "EXECUTION_ERROR", "the runner wrote no report, so this is not a pass");
}

#[test]
fn what_cannot_be_tested_is_said() {
    let site = site("");
    site.write("README.md", "");
    let check =
        |arguments: Value, code: &str, message: &str| check_error(&site, "run_tests", &arguments, code, message);
    check(json!({}), "FILE_NOT_FOUND", "no test runner found");
    check(json!({"path": "absent"}), "FILE_NOT_FOUND", "`absent` does not exist");
    check(json!({"path": "../x"}), "INVALID_ARGS", "must not contain `..`");
    check(json!({"path": "/etc"}), "INVALID_ARGS", "must be relative to the workspace");
    check(json!({"name": "--version"}), "INVALID_ARGS", "must not begin with `-`");
    check(json!({"timeout": 100_000}), "INVALID_ARGS", "must be at most 600 seconds");
}

const UGLY: &str = "fn  main( ) {\nlet a=1 ;\n}\n";
const PRETTY: &str = "fn main() {\n    let a = 1;\n}\n";

#[test]
fn named_files_are_formatted_as_one_change_that_can_be_undone() {
    let site = site("");
    site.write("Cargo.toml", "[package]\nname = \"a\"\nedition = \"2024\"\n");
    site.write("src/main.rs", format!("mod other;\n{UGLY}"));
    site.write("src/other.rs", UGLY);
    site.write("src/third.rs", PRETTY);
    let before = site.tree();
    let named = json!({"paths": ["src/main.rs", "/workspace/src/third.rs"], "check": true});
    let reply = call(&site, "format_code", &named);
    assert_eq!(reply["value"]["paths"], json!(["src/main.rs"]), "{reply}");
    assert_eq!(site.tree(), before);

    let reply = call(&site, "format_code", &json!({"paths": ["src/main.rs", "src/third.rs"]}));
    assert_eq!(reply["value"]["paths"], json!(["src/main.rs"]), "{reply}");
    let text = |name: &str| std::fs::read_to_string(site.workspace.join(name)).unwrap();
    assert_eq!(text("src/main.rs"), format!("mod other;\n{PRETTY}"));
    assert_eq!(text("src/other.rs"), UGLY, "modules of a named file are not named");
    assert!(reply["value"]["change"].is_string(), "{reply}");
    assert_eq!(site.run(&["undo"]).code, Some(0));
    assert_eq!(site.tree(), before);

    let reply = call(&site, "format_code", &json!({"paths": "src/third.rs"}));
    assert_eq!((&reply["value"]["paths"], reply["value"].get("change")), (&json!([]), None), "{reply}");
}

#[test]
fn a_formatter_that_fails_or_does_more_changes_nothing() {
    let site = site("");
    let prettier = |script: &str| {
        use std::os::unix::fs::PermissionsExt as _;
        site.write("node_modules/.bin/prettier", format!("#!/bin/sh\n{script}\n"));
        let path = site.workspace.join("node_modules/.bin/prettier");
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    site.write("a.js", "a");
    site.write("b.js", "b");
    site.write("bad.rs", "fn {");
    site.write("c.xyz", "c");
    site.write("d/e", "");
    let check = |paths: Value, code: &str, message: &str| {
        check_error(&site, "format_code", &json!({"paths": paths}), code, message);
    };
    check(json!(["a.js"]), "UNAVAILABLE", "not installed where the sandbox finds it: prettier");
    check(json!(["bad.rs"]), "EXECUTION_ERROR", "rustfmt exited with 1; no file was changed");
    check(json!(["c.xyz"]), "FILE_NOT_FOUND", "no formatter is known for `c.xyz`");
    check(json!(["d"]), "FILE_NOT_FOUND", "is a directory");
    check(json!([]), "INVALID_ARGS", "must have 1 to 200 files");
    prettier("echo formatted > a.js; echo formatted > b.js");
    check(json!(["a.js"]), "EXECUTION_ERROR", "the program also changed `b.js`; none of its changes were kept");
    prettier("echo formatted > a.js; mkdir cache");
    check(json!(["a.js"]), "EXECUTION_ERROR", "the program also changed `cache`");
    prettier("echo formatted > a.js; exit 2");
    check(json!(["a.js"]), "EXECUTION_ERROR", "prettier exited with 2; no file was changed");
    prettier("echo formatted > a.js; rm b.js");
    check(json!(["a.js"]), "EXECUTION_ERROR", "the program also changed `b.js`");
    prettier("echo formatted > a.js; echo formatted > b.js");
    let reply = call(&site, "format_code", &json!({"paths": ["a.js", "b.js"]}));
    assert_eq!(reply["value"]["paths"], json!(["a.js", "b.js"]), "{reply}");
}

#[test]
fn they_are_listed_on_request_only() {
    let site = site("");
    let names = |options: &[&str]| {
        let mut client = StdioMcpClient::with_handshake(&site, options, json!({}));
        let tools = client.request("tools/list", json!({}))["result"]["tools"].as_array().unwrap().clone();
        let names = tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned());
        names.filter(|name| ["run_tests", "format_code"].contains(&name.as_str())).collect::<Vec<_>>()
    };
    for dialect in ["standard", "claude", "codex", "gemini"] {
        assert_eq!(names(&["--dialect", dialect]), [""; 0]);
        assert_eq!(names(&["--dialect", dialect, "--toolset", "project"]), ["run_tests", "format_code"], "{dialect}");
    }
}
