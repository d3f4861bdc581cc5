//! What the program promises, tested through the binary as people and agents run it.

#![recursion_limit = "256"]
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "what helps a test is a test too")]
#![allow(clippy::disallowed_methods, reason = "tests start programs, and set up what they see")]

mod acp;
mod agent;
mod agent_cancel;
mod agent_chat;
mod agent_crash;
mod agent_wire;
mod api;
mod api_answers;
mod api_client;
mod api_keys;
mod api_limits;
mod api_rules;
mod api_walls;
mod approval_table;
mod audit;
mod browser;
mod cli;
mod config;
#[path = "../../../ringfence-fs/tests/it/cpu_share.rs"]
mod cpu_share;
mod crash;
mod elevated;
mod example;
mod first_steps;
mod foreign;
mod foreign_jail;
mod fuzz;
mod launched;
mod leaks;
mod mcp;
mod mcp_approval;
mod mcp_client;
mod mcp_files;
mod mcp_http;
mod mcp_races;
mod mcp_size;
mod mcp_soak;
mod mcp_traps;
mod openapi;
mod page;
mod page_pictures;
mod policy;
mod processes;
mod reference;
mod run_code;
mod run_code_git;
mod run_code_groups;
mod runs;
mod seed_crewagent;
mod site;
#[allow(dead_code, reason = "the fence's own tests hold more than these")]
#[path = "../../../ringfence-fs/tests/it/slow.rs"]
mod slow;
mod state_fixture;
mod store;
#[path = "../../../ringfence-kernel/tests/it/store_suite.rs"]
mod store_suite;
mod strangers;
mod swapped;
mod terminal;
mod token_reuse;
mod undo;
mod web;
