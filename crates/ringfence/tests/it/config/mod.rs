//! Configuration by files, flags and environment: precedence, and the workspace.

mod keys;
mod locations;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use ringfence::config::{AppSettings, CliFlags, ConfigError, Environment, EnvironmentVariables, LogTarget, load};
use ringfence_kernel::{CallLimits, Dialect, Preset};
use serde_json::json;

use crate::site::{CliOutput, TestSite, cli_output};

/// Layers of config in a temporary directory, loaded by the library itself.
pub(crate) struct ConfigLayers {
    directory: tempfile::TempDir,
}

impl ConfigLayers {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn environment(&self) -> Environment {
        let below = |name: &str| self.directory.path().join(name);
        Environment {
            current: below("current"),
            config: Some(below("config")),
            no_color: false,
            variables: EnvironmentVariables([("SEARCH_KEY".to_owned(), "k-secret".to_owned())].into()),
            ..Environment::isolated(self.directory.path(), env!("CARGO_BIN_EXE_ringfence"))
        }
    }

    pub(crate) fn write(&self, path: &str, text: &str) -> PathBuf {
        let path = self.directory.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn load(&self, flags: &CliFlags) -> Result<AppSettings, ConfigError> {
        load(flags, &self.environment())
    }
}

const CREW: &str = r#"
[policy.fs]
maxReadBytes = 1000
[agents.reader.tools.fs]
maxReadBytes = 2000
maxWriteBytes = 10
[agents.idle.tools.fs]
enabled = false
"#;

#[test]
fn an_agent_can_only_tighten_what_the_policy_allows() {
    let layers = ConfigLayers::new();
    let crew = |agent: Option<&str>| CliFlags {
        dialect: Some(Dialect::Crewagent),
        agent: agent.map(str::to_owned),
        ..CliFlags::default()
    };
    let limits = |layers: &ConfigLayers, agent| {
        layers.load(&crew(agent)).map(|said| (said.limits.read_bytes, said.limits.write_bytes))
    };
    assert_eq!(limits(&layers, None).unwrap(), (50_000, 100_000));
    layers.write("config/config.toml", "policy.fs = {}");
    assert_eq!(limits(&layers, None).unwrap(), (524_288, 2_097_152));
    layers.write("config/config.toml", CREW);
    assert_eq!(limits(&layers, None).unwrap(), (1000, 2_097_152));
    assert_eq!(limits(&layers, Some("reader")).unwrap(), (1000, 10));
    let error = limits(&layers, Some("raeder")).unwrap_err().to_string();
    assert!(error.contains("did you mean `reader`?"), "{error}");
    assert_eq!(layers.load(&crew(Some("idle"))).unwrap().tools.allow, Some([].into()));
}

#[test]
fn the_strictest_preset_of_all_layers_applies() {
    let read_only = CliFlags { preset: Some(Preset::ReadOnly), ..CliFlags::default() };
    let layers = ConfigLayers::new();
    layers.write("managed/config.toml", "preset = \"edits\"");
    assert_eq!(layers.load(&read_only).unwrap().preset, Preset::ReadOnly);
    layers.write("config/config.toml", "preset = \"ask\"");
    assert_eq!(layers.load(&CliFlags::default()).unwrap().preset, Preset::Ask);
}

#[test]
fn a_table_about_files_never_loosens_a_limit_that_was_set() {
    let layers = ConfigLayers::new();
    let crew = CliFlags { dialect: Some(Dialect::Crewagent), ..CliFlags::default() };
    layers.write("managed/config.toml", "limits.max_read_bytes = 10");
    layers.write("config/config.toml", "policy.fs = {}");
    assert_eq!(layers.load(&crew).unwrap().limits.read_bytes, 10);
    layers.write("config/config.toml", "agents.defaults.tools.fs.maxReadBytes = 5");
    assert_eq!(layers.load(&crew).unwrap().limits.read_bytes, 5);
    layers.write("config/config.toml", "agents.defaults.tools.fs.enabled = false");
    assert_eq!(layers.load(&crew).unwrap().tools.allow, Some([].into()));
    layers.write("config/config.toml", "agents.writer.restrict_to_workspace = false");
    let error = layers.load(&crew).unwrap_err().to_string();
    assert!(error.contains("agents.writer") && error.contains("restrict_to_workspace"), "{error}");
}

#[test]
fn a_named_agent_says_what_is_different_for_it_and_can_only_tighten() {
    let layers = ConfigLayers::new();
    let defaults = "[agents.defaults]\nmodel = \"large\"\nbase_url = \"http://a/v1\"\nmax_tool_iterations = 9\nworkspace = \"shared\"\n";
    let named = "[agents.writer]\nmodel = \"small\"\ndialect = \"miniclaw\"\nmax_tool_iterations = 3\nworkspace = \"own\"\n\
                 [agents.writer.limits]\nmax_read_bytes = 10\nmax_write_bytes = 99999999999\n\
                 [agents.writer.tools]\nallow = [\"read_file\", \"write_file\"]\ndeny = [\"write_file\"]\n";
    layers.write("config/config.toml", &format!("{defaults}{named}"));
    let writer = CliFlags { agent: Some("writer".to_owned()), ..CliFlags::default() };
    let settings = layers.load(&writer).unwrap();
    assert_eq!((settings.dialect, settings.max_tool_iterations), (Dialect::Miniclaw, 3));
    assert_eq!((settings.model.model.as_deref(), settings.workspace.as_deref()), (Some("small"), Some("own")));
    assert_eq!(settings.model.base_url.as_deref(), Some("http://a/v1"));
    let base = CallLimits::for_dialect(Dialect::Miniclaw);
    assert_eq!((settings.limits.read_bytes, settings.limits.write_bytes), (10, base.write_bytes));
    assert_eq!(settings.tools.allow.unwrap().len(), 2);
    assert!(settings.tools.deny.contains("write_file"));
    let settings = layers.load(&CliFlags::default()).unwrap();
    assert_eq!((settings.model.model.as_deref(), settings.max_tool_iterations), (Some("large"), 9));
    assert_eq!(settings.limits, CallLimits::for_dialect(Dialect::Standard));
    // What the owner of the machine says holds, and the command line against the user's agent.
    layers.write("managed/config.toml", "[agents.defaults]\nmodel = \"ours\"\n");
    let flags = CliFlags { dialect: Some(Dialect::Standard), workspace: Some("here".to_owned()), ..writer };
    let settings = layers.load(&flags).unwrap();
    assert_eq!((settings.model.model.as_deref(), settings.dialect), (Some("ours"), Dialect::Standard));
    assert_eq!(settings.workspace.as_deref(), Some("here"));
}

#[test]
fn nothing_said_is_the_default() {
    let layers = ConfigLayers::new();
    let settings = layers.load(&CliFlags::default()).unwrap();
    assert_eq!((settings.dialect, settings.preset), (Dialect::Standard, Preset::Ask));
    assert_eq!(settings.limits, CallLimits::for_dialect(Dialect::Standard));
    assert_eq!((settings.workspace, settings.log), (None, LogTarget::Discard));
    assert_eq!(settings.max_tool_iterations, 20);
    let flags = CliFlags { dialect: Some(Dialect::Miniclaw), ..CliFlags::default() };
    let settings = layers.load(&flags).unwrap();
    assert_eq!((settings.preset, settings.log), (Preset::Edits, LogTarget::StandardError));
    for count in ["0", "-5"] {
        layers.write("config/config.toml", &format!("agents.defaults.max_tool_iterations = {count}"));
        assert_eq!(layers.load(&CliFlags::default()).unwrap().max_tool_iterations, 20);
    }
}

#[test]
fn a_limit_for_writes_is_one_for_edits_and_appends_too() {
    let layers = ConfigLayers::new();
    layers.write("config/config.toml", "[limits]\nmax_write_bytes = 10\nmax_append_bytes = 3\n");
    let limits = layers.load(&CliFlags::default()).unwrap().limits;
    assert_eq!((limits.write_bytes, limits.edit_bytes, limits.append_bytes), (10, 10, 3));
}

#[test]
fn the_owner_of_the_machine_holds_against_flags_and_flags_against_the_user() {
    let layers = ConfigLayers::new();
    let flags = CliFlags {
        preset: Some(Preset::Edits),
        dialect: Some(Dialect::Standard),
        workspace: Some("flag".to_owned()),
        ..CliFlags::default()
    };
    layers.write(
        "config/config.toml",
        "preset = \"ask\"\ndialect = \"miniclaw\"\nagents.defaults.workspace = \"user\"\n[limits]\nmax_read_bytes = 10\nmax_copy_bytes = 20",
    );
    let settings = layers.load(&flags).unwrap();
    assert_eq!((settings.preset, settings.dialect), (Preset::Edits, Dialect::Standard));
    assert_eq!(settings.workspace.as_deref(), Some("flag"));
    let settings = layers.load(&CliFlags::default()).unwrap();
    assert_eq!((settings.preset, settings.dialect), (Preset::Ask, Dialect::Miniclaw));
    assert_eq!(settings.workspace.as_deref(), Some("user"));

    layers.write(
        "managed/config.toml",
        "preset = \"read-only\"\nagents.defaults.workspace = \"owner\"\n[limits]\nmax_read_bytes = 5\n[tools]\ndeny = [\"read_file\"]",
    );
    let settings = layers.load(&flags).unwrap();
    assert_eq!((settings.preset, settings.dialect), (Preset::ReadOnly, Dialect::Standard));
    assert_eq!(settings.workspace.as_deref(), Some("owner"));
    assert_eq!((settings.limits.read_bytes, settings.limits.copy_bytes), (5, 20));
    assert!(settings.tools.deny.contains("read_file"));
    let [warning] = &settings.warnings[..] else { panic!("{:?}", settings.warnings) };
    assert!(warning.contains("preset") && warning.contains("read-only") && warning.contains("edits"), "{warning}");
}

#[test]
fn tools_can_only_become_fewer_from_layer_to_layer() {
    let layers = ConfigLayers::new();
    layers.write("managed/config.toml", "tools.allow = [\"read_file\", \"edit_file\"]");
    layers.write("config/config.toml", "tools.allow = [\"read_file\", \"write_file\"]\ntools.deny = [\"copy_file\"]");
    let flags =
        CliFlags { allow: vec!["write_file".to_owned()], deny: vec!["move_file".to_owned()], ..CliFlags::default() };
    let tools = layers.load(&CliFlags::default()).unwrap().tools;
    assert_eq!(tools.allow, Some(["read_file".to_owned()].into()));
    let tools = layers.load(&flags).unwrap().tools;
    assert_eq!(tools.allow, Some([].into()));
    assert_eq!(tools.deny, ["copy_file", "move_file"].map(str::to_owned).into());
}

#[test]
fn an_owner_s_file_that_cannot_be_read_or_understood_is_never_passed_over() {
    let layers = ConfigLayers::new();
    let managed = layers.write("managed/config.toml", "preset = \"nonsense\"");
    assert!(layers.load(&CliFlags::default()).is_err());
    std::fs::remove_file(&managed).unwrap();
    assert!(layers.load(&CliFlags::default()).is_ok());
    // A link to a file that is not there now, perhaps because its disk is not.
    symlink("/nowhere/config.toml", &managed).unwrap();
    assert!(layers.load(&CliFlags::default()).is_err());
    std::fs::remove_file(&managed).unwrap();
    std::fs::create_dir(&managed).unwrap();
    assert!(layers.load(&CliFlags::default()).is_err());
}

/// Runs `tools --format list` with what the environment says, and no flag of ours.
fn run_tools_list(site: &TestSite, arguments: &[&str], environment: &[(&str, &Path)]) -> CliOutput {
    let mut command = site.program_without_arguments();
    command.args(["tools"]).args(arguments).envs(environment.iter().copied());
    cli_output(command.output().unwrap())
}

#[test]
fn a_wrong_file_is_exit_code_2_and_says_where_and_what_was_meant() {
    let site = TestSite::new();
    let told = |name: &str, text: &str, words: &[&str]| {
        let path = site.root().join(name);
        std::fs::write(&path, text).unwrap();
        let said = run_tools_list(&site, &["--config", path.to_str().unwrap()], &[]);
        assert_eq!((said.code, said.out.as_str()), (Some(2), ""), "{text}: {said:?}");
        for word in words.iter().chain([&name]) {
            assert!(said.err.contains(word), "{text:?} does not say {word:?}: {}", said.err);
        }
    };
    told("a.toml", "\n[limits]\nmax_raed_bytes = 5\n", &["max_raed_bytes", "did you mean `max_read_bytes`?", "line 3"]);
    told("a.toml", "presett = \"ask\"", &["presett", "did you mean `preset`?", "line 1"]);
    told("a.toml", "[agents.defaults]\nworkspce = \"x\"", &["workspce", "did you mean `workspace`?"]);
    told("a.toml", "preset = \"yolo\"", &["yolo", "ask", "edits", "read-only", "line 1"]);
    told("a.toml", "dialect = \"klingon\"", &["klingon", "standard", "miniclaw"]);
    told("a.toml", "durability = \"some\"", &["some", "full", "ordered"]);
    told("a.toml", "names = \"any\"", &["any", "native", "portable"]);
    told("a.toml", "preset = 5", &["line 1"]);
    told("a.toml", "[limits]\nmax_read_bytes = -1", &["line 2"]);
    told("a.toml", "preset = \"ask\"\npreset = \"ask\"", &["line 2", "preset"]);
    told("a.toml", "preset = ", &["line 1"]);
    told("a.json", "{\"limits\":\n{\"max_raed_bytes\": 5}}", &["max_raed_bytes", "`max_read_bytes`?", "line 2"]);
    told("a.json", "{\"preset\":\"yolo\"}", &["yolo", "read-only", "line 1"]);
    told("a.json", "{", &["line 1"]);
}

#[test]
fn a_tool_in_config_that_does_not_exist_names_the_nearest() {
    let site = TestSite::new();
    let path = site.root().join("a.toml");
    std::fs::write(&path, "[tools]\ndeny = [\"red_file\"]").unwrap();
    let said = run_tools_list(&site, &["--config", path.to_str().unwrap()], &[]);
    assert_eq!(said.code, Some(2));
    assert!(said.err.contains("did you mean `read_file`?"), "{said:?}");
}

#[test]
fn not_restricting_to_the_workspace_warns_and_opens_nothing() {
    let site = TestSite::new();
    let path = site.root().join("open.toml");
    std::fs::write(&path, "[agents.defaults]\nrestrict_to_workspace = false\n").unwrap();
    symlink(site.outside.join("secret"), site.workspace.join("out")).unwrap();
    let secret = site.outside.join("secret");
    for path_out in ["../outside/secret", "out", secret.to_str().unwrap()] {
        let said = site.call_with(&["--config", path.to_str().unwrap()], "read_file", &json!({"path": path_out}));
        assert_eq!(said.error(), "INVALID_PATH", "{path_out}");
        assert!(said.err.contains("warning: restrict_to_workspace = false has no effect"), "{said:?}");
        assert!(!said.out.contains("SECRET"));
    }
}

/// The result of a write of 100 bytes over a file, with this file in the workspace.
fn write_outcome(user: &str, workspace: &str) -> String {
    let site = TestSite::new();
    site.write("old.txt", "old");
    site.write("ringfence.toml", workspace);
    let config = site.root().join("user.toml");
    std::fs::write(&config, user).unwrap();
    let arguments = json!({"path": "old.txt", "content": "x".repeat(100)}).to_string();
    let said = site.run(&["--config", config.to_str().unwrap(), "call", "write_file", &arguments]);
    if said.code == Some(0) { "ok".to_owned() } else { said.error() }
}

#[test]
fn a_workspace_can_only_tighten() {
    let edits = "preset = \"edits\"\n";
    assert_eq!(write_outcome(edits, ""), "ok");
    // Stricter words hold.
    assert_eq!(write_outcome(edits, "preset = \"ask\""), "APPROVAL_DENIED");
    assert_eq!(write_outcome(edits, "preset = \"read-only\""), "PERMISSION_DENIED");
    assert_eq!(write_outcome(edits, "[limits]\nmax_write_bytes = 50"), "WRITE_LIMIT");
    assert_eq!(write_outcome(edits, "[tools]\ndeny = [\"write_file\"]"), "UNKNOWN_TOOL");
    assert_eq!(write_outcome(edits, "[tools]\nallow = [\"read_file\"]"), "UNKNOWN_TOOL");
    // Looser ones do not.
    assert_eq!(write_outcome("preset = \"ask\"", "preset = \"edits\""), "APPROVAL_DENIED");
    assert_eq!(write_outcome("preset = \"read-only\"", "preset = \"edits\""), "PERMISSION_DENIED");
    let tight = "preset = \"edits\"\n[limits]\nmax_write_bytes = 50\n";
    assert_eq!(write_outcome(tight, "[limits]\nmax_write_bytes = 1000"), "WRITE_LIMIT");
    let denied = "preset = \"edits\"\n[tools]\ndeny = [\"write_file\"]\n";
    assert_eq!(write_outcome(denied, "[tools]\nallow = [\"write_file\"]"), "UNKNOWN_TOOL");
    let few = "preset = \"edits\"\n[tools]\nallow = [\"read_file\"]\n";
    assert_eq!(write_outcome(few, "[tools]\nallow = [\"write_file\"]"), "UNKNOWN_TOOL");
}

#[test]
fn a_workspace_s_own_file_that_cannot_be_used_stops_everything_and_shows_no_host_path() {
    let told = |make: &dyn Fn(&TestSite), words: &[&str]| {
        let site = TestSite::new();
        make(&site);
        let said = site.run(&["call", "list_directory", r#"{"path":"."}"#]);
        assert_eq!((said.code, said.out.as_str()), (Some(2), ""), "{words:?}: {said:?}");
        for word in words.iter().chain([&"ringfence.toml"]) {
            assert!(said.err.contains(word), "it does not say {word:?}: {}", said.err);
        }
        assert!(!said.err.contains(site.root().to_str().unwrap()) && !said.err.contains("SECRET"), "{}", said.err);
    };
    let with = |text: &'static str| move |site: &TestSite| site.write("ringfence.toml", text);
    told(&with("dialect = \"miniclaw\""), &["dialect"]);
    told(&with("log = \"x\""), &["log"]);
    told(&with("durability = \"ordered\""), &["durability"]);
    told(&with("names = \"native\""), &["names"]);
    told(&with("[agents.defaults]\nworkspace = \"/\""), &["agents"]);
    told(&with("presett = \"ask\""), &["presett", "did you mean `preset`?", "line 1"]);
    told(&with("preset = \"yolo\""), &["yolo", "read-only"]);
    // Trusted or not, these are for others to say.
    told(&with("[approval]\nunattended = true"), &["approval"]);
    told(&with("[approval]\npause_after_denials = 9"), &["approval"]);
    told(&with("[mounts.x]\npath = \"/\""), &["mounts"]);
    told(&with("[tools]\ndeny = [\"red_file\"]"), &[]);
    told(&|site| site.write("ringfence.toml", vec![b'#'; (1 << 20) + 1]), &["1048576"]);
    told(&|site| site.write("ringfence.toml", b"preset = \"ask\"\0"), &["binary"]);
    told(&|site| site.write("ringfence.toml", b"# \xff\xfe"), &["UTF-8"]);
    told(&|site| symlink("../outside/secret", site.workspace.join("ringfence.toml")).unwrap(), &["outside"]);
    told(&|site| symlink(site.outside.join("secret"), site.workspace.join("ringfence.toml")).unwrap(), &[]);
    told(&|site| std::fs::create_dir(site.workspace.join("ringfence.toml")).unwrap(), &["directory"]);
}
