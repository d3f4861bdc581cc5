//! `cargo xtask bench http`: what the API of `ringfence serve` costs beside the same call in one process, with one session and
//! with more at once, and what an idle session takes of memory.
//!
//! The two sides take turns, a round each, so that other load of the machine affects both. Each makes as many calls in
//! a round, on one host with as many sessions; the client of the API is on the same machine.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use crate::serve_process::{ServeProcess, text_of};
use crate::{cargo, print_status, root};

const SESSIONS: usize = 200;
const CALLS: usize = 4_000;
const ROUNDS: usize = 9;

/// False where nothing could be measured.
pub(crate) fn run() -> bool {
    let dir = root().join("target/tmp/bench-http");
    let Some(served) = ServeProcess::start(&dir, &["--rate", "1000000"], true) else {
        print_status("the server did not start");
        return false;
    };
    let (Some(token), Some(mut own)) = (served.agent_token("bench"), InProcessBench::start(&dir)) else {
        print_status("no token or in-process host to call with");
        return false;
    };
    let Some(before) = served.resident() else { return false };
    let Some(sessions) = (0..SESSIONS).map(|_| create_session(&served, &token)).collect::<Option<Vec<_>>>() else {
        print_status("a session could not be begun");
        return false;
    };
    let Some(after) = served.resident() else { return false };
    print_status(&format!(
        "memory of an idle session: {:.1} KiB ({SESSIONS} sessions)\n\n\
         reads of 4 KiB, {CALLS} calls a round, {ROUNDS} rounds of each in turn; the median round\n",
        (after - before) as f64 / SESSIONS as f64
    ));
    print_status("sessions  where           calls/s       p50       p99");
    for at_once in [1, 8, SESSIONS] {
        let Some(sessions) = sessions.get(..at_once) else { return false };
        let (mut here, mut there) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let (Some(inside), Some(outside)) = (own.round(at_once), round(&served, &token, sessions)) else {
                print_status("a call failed");
                return false;
            };
            here.push(inside);
            there.push(outside);
        }
        let (Some(here), Some(there)) = (median(here), median(there)) else { return false };
        print_status(&format!("{at_once:>8}  in one process {}", here.summary()));
        print_status(&format!("{at_once:>8}  by the API     {}", there.summary()));
        let times = |ours: Duration, theirs: Duration| theirs.as_secs_f64() / ours.as_secs_f64();
        print_status(&format!(
            "{at_once:>8}  ratio          {:7.2}  {:7.1} ×  {:7.1} ×",
            there.calls_per_second / here.calls_per_second,
            times(here.median, there.median),
            times(here.p99, there.p99)
        ));
    }
    true
}

/// The time of a round.
struct BenchRound {
    calls_per_second: f64,
    /// Of a call: of the half of them, and of all but one in a hundred.
    median: Duration,
    p99: Duration,
}

impl BenchRound {
    fn summary(&self) -> String {
        let [half, most] = [self.median, self.p99].map(|time| time.as_secs_f64() * 1e3);
        format!("{:7.0}  {half:6.3} ms  {most:6.3} ms", self.calls_per_second)
    }
}

/// The round in the middle, by calls a second.
fn median(mut rounds: Vec<BenchRound>) -> Option<BenchRound> {
    rounds.sort_by(|a, b| a.calls_per_second.total_cmp(&b.calls_per_second));
    let middle = rounds.len() / 2;
    rounds.into_iter().nth(middle)
}

/// The bench `in_process`, until it is dropped.
struct InProcessBench {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Drop for InProcessBench {
    fn drop(&mut self) {
        // It ends at the end of its input.
        self.input.take();
        let _ = self.child.wait();
    }
}

impl InProcessBench {
    /// Builds it and starts it on the workspace of the server, with a state of its own.
    fn start(dir: &Path) -> Option<Self> {
        let state = dir.join("own-state");
        // It is not there the first time.
        let _ = std::fs::remove_dir_all(&state);
        std::fs::create_dir_all(&state).ok()?;
        let mut command = cargo();
        command.args(["bench", "--quiet", "--package", "ringfence", "--bench", "in_process", "--"]);
        command.arg(dir.join("workspace")).arg(&state).current_dir(root());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take()?));
        Some(Self { child, input, output })
    }

    fn round(&mut self, at_once: usize) -> Option<BenchRound> {
        writeln!(self.input.as_mut()?, "{at_once} {CALLS}").ok()?;
        let mut line = String::new();
        self.output.read_line(&mut line).ok()?;
        let mut nanos = line.split_whitespace().map(|number| number.parse().ok().map(Duration::from_nanos));
        let [took, half, most] = [nanos.next()??, nanos.next()??, nanos.next()??];
        Some(BenchRound {
            calls_per_second: (CALLS / at_once * at_once) as f64 / took.as_secs_f64(),
            median: half,
            p99: most,
        })
    }
}

fn create_session(served: &ServeProcess, token: &str) -> Option<String> {
    text_of(&served.connect()?.post("/v1/sessions", token, "{}")?, "id")
}

/// The same by the API, each session on a connection that is kept.
fn round(served: &ServeProcess, token: &str, sessions: &[String]) -> Option<BenchRound> {
    let each = CALLS / sessions.len();
    let start = Instant::now();
    let times = std::thread::scope(|scope| {
        let callers: Vec<_> = sessions
            .iter()
            .map(|session| {
                scope.spawn(move || {
                    let mut connection = served.connect()?;
                    let path = format!("/v1/sessions/{session}/calls");
                    let body = r#"{"name":"read_file","arguments":{"path":"a.txt"}}"#;
                    let mut times = Vec::with_capacity(each);
                    for _ in 0..each {
                        let begun = Instant::now();
                        connection.post(&path, token, body).filter(|reply| reply.contains("\"error\":null"))?;
                        times.push(begun.elapsed());
                    }
                    Some(times)
                })
            })
            .collect();
        callers.into_iter().map(|caller| caller.join().ok().flatten()).collect::<Option<Vec<_>>>()
    })?;
    let took = start.elapsed();
    let mut times: Vec<Duration> = times.into_iter().flatten().collect();
    times.sort_unstable();
    let at = |part: usize| times.get(times.len() * part / 100).copied();
    Some(BenchRound { calls_per_second: times.len() as f64 / took.as_secs_f64(), median: at(50)?, p99: at(99)? })
}
