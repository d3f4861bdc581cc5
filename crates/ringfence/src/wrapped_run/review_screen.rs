//! Stub.
use serde::Deserialize;
#[derive(Debug, Deserialize)]
pub(crate) struct ReviewModel(pub(crate) serde_json::Value);
#[derive(Debug)]
pub(crate) struct Selection {
    pub(crate) path: String,
    pub(crate) hunks: Option<Vec<usize>>,
    pub(crate) alone: bool,
    pub(crate) base: Option<String>,
}
#[derive(Debug)]
pub(crate) enum ReviewChoice {
    Keep(Vec<Selection>),
    Branch(Vec<Selection>),
    Later,
    Drop,
}
pub(crate) fn format_review(model: &ReviewModel) -> String {
    format!("{:#}", model.0)
}
pub(crate) fn show_review(_: &ReviewModel) -> std::io::Result<Option<ReviewChoice>> {
    Ok(None)
}
