//! Dialects: the tool systems whose names, arguments and replies Ringfence has.
//!
//! A dialect never does I/O and never decides about safety: it only translates.
//!
//! Not here: its error codes and replies (`reply.rs`).

/// One of the tool systems that Ringfence is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// `{ok:true,value}` or `{ok:false,error}`; every tool there is.
    #[default]
    Standard,
    /// Plain text, `ok: …` or `category: detail`; five workspace tools.
    Miniclaw,
    /// Flat JSON, `{ok:true,…}` or `{ok:false,error}`; `fs.*` over mounts.
    Crewagent,
    /// Plain text; the tools and arguments that Claude models are trained with.
    Claude,
    /// Plain text; the tools and arguments that GPT models are trained with.
    Codex,
    /// Plain text; the tools and arguments that Gemini models are trained with.
    Gemini,
}

/// Tools of `standard` that most tasks begin with.
const STANDARD_CORE_TOOLS: [&str; 7] =
    ["read_file", "write_file", "edit_file", "list_directory", "find_files", "search_files", "run_code"];

/// Tools of the model families that most tasks do without.
const FAMILY_EXTRA_TOOLS: [&str; 14] = [
    "WebFetch",
    "WebSearch",
    "web_fetch",
    "google_web_search",
    "git_status",
    "git_diff",
    "git_log",
    "git_commit",
    "git_push",
    "git_fetch",
    "run_tests",
    "format_code",
    "install_package",
    "search_code",
];

impl Dialect {
    /// Every dialect.
    pub const ALL: [Self; 6] =
        [Self::Standard, Self::Miniclaw, Self::Crewagent, Self::Claude, Self::Codex, Self::Gemini];

    /// Name of the dialect in config and in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Standard => "standard",
            Self::Miniclaw => "miniclaw",
            Self::Crewagent => "crewagent",
            Self::Claude => "claude",
            Self::Codex => "codex",
            Self::Gemini => "gemini",
        }
    }

    /// Name of the workspace as a mount.
    ///
    /// The kernel has to know both names: the caller chooses the dialect, and a rule about the workspace must hold in each
    /// of them (`resource.rs`). A name that is passed in could be left out, and the rule would hold in one dialect only.
    pub const fn workspace_mount(self) -> &'static str {
        match self {
            Self::Standard | Self::Miniclaw | Self::Claude | Self::Codex | Self::Gemini => "workspace",
            Self::Crewagent => "project",
        }
    }

    /// True for the dialects of model families, whose replies are plain text for a model.
    pub const fn is_model_family(self) -> bool {
        matches!(self, Self::Claude | Self::Codex | Self::Gemini)
    }

    /// The dialect that a model was trained with, by the model's name; `None` for a name of no known family. A provider may
    /// stand in front of it: `anthropic/claude-x`, `us.anthropic.claude-x`.
    pub fn for_model(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        let families =
            [("claude", Self::Claude), ("gpt-", Self::Codex), ("codex", Self::Codex), ("gemini", Self::Gemini)];
        name.split(['/', '.', ':']).find_map(|part| {
            let is_reasoning_model =
                part.strip_prefix('o').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
            let family = families.iter().find(|(prefix, _)| part.starts_with(prefix)).map(|(_, dialect)| *dialect);
            family.or(is_reasoning_model.then_some(Self::Codex))
        })
    }

    /// True for a tool that most tasks need, by its name in this dialect: its definition is given to a model at once, and
    /// those of the others on demand. Every tool of the dialects that other systems fix is one.
    pub fn is_core_tool(self, name: &str) -> bool {
        match self {
            Self::Standard => STANDARD_CORE_TOOLS.contains(&name),
            Self::Claude | Self::Codex | Self::Gemini => !FAMILY_EXTRA_TOOLS.contains(&name),
            Self::Miniclaw | Self::Crewagent => true,
        }
    }

    /// The dialect of a name; `None` for an unknown one.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dialect| dialect.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::Dialect;

    #[test]
    fn a_model_s_name_tells_its_family() {
        let check = |name: &str, expected: Option<Dialect>| assert_eq!(Dialect::for_model(name), expected, "{name}");
        for name in ["claude-opus-4-8", "anthropic/claude-sonnet-5", "us.anthropic.claude-haiku-4-5-v1:0"] {
            check(name, Some(Dialect::Claude));
        }
        for name in ["gpt-5.5", "openai/gpt-6.1-mini", "o4-mini", "codex-mini-latest", "GPT-5"] {
            check(name, Some(Dialect::Codex));
        }
        for name in ["gemini-3-pro", "models/gemini-3-flash", "google/gemini-2.5-pro"] {
            check(name, Some(Dialect::Gemini));
        }
        for name in ["", "qwen3:30b", "llama3.1:8b", "mistral-large", "olmo-2", "my-claude", "gpt", "script"] {
            check(name, None);
        }
    }
}
