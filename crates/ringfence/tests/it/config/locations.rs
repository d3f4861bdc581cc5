//! Locations of config files and of workspaces.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use ringfence_testkit::requirement::{Requirement, skip_without};
use serde_json::json;

use super::run_tools_list;
use crate::site::{CliOutput, TestSite, cli_output};

#[test]
fn the_file_is_the_flag_s_or_the_variable_s_or_the_user_s_own() {
    let site = TestSite::new();
    let file = |path: PathBuf, tool: &str| {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let text = match path.extension().is_some_and(|extension| extension == "json") {
            true => json!({"tools": {"allow": [tool]}}).to_string(),
            false => format!("[tools]\nallow = [\"{tool}\"]\n"),
        };
        std::fs::write(&path, text).unwrap();
        path
    };
    #[track_caller]
    fn check(said: CliOutput, tool: &str) {
        assert_eq!(said.code, Some(0), "{said:?}");
        assert_eq!(said.out.split(' ').next(), Some(tool), "{said:?}");
        assert_eq!(said.out.lines().count(), 1);
    }
    let json = file(site.config.join("ringfence/config.json"), "copy_file");
    check(run_tools_list(&site, &[], &[]), "copy_file");
    file(site.config.join("ringfence/config.toml"), "edit_file");
    check(run_tools_list(&site, &[], &[]), "edit_file");
    let variable = file(site.root().join("variable.toml"), "move_file");
    check(run_tools_list(&site, &[], &[("RINGFENCE_CONFIG", &variable)]), "move_file");
    let flag = file(site.root().join("flag.json"), "find_files");
    check(
        run_tools_list(&site, &["--config", flag.to_str().unwrap()], &[("RINGFENCE_CONFIG", &variable)]),
        "find_files",
    );
    // A relative name is one from where the program was started.
    file(site.current.join("here.toml"), "read_file");
    check(run_tools_list(&site, &["--config", "here.toml"], &[]), "read_file");
    std::fs::remove_dir_all(json.parent().unwrap()).unwrap();
    // Without XDG_CONFIG_HOME, or with one that is not absolute, it is `~/.config`.
    file(site.home.join(".config/ringfence/config.toml"), "append_file");
    for elsewhere in ["", "relative"] {
        check(run_tools_list(&site, &[], &[("XDG_CONFIG_HOME", Path::new(elsewhere))]), "append_file");
    }
    let missing = run_tools_list(&site, &["--config", "none.toml"], &[]);
    assert_eq!(missing.code, Some(2));
    assert!(missing.err.contains("none.toml"), "{missing:?}");
}

/// Writes a file by way of a workspace that is given in these words; tells where it came to be, or why not.
fn workspace_of(site: &TestSite, written: Option<&str>) -> Result<PathBuf, String> {
    workspace_from(site, &site.current, written)
}

/// The same, typed in this directory.
fn workspace_from(site: &TestSite, current: &Path, written: Option<&str>) -> Result<PathBuf, String> {
    let mut command = site.program_without_arguments();
    command.current_dir(current);
    command.args(["call", "write_file", r#"{"path":"here-it-is","content":""}"#]);
    if let Some(written) = written {
        command.args(["--workspace", written]);
    }
    let said = cli_output(command.output().unwrap());
    if said.code == Some(2) {
        return Err(said.err);
    }
    said.value();
    let mut left = vec![std::fs::canonicalize(site.root()).unwrap()];
    while let Some(directory) = left.pop() {
        for entry in std::fs::read_dir(&directory).unwrap().map(Result::unwrap) {
            if entry.file_name() == "here-it-is" {
                std::fs::remove_file(entry.path()).unwrap();
                return Ok(directory);
            }
            if entry.file_type().unwrap().is_dir() {
                left.push(entry.path());
            }
        }
    }
    panic!("the file is nowhere");
}

#[test]
fn a_workspace_is_trimmed_expanded_made_absolute_and_created() {
    let site = TestSite::new();
    let absolute = site.root().join("made/just/now");
    let cases = [
        (None, site.home.join(".ringfence/workspace")),
        (Some(""), site.home.join(".ringfence/workspace")),
        (Some("   "), site.home.join(".ringfence/workspace")),
        (Some("~/work"), site.home.join("work")),
        (Some("  ~/work\n"), site.home.join("work")),
        (Some("~//work"), site.home.join("work")),
        (Some("relative/dir"), site.current.join("relative/dir")),
        (Some("."), site.current.clone()),
        (Some("../beside"), site.root().join("beside")),
        (Some("~name"), site.current.join("~name")),
        (Some("a~/b"), site.current.join("a~/b")),
        (Some("with space"), site.current.join("with space")),
        (Some(absolute.to_str().unwrap()), absolute.clone()),
    ];
    for (written, expected) in cases {
        assert_eq!(workspace_of(&site, written), Ok(expected), "{written:?}");
    }
}

#[test]
fn the_nearest_marked_directory_is_the_default_workspace() {
    let site = TestSite::new();
    let default = site.home.join(".ringfence/workspace");
    let make = |path: &str, marker: Option<(&str, bool)>| {
        let path = site.root().join(path);
        std::fs::create_dir_all(&path).unwrap();
        match marker {
            Some((name, true)) => std::fs::create_dir(path.join(name)).unwrap(),
            Some((name, false)) => std::fs::write(path.join(name), "").unwrap(),
            None => {}
        }
        path
    };
    let file = make("a", Some(("ringfence.toml", false)));
    let below = make("a/b/c", None);
    let nested = make("a/n", Some(("ringfence.toml", false)));
    let repository = make("r", Some((".git", true)));
    let worktree = make("r/w", Some((".git", false)));
    let no_file = make("d", Some(("ringfence.toml", true)));
    // The home directory, and what is above it, is never found.
    let homely = make("home/x", None);
    std::fs::create_dir(site.home.join(".git")).unwrap();
    std::fs::write(site.root().join("ringfence.toml"), "").unwrap();
    for (current, expected) in [
        (&file, &file),
        (&below, &file),
        (&nested, &nested),
        (&repository, &repository),
        (&worktree, &worktree),
        (&no_file, &default),
        (&homely, &default),
        (&site.home, &default),
        (&site.current, &default),
    ] {
        assert_eq!(workspace_from(&site, current, None).as_ref(), Ok(expected), "{}", current.display());
        // What is named holds.
        assert_eq!(workspace_from(&site, current, Some("~/named")), Ok(site.home.join("named")));
    }
    std::fs::create_dir_all(site.config.join("ringfence")).unwrap();
    std::fs::write(site.config.join("ringfence/config.toml"), "agents.defaults.workspace = \"~/mine\"").unwrap();
    assert_eq!(workspace_from(&site, &file, None), Ok(site.home.join("mine")));
}

#[test]
fn the_discovered_workspace_is_printed_once_to_stderr() {
    let site = TestSite::new();
    std::fs::write(site.workspace.join("ringfence.toml"), "").unwrap();
    std::fs::create_dir_all(site.workspace.join("in/side")).unwrap();
    let run = |current: &Path, arguments: &[&str]| {
        cli_output(site.program_without_arguments().current_dir(current).args(arguments).output().unwrap())
    };
    let list = ["call", "list_directory", r#"{"path":"."}"#];
    let found = run(&site.workspace.join("in/side"), &list);
    assert_eq!(found.err, "ringfence: the workspace is `ws` (`../..`), which has `ringfence.toml`\n");
    assert!(found.value()["entries"].to_string().contains("ringfence.toml"), "{found:?}");
    let here = run(&site.workspace, &list);
    assert_eq!(here.err, "ringfence: the workspace is this directory (`ws`), which has `ringfence.toml`\n");
    let default = run(&site.current, &list);
    assert!(default.err.starts_with("ringfence: the workspace is `~/.ringfence/workspace`; "), "{default:?}");
    assert_eq!(run(&site.workspace, &["call", "list_directory", "{}", "--workspace", "."]).err, "");
    assert_eq!(run(&site.workspace, &["audit", "verify"]).err, "");
    // One that holds our own files is refused and not passed over.
    let refused = cli_output(
        site.program_without_arguments()
            .current_dir(&site.workspace)
            .args(list)
            .env("RINGFENCE_STATE_DIR", site.workspace.join("s"))
            .output()
            .unwrap(),
    );
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.err.contains("Ringfence's own files"), "{refused:?}");
}

#[test]
fn a_directory_that_another_user_marked_is_not_the_workspace() {
    if !rustix::process::geteuid().is_root() {
        return skip_without(Requirement::Root, "only root gives a file to another user");
    }
    let site = TestSite::new();
    let marker = site.workspace.join("ringfence.toml");
    std::fs::write(&marker, "").unwrap();
    for path in [&marker, &site.workspace] {
        std::os::unix::fs::chown(path, Some(12_345), None).unwrap();
        assert_eq!(workspace_from(&site, &site.workspace, None), Ok(site.home.join(".ringfence/workspace")));
        std::os::unix::fs::chown(path, Some(0), None).unwrap();
    }
    assert_eq!(workspace_from(&site, &site.workspace, None), Ok(site.workspace.clone()));
}

#[test]
fn state_and_config_that_others_can_write_are_refused() {
    let site = TestSite::new();
    let set = |path: &Path, mode: u32| {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    };
    set(site.root(), 0o755);
    std::fs::create_dir_all(site.config.join("ringfence")).unwrap();
    let config = site.config.join("ringfence/config.toml");
    std::fs::write(&config, "").unwrap();
    let call = || site.call("list_directory", &json!({"path": "."}));
    call().value();
    for (path, mode, before) in [
        (&site.state, 0o777, 0o700),
        (&site.state, 0o702, 0o700),
        (&config, 0o666, 0o644),
        (&site.config, 0o777, 0o755),
        (&site.root().to_owned(), 0o777, 0o755),
    ] {
        set(path, mode);
        let refused = call();
        assert_eq!(refused.code, Some(2), "{}: {refused:?}", path.display());
        assert!(refused.err.contains("other users can write to") && refused.err.contains("chmod go-w"), "{refused:?}");
        set(path, before);
        call().value();
    }
}

#[test]
fn a_directory_that_cannot_be_a_workspace_is_refused() {
    let site = TestSite::new();
    std::fs::create_dir_all(site.config.join("ringfence")).unwrap();
    std::fs::create_dir_all(&site.state).unwrap();
    std::fs::write(site.root().join("file"), "").unwrap();
    symlink(&site.home, site.root().join("link-home")).unwrap();
    symlink(&site.state, site.root().join("link-state")).unwrap();
    let at = |path: &Path| path.to_str().unwrap().to_owned();
    let cases = [
        ("/".to_owned(), "root of the file system"),
        ("/tmp/..".to_owned(), "root of the file system"),
        ("~".to_owned(), "home directory"),
        ("~/".to_owned(), "home directory"),
        (at(&site.home), "home directory"),
        (at(&site.root().join("link-home")), "home directory"),
        (at(&site.config.join("ringfence")), "Ringfence's own"),
        (at(&site.config.join("ringfence/below")), "Ringfence's own"),
        (at(&site.config), "Ringfence's own"),
        (at(&site.state), "Ringfence's own"),
        (at(&site.state.join("locks")), "Ringfence's own"),
        (at(site.root()), "home directory"),
        (at(&site.root().join("link-state")), "Ringfence's own"),
        (at(&site.root().join("file")), "cannot create the workspace"),
        (at(&site.root().join("file/below")), "cannot create the workspace"),
    ];
    for (written, reason) in cases {
        let refused = workspace_of(&site, Some(&written)).unwrap_err();
        assert!(refused.contains(reason), "{written}: {refused}");
    }
}

#[test]
fn a_state_directory_that_is_not_there_yet_counts_by_where_it_will_be() {
    let site = TestSite::new();
    let link = site.root().join("link");
    symlink(&site.outside, &link).unwrap();
    let mut command = site.program_without_arguments();
    command.args(["tools", "--workspace"]).arg(&site.outside).env("RINGFENCE_STATE_DIR", link.join("not/yet"));
    let said = cli_output(command.output().unwrap());
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.err.contains("Ringfence's own"), "{said:?}");
}

#[test]
fn a_refused_workspace_inside_our_own_directories_is_not_created() {
    let site = TestSite::new();
    let inside = site.config.join("ringfence/sub");
    workspace_of(&site, Some(inside.to_str().unwrap())).unwrap_err();
    assert!(!inside.exists());
}

#[test]
fn a_config_file_that_the_agent_could_write_is_refused() {
    let site = TestSite::new();
    site.write("ours.toml", "preset = \"read-only\"\n");
    let config = site.workspace.join("ours.toml");
    let said = site.run(&["--config", config.to_str().unwrap(), "tools"]);
    assert_eq!(said.code, Some(2), "{said:?}");
}

#[test]
fn without_a_home_a_workspace_below_it_is_refused_and_another_works() {
    let site = TestSite::new();
    let run = |workspace: &Path| {
        let mut command = site.program_without_arguments();
        command.env_remove("HOME").args(["tools", "--workspace"]).arg(workspace);
        cli_output(command.output().unwrap())
    };
    let refused = run(Path::new("~/work"));
    assert_eq!(refused.code, Some(2));
    assert!(refused.err.contains("home directory"), "{refused:?}");
    assert_eq!(run(&site.workspace).code, Some(0));
}

#[test]
fn heads_of_the_audit_log_go_to_a_second_place_too_and_it_must_not_be_inside() {
    let site = TestSite::new();
    site.write("f", "x");
    let (second, config) = (site.root().join("heads.jsonl"), site.root().join("heads.toml"));
    let call = |heads: &Path| {
        std::fs::write(&config, format!("audit_heads = {}", json!(heads))).unwrap();
        site.run(&["call", "read_file", r#"{"path":"f"}"#, "--config", config.to_str().unwrap()])
    };
    assert_eq!(call(&second).code, Some(0));
    assert_eq!(call(&second).code, Some(0));
    assert_eq!(std::fs::read_to_string(&second).unwrap().lines().count(), 2);
    let check = || site.run(&["audit", "verify", "--heads", second.to_str().unwrap()]).code;
    assert_eq!(check(), Some(0));
    std::fs::remove_dir_all(site.state.join("audit")).unwrap();
    std::fs::remove_file(site.state.join("audit-heads.jsonl")).unwrap();
    assert_eq!(call(Path::new("none")).code, Some(0));
    assert_eq!((site.run(&["audit", "verify"]).code, check()), (Some(0), Some(1)));
    assert_eq!(call(&site.workspace.join("heads.jsonl")).code, Some(2));
}

#[test]
fn a_log_goes_where_config_says() {
    let site = TestSite::new();
    site.write("a.txt", "hunter2");
    let log = site.root().join("calls.jsonl");
    let config = site.root().join("log.toml");
    let call = |log: &str| {
        std::fs::write(&config, format!("log = {}", json!(log))).unwrap();
        site.call_with(&["--config", config.to_str().unwrap()], "read_file", &json!({"path": "a.txt"}))
    };
    assert_eq!(call("none").err, "");
    assert_eq!(call("stderr").err.lines().count(), 1);
    for _ in 0..2 {
        assert_eq!(call(log.to_str().unwrap()).err, "");
    }
    let text = std::fs::read_to_string(&log).unwrap();
    assert_eq!(text.lines().count(), 2);
    assert!(!text.contains("hunter2"));
    assert_eq!(call("/nowhere/at/all.jsonl").code, Some(2));
    // Where every record is lost, no reply is given.
    assert_eq!(call("/dev/full").code, Some(2));
}

#[test]
fn no_other_mount_has_a_name_of_the_workspace() {
    let site = TestSite::new();
    for (name, dialect) in
        ["workspace", "project"].into_iter().flat_map(|name| ["standard", "crewagent"].map(|d| (name, d)))
    {
        let mount = format!("{name}={}:ro", site.outside.display());
        let said = site.run(&["--dialect", dialect, "--mount", &mount, "tools"]);
        assert_eq!(said.code, Some(2), "{said:?}");
        assert!(said.err.contains(&format!("`{name}` is reserved for the workspace")), "{said:?}");
    }
}
