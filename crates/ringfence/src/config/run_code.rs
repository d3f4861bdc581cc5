//! `[run_code]` of the config: the jails of programs, and the toolchains that they see.

use std::path::PathBuf;

use ringfence_sandbox::JailFallback;
use serde::Deserialize;

use crate::config::{NamedSetting, RunCodeSettings, named_value};

/// More jails than this need not wait.
const MAX_WAITING_JAILS: u32 = 64;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RunCodeConfigSection {
    waiting_jails: Option<u32>,
    detect_toolchains: Option<bool>,
    toolchains: Option<Vec<PathBuf>>,
    fallback: Option<NamedSetting<JailFallback>>,
}

/// The settings of both layers; the managed ones hold.
pub(crate) fn merge_run_code(managed: &RunCodeConfigSection, user: &RunCodeConfigSection) -> RunCodeSettings {
    RunCodeSettings {
        waiting_jails: managed.waiting_jails.or(user.waiting_jails).unwrap_or(2).min(MAX_WAITING_JAILS),
        detect_toolchains: managed.detect_toolchains.or(user.detect_toolchains).unwrap_or(true),
        toolchains: managed.toolchains.clone().or(user.toolchains.clone()).unwrap_or_default(),
        fallback: named_value(managed.fallback).or(named_value(user.fallback)).unwrap_or_default(),
    }
}
