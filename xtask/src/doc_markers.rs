//! Generated sections of the documents: commands write the text between two marks, the rest is written by hand.

use std::fs;

use crate::{print_status, root};

/// Replaces the text between the marks of a name in a document of the repository. False, with a message, if that fails.
pub(crate) fn write(document: &str, name: &str, inner: &str) -> bool {
    let file = root().join(document);
    let done = fs::read_to_string(&file).map_err(|error| format!("cannot be read: {error}")).and_then(|page| {
        let page = replace_between(&page, name, inner).ok_or_else(|| format!("has no marker for `{name}`"))?;
        fs::write(&file, page).map_err(|error| format!("cannot be written: {error}"))
    });
    done.map_err(|why| print_status(&format!("{document} {why}"))).is_ok()
}

/// The page with this text between the marks. Nothing if it does not have them.
pub(crate) fn replace_between(page: &str, name: &str, inner: &str) -> Option<String> {
    let (begin, end) = (format!("<!-- {name}: begin -->\n"), format!("<!-- {name}: end -->"));
    let (before, rest) = page.split_once(&begin)?;
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}{begin}{}\n{end}{after}", inner.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::replace_between;

    #[test]
    fn a_text_takes_the_place_of_the_one_before_and_no_other() {
        let page = "above\n<!-- bench fs: begin -->\nold\n<!-- bench fs: end -->\nbelow\n";
        let wanted = "above\n<!-- bench fs: begin -->\nnew\n<!-- bench fs: end -->\nbelow\n";
        assert_eq!(replace_between(page, "bench fs", "new\n\n").as_deref(), Some(wanted));
        assert_eq!(replace_between(page, "bench mcp", "new"), None);
        assert_eq!(replace_between("<!-- bench fs: begin -->\n", "bench fs", "new"), None);
    }
}
