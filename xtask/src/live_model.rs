//! `cargo xtask test --model URL NAME [DIALECT…]`: five tasks for a live model, in each dialect, three tries each.
//!
//! A try is one run of `ringfence agent` in a new workspace. It counts by what is in the workspace and what the model says,
//! not by how it went about it. Each result is added to a file below `target/tmp/live-model` as soon as it is known, and a
//! try that is in the file is not made again: a run can be ended at any time, and dialects can be run one by one. The
//! prompts name no tool, so that they are the same in every dialect. A try that the time limit ended says nothing about the
//! model: it is not in the file, and the command ends.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::external_tools::ChildGuard;
use crate::{doc_markers, print_status, root};

/// Tries of each task: a small model does not always succeed.
const TRIES: usize = 3;

/// Time limit of a try: a small model on a busy machine takes minutes to its first word.
const MAX_TRY_TIME: Duration = Duration::from_secs(1800);

/// Most tokens of one answer, so that a model that does not stop ends its try before the time does.
const MAX_ANSWER_TOKENS: u32 = 1024;

const DIALECTS: [&str; 5] = ["standard", "claude", "codex", "gemini", "miniclaw"];

/// One thing to do, and what is there when it is done.
struct ModelTask {
    name: &'static str,
    prompt: &'static str,
    files: &'static [(&'static str, &'static str)],
    /// A file, and its contents afterwards but for white space at the end.
    expected: (&'static str, &'static str),
    /// A word of the answer.
    answer: Option<&'static str>,
}

const TASKS: [ModelTask; 5] = [
    ModelTask {
        name: "create",
        prompt: "Create the file greeting.txt with exactly this content: hello world",
        files: &[],
        expected: ("greeting.txt", "hello world"),
        answer: None,
    },
    ModelTask {
        name: "read",
        prompt: "Read the file secret.txt and tell me the number that is in it.",
        files: &[("secret.txt", "the number is 48151\n")],
        expected: ("secret.txt", "the number is 48151"),
        answer: Some("48151"),
    },
    ModelTask {
        name: "edit a line",
        prompt: "In config.ini, change the port from 80 to 8080. Change nothing else.",
        files: &[("config.ini", "[server]\nhost = localhost\nport = 80\nname = demo\n")],
        expected: ("config.ini", "[server]\nhost = localhost\nport = 8080\nname = demo"),
        answer: None,
    },
    ModelTask {
        name: "find and fix",
        prompt: "One Python file below src defines the function add, and it subtracts by mistake. Find it and fix it so that it adds.",
        files: &[
            ("src/names.py", "def greet(name):\n    return 'hello ' + name\n"),
            ("src/numbers.py", "def add(a, b):\n    return a - b\n"),
        ],
        expected: ("src/numbers.py", "def add(a, b):\n    return a + b"),
        answer: None,
    },
    ModelTask {
        name: "run",
        prompt: "Run the program answer.py with python3 and tell me what it prints.",
        files: &[("answer.py", "print(6 * 7 * 1009)\n")],
        expected: ("answer.py", "print(6 * 7 * 1009)"),
        answer: Some("42378"),
    },
];

/// A try: dialect, task and number.
type TryKey = (String, String, usize);

/// The outcome of a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TryResult {
    done: bool,
    /// Tokens of the first request, as the server counts them: what the dialect costs before anything is done.
    first_prompt: u64,
    /// Answers of the model.
    steps: u64,
}

/// False where a try could not be made, or the best dialect has fewer than four tasks.
pub(crate) fn run(url: &str, model: &str, wanted: &[&str]) -> bool {
    if let Some(name) = wanted.iter().find(|name| !DIALECTS.contains(name)) {
        print_status(&format!("unknown dialect `{name}`; available: {}", DIALECTS.join(", ")));
        return false;
    }
    if !crate::run_cargo(&["build", "--quiet", "--package", "ringfence"], &[]) {
        return false;
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let name: String = model.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
    let dir = root().join("target/tmp/live-model").join(name);
    let results = dir.join("results.tsv");
    let mut known = read_results(&results);
    // A copy: a build beside a run of an hour does not change what is measured.
    let program = dir.join("ringfence");
    if let Err(error) =
        fs::create_dir_all(&dir).and_then(|()| fs::copy(root().join("target/debug/ringfence"), &program))
    {
        print_status(&format!("cannot copy the program: {error}"));
        return false;
    }
    for dialect in DIALECTS.iter().filter(|name| wanted.is_empty() || wanted.contains(name)) {
        for task in &TASKS {
            for number in 0..TRIES {
                let key = ((*dialect).to_owned(), task.name.to_owned(), number);
                if known.contains_key(&key) {
                    continue;
                }
                let events = dir.join(format!("{dialect}-{}-{number}.jsonl", task.name.replace(' ', "-")));
                let settings =
                    TrySettings { url, model, dialect, dir: &dir.join("try"), program: &program, events: &events };
                let result = settings.make(task).and_then(|result| add_result(&results, &key, result).map(|()| result));
                let result = match result {
                    Ok(result) => result,
                    Err(error) => {
                        print_status(&format!("{dialect}, {}: cannot make a try: {error}", task.name));
                        return false;
                    }
                };
                print_status(&format!("{dialect}, {}, try {}: {}", task.name, number + 1, word(result.done)));
                known.insert(key, result);
            }
        }
    }
    let (table, best) = table(&known);
    print_status(&table);
    let is_complete = known.len() == DIALECTS.len() * TASKS.len() * TRIES;
    let block = format!("`{model}`, successes of {TRIES} tries:\n\n{table}");
    (!is_complete || doc_markers::write("docs/models.md", "test model", &block)) && best >= TASKS.len() - 1
}

fn word(done: bool) -> &'static str {
    if done { "done" } else { "not done" }
}

/// Successes by task and dialect, and the most tasks of a dialect that succeeded more often than not.
fn table(known: &BTreeMap<TryKey, TryResult>) -> (String, usize) {
    let titles: Vec<&str> = TASKS.iter().map(|task| task.name).collect();
    let mut lines = vec![
        format!("| dialect | {} | tasks | first request, tokens |", titles.join(" | ")),
        format!("|---|{}---:|", "---|".repeat(TASKS.len() + 1)),
    ];
    let mut best = 0;
    for dialect in DIALECTS {
        let cell = |task: &ModelTask| {
            let of_task = known.iter().filter(|((of, name, _), _)| of == dialect && name == task.name);
            let tries: Vec<bool> = of_task.map(|(_, result)| result.done).collect();
            (tries.iter().filter(|done| **done).count(), tries.len())
        };
        let cells: Vec<(usize, usize)> = TASKS.iter().map(cell).collect();
        let solved = cells.iter().filter(|(done, tries)| *tries == TRIES && done * 2 > TRIES).count();
        best = best.max(solved);
        let shown: Vec<String> = cells
            .iter()
            .map(|(done, tries)| if *tries == 0 { "-".to_owned() } else { format!("{done} of {tries}") })
            .collect();
        let prompts = known.iter().filter(|((of, _, _), _)| of == dialect).map(|(_, result)| result.first_prompt);
        let longest = prompts.max().map_or_else(|| "-".to_owned(), |tokens| tokens.to_string());
        lines.push(format!("| {dialect} | {} | {solved} of {} | {longest} |", shown.join(" | "), TASKS.len()));
    }
    (lines.join("\n"), best)
}

/// Results as lines of dialect, task, number, outcome, tokens of the first request and steps. A line that was cut off is not one.
fn read_results(file: &Path) -> BTreeMap<TryKey, TryResult> {
    fs::read_to_string(file).unwrap_or_default().lines().filter_map(parse_result).collect()
}

fn parse_result(line: &str) -> Option<(TryKey, TryResult)> {
    let mut fields = line.strip_suffix('.')?.split('\t');
    let (dialect, task) = (fields.next()?.to_owned(), fields.next()?.to_owned());
    let number = fields.next()?.parse().ok()?;
    let done = match fields.next()? {
        "done" => true,
        "not done" => false,
        _ => return None,
    };
    let (first_prompt, steps) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(((dialect, task, number), TryResult { done, first_prompt, steps }))
}

fn add_result(file: &Path, (dialect, task, number): &TryKey, result: TryResult) -> io::Result<()> {
    let TryResult { done, first_prompt, steps } = result;
    let mut file = OpenOptions::new().create(true).append(true).open(file)?;
    // The full stop tells a whole line.
    writeln!(file, "{dialect}\t{task}\t{number}\t{}\t{first_prompt}\t{steps}.", word(done))
}

struct TrySettings<'a> {
    url: &'a str,
    model: &'a str,
    dialect: &'a str,
    dir: &'a Path,
    program: &'a Path,
    /// Kept after the try, to see what the model did.
    events: &'a Path,
}

impl TrySettings<'_> {
    /// Runs the agent, and looks at what it did. An error if the model gave no answer, or not in time.
    fn make(&self, task: &ModelTask) -> io::Result<TryResult> {
        let Self { url, model, dialect, dir, program, events } = self;
        // Of the try before.
        let _ = fs::remove_dir_all(dir);
        let workspace = dir.join("workspace");
        fs::create_dir_all(&workspace)?;
        for (name, text) in task.files {
            let file = workspace.join(name);
            fs::create_dir_all(file.parent().unwrap_or(&workspace))?;
            fs::write(file, text)?;
        }
        let config = format!(
            "preset = \"edits\"\ndialect = {dialect:?}\n[agents.defaults]\nprovider = \"openai\"\nbase_url = {url:?}\nmodel = {model:?}\n\
             temperature = 0.2\nmax_tokens = {MAX_ANSWER_TOKENS}\nmax_tool_iterations = 8\n\
             first_byte_timeout = \"30m\"\nidle_timeout = \"30m\"\n"
        );
        fs::write(dir.join("config.toml"), config)?;
        let mut command = Command::new(program);
        command.env("RINGFENCE_STATE_DIR", dir.join("state")).current_dir(dir).stdin(Stdio::null());
        command.args(["agent", "--json", "-p", task.prompt, "--config"]).arg(dir.join("config.toml"));
        command.arg("--workspace").arg(&workspace).stdout(fs::File::create(events)?);
        let mut running = ChildGuard(command.spawn()?);
        let until = Instant::now() + MAX_TRY_TIME;
        let status = loop {
            match running.0.try_wait()? {
                Some(status) => break status,
                None if Instant::now() > until => {
                    return Err(io::Error::other(format!("it did not end within {} s", MAX_TRY_TIME.as_secs())));
                }
                None => std::thread::sleep(Duration::from_millis(200)),
            }
        };
        // The model could not be reached, or the config is wrong: nothing was shown.
        if status.code().is_none_or(|code| matches!(code, 2 | 3)) {
            return Err(io::Error::other("the model gave no answer"));
        }
        let events = fs::read_to_string(events)?;
        let mut events = events.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let first_prompt = events.find_map(|event| event["usage"]["input"].as_u64()).unwrap_or_default();
        let last = events.next_back().unwrap_or_default();
        let (name, wanted) = task.expected;
        let contents = fs::read_to_string(workspace.join(name)).unwrap_or_default();
        // What the model said, and not what the host says where it said nothing. Thousands may be set off.
        let said = last["text"].as_str().filter(|_| last["byHost"] == false).unwrap_or_default();
        let said = said.replace([',', '\u{a0}'], "");
        let done = contents.trim_end() == wanted && task.answer.is_none_or(|word| said.contains(word));
        Ok(TryResult { done, first_prompt, steps: last["steps"].as_u64().unwrap_or_default() })
    }
}

#[cfg(test)]
mod tests {
    use super::{TryResult, add_result, parse_result, read_results};

    #[test]
    fn results_are_read_back_and_a_cut_line_is_none() {
        let file = std::env::temp_dir().join(format!("live-model-{}", std::process::id()));
        let key = ("claude".to_owned(), "edit a line".to_owned(), 2);
        let result = TryResult { done: true, first_prompt: 1856, steps: 2 };
        add_result(&file, &key, result).unwrap();
        add_result(&file, &("codex".to_owned(), "run".to_owned(), 0), TryResult { done: false, ..result }).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        let known = read_results(&file);
        std::fs::remove_file(&file).unwrap();
        assert_eq!((known.len(), known.get(&key)), (2, Some(&result)));
        let line = text.lines().next().unwrap();
        for cut in 0..line.len() {
            assert_eq!(parse_result(&line[..cut]), None, "{}", &line[..cut]);
        }
    }
}
