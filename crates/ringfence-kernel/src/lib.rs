//! The one road that every tool call of an agent takes.
//!
//! `Host::call` finds the tool, decodes its arguments, lets it plan, polices the plan, asks a person where the
//! policy says so, records, and runs. There is no other way to run a tool: a `Ticket` is needed, and only the
//! road makes one.
//!
//! Not here: any file, process, socket, protocol or model. Tools bring those.
//!
//! A host without tools, and a call that it refuses:
//!
//! ```
//! use std::sync::Arc;
//!
//! use ringfence_kernel::{
//!     Bits, Choice, Dialect, ErrorKind, Host, Limits, MemoryStore, Nobody, Parts, Preset, Principal, Registry, Rules,
//!     Session, ToolCall, Unrecorded,
//! };
//! use tokio_util::sync::CancellationToken;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let host = Host::new(Parts {
//!     policy: Box::new(Rules::of(Preset::ReadOnly)),
//!     approver: Box::new(Nobody { advice: "start with another preset".to_owned() }),
//!     audit: Box::new(Unrecorded),
//!     store: Box::new(MemoryStore::default()),
//!     workers: 1,
//! });
//! let session = Arc::new(Session {
//!     id: "session-1".to_owned(),
//!     principal: Principal::agent("example"),
//!     dialect: Dialect::Standard,
//!     agent: None,
//!     limits: Limits::of(Dialect::Standard),
//!     catalog: Registry::new().catalog(Dialect::Standard, &Choice::default())?,
//!     bits: Bits::default(),
//! });
//! let call = ToolCall { id: "call-1".to_owned(), name: "read_file".to_owned(), arguments: "{}".to_owned() };
//! let reply = host.call(&session, call, &CancellationToken::new()).await?;
//! assert_eq!(reply.error, Some(ErrorKind::UnknownTool));
//! # Ok(())
//! # }
//! ```
//!
//! Limits are those of a dialect until they are tightened, and nothing widens them again:
//!
//! ```
//! use ringfence_kernel::{Dialect, Limits};
//!
//! let defaults = Limits::of(Dialect::Standard);
//! let tight = defaults.tightened(&Limits { read_bytes: 4096, ..defaults.clone() });
//! assert_eq!(tight.read_bytes, 4096);
//! assert_eq!(tight.tightened(&defaults), tight);
//! ```

mod ask;
mod bits;
mod decode;
mod desk;
mod dialect;
mod draft;
mod error;
mod explain;
mod face;
mod gate;
mod grants;
mod host;
mod id;
mod limits;
mod pattern;
mod policy;
mod preview;
mod record;
mod registry;
mod resume;
mod rule;
mod rule_text;
mod rules;
mod seal;
mod sensitive;
mod session;
mod settlement;
mod signal;
mod store;
mod suggest;
mod tally;
mod tool;
mod trip;
mod turn;
mod visible;
mod workspace;

pub use ask::Suspended;
pub use bits::{Bit, BitSet, Bits};
pub use desk::{Desk, DeskError};
pub use dialect::{Dialect, Notes};
pub use error::{Alternatives, ErrorKind, ToolError};
pub use explain::{Explained, ExplainedChange, Explanation};
pub use face::{Declared, Definition, Face};
pub use gate::{Answered, Approval, ApprovalRequest, ApprovalResponse, Approver, Nobody, Ticket, Word};
pub use grants::{GRANT_TIME, Grant, GrantedRules};
pub use host::{Fatal, Host, Parts, Reply, ToolCall};
pub use limits::Limits;
pub use policy::{Assurance, Decision, Policy, Preset, Question, Verdict};
pub use preview::{Body, Entry, List, Preview};
pub use record::{AuditLost, AuditSink, Moment, Record, Unrecorded};
pub use registry::{Catalog, Choice, FOREIGN, NameTaken, NoSuchTool, Registry};
pub use resume::Returned;
pub use rule::Rule;
pub use rule_text::{BadRule, RuleText};
pub use rules::{Layer, Rules};
pub use sensitive::{Sensitivity, acting_program, entry_sensitivity, sensitivity, settings_through_link};
pub use session::{Principal, Scope, Session};
pub use signal::{Abandon, Signal};
pub use store::{ArgumentDraft, DraftOutcome, MemoryStore, NOES_TIME, Noes, Put, Store, StoreLost, SuspendLifetime};
pub use suggest::nearest;
pub use tool::{
    CODE, ChangeGroup, Context, Effect, KeepDecision, Listener, MCP, NET, Named, Next, Origin, Pace, Place, Plan,
    Progress, Remainder, Review, SEARCH, Sought, Tool, Touch, Verb, WORKSPACE,
};
pub use visible::{visible, visible_json, visible_line, visible_whole};
pub use workspace::{Attempt, ChangeKind, ChangedPath, Changes, Egress, Shown, View, Way, Workspace};
