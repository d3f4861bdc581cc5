//! Scoreboards: attacks in rows, and their outcome for each program in columns.
//!
//! A row in which the unsafe control holds shows nothing, and fails the board as much as a row in which ours does not
//! hold. Not here: the attacks.

use serde_json::{Value, json};

/// The outcome of one attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AttackOutcome {
    /// There is no such tool, or nothing of the kind is promised here.
    NotApplicable,
    /// Refused, or harmless.
    Held,
    /// The reply is too large to be of use.
    Flooded,
    /// Something that was there, or that was acknowledged, is gone or other than it was.
    Lost,
    /// No answer in time.
    Hung,
    /// The server is gone.
    Crashed,
    /// Something outside was seen or changed.
    Leaked,
}

impl AttackOutcome {
    const ALL: [Self; 7] =
        [Self::NotApplicable, Self::Held, Self::Flooded, Self::Lost, Self::Hung, Self::Crashed, Self::Leaked];

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::NotApplicable => "n.a.",
            Self::Held => "held",
            Self::Flooded => "flooded",
            Self::Lost => "lost",
            Self::Hung => "hung",
            Self::Crashed => "crashed",
            Self::Leaked => "leaked",
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct ScoreCell {
    pub(crate) outcome: AttackOutcome,
    /// Counts or details; may be empty.
    pub(crate) note: String,
}

impl ScoreCell {
    pub(crate) fn new(outcome: AttackOutcome, note: impl Into<String>) -> Self {
        Self { outcome, note: note.into() }
    }

    /// The worst of several tries, with the ways in which it came about.
    pub(crate) fn worst_of(tries: &[(&str, AttackOutcome)]) -> Self {
        let tried = tries.iter().filter(|(_, outcome)| *outcome != AttackOutcome::NotApplicable).count();
        let worst = tries.iter().map(|(_, outcome)| *outcome).max().unwrap_or(AttackOutcome::NotApplicable);
        match worst {
            AttackOutcome::NotApplicable => Self::new(worst, ""),
            AttackOutcome::Held if tried == 1 => Self::new(worst, ""),
            AttackOutcome::Held => Self::new(worst, format!("{tried} ways")),
            _ => {
                let bad: Vec<_> = tries.iter().filter(|(_, outcome)| *outcome > AttackOutcome::Held).collect();
                let count = if tried == 1 { String::new() } else { format!("{} of {tried}: ", bad.len()) };
                let mut names: Vec<String> = Vec::new();
                for (name, outcome) in bad {
                    let name =
                        if *outcome == worst { (*name).to_owned() } else { format!("{name} ({})", outcome.label()) };
                    if !names.contains(&name) {
                        names.push(name);
                    }
                }
                Self::new(worst, count + &names.join(", "))
            }
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct ScoreRow {
    pub(crate) name: String,
    /// One for each column.
    pub(crate) cells: Vec<ScoreCell>,
}

/// Ours is the first column, the control the last one.
#[derive(Clone, Debug)]
pub(crate) struct Scoreboard {
    pub(crate) title: String,
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<ScoreRow>,
    /// Missing peers, and the reasons; attacks that show nothing on this machine.
    pub(crate) notes: Vec<String>,
}

impl Scoreboard {
    /// Whether ours held everywhere, and the control nowhere.
    pub(crate) fn passed(&self) -> bool {
        !self.rows.is_empty() && self.failures().is_empty()
    }

    pub(crate) fn failures(&self) -> Vec<String> {
        let mut all = Vec::new();
        for row in &self.rows {
            match row.cells.first().map(|cell| cell.outcome) {
                Some(AttackOutcome::Held | AttackOutcome::NotApplicable) => {}
                other => all.push(format!("{}: ours {}", row.name, other.map_or("is not there", AttackOutcome::label))),
            }
            match row.cells.last().map(|cell| cell.outcome) {
                Some(AttackOutcome::Held | AttackOutcome::NotApplicable) | None => {
                    all.push(format!("{}: the control holds, so that this shows nothing", row.name));
                }
                _ => {}
            }
        }
        all
    }

    /// A table that is one in Markdown too.
    pub(crate) fn table(&self) -> String {
        let head: Vec<String> = std::iter::once(String::new()).chain(self.columns.iter().cloned()).collect();
        let body = self.rows.iter().map(|row| {
            let cells = row.cells.iter().map(|cell| match cell.note.as_str() {
                "" => cell.outcome.label().to_owned(),
                note => format!("{}, {note}", cell.outcome.label()),
            });
            std::iter::once(row.name.clone()).chain(cells).collect::<Vec<_>>()
        });
        let mut lines = vec![head];
        lines.extend(body);
        lines.push(self.totals());
        markdown_table(&lines)
    }

    fn totals(&self) -> Vec<String> {
        let total = |column: usize| {
            let outcomes: Vec<_> = self.rows.iter().filter_map(|row| Some(row.cells.get(column)?.outcome)).collect();
            let tried = outcomes.iter().filter(|outcome| **outcome != AttackOutcome::NotApplicable).count();
            let held = outcomes.iter().filter(|outcome| **outcome == AttackOutcome::Held).count();
            format!("**{held} of {tried} held**")
        };
        std::iter::once("**rows**".to_owned()).chain((0..self.columns.len()).map(total)).collect()
    }

    pub(crate) fn json(&self) -> Value {
        let rows = self.rows.iter().map(|row| {
            let cells =
                self.columns.iter().zip(&row.cells).map(|(column, cell)| {
                    (column.clone(), json!({"outcome": cell.outcome.label(), "note": cell.note}))
                });
            json!({"attack": row.name, "outcomes": cells.collect::<serde_json::Map<_, _>>()})
        });
        json!({"title": self.title, "columns": self.columns, "rows": rows.collect::<Vec<_>>(), "notes": self.notes, "fine": self.passed()})
    }

    /// Parses another process's `json`. A missing field stays empty.
    pub(crate) fn from_json(json: &Value) -> Self {
        let texts = |of: &Value| -> Vec<String> {
            let all = of.as_array().into_iter().flatten();
            all.filter_map(|text| text.as_str().map(str::to_owned)).collect()
        };
        let columns = texts(&json["columns"]);
        let rows = json["rows"].as_array().into_iter().flatten().map(|row| {
            let cell = |column: &String| {
                let cell = &row["outcomes"][column];
                let outcome = AttackOutcome::ALL.into_iter().find(|outcome| cell["outcome"] == outcome.label());
                ScoreCell::new(
                    outcome.unwrap_or(AttackOutcome::NotApplicable),
                    cell["note"].as_str().unwrap_or_default(),
                )
            };
            let name = row["attack"].as_str().unwrap_or_default().to_owned();
            ScoreRow { name, cells: columns.iter().map(cell).collect() }
        });
        let rows = rows.collect();
        Self { title: String::new(), columns, rows, notes: texts(&json["notes"]) }
    }
}

/// A table in Markdown whose columns line up as text.
fn markdown_table(lines: &[Vec<String>]) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| {
        lines.iter().filter_map(|line| line.get(column)).map(|text| text.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!(" {cell:<width$} "));
        text += &format!("|{}|\n", cells.collect::<Vec<_>>().join("|"));
        if number == 0 {
            let rules = widths.iter().map(|width| "-".repeat(width + 2));
            text += &format!("|{}|\n", rules.collect::<Vec<_>>().join("|"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test_board(ours: AttackOutcome, control: AttackOutcome) -> Scoreboard {
        let cells =
            vec![ScoreCell::new(ours, ""), ScoreCell::new(AttackOutcome::Leaked, ""), ScoreCell::new(control, "")];
        Scoreboard {
            title: "t".to_owned(),
            columns: ["ours", "peer", "control"].map(str::to_owned).to_vec(),
            rows: vec![ScoreRow { name: "row".to_owned(), cells }],
            notes: Vec::new(),
        }
    }

    #[test]
    fn a_board_is_fine_when_ours_holds_and_the_control_does_not() {
        for (ours, control, fine) in [
            (AttackOutcome::Held, AttackOutcome::Leaked, true),
            (AttackOutcome::Held, AttackOutcome::Hung, true),
            (AttackOutcome::Held, AttackOutcome::Held, false),
            (AttackOutcome::Held, AttackOutcome::NotApplicable, false),
            (AttackOutcome::Leaked, AttackOutcome::Leaked, false),
            (AttackOutcome::Lost, AttackOutcome::Leaked, false),
        ] {
            assert_eq!(test_board(ours, control).passed(), fine, "{ours:?} {control:?}");
        }
        assert!(!Scoreboard { rows: Vec::new(), ..test_board(AttackOutcome::Held, AttackOutcome::Leaked) }.passed());
    }

    #[test]
    fn a_cell_tells_the_worst_and_which_ways_led_there() {
        let check = |tries: &[(&str, AttackOutcome)], outcome, note: &str| {
            let cell = ScoreCell::worst_of(tries);
            assert_eq!((cell.outcome, cell.note.as_str()), (outcome, note));
        };
        check(&[("read", AttackOutcome::Held), ("list", AttackOutcome::NotApplicable)], AttackOutcome::Held, "");
        check(&[("read", AttackOutcome::Held), ("list", AttackOutcome::Held)], AttackOutcome::Held, "2 ways");
        check(&[("read", AttackOutcome::Leaked), ("list", AttackOutcome::Held)], AttackOutcome::Leaked, "1 of 2: read");
        check(
            &[("read", AttackOutcome::Leaked), ("list", AttackOutcome::Hung)],
            AttackOutcome::Leaked,
            "2 of 2: read, list (hung)",
        );
        check(&[("read", AttackOutcome::NotApplicable)], AttackOutcome::NotApplicable, "");
    }

    #[test]
    fn a_board_comes_back_from_its_json() {
        let board = test_board(AttackOutcome::Held, AttackOutcome::Lost);
        assert_eq!(Scoreboard::from_json(&board.json()).table(), board.table());
    }

    #[test]
    fn the_last_line_of_a_table_counts_the_rows_that_held() {
        let table = test_board(AttackOutcome::Held, AttackOutcome::Leaked).table();
        let last = table.lines().last().unwrap_or_default().replace("  ", "");
        assert_eq!(last, "| **rows** | **1 of 1 held** | **0 of 1 held** | **0 of 1 held** |");
    }
}
