//! The kernel of Ringfence: the one path that every tool call of an agent takes.
//!
//! `Host::call` finds the tool, decodes its arguments, lets it plan, judges the plan, requests approval where the
//! policy requires one, records, and runs. There is no other way to run a tool: a `Ticket` is needed, and only the
//! kernel makes one.
//!
//! Not here: any file, process, socket, protocol or model. Tools bring those.
//!
//! A host without tools, and a call that it refuses:
//!
//! ```
//! use std::sync::Arc;
//!
//! use ringfence_kernel::{
//!     CallLimits, DenyApprover, Dialect, ErrorKind, Host, HostConfig, LayeredRules, InMemoryApprovalStore, NullAuditSink, Preset,
//!     Principal, Session, ReplyForm, SessionMemory, SessionTaint, ToolCall, ToolFilter, ToolRegistry,
//! };
//! use tokio_util::sync::CancellationToken;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let host = Host::new(HostConfig {
//!     policy: Box::new(LayeredRules::from_preset(Preset::ReadOnly)),
//!     approver: Box::new(DenyApprover { advice: "start with another preset".to_owned() }),
//!     audit: Box::new(NullAuditSink),
//!     store: Box::new(InMemoryApprovalStore::default()),
//!     workers: 1,
//! });
//! let session = Arc::new(Session {
//!     id: "session-1".to_owned(),
//!     principal: Principal::agent("example"),
//!     dialect: Dialect::Standard,
//!     agent: None,
//!     limits: CallLimits::for_dialect(Dialect::Standard),
//!     catalog: ToolRegistry::new().catalog(Dialect::Standard, &ToolFilter::default())?,
//!     taint: SessionTaint::default(),
//!     memory: SessionMemory::default(),
//!     replies: ReplyForm::default(),
//! });
//! let call = ToolCall { id: "call-1".to_owned(), name: "read_file".to_owned(), arguments: "{}".to_owned() };
//! let reply = host.call(&session, call, &CancellationToken::new()).await?;
//! assert_eq!(reply.error_kind(), Some(ErrorKind::UnknownTool));
//! # Ok(())
//! # }
//! ```
//!
//! Limits are those of a dialect until they are tightened, and nothing widens them again:
//!
//! ```
//! use ringfence_kernel::{CallLimits, Dialect};
//!
//! let defaults = CallLimits::for_dialect(Dialect::Standard);
//! let tight = defaults.tightened(&CallLimits { read_bytes: 4096, ..defaults.clone() });
//! assert_eq!(tight.read_bytes, 4096);
//! assert_eq!(tight.tightened(&defaults), tight);
//! ```

#![warn(missing_docs)]

mod approval;
mod approval_queue;
mod approval_turn;
mod approver;
mod ask_approval;
mod audit;
mod call;
mod call_context;
mod call_state;
mod call_timers;
mod commit_state;
mod connection_approval;
mod connection_decider;
mod connection_log;
mod connection_rollup;
mod decode;
mod dialect;
mod draft;
mod error;
mod explain;
mod follow_up;
mod grant;
mod granted_rules;
mod host;
mod id;
mod inbox;
mod invocation;
mod layered_rules;
pub mod lenient;
mod limits;
mod line_diff;
mod output_store;
mod pattern;
mod pending_approval;
mod pending_connection;
mod policy;
mod preset;
mod preview;
mod principal;
mod registry;
mod reply;
mod reply_card;
mod resource;
mod resume;
mod resume_token;
mod rule;
mod rule_parser;
mod rule_text;
mod sanitize;
mod sensitive;
mod session;
mod session_memory;
mod store;
mod strict_json;
mod suggest;
pub mod sync;
mod taint;
mod ticket;
mod timestamp;
mod tool;
mod tool_binding;
mod verdict;
mod worker;
mod worker_slots;
mod workspace;

pub use approval::{Approval, ApprovalDecision, ApprovalRequest, ApprovalResponse};
pub use approver::{Approver, ApproverReply, DenyApprover};
pub use audit::{AuditEvent, AuditSink, AuditSinkError, CallRecord, NullAuditSink};
pub use call_context::{CallContext, CallOrigin, IoMode, LookupTarget, ProgressListener, ProgressUpdate};
pub use commit_state::{AbandonReason, CallCommitState};
pub use connection_decider::ConnectionDecider;
pub use dialect::Dialect;
pub use error::{ErrorKind, NameSuggestions, ToolError};
pub use explain::{AccessExplanation, PolicyExplanation, ProgramChangeVerdict};
pub use grant::{GRANT_LIFETIME, Grant};
pub use granted_rules::GrantedRules;
pub use host::{Host, HostConfig, HostError, ToolCall, ToolReply};
pub use id::short_change_id;
pub use inbox::{ApprovalInbox, InboxError};
pub use layered_rules::LayeredRules;
pub use limits::{CallLimits, MODEL_LIST_STATS};
pub use line_diff::{DiffHunk, DiffLine, DiffLineChange, DiffPart, DiffRange, FileDiff, LineDiff, UNTERMINATED_NOTE};
pub use output_store::{KeptOutput, MODEL_TEXT_BYTES, OUTPUT_PREFIX, OutputId, OutputStore};
pub use pending_approval::SuspendedCall;
pub use policy::{Policy, PolicyRequest};
pub use preset::Preset;
pub use preview::{Preview, PreviewBody, PreviewEntry, PreviewList};
pub use principal::{AuthScope, Principal};
pub use registry::{
    CallForward, DuplicateToolError, MCP_TOOL_PREFIX, ToolCatalog, ToolFilter, ToolRegistry, UnknownToolError,
    UnknownToolsetError,
};
pub use reply::{MODIFIED_NOTE, ModelText, ReplyForm, ReplyImage, ReplyNotes, ReplyValue};
pub use reply_card::{CommitCard, CommitListCard, DiffCard, FailedTestCard, FormatCard, ReplyCard, TestRunCard};
pub use resource::{
    CODE_MOUNT, CachedSensitivity, HOME_MOUNT, LAYER_MOUNT, MCP_MOUNT, NET_MOUNT, OUTPUT_MOUNT, PolicyAction,
    PolicyResource, REGISTRY_MOUNT, ResourceAccess, SEARCH_MOUNT, WORKSPACE_MOUNTS,
};
pub use resume::ResumeRequest;
pub use rule::PolicyRule;
pub use rule_parser::RuleError;
pub use rule_text::RuleText;
pub use sanitize::{sanitize_json, sanitize_line, sanitize_text, sanitize_untruncated};
pub use sensitive::{
    DirectoryEntries, Sensitivity, acting_program, entry_sensitivity, original_names, sensitivity,
    settings_through_link,
};
pub use session::Session;
pub use session_memory::{SeenContents, SessionMemory};
pub use store::{
    ApprovalAnswerStatus, ApprovalStore, ArgumentDraft, DENIAL_STREAK_LIFETIME, DenialStreak, DraftOutcome,
    InMemoryApprovalStore, StoreError, SuspendLifetime,
};
pub use strict_json::{StrictJsonError, StrictValue, check_json};
pub use suggest::nearest_name;
pub use taint::{SessionTaint, Taint, TaintSet};
pub use ticket::Ticket;
pub use tool::{
    ChangeGroup, ChangeGroupDecision, FollowUpMode, FollowUpPlan, PhasedTool, Tool, ToolCapabilities, ToolPhaseResult,
    ToolPlan,
};
pub use tool_binding::{ExternalToolDefinition, ToolAudience, ToolBinding, ToolDefinition};
pub use verdict::{Assurance, Decision, PolicyLayer, PolicyRevision, ReviewRequirement, Verdict};
pub use workspace::{
    ChangeKind, ChangedPath, ConnectionAttempt, Egress, EgressChannel, ExposedDir, HomeFile, LayerDescription,
    LayerSummary, OverlayDirectories, Workspace, WorkspaceChanges, WorkspaceLayer, WorkspaceView,
};
