//! What `ringfence doctor` says: which walls stand on this machine for this user, and what to do about the others.
//!
//! Not here: trying them (`ringfence_sandbox::probe`).

use std::fmt::Write as _;
use std::path::Path;

use ringfence_sandbox::{Fallback, Standing, Wall, falls_back, probe};

/// Tries the walls, and says whether programs can be run: the text, and whether they can.
pub(crate) fn examine(program: &Path, fallback: Fallback, json: bool) -> (String, bool) {
    let walls = probe(program);
    let verdict = Verdict::of(&walls, fallback);
    let text = if json { as_json(&walls) } else { as_text(&walls, &verdict) };
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

fn as_json(walls: &[Standing]) -> String {
    serde_json::to_string(walls).unwrap_or_default()
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
