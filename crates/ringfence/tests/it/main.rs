//! What the program promises, tested through the binary as people and agents run it.

mod cli;
mod config;
mod crash;
mod leaks;
mod processes;
mod site;
