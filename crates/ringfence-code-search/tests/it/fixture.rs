//! Test fixture: a workspace, and hosts on it that have the tool.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use ringfence_code_search::{CodeSearchSetup, SearchModel, embedded_model};
use ringfence_fs::{Fence, FenceOptions, MountAccess, MountSpec};
use ringfence_kernel::{
    Dialect, Host, HostConfig, LayeredRules, PolicyLayer, PolicyRule, Preset, Session, ToolCall, ToolFilter,
    ToolRegistry,
};
use ringfence_testkit::host::{session_without_tools, test_host_config};
use ringfence_testkit::world::TestWorld;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// A host and a session.
pub(crate) struct SearchHost {
    host: Host,
    session: Arc<Session>,
}

/// A directory with a workspace and a state directory.
pub(crate) struct SearchWorld {
    pub(crate) world: TestWorld,
    /// With one, symbols without a word of the query are found too.
    model: fn() -> Option<&'static SearchModel>,
}

impl SearchWorld {
    pub(crate) fn new() -> Self {
        Self { world: TestWorld::new(), model: || None }
    }

    /// With the model of the program.
    pub(crate) fn with_model() -> Self {
        Self { model: embedded_model, ..Self::new() }
    }

    /// With a model that must not be read.
    pub(crate) fn with_unreadable_model() -> Self {
        Self { model: || panic!("the model is read before a search"), ..Self::new() }
    }

    pub(crate) fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        self.world.write(path, content);
    }

    /// A file that is large enough for an index to be stored, with few words.
    pub(crate) fn write_large(&self) {
        self.write("large.rs", format!("fn ordinary() {{}}\n{}", "//////////////////////////////\n".repeat(10_000)));
    }

    /// The directory of the indexes.
    pub(crate) fn indexes(&self) -> PathBuf {
        self.world.state.join("code-search")
    }

    /// The only index.
    pub(crate) fn index(&self) -> PathBuf {
        let names = std::fs::read_dir(self.indexes()).unwrap().map(|entry| entry.unwrap().path());
        let mut found: Vec<PathBuf> = names.filter(|path| path.extension().is_some_and(|end| end == "index")).collect();
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }

    pub(crate) fn host(&self) -> SearchHost {
        self.host_with(Dialect::Standard, Vec::new())
    }

    /// A host as another process would have it.
    pub(crate) fn host_with(&self, dialect: Dialect, rules: Vec<PolicyRule>) -> SearchHost {
        let path = self.world.workspace.clone();
        let workspace = MountSpec { alias: "workspace".to_owned(), path, rights: MountAccess::ReadWrite };
        let fence = Fence::new(workspace, Vec::new(), &self.world.state, FenceOptions::default()).unwrap();
        let mut registry = ToolRegistry::new();
        let setup = CodeSearchSetup { fence, state: self.world.state.clone(), model: self.model };
        ringfence_code_search::register(&mut registry, setup).unwrap();
        let filter = ToolFilter { toolsets: BTreeSet::from(["code".to_owned()]), ..ToolFilter::default() };
        let catalog = registry.catalog(dialect, &filter).unwrap();
        let session = Arc::new(Session { catalog, ..session_without_tools(dialect) });
        let policy = LayeredRules::from_preset(Preset::Edits).with_layer(PolicyLayer::User, rules);
        SearchHost { host: Host::new(HostConfig { policy: Box::new(policy), ..test_host_config() }), session }
    }
}

impl SearchHost {
    /// The text of a reply, and whether it is one of success.
    pub(crate) fn call(&self, arguments: &Value) -> (bool, String) {
        let call = ToolCall { id: "1".to_owned(), name: "search_code".to_owned(), arguments: arguments.to_string() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let reply = runtime.block_on(self.host.call(&self.session, call, &CancellationToken::new())).unwrap();
        (reply.error_kind().is_none(), reply.text)
    }

    /// The value of a call that must succeed, in the standard dialect.
    #[track_caller]
    pub(crate) fn value(&self, arguments: &Value) -> Value {
        let (succeeded, text) = self.call(arguments);
        assert!(succeeded, "{arguments}: {text}");
        serde_json::from_str::<Value>(&text).unwrap()["value"].clone()
    }

    /// Hits as `path:line symbol`.
    #[track_caller]
    pub(crate) fn hits(&self, query: &str) -> Vec<String> {
        self.hits_of(&json!({"query": query}))
    }

    #[track_caller]
    pub(crate) fn hits_of(&self, arguments: &Value) -> Vec<String> {
        let value = self.value(arguments);
        let hits = value["hits"].as_array().unwrap().iter();
        let text = |hit: &Value, key: &str| hit[key].as_str().unwrap().to_owned();
        hits.map(|hit| format!("{}:{} {}", text(hit, "path"), hit["line"], text(hit, "symbol"))).collect()
    }
}
