//! Text output of `ringfence approvals` and `ringfence policy grants`.
//!
//! Everything that an agent may have written is shown with escapes for what cannot be seen.
//!
//! Not here: printing (`mod.rs`), and the dialog (`approval/dialog.rs`).

use std::fmt::Write as _;
use std::time::SystemTime;

use ringfence_kernel::{ApprovalRequest, DenialStreak, Grant, sanitize_line};

use crate::approval::dialog_lines::escaped_lines;

/// A line for each request.
pub(crate) fn format_requests(requests: &[ApprovalRequest], now: SystemTime) -> String {
    let mut text = String::new();
    for ApprovalRequest { id, principal, tool, reason, expires, suspended, .. } in requests {
        let left = expires.duration_since(now).unwrap_or_default().as_secs();
        let (principal, tool, reason) = (sanitize_line(principal), sanitize_line(tool), sanitize_line(reason));
        let caller = if *suspended { "  (deferred: the caller must call again)" } else { "" };
        let _ = writeln!(text, "{id}  {left} s left  {principal}  {tool}  {reason}{caller}");
    }
    text
}

/// Everything about one request.
pub(crate) fn format_request(request: &ApprovalRequest) -> String {
    let args = serde_json::to_string_pretty(&request.args).unwrap_or_default();
    let lines = [
        ("request", request.id.as_str()),
        ("principal", &request.principal),
        ("agent", request.agent.as_deref().unwrap_or_default()),
        ("session", &request.session),
        ("call", &request.step_id),
        ("tool", &request.tool),
        ("reason", &request.reason),
        ("rule", &request.rule),
        ("layer", request.layer.name()),
        ("answer", request.assurance.name()),
        ("always", request.grant.as_deref().unwrap_or_default()),
        ("caller", if request.suspended { "deferred: the call runs when the caller calls again" } else { "" }),
    ];
    let mut text = String::new();
    for (name, value) in lines.into_iter().filter(|(_, value)| !value.is_empty()) {
        let _ = writeln!(text, "{name}: {}", sanitize_line(value));
    }
    for (name, block) in [("preview", request.preview.text().as_str()), ("arguments", &args)] {
        let _ = writeln!(text, "{name}:");
        for line in escaped_lines(block) {
            let _ = writeln!(text, "  {line}");
        }
    }
    text
}

/// A line for each session that is paused.
pub(crate) fn format_paused(sessions: &[DenialStreak]) -> String {
    let mut text = String::new();
    for DenialStreak { session, principal, count } in sessions {
        let (session, principal) = (sanitize_line(session), sanitize_line(principal));
        let _ = writeln!(text, "{session}  paused after {count} consecutive denials  {principal}");
    }
    text
}

/// A line for each grant.
pub(crate) fn format_grants(grants: &[Grant]) -> String {
    let mut text = String::new();
    for grant in grants {
        let until = humantime::format_rfc3339_seconds(grant.until);
        let rule = grant.parse_rule().map(|rule| rule.to_string()).unwrap_or_default();
        let _ =
            writeln!(text, "{}  until {until}  by {}  {}", grant.id, sanitize_line(&grant.by), sanitize_line(&rule));
    }
    text
}
