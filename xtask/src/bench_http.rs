//! `cargo xtask bench http`: what the API of `ringfence serve` costs beside a call in the same process, with one session and
//! with 200 at once, and what an idle session takes of memory.

use std::time::{Duration, Instant};

use crate::server::{Served, text_of};
use crate::{root, say};

const SESSIONS: usize = 200;
const CALLS: usize = 4_000;

/// False where nothing could be measured.
pub(crate) fn run() -> bool {
    let place = root().join("target/tmp/bench-http");
    let Some(served) = Served::start(&place, &["--rate", "1000000"], true) else {
        say("the server did not start");
        return false;
    };
    let Some(token) = served.agent_token("bench") else { return false };
    say("reads of 4 KiB through the API (`cargo xtask bench agent` has the same call in one process)");
    let Some(before) = served.resident() else { return false };
    let Some(sessions) = (0..SESSIONS).map(|_| begin(&served, &token)).collect::<Option<Vec<_>>>() else {
        say("a session could not be begun");
        return false;
    };
    let Some(after) = served.resident() else { return false };
    say(&format!(
        "memory of an idle session: {:.1} KiB ({SESSIONS} sessions)",
        (after - before) as f64 / SESSIONS as f64
    ));
    for at_once in [1, 8, SESSIONS] {
        let Some(sessions) = sessions.get(..at_once) else { return false };
        let mut rounds: Vec<(f64, Duration, Duration)> = Vec::new();
        for _ in 0..5 {
            let Some(round) = round(&served, &token, sessions) else {
                say("a call failed");
                return false;
            };
            rounds.push(round);
        }
        rounds.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (Some(best), Some(median)) = (rounds.last(), rounds.get(rounds.len() / 2)) else { return false };
        say(&format!(
            "{at_once:3} sessions at once: {:.0} calls a second at best, {:.0} by the median; p50 {:.2} ms, p99 {:.2} ms",
            best.0,
            median.0,
            median.1.as_secs_f64() * 1e3,
            median.2.as_secs_f64() * 1e3,
        ));
    }
    true
}

fn begin(served: &Served, token: &str) -> Option<String> {
    text_of(&served.connect()?.post("/v1/sessions", token, "{}")?, "id")
}

/// Calls a second, and the times of the half and of all but one in a hundred.
fn round(served: &Served, token: &str, sessions: &[String]) -> Option<(f64, Duration, Duration)> {
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
    Some((times.len() as f64 / took.as_secs_f64(), at(50)?, at(99)?))
}
