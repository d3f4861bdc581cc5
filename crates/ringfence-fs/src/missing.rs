//! Errors about paths, with advice: what may have been meant.
//!
//! Only names are looked at, only in directories of the workspace, and only so many.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::Arc;

use ringfence_kernel::{Alternatives, ErrorKind, Pace, Place, ToolError};
use rustix::fs::{OFlags, RawDir};
use rustix::io::Errno;

use crate::fault::fault;
use crate::mount::{Spot, look};
use crate::name::{is_reserved, show};
use crate::resolve::CAREFUL;
use crate::slot::listing;
use crate::stamp::Kind;

/// In a larger directory a guess is not worth the time.
const MOST_NAMES: usize = 2000;

/// The error for a path that could not be opened.
pub(crate) fn explain(spot: &Spot, errno: Errno) -> ToolError {
    let error = fault(errno, &spot.shown);
    match errno {
        Errno::XDEV if !spot.path.climbs() => {
            error.hint("a link with an absolute target counts as outside, and so does another mount")
        }
        Errno::NOENT => explain_missing(spot, error),
        _ => error,
    }
}

fn explain_missing(spot: &Spot, error: ToolError) -> ToolError {
    if let Err(gone) = spot.mount.check_in_place(Pace::Patient) {
        return gone;
    }
    let Some((parent, name)) = spot.path.split() else { return error };
    let directory = OFlags::RDONLY | OFlags::DIRECTORY | CAREFUL;
    let Ok(directory) = spot.mount.lookup(&parent, directory, Pace::Patient) else {
        return error.hint(&format!("the directory `{}` does not exist either", above(spot)));
    };
    if let Ok(Some(stamp)) = look(directory.fd.as_fd(), name)
        && stamp.kind == Kind::Link
    {
        return ToolError::new(ErrorKind::NotFound, format!("`{}` is a link whose target does not exist", spot.shown));
    }
    let resolved = directory.resolved;
    // `cap-std` gives a descriptor that cannot be listed.
    let Ok(directory) = listing(directory.fd.as_fd()) else { return error };
    let mut names = Vec::new();
    let mut buffer = [MaybeUninit::uninit(); 8192];
    let mut entries = RawDir::new(&directory, &mut buffer);
    while let Some(Ok(entry)) = entries.next() {
        let name = entry.file_name().to_bytes();
        if !is_reserved(name) && !matches!(name, b"." | b"..") {
            names.push(show(name));
        }
        if names.len() == MOST_NAMES {
            break;
        }
    }
    let alternatives = Alternatives {
        // White space around a name is what models add most, and escaped it would look like letters.
        meant: String::from_utf8_lossy(name).into_owned(),
        names,
        directory: Place { given: parent.shown(), resolved, mount: Arc::clone(&spot.mount.alias), ..Place::default() },
        shown_above: match above(spot) {
            "" => String::new(),
            above => format!("{above}/"),
        },
    };
    ToolError { alternatives: Some(Box::new(alternatives)), ..error }
}

/// The directory of a path, as replies say it; nothing for one in the workspace itself.
fn above(spot: &Spot) -> &str {
    spot.shown.rsplit_once('/').map_or("", |(above, _)| above)
}
