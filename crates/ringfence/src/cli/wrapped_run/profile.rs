//! Profiles of wrapped programs: data about an agent, such as its hosts, its keys and the files that it starts with.
//!
//! A profile grants nothing that policy denies.
//!
//! Not here: its file (`profile_files.rs`), toolchains (`toolchain_profile.rs`), and using it (`mod.rs`).

use std::collections::BTreeMap;
use std::num::NonZeroU16;

use ringfence_sandbox::PublishedPort;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::cli::wrapped_run::login_setting::LoginSetting;
use crate::cli::wrapped_run::profile_files::{
    ProfileData, ProfileError, is_absolute, is_below, is_profile_file, load, load_file, load_path, unknown,
};
use crate::config::Environment;
use crate::config::credentials::CredentialSetting;

/// The profile of a program that has none: no hosts, no keys, an empty home directory.
pub(crate) const NO_PROFILE: &str = "none";

/// Data about one agent.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct AgentProfile {
    /// Its name, from the name of its file.
    #[serde(skip)]
    pub(crate) name: String,
    /// The profile that this one adds to.
    pub(crate) base: Option<String>,
    /// Names of programs that choose it.
    pub(crate) programs: Vec<String>,
    /// Arguments before those of the command line.
    pub(crate) arguments: Vec<String>,
    /// Hosts that it may reach, each with a port if it is not 443.
    pub(crate) hosts: Vec<String>,
    /// Ports of the program that are published, as `--publish` has them.
    #[serde(deserialize_with = "published_ports")]
    pub(crate) publish: Vec<PublishedPort>,
    /// Ports of this machine's `127.0.0.1` that it may reach.
    #[serde(deserialize_with = "connected_ports")]
    pub(crate) connect: Vec<u16>,
    pub(crate) credentials: Vec<CredentialSetting>,
    /// OAuth logins of the person.
    pub(crate) logins: Vec<LoginSetting>,
    pub(crate) environment: ProfileEnvironment,
    pub(crate) home: ProfileHome,
    /// Read-only files at absolute paths.
    pub(crate) files: BTreeMap<String, String>,
}

fn published_ports<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PublishedPort>, D::Error> {
    let ports = Vec::<String>::deserialize(deserializer)?;
    ports.iter().map(|port| port.parse().map_err(|error| D::Error::custom(format!("`{port}`: {error}")))).collect()
}

fn connected_ports<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u16>, D::Error> {
    let ports = Vec::<NonZeroU16>::deserialize(deserializer)?;
    Ok(ports.into_iter().map(NonZeroU16::get).collect())
}

/// Environment variables of a profile.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ProfileEnvironment {
    pub(crate) set: BTreeMap<String, String>,
    /// Variables of the person that it gets. A star stands for any ending.
    pub(crate) pass: Vec<String>,
}

/// The home directory that an agent starts with.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ProfileHome {
    /// Files and directories of the person's home directory that are copied.
    pub(crate) copy: Vec<String>,
    /// Files that go back into the person's home directory: what no agent acts on, such as transcripts. A star stands for any
    /// text in a name, and `${workspace:dashes}` for the path of the workspace with `-` for all but letters and digits.
    pub(crate) keep: Vec<String>,
    /// Files that agents act on, such as settings and memories, whose changes a person reviews; `#` and a JSON pointer for one
    /// value of a file. In a pointer, `${workspace}` is the path of the workspace.
    pub(crate) review: Vec<String>,
    /// Files by their paths, with `${workspace}` and `${placeholder:NAME:LENGTH}`, whose file is left out where there is no key;
    /// with `?` behind the length, the text is empty then.
    pub(crate) files: BTreeMap<String, String>,
}

impl ProfileData for AgentProfile {
    const KIND: &'static str = "profile";
    const DIRECTORY: &'static str = "profiles";
    const EMBEDDED: &'static [(&'static str, &'static str)] = &[
        ("aider", include_str!("profiles/aider.toml")),
        ("claude", include_str!("profiles/claude.toml")),
        ("codex", include_str!("profiles/codex.toml")),
        ("crush", include_str!("profiles/crush.toml")),
        ("gemini", include_str!("profiles/gemini.toml")),
        ("goose", include_str!("profiles/goose.toml")),
        ("opencode", include_str!("profiles/opencode.toml")),
    ];

    fn complete(&mut self, name: &str, environment: &Environment) -> Result<(), String> {
        name.clone_into(&mut self.name);
        self.credentials.iter().try_for_each(|credential| credential.check(environment.home.as_deref()))?;
        self.logins.iter().try_for_each(LoginSetting::check)?;
        let named = self.home.copy.iter().chain(&self.home.keep).chain(self.home.files.keys()).map(String::as_str);
        let reviewed = || self.home.review.iter().map(|file| file.split_once('#').unwrap_or((file, "/")));
        if let Some((_, pointer)) = reviewed().find(|(_, pointer)| !pointer.starts_with('/')) {
            return Err(format!("`#{pointer}` must be a JSON pointer, such as `#/mcpServers`"));
        }
        let mut relative = named.chain(reviewed().map(|(path, _)| path));
        if let Some(path) = relative.find(|path| !is_below(path)) {
            return Err(format!("`{path}` must be a path below the home directory, such as `.config/agent`"));
        }
        let mut patterns = self.home.keep.iter().map(String::as_str).chain(reviewed().map(|(path, _)| path));
        if let Some(path) = patterns.find(|path| path.split('/').any(|name| name == "**")) {
            return Err(format!("`{path}` must have a name or a pattern such as `*.jsonl` between slashes"));
        }
        match self.files.keys().find(|path| !is_absolute(path)) {
            Some(path) => Err(format!("`{path}` must be an absolute path without `..`")),
            None => Ok(()),
        }
    }
}

impl AgentProfile {
    /// The named profile; without a name, the one for this program.
    pub(crate) fn find(name: Option<&str>, program: &str, environment: &Environment) -> Result<Self, ProfileError> {
        let profile = match name {
            Some(NO_PROFILE) => Self { name: NO_PROFILE.to_owned(), ..Self::default() },
            Some(file) if is_profile_file(file) => load_path(&environment.current.join(file), environment)?,
            Some(name) => load(name, environment)?.ok_or_else(|| unknown::<Self>(name))?,
            None => Self::for_program(program, environment)?,
        };
        let Some(base) = &profile.base else { return Ok(profile) };
        let found = load::<Self>(base, environment)?.ok_or_else(|| unknown::<Self>(base))?;
        match found.base {
            None => Ok(profile.on_base(found)),
            Some(_) => {
                let problem = format!("its base `{base}` has a base itself");
                Err(ProfileError::Invalid { kind: Self::KIND, name: profile.name, problem })
            }
        }
    }

    /// All of the base, with what this one says in addition or instead.
    fn on_base(self, base: Self) -> Self {
        fn both<T>(base: Vec<T>, own: Vec<T>) -> Vec<T> {
            base.into_iter().chain(own).collect()
        }
        let is_own = |name: &str| self.credentials.iter().any(|credential| credential.name == name);
        let inherited = base.credentials.into_iter().filter(|credential| !is_own(&credential.name)).collect();
        let is_own_login = |name: &str| self.logins.iter().any(|login| login.name == name);
        let inherited_logins = base.logins.into_iter().filter(|login| !is_own_login(&login.name)).collect();
        Self {
            name: self.name,
            base: self.base,
            programs: self.programs,
            arguments: both(base.arguments, self.arguments),
            hosts: both(base.hosts, self.hosts),
            publish: both(base.publish, self.publish),
            connect: both(base.connect, self.connect),
            credentials: both(inherited, self.credentials),
            logins: both(inherited_logins, self.logins),
            environment: ProfileEnvironment {
                set: base.environment.set.into_iter().chain(self.environment.set).collect(),
                pass: both(base.environment.pass, self.environment.pass),
            },
            home: ProfileHome {
                copy: both(base.home.copy, self.home.copy),
                keep: both(base.home.keep, self.home.keep),
                review: both(base.home.review, self.home.review),
                files: base.home.files.into_iter().chain(self.home.files).collect(),
            },
            files: base.files.into_iter().chain(self.files).collect(),
        }
    }

    fn for_program(program: &str, environment: &Environment) -> Result<Self, ProfileError> {
        if let Some(own) = load_file(program, environment)? {
            return Ok(own);
        }
        for (name, _) in Self::EMBEDDED {
            if let Some(profile) = load::<Self>(name, environment)?
                && profile.programs.iter().any(|known| known == program)
            {
                return Ok(profile);
            }
        }
        Ok(Self { name: NO_PROFILE.to_owned(), ..Self::default() })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn environment(directory: &Path) -> Environment {
        Environment { config: Some(directory.join("config")), ..Environment::isolated(directory, "/proc/self/exe") }
    }

    fn write(directory: &Path, path: &str, text: &str) {
        let file = directory.join(path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }

    #[test]
    fn every_embedded_profile_is_valid_and_chosen_by_its_programs() {
        let directory = tempfile::tempdir().unwrap();
        let environment = environment(directory.path());
        for (name, _) in AgentProfile::EMBEDDED {
            let profile = AgentProfile::find(Some(name), "", &environment).unwrap();
            assert_eq!(profile.name, *name);
            for program in &profile.programs {
                assert_eq!(AgentProfile::find(None, program, &environment).unwrap().name, *name);
            }
            // Nothing goes back that an agent acts on: files of transcripts have names of their own.
            let is_transcript = |file: &String| file.ends_with("*.jsonl") || file.ends_with("/chats/session-*.json");
            assert!(profile.home.keep.iter().all(is_transcript), "{name}");
            // A key goes only to a host that the profile allows.
            for credential in &profile.credentials {
                assert!(credential.hosts.iter().all(|host| profile.hosts.contains(host)), "{name}");
            }
        }
        assert_eq!(AgentProfile::find(None, "make", &environment).unwrap().name, NO_PROFILE);
        assert_eq!(AgentProfile::find(Some("none"), "claude", &environment).unwrap().hosts, Vec::<String>::new());
    }

    #[test]
    fn the_owner_s_profile_holds_over_the_user_s_and_both_over_ours() {
        let directory = tempfile::tempdir().unwrap();
        let environment = environment(directory.path());
        let hosts = || AgentProfile::find(None, "claude", &environment).unwrap().hosts;
        assert_eq!(hosts(), ["api.anthropic.com"]);
        write(directory.path(), "config/profiles/claude.toml", "programs = [\"claude\"]\nhosts = [\"user.example\"]");
        assert_eq!(hosts(), ["user.example"]);
        write(directory.path(), "managed/profiles/claude.toml", "hosts = [\"owner.example\"]");
        assert_eq!(hosts(), ["owner.example"]);
    }

    #[test]
    fn a_profile_adds_to_its_base() {
        let directory = tempfile::tempdir().unwrap();
        let environment = environment(directory.path());
        write(
            directory.path(),
            "config/profiles/mine.toml",
            "base = \"claude\"\nhosts = [\"a.org\"]\nconnect = [5432]",
        );
        let [claude, mine] = ["claude", "mine"].map(|name| AgentProfile::find(Some(name), "", &environment).unwrap());
        assert_eq!(mine.hosts, ["api.anthropic.com", "a.org"]);
        assert_eq!((mine.name.as_str(), mine.connect.as_slice(), mine.programs.len()), ("mine", &[5432][..], 0));
        assert_eq!((mine.credentials.len(), mine.home.copy), (claude.credentials.len(), claude.home.copy));
        assert_eq!(mine.environment.set, claude.environment.set);
        let file = directory.path().join("config/profiles/mine.toml");
        let by_file = AgentProfile::find(file.to_str(), "", &environment).unwrap();
        assert_eq!((by_file.name.as_str(), by_file.hosts), ("mine", mine.hosts));
        write(directory.path(), "config/profiles/more.toml", "base = \"mine\"");
        let error = AgentProfile::find(Some("more"), "", &environment).unwrap_err().to_string();
        assert_eq!(error, "invalid profile `more`: its base `mine` has a base itself");
        assert!(AgentProfile::find(Some("./absent.toml"), "", &environment).is_err());
    }

    #[test]
    fn an_invalid_profile_is_refused_with_the_reason() {
        let directory = tempfile::tempdir().unwrap();
        let environment = environment(directory.path());
        for (text, problem) in [
            ("host = []", "unknown field `host`"),
            ("publish = [\"5173:\"]", "`5173:`: expected `[ADDRESS:]PORT[:PORT]`"),
            ("connect = [0]", "invalid value: integer `0`"),
            ("[home]\ncopy = [\"../x\"]", "`../x` must be a path below the home directory"),
            ("[home.files]\n\"/etc/x\" = \"\"", "`/etc/x` must be a path below the home directory"),
            ("[home]\nkeep = [\"a/**\"]", "`a/**` must have a name or a pattern"),
            ("[home]\nkeep = [\"/x\"]", "`/x` must be a path below the home directory"),
            ("[home]\nreview = [\"/x#/y\"]", "`/x` must be a path below the home directory"),
            ("[home]\nreview = [\"x#y\"]", "`#y` must be a JSON pointer"),
            ("[files]\n\"etc/x\" = \"\"", "`etc/x` must be an absolute path"),
            ("[files]\n\"/etc/../x\" = \"\"", "`/etc/../x` must be an absolute path"),
            ("[[credentials]]\nname = \"a\"\nhosts = []\nheaders = []\nsource = []", "credential `a`: `hosts` must"),
        ] {
            write(directory.path(), "config/profiles/mine.toml", text);
            let error = AgentProfile::find(Some("mine"), "", &environment).unwrap_err().to_string();
            assert!(error.starts_with(&format!("invalid profile `mine`: {problem}")), "{error}");
        }
        let error = AgentProfile::find(Some("absent"), "", &environment).unwrap_err().to_string();
        assert!(error.starts_with("unknown profile `absent`; available: aider, claude,"), "{error}");
    }
}
