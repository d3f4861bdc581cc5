//! Contrastive training of the static embedding table (InfoNCE).
//!
//! A query and a symbol are weighted sums of rows, one table for each side; a batch has runs of pairs of one package, so a
//! symbol's neighbours are its negatives. Two workers share a batch by rows of the table and by pairs, whatever the machine
//! has, so the same pairs give the same table to the bit.
//!
//! Not here: the pairs (`pairs.rs`), and the file format, which the crate has that reads it.

use std::thread;

use ringfence_code_search::{DIMENSIONS, FIELD_COUNT};

use super::random::SplitMix64;

const WORKERS: usize = 2;
const SEED: u64 = 21;

/// A stem of a symbol with what it counts in each field (`field_weight`).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WeightedStem {
    pub(crate) stem: u32,
    pub(crate) fields: [f32; FIELD_COUNT],
}

/// A query and the symbol that it describes, as numbers of stems.
#[derive(Clone, Debug)]
pub(crate) struct TrainingPair {
    /// Pairs of a package have one number, and are consecutive.
    pub(crate) package: u32,
    pub(crate) query: Vec<u32>,
    pub(crate) symbol: Vec<WeightedStem>,
}

#[derive(Clone, Debug)]
pub(crate) struct TableSettings {
    pub(crate) stems: usize,
    pub(crate) epochs: usize,
    pub(crate) batch: usize,
    /// Consecutive pairs of one package in a batch.
    pub(crate) run: usize,
    pub(crate) rate: f32,
    pub(crate) temperature: f32,
}

/// A trained table, in full precision.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TrainedTable {
    /// A row for each stem, for queries.
    pub(crate) queries: Vec<f32>,
    /// A row for each stem, for symbols.
    pub(crate) symbols: Vec<f32>,
    /// What a field of a symbol counts.
    pub(crate) fields: [f32; FIELD_COUNT],
}

/// Rows of a table with their moments (Adam); a worker has the rows with the numbers `worker + n * WORKERS`.
struct RowShard {
    rows: Vec<f32>,
    gradient: Vec<f32>,
    first: Vec<f32>,
    second: Vec<f32>,
    touched: Vec<u32>,
    is_touched: Vec<bool>,
}

struct ShardedTable {
    shards: Vec<RowShard>,
}

/// A normalised vector and the length that it had.
struct UnitVector {
    direction: [f32; DIMENSIONS],
    length: f32,
}

/// A step of Adam: the rate and the corrections of its moments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdamStep {
    rate: f32,
    first_correction: f32,
    second_correction: f32,
}

const FIRST_DECAY: f32 = 0.9;
const SECOND_DECAY: f32 = 0.99;

impl AdamStep {
    pub(crate) fn new(rate: f32, step: i32) -> Self {
        Self { rate, first_correction: 1.0 - FIRST_DECAY.powi(step), second_correction: 1.0 - SECOND_DECAY.powi(step) }
    }

    pub(crate) fn apply(self, value: &mut f32, gradient: f32, first: &mut f32, second: &mut f32) {
        *first += (1.0 - FIRST_DECAY) * (gradient - *first);
        *second += (1.0 - SECOND_DECAY) * (gradient * gradient - *second);
        let second = *second / self.second_correction;
        *value -= self.rate * (*first / self.first_correction) / (second.sqrt() + 1e-8);
    }
}

impl RowShard {
    fn row_index(stem: u32) -> usize {
        (stem as usize / WORKERS) * DIMENSIONS
    }

    fn add_gradient(&mut self, stem: u32, weight: f32, gradient: &[f32; DIMENSIONS]) {
        let number = stem as usize / WORKERS;
        if !self.is_touched[number] {
            self.is_touched[number] = true;
            self.touched.push(stem);
        }
        let at = Self::row_index(stem);
        for (sum, part) in self.gradient[at..at + DIMENSIONS].iter_mut().zip(gradient) {
            *sum += weight * part;
        }
    }

    /// Moves the rows that have a gradient.
    fn update(&mut self, step: AdamStep) {
        for stem in self.touched.drain(..) {
            self.is_touched[stem as usize / WORKERS] = false;
            let at = Self::row_index(stem);
            for index in at..at + DIMENSIONS {
                let gradient = std::mem::take(&mut self.gradient[index]);
                step.apply(&mut self.rows[index], gradient, &mut self.first[index], &mut self.second[index]);
            }
        }
    }
}

impl ShardedTable {
    fn new(rows: &[f32], stems: usize) -> Self {
        let in_shard = stems.div_ceil(WORKERS);
        let shard = |worker: usize| {
            let mut own = vec![0.0; in_shard * DIMENSIONS];
            for stem in (worker..stems).step_by(WORKERS) {
                let at = (stem / WORKERS) * DIMENSIONS;
                own[at..at + DIMENSIONS].copy_from_slice(&rows[stem * DIMENSIONS..][..DIMENSIONS]);
            }
            let zeros = vec![0.0; own.len()];
            RowShard {
                rows: own,
                gradient: zeros.clone(),
                first: zeros.clone(),
                second: zeros,
                touched: Vec::new(),
                is_touched: vec![false; in_shard],
            }
        };
        Self { shards: (0..WORKERS).map(shard).collect() }
    }

    fn row(&self, stem: u32) -> &[f32] {
        &self.shards[stem as usize % WORKERS].rows[RowShard::row_index(stem)..][..DIMENSIONS]
    }

    fn add_to(&self, stem: u32, weight: f32, sum: &mut [f32; DIMENSIONS]) {
        for (sum, value) in sum.iter_mut().zip(self.row(stem)) {
            *sum += weight * value;
        }
    }

    fn into_rows(self, stems: usize) -> Vec<f32> {
        let mut rows = Vec::with_capacity(stems * DIMENSIONS);
        for stem in 0..stems {
            let at = (stem / WORKERS) * DIMENSIONS;
            rows.extend_from_slice(&self.shards[stem % WORKERS].rows[at..at + DIMENSIONS]);
        }
        rows
    }
}

impl UnitVector {
    fn new(sum: [f32; DIMENSIONS]) -> Self {
        let length = dot(&sum, &sum).sqrt().max(1e-6);
        Self { direction: sum.map(|value| value / length), length }
    }

    /// The gradient of the sum for a gradient of the direction.
    fn back(&self, gradient: &[f32; DIMENSIONS]) -> [f32; DIMENSIONS] {
        let along = dot(&self.direction, gradient);
        std::array::from_fn(|at| (gradient[at] - along * self.direction[at]) / self.length)
    }
}

/// Trains a table. `initial_lengths` has a length for each stem: rare stems say more.
pub(crate) fn train_table(
    pairs: &[TrainingPair],
    initial_lengths: &[f32],
    settings: &TableSettings,
    mut report: impl FnMut(usize, f32),
) -> TrainedTable {
    let mut random = SplitMix64::new(SEED);
    let initial = initial_rows(initial_lengths, &mut random);
    // Both sides begin alike: a stem matches itself before anything is learned.
    let mut queries = ShardedTable::new(&initial, settings.stems);
    let mut symbols = ShardedTable::new(&initial, settings.stems);
    let mut fields = FieldWeights::new();
    let runs = package_runs(pairs, settings.run);
    let batches_in_epoch = runs.len().div_ceil(settings.batch / settings.run).max(1);
    let last_step = settings.epochs * batches_in_epoch;
    let mut step = 0;
    for epoch in 0..settings.epochs {
        let mut order = runs.clone();
        random.shuffle(&mut order);
        let mut loss = 0.0;
        for batch in order.chunks(settings.batch / settings.run) {
            let batch: Vec<&TrainingPair> = batch.iter().flat_map(|run| &pairs[run.0..run.1]).collect();
            step += 1;
            let left = 1.0 - as_f32(step) / as_f32(last_step + 1);
            let adam = AdamStep::new(settings.rate * left, i32::try_from(step).unwrap_or(i32::MAX));
            loss += train_batch(&batch, &mut queries, &mut symbols, &mut fields, settings.temperature, adam);
        }
        report(epoch, loss / as_f32(batches_in_epoch));
    }
    TrainedTable {
        queries: queries.into_rows(settings.stems),
        symbols: symbols.into_rows(settings.stems),
        fields: fields.values(),
    }
}

fn initial_rows(lengths: &[f32], random: &mut SplitMix64) -> Vec<f32> {
    let mut rows = Vec::with_capacity(lengths.len() * DIMENSIONS);
    for length in lengths {
        let row = UnitVector::new(std::array::from_fn(|_| random.signed()));
        rows.extend(row.direction.map(|value| value * length));
    }
    rows
}

/// Ranges of consecutive pairs of one package, of at most this many.
fn package_runs(pairs: &[TrainingPair], run: usize) -> Vec<(usize, usize)> {
    let mut runs = Vec::new();
    let mut start = 0;
    for at in 1..=pairs.len() {
        let ends = at == pairs.len() || pairs[at].package != pairs[start].package || at - start == run;
        if ends {
            runs.push((start, at));
            start = at;
        }
    }
    runs
}

/// Weights of fields, learned as logarithms.
struct FieldWeights {
    logarithms: [f32; FIELD_COUNT],
    first: [f32; FIELD_COUNT],
    second: [f32; FIELD_COUNT],
}

impl FieldWeights {
    fn new() -> Self {
        Self { logarithms: [0.0; FIELD_COUNT], first: [0.0; FIELD_COUNT], second: [0.0; FIELD_COUNT] }
    }

    fn values(&self) -> [f32; FIELD_COUNT] {
        self.logarithms.map(f32::exp)
    }

    fn update(&mut self, gradient: &[f32; FIELD_COUNT], step: AdamStep) {
        let values = self.values();
        for at in 0..FIELD_COUNT {
            step.apply(&mut self.logarithms[at], gradient[at] * values[at], &mut self.first[at], &mut self.second[at]);
        }
    }
}

/// What a stem counts in a symbol.
fn stem_weight(stem: &WeightedStem, fields: &[f32; FIELD_COUNT]) -> f32 {
    stem.fields.iter().zip(fields).map(|(value, weight)| value * weight).sum()
}

/// One step of training; the loss before it.
fn train_batch(
    batch: &[&TrainingPair],
    queries: &mut ShardedTable,
    symbols: &mut ShardedTable,
    fields: &mut FieldWeights,
    temperature: f32,
    step: AdamStep,
) -> f32 {
    let weights = fields.values();
    let sides = in_two(batch, |_, pair| {
        let mut query = [0.0; DIMENSIONS];
        for stem in &pair.query {
            queries.add_to(*stem, 1.0, &mut query);
        }
        let mut symbol = [0.0; DIMENSIONS];
        for stem in &pair.symbol {
            symbols.add_to(stem.stem, stem_weight(stem, &weights), &mut symbol);
        }
        (UnitVector::new(query), UnitVector::new(symbol))
    });
    // A row for each query: the probability of each symbol, less what it should be.
    let errors = in_two(&sides, |at, (query, _)| softmax_error(at, query, &sides, temperature));
    let loss = errors.iter().map(|(_, loss)| loss).sum::<f32>() / as_f32(batch.len());
    let scale = 1.0 / (temperature * as_f32(batch.len()));
    let gradients = in_two(&sides, |at, (query, symbol)| {
        let mut to_query = [0.0; DIMENSIONS];
        let mut to_symbol = [0.0; DIMENSIONS];
        for (other, (other_query, other_symbol)) in sides.iter().enumerate() {
            add_scaled(&mut to_query, scale * errors[at].0[other], &other_symbol.direction);
            add_scaled(&mut to_symbol, scale * errors[other].0[at], &other_query.direction);
        }
        (query.back(&to_query), symbol.back(&to_symbol))
    });
    let mut field_gradient = [0.0; FIELD_COUNT];
    let to_fields = in_two(batch, |at, pair| field_gradient_of(pair, &gradients[at].1, symbols));
    for part in &to_fields {
        add_scaled(&mut field_gradient, 1.0, part);
    }
    thread::scope(|scope| {
        for (worker, (query_shard, symbol_shard)) in queries.shards.iter_mut().zip(&mut symbols.shards).enumerate() {
            let (gradients, weights) = (&gradients, &weights);
            scope.spawn(move || {
                for (pair, (to_query, to_symbol)) in batch.iter().zip(gradients) {
                    for stem in pair.query.iter().filter(|stem| **stem as usize % WORKERS == worker) {
                        query_shard.add_gradient(*stem, 1.0, to_query);
                    }
                    for stem in pair.symbol.iter().filter(|stem| stem.stem as usize % WORKERS == worker) {
                        symbol_shard.add_gradient(stem.stem, stem_weight(stem, weights), to_symbol);
                    }
                }
                query_shard.update(step);
                symbol_shard.update(step);
            });
        }
    });
    fields.update(&field_gradient, step);
    loss
}

fn softmax_error(
    at: usize,
    query: &UnitVector,
    sides: &[(UnitVector, UnitVector)],
    temperature: f32,
) -> (Vec<f32>, f32) {
    let mut row: Vec<f32> =
        sides.iter().map(|(_, symbol)| dot(&query.direction, &symbol.direction) / temperature).collect();
    let most = row.iter().copied().fold(f32::MIN, f32::max);
    row.iter_mut().for_each(|value| *value = (*value - most).exp());
    let sum: f32 = row.iter().sum();
    row.iter_mut().for_each(|value| *value /= sum);
    let loss = -row[at].max(1e-12).ln();
    row[at] -= 1.0;
    (row, loss)
}

fn field_gradient_of(pair: &TrainingPair, gradient: &[f32; DIMENSIONS], symbols: &ShardedTable) -> [f32; FIELD_COUNT] {
    let mut sum = [0.0; FIELD_COUNT];
    for stem in &pair.symbol {
        let along = symbols.row(stem.stem).iter().zip(gradient).map(|(a, b)| a * b).sum::<f32>();
        add_scaled(&mut sum, along, &stem.fields);
    }
    sum
}

/// Maps items on two threads, in their order.
pub(crate) fn in_two<T: Sync, R: Send>(items: &[T], map: impl Fn(usize, &T) -> R + Sync) -> Vec<R> {
    let mut parts: Vec<_> = thread::scope(|scope| {
        let start = |worker: usize| {
            let map = &map;
            let own = items.iter().enumerate().skip(worker).step_by(WORKERS);
            scope.spawn(move || own.map(|(at, item)| map(at, item)).collect::<Vec<R>>())
        };
        let workers: Vec<_> = (0..WORKERS).map(start).collect();
        let join = |worker: thread::ScopedJoinHandle<'_, Vec<R>>| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).into_iter()
        };
        workers.into_iter().map(join).collect()
    });
    (0..items.len()).filter_map(|at| parts[at % WORKERS].next()).collect()
}

/// In eight lanes, which the compiler keeps in vector registers.
fn dot(a: &[f32; DIMENSIONS], b: &[f32; DIMENSIONS]) -> f32 {
    let mut lanes = [0.0; 8];
    for (a, b) in a.chunks_exact(8).zip(b.chunks_exact(8)) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += a * b;
        }
    }
    lanes.iter().sum()
}

fn add_scaled<const N: usize>(sum: &mut [f32; N], weight: f32, part: &[f32; N]) {
    for (sum, part) in sum.iter_mut().zip(part) {
        *sum += weight * part;
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of batches and pairs are far below 2^24")]
pub(crate) fn as_f32(count: usize) -> f32 {
    count as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Queries in other words than their symbols: only training can match them.
    fn paraphrases() -> Vec<TrainingPair> {
        let mut pairs = Vec::new();
        for package in 0..8 {
            for concept in 0..16_u32 {
                let fields = [1.0, 0.0, 0.0, 0.0, 0.0];
                let noise = WeightedStem { stem: 32 + (concept * 7 + package) % 8, fields: [0.0, 0.0, 0.0, 0.0, 0.5] };
                pairs.push(TrainingPair {
                    package,
                    query: vec![concept],
                    symbol: vec![WeightedStem { stem: 16 + concept, fields }, noise],
                });
            }
        }
        pairs
    }

    fn settings() -> TableSettings {
        TableSettings { stems: 40, epochs: 60, batch: 32, run: 16, rate: 0.02, temperature: 0.1 }
    }

    #[test]
    fn training_matches_words_that_never_occur_together() {
        let mut losses = Vec::new();
        let table = train_table(&paraphrases(), &[1.0; 40], &settings(), |_, loss| losses.push(loss));
        assert!(losses.last().unwrap() < &1.0 && losses[0] > 2.0, "{losses:?}");
        assert!(table.fields[0] > table.fields[4], "{:?}", table.fields);
        let row = |rows: &[f32], stem: usize| {
            UnitVector::new(std::array::from_fn(|at| rows[stem * DIMENSIONS + at])).direction
        };
        for concept in 0..16 {
            let query = row(&table.queries, concept);
            let best = (16..32)
                .max_by(|a, b| dot(&query, &row(&table.symbols, *a)).total_cmp(&dot(&query, &row(&table.symbols, *b))));
            assert_eq!(best, Some(16 + concept));
        }
    }

    #[test]
    fn the_same_pairs_give_the_same_table_to_the_bit() {
        let train = || train_table(&paraphrases(), &[1.0; 40], &settings(), |_, _| {});
        assert_eq!(train(), train());
    }

    #[test]
    fn a_run_has_pairs_of_one_package() {
        let runs = package_runs(&paraphrases(), 10);
        assert_eq!(runs[..4], [(0, 10), (10, 16), (16, 26), (26, 32)]);
        assert_eq!(runs.last(), Some(&(122, 128)));
    }
}
