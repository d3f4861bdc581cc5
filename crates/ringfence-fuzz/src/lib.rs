//! Fuzzing for the tests of the other crates, on a stable toolchain.
//!
//! A target is a test that takes bytes: first every input of its corpus, then inputs made from those by changing a few
//! bytes. In the normal tests that is short and deterministic; `cargo xtask fuzz` runs a target for a given time, from
//! another seed each time. A failing input is minimised and kept in the corpus, so that it is tried first from then on.
//!
//! Not here: the properties that are checked. The crates have them next to the code, in modules called `fuzz`.

mod fuzz_loop;
mod mutate;

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fuzz_loop::{FuzzBudget, FuzzFailure, FuzzLoop};

/// Names the target that is to run for long; every other one then does nothing.
pub const TARGET: &str = "RINGFENCE_FUZZ_TARGET";

/// Duration of a run in seconds.
pub const SECONDS: &str = "RINGFENCE_FUZZ_SECONDS";

/// A directory for what came of it: `TARGET.last` is the input that runs or ran last, `TARGET.done` the [`FuzzReport`].
pub const REPORTS: &str = "RINGFENCE_FUZZ_REPORTS";

/// Limits of a target in the normal tests: inputs, and time.
const SHORT_RUNS: u64 = 3_000;
const SHORT_TIME: Duration = Duration::from_millis(400);

/// The longest input that is made, where a target does not say.
const DEFAULT_MAX_LEN: usize = 2_048;

/// Something that is given bytes.
#[derive(Clone, Debug)]
pub struct FuzzTarget {
    name: &'static str,
    corpus: PathBuf,
    tokens: &'static [&'static str],
    max_len: usize,
}

/// The report of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FuzzReport {
    pub runs: u64,
    pub time: Duration,
    /// Number of different outcomes.
    pub outcomes: u64,
    pub failures: u64,
}

impl FuzzTarget {
    /// Its corpus is `tests/corpus/NAME` below the directory of the crate, `env!("CARGO_MANIFEST_DIR")`.
    pub fn new(name: &'static str, crate_directory: &str) -> Self {
        let corpus = Path::new(crate_directory).join("tests/corpus").join(name);
        Self { name, corpus, tokens: &[], max_len: DEFAULT_MAX_LEN }
    }

    /// Words that mean something to it, to be put into inputs.
    #[must_use]
    pub fn tokens(self, tokens: &'static [&'static str]) -> Self {
        Self { tokens, ..self }
    }

    /// Inputs are made up to this length.
    #[must_use]
    pub fn max_len(self, longest: usize) -> Self {
        Self { max_len: longest, ..self }
    }

    /// Runs it. The returned value is the outcome of an input: one with a new outcome is mutated further. It fails by a
    /// panic, and so does this, with the name of the file that the input is kept in.
    #[track_caller]
    pub fn check<O: Hash>(self, run: impl Fn(&[u8]) -> O) {
        let long = LongFuzzRun::from_env();
        if long.as_ref().is_some_and(|long| long.target != self.name) {
            return;
        }
        let budget = long.as_ref().map_or_else(|| self.short_budget(), |long| long.budget);
        let seeds = self.seeds();
        let last = long.as_ref().map(|long| long.reports.join(format!("{}.last", self.name)));
        let hunt = FuzzLoop {
            seeds: &seeds,
            tokens: self.tokens,
            max_len: self.max_len,
            budget,
            last_input_path: last.as_deref(),
        };
        let (report, found) = hunt.run(&run);
        if let Some(long) = &long {
            long.write_report(self.name, report);
        }
        if let Some(found) = found {
            self.fail(&found);
        }
    }

    /// From the same seed every time.
    fn short_budget(&self) -> FuzzBudget {
        FuzzBudget { seed: hash(&self.name), runs: SHORT_RUNS, until: Instant::now() + SHORT_TIME }
    }

    #[expect(clippy::panic, reason = "this is how a test fails")]
    fn seeds(&self) -> Vec<Vec<u8>> {
        let Ok(entries) = fs::read_dir(&self.corpus) else { panic!("{} has no corpus", self.name) };
        let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        files.sort();
        let seeds: Vec<Vec<u8>> = files.iter().filter_map(|file| fs::read(file).ok()).collect();
        assert!(!seeds.is_empty(), "the corpus of {} is empty", self.name);
        seeds
    }

    #[track_caller]
    #[expect(clippy::panic, reason = "this is how a test fails")]
    fn fail(&self, found: &FuzzFailure) {
        let name = format!("found-{:016x}", hash(&found.input));
        let kept = match fs::write(self.corpus.join(&name), &found.input) {
            Ok(()) => format!("kept as tests/corpus/{}/{name}", self.name),
            Err(error) => format!("not kept: {error}"),
        };
        panic!("{}: {}\nthe input is {kept}: {:?}", self.name, found.reason, String::from_utf8_lossy(&found.input));
    }
}

impl FuzzReport {
    /// As [`Report::parse`] reads it.
    fn line(&self) -> String {
        format!("{} {} {} {}\n", self.runs, self.time.as_millis(), self.outcomes, self.failures)
    }

    pub fn parse(line: &str) -> Option<Self> {
        let mut numbers = line.split_whitespace().map(|word| word.parse().ok());
        let mut next = || numbers.next().flatten();
        let (runs, time, outcomes, failures) = (next()?, next()?, next()?, next()?);
        Some(Self { runs, time: Duration::from_millis(time), outcomes, failures })
    }
}

/// A long run that was requested explicitly.
struct LongFuzzRun {
    target: String,
    budget: FuzzBudget,
    reports: PathBuf,
}

impl LongFuzzRun {
    /// Reads the environment, as the only function that does.
    fn from_env() -> Option<Self> {
        let seconds = std::env::var(SECONDS).ok()?.parse().ok()?;
        let seed = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| hash(&time.as_nanos()));
        Some(Self {
            target: std::env::var(TARGET).ok()?,
            budget: FuzzBudget { seed, runs: u64::MAX, until: Instant::now() + Duration::from_secs(seconds) },
            reports: std::env::var_os(REPORTS)?.into(),
        })
    }

    #[expect(clippy::panic, reason = "a run without a report must fail")]
    fn write_report(&self, name: &str, report: FuzzReport) {
        if let Err(error) = fs::write(self.reports.join(format!("{name}.done")), report.line()) {
            panic!("{name} cannot be reported: {error}");
        }
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::Duration;

    use super::{FuzzReport, FuzzTarget};

    /// A crate whose only target has a corpus of these.
    fn home(seeds: &[&str]) -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        let corpus = home.path().join("tests/corpus/planted");
        std::fs::create_dir_all(&corpus).unwrap();
        for (number, seed) in seeds.iter().enumerate() {
            std::fs::write(corpus.join(number.to_string()), seed).unwrap();
        }
        home
    }

    fn target(home: &tempfile::TempDir) -> FuzzTarget {
        FuzzTarget::new("planted", home.path().to_str().unwrap()).tokens(&["needle"])
    }

    #[test]
    fn a_failing_input_is_minimized_kept_and_tried_first() {
        let home = home(&["some hay, and more of it", "{\"other\": 1}"]);
        let run = |input: &[u8]| assert!(!input.windows(6).any(|word| word == b"needle"), "pricked");
        let failed = catch_unwind(AssertUnwindSafe(|| target(&home).check(run))).unwrap_err();
        let said = failed.downcast_ref::<String>().unwrap();
        assert!(said.contains("pricked") && said.contains("tests/corpus/planted/found-"), "{said}");
        let kept: Vec<_> = std::fs::read_dir(home.path().join("tests/corpus/planted"))
            .unwrap()
            .filter_map(|entry| std::fs::read(entry.unwrap().path()).ok().filter(|input| input.len() == 6))
            .collect();
        assert_eq!(kept, [b"needle"]);
        let tried = std::cell::Cell::new(0);
        let again = catch_unwind(AssertUnwindSafe(|| {
            target(&home).check(|input| {
                tried.set(tried.get() + 1);
                run(input);
            });
        }));
        // The three of the corpus, and what it takes to see that nothing smaller fails.
        assert!(again.is_err() && tried.get() < 100, "{}", tried.get());
    }

    #[test]
    fn a_passing_target_leaves_the_corpus_alone() {
        let home = home(&["seed"]);
        target(&home).check(<[u8]>::len);
        assert_eq!(std::fs::read_dir(home.path().join("tests/corpus/planted")).unwrap().count(), 1);
    }

    #[test]
    fn a_target_without_a_corpus_fails() {
        for home in [home(&[]), tempfile::tempdir().unwrap()] {
            assert!(catch_unwind(AssertUnwindSafe(|| target(&home).check(<[u8]>::len))).is_err());
        }
    }

    #[test]
    fn a_report_is_read_as_it_was_written() {
        let report = FuzzReport { runs: 7, time: Duration::from_millis(1500), outcomes: 3, failures: 1 };
        assert_eq!(FuzzReport::parse(&report.line()), Some(report));
        assert_eq!(FuzzReport::parse("7 1500"), None);
    }
}
