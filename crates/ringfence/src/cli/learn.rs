//! `ringfence run --learn`: a profile draft from what a run was refused, with all isolation in place.
//!
//! The draft grants what a person could have allowed: hosts that needed approval, and ports at which the program listened.
//! Files of the home directory that it looked for are copied
//! into its own. What a rule denies, ports of this machine and secrets are comments in it, and never granted. It is written to a file of its own,
//! outside of the workspace, where no program can change it.
//!
//! Not here: loading a profile (`wrapped_run/profile.rs`), and the refusals (`why.rs`).

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use ringfence_fs::has_credential;
use ringfence_kernel::{PolicyAction, sanitize_line, sensitivity};
use ringfence_sandbox::PathLookup;

use crate::cli::CliError;
use crate::cli::output_file::OutputFile;
use crate::cli::why::{AllowedAccess, RefusalKind, RunRefusal, RunRefusals, loopback_port, read_run};
use crate::cli::wrapped_run::RecordedRun;
use crate::cli::wrapped_run::profile_files::is_below;
use crate::config::MAX_FILE_BYTES;

/// Paths of a draft.
const MAX_PATHS: usize = 200;

/// A file for the draft of a profile.
#[derive(Debug)]
pub(crate) struct DraftFile(OutputFile);

impl DraftFile {
    /// Checks that it can be written when the run has ended.
    pub(crate) fn new(path: &Path, workspace: &Path) -> Result<Self, CliError> {
        let file = OutputFile::outside(path, workspace).map_err(CliError::Draft)?;
        let file = file.ok_or(CliError::OutputInWorkspace("a profile draft"))?;
        match file.path().extension().is_some_and(|extension| extension == "toml") {
            true => Ok(Self(file)),
            false => Err(CliError::DraftName),
        }
    }

    /// Writes the draft of a run that has ended.
    pub(crate) fn write(&self, state: &Path, recorded: &RecordedRun) -> Result<(), CliError> {
        let run = read_run(state, &recorded.session).map_err(CliError::AuditRead)?.unwrap_or_default();
        let paths = MissedPaths::new(&recorded.calls.lookups(), &recorded.home);
        self.0.create().and_then(|mut file| file.write_all(draft(&run, &paths).as_bytes())).map_err(CliError::Draft)
    }
}

/// Paths that the program looked for, that are absent inside and exist outside.
#[derive(Debug, Default)]
struct MissedPaths {
    /// Plain files below the home directory, with the program that looked for each.
    home_files: Vec<(String, String)>,
    /// The others: secrets, directories and files elsewhere.
    others: Vec<String>,
}

impl MissedPaths {
    fn new(lookups: &[PathLookup], home: &Path) -> Self {
        let mut missed = Self::default();
        for PathLookup { path, program } in lookups {
            let (Ok(found), Some(shown)) = (path.symlink_metadata(), path.to_str()) else { continue };
            let below = path.strip_prefix(home).ok().and_then(Path::to_str).filter(|below| is_below(below));
            match below {
                _ if missed.home_files.len() + missed.others.len() >= MAX_PATHS => break,
                _ if sensitivity(shown).secret => missed.others.push(format!("{shown}: a secret, for `{program}`")),
                Some(below) if found.is_file() => match is_plain_text(path, found.len()) {
                    true => missed.home_files.push((below.to_owned(), program.clone())),
                    false => missed.others.push(format!("{shown}: may contain a key, for `{program}`")),
                },
                _ if found.is_dir() => missed.others.push(format!("{shown}/, for `{program}`")),
                _ => missed.others.push(format!("{shown}, for `{program}`")),
            }
        }
        missed
    }
}

/// Whether a file can be copied into a home directory: it is not large, and nothing in it looks like a key.
fn is_plain_text(path: &Path, length: u64) -> bool {
    let contents = if length <= MAX_FILE_BYTES { std::fs::read(path).ok() } else { None };
    contents.is_some_and(|contents| !has_credential(&String::from_utf8_lossy(&contents)))
}

/// The text of a profile.
fn draft(run: &RunRefusals, paths: &MissedPaths) -> String {
    let mut text = format!(
        "# Draft of a profile, from the run {} of `{}` at {}.\n# Remove what the program should not have. Use it with \
         `ringfence run --profile FILE`, or move it to `profiles` in your\n# config directory. Counts of hosts \
         and ports are those of the whole run.\n\n",
        run.run, run.program, run.started
    );
    if run.profile != "none" {
        let _ = writeln!(text, "base = {}", quote(&run.profile));
    }
    let _ = writeln!(text, "programs = [{}]", quote(&run.program));
    list(&mut text, "hosts", entries(run, RefusalKind::Host, "connection"));
    list(&mut text, "publish", entries(run, RefusalKind::Port, "listener"));
    let copied = paths.home_files.iter().map(|(path, program)| (path.clone(), format!("for {program}")));
    list(&mut text, "home.copy", copied.collect());
    let rest: Vec<&RunRefusal> = run.refusals.iter().filter(|refusal| !is_grantable(refusal)).collect();
    if !rest.is_empty() {
        text.push_str("\n# Refused, and not granted here:\n");
    }
    for refusal in rest {
        let _ = writeln!(text, "# {}", comment(refusal));
    }
    if !paths.others.is_empty() {
        text.push_str("\n# Looked for, absent inside and there outside, and not granted here:\n");
    }
    for path in &paths.others {
        let _ = writeln!(text, "# {}", sanitize_line(path));
    }
    text
}

fn comment(refusal: &RunRefusal) -> String {
    let RunRefusal { resource, detail, count, rule, .. } = refusal;
    if let Some(port) = loopback_port(resource).filter(|_| refusal.kind == RefusalKind::Host) {
        return format!("a port of this machine, {count} times: connect = [{port}]");
    }
    let detail = detail.as_ref().map(|detail| format!(" {detail}")).unwrap_or_default();
    let rule = rule.as_ref().map(|rule| format!(", by the rule `{rule}`")).unwrap_or_default();
    sanitize_line(&format!("{resource}{detail}, {count} times{rule}"))
}

/// Whether a person could have allowed it.
fn is_grantable(refusal: &RunRefusal) -> bool {
    let is_asked = refusal.error.contains("APPROVAL");
    match refusal.kind {
        RefusalKind::Host => is_asked && loopback_port(&refusal.resource).is_none(),
        RefusalKind::Port => is_asked,
        RefusalKind::Run | RefusalKind::Tripwire | RefusalKind::Request | RefusalKind::Send => false,
    }
}

/// What was refused and can be granted, and what was approved, with counts.
fn entries(run: &RunRefusals, kind: RefusalKind, unit: &str) -> Vec<(String, String)> {
    let refused = run.refusals.iter().filter(|refusal| refusal.kind == kind && is_grantable(refusal));
    let refused = refused.map(|refusal| (published(kind, &refusal.resource), refusal.count));
    let action = if kind == RefusalKind::Port { PolicyAction::Listen } else { PolicyAction::Fetch };
    let approved = run.allowed.iter().filter(|access| access.is_approved && access.action == action.as_str());
    let approved = approved.map(|AllowedAccess { path, count, .. }| (published(kind, path), *count));
    let mut entries: Vec<(String, u64)> = Vec::new();
    for (value, count) in refused.chain(approved) {
        match entries.iter_mut().find(|(known, _)| *known == value) {
            Some((_, known)) => *known += count,
            None => entries.push((value, count)),
        }
    }
    let plural = |count: u64| if count == 1 { "" } else { "s" };
    entries.into_iter().map(|(value, count)| (value, format!("{count} {unit}{}", plural(count)))).collect()
}

/// A port as a profile has it.
fn published(kind: RefusalKind, resource: &str) -> String {
    match (kind, resource.split_once(" to ")) {
        (RefusalKind::Port, Some((outside, inside))) => format!("{outside}:{inside}"),
        _ => resource.to_owned(),
    }
}

fn list(text: &mut String, key: &str, entries: Vec<(String, String)>) {
    if entries.is_empty() {
        return;
    }
    let _ = writeln!(text, "\n{key} = [");
    for (value, count) in entries {
        let _ = writeln!(text, "    {}, # {}", quote(&value), sanitize_line(&count));
    }
    text.push_str("]\n");
}

/// A TOML string.
fn quote(value: &str) -> String {
    toml::Value::from(value).to_string()
}

#[cfg(test)]
mod tests {
    use ringfence_sandbox::PathLookup;

    use super::{MissedPaths, draft};
    use crate::cli::why::{AllowedAccess, RefusalKind, RunRefusal, RunRefusals};

    fn refusal(kind: RefusalKind, resource: &str, error: &str) -> RunRefusal {
        RunRefusal {
            kind,
            resource: resource.to_owned(),
            detail: None,
            count: 2,
            error: error.to_owned(),
            rule: None,
            layer: None,
            advice: Vec::new(),
        }
    }

    #[test]
    fn plain_files_of_the_home_directory_are_copied_and_secrets_are_comments() {
        let directory = tempfile::tempdir().unwrap();
        let home = directory.path().join("home");
        std::fs::create_dir_all(home.join(".ssh")).unwrap();
        std::fs::create_dir_all(home.join(".config/tool")).unwrap();
        std::fs::write(home.join(".ssh/id_ed25519"), "key").unwrap();
        std::fs::write(home.join(".config/tool/rc"), "color = 1").unwrap();
        std::fs::write(home.join(".toolrc"), "{\"apiKey\": \"sk-ant-api03-0123456789abcdef0123456789\"}").unwrap();
        std::fs::write(directory.path().join("beside"), "text").unwrap();
        let looked =
            ["home/.ssh/id_ed25519", "home/.config/tool/rc", "home/.config/tool", "home/.toolrc", "beside", "home/no"];
        let lookup = |path: &str| PathLookup { path: directory.path().join(path), program: "tool".to_owned() };
        let paths = MissedPaths::new(&looked.map(lookup), &home);
        assert_eq!(paths.home_files, [(".config/tool/rc".to_owned(), "tool".to_owned())]);
        assert_eq!(paths.others.len(), 4, "{paths:?}");
        let text = draft(&RunRefusals::default(), &paths);
        let value: toml::Table = toml::from_str(&text).unwrap();
        assert_eq!(value["home"]["copy"].as_array().unwrap().len(), 1, "{text}");
        assert!(
            text.lines().any(|line| line.starts_with("# ") && line.ends_with(".ssh/id_ed25519: a secret, for `tool`")),
            "{text}"
        );
    }

    #[test]
    fn a_draft_grants_what_a_person_could_have_allowed_and_nothing_else() {
        let run = RunRefusals {
            run: "run-1".to_owned(),
            program: "my-\"agent\"".to_owned(),
            profile: "claude".to_owned(),
            refusals: vec![
                refusal(RefusalKind::Host, "a.org:443", "APPROVAL_DENIED"),
                refusal(RefusalKind::Host, "evil.org:443", "PERMISSION_DENIED"),
                refusal(RefusalKind::Host, "127.0.0.1:5432", "APPROVAL_DENIED"),
                refusal(RefusalKind::Port, "127.0.0.1:8001 to 8000", "APPROVAL_PENDING"),
                refusal(RefusalKind::Tripwire, "a.org", "NETWORK_ERROR"),
                refusal(RefusalKind::Host, "a.org:443", "APPROVAL_PENDING"),
            ],
            allowed: [("b.org:443", true), ("c.org:443", false)]
                .map(|(path, is_approved)| AllowedAccess {
                    action: "fetch".to_owned(),
                    path: path.to_owned(),
                    is_approved,
                    count: 1,
                })
                .into(),
            ..RunRefusals::default()
        };
        let text = draft(&run, &MissedPaths::default());
        let value: toml::Table = toml::from_str(&text).unwrap();
        assert_eq!(value["hosts"].as_array().unwrap().len(), 2, "{text}");
        assert_eq!(value["publish"][0].as_str(), Some("127.0.0.1:8001:8000"));
        assert_eq!((value["base"].as_str(), value["programs"][0].as_str()), (Some("claude"), Some("my-\"agent\"")));
        assert!(text.contains("\"a.org:443\", # 4 connections"), "{text}");
        for comment in ["# evil.org:443, 2 times", "connect = [5432]", "# a.org, 2 times"] {
            assert!(text.lines().any(|line| line.starts_with('#') && line.contains(comment)), "{comment}: {text}");
        }
        assert_eq!(value.len(), 4, "{text}");
    }
}
