//! Programs that act on names in a workspace, and the names that each of them acts on.
//!
//! One table for the policy, for `mcp install` and for `doctor`: a client whose settings file is written somewhere has
//! its row here. A program is listed with the files that it takes commands, servers, permissions or instructions from
//! *by itself*, or on the next ordinary command of its user. Agents and editors have a directory for that, which is
//! listed as a whole, and share a pattern of names (`AGENTS`), of which each has all.
//!
//! Not here: files that every project has and that run on explicit request, such as `Makefile`, `package.json`,
//! `conftest.py` or `build.gradle`; and `*.pth`, which model weights and every virtual environment have.
//!
//! A row is written as in `secrets.rs`.

/// The directories in which a program looks for its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SettingsLookupScope {
    /// In any directory, or in every directory that its user enters.
    Anywhere,
    /// At the root of a project. A project that was installed or vendored as a package is not worked on: its own files
    /// of this kind do nothing.
    ProjectRoot,
    /// The same, except for the names in `INERT`.
    ProjectRootUnlessInert,
}

/// A program, and what it acts on.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProgramSettingsFiles {
    pub(super) name: &'static str,
    pub(super) scope: SettingsLookupScope,
    pub(super) names: &'static [&'static str],
}

/// Directories that a package manager fills, or that hold copies of other projects.
pub(super) const PACKAGES: &[&str] = &[
    "node_modules",
    "bower_components",
    "site-packages",
    "dist-packages",
    "vendor",
    "vendored",
    "_vendor",
    "third_party",
    "third-party",
    "thirdparty",
    "3rdparty",
    "pods",
    "carthage",
];

const fn anywhere(name: &'static str, names: &'static [&'static str]) -> ProgramSettingsFiles {
    ProgramSettingsFiles { name, scope: SettingsLookupScope::Anywhere, names }
}

const fn at_root(name: &'static str, names: &'static [&'static str]) -> ProgramSettingsFiles {
    ProgramSettingsFiles { name, scope: SettingsLookupScope::ProjectRoot, names }
}

const fn at_root_unless_inert(name: &'static str, names: &'static [&'static str]) -> ProgramSettingsFiles {
    ProgramSettingsFiles { name, scope: SettingsLookupScope::ProjectRootUnlessInert, names }
}

/// Names that a row for a whole directory or a whole family of names matches, and that no program takes anything from.
pub(super) const INERT: &[&str] = &[
    ".github/issue_template*",
    ".github/pull_request_template*",
    ".github/discussion_template*",
    ".github/funding.yml",
    ".github/readme.md",
    ".github/contributing.md",
    ".github/code_of_conduct.md",
    ".github/security.md",
    ".github/support.md",
    ".github/governance.md",
    ".github/images",
    ".github/docs",
    ".github/*.png",
    ".github/*.svg",
    ".github/*.jpg",
    ".github/*.jpeg",
    ".github/*.gif",
    ".github/*.webp",
];

/// The names that an agent or editor could use, by the word that it calls itself: its directory, its settings, a shell
/// script that it runs, its rules and instructions.
macro_rules! named_after {
    ($($program:literal: $($word:literal),+;)+) => {
        &[$(ProgramSettingsFiles {
            name: $program,
            scope: SettingsLookupScope::Anywhere,
            names: &[$(
                concat!(".", $word),
                concat!(".config/", $word),
                concat!(".", $word, "rc"),
                concat!(".", $word, "rc.*"),
                concat!($word, "rc"),
                concat!(".", $word, ".json"),
                concat!(".", $word, ".jsonc"),
                concat!(".", $word, ".toml"),
                concat!(".", $word, ".yaml"),
                concat!(".", $word, ".yml"),
                concat!(".", $word, ".md"),
                concat!(".", $word, "rules"),
                concat!(".", $word, "hints"),
                concat!($word, ".local.md"),
                concat!($word, ".override.md"),
            )+],
        }),+]
    };
}

/// Agents and editors. What else they act on is in `PROGRAMS`.
pub(super) const AGENTS: &[ProgramSettingsFiles] = named_after! {
    "Ringfence": "ringfence";
    "every agent": "agent", "agents";
    "Aider": "aider";
    "Amazon Q": "amazonq";
    "Amp": "amp";
    "Antigravity": "antigravity";
    "Augment": "augment";
    "Claude Code": "claude";
    "Cline": "cline";
    "CodeBuddy": "codebuddy";
    "Codebuff": "codebuff";
    "Codex": "codex";
    "Cody": "cody";
    "Continue": "continue";
    "GitHub Copilot": "copilot";
    "Crush": "crush";
    "Cursor": "cursor";
    "Devin": "devin";
    "Factory": "factory";
    "Forge": "forge";
    "Gemini CLI": "gemini";
    "goose": "goose";
    "gptme": "gptme";
    "Grok CLI": "grok";
    "iFlow": "iflow";
    "Junie": "junie";
    "Kilo Code": "kilo", "kilocode";
    "Kimi CLI": "kimi";
    "Kiro": "kiro";
    "Letta Code": "letta";
    "Mistral Vibe": "vibe";
    "opencode": "opencode";
    "OpenHands": "openhands";
    "Pi": "pi";
    "Plandex": "plandex";
    "Qoder": "qoder";
    "Qwen Code": "qwen";
    "Roo Code": "roo";
    "Rovo Dev": "rovodev";
    "Serena": "serena";
    "Tabnine": "tabnine";
    "Task Master": "taskmaster";
    "Trae": "trae";
    "Void": "void";
    "Warp": "warp";
    "Windsurf": "windsurf";
    "Zencoder": "zencoder";
    "Emacs": "emacs";
    "Helix": "helix";
    "Kakoune": "kak";
    "Lapce": "lapce";
    "Neovim": "nvim";
    "Theia": "theia";
    "Vim": "vim";
    "VS Code": "vscode", "vscode-server", "vscodium";
    "Zed": "zed";
};

pub(super) const PROGRAMS: &[ProgramSettingsFiles] = &[
    // Ours.
    anywhere("Ringfence", &[".ringfence", "ringfence.toml"]),
    // Agents: commands, servers, permissions, hooks and instructions.
    anywhere(
        "Claude Code",
        &[".claude", ".claude.json", ".claude-plugin", "claude.md", "claude.local.md", ".mcp.json"],
    ),
    anywhere("Claude Desktop", &["claude_desktop_config.json"]),
    anywhere("Codex", &[".codex", ".config/codex", "agents.override.md"]),
    anywhere("every agent", &["agents.md", "agent.md", "skill.md", ".agents", ".agent", ".rules", ".skills"]),
    anywhere("MCP clients", &["mcp.json", ".mcp", "mcp_config.json", "mcp_settings.json"]),
    anywhere("Gemini CLI", &[".gemini", "gemini.md"]),
    anywhere("Qwen Code", &[".qwen", "qwen.md"]),
    anywhere("opencode", &["opencode.json", "opencode.jsonc", "tui.json", "tui.jsonc"]),
    anywhere("Crush", &["crush.json", "crush.md"]),
    anywhere("goose", &[".goose", ".goosehints", ".config/goose"]),
    anywhere("Aider", &[".aider*"]),
    anywhere("gptme", &["gptme.toml"]),
    anywhere("Amp", &[".amp", ".config/amp"]),
    anywhere("Amazon Q", &[".amazonq"]),
    anywhere("Kiro", &[".kiro"]),
    anywhere("Antigravity", &[".antigravity"]),
    anywhere("Augment", &[".augment", ".augment-guidelines"]),
    anywhere("Cline", &[".cline", ".clinerules", ".clinerules-*"]),
    anywhere("Roo Code", &[".roo", ".roomodes", ".roorules", ".roorules-*"]),
    anywhere("Kilo Code", &[".kilo", ".kilocode", ".kilocodemodes", ".kilocoderules"]),
    anywhere("CodeBuddy", &[".codebuddy", "codebuddy.md"]),
    anywhere("Codebuff", &["codebuff.json"]),
    anywhere("Cody", &[".cody", ".sourcegraph"]),
    anywhere("Continue", &[".continue", ".continuerc.json"]),
    anywhere("Cursor", &[".cursor", ".cursorrules"]),
    anywhere("Windsurf", &[".windsurf", ".windsurfrules", ".codeium"]),
    anywhere("Devin", &[".devin"]),
    anywhere("Factory", &[".factory"]),
    anywhere("Forge", &[".forge", "forge.yaml"]),
    anywhere("Grok CLI", &[".grok"]),
    anywhere("iFlow", &[".iflow", "iflow.md"]),
    anywhere("Junie", &[".junie"]),
    anywhere("Kimi CLI", &[".kimi"]),
    anywhere("Letta Code", &[".letta"]),
    anywhere("Mistral Vibe", &[".vibe"]),
    anywhere("OpenHands", &[".openhands", ".openhands_instructions"]),
    anywhere("Pi", &[".pi"]),
    anywhere("Plandex", &[".plandex*"]),
    anywhere("Qoder", &[".qoder"]),
    anywhere("Replit", &[".replit", "replit.md", "replit.nix"]),
    anywhere("Rovo Dev", &[".rovodev"]),
    anywhere("Ruler", &[".ruler"]),
    anywhere("Serena", &[".serena"]),
    anywhere("Tabnine", &[".tabnine"]),
    anywhere("Task Master", &[".taskmaster"]),
    anywhere("Trae", &[".trae"]),
    anywhere("Void", &[".voidrules"]),
    anywhere("Warp", &[".warp", "warp.md"]),
    anywhere("Zencoder", &[".zencoder"]),
    at_root("GitHub Copilot", &["lsp.json", "*.agent.md", "*.chatmode.md", "*.instructions.md", "*.prompt.md"]),
    // Editors: tasks, formatters, language servers and debuggers that their settings name.
    anywhere("VS Code", &[".vscode", ".vscode-server", "*.code-workspace", ".config/code"]),
    anywhere("Visual Studio", &[".vs"]),
    anywhere("JetBrains IDEs", &[".idea", ".fleet", ".aiassistant"]),
    anywhere("Zed", &[".zed", ".config/zed"]),
    anywhere("Eclipse", &[".externaltoolbuilders"]),
    anywhere("Helix", &[".helix", ".config/helix"]),
    anywhere("Kakoune", &[".kakrc"]),
    anywhere("Kate", &[".kateproject"]),
    anywhere("Nova", &[".nova"]),
    anywhere("Sublime Text", &["*.sublime-project"]),
    anywhere("Theia", &[".theia"]),
    anywhere("Firebase Studio", &[".idx"]),
    anywhere("Vim", &[".vim", ".vimrc", "_vimrc", ".gvimrc", ".exrc", ".lvimrc", ".ycm_extra_conf.py"]),
    anywhere("Lite XL", &[".lite_project.lua"]),
    anywhere("Neovim", &[".nvim", ".nvim.lua", ".nvimrc", ".config/nvim"]),
    anywhere(
        "Emacs",
        &[".dir-locals.el", ".dir-locals-2.el", ".emacs", ".emacs.d", ".config/emacs", ".doom.d", ".spacemacs"],
    ),
    anywhere("dev containers", &[".devcontainer", ".devcontainer.json", "devcontainer.json"]),
    at_root("Gitpod", &[".gitpod", ".gitpod.yml", ".gitpod.yaml", ".ona"]),
    at_root("clangd", &[".clangd"]),
    at_root("rust-analyzer", &["rust-analyzer.toml", ".rust-analyzer.toml"]),
    at_root("Merlin", &[".merlin"]),
    // Editors start the servers and programs that these name when a project is opened.
    at_root("Build Server Protocol clients", &[".bsp"]),
    at_root("Haskell Language Server", &["hie.yaml"]),
    // Version control: hooks, and settings that name programs.
    anywhere("git", &[".git", ".gitmodules", ".gitconfig", ".config/git", ".githooks", ".git-hooks", ".lfsconfig"]),
    // It says which files git gives to the programs that its config names.
    at_root("git", &[".gitattributes"]),
    anywhere("Jujutsu", &[".jj", ".jjconfig.toml", ".config/jj"]),
    anywhere("Mercurial", &[".hg", ".hgrc"]),
    anywhere("Subversion", &[".svn", ".subversion"]),
    anywhere("other version control", &[".bzr", ".pijul", ".sl", "_darcs"]),
    anywhere("Husky", &[".husky", ".huskyrc", ".huskyrc.*", "husky.config.js", ".config/husky"]),
    anywhere("pre-commit", &[".pre-commit-config.yaml", ".pre-commit-config.yml"]),
    anywhere(
        "Lefthook",
        &["lefthook.*", ".lefthook.*", "lefthook-local.*", ".lefthook-local.*", ".lefthook", ".lefthook-local"],
    ),
    anywhere("Overcommit", &[".overcommit.yml", ".git-hooks.yml"]),
    anywhere("simple-git-hooks", &[".simple-git-hooks.*", "simple-git-hooks.*"]),
    anywhere("CaptainHook", &["captainhook.json"]),
    anywhere("prek", &["prek.toml"]),
    anywhere("lint-staged", &[".lintstagedrc", ".lintstagedrc.*", "lint-staged.config.*"]),
    anywhere("GrumPHP", &["grumphp.yml", ".grumphp.yml", "grumphp.yaml", ".grumphp.yaml"]),
    anywhere("Trunk", &[".trunk"]),
    // Shells and tools that run these when a user enters the directory or logs in.
    anywhere(
        "shells",
        &[
            ".bashrc",
            ".bash_aliases",
            ".bash_login",
            ".bash_logout",
            ".bash_profile",
            ".profile",
            ".zshrc",
            ".zshenv",
            ".zprofile",
            ".zlogin",
            ".zlogout",
            ".kshrc",
            ".mkshrc",
            ".yashrc",
            ".cshrc",
            ".tcshrc",
            ".xonshrc",
            ".inputrc",
            ".config/fish",
            ".config/nushell",
            "profile.ps1",
            "*_profile.ps1",
            ".tmux.conf",
            ".config/tmux",
            ".config/zsh",
            ".bashrc.d",
            ".zshrc.d",
            ".oh-my-zsh",
            ".screenrc",
        ],
    ),
    // Agents, test runners and web frameworks load it into their own environment, which names programs and servers.
    at_root_unless_inert("dotenv", &[".env", ".env.*"]),
    anywhere("direnv", &[".envrc", ".direnvrc", ".config/direnv"]),
    anywhere("autoenv", &[".autoenv", ".autoenv.zsh"]),
    anywhere("mise", &["mise.toml", ".mise.toml", "mise.*.toml", ".mise.*.toml", ".mise", ".config/mise", ".rtx.toml"]),
    anywhere("asdf", &[".tool-versions", ".asdfrc"]),
    anywhere("proto", &[".prototools"]),
    anywhere(
        "the desktop session",
        &[
            ".xinitrc",
            ".xprofile",
            ".xsession",
            ".xsessionrc",
            ".pam_environment",
            ".config/autostart",
            ".config/systemd",
            ".config/environment.d",
            "library/launchagents",
            ".local/bin",
            ".forward",
            ".procmailrc",
        ],
    ),
    // Keys, tokens and hosts that other programs use: a new one is as bad as a changed one.
    anywhere("OpenSSH", &[".ssh"]),
    anywhere("GnuPG", &[".gnupg"]),
    anywhere("network clients", &[".netrc", "_netrc", ".curlrc", ".wgetrc"]),
    anywhere("Docker", &[".docker/config.json", ".docker/cli-plugins"]),
    at_root(
        "Docker Compose",
        &[
            "compose.override.yaml",
            "compose.override.yml",
            "docker-compose.override.yaml",
            "docker-compose.override.yml",
        ],
    ),
    anywhere("kubectl", &[".kube"]),
    anywhere("AWS", &[".aws/credentials", ".aws/config"]),
    anywhere("gh", &[".config/gh"]),
    // Package managers, toolchains and build wrappers: which program the next ordinary command runs, and from where it
    // gets its packages.
    anywhere("npm and pnpm", &[".npmrc", ".pnpmfile.cjs", ".pnpmfile.mjs", "pnpm-workspace.yaml"]),
    anywhere("Yarn", &[".yarnrc", ".yarnrc.yml", ".yarn/releases", ".yarn/plugins"]),
    anywhere("Bun", &["bunfig.toml", ".bunfig.toml"]),
    anywhere("pip", &["pip.conf", "pip.ini", ".pip", ".config/pip", ".pypirc", ".pydistutils.cfg"]),
    anywhere("uv", &["uv.toml", ".config/uv"]),
    at_root("Poetry", &["poetry.toml"]),
    anywhere("Pixi", &[".pixi/envs", ".pixi/config.toml"]),
    anywhere("Composer", &["vendor/bin"]),
    anywhere("conda", &[".condarc"]),
    anywhere("RubyGems and Bundler", &[".gemrc", ".bundle"]),
    anywhere("NuGet", &["nuget.config"]),
    anywhere("Cargo", &[".cargo/config", ".cargo/config.toml", ".cargo/bin", ".cargo/env"]),
    at_root("rustup", &["rust-toolchain", "rust-toolchain.toml"]),
    at_root("Maven", &[".mvn", "mvnw", "mvnw.cmd", ".m2"]),
    at_root(
        "Gradle",
        &[
            "gradlew",
            "gradlew.bat",
            "gradle/wrapper",
            ".gradle/init.gradle",
            ".gradle/init.gradle.kts",
            ".gradle/init.d",
            ".gradle/gradle.properties",
        ],
    ),
    at_root("sbt", &[".sbtopts", ".jvmopts"]),
    at_root("Bazel", &[".bazelrc", ".bazelrc.*", "*.bazelrc", ".bazeliskrc", ".bazelversion", "tools/bazel"]),
    at_root("Buck", &[".buckconfig", ".buckconfig.*"]),
    anywhere("Ansible", &["ansible.cfg", ".ansible.cfg"]),
    anywhere("Terraform", &[".terraformrc", "terraform.rc"]),
    anywhere("latexmk", &["latexmkrc", ".latexmkrc"]),
    // Interpreters and debuggers run these whenever they start.
    anywhere("Python", &["sitecustomize.py", "usercustomize.py", ".pythonrc", ".pythonrc.py", ".pdbrc", ".pdbrc.py"]),
    anywhere("IPython", &[".ipython"]),
    anywhere("R", &[".rprofile", "rprofile.site", ".renviron", ".rdata"]),
    anywhere("Ruby", &[".irbrc", ".pryrc"]),
    anywhere("Elixir", &[".iex.exs"]),
    anywhere("GHCi", &[".ghci"]),
    anywhere("Octave", &[".octaverc"]),
    anywhere("database shells", &[".psqlrc", ".sqliterc", ".mongorc.js", ".mongoshrc.js"]),
    anywhere("debuggers", &[".gdbinit", ".gdbearlyinit", ".config/gdb", ".lldbinit"]),
    // CI runs with more rights than the agent has. It reads these at the root of a repository.
    // Its agents take extensions, servers, hooks and instructions from there, too.
    at_root_unless_inert("GitHub", &[".github/*"]),
    at_root("GitHub", &["codeowners"]),
    at_root("GitLab", &[".gitlab-ci.yml", ".gitlab-ci.yaml", ".gitlab-ci.*.yml", ".gitlab"]),
    at_root("Gitea and Forgejo", &[".forgejo", ".gitea"]),
    at_root("Bitbucket", &["bitbucket-pipelines.yml"]),
    at_root("Azure Pipelines", &["azure-pipelines*.yml", "azure-pipelines*.yaml", ".azure-pipelines", ".azuredevops"]),
    at_root("CircleCI", &[".circleci"]),
    at_root("Jenkins", &["jenkinsfile", "jenkinsfile.*", ".jenkins"]),
    at_root("Buildkite", &[".buildkite"]),
    at_root(
        "Drone and Woodpecker",
        &[".drone.yml", ".drone.yaml", ".woodpecker", ".woodpecker.yml", ".woodpecker.yaml"],
    ),
    at_root("AppVeyor", &["appveyor.yml", ".appveyor.yml"]),
    at_root("Cirrus CI", &[".cirrus.yml", ".cirrus.star"]),
    at_root(
        "other CI",
        &[
            ".travis.yml",
            ".semaphore",
            ".teamcity",
            ".tekton",
            ".build.yml",
            ".builds",
            ".harness",
            "wercker.yml",
            "bitrise.yml",
            "codemagic.yaml",
            "cloudbuild.yaml",
            "cloudbuild.yml",
            "buildspec.yml",
            "buildspec.yaml",
        ],
    ),
    at_root("Renovate", &["renovate.json", "renovate.json5", ".renovaterc", ".renovaterc.json", ".renovaterc.json5"]),
    at_root("review bots", &[".mergify.yml", ".coderabbit.yaml", ".coderabbit.yml"]),
    at_root("Netlify and Vercel", &["netlify.toml", "vercel.json"]),
    at_root("Read the Docs", &[".readthedocs.yaml", ".readthedocs.yml"]),
];
