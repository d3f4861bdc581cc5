//! Limits of one call: bytes, entries, time.
//!
//! Every number that bounds a call is here with its default. Config may set each; an agent or a workspace
//! may only tighten (`CallLimits::tightened`).

use std::time::Duration;

use crate::Dialect;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The bounds of a session's calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallLimits {
    /// Bytes of arguments, before they are parsed.
    pub argument_bytes: u64,
    /// Bytes of content that one read returns.
    pub read_bytes: u64,
    /// A file up to this size is hashed whole; above it the hash is unknown.
    pub hash_bytes: u64,
    /// Bytes of content in one write.
    pub write_bytes: u64,
    /// Bytes of a file that an edit leaves behind.
    pub edit_bytes: u64,
    /// Bytes that one append may add.
    pub append_bytes: u64,
    /// Bytes that a file may have after an append.
    pub appended_file_bytes: u64,
    /// Bytes of a file that may be copied.
    pub copy_bytes: u64,
    /// Entries that one listing names.
    pub list_entries: u64,
    /// Entries of one listing whose size and time are read; of a directory with more, none.
    pub list_stats: u64,
    /// Bytes of names that one listing, search by name or delete returns.
    pub list_bytes: u64,
    /// Paths that one search by name returns.
    pub find_results: u64,
    /// Matching lines that one search returns at most.
    pub search_matches: u64,
    /// Bytes of text that one search returns.
    pub search_bytes: u64,
    /// Names that the reply to a delete lists.
    pub delete_names: u64,
    /// Entries that one walk over a tree visits.
    pub walk_entries: u64,
    /// Bytes that one session's changes keep to be undone from.
    pub undo_session_bytes: u64,
    /// Bytes that the changes of all sessions keep.
    pub undo_bytes: u64,
    /// Bytes of memory that a program may have in use, all its processes together.
    pub run_memory_bytes: u64,
    /// Bytes that a program may write into the workspace.
    pub run_disk_bytes: u64,
    /// Bytes that it may write into its own `/tmp`.
    pub run_tmp_bytes: u64,
    /// Bytes that one file may have that it writes.
    pub run_file_bytes: u64,
    /// Bytes of each output stream of a program that are kept, half from the start and half from the end.
    pub run_output_bytes: u64,
    /// Processes and threads that a program may have at once.
    pub run_processes: u64,
    /// Files that one of its processes may have open.
    pub run_open_files: u64,
    /// Run time of a program, where the call does not set one.
    pub run_time: Duration,
    /// Longest run time that a call may set.
    pub longest_run_time: Duration,
    /// Longest run time of a background job.
    pub job_time: Duration,
    /// CPU time per process of a program.
    pub run_cpu_time: Duration,
    /// Bytes of a page that are read, after decompression.
    pub fetch_bytes: u64,
    /// Bytes of a page that the reply has.
    pub fetch_text_bytes: u64,
    /// Bytes of headers that a server may send.
    pub fetch_header_bytes: u64,
    /// Redirects per request.
    pub fetch_redirects: u64,
    /// Time of a request, with all redirects.
    pub fetch_time: Duration,
    /// Time to connect to a host, with DNS and TLS.
    pub fetch_connect_time: Duration,
    /// Time until a host sends the first byte of its response.
    pub fetch_first_byte_time: Duration,
    /// Time of a call of an MCP tool.
    pub mcp_time: Duration,
    /// Bytes of its answer that the reply has.
    pub mcp_bytes: u64,
    /// Bytes of a message with a reply, in every form in which a client gets it.
    pub reply_bytes: u64,
    /// Time of a call, without approval.
    pub call_time: Duration,
    /// Time to answer an approval request.
    pub approval_time: Duration,
    /// Consecutive denials after which a session pauses until a person resumes it.
    pub denials_in_a_row: u64,
}

/// Most entries of a listing whose sizes a model is shown: a longer one is read for its names.
pub const MODEL_LIST_STATS: u64 = 200;

impl CallLimits {
    /// The default limits of a dialect.
    pub fn for_dialect(dialect: Dialect) -> Self {
        let standard = Self {
            argument_bytes: 32 * MIB,
            read_bytes: MIB,
            hash_bytes: 256 * MIB,
            write_bytes: 10 * MIB,
            edit_bytes: 10 * MIB,
            append_bytes: MIB,
            appended_file_bytes: 64 * MIB,
            copy_bytes: GIB,
            list_entries: 1000,
            list_stats: u64::MAX,
            list_bytes: 4 * MIB,
            find_results: 1000,
            search_matches: 200,
            search_bytes: MIB,
            delete_names: 1000,
            walk_entries: 1_000_000,
            undo_session_bytes: GIB,
            undo_bytes: 5 * GIB,
            run_memory_bytes: 2 * GIB,
            run_disk_bytes: GIB,
            run_tmp_bytes: 512 * MIB,
            run_file_bytes: GIB,
            run_output_bytes: 256 * KIB,
            run_processes: 256,
            run_open_files: 1024,
            run_time: Duration::from_secs(60),
            longest_run_time: Duration::from_secs(600),
            job_time: Duration::from_secs(2 * 60 * 60),
            run_cpu_time: Duration::from_secs(600),
            fetch_bytes: 10 * MIB,
            fetch_text_bytes: MIB,
            fetch_header_bytes: 64 * KIB,
            fetch_redirects: 5,
            fetch_time: Duration::from_secs(30),
            fetch_connect_time: Duration::from_secs(10),
            fetch_first_byte_time: Duration::from_secs(20),
            mcp_time: Duration::from_secs(120),
            mcp_bytes: 256 * KIB,
            reply_bytes: MIB,
            call_time: Duration::from_secs(30),
            approval_time: Duration::from_secs(300),
            denials_in_a_row: 3,
        };
        match dialect {
            Dialect::Standard => standard,
            Dialect::Claude | Dialect::Codex | Dialect::Gemini => Self { list_stats: MODEL_LIST_STATS, ..standard },
            Dialect::Miniclaw => Self {
                read_bytes: 256 * KIB,
                write_bytes: MIB,
                edit_bytes: MIB,
                append_bytes: MIB,
                list_entries: 500,
                call_time: Duration::from_secs(10),
                ..standard
            },
            Dialect::Crewagent => Self {
                read_bytes: 50_000,
                write_bytes: 100_000,
                edit_bytes: 100_000,
                hash_bytes: GIB,
                list_entries: 200,
                ..standard
            },
        }
    }

    /// The smaller of each bound.
    #[must_use]
    pub fn tightened(&self, other: &Self) -> Self {
        Self {
            argument_bytes: self.argument_bytes.min(other.argument_bytes),
            read_bytes: self.read_bytes.min(other.read_bytes),
            hash_bytes: self.hash_bytes.min(other.hash_bytes),
            write_bytes: self.write_bytes.min(other.write_bytes),
            edit_bytes: self.edit_bytes.min(other.edit_bytes),
            append_bytes: self.append_bytes.min(other.append_bytes),
            appended_file_bytes: self.appended_file_bytes.min(other.appended_file_bytes),
            copy_bytes: self.copy_bytes.min(other.copy_bytes),
            list_entries: self.list_entries.min(other.list_entries),
            list_stats: self.list_stats.min(other.list_stats),
            list_bytes: self.list_bytes.min(other.list_bytes),
            find_results: self.find_results.min(other.find_results),
            search_matches: self.search_matches.min(other.search_matches),
            search_bytes: self.search_bytes.min(other.search_bytes),
            delete_names: self.delete_names.min(other.delete_names),
            walk_entries: self.walk_entries.min(other.walk_entries),
            undo_session_bytes: self.undo_session_bytes.min(other.undo_session_bytes),
            undo_bytes: self.undo_bytes.min(other.undo_bytes),
            run_memory_bytes: self.run_memory_bytes.min(other.run_memory_bytes),
            run_disk_bytes: self.run_disk_bytes.min(other.run_disk_bytes),
            run_tmp_bytes: self.run_tmp_bytes.min(other.run_tmp_bytes),
            run_file_bytes: self.run_file_bytes.min(other.run_file_bytes),
            run_output_bytes: self.run_output_bytes.min(other.run_output_bytes),
            run_processes: self.run_processes.min(other.run_processes),
            run_open_files: self.run_open_files.min(other.run_open_files),
            run_time: self.run_time.min(other.run_time),
            longest_run_time: self.longest_run_time.min(other.longest_run_time),
            job_time: self.job_time.min(other.job_time),
            run_cpu_time: self.run_cpu_time.min(other.run_cpu_time),
            fetch_bytes: self.fetch_bytes.min(other.fetch_bytes),
            fetch_text_bytes: self.fetch_text_bytes.min(other.fetch_text_bytes),
            fetch_header_bytes: self.fetch_header_bytes.min(other.fetch_header_bytes),
            fetch_redirects: self.fetch_redirects.min(other.fetch_redirects),
            fetch_time: self.fetch_time.min(other.fetch_time),
            fetch_connect_time: self.fetch_connect_time.min(other.fetch_connect_time),
            fetch_first_byte_time: self.fetch_first_byte_time.min(other.fetch_first_byte_time),
            mcp_time: self.mcp_time.min(other.mcp_time),
            mcp_bytes: self.mcp_bytes.min(other.mcp_bytes),
            reply_bytes: self.reply_bytes.min(other.reply_bytes),
            call_time: self.call_time.min(other.call_time),
            approval_time: self.approval_time.min(other.approval_time),
            denials_in_a_row: self.denials_in_a_row.min(other.denials_in_a_row),
        }
    }
}
