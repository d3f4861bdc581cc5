//! The unsafe control: a server of files that makes every mistake there is, so that an attack which does not get past it is
//! known to be none.
//!
//! Started as `xtask attack --control unchecked|checked DIRECTORY`. Unchecked, it takes a path for whatever it could mean.
//! Checked, it resolves a path, compares it with the directory, and then opens it by its name, as many servers do. It is
//! never part of what users get.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

#[derive(Debug)]
struct ControlServer {
    root: PathBuf,
    is_checked: bool,
}

/// Serves until its input ends, or until it hears something that it does not understand.
pub(crate) fn serve(mode: &str, root: &str) -> bool {
    let control = Arc::new(ControlServer { root: PathBuf::from(root), is_checked: mode == "checked" });
    for line in io::stdin().lock().lines() {
        let Some(message) = line.ok().and_then(|line| serde_json::from_str::<Value>(&line).ok()) else { return false };
        if message["method"].is_null() {
            return false;
        }
        if message["id"].is_null() {
            continue;
        }
        let control = Arc::clone(&control);
        // Each call by itself, as servers do that wait for files in the background. They end with the process.
        std::thread::spawn(move || {
            let reply = json!({"jsonrpc": "2.0", "id": message["id"], "result": control.handle_message(&message)});
            let _ = io::stdout().lock().write_all(format!("{reply}\n").as_bytes());
        });
    }
    true
}

impl ControlServer {
    fn handle_message(&self, message: &Value) -> Value {
        if message["method"] == "initialize" {
            let info = json!({"name": "control", "version": "1"});
            return json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info});
        }
        let arguments = &message["params"]["arguments"];
        let done = self.call(message["params"]["name"].as_str().unwrap_or_default(), arguments);
        let is_error = done.is_err();
        // An error of its tells all that it knows.
        let link = arguments["path"].as_str().and_then(|path| fs::read_link(self.root.join(path)).ok());
        let text = done.unwrap_or_else(|error| format!("{error}: {arguments} {link:?}"));
        json!({"content": [{"type": "text", "text": text}], "isError": is_error})
    }

    fn call(&self, tool: &str, arguments: &Value) -> io::Result<String> {
        let text = |name: &str| arguments[name].as_str().unwrap_or_default();
        let at = || self.path(text("path"));
        match tool {
            "read_text_file" => Ok(String::from_utf8_lossy(&fs::read(at()?)?).into_owned()),
            "get_file_info" => fs::metadata(at()?).map(|it| format!("size: {}", it.len())),
            "list_directory" => names(&at()?).map(|names| names.join("\n")),
            "search_files" => {
                let mut found = Vec::new();
                walk(&at()?, &mut found, 0)?;
                found.retain(|path| path.contains("canary"));
                Ok(found.join("\n"))
            }
            "search_files_content" => {
                let mut found = Vec::new();
                walk(&at()?, &mut found, 0)?;
                let whole: Vec<u8> = found.iter().flat_map(|path| fs::read(path).unwrap_or_default()).collect();
                let whole = String::from_utf8_lossy(&whole);
                Ok(whole.lines().filter(|line| line.contains(text("query"))).collect::<Vec<_>>().join("\n"))
            }
            "write_file" => fs::write(at()?, text("content")).map(|()| "written".to_owned()),
            "create_directory" => fs::create_dir(at()?).map(|()| "made".to_owned()),
            "move_file" => {
                fs::rename(self.path(text("source"))?, self.path(text("destination"))?).map(|()| "moved".to_owned())
            }
            "edit_file" => edit(&at()?, &arguments["edits"][0]),
            _ => Err(io::Error::other("there is no such tool")),
        }
    }

    fn path(&self, spelled: &str) -> io::Result<PathBuf> {
        if !self.is_checked {
            return Ok(self.root.join(understood(spelled)));
        }
        let path = self.root.join(spelled);
        let real = match (path.canonicalize(), path.parent(), path.file_name()) {
            (Err(_), Some(parent), Some(name)) => parent.canonicalize()?.join(name),
            (real, _, _) => real?,
        };
        let is_inside = real.starts_with(self.root.canonicalize()?);
        pause();
        if is_inside { Ok(path) } else { Err(io::Error::other("outside")) }
    }
}

/// Between looking and doing, what others take for a line in a log: a race must be lost in a short run too.
fn pause() {
    std::thread::sleep(Duration::from_micros(300));
}

/// Whatever a path could mean: as a URL, with a home directory, with the separators and the dots of others.
fn understood(spelled: &str) -> PathBuf {
    let home = std::env::var("HOME").unwrap_or_default();
    let text = spelled.trim().trim_start_matches("file://").replace('\\', "/").replace("$HOME", &home);
    let text = text.replace('\u{ff0e}', ".").replace(['\u{ff0f}', '\u{2215}'], "/");
    let text = if text.starts_with("~/") { text.replacen('~', &home, 1) } else { text };
    let mut bytes = text.into_bytes();
    // Twice, for what was encoded twice.
    for _ in 0..2 {
        bytes = decoded(&bytes);
    }
    PathBuf::from(OsStr::from_bytes(&bytes))
}

fn decoded(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let number = after.get(..2).and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        let (byte, next) = match (first, number) {
            (b'%', Some(byte)) => (byte, after.get(2..).unwrap_or_default()),
            _ => (*first, after),
        };
        bytes.push(byte);
        rest = next;
    }
    bytes
}

fn names(directory: &Path) -> io::Result<Vec<String>> {
    fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// Through links too.
fn walk(directory: &Path, found: &mut Vec<String>, depth: usize) -> io::Result<()> {
    for name in names(directory)? {
        let path = directory.join(name);
        found.push(path.display().to_string());
        if path.is_dir() && depth < 4 {
            walk(&path, found, depth + 1)?;
        }
    }
    Ok(())
}

/// Replaces the first occurrence, by lines, in place.
fn edit(path: &Path, edit: &Value) -> io::Result<String> {
    let (old, new) = (edit["oldText"].as_str().unwrap_or_default(), edit["newText"].as_str().unwrap_or_default());
    let before = String::from_utf8_lossy(&fs::read(path)?).trim_start_matches('\u{feff}').replace('\r', "");
    if !before.contains(old) {
        return Err(io::Error::other("there is no such text"));
    }
    let after = before.replacen(old, new, 1);
    pause();
    fs::remove_file(path).and_then(|()| fs::write(path, &after))?;
    Ok(after)
}
