//! Fitting of the learned ranker: one hidden layer over the features of candidates, by the probability of the symbol that was
//! meant among them (listwise softmax).
//!
//! The same lists give the same ranker to the bit.
//!
//! Not here: the features and the ranker itself, which the crate has that searches.

use ringfence_code_search::{FEATURE_COUNT, LearnedRanker};

use super::random::SplitMix64;
use super::table::{AdamStep, as_f32, in_two};

const HIDDEN: usize = 24;
const PARAMETERS: usize = HIDDEN * FEATURE_COUNT + HIDDEN + HIDDEN;
const EPOCHS: usize = 30;
const BATCH: usize = 32;
const RATE: f32 = 0.004;
const SEED: u64 = 21;

/// The candidates of a query, and which of them was meant.
#[derive(Clone, Debug)]
pub(crate) struct RankedList {
    pub(crate) features: Vec<[f32; FEATURE_COUNT]>,
    pub(crate) meant: usize,
}

/// Fits a ranker.
pub(crate) fn fit_ranker(lists: &[RankedList], mut report: impl FnMut(usize, f32)) -> LearnedRanker {
    let (means, scales) = standardization(lists);
    let lists: Vec<RankedList> = lists
        .iter()
        .map(|list| RankedList {
            features: list
                .features
                .iter()
                .map(|row| std::array::from_fn(|at| (row[at] - means[at]) * scales[at]))
                .collect(),
            meant: list.meant,
        })
        .collect();
    let mut random = SplitMix64::new(SEED);
    let mut weights = Vec::with_capacity(PARAMETERS);
    let spread = (2.0 / as_f32(FEATURE_COUNT)).sqrt();
    weights.extend((0..HIDDEN * FEATURE_COUNT).map(|_| spread * random.signed()));
    weights.extend([0.0; HIDDEN]);
    weights.extend((0..HIDDEN).map(|_| random.signed() / as_f32(HIDDEN).sqrt()));
    let mut first = vec![0.0; PARAMETERS];
    let mut second = vec![0.0; PARAMETERS];
    let mut order: Vec<usize> = (0..lists.len()).collect();
    let last_step = EPOCHS * lists.len().div_ceil(BATCH);
    let mut step = 0;
    for epoch in 0..EPOCHS {
        random.shuffle(&mut order);
        let mut loss = 0.0;
        for batch in order.chunks(BATCH) {
            step += 1;
            let left = 1.0 - as_f32(step) / as_f32(last_step + 1);
            let adam = AdamStep::new(RATE * left, i32::try_from(step).unwrap_or(i32::MAX));
            let parts = in_two(batch, |_, list| gradient(&weights, &lists[*list]));
            let mut sum = vec![0.0; PARAMETERS];
            for (part, part_loss) in &parts {
                sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part / as_f32(batch.len()));
                loss += part_loss;
            }
            for (at, gradient) in sum.into_iter().enumerate() {
                adam.apply(&mut weights[at], gradient, &mut first[at], &mut second[at]);
            }
        }
        report(epoch, loss / as_f32(lists.len().max(1)));
    }
    let (hidden, rest) = weights.split_at(HIDDEN * FEATURE_COUNT);
    let (hidden_bias, output) = rest.split_at(HIDDEN);
    LearnedRanker {
        means: means.to_vec(),
        scales: scales.to_vec(),
        hidden: hidden.to_vec(),
        hidden_bias: hidden_bias.to_vec(),
        output: output.to_vec(),
        output_bias: 0.0,
    }
}

/// Mean and inverse deviation of each feature; one that is always the same is left out.
fn standardization(lists: &[RankedList]) -> ([f32; FEATURE_COUNT], [f32; FEATURE_COUNT]) {
    let rows: Vec<&[f32; FEATURE_COUNT]> = lists.iter().flat_map(|list| &list.features).collect();
    let count = f64::from(u32::try_from(rows.len().max(1)).unwrap_or(u32::MAX));
    let mean = |value: &dyn Fn(&[f32; FEATURE_COUNT]) -> f64| rows.iter().map(|row| value(row)).sum::<f64>() / count;
    let means: [f64; FEATURE_COUNT] = std::array::from_fn(|at| mean(&|row| f64::from(row[at])));
    let scales = std::array::from_fn(|at| {
        let variance = mean(&|row| (f64::from(row[at]) - means[at]).powi(2));
        if variance > 1e-9 { narrow(1.0 / variance.sqrt()) } else { 0.0 }
    });
    (means.map(narrow), scales)
}

#[expect(clippy::cast_possible_truncation, reason = "features and their deviations are small numbers")]
fn narrow(value: f64) -> f32 {
    value as f32
}

/// The gradient of the loss of a list, and the loss.
fn gradient(weights: &[f32], list: &RankedList) -> (Vec<f32>, f32) {
    let (hidden, rest) = weights.split_at(HIDDEN * FEATURE_COUNT);
    let (bias, output) = rest.split_at(HIDDEN);
    let activations: Vec<[f32; HIDDEN]> = list
        .features
        .iter()
        .map(|row| {
            std::array::from_fn(|unit| {
                let weights = &hidden[unit * FEATURE_COUNT..][..FEATURE_COUNT];
                let sum: f32 = weights.iter().zip(row).map(|(weight, value)| weight * value).sum();
                (sum + bias[unit]).max(0.0)
            })
        })
        .collect();
    let mut errors: Vec<f32> =
        activations.iter().map(|units| units.iter().zip(output).map(|(unit, weight)| unit * weight).sum()).collect();
    let most = errors.iter().copied().fold(f32::MIN, f32::max);
    errors.iter_mut().for_each(|score| *score = (*score - most).exp());
    let sum: f32 = errors.iter().sum();
    errors.iter_mut().for_each(|score| *score /= sum);
    let loss = -errors[list.meant].max(1e-12).ln();
    errors[list.meant] -= 1.0;
    let mut gradient = vec![0.0; PARAMETERS];
    for ((row, units), error) in list.features.iter().zip(&activations).zip(&errors) {
        for unit in 0..HIDDEN {
            if units[unit] <= 0.0 {
                continue;
            }
            gradient[HIDDEN * FEATURE_COUNT + HIDDEN + unit] += error * units[unit];
            let back = error * output[unit];
            gradient[HIDDEN * FEATURE_COUNT + unit] += back;
            let to_weights = &mut gradient[unit * FEATURE_COUNT..][..FEATURE_COUNT];
            to_weights.iter_mut().zip(row).for_each(|(sum, value)| *sum += back * value);
        }
    }
    (gradient, loss)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The symbol that is meant has the most of two features together; the others are noise.
    fn lists() -> Vec<RankedList> {
        let mut random = SplitMix64::new(5);
        let list = |_| {
            let features: Vec<[f32; FEATURE_COUNT]> =
                (0..12).map(|_| std::array::from_fn(|at| if at == 5 { 1.0 } else { random.signed() })).collect();
            let score = |row: &[f32; FEATURE_COUNT]| row[0] + row[3];
            let meant = (0..12).max_by(|a, b| score(&features[*a]).total_cmp(&score(&features[*b])));
            RankedList { features, meant: meant.unwrap() }
        };
        (0..300).map(list).collect()
    }

    #[test]
    fn a_ranker_learns_which_features_tell() {
        let lists = lists();
        let (fitted, held_out) = lists.split_at(240);
        let mut losses = Vec::new();
        let ranker = fit_ranker(fitted, |_, loss| losses.push(loss));
        assert!(losses.last().unwrap() < &(losses[0] / 2.0), "{losses:?}");
        let found = |list: &&RankedList| {
            let score = |at: &usize| ranker.score(&list.features[*at]);
            (0..12).max_by(|a, b| score(a).total_cmp(&score(b))) == Some(list.meant)
        };
        let right = held_out.iter().filter(found).count();
        assert!(right > 40, "{right} of {}", held_out.len());
    }

    #[test]
    fn the_same_lists_give_the_same_ranker_to_the_bit() {
        assert_eq!(fit_ranker(&lists(), |_, _| {}), fit_ranker(&lists(), |_, _| {}));
    }
}
