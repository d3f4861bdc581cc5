//! Manual pages and shell completions, generated from the command definitions.

use std::path::Path;

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::cli::approvals::CommandOutcome;
use crate::cli::args::CliArgs;
use crate::codec::io_text::IoText;

/// Failure to make a manual page or completions.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ManualError {
    #[error("cannot write the manual pages: {}", IoText(.0))]
    Pages(std::io::Error),
    #[error("the completions are not valid UTF-8: {0}")]
    Completions(std::string::FromUtf8Error),
}

/// Completion script of a shell.
pub(crate) fn completions(shell: Shell) -> Result<String, ManualError> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut CliArgs::command(), "ringfence", &mut text);
    String::from_utf8(text).map_err(ManualError::Completions)
}

/// Writes `ringfence.1`, and a page for each command below it.
pub(crate) fn write_man_pages(directory: &Path) -> Result<CommandOutcome, ManualError> {
    clap_mangen::generate_to(CliArgs::command().disable_help_subcommand(true), directory)
        .map_err(ManualError::Pages)?;
    Ok(CommandOutcome::Print("manual pages written; view the first with `man -l ringfence.1`\n".to_owned()))
}
