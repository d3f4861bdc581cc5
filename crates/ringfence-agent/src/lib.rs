//! Agent loop: asks a model, makes its tool calls through the kernel, and always ends.
//!
//! A `LanguageModel` answers once. Its tool calls are made by `Host::call` and by nothing else. `Agent::run` is one
//! prompt from its first step to its outcome, with a `Ledger` of the recorded effects, which the model cannot
//! influence.
//!
//! Not here: files, processes, terminals and protocols of editors. Fronts bring those.

mod event;
mod history;
mod ledger;
mod limits;
mod message;
mod model;
mod outcome;
mod probe;
pub mod provider;
mod repair;
mod repeat_detector;
mod request;
mod run;
mod text_calls;
mod tool_calls;
mod tool_loading;

pub use event::{AgentEvent, AgentObserver, AnnouncingApprover, SilentObserver};
pub use history::{MessageHistory, NoTranscript, TranscriptError, TranscriptStore, complete_calls};
pub use ledger::{Ledger, LedgerChange, LedgerCommand, LedgerFailedCall, LedgerSink, NetFileChange};
pub use limits::AgentLimits;
pub use message::{ReasoningState, RequestedCall, ToolResultSummary, TranscriptMessage};
pub use model::{
    FinishReason, LanguageModel, ModelError, ModelErrorKind, ModelFuture, ModelRequest, ModelResponse, ResponsePart,
    ResponsePartSink, TokenUsage, ToolSpec,
};
pub use outcome::{AgentOutcome, AgentStopReason};
pub use probe::{ToolCallSupport, probe};
pub use repair::CallRepair;
pub use run::Agent;
pub use tool_loading::{LOAD_TOOLS, ToolLoading};
