//! What `ringfence doctor` says: which walls stand on this machine for this user, which clients go around the fence, which
//! servers of others start, and what to do about that.
//!
//! Not here: trying the walls (`ringfence_sandbox::probe`), reading settings (`mcp/clients.rs`).

use std::fmt::Write as _;
use std::path::Path;

use clap::ValueEnum as _;
use ringfence_kernel::visible;
use ringfence_sandbox::{Fallback, Standing, Wall, falls_back, probe};
use serde_json::json;

use crate::foreign::Checked;
use crate::mcp::clients::{Found, Gate};

/// Tries the walls, and says whether programs can be run: the text, and whether they can.
pub(crate) fn examine(
    program: &Path,
    fallback: Fallback,
    clients: &[Found],
    servers: &[Checked],
    json: bool,
) -> (String, bool) {
    let walls = probe(program);
    let verdict = Verdict::of(&walls, fallback);
    let text = match json {
        true => json!({"walls": walls, "clients": clients, "mcpServers": servers}).to_string(),
        // Some of it is what other programs said.
        false => visible(&(as_text(&walls, &verdict) + &gates(clients) + &started(servers))),
    };
    (text, !matches!(verdict, Verdict::Never(_)))
}

/// Whether programs can be run.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Always,
    ByBwrap,
    /// Not without this one.
    Never(Wall),
}

impl Verdict {
    fn of(walls: &[Standing], fallback: Fallback) -> Self {
        match walls.iter().find(|standing| !standing.stands && is_needed(standing.wall)) {
            None => Self::Always,
            Some(_) if fallback != Fallback::None && falls_back(walls) => Self::ByBwrap,
            Some(standing) => Self::Never(standing.wall),
        }
    }
}

/// Whether nothing is run without it. The others only make runs better bounded, matter to root alone, or can be done without.
fn is_needed(wall: Wall) -> bool {
    !matches!(wall, Wall::Cgroup | Wall::IdmappedMounts | Wall::CgroupNamespace | Wall::Proc | Wall::Bwrap)
}

fn as_text(walls: &[Standing], verdict: &Verdict) -> String {
    let width = walls.iter().map(|standing| standing.wall.to_string().len()).max().unwrap_or_default();
    let mut text = String::new();
    for Standing { wall, stands, note, advice } in walls {
        let mark = if *stands { "ok" } else { "--" };
        let _ = writeln!(text, "{mark}  {:width$}  {note}", wall.to_string());
        if let Some(advice) = advice {
            let _ = writeln!(text, "    {:width$}  {advice}", "");
        }
    }
    match verdict {
        Verdict::Always => text.push_str("programs can be run: `run_code` has every wall that it needs"),
        Verdict::ByBwrap => text.push_str(
            "programs can be run, but only by the system's bwrap: `run_code` shows them the workspace read-only",
        ),
        Verdict::Never(wall) => {
            let _ = write!(text, "programs cannot be run: there is no {wall}, and none is run without");
        }
    }
    text
}

/// A line for each client that has our entry, and another one for what to do about it.
fn gates(clients: &[Found]) -> String {
    let mut text = String::new();
    for Found { client, own_tools, on, unread, advice } in clients {
        let name = client.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        let (mark, note) = match own_tools {
            Gate::Closed => ("ok", "its own file and shell tools are off".to_owned()),
            Gate::Open => ("--", format!("its own tools go around the fence: {}", on.join(", "))),
            Gate::Unknown if unread.is_empty() => {
                ("??", "its settings do not say whether its own tools are off".to_owned())
            }
            Gate::Unknown => {
                ("??", format!("not known whether its own tools are off: cannot read {}", unread.join(", ")))
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
fn started(servers: &[Checked]) -> String {
    let line = |Checked { name, starts, note }: &Checked| {
        let mark = if *starts { "ok" } else { "--" };
        format!("\n{mark}  MCP server {name}: {note}")
    };
    servers.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use ringfence_sandbox::{Fallback, Standing, Wall};

    use super::{Verdict, as_text};

    fn without(missing: &[Wall]) -> Vec<Standing> {
        let standing = |wall| Standing { wall, stands: !missing.contains(&wall), note: String::new(), advice: None };
        Wall::ALL.into_iter().map(standing).collect()
    }

    #[test]
    fn the_verdict_is_what_run_code_will_do() {
        let ubuntu = [Wall::UserNamespace, Wall::MountNamespace, Wall::Overlay];
        assert_eq!(Verdict::of(&without(&[]), Fallback::Bwrap), Verdict::Always);
        assert_eq!(Verdict::of(&without(&[Wall::Bwrap, Wall::Cgroup]), Fallback::Bwrap), Verdict::Always);
        assert_eq!(Verdict::of(&without(&ubuntu), Fallback::Bwrap), Verdict::ByBwrap);
        assert_eq!(Verdict::of(&without(&ubuntu), Fallback::None), Verdict::Never(Wall::UserNamespace));
        assert_eq!(Verdict::of(&without(&[Wall::Landlock]), Fallback::Bwrap), Verdict::Never(Wall::Landlock));
        let text = as_text(&without(&ubuntu), &Verdict::ByBwrap);
        assert!(text.ends_with("only by the system's bwrap: `run_code` shows them the workspace read-only"), "{text}");
    }
}
