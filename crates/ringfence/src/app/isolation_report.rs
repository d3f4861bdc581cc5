//! JSON of the isolation mechanisms on this machine, as `ringfence doctor --json` and `GET /v1/doctor` give it.

use ringfence_sandbox::IsolationStatus;
use serde_json::{Value, json};

use crate::codec::renamed_keys::with_old_keys;

pub(crate) fn isolation_report(statuses: &[IsolationStatus]) -> Value {
    let mechanisms: Vec<Value> = statuses.iter().map(|status| with_old_keys(json!(status))).collect();
    with_old_keys(json!({"isolation": mechanisms}))
}
