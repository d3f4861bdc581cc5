//! Names of tools as an interface of models lets them be.
//!
//! Both interfaces take letters, digits, `_` and `-`, at most 64 of them. Another character becomes `-`, and names that would
//! then be the same get a number. Only a name that was handed out is mapped back: whatever else a model writes stays as it is.

use std::collections::HashMap;

use crate::model::Offered;

const LONGEST: usize = 64;

/// The names of one question, both ways.
#[derive(Debug, Default)]
pub(crate) struct Names {
    wire: HashMap<String, String>,
    ours: HashMap<String, String>,
}

impl Names {
    pub(crate) fn of(tools: &[Offered]) -> Self {
        let mut names = Self::default();
        // A name that may stay as it is does, whatever the others become.
        let (legal, other): (Vec<&Offered>, Vec<&Offered>) = tools.iter().partition(|tool| is_legal(&tool.name));
        for tool in legal {
            names.hand_out(&tool.name, tool.name.clone());
        }
        for tool in other {
            names.hand_out(&tool.name, names.free(legalised(&tool.name)));
        }
        names
    }

    fn hand_out(&mut self, ours: &str, wire: String) {
        if !self.wire.contains_key(ours) {
            self.ours.insert(wire.clone(), ours.to_owned());
            self.wire.insert(ours.to_owned(), wire);
        }
    }

    /// The name itself, or with the first number that makes it another than all that were handed out.
    fn free(&self, name: String) -> String {
        let numbered = |number: usize| {
            let suffix = format!("-{number}");
            name.chars().take(LONGEST - suffix.len()).chain(suffix.chars()).collect()
        };
        let taken = |name: &String| self.ours.contains_key(name);
        if taken(&name) { (2..).map(numbered).find(|name| !taken(name)).unwrap_or(name) } else { name }
    }

    /// How the interface gets to see one of ours.
    pub(crate) fn to_wire(&self, name: &str) -> String {
        self.wire.get(name).cloned().unwrap_or_else(|| legalised(name))
    }

    /// What the session calls the tool that a model named.
    pub(crate) fn to_ours<'a>(&'a self, name: &'a str) -> &'a str {
        self.ours.get(name).map_or(name, String::as_str)
    }
}

fn is_legal(name: &str) -> bool {
    !name.is_empty() && name.len() <= LONGEST && name.chars().all(is_plain)
}

/// A name that is not offered, too, may have to be shown as part of the history.
fn legalised(name: &str) -> String {
    let name: String = name.chars().take(LONGEST).map(|c| if is_plain(c) { c } else { '-' }).collect();
    if name.is_empty() { "unnamed".to_owned() } else { name }
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::{Names, is_legal};
    use crate::model::Offered;

    fn names(offered: &[&str]) -> Names {
        let offer =
            |name: &&str| Offered { name: (*name).to_owned(), description: String::new(), parameters: json!({}) };
        Names::of(&offered.iter().map(offer).collect::<Vec<_>>())
    }

    #[test]
    fn dots_become_hyphens_and_come_back() {
        let names = names(&["fs.list", "read_file"]);
        assert_eq!((names.to_wire("fs.list").as_str(), names.to_wire("read_file").as_str()), ("fs-list", "read_file"));
        assert_eq!((names.to_ours("fs-list"), names.to_ours("read_file")), ("fs.list", "read_file"));
    }

    #[test]
    fn names_that_would_be_the_same_are_told_apart() {
        let names = names(&["fs.list", "fs-list", "fs/list"]);
        assert_eq!(names.to_wire("fs-list"), "fs-list");
        assert_eq!((names.to_wire("fs.list").as_str(), names.to_wire("fs/list").as_str()), ("fs-list-2", "fs-list-3"));
        assert_eq!((names.to_ours("fs-list"), names.to_ours("fs-list-2")), ("fs-list", "fs.list"));
    }

    #[test]
    fn a_name_that_is_not_offered_stays_as_the_model_wrote_it() {
        let names = names(&["fs.list"]);
        for name in ["", "fs.list:", "functions.fs-list", "Fs-list", "rm -rf"] {
            assert_eq!(names.to_ours(name), name);
        }
    }

    #[test]
    fn what_a_model_made_up_can_be_shown_to_it_again() {
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
                prop_assert_eq!(names.to_ours(&wire), name);
            }
        }
    }
}
