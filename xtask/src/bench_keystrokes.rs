//! Latency of a terminal: from a byte typed to its echo on the screen, bare and through `ringfence run`.
//!
//! Both programs are alive at once and take turns, so that what else the machine does is in both columns. The program
//! copies what it reads; without the terminal's own echo, each byte goes through it.
//!
//! Not here: whole command lines (`bench_run.rs`).

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::process::Command;
use std::time::Instant;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::external_tools::ChildGuard;
use crate::print_status;

const KEYSTROKES: usize = 10_000;

/// Most milliseconds over bare at 99 %.
pub(crate) const GOAL: f64 = 1.0;

/// A program that copies its input, and says when it does.
pub(crate) const COPY_INPUT: &str = "stty raw -echo; echo ready; exec cat";

/// A program on a terminal of its own.
struct TerminalProgram {
    screen: File,
    _child: ChildGuard,
}

impl TerminalProgram {
    fn start(command: &Command) -> io::Result<Self> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let name = ptsname(&master, Vec::new())?;
        let slave = File::options().read(true).write(true).open(name.to_string_lossy().as_ref())?;
        let mut on_terminal = Command::new("setsid");
        on_terminal.arg("--ctty").arg(command.get_program()).args(command.get_args());
        on_terminal.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        if let Some(directory) = command.get_current_dir() {
            on_terminal.current_dir(directory);
        }
        let (output, errors) = (slave.try_clone()?, slave.try_clone()?);
        let child = ChildGuard(on_terminal.stdin(slave).stdout(output).stderr(errors).spawn()?);
        let mut program = Self { screen: File::from(master), _child: child };
        program.wait_until_ready()?;
        Ok(program)
    }

    fn wait_until_ready(&mut self) -> io::Result<()> {
        let (mut seen, mut part) = (Vec::new(), [0; 1024]);
        while !seen.windows(5).any(|word| word == b"ready") {
            let read = self.screen.read(&mut part)?;
            seen.extend_from_slice(&part[..read]);
        }
        // The end of that line may still be on its way; the first echo comes after it.
        self.echo(b'>')?;
        Ok(())
    }

    /// Milliseconds from a byte typed to the same byte on the screen.
    fn echo(&mut self, byte: u8) -> io::Result<f64> {
        let started = Instant::now();
        self.screen.write_all(&[byte])?;
        let mut part = [0; 256];
        loop {
            let read = self.screen.read(&mut part)?;
            if part[..read].contains(&byte) {
                return Ok(started.elapsed().as_secs_f64() * 1e3);
            }
        }
    }
}

/// Prints a row for each command: a name, and a command line that runs [`COPY_INPUT`]. The first one is the bare one.
pub(crate) fn run(commands: &[(&str, Command)]) -> io::Result<()> {
    let mut programs = Vec::new();
    for (name, command) in commands {
        programs.push((*name, TerminalProgram::start(command)?, Vec::with_capacity(KEYSTROKES)));
    }
    for number in 0..KEYSTROKES {
        let byte = b'a' + (number % 26) as u8;
        for (_, program, times) in &mut programs {
            times.push(program.echo(byte)?);
        }
    }
    print_status(&format!("\n{KEYSTROKES} keystrokes, interleaved, milliseconds until the echo\n"));
    print_status("| | median | 99 % | goal |\n|---|---:|---:|---|");
    let mut bare = None;
    for (name, _, times) in &mut programs {
        times.sort_by(f64::total_cmp);
        let at = |part: usize| times.get(times.len() * part / 100).copied().unwrap_or(f64::NAN);
        let (median, high) = (at(50), at(99));
        let verdict = match bare {
            None => String::new(),
            Some(bare) => {
                let over = high - bare;
                let met = if over < GOAL { "met" } else { "missed" };
                format!("{over:.2} ms over bare at 99 %, goal {GOAL} ms: {met}")
            }
        };
        bare.get_or_insert(high);
        print_status(&format!("| {name} | {median:.3} | {high:.3} | {verdict} |"));
    }
    Ok(())
}
