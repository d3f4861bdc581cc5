//! Push requests of git (`git-receive-pack` over HTTP): what would become of which ref, for the person who is asked.
//!
//! The commands of a push are packet lines before its objects. A request says from where to where a ref moves, and not
//! whether commits of it are lost: each move is shown as one that loses commits, unless the sent commits prove that it does not.
//!
//! Not here: which requests are asked about (`request_guard.rs`), and the objects.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

use crate::pack_commits::PackCommits;

/// No commands of a push are longer.
pub(crate) const MAX_COMMAND_BYTES: usize = 256 << 10;

/// Refs that are listed for a person, and in a record.
const MAX_LISTED: usize = 100;
const MAX_RECORDED: usize = 8;

/// Characters of the name of a ref that are shown.
const MAX_NAME: usize = 120;

/// Characters of an object ID that are shown.
const SHORT_ID: usize = 12;

/// Bytes of the digest of commands.
const DIGEST_BYTES: usize = 16;

/// Bytes of a packet line with its length.
const MAX_PACKET: usize = 65_520;

/// The last name of the path of a push.
const SERVICE: &str = "/git-receive-pack";

/// Whether a path is that of a push.
pub(crate) fn is_push(path: &str) -> bool {
    path.ends_with(SERVICE)
}

/// What is to become of one ref.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RefCommand {
    old: String,
    new: String,
    name: String,
}

impl RefCommand {
    fn is_move(&self) -> bool {
        !is_zero(&self.new) && !is_zero(&self.old)
    }
}

/// The commands of a push.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PushCommands {
    commands: Vec<RefCommand>,
    capabilities: Vec<String>,
    /// Bytes before the objects.
    length: usize,
}

impl PushCommands {
    /// Reads the beginning of a request. `None`: the commands go on. Fails with the reason for which they cannot be shown.
    pub(crate) fn parse(mut bytes: &[u8]) -> Result<Option<Self>, &'static str> {
        let mut push = Self::default();
        loop {
            let Some((length, rest)) = bytes.split_at_checked(4) else { return Ok(None) };
            let length = std::str::from_utf8(length).ok().and_then(|text| usize::from_str_radix(text, 16).ok());
            let length = match length.ok_or("a packet line has no length")? {
                0 => {
                    push.length += 4;
                    return Ok(Some(push));
                }
                length => {
                    length.checked_sub(4).filter(|length| *length > 0).ok_or("a packet line has a wrong length")?
                }
            };
            let Some((line, rest)) = rest.split_at_checked(length) else { return Ok(None) };
            push.add_line(line)?;
            push.length += 4 + length;
            bytes = rest;
        }
    }

    fn add_line(&mut self, line: &[u8]) -> Result<(), &'static str> {
        let line = std::str::from_utf8(line).map_err(|_| "the name of a ref is not UTF-8")?;
        let (line, capabilities) = line.split_once('\0').unwrap_or((line, ""));
        if self.commands.is_empty() && self.capabilities.is_empty() {
            self.capabilities = capabilities.split_whitespace().map(str::to_owned).collect();
        }
        let line = line.trim_end_matches('\n');
        if line.starts_with("push-cert") {
            return Err("signed pushes cannot be shown");
        }
        if line.starts_with("shallow ") {
            return Ok(());
        }
        let mut words = line.splitn(3, ' ');
        let is_id = |id: &&str| matches!(id.len(), 40 | 64) && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let (old, new) = (words.next().filter(is_id), words.next().filter(is_id));
        let name = words.next().filter(|name| !name.is_empty() && !name.contains(char::is_control));
        let (Some(old), Some(new), Some(name)) = (old, new, name) else {
            return Err("a command of the push cannot be read");
        };
        self.commands.push(RefCommand { old: old.to_owned(), new: new.to_owned(), name: name.to_owned() });
        Ok(())
    }

    /// Whether it changes nothing: clients send such a request to find out whether they are logged in.
    pub(crate) fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// In a few words, for records, and a digest of all of it: an approval is for exactly these commands.
    pub(crate) fn summary(&self) -> String {
        let mut text = String::new();
        for command in self.commands.iter().take(MAX_RECORDED) {
            let separator = if text.is_empty() { "" } else { ", " };
            // Writing to a string cannot fail.
            let _ = write!(text, "{separator}{} {}", shown_name(&command.name), short(&command.new));
        }
        let more = if self.commands.len() > MAX_RECORDED { ", …" } else { "" };
        let mut digest = Sha256::new();
        for RefCommand { old, new, name } in &self.commands {
            digest.update(format!("{old} {new} {name}\0"));
        }
        let digest: String = digest.finalize().iter().take(DIGEST_BYTES).map(|byte| format!("{byte:02x}")).collect();
        format!("{text}{more} ({digest})")
    }

    /// Bytes before the objects.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Whether it moves a ref, so that its commits say more.
    pub(crate) fn moves_refs(&self) -> bool {
        self.commands.iter().any(|command| command.is_move())
    }

    /// What would be lost, one line each.
    pub(crate) fn losses(&self, commits: &PackCommits) -> Vec<String> {
        let deleted = self.commands.iter().filter(|command| is_zero(&command.new)).count();
        let is_loss = |command: &&RefCommand| command.is_move() && !commits.are_descended(&command.old, &command.new);
        let moved = self.commands.iter().filter(is_loss).count();
        let mut losses = Vec::new();
        if deleted > 0 {
            losses.push(format!("{deleted} deleted: commits that only they have are lost"));
        }
        if moved > 0 {
            losses.push(format!(
                "{moved} moved to where their commits do not lead: by force, or at least unproven, commits are lost"
            ));
        }
        losses
    }

    /// One line for each ref.
    pub(crate) fn lines(&self, commits: &PackCommits) -> Vec<String> {
        let line = |command: &RefCommand| {
            let RefCommand { old, new, name } = command;
            let name = shown_name(name);
            match (is_zero(old), is_zero(new)) {
                (_, true) => format!("delete {name}, which is {}", short(old)),
                (true, false) => format!("create {name} at {}", short(new)),
                (false, false) if commits.are_descended(old, new) => {
                    format!("add to {name}, from {} to {}", short(old), short(new))
                }
                (false, false) => format!("move {name} from {} to {}", short(old), short(new)),
            }
        };
        let mut lines: Vec<String> = self.commands.iter().take(MAX_LISTED).map(line).collect();
        if let Some(more) = self.commands.len().checked_sub(MAX_LISTED).filter(|more| *more > 0) {
            lines.push(format!("and {more} more"));
        }
        lines
    }

    /// The answer of a server that takes none of them, if the client reads one.
    pub(crate) fn refusal(&self, reason: &str) -> Option<Vec<u8>> {
        let has = |name: &str| self.capabilities.iter().any(|capability| capability == name);
        if !has("report-status") && !has("report-status-v2") {
            return None;
        }
        let reason: String = reason.chars().filter(|c| !c.is_control()).take(500).collect();
        let mut report = packet(b"unpack ok\n");
        for command in &self.commands {
            report.extend(packet(format!("ng {} ringfence: {reason}\n", command.name).as_bytes()));
        }
        report.extend(b"0000");
        if !has("side-band-64k") {
            return Some(report);
        }
        let bands = report.chunks(MAX_PACKET - 5).flat_map(|part| packet(&[b"\x01", part].concat()));
        Some(bands.chain(*b"0000").collect())
    }
}

fn packet(line: &[u8]) -> Vec<u8> {
    [format!("{:04x}", line.len() + 4).as_bytes(), line].concat()
}

fn shown_name(name: &str) -> String {
    let cut: String = name.chars().take(MAX_NAME).collect();
    if cut.len() < name.len() { cut + "…" } else { cut }
}

fn is_zero(id: &str) -> bool {
    id.bytes().all(|digit| digit == b'0')
}

fn short(id: &str) -> &str {
    match is_zero(id) {
        true => "nothing",
        false => id.get(..SHORT_ID).unwrap_or(id),
    }
}

#[cfg(test)]
mod tests {
    use super::{PushCommands, is_push, packet};
    use crate::pack_commits::PackCommits;

    const ONE: &str = "1111111111111111111111111111111111111111";
    const TWO: &str = "2222222222222222222222222222222222222222";
    const ZERO: &str = "0000000000000000000000000000000000000000";

    fn request(lines: &[String]) -> Vec<u8> {
        lines.iter().flat_map(|line| packet(line.as_bytes())).chain(*b"0000").chain(*b"PACK...").collect()
    }

    fn push() -> Vec<u8> {
        request(&[
            format!("{ZERO} {ONE} refs/heads/new\0 report-status side-band-64k agent=git/2\n"),
            format!("{ONE} {TWO} refs/heads/main\n"),
            format!("{TWO} {ZERO} refs/heads/old"),
        ])
    }

    #[test]
    fn the_commands_of_a_push_are_lines_for_a_person() {
        let push = PushCommands::parse(&push()).unwrap().unwrap();
        assert_eq!(
            push.lines(&PackCommits::default()),
            [
                "create refs/heads/new at 111111111111",
                "move refs/heads/main from 111111111111 to 222222222222",
                "delete refs/heads/old, which is 222222222222",
            ]
        );
        let losses = push.losses(&PackCommits::default());
        assert!(losses[0].starts_with("1 deleted: ") && losses[1].starts_with("1 moved to where"));
        let summary = push.summary();
        let (refs, digest) = summary.split_once(" (").unwrap();
        assert_eq!(refs, "refs/heads/new 111111111111, refs/heads/main 222222222222, refs/heads/old nothing");
        assert_eq!(digest.len(), 33);
        let refusal = String::from_utf8(push.refusal("not\n approved").unwrap()).unwrap();
        assert!(
            refusal.contains("\u{1}000eunpack ok\n")
                && refusal.contains("ng refs/heads/main ringfence: not approved\n")
        );
    }

    #[test]
    fn commands_are_read_only_when_they_are_all_there() {
        let push = push();
        let end = push.len() - "PACK...".len();
        for length in 0..end {
            assert_eq!(PushCommands::parse(&push[..length]), Ok(None), "{length}");
        }
        assert!(PushCommands::parse(&push[..end]).unwrap().is_some());
        let probe = PushCommands::parse(b"0000").unwrap().unwrap();
        assert!(probe.is_empty() && probe.refusal("no").is_none());
    }

    #[test]
    fn what_cannot_be_shown_is_refused() {
        for lines in [
            vec!["push-cert\0 report-status".to_owned()],
            vec![format!("{ONE} {TWO}")],
            vec![format!("{ONE} refs/heads/x {TWO}")],
            vec![format!("{ONE} {TWO} refs/heads/a\u{1b}[2J")],
            vec!["x".to_owned()],
        ] {
            assert!(PushCommands::parse(&request(&lines)).is_err(), "{lines:?}");
        }
        for bytes in [&b"zzzz"[..], b"0001", b"0004", b"0005\xff0000"] {
            assert!(PushCommands::parse(bytes).is_err(), "{bytes:?}");
        }
        let shallow = request(&[format!("shallow {ONE}"), format!("{ZERO} {ONE} refs/heads/x\0report-status")]);
        assert_eq!(PushCommands::parse(&shallow).unwrap().unwrap().lines(&PackCommits::default()).len(), 1);
        assert!(is_push("/o/r.git/git-receive-pack") && !is_push("/o/r.git/git-upload-pack"));
    }

    #[test]
    fn many_refs_are_counted() {
        let lines: Vec<String> = (0..130).map(|number| format!("{ZERO} {ONE} refs/heads/{number}")).collect();
        let push = PushCommands::parse(&request(&lines)).unwrap().unwrap();
        // Also what is not listed is a part of what an approval is for.
        let mut others = lines.clone();
        others[129] = others[129].replace(ONE, TWO);
        let others = PushCommands::parse(&request(&others)).unwrap().unwrap();
        assert_ne!(push.summary(), others.summary());
        assert_eq!(push.lines(&PackCommits::default()), others.lines(&PackCommits::default()));
        let long = request(&[format!("{ZERO} {ONE} refs/heads/{}", "x".repeat(5000))]);
        let long = PushCommands::parse(&long).unwrap().unwrap();
        assert!(long.summary().len() < 200 && long.lines(&PackCommits::default())[0].len() < 200);
        assert_eq!(
            (push.lines(&PackCommits::default()).len(), push.lines(&PackCommits::default())[100].as_str()),
            (101, "and 30 more")
        );
    }
}
