//! Limits of a wrapped run: what the command line asks for, within those of the config, and a part of the machine where neither
//! says anything.
//!
//! Not here: keeping them (`ringfence-sandbox`).

use std::path::Path;
use std::time::Duration;

use ringfence_sandbox::JailLimits;

use crate::cli::wrapped_run::WrappedRunOptions;
use crate::config::AppSettings;

/// Bounds where the command line sets none.
const DEFAULT_PROCESSES: u64 = 4096;
const DEFAULT_OPEN_FILES: u64 = 65_536;
const DEFAULT_TMP_BYTES: u64 = 4 << 30;

pub(crate) fn run_limits(options: &WrappedRunOptions, settings: &AppSettings) -> JailLimits {
    let bounds = &settings.wrapped;
    let disk = || three_quarters(free_bytes(&settings.state));
    JailLimits {
        wall: match bounds.seconds.resolve(options.seconds, u64::MAX) {
            u64::MAX => Duration::MAX,
            seconds => Duration::from_secs(seconds),
        },
        cpu: Duration::MAX,
        memory_bytes: bounds.memory_bytes.resolve(options.memory, three_quarters(memory_of_machine())),
        processes: bounds.processes.resolve(options.processes, DEFAULT_PROCESSES),
        disk_bytes: bounds.disk_bytes.resolve(options.disk, disk()),
        open_files: DEFAULT_OPEN_FILES,
        file_bytes: u64::MAX,
        tmp_bytes: DEFAULT_TMP_BYTES,
        ..JailLimits::default()
    }
}

fn memory_of_machine() -> u64 {
    let total = rustix::system::sysinfo();
    u64::from(total.mem_unit).saturating_mul(total.totalram as u64)
}

/// Free space where the layers are.
fn free_bytes(state: &Path) -> u64 {
    let exists = state.ancestors().find(|directory| directory.is_dir());
    let found = exists.and_then(|directory| rustix::fs::statvfs(directory).ok());
    found.map_or(u64::MAX, |found| found.f_bavail.saturating_mul(found.f_frsize))
}

fn three_quarters(amount: u64) -> u64 {
    amount / 4 * 3
}
