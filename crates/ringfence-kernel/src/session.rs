//! Sessions: one conversation of a principal with the host, in one dialect.
//!
//! A session is immutable, but for its taint, which only grows: its holder knows what its calls may do. Its memory has no
//! say in that.

use crate::dialect::Dialect;
use crate::limits::{CallLimits, MODEL_LIST_STATS};
use crate::principal::Principal;
use crate::registry::ToolCatalog;
use crate::reply::ReplyForm;
use crate::session_memory::SessionMemory;
use crate::taint::SessionTaint;

/// One conversation of one caller with the host.
#[derive(Debug)]
pub struct Session {
    /// Unique ID of the session.
    pub id: String,
    /// The caller.
    pub principal: Principal,
    /// The dialect of its tools and replies.
    pub dialect: Dialect,
    /// The agent on whose behalf the principal calls, where a dialect has agents.
    pub agent: Option<String>,
    /// The limits of its calls.
    pub limits: CallLimits,
    /// The tools that this session may call, and no others.
    pub catalog: ToolCatalog,
    /// Its taint.
    pub taint: SessionTaint,
    /// Its memory of earlier calls.
    pub memory: SessionMemory,
    /// The form of its replies.
    pub replies: ReplyForm,
}

impl Session {
    /// The same session for a model, which gets the texts of results instead of their JSON. The other dialects have one form.
    #[must_use]
    pub fn for_model(mut self) -> Self {
        if self.dialect == Dialect::Standard {
            self.replies = ReplyForm::ModelText;
            self.limits.list_stats = self.limits.list_stats.min(MODEL_LIST_STATS);
        }
        self
    }

    /// A session like this of another principal, without taint and memory.
    pub fn for_principal(&self, id: impl Into<String>, principal: Principal) -> Self {
        Self {
            id: id.into(),
            principal,
            dialect: self.dialect,
            agent: self.agent.clone(),
            limits: self.limits.clone(),
            catalog: self.catalog.clone(),
            taint: SessionTaint::default(),
            memory: SessionMemory::default(),
            replies: self.replies,
        }
    }
}
