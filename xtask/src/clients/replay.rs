//! Replay: calls of a client's own tools, made once by these and once through our dialect, and what each does to the files.
//!
//! The calls are data, one file a client below `xtask/clients/replay`: a list of cases, each with the files that are there,
//! and the calls as the client's model makes them. A call has its form for the client's own tool and, where the dialect of the
//! client's entry has another name for it, the form for ours. Each case has a directory of its own in one workspace, so
//! that one run of the client makes all calls; the directory is compared after each call. `{DIR}` stands for the absolute path of
//! the directory, `{REL}` for its path in the workspace.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Deserialize;
use serde_json::Value;

use super::model::{CallObserver, LoggedRequest, ScriptedCall, ToolOwner};
use super::real::{ClientRun, ClientSetup, OwnTools, RunPlan};

/// Least share of calls that do the same, in percent.
const WANTED_PERCENT: usize = 95;

/// A case: files, and calls that work on them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReplayCase {
    about: String,
    #[serde(default)]
    files: BTreeMap<String, String>,
    calls: Vec<ReplayCall>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplayCall {
    /// The client's own tool and its arguments.
    own: (String, Value),
    /// The same for our tool, where it has another name or other arguments.
    ours: Option<(String, Value)>,
}

/// The result of a comparison.
#[derive(Debug, Default)]
pub(super) struct ReplayReport {
    calls: usize,
    same: usize,
    /// The cases that differ, and how each run ended.
    pub(super) details: Vec<String>,
}

impl ReplayReport {
    pub(super) fn passed(&self) -> bool {
        self.calls > 0 && self.same * 100 >= self.calls * WANTED_PERCENT
    }
}

impl fmt::Display for ReplayReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { calls, same, .. } = self;
        write!(f, "{same} of {calls} calls, {} %", (same * 100).checked_div(*calls).unwrap_or_default())
    }
}

/// Runs the client twice, and compares the directory of its case after each call.
pub(super) fn compare(setup: &ClientSetup<'_>, calls: &str) -> Result<ReplayReport, String> {
    let cases: Vec<ReplayCase> = serde_json::from_str(calls).map_err(|error| format!("{}: {error}", setup.name()))?;
    let own = replay(setup, &cases, ToolOwner::Client)?;
    let ours = replay(setup, &cases, ToolOwner::Ringfence)?;
    let case_of_call: Vec<usize> =
        cases.iter().enumerate().flat_map(|(number, case)| case.calls.iter().map(move |_| number)).collect();
    let mut report = ReplayReport { calls: case_of_call.len(), ..ReplayReport::default() };
    for (what, run) in [("its own tools", &own), ("our tools", &ours)] {
        let answered = answered_calls(&run.requests);
        report.details.push(format!("{what}: {answered} calls answered; {}", run.note));
        if answered < report.calls {
            report.details.push(format!("{what}: not all calls were made, so nothing was compared"));
            return Ok(report);
        }
    }
    for (call, case) in case_of_call.iter().enumerate() {
        let (before, after) = (own.after.get(&call), ours.after.get(&call));
        match (before, after) {
            (Some(before), Some(after)) if before == after => report.same += 1,
            (Some(before), Some(after)) => {
                let what = difference(before, after);
                report.details.push(format!("{} ({}): {what}", cases[*case].about, directory_name(*case)));
            }
            _ => report.details.push(format!("{}: a result was not observed", cases[*case].about)),
        }
    }
    Ok(report)
}

/// A run of the client, with the directory of a call's case after each call.
struct ReplayRun {
    requests: Vec<LoggedRequest>,
    note: String,
    after: BTreeMap<usize, DirectorySnapshot>,
}

fn replay(setup: &ClientSetup<'_>, cases: &[ReplayCase], owner: ToolOwner) -> Result<ReplayRun, String> {
    let snapshots = Arc::new(Mutex::new(BTreeMap::new()));
    let case_of_call: Vec<usize> =
        cases.iter().enumerate().flat_map(|(number, case)| case.calls.iter().map(move |_| number)).collect();
    let kept = Arc::clone(&snapshots);
    let observe = move |workspace: &Path| {
        let workspace = workspace.to_owned();
        CallObserver(Box::new(move |answered| {
            let Some(last) = answered.checked_sub(1) else { return };
            let Some(case) = case_of_call.get(last) else { return };
            if let Ok(found) = snapshot(&workspace.join(directory_name(*case))) {
                kept.lock().unwrap_or_else(PoisonError::into_inner).insert(last, found);
            }
        }))
    };
    let plan = RunPlan {
        script: Box::new(|workspace| script(cases, owner, workspace)),
        fill: Box::new(|workspace| write_cases(cases, workspace)),
        observer: Box::new(observe),
    };
    let ClientRun { requests, note, .. } = match owner {
        ToolOwner::Client => setup.run(OwnTools::On, "own", plan)?,
        ToolOwner::Ringfence => setup.run(OwnTools::Off, "replay", plan)?,
    };
    let after = snapshots.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(ReplayRun { requests, note, after })
}

fn directory_name(case: usize) -> String {
    format!("c{:02}", case + 1)
}

/// Results that the model got.
fn answered_calls(requests: &[LoggedRequest]) -> usize {
    requests.iter().map(|request| request.format.results(&request.body).len()).max().unwrap_or_default()
}

fn write_cases(cases: &[ReplayCase], workspace: &Path) -> io::Result<()> {
    for (number, case) in cases.iter().enumerate() {
        let directory = workspace.join(directory_name(number));
        fs::create_dir_all(&directory)?;
        for (name, text) in &case.files {
            let file = directory.join(name);
            fs::create_dir_all(file.parent().unwrap_or(&directory))?;
            fs::write(file, text)?;
        }
    }
    Ok(())
}

fn script(cases: &[ReplayCase], owner: ToolOwner, workspace: &Path) -> Vec<ScriptedCall> {
    let of_case = |(number, case): (usize, &ReplayCase)| {
        let relative = directory_name(number);
        let absolute = workspace.join(&relative).display().to_string();
        let scripted = |call: &ReplayCall| {
            let (tool, arguments) = call.ours.as_ref().filter(|_| owner == ToolOwner::Ringfence).unwrap_or(&call.own);
            let arguments = fill_in(arguments, &absolute, &relative);
            ScriptedCall { owner, tool: tool.clone(), arguments }
        };
        case.calls.iter().map(scripted).collect::<Vec<_>>()
    };
    cases.iter().enumerate().flat_map(of_case).collect()
}

fn fill_in(value: &Value, absolute: &str, relative: &str) -> Value {
    match value {
        Value::String(text) => Value::String(text.replace("{DIR}", absolute).replace("{REL}", relative)),
        Value::Array(items) => items.iter().map(|item| fill_in(item, absolute, relative)).collect(),
        Value::Object(fields) => {
            fields.iter().map(|(key, value)| (key.clone(), fill_in(value, absolute, relative))).collect()
        }
        other => other.clone(),
    }
}

/// Every entry below a directory: its contents and whether it can be executed, the target of a link, or nothing for a
/// directory.
type DirectorySnapshot = BTreeMap<String, (Option<Vec<u8>>, bool)>;

fn snapshot(directory: &Path) -> io::Result<DirectorySnapshot> {
    let mut found = DirectorySnapshot::new();
    let mut waiting = vec![directory.to_owned()];
    while let Some(here) = waiting.pop() {
        for entry in fs::read_dir(&here)? {
            let path = entry?.path();
            let name = path.strip_prefix(directory).unwrap_or(&path).display().to_string();
            let metadata = path.symlink_metadata()?;
            let contents = if metadata.is_symlink() {
                Some(fs::read_link(&path)?.into_os_string().into_encoded_bytes())
            } else if metadata.is_dir() {
                waiting.push(path);
                None
            } else {
                Some(fs::read(&path)?)
            };
            let is_executable = contents.is_some() && metadata.permissions().mode() & 0o111 != 0;
            found.insert(name, (contents, is_executable));
        }
    }
    Ok(found)
}

/// The first entry that differs.
fn difference(own: &DirectorySnapshot, ours: &DirectorySnapshot) -> String {
    let shown = |entry: Option<&(Option<Vec<u8>>, bool)>| match entry {
        None => "nothing".to_owned(),
        Some((None, _)) => "a directory".to_owned(),
        Some((Some(bytes), is_executable)) => {
            let text: String = String::from_utf8_lossy(bytes).chars().take(200).collect();
            format!("{text:?}{}", if *is_executable { ", executable" } else { "" })
        }
    };
    let names = own.keys().chain(ours.keys());
    let first = names.into_iter().find(|name| own.get(*name) != ours.get(*name));
    first.map_or_else(String::new, |name| {
        format!("`{name}` is {} by its own tools and {} by ours", shown(own.get(name)), shown(ours.get(name)))
    })
}

#[cfg(test)]
mod tests {
    use super::ReplayCase;
    use crate::clients::real::CLIENTS;

    #[test]
    fn every_client_has_forty_calls_or_more() {
        for client in &CLIENTS {
            let cases: Vec<ReplayCase> = serde_json::from_str(client.calls).unwrap();
            let calls: usize = cases.iter().map(|case| case.calls.len()).sum();
            assert!(calls >= 40, "{}: {calls}", client.name);
        }
    }
}
