//! Tool name mapping for model APIs that restrict names.
//!
//! Both interfaces take letters, digits, `_` and `-`, at most 64 of them. Another character becomes `-`, and names that would
//! then be the same get a number. Only a name that was handed out is mapped back: whatever else a model writes stays as it is.

use std::collections::HashMap;

use crate::model::ToolSpec;

const MAX_NAME_BYTES: usize = 64;

/// The names of one question, both ways.
#[derive(Debug, Default)]
pub(crate) struct ToolNameMap {
    wire_names: HashMap<String, String>,
    session_names: HashMap<String, String>,
}

impl ToolNameMap {
    pub(crate) fn new(tools: &[ToolSpec]) -> Self {
        let mut names = Self::default();
        // A name that may stay as it is does, whatever the others become.
        let (legal, other): (Vec<&ToolSpec>, Vec<&ToolSpec>) = tools.iter().partition(|tool| is_legal(&tool.name));
        for tool in legal {
            names.assign(&tool.name, tool.name.clone());
        }
        for tool in other {
            names.assign(&tool.name, names.unique_name(sanitize_name(&tool.name)));
        }
        names
    }

    fn assign(&mut self, ours: &str, wire: String) {
        if !self.wire_names.contains_key(ours) {
            self.session_names.insert(wire.clone(), ours.to_owned());
            self.wire_names.insert(ours.to_owned(), wire);
        }
    }

    /// The name itself, or with the first number that makes it another than all that were handed out.
    fn unique_name(&self, name: String) -> String {
        let numbered = |number: usize| {
            let suffix = format!("-{number}");
            name.chars().take(MAX_NAME_BYTES - suffix.len()).chain(suffix.chars()).collect()
        };
        let taken = |name: &String| self.session_names.contains_key(name);
        if taken(&name) { (2..).map(numbered).find(|name| !taken(name)).unwrap_or(name) } else { name }
    }

    /// The wire form of a tool name.
    pub(crate) fn to_wire(&self, name: &str) -> String {
        self.wire_names.get(name).cloned().unwrap_or_else(|| sanitize_name(name))
    }

    /// The session's name of a tool that a model named.
    pub(crate) fn to_session<'a>(&'a self, name: &'a str) -> &'a str {
        self.session_names.get(name).map_or(name, String::as_str)
    }
}

fn is_legal(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_NAME_BYTES && name.chars().all(is_plain)
}

/// A name that is not offered, too, may have to be shown as part of the history.
fn sanitize_name(name: &str) -> String {
    let name: String = name.chars().take(MAX_NAME_BYTES).map(|c| if is_plain(c) { c } else { '-' }).collect();
    if name.is_empty() { "unnamed".to_owned() } else { name }
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::{ToolNameMap, is_legal};
    use crate::model::ToolSpec;

    fn names(offered: &[&str]) -> ToolNameMap {
        let offer =
            |name: &&str| ToolSpec { name: (*name).to_owned(), description: String::new(), parameters: json!({}) };
        ToolNameMap::new(&offered.iter().map(offer).collect::<Vec<_>>())
    }

    #[test]
    fn dots_become_hyphens_and_come_back() {
        let names = names(&["fs.list", "read_file"]);
        assert_eq!((names.to_wire("fs.list").as_str(), names.to_wire("read_file").as_str()), ("fs-list", "read_file"));
        assert_eq!((names.to_session("fs-list"), names.to_session("read_file")), ("fs.list", "read_file"));
    }

    #[test]
    fn names_that_would_be_the_same_are_told_apart() {
        let names = names(&["fs.list", "fs-list", "fs/list"]);
        assert_eq!(names.to_wire("fs-list"), "fs-list");
        assert_eq!((names.to_wire("fs.list").as_str(), names.to_wire("fs/list").as_str()), ("fs-list-2", "fs-list-3"));
        assert_eq!((names.to_session("fs-list"), names.to_session("fs-list-2")), ("fs-list", "fs.list"));
    }

    #[test]
    fn a_name_that_is_not_offered_stays_as_the_model_wrote_it() {
        let names = names(&["fs.list"]);
        for name in ["", "fs.list:", "functions.fs-list", "Fs-list", "rm -rf"] {
            assert_eq!(names.to_session(name), name);
        }
    }

    #[test]
    fn an_invented_name_can_be_sent_back() {
        assert_eq!(names(&[]).to_wire("rm -rf /"), "rm--rf--");
        assert_eq!(names(&[]).to_wire(""), "unnamed");
    }

    proptest! {
        #[test]
        fn every_name_is_legal_unique_and_comes_back(offered in prop::collection::hash_set("[a-c.é/-]{0,3}|x{60,70}", 0..12)) {
            let offered: Vec<&str> = offered.iter().map(String::as_str).collect();
            let names = names(&offered);
            for name in offered {
                let wire = names.to_wire(name);
                prop_assert!(is_legal(&wire), "{wire}");
                prop_assert_eq!(names.to_session(&wire), name);
            }
        }
    }
}
