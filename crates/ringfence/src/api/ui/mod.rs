//! Web UI assets: hand-written files, embedded in the binary as they are in this directory.
//!
//! Nothing is built or fetched, and tests enforce the rule of `dom.js`: no file makes markup of text.
//!
//! Not here: serving them, and the API that they use.

/// A file of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UiAsset {
    pub(crate) content_type: &'static str,
    pub(crate) bytes: &'static [u8],
}

/// The file of this name, such as `views/files.js`; the page itself is `index.html`.
pub(crate) fn asset(path: &str) -> Option<UiAsset> {
    let (_, bytes) = FILES.iter().find(|(name, _)| *name == path)?;
    Some(UiAsset { content_type: content_type(path), bytes })
}

fn content_type(path: &str) -> &'static str {
    match path.rsplit_once('.').map(|(_, ending)| ending) {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "text/javascript; charset=utf-8",
    }
}

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_bytes!($name))),*]
    };
}

const FILES: &[(&str, &[u8])] = files![
    "api.js",
    "approval.css",
    "approval.js",
    "ask.js",
    "cards.js",
    "diff.js",
    "dom.js",
    "events.js",
    "favicon.js",
    "form.js",
    "index.html",
    "links.js",
    "jobs.js",
    "logo.svg",
    "main.js",
    "reply_card.js",
    "request.js",
    "state.js",
    "style.css",
    "time.js",
    "undo.js",
    "values.js",
    "views.css",
    "views/approvals.js",
    "views/audit.js",
    "views/call.js",
    "views/changes.js",
    "views/history.js",
    "views/files.js",
    "views/isolation.js",
    "views/login.js",
    "views/policy.js",
    "views/runs.js",
    "views/session.js",
    "views/sessions.js",
    "views/wrapped.js",
    "visible.js",
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::{FILES, asset};

    fn texts() -> impl Iterator<Item = (&'static str, &'static str)> {
        FILES.iter().map(|(name, bytes)| (*name, std::str::from_utf8(bytes).unwrap()))
    }

    fn scripts() -> impl Iterator<Item = (&'static str, &'static str)> {
        texts().filter(|(name, _)| name.ends_with(".js"))
    }

    /// The text between the first quotes of a piece.
    fn quoted(text: &str) -> Option<&str> {
        let quote = text.find(['\'', '"'])?;
        text[quote + 1..].split(['\'', '"']).next()
    }

    #[test]
    fn every_file_of_the_directory_is_in_the_binary() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/api/ui");
        let mut found = BTreeSet::new();
        let mut left = vec![directory.clone()];
        while let Some(below) = left.pop() {
            for entry in fs::read_dir(below).unwrap() {
                let path: PathBuf = entry.unwrap().path();
                match path.is_dir() {
                    true => left.push(path),
                    false => drop(found.insert(path.strip_prefix(&directory).unwrap().display().to_string())),
                }
            }
        }
        found.remove("mod.rs");
        assert_eq!(found, FILES.iter().map(|(name, _)| (*name).to_owned()).collect());
    }

    #[test]
    fn every_module_that_is_imported_is_there() {
        let mut imports = 0;
        for (name, text) in scripts() {
            let above = Path::new(name).parent().unwrap();
            for line in text.lines().filter(|line| line.starts_with("import ")) {
                let from = quoted(line).unwrap();
                let target = match from.strip_prefix("../") {
                    Some(rest) => above.parent().unwrap().join(rest),
                    None => above.join(from.strip_prefix("./").unwrap()),
                };
                assert!(asset(&target.display().to_string()).is_some(), "{name} imports {from}");
                imports += 1;
            }
        }
        assert!(imports > 50, "{imports} imports were found");
    }

    #[test]
    fn the_page_names_only_files_that_are_there() {
        let page = texts().find(|(name, _)| *name == "index.html").unwrap().1;
        let named: Vec<&str> = page.split("/page/").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
        assert!(named.contains(&"main.js") && named.contains(&"style.css"), "{named:?}");
        for name in named {
            assert!(asset(name).is_some(), "{name}");
        }
    }

    #[test]
    fn no_file_makes_markup_or_code_of_text() {
        const NEVER: &[&str] = &[
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "setHTML",
            "DOMParser",
            "createContextualFragment",
            "srcdoc",
            "javascript:",
            "import(",
        ];
        for (name, text) in texts() {
            for word in NEVER {
                assert!(!text.contains(word), "{name} has `{word}`");
            }
        }
    }

    #[test]
    fn elements_are_made_in_one_file() {
        let makers: Vec<&str> =
            scripts().filter(|(_, text)| text.contains("createElement(")).map(|(name, _)| name).collect();
        // A download needs a link that is never on the page.
        assert_eq!(makers, ["dom.js", "views/files.js"]);
    }

    #[test]
    fn the_page_has_no_script_or_style_in_it() {
        let page = texts().find(|(name, _)| *name == "index.html").unwrap().1;
        for script in page.split("<script").skip(1) {
            assert!(script.split('>').nth(1).unwrap().starts_with("</script"), "a script in the page: {script}");
        }
        assert!(!page.contains("<style") && !page.contains(" style=") && !page.contains(" on"), "{page}");
    }

    #[test]
    fn nothing_is_asked_of_another_host() {
        for (name, text) in texts() {
            let hosts = text.matches("http://").count() + text.matches("https://").count();
            let namespaces = text.matches("http://www.w3.org/2000/svg").count();
            assert_eq!(hosts, namespaces, "{name} names a host");
        }
    }

    #[test]
    fn every_script_and_style_opens_by_saying_what_it_is() {
        for (name, text) in texts().filter(|(name, _)| name.ends_with(".js") || name.ends_with(".css")) {
            assert!(text.starts_with("// ") || text.starts_with("/* "), "{name} has no header");
            assert!(text.lines().count() <= 400, "{name} is long");
        }
    }

    #[test]
    fn files_have_their_types_and_other_names_are_none() {
        let types = ["index.html", "style.css", "main.js", "logo.svg"].map(|name| asset(name).unwrap().content_type);
        let utf8 = ["text/html; charset=utf-8", "text/css; charset=utf-8", "text/javascript; charset=utf-8"];
        assert_eq!(types, [utf8[0], utf8[1], utf8[2], "image/svg+xml"]);
        for name in ["", "mod.rs", "views", "views/", "../page/main.js", "/main.js"] {
            assert_eq!(asset(name), None, "{name}");
        }
    }
}
