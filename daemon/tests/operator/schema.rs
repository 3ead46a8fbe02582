//! The JSON Schema of the control API: made of the commands of the program and of what the guide says of answers, and held
//! against answers of a daemon.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::io::BufReader;
use std::io::Write;
use std::os::unix::net::UnixStream;

use campanile_daemon::operator::console::API;
use campanile_daemon::operator::verb::Verb;
use clap::Arg;
use clap::ArgAction;
use clap::Command;
use clap::Subcommand;
use serde_json::Map;
use serde_json::Value;
use serde_json::json;

use crate::api::Told;
use crate::api::told;
use crate::served::Served;
use crate::work::work;

const FILE: &str = "../../docs/book/control-api.schema.json";
/// What only the command line has.
const OF_CLIENT: [&str; 4] = ["help", "svg", "perfetto", "seconds"];
/// What only the socket has.
const OF_TRACE: [(&str, &str); 2] = [("since_ns", "integer"), ("from", "object")];

fn value_of(arg: &Arg) -> Value {
    let one = match arg.get_possible_values() {
        values if !values.is_empty() && arg.get_action().takes_values() => {
            json!({ "enum": values.iter().map(|value| value.get_name().to_owned()).collect::<Vec<_>>() })
        }
        _ if !arg.get_action().takes_values() => json!({ "type": "boolean" }),
        _ if arg.get_value_names().is_some_and(|names| names[0] == "MILLISECONDS") => {
            json!({ "type": "integer", "minimum": 0 })
        }
        _ => json!({ "type": "string" }),
    };
    if matches!(arg.get_action(), ArgAction::Append) { json!({ "type": "array", "items": one }) } else { one }
}

/// A command as it goes over the socket.
fn request(command: &Command, names: &[(&str, &str)]) -> Value {
    let mut properties: Map<String, Value> =
        names.iter().map(|(field, name)| ((*field).to_owned(), json!({ "const": name }))).collect();
    let mut required: Vec<String> = names.iter().map(|(field, _)| (*field).to_owned()).collect();
    for arg in command.get_arguments().filter(|arg| !OF_CLIENT.contains(&arg.get_id().as_str())) {
        properties.insert(arg.get_id().to_string(), value_of(arg));
        if arg.is_required_set() {
            required.push(arg.get_id().to_string());
        }
    }
    if command.get_name() == "trace" {
        properties.extend(OF_TRACE.map(|(name, kind)| (name.to_owned(), json!({ "type": kind }))));
    }
    let title = command.get_about().map(ToString::to_string).unwrap_or_default();
    json!({ "title": title, "type": "object", "properties": properties, "required": required,
            "additionalProperties": false })
}

fn requests() -> Vec<Value> {
    let all = Verb::augment_subcommands(Command::new("ctl"));
    let one = |command: &Command| {
        let actions: Vec<Value> = command
            .get_subcommands()
            .map(|action| request(action, &[("verb", command.get_name()), ("action", action.get_name())]))
            .collect();
        if actions.is_empty() { vec![request(command, &[("verb", command.get_name())])] } else { actions }
    };
    // Release builds have no hidden ones.
    all.get_subcommands().filter(|command| !command.is_hide_set()).flat_map(one).collect()
}

/// The schema of a place of an answer, with all that is below it.
fn answer(told: &BTreeMap<String, Told>, place: &str) -> Value {
    let (kinds, _) = &told[place];
    let kinds: Vec<&str> = kinds.iter().copied().collect();
    let mut schema = json!({ "type": if let [one] = kinds[..] { json!(one) } else { json!(kinds) } });
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for (below, (_, is_optional)) in told {
        let Some(rest) = below.strip_prefix(place) else { continue };
        match rest.strip_prefix('.') {
            _ if rest == "[]" => schema["items"] = answer(told, below),
            Some("NAME") => schema["additionalProperties"] = answer(told, below),
            Some(name) if !name.contains(['.', '[']) => {
                properties.insert(name.to_owned(), answer(told, below));
                if !is_optional {
                    required.push(name.to_owned());
                }
            }
            _ => {}
        }
    }
    if !properties.is_empty() {
        schema["properties"] = Value::Object(properties);
        schema["required"] = json!(required);
    }
    schema
}

fn schema() -> Value {
    let told = told();
    let answers: Map<String, Value> = told
        .keys()
        .filter(|place| !place.contains(['.', '[']))
        .map(|name| (name.clone(), answer(&told, name)))
        .collect();
    let refused = json!({ "type": "object", "properties": { "ok": { "const": false }, "error": { "type": "string" } },
                          "required": ["ok", "error"] });
    let done = json!({ "type": "object", "properties": { "ok": { "const": true }, "result": {} },
                       "required": ["ok", "result"] });
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Control API of campanile",
        "description": format!("Version {API}. A request and a reply are one line each; $defs has the result of each command."),
        "oneOf": [{ "$ref": "#/$defs/request" }, { "$ref": "#/$defs/reply" }],
        "$defs": {
            "request": { "oneOf": requests() },
            "reply": { "oneOf": [done, refused] },
            "result": answers,
        },
    })
}

#[test]
fn the_schema_in_the_guide_is_that_of_the_program() {
    let now = format!("{}\n", serde_json::to_string_pretty(&schema()).unwrap());
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE);
    if std::env::var_os("CAMPANILE_WRITE_SCHEMA").is_some() {
        std::fs::write(&path, &now).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == now, "with CAMPANILE_WRITE_SCHEMA=1 this test mends {}", path.display());
}

/// What does not fit, of what the schema above uses.
fn fault(schema: &Value, value: &Value, place: &str) -> Option<String> {
    if let Some(wanted) = schema.get("const").filter(|wanted| *wanted != value) {
        return Some(format!("{place} is {value}, not {wanted}"));
    }
    if let Some(wanted) = schema.get("enum").and_then(Value::as_array).filter(|all| !all.contains(value)) {
        return Some(format!("{place} is {value}, none of {wanted:?}"));
    }
    let is = |kind: &str| match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        _ => value.is_object(),
    };
    let fits = match &schema["type"] {
        Value::String(kind) => is(kind),
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).any(is),
        _ => true,
    };
    if !fits {
        return Some(format!("{place} is {value}, and should be {}", schema["type"]));
    }
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    if let Some(missing) = required.filter(|_| value.is_object()).find(|name| value.get(name).is_none()) {
        return Some(format!("{place}.{missing} is missing"));
    }
    let of_fields = value.as_object().into_iter().flatten().find_map(|(name, field)| {
        let below = format!("{place}.{name}");
        match (schema["properties"].get(name), &schema["additionalProperties"]) {
            (Some(schema), _) => fault(schema, field, &below),
            (None, Value::Bool(false)) => Some(format!("{below} is not known")),
            (None, more) if more.is_object() => fault(more, field, &below),
            _ => None,
        }
    });
    let items = value.as_array().into_iter().flatten().enumerate();
    of_fields.or_else(|| {
        items
            .filter(|_| schema["items"].is_object())
            .find_map(|(index, item)| fault(&schema["items"], item, &format!("{place}[{index}]")))
    })
}

/// Whether exactly one of these fits.
fn is_one_of(schemas: &[Value], value: &Value) -> bool {
    schemas.iter().filter(|schema| fault(schema, value, "").is_none()).count() == 1
}

#[test]
fn requests_and_answers_of_a_daemon_fit_the_schema() {
    let schema = schema();
    let list = |of: &Value| of["oneOf"].as_array().unwrap().clone();
    let (requests, replies) = (list(&schema["$defs"]["request"]), list(&schema["$defs"]["reply"]));
    let served = Served::with(
        "[[vgpu]]\nname = \"a\"\nsocket = \"@/a.sock\"\nvram = \"64M\"\n[[vgpu]]\nname = \"b\"\nsocket = \"@/b.sock\"\nvram = \"64M\"\n",
    );
    let mut stream = UnixStream::connect(served.folder.file("control")).unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let mut ask = |request: &Value| -> Value {
        stream.write_all(format!("{request}\n").as_bytes()).unwrap();
        serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap()
    };
    work(&served, || {
        for (request, result) in [
            (json!({ "verb": "status" }), "status"),
            (json!({ "verb": "metrics" }), "metrics"),
            (json!({ "verb": "migration" }), "migration"),
            (json!({ "verb": "timeline", "vgpu": "a", "last": 1000 }), "timeline"),
            (json!({ "verb": "trace" }), "trace"),
            (json!({ "verb": "trace", "since_ns": 1, "from": { "a": 0 } }), "trace"),
            (json!({ "verb": "reload" }), "reload"),
            (json!({ "verb": "drain" }), "drain"),
            (json!({ "verb": "drain", "off": true }), "drain"),
            (json!({ "verb": "vgpu", "action": "set", "vgpu": "a", "values": ["weight=7"] }), "vgpu-set"),
            (json!({ "verb": "vgpu", "action": "remove", "vgpu": "b" }), "vgpu-remove"),
            (json!({ "verb": "notify", "vgpu": "a", "node": "copy", "mode": "on" }), ""),
            (json!({ "verb": "power", "vgpu": "a", "state": "d0" }), ""),
            (json!({ "verb": "reset-adapter", "vgpu": "z" }), ""),
            (json!({ "verb": "allow", "vgpu": "a" }), ""),
        ] {
            assert!(is_one_of(&requests, &request), "{request}");
            let reply = ask(&request);
            assert!(is_one_of(&replies, &reply), "{reply}");
            if let Some(result) = schema["$defs"]["result"].get(result) {
                assert_eq!(fault(result, &reply["result"], ""), None, "{request}");
            }
        }
    });
    // What the schema does not have the daemon does not take.
    for wrong in [
        json!({ "verb": "dance" }),
        json!({ "verb": "reset" }),
        json!({ "verb": "reset", "vgpu": "a", "force": true }),
        json!({ "verb": "notify", "vgpu": "a", "node": "gpu", "mode": "on" }),
        json!({ "verb": "vgpu", "action": "grow" }),
        json!({ "verb": "detach", "vgpu": "a", "file": "/f", "limit": "long" }),
        json!({ "verb": "trace", "perfetto": "/f" }),
    ] {
        assert!(!is_one_of(&requests, &wrong), "{wrong}");
        let reply = ask(&wrong);
        assert!(reply["ok"] == false && is_one_of(&replies, &reply), "{wrong}: {reply}");
    }
}
