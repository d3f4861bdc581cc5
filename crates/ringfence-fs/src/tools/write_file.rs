//! `write_file`: a file with exactly these contents.

use ringfence_kernel::{Context, Face, NameTaken, Plan, Preview, Registry, Ticket, Tool, ToolError, Touch, Verb};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Changed, Encoding, check_size};
use crate::Fence;
use crate::content::hash_up_to;
use crate::digest::{Digest, check_match};
use crate::fence::Given;
use crate::preview::{Contents, Diffs, check_shown, check_still_there, fingerprint};
use crate::replace::{Body, replace};
use crate::slot::{Meant, Parents, Slot};
use crate::stamp::Stamp;

pub(super) fn register(registry: &mut Registry, fence: &Fence) -> Result<(), NameTaken> {
    let standard = Face::standard::<StandardArgs, Changed>("write_file");
    let miniclaw = Face::miniclaw::<MiniclawArgs>("write_file", |changed: &Changed| {
        format!("ok: wrote {} bytes to {}", changed.size, changed.path)
    });
    let crewagent = Face::crewagent::<CrewagentArgs, Fields>("fs.write");
    registry.register(WriteFile { fence: fence.clone() }, [standard, miniclaw, crewagent])
}

struct WriteFile {
    fence: Fence,
}

/// Create a file of the workspace, or replace all of its contents. For a small change to a file that exists,
/// use `edit_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StandardArgs {
    /// The file, by its path relative to the workspace.
    path: String,
    /// New contents.
    content: String,
    #[serde(default)]
    encoding: Encoding,
    /// Create missing parent directories.
    #[serde(default)]
    create_dirs: bool,
    /// Write only if the file has this SHA-256 now.
    if_match_sha256: Option<String>,
}

/// Write a text file in the workspace: create it, or replace its contents. Missing directories are created.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct MiniclawArgs {
    /// The file, by its path relative to the workspace.
    path: String,
    /// The new contents of the file.
    content: String,
}

/// Write a text file: create it, or replace its contents. Missing directories are created.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CrewagentArgs {
    /// The file, by its path from the `@` of a mount that may be written.
    path: String,
    /// The new contents of the file.
    content: String,
    /// Write only if the file has this SHA-256 now, as `fs.read` returned it.
    if_match_sha256: Option<String>,
}

/// What a write returns in the crewagent dialect.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Fields {
    path: String,
    bytes_written: u64,
    sha256_after: Option<String>,
}

impl From<Changed> for Fields {
    fn from(changed: Changed) -> Self {
        Self { path: changed.path, bytes_written: changed.size, sha256_after: changed.sha256 }
    }
}

struct Args {
    path: Given,
    content: Vec<u8>,
    parents: Parents,
    if_match: Option<Digest>,
}

impl TryFrom<StandardArgs> for Args {
    type Error = ToolError;

    fn try_from(args: StandardArgs) -> Result<Self, ToolError> {
        Ok(Self {
            path: Given::Standard(args.path),
            content: args.encoding.decode(args.content)?,
            parents: if args.create_dirs { Parents::MayBeMade } else { Parents::MustExist },
            if_match: args.if_match_sha256.map(|hex| Digest::from_hex("ifMatchSha256", &hex)).transpose()?,
        })
    }
}

impl TryFrom<CrewagentArgs> for Args {
    type Error = ToolError;

    fn try_from(args: CrewagentArgs) -> Result<Self, ToolError> {
        Ok(Self {
            path: Given::Mounted(args.path),
            content: args.content.into_bytes(),
            parents: Parents::MayBeMade,
            if_match: args.if_match_sha256.map(|hex| Digest::from_hex("ifMatchSha256", &hex)).transpose()?,
        })
    }
}

impl From<MiniclawArgs> for Args {
    fn from(args: MiniclawArgs) -> Self {
        Self {
            path: Given::unless_blank(args.path),
            content: args.content.into_bytes(),
            parents: Parents::MayBeMade,
            if_match: None,
        }
    }
}

struct Work {
    slot: Slot,
    seen: Option<Stamp>,
    content: Vec<u8>,
    if_match: Option<Digest>,
    /// What a person was shown of the old contents.
    shown: Option<Digest>,
}

impl Tool for WriteFile {
    type Args = Args;
    type Work = Work;
    type Outcome = Changed;
    const VERBS: &'static [Verb] = &[Verb::Create, Verb::Overwrite, Verb::Lose];
    const SAME_AGAIN: bool = true;

    fn plan(&self, args: Args, cx: &Context<'_>) -> Result<Plan<Work>, ToolError> {
        let Args { path, content, parents, if_match } = args;
        let spot = self.fence.locate_given(&path, cx)?;
        check_size("content", "max_write_bytes", content.len() as u64, cx.limits.write_bytes)?;
        let slot = Slot::find(&spot, Meant::File, parents)?;
        let seen = slot.look()?;
        let verb = if seen.is_some() { Verb::Overwrite } else { Verb::Create };
        let mut touches = vec![Touch { verb, place: slot.place() }];
        touches.extend(seen.map(|seen| slot.loss(&seen, cx)).transpose()?.flatten());
        Ok(Plan { touches, work: Work { slot, seen, content, if_match, shown: None } })
    }

    fn preview(&self, work: &mut Work, cx: &Context<'_>) -> Result<Preview, ToolError> {
        let Work { slot, seen, content, if_match, shown } = work;
        let text = match seen {
            Some(seen) => format!("replace `{}` ({} bytes) by {} bytes", slot.shown, seen.size, content.len()),
            None => format!("create `{}` with {} bytes", slot.shown, content.len()),
        };
        let old = seen.map(|seen| Contents::at(slot, &seen, cx)).transpose()?;
        let mut diffs = Diffs::new();
        diffs.add(&slot.shown, old.as_ref(), Some(&Contents::given(content)));
        *shown = old.as_ref().and_then(|old| old.digest);
        let bound = fingerprint((*seen, *shown));
        // Of a file that is too large to be read here it is not known.
        let is_known = old.is_none() || shown.is_some();
        let failure = check_match(&slot.shown, if_match.filter(|_| is_known), *shown).err();
        Ok(Preview::new(&text, bound)
            .fails_with(failure)
            .with(diffs.into_body())
            .secret_if(slot.place().sensitive().secret))
    }

    fn run(&self, work: Work, ticket: &Ticket<'_>) -> Result<Changed, ToolError> {
        let Work { slot, seen, content, if_match, shown } = work;
        check_still_there(&slot, seen.as_ref(), ticket)?;
        let written = replace(&slot, seen, ticket, |old| {
            check_shown(&slot, shown, old, ticket.context())?;
            if if_match.is_some() {
                let hash = |old: &crate::replace::Old| {
                    hash_up_to(std::os::fd::AsFd::as_fd(&old.fd), old.stamp.size, &slot.shown, ticket.context())
                };
                check_match(&slot.shown, if_match, old.map(hash).transpose()?)?;
            }
            Ok(Body::Bytes(content))
        })?;
        Ok(Changed::new(slot.shown, &written, ticket))
    }
}
