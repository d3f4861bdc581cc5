//! The agent: a model that is asked, its calls made on the one road, and an end that always comes.
//!
//! A `Model` answers once. What it asks for is done by `Host::call` and by nothing else.
//!
//! Not here: files, processes, terminals and protocols of editors. Fronts bring those.

mod message;
mod model;
pub mod provider;

pub use message::{Message, RequestedCall};
pub use model::{Answer, Answering, Ask, Finish, Model, ModelError, Offered, Part, Parts, Trouble, Usage};
