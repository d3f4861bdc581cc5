//! Spelling suggestions: the nearest name to one that does not exist.
//!
//! Not here: acting on the guess. A near miss is named in the error and never run.

/// The candidate that `wanted` was most likely meant to be, if any is near enough to be worth saying.
///
/// ```
/// use ringfence_kernel::nearest_name;
///
/// assert_eq!(nearest_name("ReadFile", ["read_file", "write_file"]), Some("read_file"));
/// assert_eq!(nearest_name("reboot", ["read_file", "write_file"]), None);
/// ```
pub fn nearest_name<'a>(wanted: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    const MIN_SIMILARITY: f64 = 0.75;
    let plain = fold(wanted);
    if plain.is_empty() || plain.len() > 256 {
        return None;
    }
    candidates
        .into_iter()
        .filter(|candidate| *candidate != wanted)
        .map(|candidate| (strsim::normalized_damerau_levenshtein(&plain, &fold(candidate)), candidate))
        .filter(|(likeness, _)| *likeness >= MIN_SIMILARITY)
        .max_by(|a, b| a.0.total_cmp(&b.0).then_with(|| b.1.cmp(a.1)))
        .map(|(_, candidate)| candidate)
}

/// Spelling differences that models make most: case, `-` for `_`, and white space around a name.
fn fold(name: &str) -> String {
    name.trim().chars().flat_map(char::to_lowercase).map(|c| if c == '-' { '_' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::nearest_name;

    #[track_caller]
    fn check(wanted: &str, expected: Option<&str>) {
        let names = ["read_file", "write_file", "list_directory", "edit_file"];
        assert_eq!(nearest_name(wanted, names), expected, "nearest to {wanted:?}");
    }

    #[test]
    fn a_near_miss_is_named_and_a_far_one_is_not() {
        check("read-file", Some("read_file"));
        check("ReadFile", Some("read_file"));
        check(" read_file ", Some("read_file"));
        check("list_dirctory", Some("list_directory"));
        check("delete_everything", None);
        check("", None);
        check(&"x".repeat(100_000), None);
    }

    #[test]
    fn equally_near_names_are_decided_by_order_of_the_alphabet() {
        assert_eq!(nearest_name("aXcdef", ["abcdef", "accdef"]), Some("abcdef"));
    }
}
