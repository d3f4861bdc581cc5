//! Hits: by words, by name, in a part of the tree, and their form.

use expect_test::expect;
use ringfence_kernel::Dialect;
use serde_json::json;

use crate::fixture::SearchWorld;

fn world() -> SearchWorld {
    with_sources(SearchWorld::new())
}

fn with_sources(world: SearchWorld) -> SearchWorld {
    world.write(
        "src/disk.rs",
        "/// Opens a file for writing.\npub fn open_file(path: &Path) -> File {\n    let options = Options::new();\n    options.open(path)\n}\n\nimpl Host {\n    fn call(&self) -> Reply {\n        self.reply()\n    }\n}\n",
    );
    world.write(
        "lib/client.py",
        "class Client:\n    def call(self, path):\n        '''Sends a request.'''\n        return send(path)\n",
    );
    world.write("web/app.ts", "export const openWindow = (name: string) => window.open(name);\n");
    world.write("README.md", "# How to open a file for writing\n");
    world
}

#[test]
fn words_find_symbols_of_every_language() {
    let world = world();
    let host = world.host();
    assert_eq!(host.hits("open a file for writing")[0], "src/disk.rs:2 open_file");
    assert_eq!(host.hits("send request")[0], "lib/client.py:2 Client.call");
    assert_eq!(host.hits("window")[0], "web/app.ts:1 openWindow");
    assert_eq!(host.hits("quantum entanglement"), [""; 0]);
}

#[test]
fn the_model_finds_symbols_that_share_no_word_with_the_query() {
    let query = "directory storage";
    assert_eq!(world().host().hits(query), [""; 0]);
    let world = with_sources(SearchWorld::with_model());
    let host = world.host();
    assert_eq!(host.hits(query)[0], "src/disk.rs:2 open_file");
    assert_eq!(host.hits("Client.call")[0], "lib/client.py:2 Client.call");
    assert_eq!(host.hits("open a file for writing")[0], "src/disk.rs:2 open_file");
}

#[test]
fn names_find_their_symbols_first() {
    let world = world();
    let host = world.host();
    assert_eq!(host.hits("Host::call")[..2], ["src/disk.rs:8 Host::call", "lib/client.py:2 Client.call"]);
    assert_eq!(host.hits("Client.call")[..2], ["lib/client.py:2 Client.call", "src/disk.rs:8 Host::call"]);
}

#[test]
fn a_search_can_be_narrowed() {
    let world = world();
    let host = world.host();
    let in_lib = ["lib/client.py:2 Client.call", "lib/client.py:1 Client"];
    assert_eq!(host.hits_of(&json!({"query": "call", "path": "lib"})), in_lib);
    assert_eq!(host.hits_of(&json!({"query": "call", "path": "src/disk.rs"})), ["src/disk.rs:8 Host::call"]);
    assert_eq!(host.hits_of(&json!({"query": "call", "language": "py"})), in_lib);
    assert_eq!(host.hits_of(&json!({"query": "call", "maxResults": "1"})).len(), 1);
    // What a narrower search saw does not make the others forget the rest.
    assert_eq!(host.hits("call").len(), 3);
    assert_eq!(host.hits_of(&json!({"query": "call", "path": "README.md"})), [""; 0]);
}

#[test]
fn a_reply_has_the_first_lines_of_each_hit() {
    let world = world();
    let text = |dialect| world.host_with(dialect, Vec::new()).call(&json!({"query": "open file for writing"})).1;
    expect![[r#"
        src/disk.rs:2 open_file pub fn open_file(path: &Path) -> File
            let options = Options::new();
            options.open(path)
        }
        web/app.ts:1 openWindow openWindow = (name: string) =>"#]]
    .assert_eq(&text(Dialect::Claude));
    assert_eq!(text(Dialect::Codex), text(Dialect::Gemini));
    expect!["[no symbol matches; Grep looks for text]"]
        .assert_eq(&world.host_with(Dialect::Claude, Vec::new()).call(&json!({"query": "quantum"})).1);
}

#[test]
fn a_reply_is_bounded() {
    let world = SearchWorld::new();
    for number in 0..40 {
        let lines = format!("    let value = \"{}\";\n", "x".repeat(400)).repeat(30);
        world.write(&format!("src/part{number}.rs"), format!("fn parse_part_{number}() {{\n{lines}}}\n"));
    }
    let host = world.host_with(Dialect::Claude, Vec::new());
    let (_, text) = host.call(&json!({"query": "parse part"}));
    assert!(text.len() <= 6000, "{}", text.len());
    assert!(world.host().hits("parse part").len() <= 10);
}

#[test]
fn invalid_arguments_are_refused() {
    let world = world();
    let host = world.host_with(Dialect::Claude, Vec::new());
    let mut errors = String::new();
    for arguments in [
        json!({"query": ""}),
        json!({"query": "what is it"}),
        json!({"query": "x".repeat(2000)}),
        json!({"query": "call", "language": "pyhton"}),
        json!({"query": "call", "maxResults": 0}),
        json!({"query": "call", "path": "absent"}),
        json!({"query": "call", "path": "../outside"}),
        json!({"query": "call", "kind": "function"}),
    ] {
        let (succeeded, text) = host.call(&arguments);
        assert!(!succeeded, "{arguments}: {text}");
        errors.push_str(&text);
        errors.push('\n');
    }
    expect![[r#"
        query must have between 1 and 1000 bytes
        query has only words without a meaning of their own; name what you look for
        query must have between 1 and 1000 bytes
        language `pyhton` is not known; did you mean `python`?
        maxResults must be at least 1
        `absent` does not exist
        `../outside` leads outside the workspace
        unknown field `kind`, expected one of `query`, `path`, `language`, `maxResults`
    "#]]
    .assert_eq(&errors);
}

#[test]
fn a_host_that_never_searches_reads_no_model() {
    let world = SearchWorld::with_unreadable_model();
    let host = world.host();
    drop(host);
}
