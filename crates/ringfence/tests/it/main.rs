//! Integration tests of the program, through the binary as people and agents run it.

#![recursion_limit = "256"]
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "what helps a test is a test too")]
#![allow(clippy::disallowed_methods, reason = "tests start programs, and set up what they see")]

mod acp;
mod agent;
mod agent_cancel;
mod agent_chat;
mod agent_crash;
mod agent_requests;
mod api;
mod api_approvals;
mod api_client;
mod api_idempotency;
mod api_isolation;
mod api_limits;
mod api_policy;
mod approval_table;
mod audit;
mod browser;
mod cli;
mod commands;
mod concurrent_processes;
mod config;
mod crash;
mod doc_examples;
mod fuzz;
mod git_remote;
mod git_tools;
mod git_vectors;
mod habitual_calls;
mod host_path_leaks;
mod mcp;
mod mcp_approval;
mod mcp_files;
mod mcp_http;
mod mcp_malformed_input;
mod mcp_races;
mod mcp_run_code;
mod mcp_servers;
mod mcp_servers_jail;
mod mcp_size;
mod mcp_soak;
mod openapi;
mod page;
mod page_cards;
mod page_screenshots;
mod policy;
mod program_launcher;
mod project_tools;
mod reference;
mod run_code;
mod run_code_git;
mod run_code_groups;
mod seed_crewagent;
mod setuid;
mod setup_commands;
mod site;
mod state_fixture;
mod store;
mod terminal;
mod terminal_escapes;
mod token_reuse;
mod undo;
mod web;
mod workflow_runs;
