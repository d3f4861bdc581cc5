//! Looking for an input that fails, and making it small.
//!
//! Inputs that came to something new are kept as long as the hunt goes on, and changed further: without knowing which code
//! ran, what came of it says how far an input got.

use std::any::Any;
use std::cell::Cell;
use std::collections::HashSet;
use std::fs::File;
use std::hash::Hash;
use std::os::unix::fs::FileExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Once;
use std::time::{Duration, Instant};

use crate::mutate::{SplitMix64, mutate};
use crate::{FuzzReport, hash};

/// Budget of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FuzzBudget {
    pub(crate) seed: u64,
    pub(crate) runs: u64,
    pub(crate) until: Instant,
}

/// Inputs with a new outcome that are kept. More would only be chosen less often.
const MAX_POOL: usize = 1_024;

/// One input may take this long. Nothing that is read here takes a hundredth of it.
const INPUT_TIMEOUT: Duration = Duration::from_secs(10);

/// Smaller inputs that are tried of one that fails.
const MAX_SHRINK_TRIES: usize = 4_000;

pub(crate) struct FuzzLoop<'a> {
    pub(crate) seeds: &'a [Vec<u8>],
    pub(crate) tokens: &'a [&'a str],
    pub(crate) max_len: usize,
    pub(crate) budget: FuzzBudget,
    /// File that each input is written to before it is tried, for those that end the process.
    pub(crate) last_input_path: Option<&'a Path>,
}

/// An input that fails.
#[derive(Debug)]
pub(crate) struct FuzzFailure {
    pub(crate) input: Vec<u8>,
    pub(crate) reason: String,
}

impl FuzzLoop<'_> {
    /// Until something fails, or the budget is spent. Every seed is tried.
    pub(crate) fn run<O: Hash>(&self, run: &impl Fn(&[u8]) -> O) -> (FuzzReport, Option<FuzzFailure>) {
        let (began, mut random) = (Instant::now(), SplitMix64(self.budget.seed));
        let last = self.last_input_path.and_then(|last| File::create(last).ok());
        let attempt = |input: &[u8]| {
            if let Some(last) = &last {
                // There is no failure yet: an error here is not worth ending for.
                let _ = last.write_all_at(input, 0).and_then(|()| last.set_len(input.len() as u64));
            }
            attempt(run, input)
        };
        let (mut pool, mut outcomes, mut runs) = (self.seeds.to_vec(), HashSet::new(), 0);
        let mut found = None;
        while found.is_none() {
            let seed = self.seeds.get(runs as usize);
            if seed.is_none() && (runs >= self.budget.runs || Instant::now() >= self.budget.until) {
                break;
            }
            let input = seed.cloned().unwrap_or_else(|| self.next_input(&pool, &mut random));
            runs += 1;
            match attempt(&input) {
                Ok(outcome) => {
                    if outcomes.insert(outcome) && seed.is_none() && pool.len() < MAX_POOL {
                        pool.push(input);
                    }
                }
                Err(_) => found = Some(minimize(input, &attempt)),
            }
        }
        let failures = u64::from(found.is_some());
        (FuzzReport { runs, time: began.elapsed(), outcomes: outcomes.len() as u64, failures }, found)
    }

    fn next_input(&self, pool: &[Vec<u8>], random: &mut SplitMix64) -> Vec<u8> {
        let mut input = random.choose::<[u8]>(pool).unwrap_or_default().to_vec();
        let other = random.choose::<[u8]>(pool).unwrap_or_default();
        mutate(&mut input, other, self.tokens, self.max_len, random);
        input
    }
}

/// The outcome of an input, or its failure.
fn attempt<O: Hash>(run: &impl Fn(&[u8]) -> O, input: &[u8]) -> Result<u64, String> {
    silence_panics();
    let began = Instant::now();
    QUIET.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(|| hash(&run(input))));
    QUIET.set(false);
    let outcome = outcome.map_err(|panic| panic_text(panic.as_ref()))?;
    let took = began.elapsed();
    if took > INPUT_TIMEOUT {
        return Err(format!("it took {took:.1?}"));
    }
    Ok(outcome)
}

/// The same failure, or another one, with as few bytes as a simple search finds.
fn minimize(mut input: Vec<u8>, attempt: &impl Fn(&[u8]) -> Result<u64, String>) -> FuzzFailure {
    let mut why = attempt(&input).err().unwrap_or_else(|| "it failed once, and not again".to_owned());
    let (mut left, mut size) = (MAX_SHRINK_TRIES, input.len().div_ceil(2));
    let until = Instant::now() + INPUT_TIMEOUT * 3;
    while size > 0 && left > 0 && Instant::now() < until {
        let (mut at, mut shrunk) = (0, false);
        while at < input.len() && left > 0 {
            let mut smaller = input.clone();
            smaller.drain(at..input.len().min(at + size));
            left -= 1;
            match attempt(&smaller) {
                Ok(_) => at += size,
                Err(said) => (input, why, shrunk) = (smaller, said, true),
            }
        }
        size = if shrunk && size == 1 { 1 } else { size / 2 };
    }
    FuzzFailure { input, reason: why }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked").to_owned()
}

thread_local! {
    /// A target runs on this thread: its panics are caught, and printed once.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Silences panics: the search for a smaller input panics a thousand times.
fn silence_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !QUIET.get() {
                before(panic);
            }
        }));
    });
}
