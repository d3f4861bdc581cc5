//! `ringfence doctor`: isolation mechanisms available on this machine, clients that bypass Ringfence, external MCP servers
//! that start, and advice.
//!
//! Not here: probing the mechanisms (`ringfence_sandbox::probe`), reading settings (`mcp/install/clients.rs`).

use std::fmt::Write as _;
use std::path::Path;

use clap::ValueEnum as _;
use ringfence_kernel::{sanitize_json, sanitize_text};
use ringfence_sandbox::{Isolation, IsolationStatus, JailFallback, needs_bwrap_fallback, probe};
use serde_json::json;

use crate::app::isolation_report::isolation_report;
use crate::mcp::install::clients::{ClientBypassState, DetectedClient};
use crate::mcp_client::McpServerCheck;

/// Probes the isolation mechanisms, and reports whether programs can be run: the text, and whether they can.
pub(crate) fn run_doctor(
    program: &Path,
    fallback: JailFallback,
    clients: &[DetectedClient],
    servers: &[McpServerCheck],
    json: bool,
) -> (String, bool) {
    let statuses = probe(program);
    let verdict = DoctorVerdict::from_probes(&statuses, fallback);
    let text = match json {
        true => {
            let mut report = isolation_report(&statuses);
            report["clients"] = json!(clients);
            report["mcpServers"] = json!(servers);
            sanitize_json(&report.to_string())
        }
        // Some of it quotes other programs.
        false => {
            sanitize_text(&(isolation_text(&statuses, &verdict) + &client_lines(clients) + &server_lines(servers)))
        }
    };
    (text, !matches!(verdict, DoctorVerdict::Unavailable(_)))
}

/// Verdict on running programs.
#[derive(Debug, PartialEq, Eq)]
enum DoctorVerdict {
    Available,
    BwrapOnly,
    /// Not without this one.
    Unavailable(Isolation),
}

impl DoctorVerdict {
    fn from_probes(statuses: &[IsolationStatus], fallback: JailFallback) -> Self {
        match statuses.iter().find(|status| !status.available && is_required(status.mechanism)) {
            None => Self::Available,
            Some(_) if fallback != JailFallback::None && needs_bwrap_fallback(statuses) => Self::BwrapOnly,
            Some(status) => Self::Unavailable(status.mechanism),
        }
    }
}

/// Whether nothing is run without it. The others only make runs better bounded, matter to root alone, or can be done without.
fn is_required(mechanism: Isolation) -> bool {
    !matches!(
        mechanism,
        Isolation::Cgroup | Isolation::IdmappedMounts | Isolation::CgroupNamespace | Isolation::Proc | Isolation::Bwrap
    )
}

fn isolation_text(statuses: &[IsolationStatus], verdict: &DoctorVerdict) -> String {
    let width = statuses.iter().map(|status| status.mechanism.to_string().len()).max().unwrap_or_default();
    let mut text = String::new();
    for IsolationStatus { mechanism, available, note, advice } in statuses {
        let mark = if *available { "ok" } else { "--" };
        let _ = writeln!(text, "{mark}  {:width$}  {note}", mechanism.to_string());
        if let Some(advice) = advice {
            let _ = writeln!(text, "    {:width$}  {advice}", "");
        }
    }
    match verdict {
        DoctorVerdict::Available => {
            text.push_str("programs can be run: every isolation mechanism that `run_code` needs is available")
        }
        DoctorVerdict::BwrapOnly => text.push_str(
            "programs can be run, but only with the system's bwrap: `run_code` runs with the workspace read-only",
        ),
        DoctorVerdict::Unavailable(mechanism) => {
            let _ = write!(text, "programs cannot be run: {mechanism} is missing, and `run_code` requires it");
        }
    }
    text
}

/// A line for each client that has our entry, and another one for what to do about it.
fn client_lines(clients: &[DetectedClient]) -> String {
    let mut text = String::new();
    for DetectedClient { client, own_tools, on, unread, advice } in clients {
        let name = client.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        let (mark, note) = match own_tools {
            ClientBypassState::Closed => ("ok", "built-in file and shell tools are off".to_owned()),
            ClientBypassState::Open => ("--", format!("built-in tools bypass Ringfence: {}", on.join(", "))),
            ClientBypassState::Unknown if unread.is_empty() => {
                ("??", "unknown whether built-in tools are off: its settings do not say".to_owned())
            }
            ClientBypassState::Unknown => {
                ("??", format!("unknown whether built-in tools are off: cannot evaluate {}", unread.join(", ")))
            }
        };
        let _ = write!(text, "\n{mark}  {name}: {note}");
        if let Some(advice) = advice {
            let _ = write!(text, "\n    {advice}");
        }
    }
    text
}

/// A line for each server whose tools join ours.
fn server_lines(servers: &[McpServerCheck]) -> String {
    let line = |McpServerCheck { name, starts, note }: &McpServerCheck| {
        let mark = if *starts { "ok" } else { "--" };
        format!("\n{mark}  MCP server {name}: {note}")
    };
    servers.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use ringfence_sandbox::{Isolation, IsolationStatus, JailFallback};

    use super::{DoctorVerdict, isolation_text};

    fn without(missing: &[Isolation]) -> Vec<IsolationStatus> {
        let status = |mechanism| IsolationStatus {
            mechanism,
            available: !missing.contains(&mechanism),
            note: String::new(),
            advice: None,
        };
        Isolation::ALL.into_iter().map(status).collect()
    }

    #[test]
    fn the_verdict_is_what_run_code_will_do() {
        let ubuntu = [Isolation::UserNamespace, Isolation::MountNamespace, Isolation::Overlay];
        assert_eq!(DoctorVerdict::from_probes(&without(&[]), JailFallback::Bwrap), DoctorVerdict::Available);
        assert_eq!(
            DoctorVerdict::from_probes(&without(&[Isolation::Bwrap, Isolation::Cgroup]), JailFallback::Bwrap),
            DoctorVerdict::Available
        );
        assert_eq!(DoctorVerdict::from_probes(&without(&ubuntu), JailFallback::Bwrap), DoctorVerdict::BwrapOnly);
        assert_eq!(
            DoctorVerdict::from_probes(&without(&ubuntu), JailFallback::None),
            DoctorVerdict::Unavailable(Isolation::UserNamespace)
        );
        assert_eq!(
            DoctorVerdict::from_probes(&without(&[Isolation::Landlock]), JailFallback::Bwrap),
            DoctorVerdict::Unavailable(Isolation::Landlock)
        );
        let text = isolation_text(&without(&ubuntu), &DoctorVerdict::BwrapOnly);
        assert!(text.ends_with("only with the system's bwrap: `run_code` runs with the workspace read-only"), "{text}");
    }
}
