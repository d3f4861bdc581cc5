//! What the tests of reading share.

use std::fmt::Write as _;

use expect_test::Expect;
use ringfence_kernel::ErrorKind;

use super::{FilePatch, parse};

/// What is read from a patch; or what is wrong with it, without the advice.
pub(super) fn read(patch: &str) -> String {
    match parse(patch) {
        Ok(files) => files.iter().map(described).collect::<Vec<_>>().join("; "),
        Err(error) => {
            assert_eq!((error.kind, error.field), (ErrorKind::InvalidArgs, Some("patch")));
            error.message.split("; ").next().unwrap().to_owned()
        }
    }
}

fn described(file: &FilePatch) -> String {
    let mut said = format!("{:?} {}", file.change, file.path.as_deref().unwrap_or("-"));
    for hunk in &file.hunks {
        write!(said, ", {}: {:?} -> {:?}", hunk.stated, hunk.old.text, hunk.new.text).unwrap();
    }
    said
}

#[track_caller]
pub(super) fn check_read(patch: &str, expected: Expect) {
    expected.assert_eq(&read(patch));
}
