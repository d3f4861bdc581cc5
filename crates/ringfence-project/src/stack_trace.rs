//! JavaScript stack traces: the message before the frames, and the frames of the project.

use crate::source_paths::SourcePaths;
use crate::test_report::SourceLine;

/// The lines before the first frame.
pub(crate) fn message_before_frames(stack: &str) -> String {
    stack.lines().take_while(|line| !is_frame(line)).collect::<Vec<_>>().join("\n").trim().to_owned()
}

/// The lines of the frames in files of the project, the innermost first.
pub(crate) fn project_frames(stack: &str, paths: &SourcePaths) -> Vec<SourceLine> {
    let frames: Vec<&str> = stack.lines().filter(|line| is_frame(line)).collect();
    paths.find(&frames.join("\n"))
}

fn is_frame(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("at ") || line.starts_with("❯ ")
}
