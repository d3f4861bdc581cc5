//! Links of programs that would lead outside the workspace, themselves or by way of another one.
//!
//! They are followed in the workspace as it is going to be, with the changes that are kept.
//!
//! Not here: links that are followed to open something (`root/symlinks.rs`).

use std::collections::HashMap;

use ringfence_kernel::ToolError;

use crate::mount::Mount;
use crate::overlay::compare::{OverlayChange, OverlayUpperState, display_path, refusal_error};
use crate::path::relative::split;
use crate::root::open_no_follow;
use crate::sys::syscall::readlinkat;

/// As the kernel counts them.
const MOST_LINKS: usize = 40;

/// New links that would lead outside, themselves or by way of another one, where these items are kept and no others.
pub(super) fn links_outside<'a>(mount: &Mount, kept: &[&'a OverlayChange]) -> Vec<(&'a OverlayChange, ToolError)> {
    let links: Vec<(&'a OverlayChange, &[u8])> =
        kept.iter().filter_map(|item| Some((*item, new_link_target(item)?))).collect();
    if links.is_empty() {
        return Vec::new();
    }
    let tree = MergedLinks { mount, items: kept.iter().map(|item| (item.path.as_slice(), *item)).collect() };
    let leads_outside = |(item, target): &(&OverlayChange, &[u8])| !tree.stays_inside(&item.path, target);
    let why = |item: &OverlayChange| {
        refusal_error(&display_path(mount, &item.path), "is a link that leads outside the workspace")
    };
    links.into_iter().filter(leads_outside).map(|(item, _)| (item, why(item))).collect()
}

/// Whether a link leads to the system's own programs, as those of every virtual environment do. They are
/// world-readable, inside the jail and out.
fn is_system_target(target: &[u8]) -> bool {
    let climbs = target.split(|byte| *byte == b'/').any(|name| name == b"..");
    !climbs && [b"/usr/".as_slice(), b"/bin/", b"/lib/", b"/lib64/"].iter().any(|place| target.starts_with(place))
}

fn new_link_target(item: &OverlayChange) -> Option<&[u8]> {
    match &item.upper {
        Some(OverlayUpperState::Link { target }) => Some(target),
        _ => None,
    }
}

/// The links of the workspace as it is going to be.
struct MergedLinks<'a> {
    mount: &'a Mount,
    items: HashMap<&'a [u8], &'a OverlayChange>,
}

impl MergedLinks<'_> {
    /// Whether a link goes up no further than to the root. A `..` behind a name is never taken: what that name will be one
    /// day decides where it leads.
    fn stays_inside(&self, path: &[u8], target: &[u8]) -> bool {
        let names = |path: &[u8]| -> Vec<Vec<u8>> {
            let names = path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
            names.map(<[u8]>::to_vec).collect()
        };
        let climbs_late = names(target).iter().skip_while(|name| *name == b"..").any(|name| name == b"..");
        if climbs_late {
            return false;
        }
        if target.starts_with(b"/") {
            return is_system_target(target);
        }
        let mut here = names(split(path).0);
        let mut ahead = names(target);
        ahead.reverse();
        let mut links = 0;
        while let Some(name) = ahead.pop() {
            if name == b".." {
                if here.pop().is_none() {
                    return false;
                }
                continue;
            }
            here.push(name);
            let Some(next) = self.target_at(&here.join(&b'/')) else { continue };
            links += 1;
            if next.starts_with(b"/") {
                return is_system_target(&next);
            }
            // One that goes in circles leads nowhere.
            if links > MOST_LINKS {
                return true;
            }
            here.pop();
            ahead.extend(names(&next).into_iter().rev());
        }
        true
    }

    /// Target of the link that will be at a path.
    fn target_at(&self, path: &[u8]) -> Option<Vec<u8>> {
        if let Some(item) = self.items.get(path) {
            return new_link_target(item).map(<[u8]>::to_vec);
        }
        let (parent, name) = split(path);
        let parent = open_no_follow(self.mount, parent)?;
        Some(readlinkat(&parent, name).ok()?.into_bytes())
    }
}
