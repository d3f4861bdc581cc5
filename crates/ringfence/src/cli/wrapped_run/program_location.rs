//! Program lookup: where the person's shell would find a program, and what of it the jail has to show.
//!
//! Programs of the system, of toolchains and of the workspace are there anyway. Others are shown with the package that they
//! belong to, read-only: the directory with `node_modules`, the virtual environment, or the directory of the file with the
//! libraries beside it. The interpreter of a script is shown the same way.
//!
//! Not here: toolchains (`ringfence-sandbox`).

use std::ffi::OsStr;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use ringfence_sandbox::Toolchain;

/// Directories that every jail shows.
const SYSTEM_DIRECTORIES: [&str; 6] = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/nix/store"];

/// Most links that lead from the name of a program to its file.
const MOST_LINKS: usize = 16;

/// A script, its interpreter, and that one's.
const MOST_INTERPRETERS: usize = 4;

/// A program that was found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ProgramLocation {
    pub(crate) path: PathBuf,
    /// Directories that have to be shown for it.
    pub(crate) packages: Vec<Toolchain>,
}

/// A program that cannot be run.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProgramLookupError {
    #[error("program `{0}` not found on your PATH; check its name, or give its path")]
    NotFound(String),
    #[error("`{0}` is not an executable file")]
    NotExecutable(String),
    #[error(
        "`{0}` lies directly in a directory that may not be shown to programs; install it in a directory of its own, such as \
         `~/.local/bin`"
    )]
    Exposed(String),
}

/// What the lookup knows of the person's machine.
#[derive(Debug)]
pub(crate) struct ProgramSearch<'a> {
    /// Value of the person's `PATH`.
    pub(crate) path: &'a OsStr,
    pub(crate) current: &'a Path,
    pub(crate) home: &'a Path,
    pub(crate) workspace: &'a Path,
    /// Toolchains that the jail shows.
    pub(crate) toolchains: &'a [Toolchain],
}

impl ProgramSearch<'_> {
    pub(crate) fn find(&self, program: &str) -> Result<ProgramLocation, ProgramLookupError> {
        let path = self.path_of(program)?;
        let mut shown: Vec<PathBuf> = Vec::new();
        // The program, and what interprets it.
        let mut left = vec![path.clone()];
        for _ in 0..MOST_INTERPRETERS {
            let Some(next) = left.pop() else { break };
            for step in link_chain(&next) {
                if self.is_shown(&step) || shown.iter().any(|package| step.starts_with(package)) {
                    continue;
                }
                let parts = package_of(&step);
                if parts.is_empty() || parts.iter().any(|root| self.is_private(root)) {
                    return Err(ProgramLookupError::Exposed(program.to_owned()));
                }
                shown.extend(parts);
            }
            left.extend(self.interpreter_of(&next));
        }
        let packages = shown.iter().map(|root| program_toolchain(root, &path)).collect();
        Ok(ProgramLocation { path, packages })
    }

    /// Whether a toolchain that the jail shows has this program.
    pub(crate) fn is_in_toolchain(&self, program: &str) -> bool {
        self.toolchains.iter().flat_map(|toolchain| &toolchain.path).any(|path| is_executable(&path.join(program)))
    }

    /// Whether a directory holds more than programs: the home directory and the workspace are below it.
    fn is_private(&self, root: &Path) -> bool {
        root.parent().is_none() || self.home.starts_with(root) || self.workspace.starts_with(root)
    }

    /// What runs a script: the program of its first line, or the one that `env` finds for it.
    fn interpreter_of(&self, script: &Path) -> Option<PathBuf> {
        const LONGEST_LINE: u64 = 256;
        let mut start = Vec::new();
        std::fs::File::open(script).ok()?.take(LONGEST_LINE).read_to_end(&mut start).ok()?;
        let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
        let mut words = std::str::from_utf8(line).ok()?.split_whitespace();
        let interpreter = Path::new(words.next()?);
        if interpreter.file_name() != Some(OsStr::new("env")) {
            return Some(interpreter.to_owned());
        }
        let named = words.find(|word| !word.starts_with('-') && !word.contains('='))?;
        self.path_of(named).ok()
    }

    fn path_of(&self, program: &str) -> Result<PathBuf, ProgramLookupError> {
        if program.contains('/') {
            let path = self.current.join(program);
            return match std::fs::metadata(&path) {
                Ok(_) if is_executable(&path) => Ok(normal(&path)),
                Ok(_) => Err(ProgramLookupError::NotExecutable(program.to_owned())),
                Err(_) => Err(ProgramLookupError::NotFound(program.to_owned())),
            };
        }
        let directories = std::env::split_paths(self.path).filter(|directory| directory.is_absolute());
        let found = directories.map(|directory| directory.join(program)).find(|path| is_executable(path));
        found.ok_or_else(|| ProgramLookupError::NotFound(program.to_owned()))
    }

    fn is_shown(&self, path: &Path) -> bool {
        let shown = self.toolchains.iter().flat_map(|toolchain| &toolchain.shown);
        SYSTEM_DIRECTORIES.iter().any(|directory| path.starts_with(directory))
            || path.starts_with(self.workspace)
            || shown.into_iter().any(|directory| path.starts_with(directory))
    }
}

fn is_executable(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Without `.` and `..`, which are taken by their names: links are followed later.
fn normal(path: &Path) -> PathBuf {
    let mut parts = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::CurDir => {}
            std::path::Component::ParentDir => drop(parts.pop()),
            other => parts.push(other),
        }
    }
    parts
}

/// The path, and each path that a link leads to, up to the file itself.
fn link_chain(path: &Path) -> Vec<PathBuf> {
    let mut chain = vec![path.to_owned()];
    for _ in 0..MOST_LINKS {
        let Some(last) = chain.last() else { break };
        let (Ok(target), Some(parent)) = (std::fs::read_link(last), last.parent()) else { break };
        chain.push(normal(&parent.join(target)));
    }
    // Directories above may be links too.
    chain.extend(std::fs::canonicalize(path).ok());
    chain
}

/// The directories that hold a program with what it needs. None if it is at the root.
fn package_of(path: &Path) -> Vec<PathBuf> {
    let outermost = path.ancestors().filter(|above| above.file_name() == Some(OsStr::new("node_modules"))).last();
    if let Some(modules) = outermost {
        return vec![modules.to_owned()];
    }
    let Some(directory) = path.parent() else { return Vec::new() };
    let above = directory.parent().filter(|_| directory.file_name() == Some(OsStr::new("bin")));
    match above {
        Some(environment) if environment.join("pyvenv.cfg").is_file() => vec![environment.to_owned()],
        // An installation: what its programs load lies beside them.
        Some(prefix) => {
            let beside =
                ["lib", "lib64", "libexec"].map(|name| prefix.join(name)).into_iter().filter(|path| path.is_dir());
            std::iter::once(directory.to_owned()).chain(beside).collect()
        }
        None => vec![directory.to_owned()],
    }
}

fn program_toolchain(root: &Path, program: &Path) -> Toolchain {
    let directory = program.parent().filter(|directory| directory.starts_with(root));
    Toolchain {
        name: root.display().to_string(),
        shown: vec![root.to_owned()],
        path: directory.map(Path::to_owned).into_iter().collect(),
        env: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn program(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "#!/bin/sh\n").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new() -> Self {
            let machine = Self(tempfile::tempdir().unwrap());
            fs::create_dir_all(machine.at("home/project")).unwrap();
            machine
        }

        fn at(&self, path: &str) -> PathBuf {
            fs::canonicalize(self.0.path()).unwrap().join(path)
        }

        fn find(&self, path: &str, name: &str) -> Result<(PathBuf, Vec<PathBuf>), ProgramLookupError> {
            let (home, workspace) = (self.at("home"), self.at("home/project"));
            let path = self.at(path);
            let search = ProgramSearch {
                path: path.as_os_str(),
                current: &workspace,
                home: &home,
                workspace: &workspace,
                toolchains: &[],
            };
            let found = search.find(name)?;
            Ok((found.path, found.packages.into_iter().flat_map(|package| package.shown).collect()))
        }
    }

    #[test]
    fn a_program_is_shown_with_its_package() {
        let machine = Machine::new();
        program(&machine.at("home/lib/node_modules/@x/agent/cli"));
        fs::create_dir_all(machine.at("home/npm/bin")).unwrap();
        symlink("../../lib/node_modules/@x/agent/cli", machine.at("home/npm/bin/agent")).unwrap();
        program(&machine.at("home/venv/bin/aider"));
        fs::write(machine.at("home/venv/pyvenv.cfg"), "").unwrap();
        program(&machine.at("home/project/tool"));
        program(&machine.at("home/python/bin/python3"));
        fs::create_dir_all(machine.at("home/python/lib")).unwrap();
        let script = format!("#!{}\n", machine.at("home/python/bin/python3").display());
        fs::write(machine.at("home/venv/bin/aider"), script).unwrap();
        let shown = |path: &str, name: &str| machine.find(path, name).map(|(_, shown)| shown);
        assert_eq!(
            shown("home/npm/bin", "agent"),
            Ok(vec![machine.at("home/npm/bin"), machine.at("home/lib/node_modules")])
        );
        assert_eq!(
            shown("home/venv/bin", "aider"),
            Ok(["venv", "python/bin", "python/lib"].map(|part| machine.at("home").join(part)).to_vec())
        );
        assert_eq!(machine.find("", "./tool"), Ok((machine.at("home/project/tool"), Vec::new())));
    }

    #[test]
    fn a_program_beside_private_files_is_refused() {
        let machine = Machine::new();
        program(&machine.at("home/agent"));
        program(&machine.at("agent"));
        assert_eq!(machine.find("home", "agent"), Err(ProgramLookupError::Exposed("agent".to_owned())));
        assert_eq!(machine.find("", "agent"), Err(ProgramLookupError::Exposed("agent".to_owned())));
        assert_eq!(machine.find("home", "absent"), Err(ProgramLookupError::NotFound("absent".to_owned())));
        fs::write(machine.at("home/project/data"), "").unwrap();
        assert_eq!(machine.find("", "./data"), Err(ProgramLookupError::NotExecutable("./data".to_owned())));
    }
}
