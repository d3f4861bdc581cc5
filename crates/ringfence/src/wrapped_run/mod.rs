//! Wrapped runs: a whole agent in the jail, at the person's terminal.

#[cfg(test)]
mod filter_tests;
#[cfg(test)]
mod fuzz;
mod output_filter;
mod sequence_policy;
mod terminal_modes;
