//! `cargo xtask schemathesis`: the API of `ringfence serve` against `schemathesis`, which generates valid and invalid
//! requests from the OpenAPI document, and checks the responses against it.
//!
//! It is fetched into `target/tmp/schemathesis` on the first run, which needs the network and `python3`. A failed
//! download is reported, and counts as a failure: nothing was tested then.

use std::path::Path;
use std::process::Command;

use crate::external_tools::{fetch_python_package, succeeds};
use crate::serve_process::ServeProcess;
use crate::{print_status, root};

const SCHEMATHESIS: &str = "schemathesis==4.32.5";

/// Enabled checks. Left out are those that take every 404 and 410 for a mistake: a session that is over is
/// distinguished from one that never was, and a session that is not paused cannot be resumed.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,\
                      response_schema_conformance,negative_data_rejection,unsupported_method,ignored_auth";

/// False if schemathesis had a complaint, or could not be had.
pub(crate) fn run() -> bool {
    let dir = root().join("target/tmp/schemathesis");
    let Some(programs) = fetch_python_package(&dir, SCHEMATHESIS) else { return false };
    let Some(config) = with_model(&dir) else {
        print_status("cannot write the config");
        return false;
    };
    let arguments = ["--wait", "0", "--rate", "100000", "--config", &config];
    let Some(served) = ServeProcess::start(&dir, &arguments, false) else {
        print_status("the server did not start");
        return false;
    };
    let Some(token) = served.page_token() else {
        print_status("cannot sign in to the server");
        return false;
    };
    let mut command = Command::new(programs.join("st"));
    command.current_dir(&dir).args(["run", &format!("http://{}/v1/openapi.json", served.address)]);
    command.args([
        "--url",
        &format!("http://{}", served.address),
        "--header",
        &format!("Authorization: Bearer {token}"),
    ]);
    // A stream of events has no end.
    command.args(["--exclude-path-regex", "events$", "--checks", CHECKS, "--max-examples", "50"]);
    succeeds(command.args(["--request-timeout", "20", "--no-color"]))
}

/// A config with a model that always has an answer, so that runs can be begun.
fn with_model(dir: &Path) -> Option<String> {
    let (script, config) = (dir.join("script.jsonl"), dir.join("config.toml"));
    std::fs::write(&script, "{\"text\":\"well\",\"times\":1000000}\n").ok()?;
    let text = format!("[agents.defaults]\nprovider = \"script\"\nscript = {:?}\n", script.to_str()?);
    std::fs::write(&config, text).ok()?;
    Some(config.to_str()?.to_owned())
}
