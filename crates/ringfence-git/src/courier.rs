//! Courier: git with network and a credential, in a jail without the workspace.
//!
//! Its repository is made there, with settings of ours and without hooks. Of the workspace it has the objects alone, to be
//! read. So no setting of the workspace decides where it connects or what it runs, and no code of the workspace is in the
//! jail that has the token.
//!
//! Not here: what is sent or kept (`push.rs`, `fetch.rs`).

use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::fd::OwnedFd;

use ringfence_kernel::{CallContext, ToolError, WorkspaceView};
use ringfence_sandbox::{JailFile, JailProgram, ProgramReport, empty_view};

use crate::remote::RemoteUrl;
use crate::repository::{GitRunner, GitTarget};

/// Makes the repository. The arguments are the URL and the refspecs.
const PREPARE: &str = "set -e
export GIT_DIR=/tmp/courier.git
git init --quiet --bare --template= \"$GIT_DIR\"
echo /mnt/objects > \"$GIT_DIR/objects/info/alternates\"
";

/// Settings of the courier's git, besides its credential.
const COURIER_CONFIG: &str = "[http]
	followRedirects = false
[protocol]
	allow = never
[protocol \"https\"]
	allow = always
[protocol \"http\"]
	allow = always
[fetch]
	unpackLimit = 1
[transfer]
	fsckObjects = true
[credential]
	helper =
[core]
	askPass =
	commitGraph = false
";

/// A run of the courier.
pub(crate) struct CourierRun<'a> {
    pub(crate) url: &'a RemoteUrl,
    /// Commands behind those that make the repository.
    pub(crate) script: &'a str,
    /// Arguments of the script behind the URL.
    pub(crate) arguments: Vec<OsString>,
    pub(crate) files: Vec<JailFile>,
}

impl GitRunner {
    /// Runs it to its end. What it left in its directory is below the returned descriptor.
    pub(crate) fn run_courier(
        &self,
        target: &GitTarget,
        run: CourierRun<'_>,
        cx: &CallContext<'_>,
    ) -> Result<(ProgramReport, Option<OwnedFd>), ToolError> {
        // Alternates would lead to other directories.
        let masked = ["info/alternates", "info/http-alternates"];
        let objects = self.setup.fence.expose_directory(&target.file_path("objects"), "objects", &masked, cx)?;
        let view = WorkspaceView { read_only_mounts: vec![objects], ..empty_view(&self.setup.scratch)? };
        let mut config = COURIER_CONFIG.to_owned();
        let mut files = run.files;
        if let Some(credential) = run.url.credential(&self.setup.credentials) {
            let helper = "!f() { test \\\"$1\\\" = get && cat /run/ringfence/credential; }; f";
            let _ = writeln!(config, "[credential \"{}\"]\n\thelper = \"{helper}\"", run.url.origin());
            files.push(JailFile::new("credential", credential.to_answer()));
        }
        files.push(JailFile::new("gitconfig", config));
        let words = [
            "env",
            "GIT_CONFIG_NOSYSTEM=1",
            "GIT_CONFIG_GLOBAL=/run/ringfence/gitconfig",
            "GIT_TERMINAL_PROMPT=0",
            "GIT_ATTR_NOSYSTEM=1",
            "sh",
            "-c",
        ];
        let script = format!("{PREPARE}{}", run.script);
        let words = words.iter().copied().chain([script.as_str(), "sh", run.url.as_str()]);
        let program = JailProgram {
            argv: words.map(OsString::from).chain(run.arguments).collect(),
            files,
            hosts: self.setup.runner.canonical_hosts(&[run.url.endpoint()])?,
            ..JailProgram::default()
        };
        self.setup.runner.run_apart(&program, &view, cx)
    }
}
