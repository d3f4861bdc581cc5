//! Credential detection by content: settings files that hold a secret, whatever their name.
//!
//! `.git/config` is read all the time and holds no secret, until a repository is cloned with a password in the URL. So
//! files of a few names are read.
//!
//! Not here: names that are secrets themselves (`sensitive` in the kernel).

/// Settings files that can hold a credential beside harmless settings, as folded names.
const CONFIG_FILE_NAMES: [&str; 12] = [
    "config",
    "config.worktree",
    ".gitconfig",
    ".gitmodules",
    "pip.conf",
    "pip.ini",
    "uv.toml",
    ".condarc",
    ".yarnrc",
    ".yarnrc.yml",
    ".bunfig.toml",
    "nuget.config",
];

/// A user without a password in an address that is at least this long is a token.
const SHORTEST_TOKEN: usize = 20;

/// Whether a file of this name is looked into.
pub(crate) fn may_hold_credential(name: &[u8]) -> bool {
    CONFIG_FILE_NAMES.iter().any(|settings| settings.as_bytes().eq_ignore_ascii_case(name))
}

/// Whether settings have a password, a token or a header with one in them.
pub(crate) fn has_credential(text: &str) -> bool {
    text.lines().any(|line| {
        let line = line.trim();
        let is_comment = line.starts_with(['#', ';']);
        has_url_credential(line) || (!is_comment && has_secret_value(line))
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
    names_one(key) && is_literal_value(value)
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
            "",
        ] {
            assert!(!has_credential(text), "{text}");
        }
        assert!(may_hold_credential(b"config") && may_hold_credential(b"NuGet.Config") && !may_hold_credential(b"x"));
    }
}
