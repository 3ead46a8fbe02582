//! `campanile ctl drain`, for people, and until no VM is left.

use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;
use serde_json::json;

use crate::operator::client;
use crate::operator::client::ClientError;
use crate::operator::verb::Verb;

/// How often the daemon is asked which VMs are left.
const LOOK: Duration = Duration::from_millis(500);

/// What has come of it.
pub(super) fn describe(result: &Value) -> String {
    let vms = result["vms"].as_array().map_or(&[][..], Vec::as_slice);
    let each = vms.iter().map(|vm| {
        let name = vm["vgpu"].as_str().unwrap_or_default();
        match vm["why"].as_str() {
            None => format!("{name}: moves; its VMM moves the rest\n"),
            Some(why) => format!("{name}: {why}\n"),
        }
    });
    let is_drained = result["drained"].as_bool() == Some(true);
    let all = match (is_drained, vms.len()) {
        (false, _) => "VMs are taken again\n".to_owned(),
        (true, 0) => "no VM is left\n".to_owned(),
        (true, 1) => "1 VM is left; no other is taken\n".to_owned(),
        (true, left) => format!("{left} VMs are left; no other is taken\n"),
    };
    if is_drained { each.chain([all]).collect() } else { all }
}

/// Waits until no VM is left, and writes which are to standard error whenever one has gone. None, in the end.
///
/// # Errors
/// The daemon is gone, or takes VMs again.
pub(super) fn wait(control: &Path, first: Value) -> anyhow::Result<Value> {
    let mut left = names(&first, |_| true);
    while !left.is_empty() {
        sleep(LOOK);
        let status: Result<Value, ClientError> = client::ask(control, &Verb::Status);
        let status = status?;
        anyhow::ensure!(status["drained"] == true, "VMs are taken again: another `drain --off`");
        let now = names(&status["vgpus"], |vgpu| vgpu["vm_connected"] == true);
        if now != left {
            eprintln!("left: {}", if now.is_empty() { "none".to_owned() } else { now.join(", ") });
            left = now;
        }
    }
    Ok(json!([]))
}

/// The names of those that are so.
fn names(vgpus: &Value, is_so: impl Fn(&Value) -> bool) -> Vec<String> {
    let all = vgpus.as_array().map_or(&[][..], Vec::as_slice);
    let name =
        |vgpu: &Value| vgpu["vgpu"].as_str().or_else(|| vgpu["name"].as_str()).unwrap_or_default().to_owned();
    all.iter().filter(|vgpu| is_so(vgpu)).map(name).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::describe;

    #[test]
    fn each_vm_that_is_left_says_whether_it_moves_and_why_not() {
        let vms = json!([{ "vgpu": "a", "moves": true, "why": null }, { "vgpu": "b", "moves": false, "why": "no peer" }]);
        let text = describe(&json!({ "drained": true, "vms": vms }));
        assert_eq!(text, "a: moves; its VMM moves the rest\nb: no peer\n2 VMs are left; no other is taken\n");
        assert_eq!(describe(&json!({ "drained": true, "vms": [] })), "no VM is left\n");
        assert_eq!(describe(&json!({ "drained": false, "vms": vms })), "VMs are taken again\n");
    }
}
