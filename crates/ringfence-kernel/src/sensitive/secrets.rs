//! Names of files that hold credentials.
//!
//! A row is a name, or up to two directories and a name in them, anywhere in a path; it matches a file or a whole
//! directory. `*` in a name stands for any characters. Names are folded: lower case, nothing invisible.
//!
//! Not here: copies of such files. A backup suffix is removed before a name is looked up (`mod.rs`).

/// Reading one of these gives away a key or a password.
pub(super) const SECRETS: &[&str] = &[
    // Environment files of nearly every framework.
    ".env",
    ".env.*",
    ".env-*",
    ".env_*",
    "*.env",
    ".envrc",
    ".envrc.*",
    ".dev.vars",
    ".dev.vars.*",
    ".flaskenv",
    "local.settings.json",
    // Private keys and their stores.
    "*.pem",
    "*.key",
    "*.p8",
    "*.p12",
    "*.pfx",
    "*.pkcs12",
    "*.jks",
    "*.jceks",
    "*.bks",
    "*.keystore",
    "*.keytab",
    "*.agekey",
    "*.ppk",
    "*.privatekey",
    "id_rsa*",
    "id_dsa*",
    "id_ecdsa*",
    "id_ed25519*",
    "id_xmss*",
    "ssh_host_*_key",
    ".ssh",
    ".gnupg",
    ".age",
    // VPN and network credentials.
    "*.ovpn",
    "*.nmconnection",
    "wg*.conf",
    "wpa_supplicant.conf",
    // Password managers, browsers and wallets.
    "*.kdb",
    "*.kdbx",
    "*.psafe3",
    "*.1pux",
    "*.opvault",
    "*.agilekeychain",
    "*.keychain",
    "*.keychain-db",
    ".password-store",
    ".local/share/keyrings",
    ".config/1password",
    ".config/bitwarden",
    ".config/keepassxc",
    "logins.json",
    "key3.db",
    "key4.db",
    "cookies.sqlite",
    ".mozilla",
    ".thunderbird",
    ".config/google-chrome",
    ".config/chromium",
    ".config/bravesoftware",
    ".config/microsoft-edge",
    "wallet.dat",
    "*.wallet",
    ".bitcoin",
    ".electrum",
    ".ethereum",
    ".monero",
    ".config/solana",
    // Version control.
    ".git-credentials",
    ".gitcookies",
    "git/credentials",
    ".config/gh",
    ".config/glab-cli",
    ".config/hub",
    // Package registries.
    ".npmrc",
    ".pypirc",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".gem/credentials",
    ".hex/hex.config",
    ".m2/settings.xml",
    ".m2/settings-security.xml",
    ".gradle/gradle.properties",
    ".credentials",
    ".credentials.json",
    "auth.json",
    // Cloud providers and their command lines.
    ".aws/credentials",
    ".aws/sso",
    ".aws/cli",
    "accesskeys.csv",
    "*_accesskeys.csv",
    ".boto",
    ".s3cfg",
    ".passwd-s3fs",
    ".mc/config.json",
    "rclone.conf",
    ".config/rclone",
    ".config/gcloud",
    "application_default_credentials.json",
    "gha-creds-*.json",
    "client_secret*.json",
    "service-account*.json",
    "service_account*.json",
    "serviceaccount*.json",
    "*-service-account.json",
    "*firebase-adminsdk*.json",
    ".azure",
    ".oci",
    ".aliyun",
    ".bluemix",
    ".fly",
    ".config/doctl",
    ".config/hcloud",
    ".config/linode-cli",
    ".config/scw",
    ".config/configstore",
    ".config/heroku",
    ".config/netlify",
    ".config/stripe",
    ".config/op",
    ".config/ngrok",
    ".ngrok2",
    ".cloudflared",
    ".supabase/access-token",
    ".databrickscfg",
    ".snowflake",
    ".snowsql",
    ".dbt/profiles.yml",
    "kaggle.json",
    "huggingface/token",
    ".huggingface/token",
    ".sentryclirc",
    "oauth_creds.json",
    // Containers and clusters.
    ".docker/config.json",
    ".dockercfg",
    ".dockerconfigjson",
    ".kube",
    "kubeconfig.conf",
    "kubeconfig.json",
    "kubeconfig.yaml",
    "kubeconfig.yml",
    "*.kubeconfig",
    // Infrastructure as code.
    ".terraformrc",
    "terraform.rc",
    "credentials.tfrc.json",
    "*.tfstate",
    "*.tfstate.*",
    "*.tfvars",
    "*.tfvars.json",
    ".pulumi",
    ".vault-token",
    ".vault_pass*",
    ".vault-pass*",
    // Databases, mail and the rest of a home directory.
    ".netrc",
    "_netrc",
    ".pgpass",
    "pgpass.conf",
    ".pg_service.conf",
    ".my.cnf",
    ".mylogin.cnf",
    ".authinfo",
    ".fetchmailrc",
    ".msmtprc",
    ".smbcredentials",
    ".htpasswd",
    ".htdigest",
    "etc/shadow",
    "etc/gshadow",
    ".*_history",
    ".histfile",
    "fish_history",
    // Names that people give to such files.
    ".secret",
    ".secrets",
    "*.secret",
    "*.secrets",
    "secret.json",
    "secret.toml",
    "secret.yaml",
    "secret.yml",
    "secrets.ini",
    "secrets.json",
    "secrets.properties",
    "secrets.toml",
    "secrets.txt",
    "secrets.xml",
    "secrets.yaml",
    "secrets.yml",
    "credentials.csv",
    "credentials.ini",
    "credentials.json",
    "credentials.toml",
    "credentials.txt",
    "credentials.xml",
    "credentials.yaml",
    "credentials.yml",
    "passwords.csv",
    "passwords.json",
    "passwords.txt",
];

/// The same for files alone: a directory of such a name is a part of a program that deals with them.
pub(super) const SECRET_FILES: &[&str] = &[
    "*_rsa",
    "*_dsa",
    "*_ecdsa",
    "*_ed25519",
    "private_key",
    "private-key",
    "privkey",
    "kubeconfig",
    "vault_pass*",
    // Chrome and its siblings.
    "login data",
];

/// Names that a row of `SECRETS` matches and that are made to be read.
pub(super) const PUBLIC: &[&str] = &[
    ".env.example",
    ".env.sample",
    ".env.template",
    ".env.dist",
    ".env.*.example",
    ".env.*.sample",
    ".env.*.template",
    ".env.*.dist",
    ".env-example",
    ".env-sample",
    ".envrc.example",
    ".envrc.sample",
    ".dev.vars.example",
    "example.env",
    "sample.env",
    // The public half of a key.
    "id_rsa*.pub",
    "id_dsa*.pub",
    "id_ecdsa*.pub",
    "id_ed25519*.pub",
    "id_xmss*.pub",
    // The certificate authorities that Python packages bring along.
    "certifi/cacert.pem",
];

/// Strips a suffix that programs and people add to the name of a backup.
pub(super) fn strip_backup_suffix(name: &str) -> Option<&str> {
    // Most names have none, and very many are asked about.
    if !name.bytes().any(|byte| matches!(byte, b'.' | b'#' | b'~' | b' ' | b'-' | b'_')) {
        return None;
    }
    if let Some(name) = name.strip_prefix(".#").or_else(|| name.strip_prefix('#')) {
        return Some(name.strip_suffix('#').unwrap_or(name));
    }
    if let Some(name) = name.strip_suffix('~') {
        return Some(name);
    }
    if let Some((name, number)) = name.strip_suffix(')').and_then(|name| name.rsplit_once(" (")) {
        return (number == "copy" || number.bytes().all(|byte| byte.is_ascii_digit())).then_some(name);
    }
    let (stem, mark) = name.rsplit_once('.').filter(|(stem, _)| !stem.is_empty()).unwrap_or((name, ""));
    let numbered = |mark: &str| mark.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-' || byte == b'_');
    let is_mark = match mark.trim_end_matches(|c: char| c.is_ascii_digit()) {
        "" => !mark.is_empty(),
        "bak" | "bk" | "bkp" | "backup" | "old" | "orig" | "original" | "save" | "saved" | "sav" | "prev"
        | "previous" | "copy" | "tmp" | "temp" | "new" | "swp" | "swo" | "swn" | "swx" | "rej" | "disabled"
        | "lock" | "deleted" | "rpmsave" | "rpmnew" | "rpmorig" | "dpkg-old" | "dpkg-dist" | "dpkg-new" | "ucf-old"
        | "ucf-dist" | "pacsave" | "pacnew" | "gz" | "bz" | "xz" | "zst" | "zip" | "b" | "base" => true,
        mark => numbered(mark),
    };
    if is_mark {
        return Some(stem);
    }
    let marks = [" copy", "-copy", "_copy", "-bak", "_bak", "-old", "_old", "-backup", "_backup"];
    marks.iter().find_map(|mark| name.strip_suffix(mark)).filter(|name| !name.is_empty())
}
