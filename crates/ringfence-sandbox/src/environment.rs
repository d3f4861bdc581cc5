//! Environment variables of a run.
//!
//! It is made here and nothing of ours is inherited, so that no token of the server's is ever in it. A caller's variables
//! are laid over it, except those that make loaders and interpreters do something before the caller's code starts: they
//! could not get out of the jail either, but the run would not be what was asked for.
//!
//! Not here: what a tool sets for its language. It comes with the caller's variables.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::etc;
use crate::toolchains::Toolchain;
use crate::wrapped_environment::WrappedUser;

/// Inside the jail; made with the mount of `/tmp`.
pub(crate) const HOME: &str = "/tmp/home";

pub(crate) const SYSTEM_PATH: [&str; 6] =
    ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

const BASE_VARIABLES: [(&str, &str); 20] = [
    // Reading a repository does not write to it, and git does not repack it by itself. The owner of files is another number
    // inside than in the index, which must not mean that git reads each of them.
    ("GIT_OPTIONAL_LOCKS", "0"),
    ("GIT_CONFIG_COUNT", "3"),
    ("GIT_CONFIG_KEY_0", "gc.auto"),
    ("GIT_CONFIG_VALUE_0", "0"),
    ("GIT_CONFIG_KEY_1", "maintenance.auto"),
    ("GIT_CONFIG_VALUE_1", "0"),
    ("GIT_CONFIG_KEY_2", "core.checkStat"),
    ("GIT_CONFIG_VALUE_2", "minimal"),
    ("HOME", HOME),
    ("USER", etc::USER),
    ("LOGNAME", etc::USER),
    ("SHELL", "/bin/sh"),
    ("LANG", "C.UTF-8"),
    ("TERM", "dumb"),
    ("TMPDIR", "/tmp"),
    // Bytecode is not a change of the workspace.
    ("PYTHONDONTWRITEBYTECODE", "1"),
    ("XDG_CACHE_HOME", "/tmp/cache"),
    ("npm_config_cache", "/tmp/npm"),
    ("npm_config_update_notifier", "false"),
    ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
];

/// The longest string that the kernel takes in an environment, and what we take altogether.
const MAX_VALUE_BYTES: usize = 128 << 10;
const MAX_TOTAL_BYTES: usize = 1 << 20;

/// Names that a caller may not set, and why. A star stands for any ending.
const DENIED_VARIABLES: [(&str, EnvDenyReason); 31] = [
    ("LD_*", EnvDenyReason::Loader),
    ("GLIBC_TUNABLES", EnvDenyReason::Loader),
    ("GCONV_PATH", EnvDenyReason::Loader),
    ("BASH_ENV", EnvDenyReason::Startup),
    ("ENV", EnvDenyReason::Startup),
    ("BASHOPTS", EnvDenyReason::Startup),
    ("SHELLOPTS", EnvDenyReason::Startup),
    ("PYTHONHOME", EnvDenyReason::Startup),
    ("PYTHONSTARTUP", EnvDenyReason::Startup),
    ("PYTHONINSPECT", EnvDenyReason::Startup),
    ("PYTHONPLATLIBDIR", EnvDenyReason::Startup),
    ("NODE_OPTIONS", EnvDenyReason::Startup),
    ("PERL5OPT", EnvDenyReason::Startup),
    ("PERL5DB", EnvDenyReason::Startup),
    ("RUBYOPT", EnvDenyReason::Startup),
    ("JAVA_TOOL_OPTIONS", EnvDenyReason::Startup),
    ("JDK_JAVA_OPTIONS", EnvDenyReason::Startup),
    ("_JAVA_OPTIONS", EnvDenyReason::Startup),
    ("LUA_INIT*", EnvDenyReason::Startup),
    ("GIT_ASKPASS", EnvDenyReason::Launcher),
    ("GIT_CONFIG*", EnvDenyReason::Launcher),
    ("GIT_EDITOR", EnvDenyReason::Launcher),
    ("GIT_EXEC_PATH", EnvDenyReason::Launcher),
    ("GIT_EXTERNAL_DIFF", EnvDenyReason::Launcher),
    ("GIT_PAGER", EnvDenyReason::Launcher),
    ("GIT_PROXY_COMMAND", EnvDenyReason::Launcher),
    ("GIT_SEQUENCE_EDITOR", EnvDenyReason::Launcher),
    ("GIT_SSH*", EnvDenyReason::Launcher),
    ("GIT_TEMPLATE_DIR", EnvDenyReason::Launcher),
    ("RUSTC_WRAPPER", EnvDenyReason::Launcher),
    ("RUSTC_WORKSPACE_WRAPPER", EnvDenyReason::Launcher),
];

/// The effect of a refused variable.
#[derive(Clone, Copy, Debug)]
enum EnvDenyReason {
    Loader,
    Startup,
    Launcher,
}

/// Refusal of a caller's variables.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RunEnvironmentError {
    #[error("invalid variable name `{0}`: use letters, digits and `_`, and do not start with a digit")]
    InvalidName(String),
    #[error("the value of `{0}` contains a NUL byte")]
    NulByte(String),
    #[error("the value of `{0}` is longer than 128 KiB")]
    ValueTooLong(String),
    #[error("the variables exceed 1 MiB in total")]
    TotalTooLarge,
    #[error("`{0}` cannot be set: it changes the libraries that every program loads")]
    Loader(String),
    #[error("`{0}` cannot be set: it makes the interpreter run something before the code; do that in the code")]
    Startup(String),
    #[error("`{0}` cannot be set: it names a program that other programs start; set it in the code if it is needed")]
    Launcher(String),
}

/// Port of the egress proxy inside the jail.
pub const PROXY_PORT: u16 = 3128;

/// The caller's variables, and where there is a way out, those by which programs know it.
pub(crate) fn with_proxy_vars(caller: &BTreeMap<String, String>, has_egress: bool) -> BTreeMap<String, String> {
    let proxy = format!("http://127.0.0.1:{PROXY_PORT}");
    let names = ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"];
    let own = [("no_proxy", "localhost,127.0.0.1,::1"), ("NO_PROXY", "localhost,127.0.0.1,::1")];
    let all = names.map(|name| (name, proxy.as_str())).into_iter().chain(own);
    let mut variables: BTreeMap<String, String> = match has_egress {
        true => all.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        false => BTreeMap::new(),
    };
    variables.extend(caller.clone());
    variables
}

/// `CARGO_HOME` of a run with egress.
pub(crate) const CARGO_HOME: &str = "/tmp/home/.cargo";

/// Cargo's home on the host, if these toolchains have one.
pub(crate) fn host_cargo_home(toolchains: &[Toolchain]) -> Option<PathBuf> {
    let mut variables = toolchains.iter().flat_map(|toolchain| &toolchain.env);
    variables.find(|(name, _)| name == "CARGO_HOME").map(|(_, path)| PathBuf::from(path))
}

/// Environment variables of toolchains. Offline mode is set only where there is no egress, and with egress cargo has a
/// writable home of its own (`cargo_home.rs`).
fn toolchain_variables(toolchains: &[Toolchain], has_egress: bool) -> impl Iterator<Item = (&str, String)> {
    let all = toolchains.iter().flat_map(|toolchain| &toolchain.env);
    all.filter_map(move |(name, value)| match name.as_str() {
        "CARGO_NET_OFFLINE" if has_egress => None,
        "CARGO_HOME" if has_egress => Some((name.as_str(), CARGO_HOME.to_owned())),
        name => Some((name, value.clone())),
    })
}

/// All variables of a run, as the kernel takes them.
pub(crate) fn run_environment(
    caller: &BTreeMap<String, String>,
    toolchains: &[Toolchain],
    has_egress: bool,
) -> Result<Vec<CString>, RunEnvironmentError> {
    let mut all: BTreeMap<&str, String> =
        BASE_VARIABLES.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    all.insert("PATH", search_path(toolchains));
    all.extend(toolchain_variables(toolchains, has_egress));
    for (name, value) in caller {
        check(name, value)?;
        all.insert(name, value.clone());
    }
    let strings: Result<Vec<CString>, RunEnvironmentError> = all
        .into_iter()
        .map(|(name, value)| {
            CString::new(format!("{name}={value}")).map_err(|_| RunEnvironmentError::NulByte(name.to_owned()))
        })
        .collect();
    within_total(strings?)
}

/// All variables of a wrapped program: the caller's, over the few without which it would not find its programs and its
/// home. Nothing is refused, because the caller is not an agent.
pub(crate) fn wrapped_environment(
    caller: &BTreeMap<String, String>,
    user: &WrappedUser,
    toolchains: &[Toolchain],
    has_egress: bool,
) -> Result<Vec<CString>, RunEnvironmentError> {
    let own = [
        ("PATH", search_path(toolchains).into_bytes()),
        ("HOME", user.home.as_os_str().as_bytes().to_vec()),
        ("USER", user.name.as_bytes().to_vec()),
        ("LOGNAME", user.name.as_bytes().to_vec()),
        ("SHELL", user.shell.as_os_str().as_bytes().to_vec()),
        ("TMPDIR", b"/tmp".to_vec()),
    ];
    let mut all: BTreeMap<&str, Vec<u8>> = own.into_iter().collect();
    all.extend(toolchain_variables(toolchains, has_egress).map(|(name, value)| (name, value.into_bytes())));
    let caller = with_proxy_vars(caller, has_egress);
    for (name, value) in &caller {
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(RunEnvironmentError::InvalidName(name.escape_debug().take(64).collect()));
        }
        all.insert(name, value.clone().into_bytes());
    }
    let strings = all.into_iter().map(|(name, value)| {
        if name.len() + value.len() + "=\0".len() > MAX_VALUE_BYTES {
            return Err(RunEnvironmentError::ValueTooLong(name.chars().take(64).collect()));
        }
        CString::new([name.as_bytes(), b"=", &value].concat())
            .map_err(|_| RunEnvironmentError::NulByte(name.to_owned()))
    });
    within_total(strings.collect::<Result<_, _>>()?)
}

/// Refuses what the kernel would.
fn within_total(strings: Vec<CString>) -> Result<Vec<CString>, RunEnvironmentError> {
    let altogether: usize = strings.iter().map(|string| string.as_bytes_with_nul().len()).sum();
    if altogether > MAX_TOTAL_BYTES { Err(RunEnvironmentError::TotalTooLarge) } else { Ok(strings) }
}

/// The `PATH` inside the jail, in this order.
pub(crate) fn search_directories(toolchains: &[Toolchain]) -> impl Iterator<Item = PathBuf> {
    let own = toolchains.iter().flat_map(|toolchain| &toolchain.path).cloned();
    own.chain(SYSTEM_PATH.iter().map(PathBuf::from))
}

/// A directory that a search path cannot name, because of a colon or because it is not text, is left out.
fn search_path(toolchains: &[Toolchain]) -> String {
    let named = |path: &Path| path.to_str().filter(|path| !path.contains(':')).map(str::to_owned);
    let directories: Vec<String> = search_directories(toolchains).filter_map(|path| named(&path)).collect();
    directories.join(":")
}

fn check(name: &str, value: &str) -> Result<(), RunEnvironmentError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || !name.chars().all(plain) || name.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(RunEnvironmentError::InvalidName(name.escape_debug().take(64).collect()));
    }
    if value.contains('\0') {
        return Err(RunEnvironmentError::NulByte(name.to_owned()));
    }
    if name.len() + value.len() + "=\0".len() > MAX_VALUE_BYTES {
        return Err(RunEnvironmentError::ValueTooLong(name.chars().take(64).collect()));
    }
    match DENIED_VARIABLES.iter().find(|(refused, _)| matches(refused, name)) {
        Some((_, EnvDenyReason::Loader)) => Err(RunEnvironmentError::Loader(name.to_owned())),
        Some((_, EnvDenyReason::Startup)) => Err(RunEnvironmentError::Startup(name.to_owned())),
        Some((_, EnvDenyReason::Launcher)) => Err(RunEnvironmentError::Launcher(name.to_owned())),
        None => Ok(()),
    }
}

fn matches(refused: &str, name: &str) -> bool {
    refused.strip_suffix('*').map_or(refused == name, |beginning| name.starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    use super::{MAX_VALUE_BYTES, RunEnvironmentError, run_environment, with_proxy_vars};
    use crate::toolchains::Toolchain;

    fn environment_with(name: &str, value: &str) -> Result<Vec<String>, RunEnvironmentError> {
        let caller = BTreeMap::from([(name.to_owned(), value.to_owned())]);
        let strings = run_environment(&caller, &[], false)?;
        Ok(strings.into_iter().map(|string| string.into_string().unwrap()).collect())
    }

    #[track_caller]
    fn assert_denied(name: &str, value: &str, expected: &str) {
        assert_eq!(environment_with(name, value).unwrap_err().to_string(), expected);
    }

    #[test]
    fn nothing_of_ours_is_inherited() {
        let all = run_environment(&BTreeMap::new(), &[], false).unwrap();
        let names: Vec<&str> = all.iter().map(|string| string.to_str().unwrap().split('=').next().unwrap()).collect();
        assert_eq!(all.len(), super::BASE_VARIABLES.len() + 1);
        assert!(!names.iter().any(|name| name.starts_with("CARGO")), "{names:?}");
    }

    #[test]
    fn the_callers_values_win() {
        let all = environment_with("LANG", "de_DE.UTF-8").unwrap();
        assert!(all.contains(&"LANG=de_DE.UTF-8".to_owned()));
        assert_eq!(all.iter().filter(|string| string.starts_with("LANG=")).count(), 1);
        assert!(environment_with("EMPTY", "").unwrap().contains(&"EMPTY=".to_owned()));
    }

    #[test]
    fn a_way_out_is_told_unless_the_caller_says_otherwise() {
        let caller = BTreeMap::from([("HTTP_PROXY".to_owned(), "http://own:1".to_owned())]);
        assert_eq!(with_proxy_vars(&caller, false), caller);
        let variables = with_proxy_vars(&caller, true);
        assert_eq!(
            (variables["HTTP_PROXY"].as_str(), variables["https_proxy"].as_str()),
            ("http://own:1", "http://127.0.0.1:3128")
        );
        assert!(variables["no_proxy"].contains("127.0.0.1"));
    }

    #[test]
    fn toolchains_come_before_the_system() {
        let rust = Toolchain {
            name: "cargo".to_owned(),
            shown: Vec::new(),
            path: vec![PathBuf::from("/a:b/bin"), PathBuf::from("/home/me/.cargo/bin")],
            env: vec![("CARGO_HOME".to_owned(), "/home/me/.cargo".to_owned())],
        };
        let all = run_environment(&BTreeMap::new(), &[rust], false).unwrap();
        let path = c"PATH=/home/me/.cargo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        assert!(all.iter().any(|string| string.as_c_str() == path), "{all:?}");
        assert!(all.iter().any(|string| string.as_c_str() == c"CARGO_HOME=/home/me/.cargo"));
    }

    #[test]
    fn cargo_is_offline_only_without_a_way_out() {
        let env =
            [("CARGO_HOME", "/home/me/.cargo"), ("CARGO_NET_OFFLINE", "true"), ("RUSTUP_HOME", "/home/me/.rustup")];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        let rust = [Toolchain { name: "cargo".to_owned(), shown: Vec::new(), path: Vec::new(), env }];
        let check = |has_egress: bool, expected: &[&str]| {
            let all = run_environment(&BTreeMap::new(), &rust, has_egress).unwrap();
            let all: Vec<&str> = all.iter().map(|string| string.to_str().unwrap()).collect();
            let variables = all.into_iter().filter(|one| one.starts_with("CARGO") || one.starts_with("RUSTUP"));
            assert_eq!(variables.collect::<Vec<_>>(), expected);
        };
        check(false, &["CARGO_HOME=/home/me/.cargo", "CARGO_NET_OFFLINE=true", "RUSTUP_HOME=/home/me/.rustup"]);
        check(true, &["CARGO_HOME=/tmp/home/.cargo", "RUSTUP_HOME=/home/me/.rustup"]);
    }

    #[test]
    fn names_are_names() {
        let words = "use letters, digits and `_`, and do not start with a digit";
        assert_denied("", "x", &format!("invalid variable name ``: {words}"));
        assert_denied("1A", "x", &format!("invalid variable name `1A`: {words}"));
        assert_denied("A=B", "x", &format!("invalid variable name `A=B`: {words}"));
        assert_denied("A\nB", "x", &format!("invalid variable name `A\\nB`: {words}"));
        assert_denied("BASH_FUNC_ls%%", "x", &format!("invalid variable name `BASH_FUNC_ls%%`: {words}"));
        assert!(environment_with("_a1", "any\nvalue = ü").is_ok());
    }

    #[test]
    fn hooks_are_refused_by_name() {
        let libraries = "cannot be set: it changes the libraries that every program loads";
        assert_denied("LD_PRELOAD", "/x.so", &format!("`LD_PRELOAD` {libraries}"));
        assert_denied("LD_LIBRARY_PATH", "/x", &format!("`LD_LIBRARY_PATH` {libraries}"));
        let before = "cannot be set: it makes the interpreter run something before the code; do that in the code";
        assert_denied("BASH_ENV", "/x", &format!("`BASH_ENV` {before}"));
        assert_denied("NODE_OPTIONS", "--require x", &format!("`NODE_OPTIONS` {before}"));
        let starts = "cannot be set: it names a program that other programs start; set it in the code if it is needed";
        assert_denied("GIT_SSH_COMMAND", "x", &format!("`GIT_SSH_COMMAND` {starts}"));
        for fine in ["LDFLAGS", "ENVIRONMENT", "PYTHONPATH", "GIT_AUTHOR_NAME", "PATH", "RUSTFLAGS"] {
            assert!(environment_with(fine, "x").is_ok(), "{fine}");
        }
    }

    #[test]
    fn sizes_are_bounded() {
        assert_denied("A", "x\0", "the value of `A` contains a NUL byte");
        assert_denied("A", &"x".repeat(MAX_VALUE_BYTES), "the value of `A` is longer than 128 KiB");
        let many = (0..9).map(|number| (format!("A{number}"), "x".repeat(MAX_VALUE_BYTES - 8))).collect();
        assert_eq!(run_environment(&many, &[], false), Err(RunEnvironmentError::TotalTooLarge));
    }
}
