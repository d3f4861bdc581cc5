//! Loader variables: those of the environment by which programs find code.
//!
//! A program that the operator starts gets them without what lies where agents write. Search paths lose single entries, and
//! relative ones, which would mean the directory that a program happens to be in. Options that name a file there go whole.
//! Other variables are data, and stay as they are: a directory of notes may well be in the workspace.

use std::borrow::Cow;
use std::path::Path;

use ringfence_fs::real_path;

use crate::config::host::AgentDirectories;

/// Lists of directories or files that are searched in order, apart by `:`.
const SEARCH_PATHS: [&str; 31] = [
    "PATH",
    "CDPATH",
    "FPATH",
    "CLASSPATH",
    "GOPATH",
    "GEM_PATH",
    "GCONV_PATH",
    "GUILE_LOAD_PATH",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "LD_AUDIT",
    "DYLD_LIBRARY_PATH",
    "DYLD_INSERT_LIBRARIES",
    "LIBRARY_PATH",
    "C_INCLUDE_PATH",
    "CPATH",
    "JULIA_LOAD_PATH",
    "JULIA_DEPOT_PATH",
    "NODE_PATH",
    "PERL5LIB",
    "PERLLIB",
    "PKG_CONFIG_PATH",
    "PSModulePath",
    "PYTHONPATH",
    "R_LIBS",
    "R_LIBS_USER",
    "RUBYLIB",
    "GIT_EXEC_PATH",
    "XDG_CONFIG_DIRS",
    "XDG_DATA_DIRS",
    "EMACSLOADPATH",
];

/// Prefixes of variables that control a loader, an interpreter, a package manager or a tool that runs others.
const LOADER_PREFIXES: &[&str] = &[
    "ANSIBLE_",
    "ASDF_",
    "AWS_CONFIG_FILE",
    "BASH_ENV",
    "BUN_",
    "BUNDLE_",
    "CABAL_",
    "CAML",
    "CARGO_",
    "COMPOSER_",
    "CONDA_",
    "CORECLR_",
    "COREPACK_",
    "DENO_",
    "DOTNET_",
    "DYLD_",
    "ELECTRON_",
    "EMACS",
    "ENV",
    "ERL_",
    "EXINIT",
    "GEM_",
    "GHC",
    "GIO_",
    "GIT_",
    "GOBIN",
    "GOENV",
    "GOFLAGS",
    "GOROOT",
    "GRADLE_",
    "GST_",
    "GTK_",
    "GUILE_",
    "HEX_",
    "HGRCPATH",
    "INPUTRC",
    "IPYTHONDIR",
    "JAVA_",
    "_JAVA_",
    "JDK_",
    "JULIA_",
    "JUPYTER_",
    "KUBECONFIG",
    "LD_",
    "LESSOPEN",
    "LOCPATH",
    "LUA",
    "MAKEFILES",
    "MAVEN_",
    "MISE_",
    "MIX_",
    "NODE_",
    "NPM_",
    "npm_",
    "NVIM",
    "NVM_",
    "OCAML",
    "OPAM",
    "OPENSSL_",
    "PAGER",
    "PDM_",
    "PERL",
    "PHP",
    "PIP_",
    "PIPX_",
    "PNPM_",
    "POETRY_",
    "PYENV_",
    "PYTHON",
    "QT_",
    "R_",
    "RBENV_",
    "RUBY",
    "RUSTC",
    "RUSTUP_",
    "STACK_",
    "TCL",
    "TF_CLI_",
    "TMPDIR",
    "TS_NODE_",
    "UV_",
    "VIM",
    "VIRTUAL_ENV",
    "VOLTA_",
    "XDG_",
    "YARN_",
    "ZDOTDIR",
];

/// A variable without what names anything in these directories. Nothing where nothing of it is left.
pub(crate) fn strip_directories<'a>(
    name: &str,
    value: &'a str,
    directories: &AgentDirectories,
) -> Option<Cow<'a, str>> {
    let is_there = |path: &str| directories.contain(&real_path(Path::new(path)));
    if SEARCH_PATHS.contains(&name) {
        // The loader takes spaces too.
        let apart = |c: char| c == ':' || (name.starts_with("LD_") && c == ' ');
        let kept: Vec<&str> = value.split(apart).filter(|entry| entry.starts_with('/') && !is_there(entry)).collect();
        return match kept.is_empty() {
            true => None,
            false if kept.len() == value.split(apart).count() => Some(Cow::Borrowed(value)),
            false => Some(Cow::Owned(kept.join(":"))),
        };
    }
    let steers = LOADER_PREFIXES.iter().any(|begin| name.starts_with(begin));
    // A path may stand behind an option, such as `--require=/x`, `-I/x`, `@/x` or `file:///x`. It ends with its word, or later
    // where a directory's name has a space or the like in it.
    let apart = |c: char| c.is_whitespace() || matches!(c, ':' | ';' | ',' | '=' | '"' | '\'');
    let begins_path = |at: &usize| !value[..*at].rsplit(apart).next().is_some_and(|word| word.contains('/'));
    let begins = value.match_indices('/').map(|(at, _)| at).filter(begins_path);
    let mut paths = begins.flat_map(|at| [value[at..].split(apart).next().unwrap_or_default(), &value[at..]]);
    // A shell expands the file that `BASH_ENV` or `ENV` names.
    let is_expanded = matches!(name, "BASH_ENV" | "ENV") && value.contains(['$', '~', '`']);
    match steers && (is_expanded || paths.any(is_there)) {
        true => None,
        false => Some(Cow::Borrowed(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::strip_directories;
    use crate::config::host::AgentDirectories;

    #[test]
    fn entries_in_agent_directories_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(directory.path()).unwrap();
        let workspace = root.join("ws");
        std::fs::create_dir_all(workspace.join("bin")).unwrap();
        std::fs::create_dir_all(root.join("ws-other")).unwrap();
        std::os::unix::fs::symlink(&workspace, root.join("link")).unwrap();
        let directories = AgentDirectories::from_parts(vec![workspace.clone()], &root.join("state"));
        let check = |name: &str, value: &str, expected: Option<&str>| {
            let fill = |text: &str| text.replace("ROOT", root.to_str().unwrap());
            let kept = strip_directories(name, &fill(value), &directories).map(|kept| kept.into_owned());
            assert_eq!(kept, expected.map(fill), "{name}={value}");
        };
        check("PATH", "/usr/bin:ROOT/ws/bin:/bin", Some("/usr/bin:/bin"));
        check("PATH", "ROOT/link/bin:/bin:ROOT/ws-other", Some("/bin:ROOT/ws-other"));
        check("PATH", ":/bin::.:node_modules/.bin:ROOT/ws/../ws/none", Some("/bin"));
        check("PATH", ".", None);
        check("PYTHONPATH", "ROOT/ws", None);
        check("PYTHONPATH", "src:/opt/lib", Some("/opt/lib"));
        check("LD_PRELOAD", "/a.so ROOT/ws/b.so", Some("/a.so"));
        check("NODE_OPTIONS", "--require ROOT/ws/x.js", None);
        check(
            "NODE_OPTIONS",
            "--max-old-space-size=4096 --require=/opt/x.js",
            Some("--max-old-space-size=4096 --require=/opt/x.js"),
        );
        check("NODE_OPTIONS", "--import=file://ROOT/link/x.mjs", None);
        check("npm_config_userconfig", "ROOT/ws/.npmrc", None);
        check("GIT_CONFIG_GLOBAL", "ROOT/ws/gitconfig", None);
        check("BUNDLE_GEMFILE", "ROOT/ws/Gemfile", None);
        check("JDK_JAVA_OPTIONS", "@ROOT/ws/args", None);
        check("PERL5OPT", "-IROOT/ws -Mx", None);
        check("PYTHONSTARTUP", "/home/me/start.py", Some("/home/me/start.py"));
        check("VIMINIT", "source ROOT/ws/vimrc", None);
        check("BASH_ENV", "$HOME/ws/env", None);
        check("ENV", "~/ws/env", None);
        check("R_PROFILE_USER", "ROOT/ws/.Rprofile", None);
        check("PYENV_ROOT", "ROOT/ws/.pyenv", None);
        check("KUBECONFIG", "ROOT/ws/kube", None);
        // A name with spaces, or with separators of path lists.
        for odd in ["My Project", "a=b", "a,b", "it's"] {
            let workspace = root.join(odd);
            std::fs::create_dir(&workspace).unwrap();
            let directories = AgentDirectories::from_parts(vec![workspace.clone()], &root.join("state"));
            let check = |name: &str, value: String| {
                assert_eq!(strip_directories(name, &value, &directories), None, "{name}={value}");
            };
            check("PYTHONSTARTUP", format!("{}/start.py", workspace.display()));
            check("NODE_OPTIONS", format!("--max-old-space-size=4096 --require=\"{}/x.js\"", workspace.display()));
        }
        // Plain data may be passed on by the user.
        check("NOTES_DIR", "ROOT/ws/notes", Some("ROOT/ws/notes"));
        check("API_KEY", "a/b:c", Some("a/b:c"));
    }
}
