//! The document of the API is one that generators of clients take.

use serde_json::{Value, json};

use crate::api_client::TestApiServer;
use crate::site::TestSite;

/// Parts that a validator of OpenAPI 3.1 refuses, or a generator of clients cannot use.
fn violations(document: &Value) -> Vec<String> {
    let mut found = Vec::new();
    collect_violations(document, "#", document, &mut found);
    let mut ids = std::collections::BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let place = format!("{method} {path}");
            if !ids.insert(operation["operationId"].as_str().unwrap_or_default().to_owned()) {
                found.push(format!("{place}: the operationId is missing or not unique"));
            }
            let parameters = operation["parameters"].as_array().unwrap();
            let in_path = parameters.iter().filter(|parameter| parameter["in"] == "path");
            let names: Vec<&str> = in_path.filter_map(|parameter| parameter["name"].as_str()).collect();
            let wanted: Vec<&str> =
                path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')).collect();
            if names != wanted {
                found.push(format!("{place}: {names:?} are described, {wanted:?} are in the path"));
            }
            for (status, response) in operation["responses"].as_object().unwrap() {
                if !response["description"].is_string() {
                    found.push(format!("{place} {status}: no description"));
                }
                let schema = &response["content"]["application/json"]["schema"];
                if status.starts_with('2') && schema.is_object() && schema == &json!({}) {
                    found.push(format!("{place} {status}: a reply of any type"));
                }
            }
        }
    }
    found
}

fn collect_violations(value: &Value, place: &str, document: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                let place = format!("{place}/{name}");
                if field.is_null() && !["default", "const", "example"].contains(&name.as_str()) {
                    found.push(format!("{place} is null"));
                }
                let is_schema =
                    ["schema", "items"].contains(&name.as_str()) || place.rsplit('/').nth(1) == Some("properties");
                if field.is_boolean() && is_schema {
                    found.push(format!("{place} is the schema `{field}`"));
                }
                if name == "$ref"
                    && let Some(target) = field.as_str().and_then(|target| target.strip_prefix('#'))
                    && document.pointer(target).is_none()
                {
                    found.push(format!("{place} leads nowhere"));
                }
                collect_violations(field, &place, document, found);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                collect_violations(item, &format!("{place}/{index}"), document, found);
            }
        }
        _ => {}
    }
}

#[test]
fn the_document_is_valid_and_every_reply_has_a_type() {
    let site = TestSite::new();
    let server = TestApiServer::start(&site, &[]);
    let document = server.send("GET", "/v1/openapi.json", &[], None).json();
    assert_eq!(violations(&document), Vec::<String>::new());
    assert_eq!(document["openapi"], "3.1.0");
    assert!(document["servers"][0]["url"].is_string());
    // The check itself finds what it is for.
    let mut broken = document.clone();
    broken["paths"]["/v1/tools"]["get"]["parameters"][0]["description"] = Value::Null;
    broken["components"]["schemas"]["ChangeList"]["properties"]["changes"] = json!(true);
    broken["paths"]["/v1/me"]["get"]["responses"]["200"]["content"]["application/json"]["schema"] =
        json!({"$ref": "#/no"});
    assert_eq!(violations(&broken).len(), 3, "{:#?}", violations(&broken));
}

#[test]
fn replies_match_the_document() {
    let site = TestSite::new();
    let server = TestApiServer::start(&site, &["--preset", "edits"]);
    let (agent, page) = (server.agent(&site, "agent"), server.page());
    let document = agent.get("/v1/openapi.json");
    let session = agent.create_session(&json!({}));
    agent.call(&session, "write_file", json!({"path": "a.txt", "content": "x"}));
    let change = page.get("/v1/changes")["changes"][0]["change"].as_str().unwrap().to_owned();
    let paths = [
        ("/v1/changes", "/v1/changes".to_owned()),
        ("/v1/changes/{change}", format!("/v1/changes/{change}")),
        ("/v1/files", "/v1/files".to_owned()),
        ("/v1/files/text", "/v1/files/text?path=a.txt".to_owned()),
        ("/v1/tools", "/v1/tools".to_owned()),
        ("/v1/audit", "/v1/audit".to_owned()),
        ("/v1/doctor", "/v1/doctor".to_owned()),
        ("/v1/sessions", "/v1/sessions".to_owned()),
    ];
    for (route, path) in paths {
        let schema = &document["paths"][route]["get"]["responses"]["200"]["content"]["application/json"]["schema"];
        check(&document, schema, &page.get(&path), &path);
    }
    let undone = page.post("/v1/undo", &json!({"dryRun": true})).json();
    let schema = &document["paths"]["/v1/undo"]["post"]["responses"]["200"]["content"]["application/json"]["schema"];
    check(&document, schema, &undone, "/v1/undo");
}

/// Holds a value to a schema: what is required is there, what is there is described and of its type.
#[track_caller]
fn check(document: &Value, schema: &Value, value: &Value, place: &str) {
    if let Some(target) = schema["$ref"].as_str() {
        return check(document, document.pointer(&target[1..]).unwrap(), value, place);
    }
    for name in schema["required"].as_array().into_iter().flatten() {
        assert!(value.get(name.as_str().unwrap()).is_some(), "{place} has no {name}: {value}");
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        kind => kind.as_str().into_iter().collect(),
    };
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    assert!(
        kinds.is_empty() || kinds.contains(&kind) || (kind == "integer" && kinds.contains(&"number")),
        "{place}: {kind} is not {kinds:?}"
    );
    let is_closed = schema.get("additionalProperties").is_none() && schema["properties"].is_object();
    for (name, field) in value.as_object().into_iter().flatten() {
        match schema["properties"].get(name) {
            Some(schema) => check(document, schema, field, &format!("{place}.{name}")),
            None => assert!(!is_closed, "{place} has {name}, which is not described"),
        }
    }
    for item in value.as_array().into_iter().flatten() {
        check(document, &schema["items"], item, &format!("{place}[]"));
    }
}
