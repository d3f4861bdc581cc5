//! `ringfence layers`: decisions about the changes of wrapped programs.
//!
//! Each decision is a call of a tool that only persons have.
//!
//! Not here: the review screen (`wrapped_run/review_screen.rs`), and what is removed without a decision (`gc.rs`).

use std::path::Path;

use clap::Subcommand;
use ringfence_kernel::{Assurance, sanitize_json, sanitize_line};
use serde_json::{Value, json};

use crate::app::{App, build_person_app};
use crate::approval::dialog_screen::ColorMode;
use crate::approval::tty::tty_principal;
use crate::cli::wrapped_run::HomeKeepRequest;
use crate::cli::wrapped_run::attached_terminal::{AttachEnd, attach_terminal};
use crate::cli::wrapped_run::review::{HomeReviewModel, ReviewModel, Selection};
use crate::cli::wrapped_run::review_screen::{ReviewChoice, show_review};
use crate::cli::{CliError, ERROR_REPLY, SUCCESS, make_call, print};
use crate::config::{AppSettings, Environment};
use crate::process::attach::connection::request_run;
use crate::process::attach::protocol::{AttachRole, RunRequest};
use crate::process::messages::print_error;

/// Most paths that one line of text names.
const MOST_NAMED: usize = 10;

/// A time before every change.
const UNIX_EPOCH_TEXT: &str = "1970-01-01T00:00:00Z";

#[derive(Debug, Subcommand)]
pub(crate) enum LayersCommand {
    /// List the layers of this workspace, oldest first.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Review a layer, and decide by file and hunk.
    Review {
        /// The layer, or the start of its id.
        layer: String,
        /// Print the review instead of opening it.
        #[arg(long)]
        plain: bool,
        /// Print JSON.
        #[arg(long, conflicts_with = "plain")]
        json: bool,
    },
    /// Keep changes of a layer, as one change that can be undone.
    Keep {
        /// The layer, or the start of its id.
        layer: String,
        /// Files and directories to keep; everything that can be kept if there are none.
        paths: Vec<String>,
        /// Keep only what the policy allows without approval.
        #[arg(long, conflicts_with = "paths")]
        allowed: bool,
    },
    /// Commit changes of a layer to a new branch `ringfence/ID`; the work tree, the index and the layer stay as they are.
    Branch {
        /// The layer, or the start of its id.
        layer: String,
        /// Files and directories to commit; everything that can be kept if there are none.
        paths: Vec<String>,
        /// Commit only what the policy allows without approval.
        #[arg(long, conflicts_with = "paths")]
        allowed: bool,
    },
    /// Attach this terminal to the running program of a layer, and type there; who typed before only views from then on.
    #[command(after_help = "Press `^\\` twice to detach: the program goes on.")]
    Attach {
        /// The layer, or the start of its id.
        layer: String,
        /// Only view its screen.
        #[arg(long)]
        view: bool,
    },
    /// Ask the running program of a layer to end, with SIGTERM; a second time within three seconds ends it.
    Stop {
        /// The layer, or the start of its id.
        layer: String,
    },
    /// Discard a layer with every change in it.
    Drop {
        /// The layer, or the start of its id.
        layer: String,
    },
    /// Show what an agent changed of its own settings, memories and plugins, or take such changes into your home directory.
    Home {
        /// The profile of the agent, such as `claude`.
        profile: String,
        /// Changes to take, as they are listed; without any, they are only shown.
        changes: Vec<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

/// What is reviewed of an agent's home directory.
#[derive(Debug)]
pub(crate) struct HomeReviewRequest<'a> {
    pub(crate) home: &'a HomeKeepRequest,
    /// Only changes after this time (RFC 3339).
    pub(crate) since: String,
}

pub(crate) fn run_layers_command(
    settings: AppSettings,
    environment: &Environment,
    command: LayersCommand,
) -> Result<u8, CliError> {
    let person = || person_app(settings.clone(), environment);
    match command {
        LayersCommand::List { json: as_json } => match call(&person()?, "list_layers", &json!({}))? {
            None => Ok(ERROR_REPLY),
            Some(value) if as_json => print(&(sanitize_json(&value.to_string()) + "\n"), SUCCESS),
            Some(value) => print(&format_layers(&value), SUCCESS),
        },
        LayersCommand::Review { layer, plain, json: as_json } => {
            let person = person()?;
            let Some(value) = call(&person, "review_layer", &json!({"layer": layer}))? else { return Ok(ERROR_REPLY) };
            if as_json {
                return print(&(sanitize_json(&value.to_string()) + "\n"), SUCCESS);
            }
            let model = review_model(value)?;
            // A profile that is gone, or closed meanwhile, has nothing to review.
            let home = HomeKeepRequest::of_profile(&model.layer.profile, &settings, environment).unwrap_or_default();
            let since = model.layer.started.clone();
            let model = match review_home(&person, &HomeReviewRequest { home: &home, since })? {
                Some(changes) => model.with_home(changes),
                None => model,
            };
            // Nothing is decided before the end of the program.
            match plain || model.layer.state == "running" {
                true => print(&model.to_text(), SUCCESS),
                false => decide(&person, (&layer, &model), &home.profile, environment),
            }
        }
        LayersCommand::Home { profile, changes, json: as_json } => {
            let person = person()?;
            let home = HomeKeepRequest::of_profile(&profile, &settings, environment)?;
            let since = UNIX_EPOCH_TEXT.to_owned();
            let Some(value) = call_review_home(&person, &HomeReviewRequest { home: &home, since })? else {
                return Ok(ERROR_REPLY);
            };
            if !changes.is_empty() {
                let names: Vec<String> = changes.iter().map(|name| below_home(name, environment)).collect();
                return take_named(&person, &profile, &home_model(value)?, &names);
            }
            match as_json {
                true => print(&(sanitize_json(&value.to_string()) + "\n"), SUCCESS),
                false => print(&home_model(value)?.to_text(), SUCCESS),
            }
        }
        LayersCommand::Keep { layer, paths, allowed } => keep(&person()?, &chosen_paths(&layer, &paths, allowed)),
        LayersCommand::Branch { layer, paths, allowed } => branch(&person()?, &chosen_paths(&layer, &paths, allowed)),
        // The process of the run does these, whatever its workspace is.
        LayersCommand::Attach { layer, view } => {
            attach(&settings, environment, &layer, if view { AttachRole::Viewer } else { AttachRole::Writer })
        }
        LayersCommand::Stop { layer } => {
            let name = tty_principal(environment).name;
            let status = request_run(&settings.state, &layer, &name, RunRequest::Stop)?;
            print_error(&format!("asked the program of layer {} to end", status.layer));
            Ok(SUCCESS)
        }
        LayersCommand::Drop { layer } => discard(&person()?, &layer),
    }
}

/// Attaches this terminal to a run. The exit code is that of the program, if it ends meanwhile.
fn attach(settings: &AppSettings, environment: &Environment, layer: &str, role: AttachRole) -> Result<u8, CliError> {
    let person = tty_principal(environment).name;
    let Some((layer, end)) = attach_terminal(&settings.state, layer, role, person)? else {
        return Err(CliError::NotInteractive);
    };
    match end {
        AttachEnd::Detached => {
            print_error(&format!("detached; `ringfence layers attach {layer}` attaches again"));
            Ok(SUCCESS)
        }
        AttachEnd::RunEnded(exit_code) => {
            let text = exit_code.map(|code| format!(" with exit code {code}")).unwrap_or_default();
            print_error(&format!("the program of layer {layer} ended{text}"));
            Ok(exit_code.unwrap_or(ERROR_REPLY))
        }
        AttachEnd::Lost => {
            print_error(&format!(
                "the process of the run is gone; `ringfence layers review {layer}` shows what is left"
            ));
            Ok(ERROR_REPLY)
        }
    }
}

/// Arguments for these paths, or for all changes.
fn chosen_paths(layer: &str, paths: &[String], allowed_only: bool) -> Value {
    let items: Vec<Value> = paths.iter().map(|path| json!({"path": path})).collect();
    match items.is_empty() {
        true => json!({"layer": layer, "allowedOnly": allowed_only}),
        false => json!({"layer": layer, "items": items}),
    }
}

/// The review at the end of a run. The layer stays where nothing is decided.
pub(crate) fn decide_at_end(
    settings: AppSettings,
    environment: &Environment,
    (layer, home): (&str, &HomeReviewRequest<'_>),
) -> Result<u8, CliError> {
    let person = person_app(settings, environment)?;
    let Some(value) = call(&person, "review_layer", &json!({"layer": layer}))? else { return Ok(ERROR_REPLY) };
    let model = review_model(value)?;
    let model = match review_home(&person, home)? {
        Some(changes) => model.with_home(changes),
        None => model,
    };
    decide(&person, (layer, &model), &home.home.profile, environment)
}

/// Says what the agent changed in its own home directory that agents act on, where it is not reviewed now.
pub(crate) fn announce_home(
    settings: AppSettings,
    environment: &Environment,
    home: &HomeReviewRequest<'_>,
) -> Result<(), CliError> {
    if home.home.reviewed.is_empty() {
        return Ok(());
    }
    let Some(changes) = review_home(&person_app(settings, environment)?, home)? else { return Ok(()) };
    let paths: Vec<&str> = changes.changes.iter().map(|change| change.path.as_str()).collect();
    let more = match paths.len().saturating_sub(MOST_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let (shown, profile) = (paths[..MOST_NAMED.min(paths.len())].join(" "), &home.home.profile);
    let shown = sanitize_line(&shown);
    print_error(&format!("changed in the agent's own home: {shown}{more}; see `ringfence layers home {profile}`"));
    Ok(())
}

/// Changes of an agent's home directory that agents act on. Nothing where there are none.
fn review_home(person: &App, wanted: &HomeReviewRequest<'_>) -> Result<Option<HomeReviewModel>, CliError> {
    if wanted.home.reviewed.is_empty() {
        return Ok(None);
    }
    let value = call_review_home(person, wanted)?.map(home_model).transpose()?;
    Ok(value.filter(|home| !home.changes.is_empty()))
}

fn call_review_home(person: &App, wanted: &HomeReviewRequest<'_>) -> Result<Option<Value>, CliError> {
    let HomeKeepRequest { profile, reviewed, .. } = wanted.home;
    call(person, "review_home", &json!({"profile": profile, "files": reviewed, "since": wanted.since}))
}

fn home_model(value: Value) -> Result<HomeReviewModel, CliError> {
    serde_json::from_value(value).map_err(|error| CliError::Review(error.to_string()))
}

/// The name of a change as a review has it. A shell makes an absolute path of `~/`.
fn below_home(name: &str, environment: &Environment) -> String {
    let home = environment.home.as_ref().and_then(|home| Path::new(name).strip_prefix(home).ok());
    let relative = home.and_then(Path::to_str).or_else(|| name.strip_prefix("~/")).unwrap_or(name);
    format!("~/{relative}")
}

/// Takes changes by their names in a review.
fn take_named(person: &App, profile: &str, model: &HomeReviewModel, names: &[String]) -> Result<u8, CliError> {
    let mut choices = Vec::new();
    for path in names {
        let Some(change) = model.changes.iter().find(|change| change.path == *path) else {
            let path = sanitize_line(path);
            print_error(&format!(
                "`{path}` has no change to take; `ringfence layers home {profile}` lists the changes"
            ));
            return Ok(ERROR_REPLY);
        };
        choices.push(home_choice(&change.path, change.version.as_deref()));
    }
    take_home(person, profile, &choices)
}

fn take_home(person: &App, profile: &str, changes: &[Value]) -> Result<u8, CliError> {
    let arguments = json!({"profile": profile, "changes": changes});
    let Some(value) = call(person, "take_home", &arguments)? else { return Ok(ERROR_REPLY) };
    format_taken(&value).iter().for_each(|line| print_error(line));
    let is_refused = value["refused"].as_array().is_some_and(|refused| !refused.is_empty());
    Ok(if is_refused { ERROR_REPLY } else { SUCCESS })
}

/// What was taken into the home directory, and what was not.
fn format_taken(value: &Value) -> Vec<String> {
    let list = |key: &str| value[key].as_array().map(Vec::as_slice).unwrap_or_default();
    let part = |item: &Value, key: &str| item[key].as_str().unwrap_or_default().to_owned();
    let taken = list("taken").iter().map(|item| match item["earlier"].as_str() {
        Some(earlier) => format!("in your home directory: {}; your version of before is {earlier}", part(item, "path")),
        None => format!("in your home directory: {}", part(item, "path")),
    });
    let refused = list("refused").iter().map(|item| format!("not taken: {}", part(item, "message")));
    taken.chain(refused).collect()
}

/// Keeps what the policy allows without approval. The rest stays in the layer.
pub(crate) fn keep_allowed(settings: AppSettings, environment: &Environment, layer: &str) -> Result<u8, CliError> {
    keep(&person_app(settings, environment)?, &json!({"layer": layer, "allowedOnly": true}))
}

/// Commits what the policy allows without approval to a branch.
pub(crate) fn branch_allowed(settings: AppSettings, environment: &Environment, layer: &str) -> Result<u8, CliError> {
    branch(&person_app(settings, environment)?, &json!({"layer": layer, "allowedOnly": true}))
}

pub(crate) fn drop_layer(settings: AppSettings, environment: &Environment, layer: &str) -> Result<u8, CliError> {
    discard(&person_app(settings, environment)?, layer)
}

/// Takes what the profile names into the person's home directory. The rest stays for the next run.
pub(crate) fn keep_home(
    settings: AppSettings,
    environment: &Environment,
    wanted: &HomeKeepRequest,
) -> Result<(), CliError> {
    let person = person_app(settings, environment)?;
    let arguments = json!({"profile": wanted.profile, "files": wanted.files});
    if let Some(value) = call(&person, "keep_home", &arguments)? {
        format_home(&value).iter().for_each(|line| print_error(line));
    }
    Ok(())
}

fn person_app(settings: AppSettings, environment: &Environment) -> Result<App, CliError> {
    Ok(build_person_app(settings, environment, Assurance::Person, None)?)
}

/// The value of a reply. `None` where it was an error, which is printed.
fn call(person: &App, tool: &str, arguments: &Value) -> Result<Option<Value>, CliError> {
    match make_call(person, tool.to_owned(), arguments.to_string())?.outcome {
        Ok(value) => Ok(Some(value.to_value())),
        Err(error) => {
            print_error(&error.message);
            Ok(None)
        }
    }
}

fn review_model(value: Value) -> Result<ReviewModel, CliError> {
    serde_json::from_value(value).map_err(|error| CliError::Review(error.to_string()))
}

fn decide(
    person: &App,
    (layer, model): (&str, &ReviewModel),
    profile: &str,
    environment: &Environment,
) -> Result<u8, CliError> {
    let colours = if environment.no_color { ColorMode::None } else { ColorMode::All };
    match show_review(model, colours).map_err(CliError::Output)? {
        None => {
            print_error(&format!("no terminal for the review; use `ringfence layers review {layer} --plain`"));
            Ok(ERROR_REPLY)
        }
        Some(ReviewChoice::Keep(selections)) => {
            let (home, workspace): (Vec<_>, Vec<_>) = selections.into_iter().partition(|one| one.home.is_some());
            let kept = match workspace.is_empty() {
                true => SUCCESS,
                false => keep(person, &chosen_items(layer, &workspace))?,
            };
            let changes: Vec<Value> = home.iter().map(|one| home_choice(&one.path, one.home.as_deref())).collect();
            let taken = if changes.is_empty() { SUCCESS } else { take_home(person, profile, &changes)? };
            Ok(kept.max(taken))
        }
        Some(ReviewChoice::Branch(selections)) => {
            let (home, workspace): (Vec<_>, Vec<_>) = selections.into_iter().partition(|one| one.home.is_some());
            if !home.is_empty() {
                print_error("changes of the agent's home directory are not committed to a branch; keep them instead");
            }
            if workspace.is_empty() { Ok(SUCCESS) } else { branch(person, &chosen_items(layer, &workspace)) }
        }
        Some(ReviewChoice::Drop) => discard(person, layer),
        Some(ReviewChoice::Later) => {
            print_error(&format!("kept as layer {layer}; decide with `ringfence layers review {layer}`"));
            Ok(SUCCESS)
        }
    }
}

fn chosen_items(layer: &str, selections: &[Selection]) -> Value {
    json!({"layer": layer, "items": selections.iter().map(selection_item).collect::<Vec<Value>>()})
}

fn home_choice(path: &str, version: Option<&str>) -> Value {
    json!({"file": path.strip_prefix("~/").unwrap_or(path), "version": version})
}

fn selection_item(selection: &Selection) -> Value {
    json!({"path": selection.path, "hunks": selection.hunks, "alone": selection.alone, "base": selection.base})
}

fn keep(person: &App, arguments: &Value) -> Result<u8, CliError> {
    let Some(value) = call(person, "keep_layer", arguments)? else { return Ok(ERROR_REPLY) };
    print_error(&format_kept(&value));
    Ok(SUCCESS)
}

fn branch(person: &App, arguments: &Value) -> Result<u8, CliError> {
    let Some(value) = call(person, "branch_layer", arguments)? else { return Ok(ERROR_REPLY) };
    print_error(&format_branched(&value));
    Ok(SUCCESS)
}

/// What went back into the home directory, and what did not.
fn format_home(value: &Value) -> Vec<String> {
    let list = |key: &str| value[key].as_array().map(Vec::as_slice).unwrap_or_default();
    let kept: Vec<&str> = list("kept").iter().filter_map(|file| file["path"].as_str()).collect();
    let mut lines = Vec::new();
    if let Some(first) = kept.first() {
        let more = match kept.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        lines.push(format!("in your home directory: {first}{more}"));
    }
    let left = list("left").iter().take(MOST_NAMED);
    lines.extend(left.map(|file| {
        let part = |key: &str| file[key].as_str().unwrap_or_default();
        format!("not in your home directory: {}: {}", part("path"), part("why"))
    }));
    lines
}

fn discard(person: &App, layer: &str) -> Result<u8, CliError> {
    let Some(value) = call(person, "drop_layer", &json!({"layer": layer}))? else { return Ok(ERROR_REPLY) };
    print_error(&format!("dropped layer {}", value["layer"].as_str().unwrap_or(layer)));
    Ok(SUCCESS)
}

/// The first paths of what was kept, and how many there are besides.
fn kept_names(value: &Value) -> String {
    let kept = value["kept"].as_array().map(Vec::as_slice).unwrap_or_default();
    let paths: Vec<&str> = kept.iter().filter_map(|item| item["path"].as_str()).collect();
    let more = paths.len().saturating_sub(MOST_NAMED);
    let shown = paths.get(..MOST_NAMED.min(paths.len())).unwrap_or_default().join(" ");
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}

/// A line for each of the first paths that were refused.
fn refused_lines(value: &Value, how: &str) -> String {
    let refused = value["refused"].as_array().map(Vec::as_slice).unwrap_or_default();
    let part = |refused: &Value, key: &str| refused[key].as_str().unwrap_or_default().to_owned();
    let line = |refused: &Value| format!("\n{how}: `{}`: {}", part(refused, "path"), part(refused, "message"));
    refused.iter().take(MOST_NAMED).map(line).collect()
}

/// What is on the branch, and what is not.
fn format_branched(value: &Value) -> String {
    let part = |key: &str| value[key].as_str().unwrap_or_default();
    let (branch, layer) = (part("branch"), part("layer"));
    let undo = match value["change"].as_str() {
        Some(change) => format!(" as {change}; `ringfence undo {change}` removes it"),
        None => String::new(),
    };
    let names = kept_names(value);
    let refused = refused_lines(value, "not on the branch");
    format!(
        "committed {names} to the branch {branch}{undo}{refused}\nthe changes stay in layer {layer} until you drop it"
    )
}

/// What was kept, and what was not.
fn format_kept(value: &Value) -> String {
    let mut text = match value["change"].as_str() {
        Some(change) => format!("kept {} as {change}; `ringfence undo` reverts it", kept_names(value)),
        None => "nothing was kept".to_owned(),
    };
    text.push_str(&refused_lines(value, "not kept"));
    if value["removed"] != true {
        let layer = value["layer"].as_str().unwrap_or_default();
        let left = value["left"].as_u64().unwrap_or_default();
        text.push_str(&format!(
            "\n{left} changes stay in layer {layer}; decide with `ringfence layers review {layer}`"
        ));
    }
    text
}

fn format_layers(value: &Value) -> String {
    let layers = value["layers"].as_array().map(Vec::as_slice).unwrap_or_default();
    if layers.is_empty() {
        return "no layers in this workspace\n".to_owned();
    }
    let line = |layer: &Value| {
        let words = ["layer", "state", "started", "program"].map(|key| layer[key].as_str().unwrap_or("-"));
        let count = |key: &str| layer["counts"][key].as_u64().unwrap_or_default();
        let counts = match layer.get("counts") {
            Some(_) => format!(
                "{} new, {} changed, {} deleted, {} in conflict",
                count("created"),
                count("changed"),
                count("deleted"),
                count("conflicts")
            ),
            None => match layer["runningConflicts"].as_array().map_or(0, Vec::len) {
                0 => String::new(),
                conflicts => format!("{conflicts} in conflict so far"),
            },
        };
        format!("{}  {counts}", words.join("  ")).trim_end().to_owned() + "\n"
    };
    layers.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_is_said_with_what_was_not() {
        let refused = json!([{"path": ".git/hooks/x", "message": "it is protected"}]);
        let value = json!({"layer": "l-1", "change": "c-2", "kept": [{"path": "a"}, {"path": "b"}], "refused": refused,
            "left": 1, "removed": false});
        assert_eq!(
            format_kept(&value),
            "kept a b as c-2; `ringfence undo` reverts it\nnot kept: `.git/hooks/x`: it is protected\n1 changes stay in \
             layer l-1; decide with `ringfence layers review l-1`"
        );
        let nothing = json!({"layer": "l-1", "change": null, "kept": [], "refused": [], "left": 0, "removed": true});
        assert_eq!(format_kept(&nothing), "nothing was kept");
    }

    #[test]
    fn layers_are_listed_in_a_line_each() {
        let ended = json!({"layer": "l-1", "state": "ended", "started": "2026-01-01T00:00:00Z", "program": "claude",
            "counts": {"created": 1, "changed": 2, "deleted": 0, "conflicts": 0}});
        let running = json!({"layer": "l-2", "state": "running", "started": "2026-01-01T00:00:00Z", "program": "sh"});
        let in_conflict = json!({"layer": "l-3", "state": "running", "started": "2026-01-01T00:00:00Z", "program": "sh",
            "runningConflicts": ["a", "b"]});
        assert_eq!(
            format_layers(&json!({"layers": [in_conflict]})),
            "l-3  running  2026-01-01T00:00:00Z  sh  2 in conflict so far\n"
        );
        assert_eq!(
            format_layers(&json!({"layers": [ended, running]})),
            "l-1  ended  2026-01-01T00:00:00Z  claude  1 new, 2 changed, 0 deleted, 0 in conflict\n\
             l-2  running  2026-01-01T00:00:00Z  sh\n"
        );
        assert_eq!(format_layers(&json!({"layers": []})), "no layers in this workspace\n");
    }
}
