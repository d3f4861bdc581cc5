//! `install_package`, with the real package managers and registries on this machine's loopback.
//!
//! pnpm and uv are also found in `bin` of the directory that `RINGFENCE_PACKAGE_MANAGERS` names.

use std::path::{Path, PathBuf};
use std::process::Command;

use ringfence::app::{App, build_app};
use ringfence::config::{CliFlags, load};
use ringfence_kernel::{
    Approval, ApprovalDecision, ApprovalResponse, Approver, Assurance, Preset, Principal, ToolCall,
};
use ringfence_testkit::approver::ScriptedApprover;
use ringfence_testkit::requirement::{Requirement, skip_without};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::package_registry::{NpmRelease, RegistryServer};
use crate::project_tools::rust_toolchain;
use crate::site::TestSite;

/// A workspace whose registries are on the server.
pub(crate) struct InstallFixture {
    pub(crate) site: TestSite,
    pub(crate) registry: RegistryServer,
    preset: Preset,
}

impl InstallFixture {
    pub(crate) fn new() -> Self {
        Self { site: TestSite::new(), registry: RegistryServer::start(), preset: Preset::Edits }
    }

    fn config(&self) -> PathBuf {
        let config = self.site.root().join("config.toml");
        let registry =
            |name: &str, path: &str| format!("[project.registries.{name}]\nurl = \"{}\"\n", self.registry.url(path));
        let toolchains = match managers_directory() {
            Some(more) => rust_toolchain().replace("\"]\n", &format!("\", {more:?}]\n")),
            None => rust_toolchain(),
        };
        let text = format!(
            "{}[web]\nallow_private = [\"{}\"]\n{}{}{}",
            toolchains,
            self.registry.at,
            registry("cargo", "cargo/index/"),
            registry("npm", "npm/"),
            registry("python", "simple/"),
        );
        std::fs::write(&config, text).unwrap();
        config
    }

    pub(crate) fn app(&self, approver: Box<dyn Approver>) -> App {
        let environment = self.site.environment();
        let flags = CliFlags {
            config: Some(self.config()),
            workspace: Some(self.site.workspace.to_str().unwrap().to_owned()),
            toolsets: vec!["project".to_owned()],
            preset: Some(self.preset),
            ..CliFlags::default()
        };
        build_app(load(&flags, &environment).unwrap(), &environment, approver).unwrap()
    }

    pub(crate) fn install(&self, approver: &ScriptedApprover, arguments: &Value) -> Value {
        self.call(approver, "install_package", arguments)
    }

    pub(crate) fn call(&self, approver: &ScriptedApprover, tool: &str, arguments: &Value) -> Value {
        let app = self.app(Box::new(approver.clone()));
        let call = ToolCall { id: "1".to_owned(), name: tool.to_owned(), arguments: arguments.to_string() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let reply = runtime.block_on(app.host.call(&app.session, call, &CancellationToken::new())).unwrap();
        let reply: Value = serde_json::from_str(&reply.text).unwrap();
        assert!(!reply.to_string().contains(self.site.root().to_str().unwrap()), "{reply}");
        reply
    }

    pub(crate) fn text(&self, path: &str) -> String {
        std::fs::read_to_string(self.site.workspace.join(path)).unwrap_or_default()
    }
}

pub(crate) const PACKAGE_JSON: &str = "{\n  \"name\": \"app\",\n  \"version\": \"1.0.0\"\n}\n";

fn managers_directory() -> Option<PathBuf> {
    std::env::var_os("RINGFENCE_PACKAGE_MANAGERS").map(PathBuf::from)
}

/// Whether the jail has pnpm or uv.
fn has_manager(program: &str, requirement: Requirement) -> bool {
    let has = runs(program, &["--version"])
        || managers_directory().is_some_and(|directory| directory.join("bin").join(program).is_file());
    if !has {
        skip_without(requirement, &format!("the jail has no {program}"));
    }
    has
}

fn runs(program: &str, arguments: &[&str]) -> bool {
    // What the jail has, and not what the search path of the tests has.
    let program = Path::new("/usr/bin").join(program);
    Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
}

pub(crate) fn has_npm() -> bool {
    let has = runs("npm", &["--version"]);
    if !has {
        skip_without(Requirement::Npm, "the jail has no npm");
    }
    has
}

pub(crate) fn has_pip() -> bool {
    let has = runs("python3", &["-I", "-m", "pip", "--version"]) && runs("python3", &["-I", "-c", "import venv"]);
    if !has {
        skip_without(Requirement::Pip, "the jail has no pip");
    }
    has
}

/// Installs, checks what was shown and what changed, and undoes it.
#[track_caller]
fn check_sound(fixture: &InstallFixture, arguments: &Value, shown: &[&str], changed: &[&str]) -> Value {
    let before = fixture.site.tree();
    let denying = ScriptedApprover::denying();
    let reply = fixture.install(&denying, arguments);
    assert_eq!(reply["error"]["code"], "APPROVAL_DENIED", "{reply}");
    assert_eq!((denying.count(), fixture.site.tree()), (1, before.clone()), "{reply}");
    let preview = denying.last_request().preview.text();
    for part in shown {
        assert!(preview.contains(part), "no {part:?} in {preview}");
    }

    let approving = ScriptedApprover::approving();
    let reply = fixture.install(&approving, arguments);
    assert_eq!((&reply["ok"], approving.count()), (&json!(true), 1), "{reply}");
    let after = fixture.site.tree();
    let is_new = |(path, contents): &&(String, Option<Vec<u8>>)| {
        !before.iter().any(|(old, was)| old == path && was == contents) && !path.contains('/')
    };
    let paths: Vec<&str> = after.iter().filter(is_new).map(|(path, _)| path.as_str()).collect();
    assert_eq!(paths, changed, "{reply}");
    let value = reply["value"].clone();
    let undone = fixture.site.run(&["undo", value["change"].as_str().unwrap()]);
    assert_eq!(undone.code, Some(0), "{undone:?}");
    assert_eq!(fixture.site.tree(), before, "one undo brings everything back");
    value
}

#[test]
fn npm_packages_are_asked_about_installed_and_undone() {
    if !has_npm() {
        return;
    }
    let fixture = InstallFixture::new();
    let release = |manifest: Value| NpmRelease { manifest, ..NpmRelease::default() };
    fixture.registry.npm("sound", release(json!({"dependencies": {"helper": "^1"}, "bin": {"sound": "index.js"}})));
    fixture.registry.npm("helper", NpmRelease::default());
    fixture.site.write("package.json", PACKAGE_JSON);
    let shown = [
        "install sound 1.0.0 and 1 package that it depends on",
        "new packages: helper 1.0.0, sound 1.0.0",
        "+    \"sound\": \"^1.0.0\"",
        "package-lock.json",
    ];
    let value = check_sound(
        &fixture,
        &json!({"packages": ["sound"]}),
        &shown,
        &["node_modules", "package-lock.json", "package.json"],
    );
    assert_eq!(
        value["packages"],
        json!([{"name": "helper", "version": "1.0.0"}, {"name": "sound", "version": "1.0.0"}])
    );
    assert_eq!((&value["manager"], &value["directory"]), (&json!("npm"), &json!("node_modules")));
    let shown = ["+  \"devDependencies\": {", "sound\": \"1.0.0\""];
    check_sound(
        &fixture,
        &json!({"packages": "sound@=1.0.0", "dev": true}),
        &shown[..1],
        &["node_modules", "package-lock.json", "package.json"],
    );
}

const CARGO_TOML: &str = "[package]\nname = \"app\"\nversion = \"0.1.0\"\nedition = \"2021\"\n";

fn cargo_project(fixture: &InstallFixture) {
    fixture.site.write("Cargo.toml", CARGO_TOML);
    fixture.site.write("src/lib.rs", "");
}

#[test]
fn crates_are_asked_about_locked_and_undone() {
    let fixture = InstallFixture::new();
    fixture.registry.krate("sound", &["helper"], &[]);
    fixture.registry.krate("helper", &[], &[]);
    cargo_project(&fixture);
    let shown = [
        "install sound 1.0.0 and 1 package that it depends on",
        "+sound = \"1.0.0\"",
        "cargo has no minimum age of releases",
        "build scripts and macros of crates run when the project is built",
    ];
    let value = check_sound(&fixture, &json!({"packages": ["sound"]}), &shown, &["Cargo.lock", "Cargo.toml"]);
    assert_eq!(value.get("directory"), None);
    assert!(value["notes"][0].as_str().unwrap().contains("are not kept"), "{value}");
    assert!(fixture.registry.requests.lock().unwrap().contains(&"/cargo/dl/sound/1.0.0/download".to_owned()));
}

#[test]
fn python_packages_are_asked_about_installed_and_undone() {
    if !has_pip() {
        return;
    }
    let fixture = InstallFixture::new();
    fixture.registry.wheel("sound", &["helper>=1"], &[]);
    fixture.registry.wheel("helper", &[], &[]);
    fixture.site.write("requirements.in", "# What the program needs.\nhelper\n");
    let shown = [
        "install sound 1.0 and 1 package that it depends on",
        "+sound>=1",
        "+sound==1.0 \\",
        "--hash=sha256:",
        "`.venv` is made again from the lockfile",
    ];
    let value = check_sound(
        &fixture,
        &json!({"packages": ["sound>=1"]}),
        &shown,
        &[".venv", "requirements.in", "requirements.txt"],
    );
    assert_eq!((&value["manager"], &value["directory"]), (&json!("pip"), &json!(".venv")));
}

#[test]
fn pnpm_packages_are_asked_about_installed_and_undone() {
    if !has_npm() || !has_manager("pnpm", Requirement::Pnpm) {
        return;
    }
    let fixture = InstallFixture::new();
    let manifest = json!({"dependencies": {"helper": "^1"}});
    fixture.registry.npm("sound", NpmRelease { manifest, ..NpmRelease::default() });
    fixture.registry.npm("helper", NpmRelease::default());
    let published = "2999-01-01T00:00:00.000Z".to_owned();
    fixture.registry.npm("fresh", NpmRelease { published, ..NpmRelease::default() });
    fixture.site.write("package.json", PACKAGE_JSON);
    let arguments = json!({"packages": ["sound"], "manager": "pnpm"});
    let shown = [
        "install sound 1.0.0 and 1 package",
        "no release is younger than 7 days",
        "+    resolution: {integrity: sha512-",
    ];
    check_sound(&fixture, &arguments, &shown, &["node_modules", "package.json", "pnpm-lock.yaml"]);
    check_refused(&fixture, &json!({"packages": ["fresh"], "manager": "pnpm"}), "no release for fresh that fits");
    check_refused(
        &fixture,
        &json!({"packages": ["absent"], "manager": "pnpm"}),
        "the registry has no package `absent`",
    );
}

#[test]
fn uv_packages_are_asked_about_installed_and_undone() {
    if !has_manager("uv", Requirement::Uv) {
        return;
    }
    let fixture = InstallFixture::new();
    fixture.registry.wheel("sound", &["helper>=1"], &[]);
    fixture.registry.wheel("helper", &[], &[]);
    fixture
        .site
        .write("pyproject.toml", "[project]\nname = \"app\"\nversion = \"0.1.0\"\nrequires-python = \">=3.8\"\n");
    let shown = [
        "install sound 1.0 and 1 package",
        "no release is younger than 7 days",
        "+    \"sound>=1\",",
        "hash = \"sha256:",
    ];
    check_sound(&fixture, &json!({"packages": ["sound>=1"]}), &shown, &[".venv", "pyproject.toml", "uv.lock"]);
    check_refused(&fixture, &json!({"packages": ["absent"]}), "the registry has no package `absent`");
}

/// Refused without a question, and nothing changes.
#[track_caller]
fn check_refused(fixture: &InstallFixture, arguments: &Value, message: &str) {
    let (before, approver) = (fixture.site.tree(), ScriptedApprover::approving());
    let reply = fixture.install(&approver, arguments);
    assert!(reply["error"]["message"].as_str().unwrap_or_default().contains(message), "{reply}");
    assert_eq!((approver.count(), fixture.site.tree()), (0, before), "{reply}");
}

#[test]
fn what_is_installed_can_be_used() {
    if !has_npm() || !has_pip() {
        return;
    }
    let fixture = InstallFixture::new();
    fixture.registry.npm("sound", NpmRelease::default());
    fixture.registry.wheel("sound", &[], &[]);
    fixture.site.write("web/package.json", PACKAGE_JSON);
    fixture.site.write("tool/requirements.in", "");
    let approving = ScriptedApprover::approving();
    for directory in ["web", "tool"] {
        let reply = fixture.install(&approving, &json!({"packages": ["sound"], "directory": directory}));
        assert_eq!(reply["ok"], true, "{reply}");
    }
    let code = "cd web && node -e 'console.log(require(\"sound\"))' && cd ../tool && .venv/bin/python3 -c 'import sound; print(sound.x)'";
    let said = fixture.site.call("run_code", &json!({"code": code, "mode": "discard"})).value();
    assert_eq!(said["stdout"], "1\n1\n", "{said}");
    // Nothing is asked about what is there already.
    let denying = ScriptedApprover::denying();
    let reply = fixture.install(&denying, &json!({"packages": ["sound"], "directory": "tool"}));
    assert_eq!((&reply["ok"], denying.count()), (&json!(true), 0), "{reply}");
    assert_eq!(reply["value"].get("change"), None, "{reply}");
}

#[test]
fn a_manifest_that_changes_during_the_question_is_a_conflict() {
    if !has_npm() {
        return;
    }
    let fixture = InstallFixture::new();
    fixture.registry.npm("sound", NpmRelease::default());
    fixture.site.write("package.json", PACKAGE_JSON);
    let approving = ScriptedApprover::approving();
    let manifest = fixture.site.workspace.join("package.json");
    let other = PACKAGE_JSON.replace("1.0.0", "2.0.0");
    let written = other.clone();
    approving.before_answer(move || std::fs::write(manifest, written).unwrap());
    let reply = fixture.install(&approving, &json!({"packages": ["sound"]}));
    assert_eq!(reply["error"]["code"], "CONFLICT", "{reply}");
    assert_eq!((fixture.text("package.json"), fixture.site.tree().len()), (other, 1), "nothing else changed");
}

#[test]
fn an_answer_that_a_client_relays_does_not_install() {
    let fixture = InstallFixture::new();
    fixture.registry.krate("sound", &[], &[]);
    cargo_project(&fixture);
    let before = fixture.site.tree();
    let relayed = ApprovalDecision {
        response: ApprovalResponse { approved: true, ..ApprovalResponse::default() },
        approval: Approval { assurance: Assurance::Relayed, by: Some(Principal::person("client user")) },
    };
    let reply = fixture.install(&ScriptedApprover::always(relayed), &json!({"packages": ["sound"]}));
    assert_eq!(reply["error"]["code"], "APPROVAL_DENIED", "{reply}");
    assert_eq!(fixture.site.tree(), before);
}

#[test]
fn where_nothing_may_change_the_registry_is_not_asked() {
    let fixture = InstallFixture { preset: Preset::ReadOnly, ..InstallFixture::new() };
    fixture.registry.krate("sound", &[], &[]);
    cargo_project(&fixture);
    let reply = fixture.install(&ScriptedApprover::approving(), &json!({"packages": ["sound"]}));
    assert_eq!(reply["error"]["code"], "PERMISSION_DENIED", "{reply}");
    assert!(fixture.registry.requests.lock().unwrap().is_empty());
}

/// One question by a person's own channel is enough where overwriting is asked about as well.
#[test]
fn a_preset_that_asks_about_overwriting_adds_no_question() {
    let fixture = InstallFixture { preset: Preset::Ask, ..InstallFixture::new() };
    fixture.registry.krate("sound", &[], &[]);
    cargo_project(&fixture);
    let approver = ScriptedApprover::approving();
    let reply = fixture.install(&approver, &json!({"packages": ["sound"]}));
    assert_eq!(
        (&reply["ok"], approver.asked.lock().unwrap()[0].assurance),
        (&json!(true), Assurance::Person),
        "{reply}"
    );
}
