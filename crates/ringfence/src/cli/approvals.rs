//! Approval commands: list and answer requests, resume sessions, revoke grants and trust a workspace.
//!
//! Everything that loosens the policy requires a person at the terminal, or is refused.
//!
//! Not here: printing (`mod.rs`), and who may do what (the kernel's `inbox.rs`).

use std::time::SystemTime;

use clap::Subcommand;
use ringfence_kernel::{
    ApprovalDecision, ApprovalInbox, ApprovalResponse, Approver as _, ApproverReply, Assurance, sanitize_json,
};

use crate::app::App;
use crate::app::policy_text;
use crate::app::trust::WorkspaceRules;
use crate::approval::tty::{TtyApprover, tty_principal};
use crate::approval::unattended_approval;
use crate::cli::approvals_text;
use crate::cli::{CliError, until_cancelled};
use crate::config::{AppSettings, Environment};
use crate::store::SqliteStore;

#[derive(Debug, Subcommand)]
pub(crate) enum ApprovalsCommand {
    /// List pending approval requests, oldest first, and paused sessions
    List {
        /// Print the requests as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show a request with its arguments and preview
    Show {
        /// The request's id, from `ringfence approvals list`
        id: String,
    },
    /// Answer a request at this terminal; the first answer counts
    Answer {
        /// The request's id, from `ringfence approvals list`
        id: String,
        /// Approve without a terminal; requires `unattended = true` in your config, and never counts as a person's answer
        #[arg(long, conflicts_with = "no")]
        yes: bool,
        /// Deny without a terminal; requires `unattended = true` in your config
        #[arg(long)]
        no: bool,
        /// The reason for the denial, sent to the agent
        #[arg(long, value_name = "TEXT", requires = "no")]
        reason: Option<String>,
    },
    /// Resume a session that was paused after too many consecutive denials; asks for confirmation at this terminal
    Resume {
        /// The session's id, from `ringfence approvals list`
        session: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum GrantsCommand {
    /// List persistent grants, oldest first
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Revoke a grant; takes effect in every process with its next call
    Revoke {
        /// The grant's id, from `ringfence policy grants`
        id: String,
    },
}

/// The outcome of a command.
#[derive(Debug)]
pub(crate) enum CommandOutcome {
    /// The requested text.
    Print(String),
    /// It was not done, and why.
    Refused(String),
    /// The request was not answered.
    Unanswered,
}

pub(crate) fn approvals(
    settings: &AppSettings,
    environment: &Environment,
    command: ApprovalsCommand,
) -> Result<CommandOutcome, CliError> {
    let (store, person) = (SqliteStore::new(&settings.state), tty_principal(environment));
    let inbox = ApprovalInbox { store: &store, principal: &person };
    let now = SystemTime::now();
    let terminal = TtyApprover::new(settings, environment);
    match command {
        ApprovalsCommand::List { json: false } => {
            let paused = inbox.paused_sessions(settings.limits.denials_in_a_row)?;
            Ok(CommandOutcome::Print(
                approvals_text::format_requests(&inbox.pending(now)?, now) + &approvals_text::format_paused(&paused),
            ))
        }
        ApprovalsCommand::List { json: true } => Ok(CommandOutcome::Print(json_list(&inbox.pending(now)?))),
        ApprovalsCommand::Show { id } => {
            Ok(CommandOutcome::Print(approvals_text::format_request(&inbox.request(&id, now)?)))
        }
        ApprovalsCommand::Answer { id, yes: false, no: false, .. } => {
            let request = inbox.request(&id, now)?;
            if !terminal.is_available() {
                return Err(CliError::NoTerminal);
            }
            let reply = until_cancelled(terminal.ask(&request))?;
            let Some(ApproverReply::Decided(ApprovalDecision { response, approval })) = reply else {
                return Ok(CommandOutcome::Unanswered);
            };
            inbox.answer(&id, response, approval.assurance, SystemTime::now())?;
            Ok(CommandOutcome::Print(String::new()))
        }
        ApprovalsCommand::Answer { id, yes, reason, .. } => {
            let approval = unattended_approval();
            let by = approval.by.filter(|_| settings.unattended).ok_or(CliError::NoTerminal)?;
            let response = ApprovalResponse { approved: yes, reason, ..ApprovalResponse::default() };
            ApprovalInbox { principal: &by, ..inbox }.answer(&id, response, approval.assurance, now)?;
            Ok(CommandOutcome::Print(String::new()))
        }
        ApprovalsCommand::Resume { session } => {
            let none = || {
                Ok(CommandOutcome::Refused(format!(
                    "session `{session}` is not paused; `ringfence approvals list` shows paused sessions"
                )))
            };
            let Some(streak) = inbox.paused_sessions(1)?.into_iter().find(|streak| streak.session == session) else {
                return none();
            };
            if !terminal
                .confirm(&approvals_text::format_paused(&[streak]), "resume this session?")
                .map_err(no_terminal)?
            {
                return Ok(CommandOutcome::Unanswered);
            }
            match inbox.resume_session(&session, Assurance::Person)? {
                true => Ok(CommandOutcome::Print(format!("resumed {session}\n"))),
                false => none(),
            }
        }
    }
}

pub(crate) fn grants(
    settings: &AppSettings,
    environment: &Environment,
    command: Option<GrantsCommand>,
) -> Result<CommandOutcome, CliError> {
    let (store, person) = (SqliteStore::new(&settings.state), tty_principal(environment));
    let inbox = ApprovalInbox { store: &store, principal: &person };
    let now = SystemTime::now();
    Ok(match command.unwrap_or(GrantsCommand::List { json: false }) {
        GrantsCommand::List { json: false } => {
            CommandOutcome::Print(approvals_text::format_grants(&inbox.grants(now)?))
        }
        GrantsCommand::List { json: true } => CommandOutcome::Print(json_list(&inbox.grants(now)?)),
        GrantsCommand::Revoke { id } if inbox.revoke_grant(&id)? => CommandOutcome::Print(format!("revoked {id}\n")),
        GrantsCommand::Revoke { id } => {
            CommandOutcome::Refused(format!("there is no grant `{id}`; `ringfence policy grants` lists them"))
        }
    })
}

/// Lets the rules of the workspace's own file allow what they say, as long as it stays as it is now.
pub(crate) fn trust(app: &App, environment: &Environment) -> Result<CommandOutcome, CliError> {
    let Some(WorkspaceRules { sha256, rules, trusted }) = &app.workspace_rules else {
        return Ok(CommandOutcome::Refused("the workspace has no ringfence.toml".to_owned()));
    };
    if rules.is_empty() {
        return Ok(CommandOutcome::Refused(
            "the workspace's ringfence.toml has no allow rules, so it needs no trust".to_owned(),
        ));
    }
    let shown = policy_text::format_workspace_rules(sha256, rules);
    if *trusted {
        return Ok(CommandOutcome::Print(format!("{shown}already trusted\n")));
    }
    let terminal = TtyApprover::new(&app.settings, environment);
    if !terminal.confirm(&shown, "trust this file?").map_err(no_terminal)? {
        return Ok(CommandOutcome::Unanswered);
    }
    let store = SqliteStore::new(&app.settings.state);
    store.trust(&app.workspace_id, sha256, &tty_principal(environment), SystemTime::now())?;
    Ok(CommandOutcome::Print(format!("trusted {sha256}\n")))
}

/// Takes the trust back.
pub(crate) fn distrust(app: &App) -> Result<CommandOutcome, CliError> {
    match SqliteStore::new(&app.settings.state).distrust(&app.workspace_id)? {
        true => Ok(CommandOutcome::Print("no longer trusted\n".to_owned())),
        false => Ok(CommandOutcome::Refused("the workspace is not trusted".to_owned())),
    }
}

fn no_terminal(_: std::io::Error) -> CliError {
    CliError::NotInteractive
}

fn json_list(items: &[impl serde::Serialize]) -> String {
    sanitize_json(&serde_json::to_string_pretty(items).unwrap_or_default()) + "\n"
}
