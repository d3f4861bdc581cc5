//! One rule: what it is about, and what it decides.
//!
//! A rule that allows reaches narrow and must hold for every name of a place; one that asks or denies reaches wide, and
//! one name is enough.
//!
//! Not here: how a rule is written (`rule_text.rs`), and which one wins where several match (`rules.rs`).

use std::fmt;
use std::sync::Arc;

use crate::pattern::{Hosts, PathName, Paths, Reach, path_pattern};
use crate::rule_text::Example;
use crate::tool::is_same_mount;
use crate::{Assurance, Bit, BitSet, Decision, MCP, Place, Question, Sensitivity, Touch, Verb, sensitivity};

/// A rule that was checked.
#[derive(Clone, Debug)]
pub struct Rule {
    pub(crate) name: Arc<str>,
    pub(crate) decision: Decision,
    pub(crate) tools: Vec<String>,
    pub(crate) effects: Vec<Verb>,
    pub(crate) paths: Option<Paths>,
    pub(crate) mounts: Vec<String>,
    pub(crate) hosts: Option<Hosts>,
    pub(crate) agents: Vec<String>,
    pub(crate) principals: Vec<String>,
    pub(crate) when: BitSet,
    pub(crate) secret: Option<bool>,
    pub(crate) protected: Option<bool>,
    pub(crate) assurance: Option<Assurance>,
    pub(crate) because: Option<String>,
    /// It is no rule that somebody wrote.
    pub(crate) is_ours: bool,
    /// Where it is written, for the person in charge and for no reply.
    pub(crate) source: Option<String>,
    pub(crate) examples: Vec<Example>,
}

impl Rule {
    /// A rule of our own that asks about everything, to be narrowed down. `because` follows what would happen.
    pub(crate) fn ours(name: &str, because: Option<&str>) -> Self {
        Self {
            name: Arc::from(name),
            decision: Decision::Ask,
            tools: Vec::new(),
            effects: Vec::new(),
            paths: None,
            mounts: Vec::new(),
            hosts: None,
            agents: Vec::new(),
            principals: Vec::new(),
            when: BitSet::default(),
            secret: None,
            protected: None,
            assurance: None,
            because: because.map(str::to_owned),
            is_ours: true,
            source: None,
            examples: Vec::new(),
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn decision(&self) -> Decision {
        self.decision
    }

    #[must_use]
    pub fn written_in(self, source: String) -> Self {
        Self { source: Some(source), ..self }
    }

    /// The file and line that it was written in.
    pub fn source(&self) -> Option<&str> {
        self.source.as_deref()
    }

    /// Every tool that the rule or one of its examples names.
    pub fn tool_names(&self) -> impl Iterator<Item = &str> {
        self.tools.iter().map(String::as_str).chain(self.examples.iter().filter_map(Example::tool))
    }

    pub fn mount_names(&self) -> impl Iterator<Item = &str> {
        self.mounts.iter().map(String::as_str)
    }

    pub(crate) fn is_about(&self, seen: &Seen<'_>, question: &Question<'_>, bits: BitSet) -> bool {
        self.is_about_call(question, bits) && self.is_about_touch(seen)
    }

    /// Whether the rule is about the call, whatever it touches.
    pub(crate) fn is_about_any_touch(&self, question: &Question<'_>) -> bool {
        let open = self.effects.is_empty() && self.mounts.is_empty() && self.paths.is_none() && self.hosts.is_none();
        open && self.secret.is_none() && self.protected.is_none() && self.is_about_call(question, question.bits)
    }

    fn is_about_call(&self, question: &Question<'_>, bits: BitSet) -> bool {
        let Question { session, tool, .. } = question;
        let one_of = |names: &[String], name: Option<&str>| {
            names.is_empty() || name.is_some_and(|name| names.iter().any(|one| one == name))
        };
        (self.tools.is_empty() || self.tools.iter().any(|name| session.catalog.is_called(tool, name)))
            && one_of(&self.agents, session.agent.as_deref())
            && one_of(&self.principals, Some(&session.principal.name))
            && bits.has_all(self.when)
    }

    pub(crate) fn is_about_touch(&self, seen: &Seen<'_>) -> bool {
        let reach = self.reach();
        // What allows must hold for every name of the place; what asks or denies, for one.
        let holds = |test: &dyn Fn(&Name) -> bool| match reach {
            Reach::Wide => seen.names.iter().any(test),
            Reach::Narrow => seen.names.iter().all(test),
        };
        let of_file = |test: &dyn Fn(&Name) -> bool| seen.may_be(Verb::is_about_files) && holds(test);
        // A pattern that is meant for files says nothing about tools.
        let has_path = |verb: Verb| verb.is_about_files() || (verb == Verb::External && self.is_about_tools());
        let of_path = |test: &dyn Fn(&Name) -> bool| seen.may_be(has_path) && holds(test);
        // What moves can be read under its new name.
        let reads = |verb: Verb| reach == Reach::Wide && verb == Verb::MoveAway && self.effects.contains(&Verb::Read);
        seen.may_be(|verb| self.effects.is_empty() || self.effects.contains(&verb) || reads(verb))
            && (self.mounts.is_empty()
                || seen.mount.is_none_or(|of| self.mounts.iter().any(|mount| is_same_mount(mount, of))))
            && self.paths.as_ref().is_none_or(|paths| of_path(&|name| paths.contain(&name.path, reach)))
            && self.secret.is_none_or(|secret| of_file(&|name| name.sensitivity.secret == secret))
            && self.protected.is_none_or(|protected| of_file(&|name| name.sensitivity.protected == protected))
            && self.hosts.as_ref().is_none_or(|hosts| {
                seen.may_be(|verb| verb == Verb::Fetch) && holds(&|name| hosts.contain(name.path.text(), reach))
            })
    }

    /// Whether its paths are those of other programs' tools.
    fn is_about_tools(&self) -> bool {
        self.effects.contains(&Verb::External) || self.mounts.iter().any(|mount| mount == MCP)
    }

    fn reach(&self) -> Reach {
        match self.decision {
            Decision::Allow => Reach::Narrow,
            Decision::Ask | Decision::Deny => Reach::Wide,
        }
    }

    /// The line that takes this touch out of the rule, where there is one that leaves the rest: of a file nothing else goes,
    /// of a host what is below the path.
    pub(crate) fn exception(&self, touch: &Touch) -> Option<String> {
        if touch.verb == Verb::Run {
            return None;
        }
        let fetches = touch.verb == Verb::Fetch;
        let (key, written) = match fetches {
            true => ("host", self.hosts.as_ref().map(|hosts| &hosts.written)),
            false => ("path", self.paths.as_ref().map(|paths| &paths.written)),
        };
        // With a path, a rule about every effect would no longer be about hosts, and the other way round.
        let alike = |effect: &Verb| match touch.verb {
            Verb::External => *effect == Verb::External,
            _ if fetches => *effect == Verb::Fetch,
            _ => effect.is_about_files(),
        };
        if written.is_none() && (self.effects.is_empty() || !self.effects.iter().all(alike)) {
            return None;
        }
        let mut patterns: Vec<String> = written.into_iter().flatten().cloned().collect();
        for name in touch.place.names() {
            match fetches {
                true => patterns = Hosts::written_without(&patterns, name)?,
                false => patterns.push(format!("!{}", path_pattern(name))),
            }
        }
        Some(format!("{key} = {}", quoted(&patterns)))
    }

    /// What the rule is about, as it would be written. Nothing where it is about everything.
    pub(crate) fn scope(&self) -> String {
        fn key<'a>(key: &str, words: impl IntoIterator<Item = &'a str>) -> Option<String> {
            let words: Vec<&str> = words.into_iter().collect();
            (!words.is_empty()).then(|| format!("{key} = {}", quoted(&words)))
        }
        let keys = [
            key("tool", self.tools.iter().map(String::as_str)),
            key("effect", effect_words(&self.effects)),
            key("path", self.paths.iter().flat_map(|paths| &paths.written).map(String::as_str)),
            key("mount", self.mounts.iter().map(String::as_str)),
            key("host", self.hosts.iter().flat_map(|hosts| &hosts.written).map(String::as_str)),
            key("agent", self.agents.iter().map(String::as_str)),
            key("principal", self.principals.iter().map(String::as_str)),
            key("when", self.when.iter().map(Bit::name)),
            self.secret.map(|secret| format!("secret = {secret}")),
            self.protected.map(|protected| format!("protected = {protected}")),
        ];
        keys.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

/// The rule as one line of a config file.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let because = self.because.as_deref().map(|because| format!("because = {}", quoted(&[because])));
        let keys = [
            Some(format!("name = {}", quoted(&[&self.name]))),
            Some(format!("decision = {}", quoted(&[self.decision.name()]))),
            Some(self.scope()).filter(|scope| !scope.is_empty()),
            self.assurance.map(|assurance| format!("assurance = {}", quoted(&[assurance.name()]))),
            because,
        ];
        write!(f, "{{ {} }}", keys.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

/// A touch, looked at once for all rules.
#[derive(Debug)]
pub(crate) struct Seen<'a> {
    /// Not known in an example that names a tool.
    verb: Option<Verb>,
    /// Not known in an example that names none.
    mount: Option<&'a str>,
    names: Vec<Name>,
}

#[derive(Debug)]
struct Name {
    path: PathName,
    sensitivity: Sensitivity,
}

impl<'a> Seen<'a> {
    pub(crate) fn of(touch: &'a Touch) -> Self {
        let Place { mount, .. } = &touch.place;
        // What is known of a file whatever it is called holds under each of its names.
        let known = |name: Name| Name { sensitivity: name.sensitivity.or(touch.place.sensitivity), ..name };
        let names = match &touch.place {
            // What its only name says was asked before, or will be once more.
            Place { given, resolved: None, .. } if touch.verb.is_about_files() => {
                vec![Name { path: PathName::new(given), sensitivity: touch.place.sensitive() }]
            }
            place => place.names().map(|name| known(Name::new(name, Some(touch.verb)))).collect(),
        };
        Self { verb: Some(touch.verb), mount: Some(mount), names }
    }

    /// What an example is about; what it leaves open is not known.
    pub(crate) fn example(verb: Option<Verb>, mount: Option<&'a str>, place: &str) -> Self {
        Self { verb, mount, names: vec![Name::new(place, verb)] }
    }

    pub(crate) fn is_secret(&self) -> bool {
        self.names.iter().any(|name| name.sensitivity.secret)
    }

    pub(crate) fn is_protected(&self) -> bool {
        self.names.iter().any(|name| name.sensitivity.protected)
    }

    fn may_be(&self, test: impl Fn(Verb) -> bool) -> bool {
        self.verb.map_or_else(|| Verb::ALL.into_iter().any(&test), &test)
    }
}

impl Name {
    fn new(text: &str, verb: Option<Verb>) -> Self {
        let is_file = verb.is_none_or(Verb::is_about_files);
        let sensitivity = if is_file { sensitivity(text) } else { Sensitivity::default() };
        Self { path: PathName::new(text), sensitivity }
    }
}

/// Words that stand for several effects.
pub(crate) const GROUPS: [(&str, &[Verb]); 2] =
    [("look", &[Verb::List, Verb::Read]), ("change", &[Verb::Create, Verb::Overwrite, Verb::MoveAway, Verb::Delete])];

/// Effects in the fewest words.
fn effect_words(effects: &[Verb]) -> Vec<&'static str> {
    let whole = GROUPS.iter().filter(|(_, verbs)| verbs.iter().all(|verb| effects.contains(verb)));
    let whole: Vec<_> = whole.collect();
    let rest = effects.iter().filter(|effect| !whole.iter().any(|(_, verbs)| verbs.contains(effect)));
    whole.iter().map(|(word, _)| *word).chain(rest.map(|verb| verb.as_str())).collect()
}

/// Words as a config file has them: one by itself, several in a list.
pub(crate) fn quoted(words: &[impl AsRef<str>]) -> String {
    let quote = |word: &str| serde_json::Value::from(word).to_string();
    match words {
        [one] => quote(one.as_ref()),
        several => {
            let several: Vec<String> = several.iter().map(|word| quote(word.as_ref())).collect();
            format!("[{}]", several.join(", "))
        }
    }
}
