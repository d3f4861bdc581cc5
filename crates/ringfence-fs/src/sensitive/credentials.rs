//! Credential detection by content: settings files that hold a secret, whatever their name.
//!
//! `.git/config` is read all the time and holds no secret, until a repository is cloned with a password in the URL. So
//! files of a few names are read.
//!
//! A backup of such a file is read like the file itself.
//!
//! Not here: names that are secrets themselves (`sensitive` in the kernel).

use ringfence_kernel::original_names;

/// Settings files that can hold a credential beside harmless settings, as folded names.
const CONFIG_FILE_NAMES: [&str; 20] = [
    "config",
    "config.toml",
    "config.worktree",
    ".hgrc",
    "hgrc",
    ".wgetrc",
    "pdm.toml",
    "poetry.toml",
    "gradle.properties",
    ".gitconfig",
    ".gitmodules",
    "pip.conf",
    "pip.ini",
    "uv.toml",
    ".condarc",
    ".yarnrc",
    ".yarnrc.yml",
    "bunfig.toml",
    ".bunfig.toml",
    "nuget.config",
];

/// A user without a password in an address that is at least this long is a token.
const SHORTEST_TOKEN: usize = 20;

/// Whether a file of this name is looked into.
pub(crate) fn may_hold_credential(name: &[u8]) -> bool {
    let is_settings = |name: &str| CONFIG_FILE_NAMES.contains(&name);
    let name = name.to_ascii_lowercase();
    std::str::from_utf8(&name).is_ok_and(|name| is_settings(name) || original_names(name).any(is_settings))
}

/// Whether settings have a password, a token or a header with one in them.
pub fn has_credential(text: &str) -> bool {
    text.lines().any(|line| {
        let line = line.trim();
        let is_comment = line.starts_with(['#', ';']);
        // `"@scope" = { token = "x", url = "y" }` has settings in its value.
        let has_secret = || has_secret_value(line) || line.split(['{', ',']).skip(1).any(has_secret_value);
        has_url_credential(line) || (!is_comment && has_secret())
    })
}

/// `scheme://user:password@host`, or with a token for the user.
fn has_url_credential(line: &str) -> bool {
    line.match_indices("://").any(|(at, scheme)| {
        let rest = &line[at + scheme.len()..];
        let end =
            rest.find(|c: char| c.is_whitespace() || matches!(c, '/' | '"' | '\'' | '?' | '#')).unwrap_or(rest.len());
        let Some((user, _)) = rest[..end].rsplit_once('@') else { return false };
        match user.split_once(':') {
            Some((_, password)) => is_literal_value(password),
            None => user.len() >= SHORTEST_TOKEN && is_literal_value(user),
        }
    })
}

/// `key = value` or `key: value`, where the key says what the value is.
fn has_secret_value(line: &str) -> bool {
    const KEYS: [&str; 9] =
        ["password", "passwd", "token", "secret", "apikey", "api_key", "authident", "extraheader", "authorization"];
    let lower = line.to_ascii_lowercase();
    let Some(at) = lower.find(['=', ':']) else { return false };
    let (key, value) = (&lower[..at], line[at + 1..].trim().trim_matches(['"', '\'']));
    // In XML the key is a value itself: `<add key="ClearTextPassword" value="x" />`.
    let in_xml = lower.starts_with('<') && lower.contains("value=");
    let names_one = |text: &str| KEYS.iter().any(|key| text.contains(key));
    if in_xml {
        return names_one(&lower);
    }
    // A tokenizer and a number of tokens are settings of language models.
    let counts = key.trim_end().ends_with("tokens") && value.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_');
    names_one(&key.replace("tokeniz", "")) && is_literal_value(value) && !counts
}

/// Not a reference to where it really is.
fn is_literal_value(text: &str) -> bool {
    !text.is_empty() && !text.starts_with(['$', '%', '<']) && !matches!(text, "true" | "false" | "null" | "none")
}

#[cfg(test)]
mod tests {
    use super::{has_credential, may_hold_credential};

    #[test]
    fn credentials_are_found_and_ordinary_settings_are_not() {
        for text in [
            "[remote \"origin\"]\n\turl = https://me:hunter2@example.com/x.git\n",
            "url = https://x-access-token:ghs_abc@github.com/x/y",
            "url = https://ghp_0123456789abcdefghijABCDEFGHIJ012345@github.com/x/y.git",
            "[http \"https://github.com/\"]\n\textraheader = AUTHORIZATION: basic eDp5\n",
            "[http]\n\tEXTRAHEADER = Authorization: Bearer x",
            "[sendemail]\n\tsmtpPass = x\n\tsmtpPassword = y",
            "index-url = https://user:pw@pypi.example.com/simple",
            "npmAuthToken: \"abc\"",
            "npmAuthIdent: dXNlcjpwYXNz",
            "<add key=\"ClearTextPassword\" value=\"x\" />",
            "[url \"https://a:b@example.com/\"]\n\tinsteadOf = x",
            "[install.scopes]\n\"@mine\" = { token = \"abc\", url = \"https://r.example.com\" }",
            "[registries.mine]\ntoken = \"abc\"",
            "[auth]\nmine.prefix = hg.example.com\nmine.password = x",
        ] {
            assert!(has_credential(text), "{text}");
        }
        for text in [
            "[core]\n\trepositoryformatversion = 0\n\tbare = false\n[remote \"origin\"]\n\turl = https://github.com/x/y.git\n",
            "url = git@github.com:x/y.git\n\tfetch = +refs/heads/*:refs/remotes/origin/*",
            "url = ssh://git@github.com:22/x/y.git",
            "url = https://me@example.com/x.git",
            "[credential]\n\thelper = store\n\tusername = me",
            "npmAuthToken: \"${NPM_TOKEN}\"",
            "index-url = https://$USER:$PASSWORD@pypi.example.com/simple",
            "# password = x",
            "[model]\nmax_tokens = 4096\ntokenizer = \"bpe\"",
            "[build]\ntarget-dir = \"out\"\n[alias]\nb = \"build\"",
            "",
        ] {
            assert!(!has_credential(text), "{text}");
        }
        assert!(may_hold_credential(b"config") && may_hold_credential(b"NuGet.Config") && !may_hold_credential(b"x"));
        for name in [
            "config.bak",
            "config~",
            "config.lock",
            ".config.swp",
            "config.old",
            "config.orig",
            "config.save",
            "config.tmp",
            "config.1",
            "config.toml.bak",
            "bunfig.toml",
            "hgrc",
            "NuGet.Config.old~",
        ] {
            assert!(may_hold_credential(name.as_bytes()), "{name}");
        }
        for name in ["configure", "config.rs", "Cargo.lock", "package.json", "config.yaml"] {
            assert!(!may_hold_credential(name.as_bytes()), "{name}");
        }
    }
}
