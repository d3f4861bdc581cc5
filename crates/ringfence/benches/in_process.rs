//! A call in this very process, for `cargo xtask bench http` to put beside the same call through the API.
//!
//! It reads rounds from standard input, a line each: how many sessions at once, and how many calls in all. It answers
//! each with a line: nanoseconds of the round, and the median and the 99th percentile of the calls. So the two sides
//! can take turns.
//!
//! Not here: the API's side, and figures for people.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a bench says what it finds, or stops")]
#![allow(clippy::disallowed_methods, reason = "it sets up what is measured")]

use std::io::BufRead as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringfence::app::{App, build_app};
use ringfence::approval::deny_all;
use ringfence::config::{CliFlags, Environment, load};
use ringfence::run_helper_if_requested;
use ringfence_kernel::{Session, ToolCall};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

fn main() -> ExitCode {
    if let Some(code) = run_helper_if_requested() {
        return code;
    }
    // `cargo test --benches` only checks that this builds and starts. Else the arguments are the workspace and the
    // state.
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with("--"));
    let (Some(workspace), Some(state)) = (arguments.next(), arguments.next()) else { return ExitCode::SUCCESS };
    let app = Arc::new(host(&workspace, Path::new(&state)));
    // As the server has it: calls wait here, and work on threads of the host.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let (sessions, calls) = line.split_once(' ').unwrap();
        let (took, mut times) = round(&runtime, &app, sessions.parse().unwrap(), calls.parse().unwrap());
        times.sort_unstable();
        let at = |part: usize| times[times.len() * part / 100].as_nanos();
        println!("{} {} {}", took.as_nanos(), at(50), at(99));
    }
    ExitCode::SUCCESS
}

fn host(workspace: &str, state: &Path) -> App {
    let environment = Environment::isolated(state, std::env::current_exe().unwrap());
    let flags = CliFlags { workspace: Some(workspace.to_owned()), ..CliFlags::default() };
    build_app(load(&flags, &environment).unwrap(), &environment, Box::new(deny_all())).unwrap()
}

/// Sessions at once, each of which makes its part of the calls, one after the other.
fn round(runtime: &Runtime, app: &Arc<App>, sessions: usize, calls: usize) -> (Duration, Vec<Duration>) {
    let each = calls / sessions;
    let started = Instant::now();
    let times = runtime.block_on(async {
        let callers: Vec<_> = (0..sessions)
            .map(|number| {
                let model = &app.session;
                let session = model.for_principal(format!("session-{number}"), model.principal.clone());
                tokio::spawn(make_calls(Arc::clone(app), Arc::new(session), each))
            })
            .collect();
        let mut times = Vec::with_capacity(calls);
        for caller in callers {
            times.extend(caller.await.unwrap());
        }
        times
    });
    (started.elapsed(), times)
}

async fn make_calls(app: Arc<App>, session: Arc<Session>, count: usize) -> Vec<Duration> {
    let mut times = Vec::with_capacity(count);
    for number in 0..count {
        let call = ToolCall {
            id: format!("call-{number}"),
            name: "read_file".to_owned(),
            arguments: r#"{"path":"a.txt"}"#.to_owned(),
        };
        let begun = Instant::now();
        let reply = app.host.call(&session, call, &CancellationToken::new()).await.unwrap();
        times.push(begun.elapsed());
        assert!(reply.error_kind().is_none(), "{}", reply.text);
    }
    times
}
