//! Answers of all workers, put into one as a daemon with all these vGPUs gives it.

use std::collections::HashSet;

use serde_json::Map;
use serde_json::Value;
use serde_json::json;

/// Entries of a list that a worker may say.
const MOST: usize = 1024;

/// What the worker of a vGPU has answered, or why it has not.
#[derive(Debug)]
pub struct Answered {
    /// The vGPU.
    pub vgpu: String,
    /// What came of it.
    pub outcome: Result<Value, String>,
}

impl Answered {
    /// A list, of which only so much is looked at.
    fn list(&self, field: &str) -> &[Value] {
        self.outcome
            .as_ref()
            .ok()
            .and_then(|answer| answer[field].as_array())
            .map_or(&[], |list| &list[..list.len().min(MOST)])
    }

    fn number(&self, field: &str) -> u64 {
        self.outcome.as_ref().ok().and_then(|answer| answer[field].as_u64()).unwrap_or(0)
    }
}

/// What each says of its own vGPU, and nothing that one says of another's; of those that have not answered, why.
pub fn vgpus(answers: &[Answered]) -> Value {
    let of = |answered: &Answered| match &answered.outcome {
        Ok(_) => answered.list("vgpus").iter().find(|vgpu| vgpu["name"] == answered.vgpu.as_str()).cloned(),
        // With the lists that some answers have, for those that go through them.
        Err(why) => Some(json!({
            "name": answered.vgpu, "error": why, "engines": [], "counters": {}, "reports": [],
        })),
    };
    answers.iter().filter_map(of).collect()
}

/// The entries of these lists of all, a field each: what each says of its own vGPU.
pub fn lists(answers: &[Answered], fields: &[&str]) -> Map<String, Value> {
    let of = |field: &str| {
        let each = answers.iter().map(|answered| {
            let entries = answered.list(field).iter();
            entries.filter(|entry| entry["vgpu"] == answered.vgpu.as_str()).cloned().collect::<Vec<_>>()
        });
        Value::Array(each.flatten().collect())
    };
    fields.iter().map(|field| ((*field).to_owned(), of(field))).collect()
}

/// What is on its way to each, of its own vGPU; null where none listens.
pub fn arrivals(answers: &[Answered]) -> Value {
    let listens = |answered: &Answered| {
        let arrivals = answered.outcome.as_ref().ok()?.get("arrivals")?;
        let outcome = Ok(arrivals.is_object().then(|| arrivals.clone())?);
        Some(Answered { vgpu: answered.vgpu.clone(), outcome })
    };
    let all: Vec<Answered> = answers.iter().filter_map(listens).collect();
    if all.is_empty() {
        return Value::Null;
    }
    let mut merged = lists(&all, &["bundles"]);
    for field in ["log_lines_left_out", "failed_lines"] {
        let sum: u64 = all.iter().map(|answered| answered.number(field)).fold(0, u64::saturating_add);
        merged.insert(field.to_owned(), sum.into());
    }
    Value::Object(merged)
}

/// What came of each, by its vGPU.
pub fn by_vgpu(answers: Vec<Answered>) -> Value {
    let of = |answered: Answered| {
        let outcome = answered.outcome.unwrap_or_else(|why| json!({ "error": why }));
        // An answer about all vGPUs has it under the name.
        let own = outcome.get(&answered.vgpu).cloned().unwrap_or(outcome);
        (answered.vgpu, own)
    };
    Value::Object(answers.into_iter().map(of).collect())
}

/// What came of a change of the configuration: what is said by several is there once.
pub fn changes(answers: &[Answered]) -> Map<String, Value> {
    let once = |field: &str| {
        let mut said = HashSet::new();
        let all = answers.iter().flat_map(|answered| answered.list(field)).filter_map(Value::as_str);
        all.filter(|text| said.insert(*text)).map(Value::from).collect::<Vec<_>>()
    };
    let mut merged: Map<String, Value> = ["changed", "needs_restart", "failed"]
        .into_iter()
        .map(|field| (field.to_owned(), Value::Array(once(field))))
        .collect();
    let failed = answers.iter().filter_map(|answered| {
        let why = answered.outcome.as_ref().err()?;
        Some(Value::String(format!("vGPU {}: {why}", answered.vgpu)))
    });
    if let Some(Value::Array(all)) = merged.get_mut("failed") {
        all.extend(failed);
    }
    merged
}

/// Whether the worker of a vGPU has removed it, when it was told that the configuration has it no more.
pub fn has_let_go(answers: &[Answered], vgpu: &str) -> bool {
    let own = answers.iter().find(|answered| answered.vgpu == vgpu);
    own.is_some_and(|answered| answered.outcome.is_ok() && answered.list("failed").is_empty())
}

/// What came of the upgrade of each, which took one after the other.
pub fn upgrades(answers: &[Answered], pid: u32) -> Value {
    let sum = |field: &str| answers.iter().map(|answered| answered.number(field)).sum::<u64>();
    let longest = answers.iter().map(|answered| answered.number("stood_still_ms")).max();
    let version =
        answers.iter().find_map(|answered| Some(answered.outcome.as_ref().ok()?["version"].clone()));
    let mut merged = lists(answers, &["lost"]);
    for (field, value) in [
        ("pid", json!(pid)),
        ("version", json!(version)),
        ("vms", json!(sum("vms"))),
        ("engines_opened", json!(sum("engines_opened"))),
        ("stood_still_ms", json!(longest.unwrap_or(0))),
    ] {
        merged.insert(field.to_owned(), value);
    }
    Value::Object(merged)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use serde_json::json;

    use super::Answered;
    use super::arrivals;
    use super::by_vgpu;
    use super::changes;
    use super::has_let_go;
    use super::upgrades;
    use super::vgpus;

    fn answers(of: Vec<(&str, Result<Value, &str>)>) -> Vec<Answered> {
        let each = |(vgpu, outcome): (&str, Result<Value, &str>)| Answered {
            vgpu: vgpu.to_owned(),
            outcome: outcome.map_err(str::to_owned),
        };
        of.into_iter().map(each).collect()
    }

    #[test]
    fn a_worker_speaks_for_its_own_vgpu_and_for_no_other() {
        let of = |names: &[&str]| json!({ "vgpus": names.iter().map(|name| json!({ "name": name, "of": 1 })).collect::<Vec<_>>() });
        let answers = answers(vec![
            ("a", Ok(of(&["b", "a"]))),
            ("b", Err("it is stopped")),
            ("c", Ok(of(&["a"]))),
            ("d", Ok(json!(7))),
        ]);
        let found = vgpus(&answers);
        assert_eq!(found.as_array().unwrap().len(), 2);
        assert_eq!(found[0], json!({ "name": "a", "of": 1 }));
        assert_eq!((&found[1]["name"], &found[1]["error"]), (&json!("b"), &json!("it is stopped")));
    }

    #[test]
    fn changes_of_all_are_there_once_and_what_has_failed_too() {
        let answers = answers(vec![
            (
                "a",
                Ok(
                    json!({ "changed": ["log-level", "vGPU a: weight"], "needs_restart": ["engines"], "failed": [] }),
                ),
            ),
            (
                "b",
                Ok(
                    json!({ "changed": ["log-level"], "needs_restart": ["engines"], "failed": ["vGPU b: x"] }),
                ),
            ),
            ("c", Err("it is stopped")),
        ]);
        let merged = Value::Object(changes(&answers));
        let expected = json!({ "changed": ["log-level", "vGPU a: weight"], "needs_restart": ["engines"],
            "failed": ["vGPU b: x", "vGPU c: it is stopped"] });
        assert_eq!(merged, expected);
        assert_eq!(["a", "b", "c", "d"].map(|vgpu| has_let_go(&answers, vgpu)), [true, false, false, false]);
    }

    #[test]
    fn an_answer_by_vgpu_is_of_each_worker_its_own_part() {
        let all = answers(vec![
            ("a", Ok(json!({ "a": { "reset": 1 }, "b": { "reset": 9 } }))),
            ("b", Ok(json!({ "b": { "reset": 2 } }))),
            ("c", Err("it is stopped")),
        ]);
        let expected = json!({ "a": { "reset": 1 }, "b": { "reset": 2 }, "c": { "error": "it is stopped" } });
        assert_eq!(by_vgpu(all), expected);
    }

    #[test]
    fn what_is_on_its_way_to_workers_is_that_of_their_own_vgpus() {
        let of = |vgpus: &[&str], failed: u64| {
            let bundles: Vec<Value> = vgpus.iter().map(|vgpu| json!({ "vgpu": vgpu })).collect();
            Ok(
                json!({ "arrivals": { "listens": "unix:/p", "bundles": bundles, "log_lines_left_out": 1, "failed_lines": failed } }),
            )
        };
        let none = || ("c", Ok(json!({ "arrivals": null })));
        let all =
            answers(vec![("a", of(&["a", "b"], 2)), ("b", of(&["b"], u64::MAX)), none(), ("d", Err("x"))]);
        let expected = json!({ "bundles": [{ "vgpu": "a" }, { "vgpu": "b" }], "log_lines_left_out": 2, "failed_lines": u64::MAX });
        assert_eq!(arrivals(&all), expected);
        assert_eq!(arrivals(&answers(vec![none()])), Value::Null);
    }

    #[test]
    fn upgrades_one_after_the_other_stood_still_for_as_long_as_the_longest() {
        let of = |vgpu: &str, vms: u64, still: u64| json!({ "pid": 3, "version": "2", "vms": vms, "engines_opened": 2, "lost": [{ "vgpu": vgpu, "why": vms }, { "vgpu": "other", "why": 1 }], "stood_still_ms": still });
        let answers = answers(vec![("a", Ok(of("a", 1, 20))), ("b", Ok(of("b", 0, 5)))]);
        let expected = json!({ "pid": 7, "version": "2", "vms": 1, "engines_opened": 4, "stood_still_ms": 20,
            "lost": [{ "vgpu": "a", "why": 1 }, { "vgpu": "b", "why": 0 }] });
        assert_eq!(upgrades(&answers, 7), expected);
    }
}
