//! Limits config: each key overrides the lower layer by itself.

use std::time::Duration;

use ringfence_kernel::CallLimits;
use serde::Deserialize;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct LimitsConfigSection {
    max_argument_bytes: Option<u64>,
    max_read_bytes: Option<u64>,
    max_hash_bytes: Option<u64>,
    /// Of a write; of an edit's result and an append too, unless those are set by themselves.
    max_write_bytes: Option<u64>,
    max_edit_bytes: Option<u64>,
    max_append_bytes: Option<u64>,
    max_appended_file_bytes: Option<u64>,
    max_copy_bytes: Option<u64>,
    max_list_entries: Option<u64>,
    max_list_bytes: Option<u64>,
    max_find_results: Option<u64>,
    max_search_matches: Option<u64>,
    max_search_bytes: Option<u64>,
    max_delete_names: Option<u64>,
    max_walk_entries: Option<u64>,
    max_undo_session_bytes: Option<u64>,
    max_undo_bytes: Option<u64>,
    max_run_memory_bytes: Option<u64>,
    max_run_disk_bytes: Option<u64>,
    max_run_tmp_bytes: Option<u64>,
    max_run_file_bytes: Option<u64>,
    max_run_output_bytes: Option<u64>,
    max_run_processes: Option<u64>,
    max_run_open_files: Option<u64>,
    run_duration: Option<ConfigDuration>,
    max_run_duration: Option<ConfigDuration>,
    max_job_duration: Option<ConfigDuration>,
    max_run_cpu_duration: Option<ConfigDuration>,
    max_fetch_bytes: Option<u64>,
    max_fetch_text_bytes: Option<u64>,
    max_fetch_header_bytes: Option<u64>,
    max_fetch_redirects: Option<u64>,
    max_fetch_duration: Option<ConfigDuration>,
    max_fetch_connect_duration: Option<ConfigDuration>,
    max_fetch_first_byte_duration: Option<ConfigDuration>,
    max_mcp_duration: Option<ConfigDuration>,
    max_mcp_bytes: Option<u64>,
    max_reply_bytes: Option<u64>,
    max_tool_operation_duration: Option<ConfigDuration>,
    max_approval_duration: Option<ConfigDuration>,
}

impl LimitsConfigSection {
    /// The limits with the keys that are set here.
    pub(crate) fn apply_to(&self, base: &CallLimits) -> CallLimits {
        let write = self.max_write_bytes;
        CallLimits {
            argument_bytes: self.max_argument_bytes.unwrap_or(base.argument_bytes),
            read_bytes: self.max_read_bytes.unwrap_or(base.read_bytes),
            hash_bytes: self.max_hash_bytes.unwrap_or(base.hash_bytes),
            write_bytes: write.unwrap_or(base.write_bytes),
            edit_bytes: self.max_edit_bytes.or(write).unwrap_or(base.edit_bytes),
            append_bytes: self.max_append_bytes.or(write).unwrap_or(base.append_bytes),
            appended_file_bytes: self.max_appended_file_bytes.unwrap_or(base.appended_file_bytes),
            copy_bytes: self.max_copy_bytes.unwrap_or(base.copy_bytes),
            list_entries: self.max_list_entries.unwrap_or(base.list_entries),
            list_stats: base.list_stats,
            list_bytes: self.max_list_bytes.unwrap_or(base.list_bytes),
            find_results: self.max_find_results.unwrap_or(base.find_results),
            search_matches: self.max_search_matches.unwrap_or(base.search_matches),
            search_bytes: self.max_search_bytes.unwrap_or(base.search_bytes),
            delete_names: self.max_delete_names.unwrap_or(base.delete_names),
            walk_entries: self.max_walk_entries.unwrap_or(base.walk_entries),
            undo_session_bytes: self.max_undo_session_bytes.unwrap_or(base.undo_session_bytes),
            undo_bytes: self.max_undo_bytes.unwrap_or(base.undo_bytes),
            run_memory_bytes: self.max_run_memory_bytes.unwrap_or(base.run_memory_bytes),
            run_disk_bytes: self.max_run_disk_bytes.unwrap_or(base.run_disk_bytes),
            run_tmp_bytes: self.max_run_tmp_bytes.unwrap_or(base.run_tmp_bytes),
            run_file_bytes: self.max_run_file_bytes.unwrap_or(base.run_file_bytes),
            run_output_bytes: self.max_run_output_bytes.unwrap_or(base.run_output_bytes),
            run_processes: self.max_run_processes.unwrap_or(base.run_processes),
            run_open_files: self.max_run_open_files.unwrap_or(base.run_open_files),
            run_time: self.run_duration.map_or(base.run_time, |span| span.0),
            longest_run_time: self.max_run_duration.map_or(base.longest_run_time, |span| span.0),
            job_time: self.max_job_duration.map_or(base.job_time, |span| span.0),
            run_cpu_time: self.max_run_cpu_duration.map_or(base.run_cpu_time, |span| span.0),
            fetch_bytes: self.max_fetch_bytes.unwrap_or(base.fetch_bytes),
            fetch_text_bytes: self.max_fetch_text_bytes.unwrap_or(base.fetch_text_bytes),
            fetch_header_bytes: self.max_fetch_header_bytes.unwrap_or(base.fetch_header_bytes),
            fetch_redirects: self.max_fetch_redirects.unwrap_or(base.fetch_redirects),
            fetch_time: self.max_fetch_duration.map_or(base.fetch_time, |span| span.0),
            fetch_connect_time: self.max_fetch_connect_duration.map_or(base.fetch_connect_time, |span| span.0),
            fetch_first_byte_time: self.max_fetch_first_byte_duration.map_or(base.fetch_first_byte_time, |span| span.0),
            mcp_time: self.max_mcp_duration.map_or(base.mcp_time, |span| span.0),
            mcp_bytes: self.max_mcp_bytes.unwrap_or(base.mcp_bytes),
            reply_bytes: self.max_reply_bytes.unwrap_or(base.reply_bytes),
            call_time: self.max_tool_operation_duration.map_or(base.call_time, |span| span.0),
            approval_time: self.max_approval_duration.map_or(base.approval_time, |span| span.0),
            denials_in_a_row: base.denials_in_a_row,
        }
    }
}

/// A length of time: seconds, or a text such as `10s` or `5m`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConfigDuration(Duration);

impl ConfigDuration {
    pub(crate) fn duration(self) -> Duration {
        self.0
    }
}

impl<'de> Deserialize<'de> for ConfigDuration {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a number of seconds, or a string such as \"10s\"")]
        enum DurationText {
            Seconds(u64),
            Text(String),
        }
        let span = match DurationText::deserialize(deserializer)? {
            DurationText::Seconds(seconds) => Duration::from_secs(seconds),
            DurationText::Text(text) => humantime::parse_duration(&text).map_err(serde::de::Error::custom)?,
        };
        if span.is_zero() {
            return Err(serde::de::Error::custom("a duration must be greater than zero"));
        }
        Ok(Self(span))
    }
}
