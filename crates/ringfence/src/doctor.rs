//! What `ringfence doctor` says: which walls stand on this machine for this user, and what to do about the others.
//!
//! Not here: trying them (`ringfence_sandbox::probe`).

use std::fmt::Write as _;
use std::path::Path;

use ringfence_sandbox::{Standing, Wall, probe};

/// Tries the walls, and says whether programs can be run: the text, and whether they can.
pub(crate) fn examine(program: &Path, json: bool) -> (String, bool) {
    let walls = probe(program);
    let missing = || walls.iter().filter(|standing| !standing.stands && is_needed(standing.wall));
    let text = if json { as_json(&walls) } else { as_text(&walls, missing().next()) };
    (text, missing().next().is_none())
}

/// Whether nothing is run without it. The others only make runs better bounded, or matter to root alone.
fn is_needed(wall: Wall) -> bool {
    !matches!(wall, Wall::Cgroup | Wall::IdmappedMounts | Wall::CgroupNamespace)
}

fn as_json(walls: &[Standing]) -> String {
    serde_json::to_string(walls).unwrap_or_default()
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
