//! The trained model: a static table of stem vectors, weights, and the ranker, in one file.
//!
//! A file is read whole or refused: a checksum, a version and the lengths of all parts are checked before anything is used.
//! Everything in it is little-endian.
//!
//! Not here: training (`cargo xtask train-search`), and features (`features.rs`).

use std::sync::OnceLock;

use crate::bm25f::Bm25fWeights;
use crate::features::FEATURE_COUNT;
use crate::symbol::{FIELD_COUNT, SymbolTerms};

/// The beginning of a model file.
const MAGIC: &[u8; 8] = b"RFSEARCH";

/// The version of the format.
const VERSION: u32 = 1;

/// Stems of a table.
const MAX_STEMS: usize = 100_000;

/// Numbers of a vector.
pub const DIMENSIONS: usize = 64;

/// Hidden units of the ranker.
const MAX_HIDDEN: usize = 256;

/// The file of the model.
const EMBEDDED: &[u8] = include_bytes!("../model/search.model");

/// The model in the binary. `None` where the build has none.
pub fn embedded_model() -> Option<&'static SearchModel> {
    static MODEL: OnceLock<Option<SearchModel>> = OnceLock::new();
    // A test reads the same bytes, so that a damaged file does not go unnoticed.
    MODEL.get_or_init(|| SearchModel::parse(EMBEDDED).ok()).as_ref()
}

/// A trained model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SearchModel {
    pub bm25f: Bm25fWeights,
    pub table: Option<StemTable>,
    pub ranker: Option<LearnedRanker>,
}

/// Vectors of stems, for queries and for symbols.
#[derive(Clone, Debug, PartialEq)]
pub struct StemTable {
    /// Sorted, each once.
    stems: Vec<Box<str>>,
    idf: Vec<f32>,
    query: QuantizedRows,
    /// `None` where symbols have the vectors of queries.
    symbol: Option<QuantizedRows>,
    /// Weights of the fields in the vector of a symbol.
    field_weights: [f32; FIELD_COUNT],
}

/// Vectors of [`DIMENSIONS`] numbers as small integers, each with a scale.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QuantizedRows {
    pub scales: Vec<f32>,
    pub values: Vec<i8>,
}

/// A neural network of one hidden layer over the features of a symbol.
#[derive(Clone, Debug, PartialEq)]
pub struct LearnedRanker {
    /// Mean of each feature.
    pub means: Vec<f32>,
    /// Inverse of each feature's deviation.
    pub scales: Vec<f32>,
    /// By hidden unit, [`FEATURE_COUNT`] weights each.
    pub hidden: Vec<f32>,
    pub hidden_bias: Vec<f32>,
    pub output: Vec<f32>,
    pub output_bias: f32,
}

/// Failure to read a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SearchModelError {
    #[error("not a model of code search")]
    Format,
    #[error("the model has version {0}; this program reads version {VERSION}")]
    Version(u32),
    #[error("the model is damaged")]
    Damaged,
}

/// A vector of a query or a symbol, of length one, or zero for a text without known stems.
pub type SearchVector = [f32; DIMENSIONS];

impl SearchModel {
    /// Reads a model.
    pub fn parse(bytes: &[u8]) -> Result<Self, SearchModelError> {
        if bytes.get(..MAGIC.len()) != Some(MAGIC) {
            return Err(SearchModelError::Format);
        }
        let mut reader = FieldReader { rest: &bytes[MAGIC.len()..] };
        let version = reader.number()?;
        if version != VERSION {
            return Err(SearchModelError::Version(version));
        }
        let (covered, checksum) = bytes.split_at(bytes.len() - 4);
        if checksum != crc32fast::hash(covered).to_le_bytes() {
            return Err(SearchModelError::Damaged);
        }
        let bm25f = Bm25fWeights { saturation: reader.float()?, fields: reader.fields()?, length: reader.fields()? };
        let table = match reader.length(MAX_STEMS)? {
            0 => None,
            count => Some(StemTable::read(&mut reader, count)?),
        };
        let ranker = match reader.length(MAX_HIDDEN)? {
            0 => None,
            hidden => Some(LearnedRanker::read(&mut reader, hidden)?),
        };
        if reader.rest.len() != 4 {
            return Err(SearchModelError::Damaged);
        }
        Ok(Self { bm25f, table, ranker })
    }

    /// Tells vectors of this model from those of another one.
    pub(crate) fn id(&self) -> u32 {
        crc32fast::hash(&self.to_bytes())
    }

    /// The model as a file. The same model is always the same bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        put_number(&mut bytes, VERSION as usize);
        put_floats(&mut bytes, &[self.bm25f.saturation]);
        put_floats(&mut bytes, &self.bm25f.fields);
        put_floats(&mut bytes, &self.bm25f.length);
        put_number(&mut bytes, self.table.as_ref().map_or(0, |table| table.stems.len()));
        if let Some(table) = &self.table {
            table.write(&mut bytes);
        }
        put_number(&mut bytes, self.ranker.as_ref().map_or(0, |ranker| ranker.output.len()));
        if let Some(LearnedRanker { means, scales, hidden, hidden_bias, output, output_bias }) = &self.ranker {
            for floats in [means, scales, hidden, hidden_bias, output] {
                put_floats(&mut bytes, floats);
            }
            put_floats(&mut bytes, &[*output_bias]);
        }
        let checksum = crc32fast::hash(&bytes);
        bytes.extend(checksum.to_le_bytes());
        bytes
    }
}

impl StemTable {
    /// A table of sorted stems. `None` if the parts do not fit together.
    pub fn new(
        stems: Vec<Box<str>>,
        idf: Vec<f32>,
        query: QuantizedRows,
        symbol: Option<QuantizedRows>,
        field_weights: [f32; FIELD_COUNT],
    ) -> Option<Self> {
        let fits =
            |rows: &QuantizedRows| rows.scales.len() == stems.len() && rows.values.len() == stems.len() * DIMENSIONS;
        let is_sorted = stems.is_sorted_by(|a, b| a < b) && stems.iter().all(|stem| !stem.contains('\n'));
        let is_whole = idf.len() == stems.len() && fits(&query) && symbol.as_ref().is_none_or(fits);
        (is_sorted && is_whole && (1..=MAX_STEMS).contains(&stems.len())).then_some(Self {
            stems,
            idf,
            query,
            symbol,
            field_weights,
        })
    }

    /// The position of a stem.
    pub fn position(&self, stem: &str) -> Option<usize> {
        self.stems.binary_search_by(|known| (**known).cmp(stem)).ok()
    }

    /// How rare a stem is in the training set.
    pub fn idf(&self, position: usize) -> f32 {
        self.idf[position]
    }

    /// The vector of a query.
    pub fn query_vector<'a>(&self, stems: impl IntoIterator<Item = &'a str>) -> SearchVector {
        self.sum(&self.query, stems.into_iter().map(|stem| (stem, 1.0)))
    }

    /// The vector of words of a symbol, such as its name alone.
    pub fn words_vector<'a>(&self, stems: impl IntoIterator<Item = &'a str>) -> SearchVector {
        let rows = self.symbol.as_ref().unwrap_or(&self.query);
        self.sum(rows, stems.into_iter().map(|stem| (stem, 1.0)))
    }

    /// The vector of a symbol.
    pub fn symbol_vector(&self, terms: &SymbolTerms) -> SearchVector {
        let rows = self.symbol.as_ref().unwrap_or(&self.query);
        let weighted = terms.counts.iter().map(|(stem, counts)| {
            let weight = |at: usize| self.field_weights[at] * field_weight(counts[at], terms.lengths[at]);
            (stem.as_str(), (0..FIELD_COUNT).map(weight).sum::<f32>())
        });
        self.sum(rows, weighted)
    }

    fn sum<'a>(&self, rows: &QuantizedRows, weighted: impl Iterator<Item = (&'a str, f32)>) -> SearchVector {
        let mut vector = [0.0; DIMENSIONS];
        for (stem, weight) in weighted {
            let Some(at) = self.position(stem) else { continue };
            let weight = weight * self.idf[at] * rows.scales[at];
            let row = &rows.values[at * DIMENSIONS..(at + 1) * DIMENSIONS];
            for (sum, value) in vector.iter_mut().zip(row) {
                *sum += weight * f32::from(*value);
            }
        }
        let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
        if length > f32::EPSILON {
            vector.iter_mut().for_each(|value| *value /= length);
        }
        vector
    }

    fn read(reader: &mut FieldReader<'_>, count: usize) -> Result<Self, SearchModelError> {
        let sides = reader.length(2)?;
        let field_weights = reader.fields()?;
        let text_length = reader.length(MAX_STEMS * 64)?;
        let text = std::str::from_utf8(reader.take(text_length)?).map_err(|_| SearchModelError::Damaged)?;
        let stems: Vec<Box<str>> = text.split('\n').map(Box::from).collect();
        let idf = reader.floats(count)?;
        let query = reader.rows(count)?;
        let symbol = if sides == 2 { Some(reader.rows(count)?) } else { None };
        if stems.len() != count {
            return Err(SearchModelError::Damaged);
        }
        Self::new(stems, idf, query, symbol, field_weights).ok_or(SearchModelError::Damaged)
    }

    fn write(&self, bytes: &mut Vec<u8>) {
        put_number(bytes, if self.symbol.is_some() { 2 } else { 1 });
        put_floats(bytes, &self.field_weights);
        let text = self.stems.join("\n");
        put_number(bytes, text.len());
        bytes.extend(text.as_bytes());
        put_floats(bytes, &self.idf);
        for rows in [Some(&self.query), self.symbol.as_ref()].into_iter().flatten() {
            put_floats(bytes, &rows.scales);
            bytes.extend(rows.values.iter().map(|value| value.cast_unsigned()));
        }
    }
}

impl QuantizedRows {
    /// Vectors, one after the other, each scaled so that its largest number is 127.
    pub fn quantize(vectors: &[f32]) -> Self {
        let mut rows = Self::default();
        for vector in vectors.chunks_exact(DIMENSIONS) {
            let largest = vector.iter().fold(0.0, |largest: f32, value| largest.max(value.abs()));
            let scale = if largest > 0.0 { largest / 127.0 } else { 1.0 };
            rows.scales.push(scale);
            // The quotient is between -127 and 127.
            rows.values.extend(vector.iter().map(|value| (value / scale).round() as i8));
        }
        rows
    }
}

impl LearnedRanker {
    /// The score of a symbol with these features: more is better.
    pub fn score(&self, features: &[f32; FEATURE_COUNT]) -> f32 {
        let mut input = [0.0; FEATURE_COUNT];
        for (at, input) in input.iter_mut().enumerate() {
            *input = (features[at] - self.means[at]) * self.scales[at];
        }
        let units = self.hidden.chunks_exact(FEATURE_COUNT).zip(&self.hidden_bias).zip(&self.output);
        let sum = units.map(|((weights, bias), output)| {
            let sum: f32 = weights.iter().zip(&input).map(|(weight, input)| weight * input).sum();
            (sum + bias).max(0.0) * output
        });
        sum.sum::<f32>() + self.output_bias
    }

    fn read(reader: &mut FieldReader<'_>, hidden: usize) -> Result<Self, SearchModelError> {
        Ok(Self {
            means: reader.floats(FEATURE_COUNT)?,
            scales: reader.floats(FEATURE_COUNT)?,
            hidden: reader.floats(FEATURE_COUNT * hidden)?,
            hidden_bias: reader.floats(hidden)?,
            output: reader.floats(hidden)?,
            output_bias: reader.float()?,
        })
    }
}

/// Weight of the occurrences of a stem in a field with this number of stems: a long body does not drown a name.
pub fn field_weight(count: u16, length: u16) -> f32 {
    f32::from(count).ln_1p() / (1.0 + f32::from(length)).sqrt()
}

/// The parts of a file that are still to be read.
struct FieldReader<'a> {
    rest: &'a [u8],
}

impl<'a> FieldReader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], SearchModelError> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(SearchModelError::Damaged)?;
        self.rest = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u32, SearchModelError> {
        let bytes = self.take(4)?.try_into().map_err(|_| SearchModelError::Damaged)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn length(&mut self, most: usize) -> Result<usize, SearchModelError> {
        let length = self.number()? as usize;
        if length <= most { Ok(length) } else { Err(SearchModelError::Damaged) }
    }

    fn float(&mut self) -> Result<f32, SearchModelError> {
        let value = f32::from_bits(self.number()?);
        if value.is_finite() { Ok(value) } else { Err(SearchModelError::Damaged) }
    }

    fn floats(&mut self, count: usize) -> Result<Vec<f32>, SearchModelError> {
        if self.rest.len() / 4 < count {
            return Err(SearchModelError::Damaged);
        }
        (0..count).map(|_| self.float()).collect()
    }

    fn fields(&mut self) -> Result<[f32; FIELD_COUNT], SearchModelError> {
        self.floats(FIELD_COUNT)?.try_into().map_err(|_| SearchModelError::Damaged)
    }

    fn rows(&mut self, count: usize) -> Result<QuantizedRows, SearchModelError> {
        let scales = self.floats(count)?;
        let values = self.take(count * DIMENSIONS)?.iter().map(|byte| byte.cast_signed()).collect();
        Ok(QuantizedRows { scales, values })
    }
}

fn put_number(bytes: &mut Vec<u8>, number: usize) {
    bytes.extend(u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
}

fn put_floats(bytes: &mut Vec<u8>, floats: &[f32]) {
    for float in floats {
        bytes.extend(float.to_le_bytes());
    }
}
