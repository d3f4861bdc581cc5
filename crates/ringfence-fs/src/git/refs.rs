//! Git references: loose files, `packed-refs`, and symbolic ones.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use crate::git::{GitOid, GitReadBudget, GitReadError, RepositoryFiles, parse_oid};

/// Symbolic references lead to one another no further than this.
const MOST_STEPS: usize = 5;

/// Most loose references that are read.
const MOST_REFERENCES: usize = 20_000;

/// The references of a repository.
pub(crate) struct GitRefStore<'a> {
    files: &'a dyn RepositoryFiles,
    budget: &'a GitReadBudget<'a>,
    packed: BTreeMap<Vec<u8>, GitOid>,
}

impl<'a> GitRefStore<'a> {
    pub(crate) fn open(files: &'a dyn RepositoryFiles, budget: &'a GitReadBudget<'a>) -> Result<Self, GitReadError> {
        let packed = match files.open(b"packed-refs")? {
            Some(file) => parse_packed(&file.read_whole(budget)?)?,
            None => BTreeMap::new(),
        };
        Ok(Self { files, budget, packed })
    }

    pub(crate) fn packed(&self) -> &BTreeMap<Vec<u8>, GitOid> {
        &self.packed
    }

    /// The objects of all references, loose and packed.
    pub(crate) fn values(&self) -> Result<HashSet<GitOid>, GitReadError> {
        let mut values: HashSet<GitOid> = self.packed.values().copied().collect();
        let (mut left, mut scanned_directories) = (vec![b"refs".to_vec()], 0);
        while let Some(path) = left.pop() {
            scanned_directories += 1;
            if scanned_directories > MOST_REFERENCES {
                return Err(GitReadError("there are too many references"));
            }
            match self.files.open(&path)? {
                Some(_) => values.extend(self.resolve(&path)?),
                None => {
                    let names = self.files.names(&path)?;
                    left.extend(names.into_iter().map(|name| [path.as_slice(), b"/", &name].concat()));
                }
            }
        }
        values.extend(self.resolve(b"HEAD")?);
        Ok(values)
    }

    /// The object of a reference. `None` where it is unborn, or does not exist.
    pub(crate) fn resolve(&self, name: &[u8]) -> Result<Option<GitOid>, GitReadError> {
        let mut name = name.to_vec();
        for _ in 0..MOST_STEPS {
            let Some(file) = self.files.open(&name)? else { return Ok(self.packed.get(&name).copied()) };
            let text = file.read_whole(self.budget)?;
            let text = text.trim_ascii_end();
            match text.strip_prefix(b"ref:") {
                Some(target) => name = target.trim_ascii().to_vec(),
                None => return parse_oid(text).map(Some).ok_or(GitReadError("a reference cannot be read")),
            }
            if !is_reference(&name) {
                return Err(GitReadError("a reference leads outside `refs/`"));
            }
        }
        Err(GitReadError("a reference chain is too long"))
    }
}

/// Whether a name is one of a reference, and not of another file of the repository.
fn is_reference(name: &[u8]) -> bool {
    let mut parts = name.split(|byte| *byte == b'/');
    parts.next() == Some(b"refs")
        && parts.all(|part| !part.is_empty() && !part.starts_with(b".") && !part.ends_with(b".lock"))
}

fn parse_packed(text: &[u8]) -> Result<BTreeMap<Vec<u8>, GitOid>, GitReadError> {
    let mut refs = BTreeMap::new();
    for line in text.split(|byte| *byte == b'\n') {
        if line.is_empty() || line.starts_with(b"#") || line.starts_with(b"^") {
            continue;
        }
        let broken = GitReadError("`packed-refs` cannot be read");
        let (oid, name) = line.split_at_checked(40).ok_or(broken)?;
        let name = name.strip_prefix(b" ").filter(|name| is_reference(name)).ok_or(broken)?;
        refs.insert(name.to_vec(), parse_oid(oid).ok_or(broken)?);
    }
    Ok(refs)
}

/// The objects that lines name at these words: `FETCH_HEAD` at the first, a log at the first two. A log also says where a
/// checkout came from, and git goes back there by that name: one that is an object's counts too.
pub(crate) fn parse_oids(text: &[u8], words: &[usize]) -> Result<BTreeSet<GitOid>, GitReadError> {
    let broken = GitReadError("a file of references cannot be read");
    let mut oids = BTreeSet::new();
    for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let all: Vec<&[u8]> = line.split(|byte| byte.is_ascii_whitespace()).collect();
        for word in words {
            oids.insert(all.get(*word).and_then(|word| parse_oid(word)).ok_or(broken)?);
        }
        let message = line.split(|byte| *byte == b'\t').nth(1).unwrap_or_default();
        let from =
            message.strip_prefix(b"checkout: moving from ").and_then(|rest| rest.split(|byte| *byte == b' ').next());
        match from.filter(|from| from.len() >= 4 && from.iter().all(u8::is_ascii_hexdigit)) {
            Some(from) => oids.insert(parse_oid(from).ok_or(broken)?),
            None => false,
        };
    }
    Ok(oids)
}

/// Every word of a text that could be the name of an object.
pub(crate) fn oids_in(text: &[u8]) -> BTreeSet<GitOid> {
    text.split(|byte| !byte.is_ascii_alphanumeric()).filter_map(parse_oid).collect()
}
