//! The one road that every tool call of an agent takes.
//!
//! `Host::call` finds the tool, decodes its arguments, lets it plan, polices the plan, asks a person where the
//! policy says so, records, and runs. There is no other way to run a tool: a `Ticket` is needed, and only the
//! road makes one.
//!
//! Not here: any file, process, socket, protocol or model. Tools bring those.

mod decode;
mod dialect;
mod error;
mod face;
mod gate;
mod host;
mod id;
mod limits;
mod policy;
mod record;
mod registry;
mod sensitive;
mod session;
mod signal;
mod store;
mod suggest;
mod tool;

pub use dialect::{Dialect, Notes};
pub use error::{ErrorKind, ToolError};
pub use face::{Definition, Face};
pub use gate::{ApprovalRequest, ApprovalResponse, Approver, Nobody, Ticket};
pub use host::{Fatal, Host, Parts, Reply, ToolCall};
pub use limits::Limits;
pub use policy::{Decision, Policy, Preset, Question, Verdict};
pub use record::{AuditLost, AuditSink, Moment, Record, Unrecorded};
pub use registry::{Catalog, Choice, NameTaken, NoSuchTool, Registry};
pub use sensitive::{Sensitivity, sensitivity};
pub use session::{Principal, Scope, Session};
pub use signal::{Abandon, Signal};
pub use store::{MemoryStore, Store, StoreLost};
pub use suggest::nearest;
pub use tool::{Context, Origin, Pace, Place, Plan, Preview, Tool, Touch, Verb};
