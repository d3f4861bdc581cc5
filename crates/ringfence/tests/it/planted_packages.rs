//! Packages and projects that want to run something or to bring something in by `install_package`.
//!
//! Each script would leave a file in the workspace, and ask the registry for a path of its own: neither may ever be seen.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;

use ringfence_testkit::approver::ScriptedApprover;
use ringfence_testkit::requirement::print_note;
use serde_json::{Value, json};

use crate::install_package::{InstallFixture, PACKAGE_JSON, has_npm, has_pip};
use crate::package_registry::{ArchiveEntry, NpmRelease, tar_gz};

/// Name of the file that a script that runs leaves.
const RAN: &str = "RAN";

/// Path that a script that runs asks the registry for.
const RAN_REQUEST: &str = "/ran";

/// Later than any test.
const TOO_NEW: &str = "2999-01-01T00:00:00.000Z";

/// What becomes of a planted package. Every question is approved.
enum Planted {
    /// No question: the code and a part of the message.
    Refused(&'static str, &'static str),
    /// A question with this in it, and then installed without what is wrong about it.
    Harmless(&'static str),
    /// A question, and then an error with this in it. Nothing is changed.
    Failed(&'static str),
}

struct PlantedPackage {
    name: &'static str,
    plant: fn(&InstallFixture, &ScriptedApprover),
    arguments: Value,
    expected: Planted,
}

/// A command that says that it ran.
fn script(fixture: &InstallFixture) -> String {
    format!(
        "touch /workspace/{RAN} {RAN}; node -e \"require('http').get('{}')\"",
        fixture.registry.url(&RAN_REQUEST[1..])
    )
}

fn npm_with(fixture: &InstallFixture, manifest: Value) {
    fixture.site.write("package.json", PACKAGE_JSON);
    fixture.registry.npm("planted", NpmRelease { manifest, ..NpmRelease::default() });
}

fn npm_script(fixture: &InstallFixture, when: &str) {
    npm_with(fixture, json!({"scripts": {when: script(fixture)}}));
}

/// A program of the project that says that it ran.
fn write_program(fixture: &InstallFixture, path: &str) {
    fixture.site.write(path, format!("#!/bin/sh\n{}\n", script(fixture)));
    std::fs::set_permissions(fixture.site.workspace.join(path), std::fs::Permissions::from_mode(0o755)).unwrap();
}

fn cargo_project(fixture: &InstallFixture) {
    fixture.site.write("Cargo.toml", "[package]\nname = \"app\"\nversion = \"0.1.0\"\nedition = \"2021\"\n");
    fixture.site.write("src/lib.rs", "");
}

fn python_project(fixture: &InstallFixture) {
    fixture.site.write("requirements.in", "");
}

/// A registry that nothing may connect to.
fn decoy() -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let at = listener.local_addr().unwrap();
    // Closed again: a connection would fail, and so would the installation.
    format!("http://{at}/")
}

fn npm_packages() -> Vec<PlantedPackage> {
    let planted = || json!({"packages": ["planted"]});
    let package = |name, plant, expected| PlantedPackage { name, plant, arguments: planted(), expected };
    let named = |name, text: &str, message| PlantedPackage {
        name,
        plant: |fixture, _| npm_with(fixture, json!({})),
        arguments: json!({"packages": [text]}),
        expected: Planted::Refused("INVALID_ARGS", message),
    };
    let scripts = "install scripts that do not run: planted 1.0.0";
    vec![
        package("postinstall", |fixture, _| npm_script(fixture, "postinstall"), Planted::Harmless(scripts)),
        package("preinstall", |fixture, _| npm_script(fixture, "preinstall"), Planted::Harmless(scripts)),
        package("install script", |fixture, _| npm_script(fixture, "install"), Planted::Harmless(scripts)),
        package("prepare", |fixture, _| npm_script(fixture, "prepare"), Planted::Harmless("planted 1.0.0")),
        package(
            "script of the project",
            |fixture, _| {
                npm_with(fixture, json!({}));
                let scripts = ["preinstall", "install", "postinstall", "prepare", "dependencies"];
                let scripts: serde_json::Map<String, Value> =
                    scripts.iter().map(|name| ((*name).to_owned(), json!(script(fixture)))).collect();
                fixture
                    .site
                    .write("package.json", json!({"name": "app", "version": "1.0.0", "scripts": scripts}).to_string());
            },
            Planted::Harmless("planted 1.0.0"),
        ),
        package(
            "install script of a dependency",
            |fixture, _| {
                npm_with(fixture, json!({"dependencies": {"below": "*"}}));
                let manifest = json!({"scripts": {"postinstall": script(fixture)}});
                fixture.registry.npm("below", NpmRelease { manifest, ..NpmRelease::default() });
            },
            Planted::Harmless("install scripts that do not run: below 1.0.0"),
        ),
        package(
            "node-gyp build",
            |fixture, _| {
                fixture.site.write("package.json", PACKAGE_JSON);
                let entries = [ArchiveEntry::File("package/binding.gyp", "{'targets': [{'actions': ['touch RAN']}]}")];
                fixture.registry.npm_files("planted", NpmRelease::default(), &entries);
            },
            Planted::Harmless("planted 1.0.0"),
        ),
        package(
            "path traversal",
            |fixture, _| {
                fixture.site.write("package.json", PACKAGE_JSON);
                let entries = [
                    ArchiveEntry::File("package/../../../OUT", "x"),
                    ArchiveEntry::File("package/../../../../OUT", "x"),
                    ArchiveEntry::File("/workspace/OUT", "x"),
                ];
                fixture.registry.npm_files("planted", NpmRelease::default(), &entries);
            },
            Planted::Harmless("planted 1.0.0"),
        ),
        package(
            "symlinks that lead out",
            |fixture, _| {
                fixture.site.write("package.json", PACKAGE_JSON);
                let entries = [
                    ArchiveEntry::Link("package/out", "/workspace"),
                    ArchiveEntry::File("package/out/OUT", "x"),
                    ArchiveEntry::Link("package/up", "../.."),
                    ArchiveEntry::File("package/up/OUT", "x"),
                ];
                fixture.registry.npm_files("planted", NpmRelease::default(), &entries);
            },
            Planted::Harmless("planted 1.0.0"),
        ),
        package(
            "archive on another host",
            |fixture, _| {
                fixture.site.write("package.json", PACKAGE_JSON);
                let tarball = Some("http://127.0.0.1:1/planted.tgz".to_owned());
                fixture.registry.npm("planted", NpmRelease { tarball, ..NpmRelease::default() });
            },
            Planted::Refused(
                "PERMISSION_DENIED",
                "`planted` does not come from the registry, but from `http://127.0.0.1:1/",
            ),
        ),
        package(
            "wrong digest",
            |fixture, _| {
                fixture.site.write("package.json", PACKAGE_JSON);
                let integrity = Some(format!("sha512-{}==", "A".repeat(86)));
                fixture.registry.npm("planted", NpmRelease { integrity, ..NpmRelease::default() });
            },
            Planted::Failed("npm exited with 1"),
        ),
        package(
            "weak digest",
            |fixture, _| {
                fixture.site.write("package.json", PACKAGE_JSON);
                let integrity = Some("sha1-2jmj7l5rSw0yVb/vlWAYkK/YBwk=".to_owned());
                fixture.registry.npm("planted", NpmRelease { integrity, ..NpmRelease::default() });
            },
            Planted::Refused("PERMISSION_DENIED", "`planted` has no digest"),
        ),
        PlantedPackage {
            name: "lookalike name",
            plant: |fixture, _| {
                fixture.site.write("package.json", PACKAGE_JSON);
                fixture.registry.npm("lodahs", NpmRelease::default());
            },
            arguments: json!({"packages": ["lodahs"]}),
            expected: Planted::Harmless("check the name: `lodahs` looks like the well-known `lodash`"),
        },
        PlantedPackage {
            name: "invented name",
            plant: |fixture, _| fixture.site.write("package.json", PACKAGE_JSON),
            arguments: json!({"packages": ["invented-by-a-model"]}),
            expected: Planted::Refused("FILE_NOT_FOUND", "the registry has no package `invented-by-a-model`"),
        },
        named("option as a name", "--registry=http://127.0.0.1:1/", "must not begin with `-`"),
        named("git repository as a name", "git+https://git.example/planted.git", "names of packages of the registry"),
        named("path as a name", "file:../planted", "names of packages of the registry"),
        named("alias", "planted@npm:evil@1", "has a version that is not one of the registry"),
        package(
            "git dependency",
            |fixture, _| npm_with(fixture, json!({"dependencies": {"below": "git+https://127.0.0.1:1/below.git"}})),
            Planted::Refused("EXECUTION_ERROR", "npm exited with"),
        ),
        package(
            "file dependency",
            |fixture, _| {
                fixture.site.write("secret/package.json", "{\"name\": \"below\", \"version\": \"1.0.0\"}");
                npm_with(fixture, json!({"dependencies": {"below": "file:../../secret"}}));
            },
            Planted::Refused("PERMISSION_DENIED", "`below` does not come from the registry"),
        ),
        package(
            "commands that lie elsewhere",
            |fixture, _| {
                let bin = json!({"../../OUT": "index.js", "/workspace/OUT": "index.js", "a/../../../OUT": "../../OUT"});
                npm_with(fixture, json!({"bin": bin}));
            },
            Planted::Harmless("planted 1.0.0"),
        ),
        package(
            "other bytes after the question",
            |fixture, approver| {
                npm_with(fixture, json!({}));
                let other = tar_gz(&[ArchiveEntry::File("package/index.js", "evil")]);
                let replace = fixture.registry.replace_later("/npm/planted/-/planted-1.0.0.tgz", other);
                approver.before_answer(replace);
            },
            Planted::Failed("npm exited with 1"),
        ),
        package(
            "release of today",
            |fixture, _| {
                fixture.site.write("package.json", PACKAGE_JSON);
                fixture.registry.npm("planted", NpmRelease { published: TOO_NEW.to_owned(), ..NpmRelease::default() });
            },
            Planted::Refused("FILE_NOT_FOUND", "no release for planted that fits and is at least 7 days old"),
        ),
        package(
            ".npmrc with another registry",
            |fixture, _| {
                npm_with(fixture, json!({}));
                let decoy = decoy();
                fixture.site.write(
                    ".npmrc",
                    format!("registry={decoy}\nignore-scripts=false\nscript-shell=/workspace/evil.sh\ngit=/workspace/evil.sh\n\
                             node-options=--require=/workspace/evil.js\nproxy={decoy}\nmin-release-age=0\n"),
                );
                write_program(fixture, "evil.sh");
                fixture.site.write("evil.js", "require('fs').writeFileSync('/workspace/RAN', '')");
            },
            Planted::Harmless("planted 1.0.0"),
        ),
    ]
}

fn python_packages() -> Vec<PlantedPackage> {
    let planted = || json!({"packages": ["planted"]});
    let package = |name, plant, expected| PlantedPackage { name, plant, arguments: planted(), expected };
    vec![
        package(
            "setup.py without a wheel",
            |fixture, _| {
                python_project(fixture);
                let text = format!("import os\nos.system({:?})\n", script(fixture));
                let metadata = "Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n";
                let entries = [
                    ArchiveEntry::File("planted-1.0/setup.py", &text),
                    ArchiveEntry::File("planted-1.0/PKG-INFO", metadata),
                ];
                fixture.registry.python_file("planted", "planted-1.0.tar.gz", tar_gz(&entries));
            },
            Planted::Refused("FILE_NOT_FOUND", "no release for planted that fits and is a wheel"),
        ),
        package(
            "invented Python name",
            |fixture, _| python_project(fixture),
            Planted::Refused("FILE_NOT_FOUND", "the registry has no package `planted`"),
        ),
        package(
            "wheel with path traversal",
            |fixture, _| {
                python_project(fixture);
                fixture.registry.wheel("planted", &[], &[("../../../../../OUT", "x")]);
            },
            Planted::Failed("pip exited with"),
        ),
        package(
            "wheel with a script in the place of another program",
            |fixture, _| {
                python_project(fixture);
                let scripts = "[console_scripts]\n../../OUT = planted:x\n";
                fixture.registry.wheel("planted", &[], &[("planted-1.0.dist-info/entry_points.txt", scripts)]);
            },
            Planted::Harmless("planted 1.0"),
        ),
        package(
            "wheel that changes after the question",
            |fixture, approver| {
                python_project(fixture);
                fixture.registry.wheel("planted", &[], &[]);
                let path = "/files/planted-1.0-py3-none-any.whl";
                let mut other = fixture.registry.get(path);
                other.extend(b"evil");
                approver.before_answer(fixture.registry.replace_later(path, other));
            },
            Planted::Failed("pip exited with"),
        ),
        package(
            "settings and modules of pip in the project",
            |fixture, _| {
                python_project(fixture);
                fixture.registry.wheel("planted", &[], &[]);
                let decoy = decoy();
                for path in ["pip.conf", ".venv/pip.conf", ".config/pip/pip.conf"] {
                    fixture.site.write(path, format!("[global]\nindex-url = {decoy}\nextra-index-url = {decoy}\n"));
                }
                let code = format!("import os\nos.system({:?})\n", script(fixture));
                for path in ["pip.py", "pip/__main__.py", "venv.py", "json.py", "sitecustomize.py", "usercustomize.py"]
                {
                    fixture.site.write(path, &code);
                }
                write_program(fixture, ".venv/bin/python3");
                write_program(fixture, ".venv/bin/python");
            },
            Planted::Harmless("planted 1.0"),
        ),
        package(
            "list of requirements with another index",
            |fixture, _| fixture.site.write("requirements.in", "--extra-index-url http://127.0.0.1:1/\nplanted\n"),
            Planted::Refused("UNAVAILABLE", "has a line that is not a package of the registry: `--extra-index-url"),
        ),
        package(
            "URL in the list of requirements",
            |fixture, _| fixture.site.write("requirements.in", "below @ http://127.0.0.1:1/below.whl\n"),
            Planted::Refused("UNAVAILABLE", "has a line that is not a package of the registry: `below @"),
        ),
    ]
}

fn cargo_packages() -> Vec<PlantedPackage> {
    let planted = || json!({"packages": ["planted"]});
    let package = |name, plant, expected| PlantedPackage { name, plant, arguments: planted(), expected };
    vec![
        package(
            "build script",
            |fixture, _| {
                cargo_project(fixture);
                let code = format!(
                    "fn main() {{ std::process::Command::new(\"sh\").args([\"-c\", {:?}]).status(); }}",
                    script(fixture)
                );
                fixture.registry.krate("planted", &[], &[ArchiveEntry::File("planted-1.0.0/build.rs", &code)]);
            },
            Planted::Harmless(
                "build scripts and macros of crates run when the project is built, which is in the sandbox",
            ),
        ),
        package(
            "invented crate",
            |fixture, _| cargo_project(fixture),
            Planted::Refused("FILE_NOT_FOUND", "the registry has no package `planted`"),
        ),
        package(
            "crate that changes after the question",
            |fixture, approver| {
                cargo_project(fixture);
                fixture.registry.krate("planted", &[], &[]);
                let path = "/cargo/dl/planted/1.0.0/download";
                let mut other = fixture.registry.get(path);
                other.extend(b"evil");
                approver.before_answer(fixture.registry.replace_later(path, other));
            },
            Planted::Failed("cargo exited with 101"),
        ),
        package(
            "crate with files outside of its directory",
            |fixture, _| {
                cargo_project(fixture);
                let entries = [ArchiveEntry::File("planted-1.0.0/../../../OUT", "x")];
                fixture.registry.krate("planted", &[], &entries);
            },
            Planted::Harmless("planted 1.0.0"),
        ),
        package(
            ".cargo/config.toml with another source",
            |fixture, _| {
                cargo_project(fixture);
                fixture.registry.krate("planted", &[], &[]);
                let decoy = decoy();
                fixture.site.write(
                    ".cargo/config.toml",
                    format!(
                        "[source.crates-io]\nreplace-with = \"evil\"\n[source.evil]\nregistry = \"sparse+{decoy}\"\n[build]\n\
                         rustc = \"/workspace/evil.sh\"\nrustc-wrapper = \"/workspace/evil.sh\"\n[registry]\n\
                         global-credential-providers = [\"/workspace/evil.sh\"]\n[http]\nproxy = \"{decoy}\"\n[alias]\n\
                         add = \"run\"\n[net]\ngit-fetch-with-cli = true\n"
                    ),
                );
                write_program(fixture, "evil.sh");
            },
            Planted::Harmless("planted 1.0.0"),
        ),
        package(
            "toolchain of the project",
            |fixture, _| {
                cargo_project(fixture);
                fixture.site.write("rust-toolchain.toml", "[toolchain]\npath = \"evil\"\n");
                write_program(fixture, "evil/bin/cargo");
            },
            Planted::Refused("UNAVAILABLE", "`rust-toolchain.toml` names no channel"),
        ),
    ]
}

/// Checks one, and returns what is wrong.
fn check(planted: &PlantedPackage) -> Result<(), String> {
    let fixture = InstallFixture::new();
    let approver = ScriptedApprover::approving();
    (planted.plant)(&fixture, &approver);
    let before = fixture.site.tree();
    let reply = fixture.install(&approver, &planted.arguments);
    let wrong = |what: &str| Err(format!("{}: {what}: {reply}", planted.name));
    let (code, message) = (reply["error"]["code"].as_str(), reply["error"]["message"].as_str().unwrap_or_default());
    let (asked, after) = (approver.count(), fixture.site.tree());
    match planted.expected {
        Planted::Refused(expected, part) => {
            if code != Some(expected) || !message.contains(part) {
                return wrong("not refused");
            }
            if asked != 0 || after != before {
                return wrong("asked about, or something changed");
            }
        }
        Planted::Harmless(part) => {
            if reply["ok"] != true {
                return wrong("not installed");
            }
            let shown = approver.asked.lock().unwrap().first().map(|asked| asked.preview.text()).unwrap_or_default();
            if !shown.contains(part) {
                return wrong(&format!("not shown: {shown}"));
            }
        }
        Planted::Failed(part) => {
            if asked != 1 || code.is_none() || !message.contains(part) || after != before {
                return wrong("not asked about, or installed");
            }
        }
    }
    let is_allowed = |path: &str| {
        let names =
            ["package.json", "package-lock.json", "Cargo.toml", "Cargo.lock", "requirements.in", "requirements.txt"];
        let directory = path.split('/').next().unwrap_or_default();
        names.contains(&path) || ["node_modules", ".venv"].contains(&directory)
    };
    let other = after.iter().filter(|entry| !before.contains(entry)).find(|(path, _)| !is_allowed(path));
    if let Some((path, _)) = other {
        return wrong(&format!("`{path}` changed"));
    }
    let ran_file = after.iter().any(|(path, _)| path.rsplit('/').next() == Some(RAN));
    let ran_request = fixture.registry.requests.lock().unwrap().iter().any(|path| path == RAN_REQUEST);
    if ran_file || ran_request {
        return wrong("a script ran");
    }
    Ok(())
}

/// The control: without the tool, the script does what the other test looks for.
#[test]
fn a_planted_script_runs_where_nothing_stops_it() {
    if !has_npm() {
        return;
    }
    let fixture = InstallFixture::new();
    npm_script(&fixture, "postinstall");
    let command = format!("npm install planted --registry={}", fixture.registry.url("npm/"));
    let arguments = json!({"code": command, "network": [fixture.registry.at.to_string()]});
    let reply = fixture.call(&ScriptedApprover::approving(), "run_code", &arguments);
    assert_eq!((&reply["ok"], &reply["value"]["exitCode"]), (&json!(true), &json!(0)), "{reply}");
    assert!(fixture.site.workspace.join(RAN).exists(), "{reply}");
    assert!(fixture.registry.requests.lock().unwrap().iter().any(|path| path == RAN_REQUEST), "{reply}");
}

#[test]
fn planted_packages_run_nothing_and_are_asked_about_or_refused() {
    let mut planted = cargo_packages();
    if has_npm() {
        planted.extend(npm_packages());
    }
    if has_pip() {
        planted.extend(python_packages());
    }
    let wrong: Vec<String> = planted.iter().filter_map(|planted| check(planted).err()).collect();
    let total = planted.len();
    print_note(&format!("planted packages: {} of {total}: no script ran, all asked or refused", total - wrong.len()));
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
