//! Tool registry, and the catalog that a session is offered.
//!
//! One list: a tool is registered once, with its bindings, and nowhere else.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::suggest::nearest_name;
use crate::tool_binding::{ErasedTool, ToolAudience, ToolBinding, ToolDefinition, bind};
use crate::{Dialect, PhasedTool};

/// Every tool of a host, in the order in which it was registered.
///
/// A name that no tool has is an error, so that a rule or a filter about it cannot be without effect:
///
/// ```
/// use ringfence_kernel::{Dialect, ToolFilter, ToolRegistry};
///
/// let filter = ToolFilter { deny: ["raed_file".to_owned()].into(), ..ToolFilter::default() };
/// let error = ToolRegistry::new().catalog(Dialect::Standard, &filter).unwrap_err();
/// assert_eq!(error.to_string(), "the dialect standard has no tool `raed_file`");
/// ```
#[derive(Default)]
pub struct ToolRegistry {
    tools: Vec<Arc<dyn ErasedTool>>,
    forwards: Vec<CallForward>,
}

/// Calls of one tool that are calls of another, such as a command that does nothing but apply a patch.
///
/// Everything after the forward, policy and audit included, knows only the call of the other tool. Where a session is not
/// offered that one, nothing is forwarded.
#[derive(Clone, Copy, Debug)]
pub struct CallForward {
    /// The dialect of both names.
    pub dialect: Dialect,
    /// The tool that is called.
    pub from: &'static str,
    /// The tool that is meant.
    pub to: &'static str,
    /// The arguments for the other tool, from those of the call; nothing where the call means the tool that it names.
    pub arguments: fn(&str) -> Option<String>,
}

/// Two tools, or two bindings of one, have the same name in the same dialect.
#[derive(Debug, thiserror::Error)]
#[error("the dialect {dialect} already has a tool named `{name}`", dialect = dialect.name())]
pub struct DuplicateToolError {
    dialect: Dialect,
    name: Cow<'static, str>,
}

/// A choice of tools names one that does not exist.
#[derive(Debug, thiserror::Error)]
#[error("the dialect {dialect} has no tool `{name}`{suggestion}", dialect = dialect.name())]
pub struct UnknownToolError {
    dialect: Dialect,
    name: String,
    suggestion: String,
}

/// Selection of the tools of a session.
#[derive(Clone, Debug, Default)]
pub struct ToolFilter {
    /// Only these, if given.
    pub allow: Option<BTreeSet<String>>,
    /// Never these.
    pub deny: BTreeSet<String>,
    /// Toolsets that are offered; tools of others are not, even if `allow` names them.
    pub toolsets: BTreeSet<String>,
    /// Whose session it is: only persons are offered the tools for persons.
    pub audience: ToolAudience,
}

impl ToolFilter {
    /// Every tool of no toolset, and those for persons.
    pub fn for_persons() -> Self {
        Self { audience: ToolAudience::Persons, ..Self::default() }
    }
}

/// A choice of toolsets names one that does not exist.
#[derive(Debug, thiserror::Error)]
#[error("unknown toolset `{name}`; available: {known}")]
pub struct UnknownToolsetError {
    name: String,
    known: String,
}

impl ToolRegistry {
    /// A registry without tools.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tool with its bindings.
    pub fn register<T: PhasedTool>(
        &mut self,
        tool: T,
        bindings: impl IntoIterator<Item = ToolBinding<T>>,
    ) -> Result<(), DuplicateToolError> {
        let (tool, bindings) = (Arc::new(tool), Vec::from_iter(bindings));
        let names: Arc<[_]> = bindings.iter().map(ToolBinding::name).collect();
        for binding in bindings {
            let bound = bind(Arc::clone(&tool), binding, Arc::clone(&names));
            let ToolDefinition { dialect, name, .. } = bound.definition();
            if self.get(*dialect, name).is_some() {
                return Err(DuplicateToolError { dialect: *dialect, name: name.clone() });
            }
            self.tools.push(bound);
        }
        Ok(())
    }

    /// Adds a rule by which calls of one tool are calls of another.
    pub fn forward(&mut self, forward: CallForward) {
        self.forwards.push(forward);
    }

    /// The definition of a tool by its name in a dialect.
    pub fn get(&self, dialect: Dialect, name: &str) -> Option<&ToolDefinition> {
        self.list(dialect).find(|definition| definition.name == name)
    }

    /// The definitions of all tools of a dialect.
    pub fn list(&self, dialect: Dialect) -> impl Iterator<Item = &ToolDefinition> {
        self.tools.iter().map(|bound| bound.definition()).filter(move |definition| definition.dialect == dialect)
    }

    /// Fails at the first name that no tool of the dialect has.
    pub fn require(&self, dialect: Dialect, names: &[String]) -> Result<(), UnknownToolError> {
        let is_there = |name: &String| {
            is_mcp_tool(name) || self.list(dialect).any(|definition| name_matches(&definition.name, name))
        };
        names.iter().find(|name| !is_there(name)).map_or(Ok(()), |name| Err(self.unknown_tool_error(dialect, name)))
    }

    /// Fails at the first name that no tool of any dialect has: one config serves them all.
    pub fn require_in_any_dialect<'a>(
        &self,
        dialect: Dialect,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), UnknownToolError> {
        let is_there = |name: &str| {
            is_mcp_tool(name) || self.tools.iter().any(|bound| name_matches(&bound.definition().name, name))
        };
        let missing = names.into_iter().find(|name| !is_there(name));
        missing.map_or(Ok(()), |name| Err(self.unknown_tool_error(dialect, name)))
    }

    /// Fails at the first name that no toolset has.
    pub fn require_toolsets(&self, names: &BTreeSet<String>) -> Result<(), UnknownToolsetError> {
        let known: BTreeSet<&str> = self.tools.iter().filter_map(|bound| bound.definition().toolset).collect();
        let unknown = names.iter().find(|name| !known.contains(name.as_str()));
        unknown.map_or(Ok(()), |name| {
            let known = known.into_iter().collect::<Vec<_>>().join(", ");
            Err(UnknownToolsetError { name: name.clone(), known })
        })
    }

    /// The tools that a session in `dialect` is offered. The caller chooses the dialect, so a filter means a tool by
    /// each of its names.
    pub fn catalog(&self, dialect: Dialect, choice: &ToolFilter) -> Result<ToolCatalog, UnknownToolError> {
        self.require_in_any_dialect(dialect, choice.allow.iter().flatten().chain(&choice.deny).map(String::as_str))?;
        let offered = |bound: &&Arc<dyn ErasedTool>| {
            let is_in = |names: &BTreeSet<String>| names.iter().any(|wanted| any_name_matches(bound.names(), wanted));
            let is_default = bound.definition().toolset.is_none_or(|toolset| choice.toolsets.contains(toolset));
            let is_for_them =
                bound.definition().audience == ToolAudience::Everyone || choice.audience == ToolAudience::Persons;
            let is_chosen =
                is_for_them && is_default && !is_in(&choice.deny) && choice.allow.as_ref().is_none_or(is_in);
            bound.definition().dialect == dialect && is_chosen
        };
        let forwards = self.forwards.iter().filter(|forward| forward.dialect == dialect).copied().collect();
        Ok(ToolCatalog { tools: self.tools.iter().filter(offered).cloned().collect(), forwards })
    }
}

impl ToolRegistry {
    fn unknown_tool_error(&self, dialect: Dialect, name: &str) -> UnknownToolError {
        let guess = nearest_name(name, self.list(dialect).map(|definition| definition.name.as_ref()));
        let guess = guess.map(|guess| format!("; did you mean `{guess}`?")).unwrap_or_default();
        UnknownToolError { dialect, name: name.to_owned(), suggestion: guess }
    }
}

/// The tools of one session.
#[derive(Clone, Default)]
pub struct ToolCatalog {
    tools: Vec<Arc<dyn ErasedTool>>,
    forwards: Vec<CallForward>,
}

impl ToolCatalog {
    /// The definition of an offered tool by its name.
    pub fn get(&self, name: &str) -> Option<&ToolDefinition> {
        self.find_tool(name).map(|bound| bound.definition())
    }

    /// The definitions of all offered tools. A tool without a backend is not offered; a call of it says what to set.
    pub fn list(&self) -> impl Iterator<Item = &ToolDefinition> {
        self.tools.iter().map(|bound| bound.definition()).filter(|definition| definition.is_available)
    }

    /// The bare OpenAI form: `{name, description, parameters}`. That API allows no dot in a name: a hyphen stands for it.
    pub fn openai_functions(&self) -> Vec<Value> {
        self.list()
            .map(|tool| json!({"name": tool.name.replace('.', "-"), "description": tool.description(), "parameters": tool.parameters()}))
            .collect()
    }

    /// The wrapped OpenAI form: `{type: "function", function: {…}}`.
    pub fn openai_tools(&self) -> Vec<Value> {
        self.openai_functions().into_iter().map(|function| json!({"type": "function", "function": function})).collect()
    }

    /// Says that the session of these tools is over: what they keep for it, such as background jobs, ends.
    pub fn end_session(&self, session: &str) {
        self.tools.iter().for_each(|bound| bound.end_session(session));
    }

    /// Whether tools of other programs are among them, in the words of those.
    pub(crate) fn has_mcp_tools(&self) -> bool {
        self.list().any(|definition| is_mcp_tool(&definition.name))
    }

    /// Whether a tool of the session has this name too, in whatever dialect.
    pub(crate) fn has_alias(&self, tool: &str, wanted: &str) -> bool {
        name_matches(tool, wanted) || self.find_tool(tool).is_some_and(|bound| any_name_matches(bound.names(), wanted))
    }

    pub(crate) fn has_forwards(&self) -> bool {
        !self.forwards.is_empty()
    }

    /// The tool and the arguments that a call means, where these are not its own.
    pub(crate) fn forwarded(&self, name: &str, arguments: &str) -> Option<(String, String)> {
        self.forwards.iter().find_map(|forward| {
            let is_from = name_matches(forward.from, name) && self.find_tool(forward.from).is_some();
            let to = self.get(forward.to).filter(|to| is_from && to.is_available)?;
            Some((to.name.to_string(), (forward.arguments)(arguments)?))
        })
    }

    pub(crate) fn find_tool(&self, name: &str) -> Option<&Arc<dyn ErasedTool>> {
        self.tools.iter().find(|bound| name_matches(&bound.definition().name, name))
    }
}

/// Prefix of the names of MCP tools.
pub const MCP_TOOL_PREFIX: &str = "mcp__";

/// The tools of other programs are there when those are. A rule about one may wait for it.
fn is_mcp_tool(name: &str) -> bool {
    name.starts_with(MCP_TOOL_PREFIX)
}

/// Some APIs allow no dot in a name; a hyphen stands for it there.
pub(crate) fn name_matches(name: &str, wanted: &str) -> bool {
    name == wanted || (name.contains('.') && name.replace('.', "-") == wanted)
}

fn any_name_matches(names: &[Cow<'static, str>], wanted: &str) -> bool {
    names.iter().any(|name| name_matches(name, wanted))
}

impl fmt::Debug for ToolRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.tools.iter().map(|bound| bound.definition().name.as_ref())).finish()
    }
}

impl fmt::Debug for ToolCatalog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.list().map(|definition| definition.name.as_ref())).finish()
    }
}
