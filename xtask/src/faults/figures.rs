//! The figures of a run: a table for people, JSON for programs, and what is written down in `docs/faults.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io;
use std::process::Command;

use serde_json::{Value, json};

use super::ERRORS;
use super::operations::FaultFrontend;
use super::trial::{FaultFindings, FaultViolation};
use crate::doc_markers;

/// The columns of faults, in their order.
const FAULT_COLUMNS: [&str; 10] =
    ["kill", ERRORS[0], ERRORS[1], ERRORS[2], ERRORS[3], ERRORS[4], "power cut", "full disk", "read-only", "clock"];

/// Number of trials of a fault on a tool, and of violations afterwards.
#[derive(Clone, Debug, Default)]
struct FaultCount {
    tried: usize,
    violations: BTreeMap<FaultViolation, usize>,
}

#[derive(Debug)]
pub(super) struct FaultFigures {
    tools: Vec<(&'static str, FaultFrontend)>,
    counts: BTreeMap<(usize, &'static str), FaultCount>,
}

impl FaultFigures {
    pub(super) fn new(tools: Vec<(&'static str, FaultFrontend)>) -> Self {
        Self { tools, counts: BTreeMap::new() }
    }

    pub(super) fn count(&mut self, tool: usize, fault: &'static str, found: &FaultFindings) {
        let count = self.counts.entry((tool, fault)).or_default();
        count.tried += 1;
        let kinds: BTreeSet<FaultViolation> = found.iter().map(|(wrong, _)| *wrong).collect();
        kinds.into_iter().for_each(|kind| *count.violations.entry(kind).or_default() += 1);
    }

    /// Whether nothing of ours was ever wrong, and the control was.
    pub(super) fn passed(&self, has_disks: bool) -> bool {
        let ours = self.sum(|front| front != FaultFrontend::Control, |_| true);
        let control = |fault: &str, wrong| {
            let count = self.sum(|front| front == FaultFrontend::Control, |name| name == fault);
            count.tried == 0 || count.violations.contains_key(&wrong)
        };
        let is_seen =
            control("kill", FaultViolation::Torn) && (!has_disks || control("power cut", FaultViolation::Lost));
        ours.violations.is_empty() && ours.tried > 0 && is_seen
    }

    fn sum(&self, tools: impl Fn(FaultFrontend) -> bool, faults: impl Fn(&str) -> bool) -> FaultCount {
        let mut sum = FaultCount::default();
        for ((tool, fault), count) in &self.counts {
            if tools(self.tools[*tool].1) && faults(fault) {
                sum.tried += count.tried;
                count.violations.iter().for_each(|(kind, number)| *sum.violations.entry(*kind).or_default() += number);
            }
        }
        sum
    }

    fn row(&self, title: &str, is_meant: impl Fn(usize) -> bool) -> Vec<String> {
        let mut row = vec![title.to_owned()];
        let mut wrong: BTreeMap<FaultViolation, usize> = BTreeMap::new();
        for fault in FAULT_COLUMNS {
            let counts = self.counts.iter().filter(|((tool, name), _)| is_meant(*tool) && *name == fault);
            let mut tried = 0;
            for (_, count) in counts {
                tried += count.tried;
                count.violations.iter().for_each(|(kind, number)| *wrong.entry(*kind).or_default() += number);
            }
            row.push(tried.to_string());
        }
        row.extend(
            FaultViolation::ALL.iter().map(|(kind, _)| wrong.get(kind).copied().unwrap_or_default().to_string()),
        );
        row
    }

    fn table(&self) -> String {
        let is_ours = |tool: usize| self.tools[tool].1 != FaultFrontend::Control;
        let mut rows = vec![[&["tool"], &FAULT_COLUMNS[..], &FaultViolation::ALL.map(|(_, name)| name)].concat()]
            .into_iter()
            .map(|row| row.into_iter().map(str::to_owned).collect::<Vec<_>>())
            .collect::<Vec<_>>();
        let numbers = 0..self.tools.len();
        rows.extend(
            numbers.clone().filter(|tool| is_ours(*tool)).map(|tool| self.row(self.tools[tool].0, |it| it == tool)),
        );
        rows.push(self.row("**all of ours**", is_ours));
        rows.extend(
            numbers
                .filter(|tool| !is_ours(*tool))
                .map(|tool| self.row(&format!("control: {}", self.tools[tool].0), |it| it == tool)),
        );
        let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or_default();
        let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
        let mut text = String::new();
        for (number, row) in rows.iter().enumerate() {
            let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            text += &format!("| {} |\n", cells.join(" | "));
            if number == 0 {
                let lines: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
                text += &format!("| {} |\n", lines.join(" | "));
            }
        }
        text
    }

    fn json(&self, command: &str) -> Value {
        let one = |((tool, fault), count): (&(usize, &str), &FaultCount)| {
            let (name, front) = self.tools[*tool];
            let mut it =
                json!({"tool": name, "control": front == FaultFrontend::Control, "fault": fault, "tried": count.tried});
            for (kind, column) in FaultViolation::ALL {
                it[column] = json!(count.violations.get(&kind).copied().unwrap_or_default());
            }
            it
        };
        json!({"command": command, "figures": self.counts.iter().map(one).collect::<Vec<_>>()})
    }
}

/// Prints the table, or the same as JSON.
#[expect(clippy::print_stdout, reason = "this is what a command is for")]
pub(super) fn print_figures(figures: &FaultFigures, command: &str, as_json: bool) -> io::Result<()> {
    match as_json {
        true => println!("{:#}", figures.json(command)),
        false => println!("{}", figures.table()),
    }
    Ok(())
}

/// Writes the table into the page about faults. False, with a message, if that fails.
pub(super) fn write_figures(figures: &FaultFigures, command: &str, missing: Vec<&str>) -> bool {
    let ours = figures.sum(|front| front != FaultFrontend::Control, |_| true);
    let mut text = format!("\n`{command}` on {}: {} faults on tools of ours.\n\n", machine(), ours.tried);
    text += &figures.table();
    for missing in missing {
        // A string takes whatever is written.
        let _ = writeln!(text, "\n{missing}.");
    }
    doc_markers::write("docs/faults.md", "faults", &text)
}

/// The kernel and `strace`, which matter here.
fn machine() -> String {
    let output_of = |program: &str, argument: &str| {
        let output = Command::new(program).arg(argument).output().map(|output| output.stdout).unwrap_or_default();
        String::from_utf8_lossy(&output).lines().next().unwrap_or_default().trim().to_owned()
    };
    let strace = output_of("strace", "-V").replace("strace -- version ", "strace ");
    let release = output_of("uname", "-r");
    format!("Linux {}, {strace}", release.split('-').next().unwrap_or_default())
}
