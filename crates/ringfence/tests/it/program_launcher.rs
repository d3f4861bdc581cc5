//! Programs that are started for the operator: none of them runs a file of the workspace, whatever is planted there.

use std::os::unix::fs::symlink;
use std::path::Path;

use ringfence_testkit::executable::{copy_executable, write_script};
use ringfence_testkit::requirement::{Requirement, skip_without};

use crate::site::{CliOutput, TestSite, cli_output};

/// Writes a file into the workspace that leaves a trace if it is run.
fn plant_file(site: &TestSite, path: &str, code: &str) {
    let trace = site.root().join("ran").display().to_string();
    let path = site.workspace.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    write_script(&path, &code.replace("TRACE", &trace));
}

fn was_run(site: &TestSite) -> bool {
    site.root().join("ran").exists()
}

/// Lists tools with one server, as a client does that is started in the workspace.
fn start(site: &TestSite, keys: &str, variables: &[(&str, String)]) -> CliOutput {
    std::fs::create_dir_all(site.config.join("ringfence")).unwrap();
    std::fs::write(
        site.config.join("ringfence/config.toml"),
        format!("[mcp_servers.far]\ntimeout = \"60s\"\n{keys}\n"),
    )
    .unwrap();
    let mut command = site.command(&["tools"]);
    command.current_dir(&site.workspace).envs(variables.iter().map(|(name, value)| (name, value)));
    cli_output(command.output().unwrap())
}

fn has_program(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|place| place.join(program).exists());
    if !found {
        let requirement = if program == "python3" { Requirement::Python } else { Requirement::Node };
        skip_without(requirement, &format!("there is no `{program}`"));
    }
    found
}

#[test]
fn no_server_runs_a_file_of_the_workspace() {
    let python = "open('TRACE', 'w')\n";
    let shell = "#!/bin/sh\n: > TRACE\n";
    let path = std::env::var("PATH").unwrap();
    // What is planted, the server, and what the user's environment has.
    let cases = [
        (
            "planted.py",
            python,
            r#"command = "python3"
args = ["-m", "planted"]"#,
            vec![],
        ),
        (
            "json.py",
            python,
            r#"command = "python3"
args = ["-c", "import json"]"#,
            vec![],
        ),
        (
            "sitecustomize.py",
            python,
            r#"command = "python3"
args = ["-c", "0"]
env = ["PYTHONPATH"]"#,
            vec![("PYTHONPATH", "WS".to_owned())],
        ),
        (
            "sub/sitecustomize.py",
            python,
            r#"command = "python3"
args = ["-c", "0"]
env = ["PYTHONPATH"]"#,
            vec![("PYTHONPATH", "sub:.".to_owned())],
        ),
        (
            "node_modules/.bin/planted",
            shell,
            r#"command = "npx"
args = ["--no-install", "planted"]"#,
            vec![],
        ),
        (
            "planted.js",
            "require('fs').writeFileSync('TRACE', '')\n",
            r#"command = "node"
args = ["-e", "0"]
env = ["NODE_OPTIONS"]"#,
            vec![("NODE_OPTIONS", "--require=WS/planted.js".to_owned())],
        ),
        ("bin/planted", shell, r#"command = "planted""#, vec![("PATH", format!("WS/bin:{path}"))]),
        ("bin/planted", shell, r#"command = "planted""#, vec![("PATH", format!("bin:{path}"))]),
        ("planted", shell, r#"command = "planted""#, vec![("PATH", format!("{path}::."))]),
    ];
    for (file, code, keys, variables) in cases {
        let program = keys.split('"').nth(1).unwrap();
        if program != "planted" && !has_program(program) {
            continue;
        }
        let site = TestSite::new();
        site.write("package.json", "{}");
        plant_file(&site, file, code);
        let variables: Vec<(&str, String)> = variables
            .into_iter()
            .map(|(name, value)| (name, value.replace("WS", site.workspace.to_str().unwrap())))
            .collect();
        let said = start(&site, &format!("{keys}\njail = false"), &variables);
        assert_eq!(said.code, Some(0), "{said:?}");
        assert!(!was_run(&site), "{file} was run by {keys} {variables:?}");
        let left = std::fs::read_dir(site.state.join("programs")).map_or(0, Iterator::count);
        assert_eq!(left, 0, "{keys}: the directory of the program is still there");
    }
}

#[test]
fn a_program_that_lies_in_a_workspace_or_a_mount_is_not_started() {
    let site = TestSite::new();
    plant_file(&site, "server", "#!/bin/sh\n: > TRACE\n");
    let program = site.workspace.join("server");
    let link = site.root().join("link");
    symlink(&program, &link).unwrap();
    let mounted = site.outside.join("server");
    copy_executable(&program, &mounted);
    let mount = format!("jail = false\n[mounts.pkg]\npath = {:?}\n", site.outside);
    for (program, keys) in [(&program, "jail = false"), (&link, "jail = false"), (&mounted, mount.as_str())] {
        let said = start(&site, &format!("command = {program:?}\n{keys}"), &[]);
        assert!(
            said.err.contains("the program is inside a workspace or mount, where an agent could change it"),
            "{said:?}"
        );
        assert!(!said.err.contains(site.root().to_str().unwrap()), "{said:?}");
        assert!(!was_run(&site), "{}", program.display());
    }
    let missing = start(&site, "command = \"not-there-at-all\"\njail = false", &[]);
    assert!(missing.err.contains("program not found"), "{missing:?}");
}

/// A server that says in which directory it is, what is in it, and what it has of two variables.
const DIRECTORY_SERVER: &str = r#"
while read -r line; do
    [[ $line =~ \"id\":([0-9]+) ]] || continue
    id=${BASH_REMATCH[1]}
    case $line in
        *initialize*) result='{"protocolVersion":"2025-11-25"}' ;;
        *tools/list*) result='{"tools":[{"name":"look","inputSchema":{"type":"object"}}]}' ;;
        *) result="{\"content\":[{\"type\":\"text\",\"text\":\"$PWD $(cat mine.txt 2> /dev/null) $PYTHONPATH $NOTES\"}]}" ;;
    esac
    echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":$result}"
done
"#;

fn call_look_tool(keys: &str) -> Option<(TestSite, String)> {
    let site = TestSite::new();
    site.write("mine.txt", "planted");
    let args = serde_json::to_string(&["-c", DIRECTORY_SERVER]).unwrap();
    let allow = "[[rules]]\ndecision = \"allow\"\neffect = \"external\"\n";
    let text = format!(
        "{allow}[mcp_servers.far]\ncommand = \"bash\"\nargs = {args}\nenv = [\"PYTHONPATH\", \"NOTES\"]\n{keys}\n"
    );
    std::fs::create_dir_all(site.config.join("ringfence")).unwrap();
    std::fs::write(site.config.join("ringfence/config.toml"), text).unwrap();
    let mut command = site.command(&["call", "mcp__far__look"]);
    command.current_dir(&site.workspace).env("PYTHONPATH", format!("{}:/opt", site.workspace.display()));
    command.env("NOTES", site.workspace.join("notes"));
    let said = cli_output(command.output().unwrap());
    if said.err.contains("sandbox unavailable") {
        skip_without(Requirement::Sandbox, "this machine cannot build a jail");
        return None;
    }
    let text = said.value()["text"].as_str().unwrap().to_owned();
    Some((site, text))
}

#[test]
fn a_server_starts_in_an_empty_directory_wherever_it_runs() {
    let (site, outside) = call_look_tool("jail = false").unwrap();
    let (directory, rest) = outside.split_once(' ').unwrap();
    assert!(Path::new(directory).starts_with(site.state.join("programs")), "{outside}");
    assert_eq!(rest, format!(" /opt {}", site.workspace.join("notes").display()));
    for keys in ["", "workspace = \"read\""] {
        let Some((site, inside)) = call_look_tool(keys) else { return };
        assert_eq!(inside, format!("/tmp  /opt {}", site.workspace.join("notes").display()), "{keys}");
    }
}

#[test]
fn a_jail_without_the_program_says_so() {
    let site = TestSite::new();
    let said = start(&site, "command = \"not-there-at-all\"", &[]);
    if said.err.contains("sandbox unavailable") {
        return skip_without(Requirement::Sandbox, "this machine cannot build a jail");
    }
    assert!(said.err.contains("program not found in the sandbox"), "{said:?}");
}
