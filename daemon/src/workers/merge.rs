//! Answers of all workers, put into one as a daemon with all these vGPUs gives it.

use serde_json::Map;
use serde_json::Value;
use serde_json::json;

/// What the worker of a vGPU has answered, or why it has not.
#[derive(Debug)]
pub struct Answered {
    /// The vGPU.
    pub vgpu: String,
    /// What came of it.
    pub outcome: Result<Value, String>,
}

impl Answered {
    fn list(&self, field: &str) -> &[Value] {
        self.outcome.as_ref().ok().and_then(|answer| answer[field].as_array()).map_or(&[], Vec::as_slice)
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

/// The entries of these lists of all, a field each.
pub fn lists(answers: &[Answered], fields: &[&str]) -> Map<String, Value> {
    let of = |field: &str| answers.iter().flat_map(|answered| answered.list(field)).cloned().collect();
    fields.iter().map(|field| ((*field).to_owned(), Value::Array(of(field)))).collect()
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

/// What came of a change of the configuration.
pub fn changes(answers: &[Answered]) -> Map<String, Value> {
    let mut merged = lists(answers, &["changed", "needs_restart", "failed"]);
    // Options of all are said once.
    for list in merged.values_mut().filter_map(Value::as_array_mut) {
        let mut once: Vec<Value> = Vec::with_capacity(list.len());
        list.drain(..).for_each(|entry| {
            if !once.contains(&entry) {
                once.push(entry);
            }
        });
        *list = once;
    }
    let failed = answers.iter().filter_map(|answered| {
        let why = answered.outcome.as_ref().err()?;
        Some(Value::String(format!("vGPU {}: {why}", answered.vgpu)))
    });
    if let Some(Value::Array(all)) = merged.get_mut("failed") {
        all.extend(failed);
    }
    merged
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
    use super::by_vgpu;
    use super::changes;
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
    fn upgrades_one_after_the_other_stood_still_for_as_long_as_the_longest() {
        let of = |vms: u64, still: u64| json!({ "pid": 3, "version": "2", "vms": vms, "engines_opened": 2, "lost": [vms], "stood_still_ms": still });
        let answers = answers(vec![("a", Ok(of(1, 20))), ("b", Ok(of(0, 5)))]);
        let expected = json!({ "pid": 7, "version": "2", "vms": 1, "engines_opened": 4, "lost": [1, 0], "stood_still_ms": 20 });
        assert_eq!(upgrades(&answers, 7), expected);
    }
}
