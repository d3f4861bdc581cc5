//! Commits at the beginning of a git pack, with their parents: enough to see that a push adds to a branch and drops nothing.
//!
//! Git writes commits before everything else. What stands behind the first other object, commits as deltas, and what is
//! beyond the limits is not read: a move of a branch is not proven then to be a fast-forward.
//!
//! Not here: the commands of a push (`receive_pack.rs`), and other objects.

use std::collections::{BTreeMap, BTreeSet};

use ringfence_net::inflate_first;
use sha1::{Digest as _, Sha1};

/// Bytes of a pack that are read.
pub(crate) const MAX_PACK_PREFIX: usize = 1 << 20;

/// A longer commit ends the reading.
const MAX_COMMIT_BYTES: usize = 64 << 10;

/// The magic, a version and a number of objects.
const HEADER_BYTES: usize = 12;

/// Types of objects in a pack.
const COMMIT: u8 = 1;

/// The commits of a pack, as far as they were read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PackCommits {
    parents: BTreeMap<String, Vec<String>>,
    /// Where the next object begins.
    offset: usize,
    objects_left: u32,
}

impl PackCommits {
    /// Reads on in a pack, of which these bytes are there. True when nothing more is read of it.
    pub(crate) fn read(&mut self, pack: &[u8]) -> bool {
        if self.offset == 0 {
            let Some((header, _)) = pack.split_at_checked(HEADER_BYTES) else { return false };
            let [b'P', b'A', b'C', b'K', 0, 0, 0, 2 | 3, count @ ..] = header else { return true };
            self.objects_left = <[u8; 4]>::try_from(count).map_or(0, u32::from_be_bytes);
            self.offset = HEADER_BYTES;
        }
        while self.objects_left > 0 {
            let rest = pack.get(self.offset..).unwrap_or_default();
            let Some(start) = object_header(rest) else { return rest.len() >= 10 };
            if start.kind != COMMIT || start.size > MAX_COMMIT_BYTES {
                return true;
            }
            let Some((contents, length)) = inflate_first(&rest[start.length..], start.size) else {
                // It may go on.
                return rest.len() > 2 * MAX_COMMIT_BYTES;
            };
            let digest = Sha1::new().chain_update(format!("commit {}\0", contents.len())).chain_update(&contents);
            let id: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
            self.parents.insert(id, parents_of(&contents));
            self.offset += start.length + length;
            self.objects_left -= 1;
        }
        true
    }

    /// Whether one commit is an ancestor of another, by what was read.
    pub(crate) fn are_descended(&self, ancestor: &str, commit: &str) -> bool {
        let (mut seen, mut left) = (BTreeSet::new(), vec![commit]);
        while let Some(id) = left.pop() {
            if id == ancestor {
                return true;
            }
            if seen.insert(id) {
                left.extend(self.parents.get(id).into_iter().flatten().map(String::as_str));
            }
        }
        false
    }
}

/// The beginning of an object of a pack.
struct ObjectHeader {
    kind: u8,
    size: usize,
    /// Its own bytes.
    length: usize,
}

/// `None`: it is not all there, or has no end.
fn object_header(bytes: &[u8]) -> Option<ObjectHeader> {
    let (first, rest) = bytes.split_first()?;
    let (kind, mut size, mut shift) = (first >> 4 & 7, usize::from(first & 15), 4);
    if first & 0x80 == 0 {
        return Some(ObjectHeader { kind, size, length: 1 });
    }
    for (index, byte) in rest.iter().enumerate().take(8) {
        size |= usize::from(byte & 0x7f).checked_shl(shift)?;
        shift += 7;
        if byte & 0x80 == 0 {
            return Some(ObjectHeader { kind, size, length: index + 2 });
        }
    }
    None
}

/// Parents are in the lines before the first empty one.
fn parents_of(commit: &[u8]) -> Vec<String> {
    let lines = commit.split(|byte| *byte == b'\n').take_while(|line| !line.is_empty());
    let ids = lines.filter_map(|line| std::str::from_utf8(line.strip_prefix(b"parent ")?).ok());
    ids.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::ZlibEncoder;
    use sha1::{Digest as _, Sha1};

    use super::PackCommits;

    fn id_of(commit: &str) -> String {
        let digest = Sha1::digest(format!("commit {}\0{commit}", commit.len()));
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn commit(parents: &[&str], message: &str) -> String {
        let parents: String = parents.iter().map(|id| format!("parent {id}\n")).collect();
        format!("tree {}\n{parents}author A <a@b> 1 +0000\n\n{message}\nparent {}\n", "0".repeat(40), "9".repeat(40))
    }

    fn pack(objects: &[(u8, &str)]) -> Vec<u8> {
        let mut pack = b"PACK\0\0\0\x02".to_vec();
        pack.extend(u32::try_from(objects.len()).unwrap().to_be_bytes());
        for (kind, contents) in objects {
            let size = contents.len();
            let low = kind << 4 | u8::try_from(size & 15).unwrap();
            match size >> 4 {
                0 => pack.push(low),
                high => pack.extend([low | 0x80, u8::try_from(high).unwrap()]),
            }
            let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(contents.as_bytes()).unwrap();
            pack.extend(encoder.finish().unwrap());
        }
        pack
    }

    #[test]
    fn a_move_is_a_fast_forward_if_the_commits_lead_back() {
        let old = "1".repeat(40);
        let first = commit(&[&old], "first");
        let second = commit(&[&"2".repeat(40), &id_of(&first)], "second, a merge");
        let bytes = pack(&[(1, &second), (1, &first), (2, "a tree"), (3, "a blob")]);
        for step in [1, 7, bytes.len()] {
            let mut commits = PackCommits::default();
            let done = (step..=bytes.len()).step_by(step).any(|end| commits.read(&bytes[..end]));
            assert!(done, "{step}");
            assert!(commits.are_descended(&old, &id_of(&second)));
            assert!(!commits.are_descended(&"9".repeat(40), &id_of(&second)), "a message has no parents");
            assert!(!commits.are_descended(&id_of(&second), &id_of(&first)));
            assert!(!commits.are_descended(&old, &"3".repeat(40)));
        }
    }

    #[test]
    fn what_cannot_be_read_proves_nothing() {
        let old = "1".repeat(40);
        let one = commit(&[&old], "x");
        for (bytes, is_done) in [
            (pack(&[(2, "a tree"), (1, &one)]), true),
            (pack(&[(7, "a delta")]), true),
            (b"PACK\0\0\0\x09\0\0\0\x01".to_vec(), true),
            (b"not a pack at all".to_vec(), true),
            (b"PACK".to_vec(), false),
            (pack(&[]), true),
            (pack(&[(1, &one)])[..20].to_vec(), false),
        ] {
            let mut commits = PackCommits::default();
            assert_eq!(commits.read(&bytes), is_done, "{bytes:?}");
            assert!(!commits.are_descended(&old, &id_of(&one)), "{bytes:?}");
        }
    }
}
