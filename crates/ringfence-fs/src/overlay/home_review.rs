//! Home review: what an agent changed in its own home directory that agents act on, such as settings, memories, hooks and
//! plugins, for a person who decides about each.
//!
//! A change is what the agent started with and what it has now, of a whole file or of one value of a JSON file. A person can
//! take it where their own version is what the agent started with, and that version stays beside it.
//!
//! Not here: what goes back without a question (`home_keep.rs`), and which files a profile names (`ringfence`).

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use ringfence_kernel::{CallContext, ErrorKind, PolicyAction, ResourceAccess, Ticket, ToolError};
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::mount::Mount;
use crate::overlay::home_files::{
    FoundHomeFile, HomeLayers, HomePattern, PersonFile, home_resource, make_home_directories, open_home,
    open_person_file, shown_path,
};
use crate::overlay::layer_review::{ReviewHunk, ReviewPolicy, ReviewRefusal, review_hunks};
use crate::overlay::layer_store::LayerStore;
use crate::overlay::text_hunks::LONGEST_TEXT;
use crate::path::name::escape;
use crate::path::relative::{join, split};
use crate::read::content::read_up_to;
use crate::read::digest::Digest;
use crate::root::{rename_noreplace, stat};
use crate::sys::errno::errno_error;
use crate::sys::own_files::{open_own_file, write_all};
use crate::sys::stat::FileStat;
use crate::sys::syscall::{fchmod, fdatasync, fsync, renameat_with, unlinkat};

/// Most changes of one review.
const MOST_CHANGES: usize = 1_000;

/// Names that a person's earlier version may get.
const MOST_EARLIER: usize = 1_000;

/// Why such a change is in a review.
const ACTS_LATER: &str = "agents act on it";

/// Changes of an agent's home directory. The home layers are locked until this is dropped.
#[derive(Debug)]
pub(crate) struct HomeReviewPlan {
    home: OwnedFd,
    _layers: HomeLayers,
    changes: Vec<HomeChange>,
}

/// A change of a file, or of one value in it.
#[derive(Debug)]
struct HomeChange {
    path: Vec<u8>,
    /// JSON pointer of the value.
    pointer: Option<String>,
    /// What the agent started with, and what it has now: the whole file, or the value.
    texts: (Option<Vec<u8>>, Vec<u8>),
    /// What a person's file gets, or why it gets nothing.
    update: Result<HomeUpdate, ToolError>,
}

/// New contents of a person's file.
#[derive(Debug)]
struct HomeUpdate {
    contents: Vec<u8>,
    /// The person's version.
    replaced: Option<(FileStat, Digest)>,
}

/// What a person takes of a home review.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct HomeChoice {
    /// A file below the home directory, as `review_home` names it without `~/`; `#` and a JSON pointer for one value of it.
    file: String,
    /// The `version` of the change in the review. Without it, whatever the change is now.
    version: Option<String>,
}

impl HomeChoice {
    pub(crate) fn file(&self) -> &str {
        &self.file
    }
}

/// Result.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct HomeReview {
    changes: Vec<HomeReviewItem>,
    /// Further changes that are not listed.
    omitted: u64,
}

/// A change in a home review.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct HomeReviewItem {
    path: String,
    /// `created` or `modified`.
    kind: &'static str,
    /// `file`, or `value` of a JSON file.
    entry: &'static str,
    size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    old_size: Option<u64>,
    why: &'static str,
    /// The decision of the policy about taking it.
    policy: ReviewPolicy,
    /// Why it cannot be taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<ReviewRefusal>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hunks: Option<Vec<ReviewHunk>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'static str>,
    /// Of both sides, for `take_home`.
    version: String,
}

/// Result.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct HomeTakeOutcome {
    taken: Vec<TakenHomeFile>,
    /// Changes that were not taken.
    refused: Vec<RefusedHomeFile>,
}

/// A change that was taken.
#[derive(Debug, Serialize, JsonSchema)]
struct TakenHomeFile {
    path: String,
    /// Where the person's earlier version is.
    #[serde(skip_serializing_if = "Option::is_none")]
    earlier: Option<String>,
}

/// A change that was not taken.
#[derive(Debug, Serialize, JsonSchema)]
struct RefusedHomeFile {
    path: String,
    message: String,
}

impl HomeReviewPlan {
    /// Finds the changes that were made after a time, in nanoseconds since 1970.
    pub(crate) fn new(
        store: &LayerStore,
        mount: &Mount,
        (home, profile, files): (&Path, &str, &[String]),
        since: i128,
        cx: &CallContext<'_>,
    ) -> Result<Self, ToolError> {
        let (home, layers) = (open_home(home)?, HomeLayers::open(store, mount, profile)?);
        let mut changes: Vec<HomeChange> = Vec::new();
        for file in files {
            let (pattern, pointer) = parse_file(file)?;
            for found in layers.find(&[pattern], cx)? {
                let is_known = changes.iter().any(|known| known.is_at(&found.path, pointer));
                if found.stat.is_some_and(|stat| stat.changed >= since) && !is_known {
                    changes.extend(HomeChange::compare(&home, &layers, &found, pointer, cx)?);
                }
            }
        }
        Ok(Self { home, _layers: layers, changes })
    }

    /// The changes that a person chose. Fails for one that there is not, or not any more.
    pub(crate) fn choose(mut self, choices: &[HomeChoice]) -> Result<Self, ToolError> {
        let all = std::mem::take(&mut self.changes);
        for choice in choices {
            let missing = || {
                ToolError::new(
                    ErrorKind::NotFound,
                    format!("`~/{}` has no such change", escape(choice.file.as_bytes())),
                )
            };
            let chosen = all.iter().position(|change| change.name() == choice.file).ok_or_else(missing)?;
            let change = &all[chosen];
            if choice.version.as_ref().is_some_and(|version| *version != change.version()) {
                let message = format!("`{}` changed after the review", change.shown());
                return Err(ToolError::new(ErrorKind::Conflict, message).hint("review it again"));
            }
        }
        let is_chosen = |change: &HomeChange| choices.iter().any(|choice| choice.file == change.name());
        self.changes = all.into_iter().filter(is_chosen).collect();
        Ok(self)
    }

    /// What the policy has to judge, to show the changes.
    pub(crate) fn read_accesses(&self) -> Vec<ResourceAccess> {
        self.accesses(|_| PolicyAction::Read)
    }

    /// What the policy has to judge, to take the changes.
    pub(crate) fn take_accesses(&self) -> Vec<ResourceAccess> {
        self.accesses(HomeChange::action)
    }

    fn accesses(&self, action: impl Fn(&HomeChange) -> PolicyAction) -> Vec<ResourceAccess> {
        let home = ResourceAccess { action: PolicyAction::List, resource: home_resource(".") };
        let access = |change: &HomeChange| ResourceAccess {
            action: action(change),
            resource: home_resource(&escape(&change.path)),
        };
        std::iter::once(home).chain(self.changes.iter().map(access)).collect()
    }

    /// Names of the changes.
    pub(crate) fn paths(&self) -> impl Iterator<Item = String> {
        self.changes.iter().map(HomeChange::shown)
    }

    pub(crate) fn show(self, cx: &CallContext<'_>) -> HomeReview {
        let omitted = self.changes.len().saturating_sub(MOST_CHANGES) as u64;
        let changes = self.changes.into_iter().take(MOST_CHANGES).map(|change| change.show(cx)).collect();
        HomeReview { changes, omitted }
    }

    /// Takes the changes into the person's home directory, each by itself.
    pub(crate) fn take(self, ticket: &Ticket<'_>) -> Result<HomeTakeOutcome, ToolError> {
        let mut outcome = HomeTakeOutcome { taken: Vec::new(), refused: Vec::new() };
        if !self.changes.is_empty() {
            ticket.commit()?;
        }
        for change in self.changes {
            let (path, shown) = (change.path.clone(), change.shown());
            let written = change
                .update
                .and_then(|update| update.write(&self.home, &path).map_err(|errno| errno_error(errno, &shown)));
            match written {
                Ok(earlier) => outcome.taken.push(TakenHomeFile { path: shown, earlier }),
                Err(error) => outcome.refused.push(RefusedHomeFile { path: shown, message: error.message }),
            }
        }
        Ok(outcome)
    }
}

impl HomeChange {
    /// What the agent changed of a file, if anything. A part that is not text is compared whole.
    fn compare(
        home: &OwnedFd,
        layers: &HomeLayers,
        found: &FoundHomeFile,
        pointer: Option<&str>,
        cx: &CallContext<'_>,
    ) -> Result<Option<Self>, ToolError> {
        let Some(stat) = found.stat.filter(|stat| stat.size <= LONGEST_TEXT) else { return Ok(None) };
        let fail = |errno| errno_error(errno, &shown_path(&found.path));
        let now = read_up_to(layers.open_file(found, &stat)?, stat.size, cx).map_err(fail)?;
        let start = layers.start_file(found, LONGEST_TEXT, cx)?;
        let part = |text: &[u8]| match pointer {
            None => Some(text.to_vec()),
            Some(pointer) => value_at(text, pointer),
        };
        let (was, Some(is)) = (start.as_deref().and_then(part), part(&now)) else { return Ok(None) };
        if was.as_ref() == Some(&is) {
            return Ok(None);
        }
        let person = PersonVersion::read(home, &found.path, cx)?;
        let update = person.and_then(|person| person.update(&was, (&is, pointer), &shown_path(&found.path)));
        let update = match update {
            // The person has it already.
            Ok(None) => return Ok(None),
            Ok(Some(update)) => Ok(update),
            Err(error) => Err(error),
        };
        Ok(Some(Self { path: found.path.clone(), pointer: pointer.map(str::to_owned), texts: (was, is), update }))
    }

    fn is_at(&self, path: &[u8], pointer: Option<&str>) -> bool {
        self.path == path && self.pointer.as_deref() == pointer
    }

    /// As a choice names it.
    fn name(&self) -> String {
        let pointer = self.pointer.as_ref().map(|pointer| format!("#{pointer}")).unwrap_or_default();
        escape(&self.path) + &pointer
    }

    fn shown(&self) -> String {
        format!("~/{}", self.name())
    }

    fn action(&self) -> PolicyAction {
        let is_new = self.update.as_ref().is_ok_and(|update| update.replaced.is_none());
        if is_new { PolicyAction::Create } else { PolicyAction::Overwrite }
    }

    /// Digest of the agent's side and of the person's.
    fn version(&self) -> String {
        let replaced = self.update.as_ref().ok().and_then(|update| update.replaced);
        let person = replaced.map(|(_, digest)| digest.to_hex()).unwrap_or_default();
        Digest::of(format!("{}\n{person}", Digest::of(&self.texts.1).to_hex()).as_bytes()).to_hex()
    }

    fn show(self, cx: &CallContext<'_>) -> HomeReviewItem {
        let access = ResourceAccess { action: self.action(), resource: home_resource(&escape(&self.path)) };
        let hunks = review_hunks(self.texts.0.as_deref().unwrap_or_default(), &self.texts.1);
        HomeReviewItem {
            path: self.shown(),
            kind: if self.texts.0.is_some() { "modified" } else { "created" },
            entry: if self.pointer.is_some() { "value" } else { "file" },
            size: self.texts.1.len() as u64,
            old_size: self.texts.0.as_ref().map(|text| text.len() as u64),
            why: ACTS_LATER,
            policy: ReviewPolicy::from(cx.evaluate(&access)),
            refusal: self.update.as_ref().err().map(ReviewRefusal::new),
            note: hunks.as_ref().err().copied(),
            version: self.version(),
            hunks: hunks.ok(),
        }
    }
}

/// A person's file as it is now. Nothing where there is none.
#[derive(Debug)]
struct PersonVersion(Option<(FileStat, Vec<u8>)>);

impl PersonVersion {
    /// The inner error says why the file stays as it is.
    fn read(home: &OwnedFd, path: &[u8], cx: &CallContext<'_>) -> Result<Result<Self, ToolError>, ToolError> {
        let shown = shown_path(path);
        let stays = |why: &str| Ok(Err(ToolError::new(ErrorKind::Conflict, format!("`{shown}`: {why}"))));
        let (directory, stat) = match PersonFile::find(home, path)? {
            PersonFile::Missing => return Ok(Ok(Self(None))),
            PersonFile::Unusable(why) => return stays(why),
            PersonFile::Plain { stat, .. } if stat.size > LONGEST_TEXT => return stays("it is too long"),
            PersonFile::Plain { directory, stat } => (directory, stat),
        };
        match open_person_file(directory.as_fd(), split(path).1, OFlags::RDONLY)
            .and_then(|file| read_up_to(file, LONGEST_TEXT, cx))
        {
            Ok(contents) => Ok(Ok(Self(Some((stat, contents))))),
            Err(_) => stays("it cannot be read in your home directory"),
        }
    }

    /// The file with what an agent changed, if it has what the agent started with. Nothing if it has the change already.
    fn update(
        self,
        was: &Option<Vec<u8>>,
        (is, pointer): (&[u8], Option<&str>),
        shown: &str,
    ) -> Result<Option<HomeUpdate>, ToolError> {
        let contents = self.0.as_ref().map(|(_, contents)| contents);
        let own = contents.map(|contents| match pointer {
            None => Some(contents.clone()),
            Some(pointer) => value_at(contents, pointer),
        });
        let own = own.flatten();
        if own.as_deref() == Some(is) {
            return Ok(None);
        }
        let differs = || {
            let message = format!("`{shown}`: your version is not the one that the agent started with");
            ToolError::new(ErrorKind::Conflict, message).hint("copy from the difference what you want")
        };
        if own != *was {
            return Err(differs());
        }
        let contents = match pointer {
            None => is.to_vec(),
            Some(pointer) => {
                let own = contents.map_or_else(|| b"{}".to_vec(), Clone::clone);
                with_value(&own, pointer, is).ok_or_else(differs)?
            }
        };
        let replaced = self.0.map(|(stat, own)| (stat, Digest::of(&own)));
        Ok(Some(HomeUpdate { contents, replaced }))
    }
}

impl HomeUpdate {
    /// Writes the file under a name of ours first, and gives the person's version another name. Returns that. `BUSY` if the
    /// person's file is not what it was.
    fn write(&self, home: &OwnedFd, path: &[u8]) -> Result<Option<String>, Errno> {
        let (above, name) = split(path);
        let directory = make_home_directories(home, above)?;
        let mut random = [0u8; 8];
        getrandom::fill(&mut random).map_err(|_| Errno::IO)?;
        let new = format!(".ringfence-{:016x}", u64::from_ne_bytes(random));
        let file = open_own_file(&directory, Path::new(&new), OFlags::CREATE | OFlags::EXCL)?;
        let written = write_all(file.as_fd(), &self.contents).and_then(|()| {
            if let Some((known, _)) = &self.replaced {
                fchmod(&file, Mode::from_raw_mode(known.mode & 0o777))?;
            }
            fdatasync(&file)?;
            self.place(&directory, new.as_bytes(), name)
        });
        if written.is_err() {
            let _ = unlinkat(&directory, new.as_str(), AtFlags::empty());
        }
        let earlier = written?;
        fsync(&directory)?;
        Ok(earlier.map(|earlier| shown_path(&join(above, &earlier))))
    }

    fn place(&self, directory: &OwnedFd, new: &[u8], name: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
        let Some((known, _)) = &self.replaced else {
            return rename_noreplace((directory.as_fd(), new), (directory.as_fd(), name)).map(|()| None);
        };
        let is_known = |found: Option<FileStat>| found.is_some_and(|found| found.same_content(known));
        renameat_with(directory, new, directory, name, RenameFlags::EXCHANGE)?;
        if !is_known(stat(directory.as_fd(), new)?) {
            // A version that came meanwhile goes back. Ours is removed by the caller.
            renameat_with(directory, new, directory, name, RenameFlags::EXCHANGE)?;
            return Err(Errno::BUSY);
        }
        for number in 1..=MOST_EARLIER {
            let suffix = if number == 1 { String::new() } else { format!("-{number}") };
            let earlier = [name, b".before-ringfence", suffix.as_bytes()].concat();
            match rename_noreplace((directory.as_fd(), new), (directory.as_fd(), &earlier)) {
                Err(Errno::EXIST) => {}
                renamed => return renamed.map(|()| Some(earlier)),
            }
        }
        renameat_with(directory, new, directory, name, RenameFlags::EXCHANGE)?;
        Err(Errno::EXIST)
    }
}

/// A file below the home directory, and the JSON pointer behind `#`.
fn parse_file(file: &str) -> Result<(HomePattern<'_>, Option<&str>), ToolError> {
    let (path, pointer) = match file.split_once('#') {
        Some((path, pointer)) => (path, Some(pointer)),
        None => (file, None),
    };
    if pointer.is_some_and(|pointer| !pointer.starts_with('/')) {
        return Err(ToolError::invalid("files", "must have a JSON pointer such as `/mcpServers` behind `#`"));
    }
    Ok((HomePattern::parse(path)?, pointer))
}

/// A value of a JSON text, as lines. Nothing where there is none.
fn value_at(text: &[u8], pointer: &str) -> Option<Vec<u8>> {
    let value: Value = serde_json::from_slice(text).ok()?;
    let mut lines = serde_json::to_vec_pretty(value.pointer(pointer)?).ok()?;
    lines.push(b'\n');
    Some(lines)
}

/// A JSON text with a value at a pointer, in objects that are made where they are missing.
fn with_value(text: &[u8], pointer: &str, value: &[u8]) -> Option<Vec<u8>> {
    let mut json: Value = serde_json::from_slice(text).ok()?;
    let mut place = &mut json;
    for token in pointer.strip_prefix('/')?.split('/') {
        let name = token.replace("~1", "/").replace("~0", "~");
        if place.is_null() {
            *place = Value::Object(Map::new());
        }
        place = place.as_object_mut()?.entry(name).or_insert(Value::Null);
    }
    *place = serde_json::from_slice(value).ok()?;
    let mut lines = serde_json::to_vec_pretty(&json).ok()?;
    lines.push(b'\n');
    Some(lines)
}

#[cfg(test)]
mod tests {
    use super::{parse_file, value_at, with_value};

    #[test]
    fn a_value_is_set_by_its_pointer_and_nothing_else_changes() {
        let text = br#"{"z": 1, "projects": {"/w": {"a": true}}}"#;
        let check = |pointer: &str, value: &str, expected: &str| {
            let set = with_value(text, pointer, value.as_bytes()).map(|set| String::from_utf8(set).unwrap());
            let set = set.map(|set| set.split_whitespace().collect::<String>());
            assert_eq!(set.unwrap_or_default(), expected, "{pointer}");
        };
        check("/projects/~1w/b", "[2]", r#"{"z":1,"projects":{"/w":{"a":true,"b":[2]}}}"#);
        check("/mcpServers", "{}", r#"{"z":1,"projects":{"/w":{"a":true}},"mcpServers":{}}"#);
        check("/new/x", "3", r#"{"z":1,"projects":{"/w":{"a":true}},"new":{"x":3}}"#);
        check("/z", "4", r#"{"z":4,"projects":{"/w":{"a":true}}}"#);
        // No object to set it in.
        check("/z/x", "3", "");
        assert_eq!(value_at(text, "/projects/~1w/a").unwrap(), b"true\n");
        assert_eq!(value_at(text, "/absent"), None);
        assert_eq!(value_at(b"not JSON", "/z"), None);
    }

    #[test]
    fn a_file_has_a_path_below_the_home_directory_and_perhaps_a_pointer() {
        assert_eq!(parse_file(".a.json#/b/~1c").unwrap().1, Some("/b/~1c"));
        assert_eq!(parse_file(".a/*.json").unwrap().1, None);
        for file in ["#/b", "/a", ".a.json#b", "../a#/b"] {
            assert!(parse_file(file).is_err(), "{file}");
        }
    }
}
