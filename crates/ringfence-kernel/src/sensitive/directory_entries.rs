//! Sensitivity of the entries of one directory.
//!
//! A listing asks about many names below the same ones, which are looked up once.

use std::borrow::Cow;

use super::{MAX_ROW_COMPONENTS, Sensitivity, fold, is_name, lookup_component, lookup_names};

/// Sensitivity of an entry of a walk, whose directories were entries themselves: only its last names are looked up, because
/// in a deep tree the whole path of every entry would be a great deal to look at.
pub fn entry_sensitivity(path: &str) -> Sensitivity {
    // As many names as the longest row has, and one more.
    lookup_names(path, last_names(path, MAX_ROW_COMPONENTS + 1)).sensitivity
}

/// Sensitivity of the entries of one directory, as `entry_sensitivity` has it: the names above them are looked up once.
#[derive(Clone, Debug)]
pub struct DirectoryEntries<'a> {
    directory: &'a str,
    above: [Cow<'a, str>; 2],
    sensitivity: Sensitivity,
}

impl<'a> DirectoryEntries<'a> {
    /// The entries of the directory at a path.
    pub fn new(directory: &'a str) -> Self {
        let last = last_names(directory, MAX_ROW_COMPONENTS);
        let (mut above, mut sensitivity) = ([Cow::Borrowed(""), Cow::Borrowed("")], Sensitivity::default());
        let mut start = directory.len() - last.len();
        for part in last.split('/') {
            let before = &directory[..start];
            start = (start + part.len() + 1).min(directory.len());
            if !is_name(part) {
                continue;
            }
            let part = fold(part);
            sensitivity = sensitivity.union(lookup_component(before, [&above[0], &above[1], &part], false).sensitivity);
            above = [std::mem::take(&mut above[1]), part];
        }
        Self { directory, above, sensitivity }
    }

    /// Sensitivity of the entry of this name.
    pub fn entry_sensitivity(&self, name: &str) -> Sensitivity {
        let [far, near] = &self.above;
        self.sensitivity.union(lookup_component(self.directory, [far, near, &fold(name)], true).sensitivity)
    }
}

/// The last `count` names of a path.
fn last_names(path: &str, count: usize) -> &str {
    path.rmatch_indices('/').nth(count - 1).map_or(path, |(slash, _)| &path[slash + 1..])
}

#[cfg(test)]
mod tests {
    use super::{DirectoryEntries, entry_sensitivity};

    #[test]
    fn an_entry_has_the_sensitivity_of_its_path() {
        for path in [
            "src/main.rs",
            ".env",
            "./.env",
            "a/b/c/d/id_rsa.bak",
            ".ssh/known",
            ".git/hooks/pre-commit",
            "deep/.git/hooks/x",
            ".github/workflows/ci.yml",
            "node_modules/x/.travis.yml",
            ".config/git/credentials",
            "home/.config/git/credentials",
            "etc/shadow",
            "A/.ENV_old",
            "a//Makefile",
            ".vscode/settings.json",
            "keys/server.pem",
            "keys/server.pub",
        ] {
            let (directory, name) = path.rsplit_once('/').unwrap_or((".", path));
            assert_eq!(DirectoryEntries::new(directory).entry_sensitivity(name), entry_sensitivity(path), "{path}");
        }
        assert!(DirectoryEntries::new(".").entry_sensitivity(".env").secret);
    }
}
