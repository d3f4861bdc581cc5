//! Tests, formatters and packages of a project.
//!
//! Which runner a project has, the command that makes it write a report, and the report within limits: it was written by
//! programs of the project. Everything runs in the jail.
//!
//! Not here: the jail (`ringfence-sandbox`), and the files.

mod arguments;
mod detect;
mod format_code;
mod formatter;
mod go_report;
mod install_package;
mod install_review;
mod js_reports;
mod junit;
mod junit_runners;
mod libtest;
mod lockfile;
mod package_manager;
mod package_registry;
mod package_spec;
mod project_files;
mod report_files;
mod report_text;
mod run_tests;
mod source_paths;
mod stack_trace;
mod test_report;
mod test_runner;
mod verdict;
mod well_known_packages;

use std::sync::Arc;

use ringfence_kernel::{Dialect, DuplicateToolError, ToolBinding, ToolRegistry, Workspace};
use ringfence_sandbox::ProgramRunner;

use crate::format_code::{FormatCodeArgs, FormatCodeReply, FormatCodeTool};
use crate::install_package::{InstallPackageArgs, InstallPackageReply, InstallPackageTool};
pub use crate::package_registry::{PackageRegistries, PackageRegistry, RegistryConfigError};
use crate::run_tests::{RunTestsArgs, RunTestsReply, RunTestsTool};

/// The parts of the tools.
#[derive(Debug)]
pub struct ProjectSetup {
    /// Runs programs of the project in jails.
    pub runner: Arc<ProgramRunner>,
    /// The files that they see.
    pub workspace: Arc<dyn Workspace>,
    /// The config of the user.
    pub settings: ProjectSettings,
}

/// What the config says about projects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProjectSettings {
    /// The name of a test runner, or a command line that runs the tests.
    pub test: Option<String>,
    /// The name of the formatter of the files that it can format.
    pub format: Option<String>,
    /// Where packages come from.
    pub registries: PackageRegistries,
}

/// The toolset of the tools: sessions are offered them on request.
pub const PROJECT_TOOLSET: &str = "project";

/// Gives the tools to a registry.
pub fn register(registry: &mut ToolRegistry, setup: ProjectSetup) -> Result<(), DuplicateToolError> {
    let ProjectSetup { runner, workspace, settings } = setup;
    registry.register(
        RunTestsTool { runner: Arc::clone(&runner), workspace: Arc::clone(&workspace), setting: settings.test },
        [
            ToolBinding::standard_with_text::<RunTestsArgs, RunTestsReply>("run_tests").in_toolset(PROJECT_TOOLSET),
            ToolBinding::model::<RunTestsArgs, RunTestsReply>(Dialect::Claude, "run_tests").in_toolset(PROJECT_TOOLSET),
            ToolBinding::model::<RunTestsArgs, RunTestsReply>(Dialect::Codex, "run_tests").in_toolset(PROJECT_TOOLSET),
            ToolBinding::model::<RunTestsArgs, RunTestsReply>(Dialect::Gemini, "run_tests").in_toolset(PROJECT_TOOLSET),
        ],
    )?;
    registry.register(
        InstallPackageTool {
            runner: Arc::clone(&runner),
            workspace: Arc::clone(&workspace),
            registries: settings.registries,
        },
        [
            ToolBinding::standard_with_text::<InstallPackageArgs, InstallPackageReply>("install_package")
                .in_toolset(PROJECT_TOOLSET),
            ToolBinding::model::<InstallPackageArgs, InstallPackageReply>(Dialect::Claude, "install_package")
                .in_toolset(PROJECT_TOOLSET),
            ToolBinding::model::<InstallPackageArgs, InstallPackageReply>(Dialect::Codex, "install_package")
                .in_toolset(PROJECT_TOOLSET),
            ToolBinding::model::<InstallPackageArgs, InstallPackageReply>(Dialect::Gemini, "install_package")
                .in_toolset(PROJECT_TOOLSET),
        ],
    )?;
    registry.register(
        FormatCodeTool { runner, workspace, setting: settings.format },
        [
            ToolBinding::standard_with_text::<FormatCodeArgs, FormatCodeReply>("format_code")
                .in_toolset(PROJECT_TOOLSET),
            ToolBinding::model::<FormatCodeArgs, FormatCodeReply>(Dialect::Claude, "format_code")
                .in_toolset(PROJECT_TOOLSET),
            ToolBinding::model::<FormatCodeArgs, FormatCodeReply>(Dialect::Codex, "format_code")
                .in_toolset(PROJECT_TOOLSET),
            ToolBinding::model::<FormatCodeArgs, FormatCodeReply>(Dialect::Gemini, "format_code")
                .in_toolset(PROJECT_TOOLSET),
        ],
    )
}
