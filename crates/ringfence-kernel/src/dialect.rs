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
}

impl Dialect {
    /// Every dialect.
    pub const ALL: [Self; 3] = [Self::Standard, Self::Miniclaw, Self::Crewagent];

    /// Name of the dialect in config and in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Standard => "standard",
            Self::Miniclaw => "miniclaw",
            Self::Crewagent => "crewagent",
        }
    }

    /// Name of the workspace as a mount.
    ///
    /// The kernel has to know both names: the caller chooses the dialect, and a rule about the workspace must hold in each
    /// of them (`resource.rs`). A name that is passed in could be left out, and the rule would hold in one dialect only.
    pub const fn workspace_mount(self) -> &'static str {
        match self {
            Self::Standard | Self::Miniclaw => "workspace",
            Self::Crewagent => "project",
        }
    }

    /// The dialect of a name; `None` for an unknown one.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dialect| dialect.name() == name)
    }
}
