//! Sessions and hosts with defaults, of which a test changes what it is about.

use ringfence_kernel::{
    CallLimits, DenyApprover, Dialect, HostConfig, InMemoryApprovalStore, NullAuditSink, Preset, Principal, ReplyForm,
    Session, SessionMemory, SessionTaint, ToolCatalog, ToolFilter, ToolRegistry,
};

/// A session `test` of an agent `test` with every tool of a registry.
///
/// # Panics
/// If two tools of the registry have one name.
#[must_use]
pub fn test_session(registry: &ToolRegistry, dialect: Dialect) -> Session {
    Session { catalog: registry.catalog(dialect, &ToolFilter::default()).unwrap(), ..session_without_tools(dialect) }
}

/// The same without any tool.
#[must_use]
pub fn session_without_tools(dialect: Dialect) -> Session {
    Session {
        id: "test".to_owned(),
        principal: Principal::agent("test"),
        dialect,
        agent: None,
        limits: CallLimits::for_dialect(dialect),
        catalog: ToolCatalog::default(),
        taint: SessionTaint::default(),
        memory: SessionMemory::default(),
        replies: ReplyForm::default(),
    }
}

/// A host that lets files be edited, asks no person, keeps everything in memory and no records.
#[must_use]
pub fn test_host_config() -> HostConfig {
    HostConfig {
        policy: Box::new(Preset::Edits),
        approver: Box::new(DenyApprover { advice: "this is a test".to_owned() }),
        audit: Box::new(NullAuditSink),
        store: Box::new(InMemoryApprovalStore::default()),
        workers: 4,
    }
}
