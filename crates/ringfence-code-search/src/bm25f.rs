//! BM25F: relevance of a text with fields to a query.
//!
//! Robertson, Zaragoza and Taylor, "Simple BM25 extension to multiple weighted fields", 2004: the occurrences of a term in the
//! fields are weighted, divided by the length of the field and added up before they saturate.
//!
//! Not here: which symbols have a term (`corpus.rs`).

use crate::symbol::{FIELD_COUNT, FieldCounts};

/// The weights of fields.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bm25fWeights {
    /// How soon more occurrences count for less.
    pub saturation: f32,
    /// By field: name, signature, owner, path, body.
    pub fields: [f32; FIELD_COUNT],
    /// How much the length of a field counts, from 0 to 1.
    pub length: [f32; FIELD_COUNT],
}

impl Default for Bm25fWeights {
    fn default() -> Self {
        Self { saturation: 1.2, fields: [6.0, 2.0, 2.5, 1.5, 1.0], length: [0.4, 0.6, 0.4, 0.3, 0.7] }
    }
}

/// BM25F over one collection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bm25f {
    pub(crate) weights: Bm25fWeights,
    /// Mean length of each field.
    pub(crate) mean_lengths: [f32; FIELD_COUNT],
}

impl Bm25f {
    /// The score of one term in one symbol.
    pub(crate) fn score(&self, idf: f32, counts: &FieldCounts, lengths: &FieldCounts) -> f32 {
        self.score_of_fields(idf, counts, lengths, 0..FIELD_COUNT)
    }

    /// The same for some of the fields alone.
    pub(crate) fn score_of_fields(
        &self,
        idf: f32,
        counts: &FieldCounts,
        lengths: &FieldCounts,
        fields: std::ops::Range<usize>,
    ) -> f32 {
        let mut frequency = 0.0;
        for field in fields {
            if counts[field] > 0 {
                let relative = f32::from(lengths[field]) / self.mean_lengths[field].max(1.0);
                let length = 1.0 - self.weights.length[field] + self.weights.length[field] * relative;
                frequency += self.weights.fields[field] * f32::from(counts[field]) / length;
            }
        }
        idf * frequency / (self.weights.saturation + frequency)
    }
}

/// Inverse document frequency: `with` of `all` symbols have the term.
pub(crate) fn inverse_frequency(all: usize, with: usize) -> f32 {
    let (all, with) = (all as f32, with as f32);
    (1.0 + (all - with + 0.5).max(0.5) / (with + 0.5)).ln()
}
