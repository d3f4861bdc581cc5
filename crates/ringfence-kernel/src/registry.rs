//! The tools there are, and the part of them that a session is offered.
//!
//! One list: a tool is registered once, with its faces, and nowhere else.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::face::{Definition, Face, Offer, bind};
use crate::suggest::nearest;
use crate::{Dialect, Tool};

/// Every tool of a host, in the order in which it was registered.
#[derive(Default)]
pub struct Registry {
    offers: Vec<Arc<dyn Offer>>,
}

/// Two tools, or two faces of one, want the same name in the same dialect.
#[derive(Debug, thiserror::Error)]
#[error("the dialect {dialect} has a tool named `{name}` already", dialect = dialect.name())]
pub struct NameTaken {
    dialect: Dialect,
    name: Cow<'static, str>,
}

/// A choice of tools names one that does not exist.
#[derive(Debug, thiserror::Error)]
#[error("there is no tool `{name}` in the dialect {dialect}{guess}", dialect = dialect.name())]
pub struct NoSuchTool {
    dialect: Dialect,
    name: String,
    guess: String,
}

/// Which tools a session is offered.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Only these, if given.
    pub allow: Option<BTreeSet<String>>,
    /// Never these.
    pub deny: BTreeSet<String>,
}

impl Registry {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn register<T: Tool>(&mut self, tool: T, faces: impl IntoIterator<Item = Face<T>>) -> Result<(), NameTaken> {
        let (tool, faces) = (Arc::new(tool), Vec::from_iter(faces));
        let names: Arc<[_]> = faces.iter().map(Face::name).collect();
        for face in faces {
            let offer = bind(Arc::clone(&tool), face, Arc::clone(&names));
            let Definition { dialect, name, .. } = offer.definition();
            if self.get(*dialect, name).is_some() {
                return Err(NameTaken { dialect: *dialect, name: name.clone() });
            }
            self.offers.push(offer);
        }
        Ok(())
    }

    pub fn get(&self, dialect: Dialect, name: &str) -> Option<&Definition> {
        self.list(dialect).find(|definition| definition.name == name)
    }

    pub fn list(&self, dialect: Dialect) -> impl Iterator<Item = &Definition> {
        self.offers.iter().map(|offer| offer.definition()).filter(move |definition| definition.dialect == dialect)
    }

    /// Fails at the first name that no tool of the dialect has.
    pub fn require(&self, dialect: Dialect, names: &[String]) -> Result<(), NoSuchTool> {
        let is_there = |name: &String| {
            comes_and_goes(name) || self.list(dialect).any(|definition| is_called(&definition.name, name))
        };
        names.iter().find(|name| !is_there(name)).map_or(Ok(()), |name| Err(self.no_such_tool(dialect, name)))
    }

    /// Fails at the first name that no tool of any dialect has: one config serves them all.
    pub fn require_anywhere<'a>(
        &self,
        dialect: Dialect,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), NoSuchTool> {
        let is_there = |name: &str| {
            comes_and_goes(name) || self.offers.iter().any(|offer| is_called(&offer.definition().name, name))
        };
        let missing = names.into_iter().find(|name| !is_there(name));
        missing.map_or(Ok(()), |name| Err(self.no_such_tool(dialect, name)))
    }

    /// The tools that a session in `dialect` is offered. Who calls chooses the dialect, so a choice means a tool by each of its
    /// names.
    pub fn catalog(&self, dialect: Dialect, choice: &Choice) -> Result<Catalog, NoSuchTool> {
        self.require_anywhere(dialect, choice.allow.iter().flatten().chain(&choice.deny).map(String::as_str))?;
        let offered = |offer: &&Arc<dyn Offer>| {
            let is_in = |names: &BTreeSet<String>| names.iter().any(|wanted| is_one_of(offer.names(), wanted));
            offer.definition().dialect == dialect && !is_in(&choice.deny) && choice.allow.as_ref().is_none_or(is_in)
        };
        Ok(Catalog { offers: self.offers.iter().filter(offered).cloned().collect() })
    }
}

impl Registry {
    fn no_such_tool(&self, dialect: Dialect, name: &str) -> NoSuchTool {
        let guess = nearest(name, self.list(dialect).map(|definition| definition.name.as_ref()));
        let guess = guess.map(|guess| format!("; did you mean `{guess}`?")).unwrap_or_default();
        NoSuchTool { dialect, name: name.to_owned(), guess }
    }
}

/// The tools of one session.
#[derive(Clone, Default)]
pub struct Catalog {
    offers: Vec<Arc<dyn Offer>>,
}

impl Catalog {
    pub fn get(&self, name: &str) -> Option<&Definition> {
        self.offer(name).map(|offer| offer.definition())
    }

    pub fn list(&self) -> impl Iterator<Item = &Definition> {
        self.offers.iter().map(|offer| offer.definition())
    }

    /// The bare OpenAI form: `{name, description, parameters}`. That API allows no dot in a name: a hyphen stands for it.
    pub fn openai_functions(&self) -> Vec<Value> {
        self.list()
            .map(|tool| json!({"name": tool.name.replace('.', "-"), "description": tool.description, "parameters": tool.parameters}))
            .collect()
    }

    /// The wrapped OpenAI form: `{type: "function", function: {…}}`.
    pub fn openai_tools(&self) -> Vec<Value> {
        self.openai_functions().into_iter().map(|function| json!({"type": "function", "function": function})).collect()
    }

    /// Whether tools of other programs are among them, in the words of those.
    pub(crate) fn has_foreign(&self) -> bool {
        self.list().any(|definition| comes_and_goes(&definition.name))
    }

    /// Whether a tool of the session has this name too, in whatever dialect.
    pub(crate) fn is_called(&self, tool: &str, wanted: &str) -> bool {
        is_called(tool, wanted) || self.offer(tool).is_some_and(|offer| is_one_of(offer.names(), wanted))
    }

    pub(crate) fn offer(&self, name: &str) -> Option<&Arc<dyn Offer>> {
        self.offers.iter().find(|offer| is_called(&offer.definition().name, name))
    }
}

/// What the names of other programs' tools begin with.
pub const FOREIGN: &str = "mcp__";

/// The tools of other programs are there when those are. A rule about one may wait for it.
fn comes_and_goes(name: &str) -> bool {
    name.starts_with(FOREIGN)
}

/// Some APIs allow no dot in a name; a hyphen stands for it there.
pub(crate) fn is_called(name: &str, wanted: &str) -> bool {
    name == wanted || (name.contains('.') && name.replace('.', "-") == wanted)
}

fn is_one_of(names: &[Cow<'static, str>], wanted: &str) -> bool {
    names.iter().any(|name| is_called(name, wanted))
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.offers.iter().map(|offer| offer.definition().name.as_ref())).finish()
    }
}

impl fmt::Debug for Catalog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.list().map(|definition| definition.name.as_ref())).finish()
    }
}
