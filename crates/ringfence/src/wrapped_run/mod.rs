//! Wrapped runs: a whole agent in the jail, at the person's terminal.

#[cfg(test)]
mod filter_tests;
#[cfg(test)]
mod fuzz;
mod output_filter;
mod person_terminal;
#[cfg(test)]
mod relay_fixture;
mod relay_loop;
mod relay_signals;
#[cfg(test)]
mod relay_tests;
mod sequence_policy;
mod terminal_modes;
mod terminal_relay;
