//! `docs/reference/api.md`: the paths of the server, from the document that it serves about itself.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{check_page, head, opening, row};
use crate::api_client::TestApiServer;
use crate::site::TestSite;

/// A schema in a word or two: its name where it has one.
fn named(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.rsplit('/').next().unwrap_or_default();
        return format!("[`{name}`](#{})", name.to_lowercase());
    }
    if let Some(choices) = schema["anyOf"].as_array().or(schema["oneOf"].as_array()) {
        let names: Vec<String> = choices.iter().map(named).filter(|name| name != "null").collect();
        return names.join(" or ");
    }
    if let Some(one) = schema.get("const") {
        return format!("`{one}`");
    }
    if let Some(words) = schema["enum"].as_array() {
        let words: Vec<String> = words.iter().filter(|word| !word.is_null()).map(|word| format!("`{word}`")).collect();
        return words.join(", ");
    }
    let kind = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().find(|kind| *kind != "null").and_then(Value::as_str).unwrap_or("any"),
        kind => kind.as_str().unwrap_or("any"),
    };
    match kind {
        "array" => format!("list of {}", named(&schema["items"])),
        kind => kind.to_owned(),
    }
}

fn fields(text: &mut String, schema: &Value) {
    let Some(properties) = schema["properties"].as_object().filter(|properties| !properties.is_empty()) else {
        text.push_str(&format!("\n{}\n", named(schema)));
        return;
    };
    let required = |name: &str| schema["required"].as_array().is_some_and(|all| all.iter().any(|each| each == name));
    text.push_str(&head(["field", "type", "required", "meaning"]));
    for (name, field) in properties {
        let needed = if required(name) { "yes" } else { "" };
        let meaning = field["description"].as_str().unwrap_or_default();
        text.push_str(&row([&format!("`{name}`"), &named(field), needed, meaning]));
    }
}

#[test]
fn the_reference_of_the_api_is_its_document() {
    let site = TestSite::new();
    let server = TestApiServer::start(&site, &[]);
    let reader = server.agent(&site, "reader");
    let document = reader.get("/v1/openapi.json");
    let what = "\
The HTTP API of `ringfence serve`. Every request needs a token, sent as `Authorization: Bearer …`; the scope that a path requires is
given with it. Bodies are JSON objects. [The server](../server.md) explains how to create a token, and `GET /v1/openapi.json`
returns the OpenAPI document.
";
    let mut text = opening("The API", "the server's OpenAPI document", what);
    let mut problems = BTreeMap::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, route) in methods.as_object().unwrap() {
            text.push_str(&format!("\n## `{} {path}`\n\n", method.to_uppercase()));
            let summary = route["summary"].as_str().unwrap_or_default();
            let need = route["description"].as_str().unwrap_or_default();
            text.push_str(&format!("{summary}. {need}\n"));
            let parameters = route["parameters"].as_array().map(Vec::as_slice).unwrap_or_default();
            let asked: Vec<&Value> = parameters.iter().filter(|parameter| parameter["in"] == "query").collect();
            if !asked.is_empty() {
                text.push_str(&head(["query", "type", "meaning"]));
            }
            for parameter in asked {
                let name = format!("`{}`", parameter["name"].as_str().unwrap());
                let meaning = parameter["description"].as_str().unwrap_or_default();
                text.push_str(&row([&name, &named(&parameter["schema"]), meaning]));
            }
            let body = &route["requestBody"]["content"]["application/json"]["schema"];
            if body.is_object() {
                text.push_str(&format!("\nRequest body: {}.\n", named(body)));
            }
            for (status, answer) in route["responses"].as_object().unwrap() {
                if !status.starts_with('2') {
                    problems.insert(status.clone(), answer["description"].as_str().unwrap().to_owned());
                    continue;
                }
                let (kind, content) = answer["content"].as_object().unwrap().iter().next().unwrap();
                let what = match content.get("schema") {
                    Some(schema) => named(schema),
                    None => format!("`{kind}`"),
                };
                text.push_str(&format!("\nResponse {status}: {what}.\n"));
            }
        }
    }
    text.push_str("\n## Errors\n\nOn every path, with an [`ApiErrorBody`](#apierrorbody).\n");
    text.push_str(&head(["status", "when"]));
    for (status, when) in &problems {
        text.push_str(&row([status, when]));
    }
    text.push_str("\n## What `GET /metrics` counts\n");
    text.push_str(&head(["name", "kind", "meaning"]));
    let figures = String::from_utf8(reader.send("GET", "/metrics", None).body).unwrap();
    for (help, kind) in figures.lines().zip(figures.lines().skip(1)) {
        if let Some((name, what)) = help.strip_prefix("# HELP ").and_then(|help| help.split_once(' ')) {
            let kind = kind.rsplit(' ').next().unwrap_or_default();
            text.push_str(&row([&format!("`{name}`"), kind, what]));
        }
    }
    text.push_str("\n## Schemas\n");
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        text.push_str(&format!("\n### `{name}`\n"));
        if let Some(meaning) = schema["description"].as_str() {
            text.push_str(&format!("\n{meaning}\n"));
        }
        fields(&mut text, schema);
    }
    check_page("api.md", text);
}
