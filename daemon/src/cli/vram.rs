//! `campanile ctl vram`: a picture of each vGPU's memory.

use serde_json::Value;

const MIB: u64 = 1 << 20;

/// A bar of one segment: the fuller a cell, the darker.
fn bar(cells: &Value) -> String {
    let shade = |percent: u64| match percent {
        0 => ' ',
        1..=25 => '░',
        26..=50 => '▒',
        51..=99 => '▓',
        _ => '█',
    };
    let cells = cells.as_array().map_or(&[][..], Vec::as_slice);
    cells.iter().map(|cell| shade(cell.as_u64().unwrap_or(0))).collect()
}

/// All vGPUs, four lines each.
pub fn picture(result: &Value) -> String {
    let vgpus = result["vgpus"].as_array().map_or(&[][..], Vec::as_slice);
    let one = |vgpu: &Value| {
        let name = vgpu["name"].as_str().unwrap_or("?");
        let memory = &vgpu["session"]["memory"];
        let mib = |field: &str| memory[field].as_u64().unwrap_or(0).div_ceil(MIB);
        if memory.is_null() {
            return format!("{name}: {}\n", vgpu["error"].as_str().unwrap_or("no VM"));
        }
        let segment = |what: &str, all: &str, free: &str, cells: &str| {
            let used = mib(all).saturating_sub(memory[free].as_u64().unwrap_or(0) / MIB);
            format!("  {what:<8} │{}│ {used} of {} MiB\n", bar(&memory[cells]), mib(all))
        };
        format!(
            "{name}: {} MiB allocated, {} more possible, {} guaranteed, {} at the most\n{}{}  {:<8} {} MiB in host memory, {} MiB \
             held, {} evictions, {} restores\n",
            mib("committed"),
            mib("available"),
            mib("guaranteed"),
            mib("limit"),
            segment("visible", "visible", "visible_free", "visible_cells"),
            segment("local", "local", "local_free", "local_cells"),
            "evicted",
            mib("evicted"),
            mib("held"),
            memory["evictions"],
            memory["restores"],
        )
    };
    vgpus.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::picture;

    #[test]
    fn a_picture_shows_each_segment_and_what_is_evicted() {
        let memory = json!({ "committed": 5 << 20, "available": 91 << 20, "guaranteed": 0, "limit": 96 << 20,
            "visible": 16 << 20, "visible_free": 15 << 20, "visible_cells": [100, 0],
            "local": 16 << 20, "local_free": 12 << 20, "local_cells": [100, 60, 30, 1, 0],
            "evicted": 3 << 20, "held": 0, "evictions": 2, "restores": 1 });
        let text = picture(&json!({ "vgpus": [
            { "name": "a", "session": { "memory": memory } }, { "name": "b" }, { "name": "c", "error": "it does not answer" },
        ] }));
        for part in [
            "a: 5 MiB",
            "│█ │ 1 of 16 MiB",
            "│█▓▒░ │ 4 of 16 MiB",
            "3 MiB in host memory",
            "b: no VM",
            "c: it does not answer",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }
}
