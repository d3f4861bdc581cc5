//! File of refusals: the texts of what was refused, for the program that it was refused to.
//!
//! Each text is there once. The length is limited, so that a program that is refused without end fills no memory.
//!
//! Not here: the record of a refusal, which is in the audit log.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write as _;

/// Most bytes of a file.
const MAX_BYTES: usize = 16 << 10;

/// What was refused so far.
#[derive(Debug, Default)]
pub(crate) struct RefusalsFile(RefCell<WrittenRefusals>);

#[derive(Debug, Default)]
struct WrittenRefusals {
    /// Absent before the program starts.
    file: Option<File>,
    texts: BTreeSet<String>,
    bytes: usize,
}

impl RefusalsFile {
    pub(crate) fn open(&self, file: File) {
        self.0.borrow_mut().file = Some(file);
    }

    pub(crate) fn add(&self, text: &str) {
        let mut written = self.0.borrow_mut();
        let line = text.replace('\n', " ") + "\n";
        if written.bytes + line.len() > MAX_BYTES || written.texts.contains(&line) {
            return;
        }
        if let Some(file) = &mut written.file {
            // The audit log has it in any case.
            let _ = file.write_all(line.as_bytes());
        }
        written.bytes += line.len();
        written.texts.insert(line);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Seek as _};

    use super::{MAX_BYTES, RefusalsFile};

    #[test]
    fn each_text_is_there_once_and_the_length_is_limited() {
        let refusals = RefusalsFile::default();
        let mut file = tempfile::tempfile().unwrap();
        refusals.open(file.try_clone().unwrap());
        refusals.add("a\nb");
        refusals.add("a b");
        refusals.add("c");
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "a b\nc\n");
        for number in 0..MAX_BYTES {
            refusals.add(&format!("refusal {number}"));
        }
        assert!(file.metadata().unwrap().len() <= MAX_BYTES as u64);
    }
}
