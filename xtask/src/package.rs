//! `cargo xtask package`: what people install, below `target/package`: an archive, a static one where this machine can build
//! it, a Debian package, and their checksums.
//!
//! Manual pages and completions are made by the program that is packed. A missing tool (the musl target, `musl-gcc`,
//! `cargo-deb`) is reported and its part left out, but for `cargo-deb`, which is installed below `target` on the first
//! run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{print_status, root, run_cargo};

const STATIC_TARGET: &str = "x86_64-unknown-linux-musl";
const CARGO_DEB: &str = "3.8.0";

/// The profile of `Cargo.toml` for what people install.
const PROFILE: &str = "dist";

/// Wanted size of the program, in bytes.
const TARGET_PROGRAM_BYTES: u64 = 16_000_000;

/// Largest program that is packed, in bytes: it may not grow on the way to its target.
const MAX_PROGRAM_BYTES: u64 = 20_000_000;

/// False if something that could be made was not.
pub(crate) fn package() -> bool {
    let dir = root().join("target/package");
    let _ = fs::remove_dir_all(&dir);
    let built = run_cargo(&["build", "--profile", PROFILE, "--locked", "--package", "ringfence"], &[]);
    let program = root().join("target").join(PROFILE).join("ringfence");
    if !built || !write_manual_and_completions(&program, &dir) {
        return false;
    }
    let here = std::env::consts::ARCH;
    let mut done = fits(&program) && archive(&dir, &program, &format!("{here}-linux-gnu"));
    match missing_for_static() {
        Some(missing) => print_status(&format!("no static build: {missing}")),
        None => {
            let target =
                ["build", "--profile", PROFILE, "--locked", "--package", "ringfence", "--target", STATIC_TARGET];
            let built = run_cargo(&target, &[("CC_x86_64_unknown_linux_musl", "musl-gcc")]);
            let program = root().join("target").join(STATIC_TARGET).join(PROFILE).join("ringfence");
            done = done && built && archive(&dir, &program, &format!("{here}-linux-static"));
        }
    }
    done && debian(&dir) && checksums(&dir)
}

/// Prints the size of the program. False if it is too large.
fn fits(program: &Path) -> bool {
    let size = match fs::metadata(program) {
        Ok(metadata) => metadata.len(),
        Err(error) => {
            print_status(&format!("no program to pack: {error}"));
            return false;
        }
    };
    let met = if size <= TARGET_PROGRAM_BYTES { "met" } else { "missed" };
    print_status(&format!("the program has {size} bytes, of at most {MAX_PROGRAM_BYTES}"));
    print_status(&format!("target {TARGET_PROGRAM_BYTES} bytes: {met}"));
    size <= MAX_PROGRAM_BYTES
}

/// The manual and the completions, where the packages take them from.
fn write_manual_and_completions(program: &Path, dir: &Path) -> bool {
    let (man, completions) = (dir.join("man"), dir.join("completions"));
    for directory in [&man, &completions] {
        if let Err(error) = fs::create_dir_all(directory) {
            print_status(&format!("cannot create a directory in target/package: {error}"));
            return false;
        }
    }
    let shells = [("bash", "ringfence"), ("zsh", "_ringfence"), ("fish", "ringfence.fish")];
    let completed = shells.iter().all(|(shell, file)| {
        let printed = Command::new(program).args(["completions", shell]).output();
        printed.is_ok_and(|printed_text| {
            printed_text.status.success() && fs::write(completions.join(file), printed_text.stdout).is_ok()
        })
    });
    completed && succeeds(Command::new(program).arg("man").arg(&man))
}

/// The program with what belongs to it, in one archive.
fn archive(dir: &Path, program: &Path, kind: &str) -> bool {
    let name = format!("ringfence-{}-{kind}", env!("CARGO_PKG_VERSION"));
    let directory = dir.join(&name);
    let files = [
        (program.to_owned(), "ringfence"),
        (root().join("README.md"), "README.md"),
        (root().join("LICENSE-MIT"), "LICENSE-MIT"),
        (root().join("LICENSE-APACHE"), "LICENSE-APACHE"),
        (root().join("config/ringfence.example.toml"), "ringfence.example.toml"),
        (root().join("packaging/ringfence.service"), "ringfence.service"),
    ];
    let copied = fs::create_dir_all(&directory).is_ok()
        && files.iter().all(|(from, to)| fs::copy(from, directory.join(to)).is_ok())
        && ["man", "completions"]
            .iter()
            .all(|from| succeeds(Command::new("cp").arg("-r").arg(dir.join(from)).arg(&directory)))
        && succeeds(Command::new("strip").arg(directory.join("ringfence")));
    let archive = format!("{name}.tar.gz");
    let packed = copied
        && succeeds(
            Command::new("tar")
                .args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "-czf", &archive, &name])
                .current_dir(dir),
        )
        && fs::remove_dir_all(&directory).is_ok();
    if packed {
        print_status(&format!("target/package/{archive}"));
    }
    packed
}

fn missing_for_static() -> Option<&'static str> {
    let installed = Command::new("rustup").args(["target", "list", "--installed"]).output();
    let installed =
        installed.map(|printed_text| String::from_utf8_lossy(&printed_text.stdout).into_owned()).unwrap_or_default();
    if !installed.lines().any(|target| target == STATIC_TARGET) {
        return Some("run `rustup target add x86_64-unknown-linux-musl` first");
    }
    let compiler = Command::new("musl-gcc").arg("--version").output();
    (!compiler.is_ok_and(|printed_text| printed_text.status.success()))
        .then_some("`musl-gcc` is missing (Debian's package musl-tools)")
}

/// A package for Debian, as `crates/ringfence/Cargo.toml` describes it.
fn debian(dir: &Path) -> bool {
    let tools = root().join("target/tools");
    let program: PathBuf = tools.join("bin/cargo-deb");
    if !program.exists() {
        let tools = tools.display().to_string();
        if !run_cargo(&["install", "--quiet", "--locked", "--root", &tools, "cargo-deb", "--version", CARGO_DEB], &[]) {
            print_status("no Debian package: cannot install `cargo-deb`");
            return true;
        }
    }
    let mut command = Command::new(program);
    command
        .args(["--no-build", "--profile", PROFILE, "--package", "ringfence", "--output"])
        .arg(dir)
        .current_dir(root());
    succeeds(&mut command)
}

fn checksums(dir: &Path) -> bool {
    let script = "sha256sum -- *.tar.gz *.deb 2>/dev/null > SHA256SUMS; cat SHA256SUMS; test -s SHA256SUMS";
    succeeds(Command::new("sh").args(["-c", script]).current_dir(dir))
}

fn succeeds(command: &mut Command) -> bool {
    match command.status() {
        Ok(status) if status.success() => true,
        Ok(status) => {
            print_status(&format!("{} failed: {status}", command.get_program().display()));
            false
        }
        Err(error) => {
            print_status(&format!("cannot run {}: {error}", command.get_program().display()));
            false
        }
    }
}
