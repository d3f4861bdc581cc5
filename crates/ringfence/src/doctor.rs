//! What `ringfence doctor` says: which walls stand on this machine for this user, which clients go around the fence, and
//! what to do about that.
//!
//! Not here: trying the walls (`ringfence_sandbox::probe`), reading settings (`mcp/clients.rs`).

use std::fmt::Write as _;
use std::path::Path;

use clap::ValueEnum as _;
use ringfence_sandbox::{Standing, Wall, probe};
use serde_json::json;

use crate::mcp::clients::{Found, Gate};

/// Tries the walls, and says whether programs can be run: the text, and whether they can.
pub(crate) fn examine(program: &Path, clients: &[Found], json: bool) -> (String, bool) {
    let walls = probe(program);
    let missing = || walls.iter().filter(|standing| !standing.stands && is_needed(standing.wall));
    let text = match json {
        true => json!({"walls": walls, "clients": clients}).to_string(),
        false => as_text(&walls, missing().next()) + &gates(clients),
    };
    (text, missing().next().is_none())
}

/// Whether nothing is run without it. The others only make runs better bounded, or matter to root alone.
fn is_needed(wall: Wall) -> bool {
    !matches!(wall, Wall::Cgroup | Wall::IdmappedMounts | Wall::CgroupNamespace)
}

fn as_text(walls: &[Standing], missing: Option<&Standing>) -> String {
    let width = walls.iter().map(|standing| standing.wall.to_string().len()).max().unwrap_or_default();
    let mut text = String::new();
    for Standing { wall, stands, note, advice } in walls {
        let mark = if *stands { "ok" } else { "--" };
        let _ = writeln!(text, "{mark}  {:width$}  {note}", wall.to_string());
        if let Some(advice) = advice {
            let _ = writeln!(text, "    {:width$}  {advice}", "");
        }
    }
    match missing {
        None => text.push_str("programs can be run: `run_code` has every wall that it needs"),
        Some(Standing { wall, .. }) => {
            let _ = write!(text, "programs cannot be run: there is no {wall}, and none is run without");
        }
    }
    text
}

/// A line for each client that has our entry, and another one for what to do about it.
fn gates(clients: &[Found]) -> String {
    let mut text = String::new();
    for Found { client, own_tools, on, advice } in clients {
        let name = client.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        let (mark, note) = match own_tools {
            Gate::Closed => ("ok", "its own file and shell tools are off".to_owned()),
            Gate::Open => ("--", format!("its own tools go around the fence: {}", on.join(", "))),
            Gate::Unknown => ("??", "its settings do not say whether its own tools are off".to_owned()),
        };
        let _ = write!(text, "\n{mark}  {name}: {note}");
        if let Some(advice) = advice {
            let _ = write!(text, "\n    {advice}");
        }
    }
    text
}
