//! Changes to CBOR that leave it CBOR.

use ciborium::Value;

/// Changes a value somewhere in the state, or leaves something out, or has it twice.
pub(crate) fn change(value: &mut Value, seed: u64, depth: u32) {
    let next = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let pick = |count: usize| usize::try_from(seed >> 33).unwrap() % count.max(1);
    match value {
        Value::Array(list) if !list.is_empty() => {
            let place = pick(list.len());
            match (next >> 40) % 12 {
                0 => drop(list.remove(place)),
                1 => list.insert(place, list[place].clone()),
                2 => {
                    let other = pick(list.len() * 7) % list.len();
                    list.swap(place, other);
                }
                _ => change(&mut list[place], next, depth + 1),
            }
        }
        Value::Map(map) if !map.is_empty() => {
            let place = pick(map.len());
            match (next >> 40) % 16 {
                0 if depth > 0 => drop(map.remove(place)),
                _ => change(&mut map[place].1, next, depth + 1),
            }
        }
        Value::Integer(number) => {
            let before = i128::from(*number);
            let after: i128 = match next >> 60 {
                0 => 0,
                1 => before + 1,
                2 => before - 1,
                3 => i128::from(u64::MAX),
                4 => i128::from(u32::MAX),
                5 => i128::from(u64::MAX) - 4095,
                6 => before ^ 4096,
                7 => before * 2,
                8 => i128::from(i64::MAX),
                9 => before + 4096,
                10 => 1 << 40,
                11 => before | 1 << 32,
                12 => -1,
                13 => i128::from(next),
                14 => i128::from(next & 0xff),
                _ => 1,
            };
            let clamped = after.clamp(-1, i128::from(u64::MAX));
            *value = Value::Integer(clamped.try_into().unwrap());
        }
        Value::Bool(flag) => *flag = !*flag,
        other => {
            *other = match next >> 62 {
                0 => Value::Null,
                1 => Value::Integer(next.into()),
                2 => Value::Array(Vec::new()),
                _ => Value::Bytes(vec![0xff; 3]),
            }
        }
    }
}

/// A state with one change, or several, behind its `header` bytes; `None` where it is none.
#[allow(dead_code, reason = "for whoever has whole states")]
pub(crate) fn changed(bytes: &[u8], header: usize, seed: u64) -> Option<Vec<u8>> {
    let (header, map) = bytes.split_at_checked(header)?;
    let mut map: Value = ciborium::from_reader(map).ok()?;
    for part in 0..=seed % 3 {
        change(&mut map, seed.rotate_left(u32::try_from(part * 21).unwrap()), 0);
    }
    let mut bytes = header.to_vec();
    ciborium::into_writer(&map, &mut bytes).ok()?;
    Some(bytes)
}
