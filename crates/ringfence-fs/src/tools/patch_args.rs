//! Arguments of `apply_patch` in each dialect: a patch, or an update of front matter.
//!
//! Everything that callers may write ends as one `Args`, with the diff parsed and hashes decoded.
//!
//! Not here: what is done with them (`apply_patch.rs`).

use std::borrow::Cow;
use std::fmt;

use ringfence_front_matter::FrontMatterUpdate;
use ringfence_kernel::{StrictValue, ToolError};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value as Json};

use crate::fence::PathArg;
use crate::patch::{self, FilePatch};
use crate::read::digest::Digest;

/// Apply a unified diff, as printed by `git diff`, or a `*** Begin Patch` patch: pass it as `patch`. Changes to several
/// files are atomic. Context and removed lines must match the file exactly; line numbers may be omitted where these lines occur only
/// once. To update the front matter of a run's state file, set `path`, and pass as `patch` an object with the
/// operation `updateFrontmatter`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct StandardPatchArgs {
    /// The file to change. A diff names its files itself and needs no path; if there is one, it must be the diff's only
    /// file.
    #[serde(alias = "file_path", alias = "filePath")]
    path: Option<String>,
    /// The diff as a string, or a front matter update.
    #[serde(alias = "input", alias = "diff")]
    patch: PatchInput,
    /// Change the file only if this is its current SHA-256, as returned by `read_file`. For one file only.
    if_match_sha256: Option<String>,
}

/// Apply a unified diff, as printed by `git diff`, or a `*** Begin Patch` patch. Changes to several files are atomic.
// The same where there is no run, and so no front matter to update: its schema is most of the other one.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct DiffPatchArgs {
    /// Not needed: a diff names its files itself.
    #[serde(alias = "file_path", alias = "filePath")]
    #[schemars(skip)]
    path: Option<String>,
    /// The diff.
    #[schemars(with = "String")]
    #[serde(alias = "input", alias = "diff")]
    patch: PatchInput,
    /// Only if the one file has this SHA-256 now.
    if_match_sha256: Option<String>,
}

/// A patch as Codex writes it. The description shows one whole: a small model copies what it sees.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(description = "\
    Edit files with a patch, all of them or none:\n\
    *** Begin Patch\n\
    *** Update File: src/a.py\n\
    @@\n\
    -old line\n\
    +new line\n\
    *** End Patch\n\
    Others: `*** Add File: path` with `+` lines, `*** Delete File: path`, `*** Move to: path` below an update.")]
#[serde(deny_unknown_fields)]
pub(super) struct CodexPatchArgs {
    #[serde(alias = "patch", alias = "diff")]
    input: String,
    // The directory of relative paths, where a command applies the patch.
    #[serde(default)]
    #[schemars(skip)]
    workdir: Option<String>,
}

/// Update the front matter of a run's state file; the rest of the file does not change.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct CrewagentPatchArgs {
    /// Path of the file, starting with a mount alias.
    path: String,
    /// What to change.
    #[schemars(required)]
    patch: Option<FrontMatterPatch>,
    // The same without the object around it, as some models write it.
    #[schemars(skip)]
    operation: Option<FrontMatterOperation>,
    #[schemars(skip)]
    update: Option<FrontMatterUpdateArgs>,
    #[schemars(skip)]
    if_match_sha256: Option<String>,
}

/// A diff is text; an update of a front matter is an object.
#[derive(Debug)]
enum PatchInput {
    Diff(String),
    FrontMatter(FrontMatterPatch),
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FrontMatterPatch {
    operation: FrontMatterOperation,
    update: FrontMatterUpdateArgs,
    /// Change the file only if it has this SHA-256 now.
    if_match_sha256: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
enum FrontMatterOperation {
    #[serde(rename = "updateFrontmatter")]
    UpdateFrontmatter,
}

/// New values, by key.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FrontMatterUpdateArgs {
    /// Completed steps; those already listed are not added again.
    steps_completed: Option<AppendItems<String>>,
    /// Variables to set; others do not change.
    variables: Option<SetValue<WorkflowVariables>>,
    /// Decisions that were made.
    decision_log: Option<AppendItems<WorkflowDecision>>,
    /// Created files; those already listed are not added again.
    artifacts: Option<AppendItems<String>>,
    /// The next node of the workflow.
    current_node_id: Option<SetValue<String>>,
    /// The time of this update, as RFC 3339.
    updated_at: Option<SetValue<String>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct AppendItems<T> {
    append: Vec<T>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SetValue<T> {
    set: T,
}

/// Values by name. A name that is given twice, and a number that could not be kept as it is, are refused.
#[derive(Debug, JsonSchema)]
struct WorkflowVariables(Map<String, Json>);

impl<'de> Deserialize<'de> for WorkflowVariables {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match StrictValue::deserialize(deserializer)?.0 {
            Json::Object(map) => Ok(Self(map)),
            _ => Err(D::Error::custom("invalid type: variables are an object")),
        }
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WorkflowDecision {
    from: String,
    to: String,
    label: String,
    reason: Option<String>,
    decided_at: Option<String>,
}

pub(super) enum Args {
    Update { path: PathArg, update: FrontMatterUpdate, if_match: Option<Digest> },
    Diff { path: Option<String>, files: Vec<FilePatch>, if_match: Option<Digest> },
}

impl TryFrom<StandardPatchArgs> for Args {
    type Error = ToolError;

    fn try_from(args: StandardPatchArgs) -> Result<Self, ToolError> {
        let StandardPatchArgs { path, patch, if_match_sha256 } = args;
        match patch {
            PatchInput::FrontMatter(mut patch) => {
                let path =
                    path.ok_or_else(|| ToolError::invalid("path", "is missing: set it to the file to update"))?;
                if patch.if_match_sha256.is_some() && if_match_sha256.is_some() {
                    return Err(ToolError::invalid("ifMatchSha256", "is given twice"));
                }
                patch.if_match_sha256 = patch.if_match_sha256.or(if_match_sha256);
                patch.into_args(PathArg::Standard(path))
            }
            PatchInput::Diff(text) => {
                let files = patch::parse(&text)?;
                if if_match_sha256.is_some() && files.len() > 1 {
                    return Err(ToolError::invalid("ifMatchSha256", "requires a patch of one file"));
                }
                Ok(Self::Diff { path, files, if_match: digest(if_match_sha256)? })
            }
        }
    }
}

impl TryFrom<DiffPatchArgs> for Args {
    type Error = ToolError;

    fn try_from(args: DiffPatchArgs) -> Result<Self, ToolError> {
        let DiffPatchArgs { path, patch, if_match_sha256 } = args;
        StandardPatchArgs { path, patch, if_match_sha256 }.try_into()
    }
}

impl TryFrom<CodexPatchArgs> for Args {
    type Error = ToolError;

    fn try_from(args: CodexPatchArgs) -> Result<Self, ToolError> {
        let mut files = patch::parse(&args.input)?;
        if let Some(workdir) = &args.workdir {
            for path in files.iter_mut().flat_map(|file| file.path.iter_mut().chain(&mut file.moved_to)) {
                if !path.starts_with(['/', '@']) {
                    *path = format!("{}/{path}", workdir.trim_end_matches('/'));
                }
            }
        }
        Ok(Self::Diff { path: None, files, if_match: None })
    }
}

impl TryFrom<CrewagentPatchArgs> for Args {
    type Error = ToolError;

    fn try_from(args: CrewagentPatchArgs) -> Result<Self, ToolError> {
        let CrewagentPatchArgs { path, patch, operation, update, if_match_sha256 } = args;
        let patch = match (patch, operation, update) {
            (Some(patch), None, None) if if_match_sha256.is_none() => patch,
            (None, Some(operation), Some(update)) => FrontMatterPatch { operation, update, if_match_sha256 },
            _ => return Err(ToolError::invalid("patch", "must be an object with operation and update")),
        };
        patch.into_args(PathArg::Mounted(path))
    }
}

impl FrontMatterPatch {
    fn into_args(self, path: PathArg) -> Result<Args, ToolError> {
        let Self { operation: FrontMatterOperation::UpdateFrontmatter, update, if_match_sha256 } = self;
        Ok(Args::Update { path, update: update.into(), if_match: digest(if_match_sha256)? })
    }
}

impl From<FrontMatterUpdateArgs> for FrontMatterUpdate {
    fn from(args: FrontMatterUpdateArgs) -> Self {
        let decisions = args.decision_log.map(|log| log.append).unwrap_or_default();
        Self {
            steps_completed_append: args.steps_completed.map(|steps| steps.append).unwrap_or_default(),
            artifacts_append: args.artifacts.map(|artifacts| artifacts.append).unwrap_or_default(),
            variables_set: args.variables.map(|variables| variables.set.0).unwrap_or_default(),
            decision_log_append: decisions.into_iter().map(WorkflowDecision::into_json).collect(),
            current_node_id: args.current_node_id.map(|node| node.set),
            updated_at: args.updated_at.map(|time| time.set),
        }
    }
}

impl WorkflowDecision {
    fn into_json(self) -> Map<String, Json> {
        let optional = [("reason", self.reason), ("decidedAt", self.decided_at)];
        let required =
            [("from", self.from), ("to", self.to), ("label", self.label)].map(|(key, text)| (key, Some(text)));
        let fields = required.into_iter().chain(optional);
        fields.filter_map(|(key, text)| Some((key.to_owned(), Json::String(text?)))).collect()
    }
}

fn digest(hex: Option<String>) -> Result<Option<Digest>, ToolError> {
    hex.map(|hex| Digest::from_hex("ifMatchSha256", &hex)).transpose()
}

impl<'de> Deserialize<'de> for PatchInput {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PatchInputVisitor;

        impl<'de> Visitor<'de> for PatchInputVisitor {
            type Value = PatchInput;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a unified diff as a string, or an object with an operation")
            }

            fn visit_str<E>(self, text: &str) -> Result<PatchInput, E> {
                Ok(PatchInput::Diff(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<PatchInput, A::Error> {
                FrontMatterPatch::deserialize(MapAccessDeserializer::new(map)).map(PatchInput::FrontMatter)
            }
        }

        deserializer.deserialize_any(PatchInputVisitor)
    }
}

impl JsonSchema for PatchInput {
    fn schema_name() -> Cow<'static, str> {
        "Patch".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let object = generator.subschema_for::<FrontMatterPatch>();
        json_schema!({ "anyOf": [{ "type": "string" }, object] })
    }
}
