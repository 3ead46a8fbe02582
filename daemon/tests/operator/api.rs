//! The answers on the control socket, as the guide has them.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use campanile_daemon::operator::client;
use serde_json::Value;
use serde_json::json;

use crate::served::Served;
use crate::upgrade::connect;
use crate::upgrade::end;
use crate::work::work;

const PAGE: &str = include_str!("../../../docs/book/control-api.md");

/// Objects whose keys are names.
const BY_NAME: [&str; 2] = [".counters", ".budget.kinds"];

/// Every place of an answer, with the kinds of values that it has.
fn collect(value: &Value, place: &str, into: &mut BTreeMap<String, BTreeSet<&'static str>>) {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(values) => {
            values.iter().for_each(|value| collect(value, &format!("{place}[]"), into));
            "array"
        }
        Value::Object(fields) => {
            let is_by_name = BY_NAME.iter().any(|end| place.ends_with(end));
            for (name, value) in fields {
                let name = if is_by_name { "NAME" } else { name };
                collect(value, &format!("{place}.{name}"), into);
            }
            "object"
        }
    };
    into.entry(place.to_owned()).or_default().insert(kind);
}

/// The kinds of values of a place, and whether it may be absent.
pub(crate) type Told = (BTreeSet<&'static str>, bool);

/// What the guide says of each place.
pub(crate) fn told() -> BTreeMap<String, Told> {
    let block = PAGE.split("```text\n").find(|block| block.starts_with("status ")).unwrap();
    let lines = block.split("```").next().unwrap().lines();
    let line = |line: &'static str| {
        let (place, kinds) = line.split_once(' ').unwrap();
        let optional = place.strip_suffix('?');
        (optional.unwrap_or(place).to_owned(), (kinds.trim().split('|').collect(), optional.is_some()))
    };
    lines.map(line).collect()
}

#[test]
fn every_answer_is_as_the_guide_has_it() {
    let vgpu =
        |name: &str| format!("[[vgpu]]\nname = \"{name}\"\nsocket = \"@/{name}.sock\"\nvram = \"64M\"\n");
    let served = Served::with(&format!("{}{}", vgpu("a"), vgpu("b")));
    let mut seen = BTreeMap::new();
    work(&served, || {
        for verb in ["status", "metrics", "migration", "reports", "timeline", "reload"] {
            collect(&served.ask(&[verb]), verb, &mut seen);
        }
        let verb = json!({ "verb": "trace", "since_ns": 0, "from": { "a": 0 } });
        let trace = client::ask(&served.folder.file("control"), &serde_json::from_value(verb).unwrap());
        collect(&trace.unwrap(), "trace", &mut seen);
    });
    let spec = format!("name=c,socket={},vram=64M", served.folder.file("c.sock").display());
    for (place, verb) in [
        ("vgpu-add", ["add", &spec, ""]),
        ("vgpu-set", ["set", "c", "weight=7"]),
        ("vgpu-remove", ["remove", "c", ""]),
    ] {
        let words = std::iter::once("vgpu").chain(verb.into_iter().filter(|word| !word.is_empty()));
        collect(&served.ask(&words.collect::<Vec<_>>()), place, &mut seen);
    }
    let vm = connect(&served, "a");
    collect(&served.ask(&["drain"]), "drain", &mut seen);
    drop(vm);
    let upgraded = served.ask(&["upgrade"]);
    collect(&upgraded, "upgrade", &mut seen);
    end(&upgraded);
    let told = told();
    let mut missing = String::new();
    for (place, kinds) in &seen {
        let is_told = told.get(place).is_some_and(|(told, _)| kinds.is_subset(told));
        if !is_told {
            let kinds: Vec<&str> = kinds.iter().copied().collect();
            missing.push_str(&format!("{place} {}\n", kinds.join("|")));
        }
    }
    assert!(missing.is_empty(), "docs/book/control-api.md does not say:\n{missing}");
    for (place, (_, is_optional)) in told {
        assert!(
            is_optional || seen.contains_key(&place),
            "docs/book/control-api.md has {place}, which was not there"
        );
    }
}
