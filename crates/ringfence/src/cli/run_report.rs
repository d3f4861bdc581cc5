//! `ringfence run --report`: what a run did, in a file for people or programs.
//!
//! Hosts, ports and refusals are from the records of the run in the audit log; the exit code and the changes are those of its
//! reply. A report has no contents of files, and no arguments of programs.
//!
//! Not here: the records (`why.rs`), and which changes are kept afterwards.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use clap::ValueEnum as _;
use ringfence_kernel::{PolicyAction, sanitize_line};
use ringfence_sandbox::RunProgramReply;
use serde_json::{Value, json};

use crate::cli::CliError;
use crate::cli::why::{RefusalKind, RunRefusal, RunRefusals, read_run};
use crate::cli::wrapped_run::call_records::StartCounts;

/// Version of the JSON report.
const REPORT_VERSION: u64 = 1;

/// The format of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ReportFormat {
    Json,
    Md,
    Sarif,
}

/// A report to be written when the run has ended.
#[derive(Debug)]
pub(crate) struct ReportFile {
    format: ReportFormat,
    path: PathBuf,
}

impl ReportFile {
    /// From pairs of a format and a file, as the command line has them.
    pub(crate) fn parse_all(words: &[String], current: &Path) -> Result<Vec<Self>, CliError> {
        let parse = |pair: &[String]| match pair {
            [format, file] => {
                let format =
                    ReportFormat::from_str(format, false).map_err(|_| CliError::ReportFormat(format.clone()))?;
                Ok(Self { format, path: current.join(file) })
            }
            _ => Err(CliError::ReportFormat(String::new())),
        };
        words.chunks(2).map(parse).collect()
    }

    pub(crate) fn write(&self, report: &RunReport<'_>) -> Result<(), CliError> {
        let text = match self.format {
            ReportFormat::Json => report.to_json(),
            ReportFormat::Md => report.to_markdown(),
            ReportFormat::Sarif => report.to_sarif(),
        };
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&self.path);
        file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(CliError::Report)
    }
}

/// A run that has ended.
#[derive(Debug)]
pub(crate) struct RunReport<'a> {
    run: RunRefusals,
    reply: &'a RunProgramReply,
    /// Nothing, if starts of programs were not recorded.
    starts: Option<&'a StartCounts>,
}

impl<'a> RunReport<'a> {
    pub(crate) fn new(
        state: &Path,
        session: &str,
        reply: &'a RunProgramReply,
        starts: Option<&'a StartCounts>,
    ) -> Result<Self, CliError> {
        let run = read_run(state, session).map_err(CliError::AuditRead)?.unwrap_or_default();
        Ok(Self { run, reply, starts })
    }

    fn to_json(&self) -> String {
        let RunRefusals { run, program, profile, started, ended, refusals, .. } = &self.run;
        let RunProgramReply { exit_code, layer, created, changed, deleted, conflicts, limit } = self.reply;
        let hosts: Vec<Value> = self
            .hosts()
            .into_iter()
            .map(|(host, connections, refused)| json!({"host": host, "connections": connections, "refused": refused}))
            .collect();
        let changes = json!({
            "layer": layer, "created": created, "changed": changed, "deleted": deleted, "conflicts": conflicts,
        });
        let mut report = json!({
            "version": REPORT_VERSION, "run": run, "program": program, "profile": profile, "started": started,
            "ended": ended, "exitCode": exit_code, "limit": limit, "changes": changes, "hosts": hosts,
            "ports": self.ports(), "refusals": refusals,
        });
        if let Some(StartCounts { programs, total, missing, .. }) = self.starts {
            report["programs"] = json!({"starts": total, "missing": missing, "byProgram": programs});
        }
        serde_json::to_string_pretty(&report).unwrap_or_default() + "\n"
    }

    fn to_markdown(&self) -> String {
        let RunRefusals { run, program, profile, started, ended, refusals, .. } = &self.run;
        let RunProgramReply { exit_code, layer, created, changed, deleted, conflicts, limit } = self.reply;
        let mut text = format!("# Run of {}\n\n", code(program));
        let mut item = |name: &str, value: String| {
            let _ = writeln!(text, "- {name}: {value}");
        };
        item("run", code(run));
        item("profile", code(profile));
        item("time", format!("{started} to {}", ended.as_deref().unwrap_or("an unknown end")));
        item("exit code", exit_code.to_string());
        if let Some(limit) = limit {
            item("ended by the limit", code(limit));
        }
        item("changes", format!("{created} new, {changed} changed, {deleted} deleted, {conflicts} in conflict"));
        if let Some(layer) = layer {
            item("layer", code(layer));
        }
        let hosts = self.hosts();
        if !hosts.is_empty() {
            text.push_str("\n| host | connections | refused |\n|---|---|---|\n");
        }
        for (host, connections, refused) in hosts {
            let _ = writeln!(text, "| {} | {connections} | {refused} |", code(&host));
        }
        let ports = self.ports();
        if !ports.is_empty() {
            let _ = writeln!(
                text,
                "\nPublished ports: {}",
                ports.iter().map(|port| code(port)).collect::<Vec<_>>().join(", ")
            );
        }
        if let Some(StartCounts { programs, total, .. }) = self.starts {
            let _ = writeln!(text, "\nStarts of programs: {total}\n\n| program | starts |\n|---|---|");
            for (program, count) in programs {
                let _ = writeln!(text, "| {} | {count} |", code(program));
            }
        }
        if !refusals.is_empty() {
            text.push_str("\n## Refused\n\n");
        }
        for refusal in refusals {
            let _ = writeln!(text, "- {}", message(refusal));
            for line in &refusal.advice {
                let _ = writeln!(text, "  - {}", code(line));
            }
        }
        text
    }

    /// SARIF 2.1.0: a result for each refusal. A result must be at a file; rules of a workspace are in this one.
    fn to_sarif(&self) -> String {
        let location = json!([{"physicalLocation": {
            "artifactLocation": {"uri": "ringfence.toml"}, "region": {"startLine": 1},
        }}]);
        let results = self.run.refusals.iter().map(|refusal| {
            let level = if refusal.kind == RefusalKind::Tripwire { "error" } else { "warning" };
            let properties = json!({"count": refusal.count, "error": refusal.error, "rule": refusal.rule});
            json!({
                "ruleId": rule_id(refusal.kind), "level": level, "message": {"text": message(refusal)},
                "locations": location, "properties": properties,
            })
        });
        let results: Vec<Value> = results.collect();
        let mut kinds: Vec<&str> = self.run.refusals.iter().map(|refusal| rule_id(refusal.kind)).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let rules: Vec<Value> = kinds.into_iter().map(|id| json!({"id": id})).collect();
        let driver = json!({"name": "ringfence", "version": env!("CARGO_PKG_VERSION"), "rules": rules});
        let invocation = json!({
            "executionSuccessful": self.reply.exit_code == 0, "exitCode": self.reply.exit_code,
            "startTimeUtc": self.run.started, "endTimeUtc": self.run.ended,
        });
        let run = json!({"tool": {"driver": driver}, "invocations": [invocation], "results": results});
        let report = json!({
            "$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run],
        });
        serde_json::to_string_pretty(&report).unwrap_or_default() + "\n"
    }

    /// Hosts with the numbers of connections that were made and refused.
    fn hosts(&self) -> Vec<(String, u64, u64)> {
        let mut hosts: Vec<(String, u64, u64)> = Vec::new();
        let is_host = |action: &str| action == PolicyAction::Fetch.as_str();
        let made = self.run.allowed.iter().filter(|access| is_host(&access.action) && !access.path.contains(' '));
        let made = made.map(|access| (&access.path, access.count, 0));
        let refused = self.run.refusals.iter().filter(|refusal| refusal.kind == RefusalKind::Host);
        let refused = refused.map(|refusal| (&refusal.resource, 0, refusal.count));
        for (host, connections, refused) in made.chain(refused) {
            match hosts.iter_mut().find(|(known, ..)| known == host) {
                Some((_, all, denied)) => (*all, *denied) = (*all + connections, *denied + refused),
                None => hosts.push((host.clone(), connections, refused)),
            }
        }
        hosts
    }

    fn ports(&self) -> Vec<&str> {
        let is_port = |action: &str| action == PolicyAction::Listen.as_str();
        let opened =
            self.run.allowed.iter().filter(|access| is_port(&access.action)).map(|access| access.path.as_str());
        self.run.published.iter().map(String::as_str).chain(opened).collect()
    }
}

fn rule_id(kind: RefusalKind) -> &'static str {
    match kind {
        RefusalKind::Run => "refused-run",
        RefusalKind::Host => "refused-host",
        RefusalKind::Port => "refused-port",
        RefusalKind::Tripwire => "tripwire",
        RefusalKind::Request => "refused-request",
        RefusalKind::Send => "refused-send",
    }
}

fn message(refusal: &RunRefusal) -> String {
    let RunRefusal { resource, detail, count, rule, .. } = refusal;
    let detail = detail.as_ref().map(|detail| format!(" {detail}")).unwrap_or_default();
    let rule = rule.as_ref().map(|rule| format!(", by the rule {}", code(rule))).unwrap_or_default();
    format!("{}: {} refused {count} times{rule}", rule_id(refusal.kind), code(&format!("{resource}{detail}")))
}

/// A text from elsewhere as code, in which nothing has a meaning.
fn code(text: &str) -> String {
    format!("`{}`", sanitize_line(text).replace('`', "'").replace('|', "¦"))
}

#[cfg(test)]
mod tests {
    use ringfence_sandbox::RunProgramReply;
    use serde_json::Value;

    use super::RunReport;
    use crate::cli::why::{AllowedAccess, RefusalKind, RunRefusal, RunRefusals};
    use crate::cli::wrapped_run::call_records::StartCounts;

    #[test]
    fn each_format_has_the_hosts_and_the_refusals() {
        let refusal = RunRefusal {
            kind: RefusalKind::Host,
            resource: "a.org:443".to_owned(),
            detail: None,
            count: 3,
            error: "PERMISSION_DENIED".to_owned(),
            rule: Some("no | `hosts`".to_owned()),
            layer: Some("user".to_owned()),
            advice: vec!["ringfence run --allow-host a.org:443 -- sh …".to_owned()],
        };
        let allowed = |action: &str, path: &str| AllowedAccess {
            action: action.to_owned(),
            path: path.to_owned(),
            is_approved: false,
            count: 2,
        };
        let run = RunRefusals {
            run: "run-1".to_owned(),
            program: "sh".to_owned(),
            refusals: vec![refusal],
            allowed: vec![
                allowed("fetch", "a.org:443"),
                allowed("fetch", "a.org:443 GET /x"),
                allowed("listen", "127.0.0.1:8000"),
            ],
            ..RunRefusals::default()
        };
        let reply = RunProgramReply {
            exit_code: 3,
            layer: None,
            created: 1,
            changed: 0,
            deleted: 0,
            conflicts: 0,
            limit: None,
        };
        let programs = [("/usr/bin/git".to_owned(), 2)].into();
        let starts = StartCounts { programs, total: 5, missing: 3, is_unavailable: false };
        let report = RunReport { run, reply: &reply, starts: Some(&starts) };
        let json: Value = serde_json::from_str(&report.to_json()).unwrap();
        let host = serde_json::json!([{"host": "a.org:443", "connections": 2, "refused": 3}]);
        assert_eq!(
            (&json["hosts"], &json["ports"][0], &json["exitCode"]),
            (&host, &"127.0.0.1:8000".into(), &3.into())
        );
        assert_eq!(json["programs"], serde_json::json!({"starts": 5, "missing": 3, "byProgram": {"/usr/bin/git": 2}}));
        let markdown = report.to_markdown();
        assert!(markdown.contains("| `/usr/bin/git` | 2 |"), "{markdown}");
        assert!(
            markdown.contains("| `a.org:443` | 2 | 3 |") && markdown.contains("by the rule `no ¦ 'hosts'`"),
            "{markdown}"
        );
        let sarif: Value = serde_json::from_str(&report.to_sarif()).unwrap();
        let result = &sarif["runs"][0]["results"][0];
        assert_eq!((&result["ruleId"], &result["level"]), (&"refused-host".into(), &"warning".into()), "{sarif}");
        assert_eq!(sarif["runs"][0]["invocations"][0]["exitCode"], 3);
    }
}
