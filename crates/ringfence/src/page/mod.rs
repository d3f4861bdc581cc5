//! The page.

/// A part of the page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asset {
    pub(crate) content_type: &'static str,
    pub(crate) bytes: &'static [u8],
}

pub(crate) fn asset(name: &str) -> Option<Asset> {
    (name == "index.html").then_some(Asset { content_type: "text/html; charset=utf-8", bytes: b"<!doctype html>" })
}
