//! The dialect of a session: named by a setting, or chosen for the agent's model or for a client.
//!
//! Not here: names and texts of the tools in a dialect, which are their bindings.

use ringfence_kernel::Dialect;

use crate::config::agents::ProviderChoice;
use crate::config::{AppSettings, NamedValues};

/// The setting `dialect`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DialectSetting {
    Named(Dialect),
    /// By the name of the agent's model, or as the client's entry says.
    Auto,
}

impl NamedValues for DialectSetting {
    const VALUES: &'static [(&'static str, Self)] = &[
        (Dialect::Standard.name(), Self::Named(Dialect::Standard)),
        (Dialect::Miniclaw.name(), Self::Named(Dialect::Miniclaw)),
        (Dialect::Crewagent.name(), Self::Named(Dialect::Crewagent)),
        (Dialect::Claude.name(), Self::Named(Dialect::Claude)),
        (Dialect::Codex.name(), Self::Named(Dialect::Codex)),
        (Dialect::Gemini.name(), Self::Named(Dialect::Gemini)),
        ("auto", Self::Auto),
    ];
}

/// Source of the dialect in the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DialectSource {
    /// A config or the command line names it.
    Setting,
    /// It is to be chosen: a config says so, or there is none.
    Auto,
    /// There is a config that says nothing about it.
    Default,
}

impl AppSettings {
    /// Chooses the dialect by the name of the agent's model, where the settings leave it open. A model of no known family, and
    /// a script, keep `standard`.
    pub(crate) fn choose_dialect_for_model(&mut self) {
        let is_script = self.model.provider == Some(ProviderChoice::Script);
        if self.dialect_source == DialectSource::Auto && !is_script {
            self.dialect = self.model.model.as_deref().and_then(Dialect::for_model).unwrap_or_default();
        }
    }

    /// A message about the dialect, where it was chosen for the agent's model. None for a script, which has no choice.
    pub(crate) fn dialect_note(&self) -> Option<String> {
        let model = self.model.model.as_deref().filter(|_| self.model.provider != Some(ProviderChoice::Script))?;
        (self.dialect_source == DialectSource::Auto)
            .then(|| format!("tools of the dialect `{}`, chosen for the model `{model}`", self.dialect.name()))
    }

    /// Takes the dialect that the entry of a client wants, where no config names one.
    pub(crate) fn choose_dialect_for_client(&mut self, wanted: Option<Dialect>) {
        if let Some(wanted) = wanted.filter(|_| self.dialect_source != DialectSource::Setting) {
            self.dialect = wanted;
        }
    }
}

#[cfg(test)]
mod tests {
    use ringfence_kernel::Dialect;

    use crate::config::{CliFlags, Environment, load};

    /// The dialect of the agent, and of a client whose entry asks for `gemini`.
    #[track_caller]
    fn check(user: Option<&str>, model: &str, expected: [Dialect; 2]) {
        let directory = tempfile::tempdir().unwrap();
        let config = directory.path().join("config");
        std::fs::create_dir_all(&config).unwrap();
        if let Some(text) = user {
            std::fs::write(config.join("config.toml"), text).unwrap();
        }
        let environment =
            Environment { config: Some(config), ..Environment::isolated(directory.path(), "/bin/ringfence") };
        let settings = load(&CliFlags::default(), &environment).unwrap();
        let mut of_agent = settings.clone();
        of_agent.model.model = Some(model.to_owned());
        of_agent.choose_dialect_for_model();
        let mut of_client = settings;
        of_client.choose_dialect_for_client(Some(Dialect::Gemini));
        assert_eq!([of_agent.dialect, of_client.dialect], expected, "{user:?} {model}");
    }

    #[test]
    fn a_dialect_is_chosen_where_no_config_names_one() {
        use Dialect::{Claude, Codex, Gemini, Miniclaw, Standard};
        check(None, "claude-opus-4-8", [Claude, Gemini]);
        check(None, "gpt-5.5", [Codex, Gemini]);
        check(None, "qwen3:30b", [Standard, Gemini]);
        check(Some("dialect = \"auto\"\n"), "gemini-3-pro", [Gemini, Gemini]);
        check(Some("dialect = \"standard\"\n"), "claude-opus-4-8", [Standard, Standard]);
        check(Some("dialect = \"miniclaw\"\n"), "claude-opus-4-8", [Miniclaw, Miniclaw]);
        // What ran in `standard` before there were others stays so.
        check(Some("[agents.defaults]\nmodel = \"x\"\n"), "claude-opus-4-8", [Standard, Gemini]);
        check(Some("dialect = \"auto\"\n[agents.defaults]\nprovider = \"script\"\n"), "claude-x", [Standard, Gemini]);
    }
}
