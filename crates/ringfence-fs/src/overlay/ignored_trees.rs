//! Ignored trees: which paths the ignore files of the workspace leave out.
//!
//! The workspace's own files say so and not those of the layer, in which a program could hide its changes.
//!
//! Not here: the rules (`read/ignore.rs`).

use std::os::fd::AsFd as _;

use ringfence_kernel::CallContext;

use crate::mount::Mount;
use crate::overlay::group::is_at_or_below;
use crate::read::ignore::IgnoreRules;
use crate::root::open_no_follow;

/// The ignore rules on the way to a path. Paths are asked about in the order of a tree.
#[derive(Debug)]
pub(super) struct IgnoredTrees<'a> {
    mount: &'a Mount,
    rules: IgnoreRules,
    /// The directories whose rules were read, from the root on.
    entered: Vec<Vec<u8>>,
}

impl<'a> IgnoredTrees<'a> {
    pub(super) fn new(mount: &'a Mount) -> Self {
        Self { mount, rules: IgnoreRules::default(), entered: Vec::new() }
    }

    /// The topmost ignored path that a path is, or is in.
    pub(super) fn top_of<'p>(&mut self, path: &'p [u8], is_directory: bool, cx: &CallContext<'_>) -> Option<&'p [u8]> {
        let is_above = |directory: &Vec<u8>| {
            directory.is_empty() || (is_at_or_below(path, directory) && directory.len() < path.len())
        };
        while self.entered.last().is_some_and(|directory| !is_above(directory)) {
            self.entered.pop();
        }
        self.rules.leave_depth(self.entered.len().saturating_sub(1));
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        let ends: Vec<usize> = slashes.chain([path.len()]).collect();
        for (depth, end) in ends.iter().enumerate() {
            let above = depth.checked_sub(1).and_then(|last| ends.get(last)).map_or(&path[..0], |end| &path[..*end]);
            if self.entered.len() == depth {
                if let Some(directory) = open_no_follow(self.mount, above) {
                    self.rules.enter_directory(self.mount, directory.as_fd(), (above, depth), cx);
                }
                self.entered.push(above.to_vec());
            }
            let here = &path[..*end];
            if self.rules.ignores(here, *end < path.len() || is_directory) {
                return Some(here);
            }
        }
        None
    }
}
