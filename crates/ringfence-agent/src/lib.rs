//! The agent: a model that is asked, its calls made on the one road, and an end that always comes.
//!
//! A `Model` answers once. What it asks for is done by `Host::call` and by nothing else. `Agent::run` is one prompt from
//! its first step to its outcome, with a `Ledger` of what was truly done, which the model has no word in.
//!
//! Not here: files, processes, terminals and protocols of editors. Fronts bring those.

mod ask;
mod bounds;
mod calls;
mod event;
mod history;
mod ledger;
mod message;
mod model;
mod outcome;
mod probe;
pub mod provider;
mod pseudo;
mod repair;
mod repeat;
mod run;

pub use bounds::Bounds;
pub use event::{Announced, Event, Front, Quiet};
pub use history::{Forgetful, History, Memory, MemoryLost, whole};
pub use ledger::{Call, Change, Command, Fate, Ledger, Tap};
pub use message::{Message, ReasoningState, RequestedCall};
pub use model::{Answer, Answering, Ask, Finish, Model, ModelError, Offered, Part, Parts, Trouble, Usage};
pub use outcome::{End, Outcome};
pub use probe::{Ability, probe};
pub use repair::Repair;
pub use run::Agent;
