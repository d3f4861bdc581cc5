//! Symbols of each language, bounds, and ranking.

mod bounds;
mod languages;
mod ranking;
