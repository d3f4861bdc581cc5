//! `cargo xtask bench program`: a program that does nothing, by the whole call, in an empty workspace and in a large one.
//!
//! The call goes over MCP to the release build: policy, records, mount of the workspace with its secrets covered, jail,
//! comparison of the overlay, reply. Both workspaces are called in turn; the first call of each, which searches the tree
//! for secrets, is printed apart. Then secrets are planted in the large workspace, each between two programs, and the next
//! program must not read them.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Instant;

use serde_json::Value;

use crate::bench_mcp::{BenchTree, PeerProcess, ringfence_peer, tool_call};
use crate::process_cost::{CpuTimes, median};
use crate::{build_release, print_status, root};

const FILES: usize = 100_000;
const FILES_PER_DIRECTORY: usize = 100;
const ROUNDS: usize = 41;

/// Most milliseconds for a program that does nothing, in the large workspace, after the first.
const MAX_MILLISECONDS: f64 = 15.0;

const SECRET: &str = "API_KEY=planted-between-two-programs";

/// False if the bench could not be run, or if a program read a planted secret. A missed target is a figure, not a failure.
pub(crate) fn run() -> bool {
    let Some(release) = build_release() else { return false };
    let dir = root().join("target/tmp/bench-program");
    let [empty, large] = ["empty", "large"].map(|name| BenchTree(dir.join(name)));
    let made = fs::create_dir_all(empty.0.join("files")).and_then(|()| make_large(&large.0.join("files")));
    if let Err(error) = made {
        print_status(&format!("the workspaces for the bench cannot be made: {error}"));
        return false;
    }
    let titles = ["empty workspace".to_owned(), format!("{FILES} files")];
    let servers = [("empty", &empty), ("large", &large)]
        .map(|(title, tree)| PeerProcess::start(&ringfence_peer(title, &release, tree)));
    let [Some(empty_server), Some(large_server)] = servers else {
        print_status("the server cannot be started");
        return false;
    };
    let mut servers = [empty_server, large_server];
    let mut times = [const { Vec::new() }; 2];
    let mut cpu = [const { Vec::new() }; 2];
    for round in 0..=ROUNDS {
        for (index, server) in servers.iter_mut().enumerate() {
            let (started, before) = (Instant::now(), CpuTimes::of(server.id()));
            if run_command(server, "true").is_none() {
                print_status("a program failed");
                return false;
            }
            let milliseconds = started.elapsed().as_secs_f64() * 1e3;
            if round == 0 {
                print_status(&format!("{}: the first program took {milliseconds:.1} ms", titles[index]));
                continue;
            }
            times[index].push(milliseconds);
            cpu[index].push(CpuTimes::of(server.id()).since(&before) as f64 / 1e6);
        }
    }
    print_status(&format!("\na program that does nothing, median of {ROUNDS} interleaved calls"));
    print_status("\n| workspace | time | CPU of the server |\n|---|---:|---:|");
    let [empty_time, large_time] = times.map(median);
    let [empty_cpu, large_cpu] = cpu.map(median);
    for (title, time, cpu) in [(&titles[0], empty_time, empty_cpu), (&titles[1], large_time, large_cpu)] {
        print_status(&format!("| {title} | {time:.1} ms | {cpu:.1} ms |"));
    }
    let met = if large_time <= MAX_MILLISECONDS { "met" } else { "missed" };
    print_status(&format!("\n{large_time:.1} ms with {FILES} files, target {MAX_MILLISECONDS} ms: {met}"));
    let [_, server] = &mut servers;
    secrets_stay_covered(server, &large.0.join("files"))
}

/// A secret that comes into the workspace between two programs.
struct PlantedSecret {
    way: &'static str,
    path: &'static str,
    plant: fn(&Path) -> io::Result<()>,
}

const fn planted(way: &'static str, path: &'static str, plant: fn(&Path) -> io::Result<()>) -> PlantedSecret {
    PlantedSecret { way, path, plant }
}

/// Plants secrets between programs. False if one was read, or if the control was not.
fn secrets_stay_covered(server: &mut PeerProcess, tree: &Path) -> bool {
    let plants = [
        planted("a new file", "d500/.env", |tree| fs::write(tree.join("d500/.env"), SECRET)),
        planted("a new directory", "fresh/deep/.env", |tree| {
            fs::create_dir_all(tree.join("fresh/deep"))?;
            fs::write(tree.join("fresh/deep/.env"), SECRET)
        }),
        planted("a renamed file", "d7/.env", |tree| {
            fs::write(tree.join("d7/plain"), SECRET)?;
            fs::rename(tree.join("d7/plain"), tree.join("d7/.env"))
        }),
        planted("a moved directory", "d8/moved/.env", |tree| {
            let outside = tree.with_file_name("outside");
            fs::create_dir_all(&outside)?;
            fs::write(outside.join(".env"), SECRET)?;
            fs::rename(outside, tree.join("d8/moved"))
        }),
    ];
    let mut covered = 0;
    for PlantedSecret { way, path, plant } in &plants {
        if let Err(error) = plant(tree) {
            print_status(&format!("{way}: the secret cannot be planted: {error}"));
            return false;
        }
        match run_command(server, &format!("cat {path}; echo end")) {
            Some(text) if !text.contains(SECRET) && text.contains("end") => covered += 1,
            Some(_) => print_status(&format!("{way}: `{path}` was READ by the next program")),
            None => print_status(&format!("{way}: the program failed")),
        }
    }
    print_status(&format!("secrets planted between two programs: {covered} of {} covered", plants.len()));
    let control = fs::write(tree.join("d500/plain"), SECRET).is_ok()
        && run_command(server, "cat d500/plain").is_some_and(|text| text.contains(SECRET));
    if !control {
        print_status("the control, a file that is not a secret, was not read");
    }
    control && covered == plants.len()
}

/// The text of the reply to a command.
fn run_command(server: &mut PeerProcess, command: &str) -> Option<String> {
    let arguments = serde_json::json!({"language": "bash", "code": command}).to_string();
    server.send(&tool_call("run_code", &arguments))?;
    let reply = server.receive_message()?;
    let text = reply.pointer("/result/content/0/text").and_then(Value::as_str)?;
    Some(text.to_owned()).filter(|_| reply.pointer("/result/isError") != Some(&Value::Bool(true)))
}

fn make_large(tree: &Path) -> io::Result<()> {
    for directory in 0..FILES / FILES_PER_DIRECTORY {
        let directory = tree.join(format!("d{directory}"));
        fs::create_dir_all(&directory)?;
        for file in 0..FILES_PER_DIRECTORY {
            fs::write(directory.join(format!("f{file}")), "")?;
        }
    }
    Ok(())
}
