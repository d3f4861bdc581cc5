//! Bounds on background jobs: of a host, and of one principal.
//!
//! A job has a thread and memory of its own, and no worker. It counts from its start until its end was reported, because the
//! changes that wait are in memory.
//!
//! Not here: the bound of one session (`command_session.rs`), and calls that wait for a job (the kernel's workers).

use std::collections::BTreeMap;
use std::sync::Arc;

use ringfence_kernel::sync::Mutex;
use ringfence_kernel::{ErrorKind, ToolError};

/// Jobs of a host.
const MAX_HOST_JOBS: usize = 16;

/// Jobs of one principal: it leaves a quarter to the others.
const MAX_PRINCIPAL_JOBS: usize = 12;

/// The jobs of a host, counted by principal.
#[derive(Clone, Debug, Default)]
pub(crate) struct JobSlots(Arc<Mutex<BTreeMap<String, usize>>>);

/// The place of one job, until it is dropped.
#[derive(Debug)]
pub(crate) struct JobPermit {
    slots: JobSlots,
    principal: String,
}

impl JobSlots {
    pub(crate) fn acquire(&self, principal: &str) -> Result<JobPermit, ToolError> {
        let mut counts = self.0.lock();
        let (total, own) = (counts.values().sum::<usize>(), counts.get(principal).copied().unwrap_or_default());
        let message = match (own, total) {
            (MAX_PRINCIPAL_JOBS.., _) => {
                format!("`{principal}` has {MAX_PRINCIPAL_JOBS} background jobs already; read or stop one first")
            }
            (_, MAX_HOST_JOBS..) => {
                format!("the host has {MAX_HOST_JOBS} background jobs already; try again when one of them has ended")
            }
            _ => {
                *counts.entry(principal.to_owned()).or_default() += 1;
                return Ok(JobPermit { slots: self.clone(), principal: principal.to_owned() });
            }
        };
        Err(ToolError::new(ErrorKind::Execution, message))
    }
}

impl Drop for JobPermit {
    fn drop(&mut self) {
        let mut counts = self.slots.0.lock();
        if let Some(count) = counts.get_mut(&self.principal) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.principal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{JobPermit, JobSlots, MAX_HOST_JOBS, MAX_PRINCIPAL_JOBS};

    #[test]
    fn a_principal_leaves_jobs_to_others_and_a_host_has_a_bound() {
        let slots = JobSlots::default();
        let take = |principal| slots.acquire(principal);
        let mut all: Vec<JobPermit> = (0..MAX_PRINCIPAL_JOBS).map(|_| take("a").unwrap()).collect();
        let refused = take("a").unwrap_err().message;
        assert_eq!(refused, "`a` has 12 background jobs already; read or stop one first");
        all.extend((MAX_PRINCIPAL_JOBS..MAX_HOST_JOBS).map(|_| take("b").unwrap()));
        let refused = take("b").unwrap_err().message;
        assert_eq!(refused, "the host has 16 background jobs already; try again when one of them has ended");
        all.pop();
        assert!(take("c").is_ok());
        all.clear();
        assert!(slots.0.lock().is_empty());
    }
}
