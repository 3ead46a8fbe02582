//! The tables of the page on the protocol are those of this crate: made of its sources and constants.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(
    clippy::unnecessary_fallible_conversions,
    clippy::useless_conversion,
    reason = "constants of all types"
)]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use campanile_protocol::PAGE_SIZE;
use campanile_protocol::PROTOCOL_VERSION;
use campanile_protocol::capset::CAPSET_ID;
use campanile_protocol::control::frame;
use campanile_protocol::control::memory;
use campanile_protocol::control::message;
use campanile_protocol::control::reply;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;
use campanile_protocol::fs::call::MAX_CALL_BYTES;
use campanile_protocol::fs::place;
use campanile_protocol::packet;
use campanile_protocol::packet::Fault;
use campanile_protocol::queue::doorbell::DoorbellStatus;
use campanile_protocol::queue::ring;
use campanile_protocol::virtio_gpu;

const PAGE: &str = "../docs/book/protocol.md";

/// Names with their values.
macro_rules! values {
    ($module:ident: $($name:ident),+ $(,)?) => {
        [$((stringify!($name), u64::try_from($module::$name).unwrap())),+]
    };
}

fn source(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A line of a source with what its comment says.
struct Item {
    line: String,
    says: String,
}

/// All lines that have a comment, but for those of tests.
fn items(file: &str) -> Vec<Item> {
    let text = source(file);
    let shipped = text.split("#[cfg(test)]").next().unwrap();
    let (mut items, mut says) = (Vec::new(), Vec::new());
    for line in shipped.lines().map(str::trim) {
        match line.strip_prefix("///") {
            Some(text) => says.push(text.trim().to_owned()),
            None if line.starts_with("#[") => {}
            None => {
                let says = plain(&std::mem::take(&mut says).join(" "));
                items.push(Item { line: line.to_owned(), says });
            }
        }
    }
    items
}

/// Without links and without numbers of rules.
fn plain(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['[', '(']) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let is_rule = |inner: &str| {
            !inner.is_empty()
                && inner.split([',', ' ']).filter(|word| !word.is_empty()).all(|word| {
                    matches!(word, "to" | "and")
                        || word.split_once('-').is_some_and(|(group, number)| {
                            group.bytes().all(|byte| byte.is_ascii_uppercase())
                                && number.bytes().all(|byte| byte.is_ascii_digit())
                        })
                })
        };
        if let Some((path, after)) = rest.strip_prefix("[`").and_then(|link| link.split_once("`]")) {
            let _written = write!(out, "`{}`", path.rsplit("::").next().unwrap());
            rest = after;
        } else if let Some((inner, after)) = rest.strip_prefix('(').and_then(|open| open.split_once(')'))
            && is_rule(inner)
        {
            out.truncate(out.trim_end().len());
            rest = after;
        } else {
            out.push_str(&rest[..1]);
            rest = &rest[1..];
        }
    }
    out + rest
}

/// A constant of this type, its name and its value as it is written.
fn constant<'a>(line: &'a str, kind: &str) -> Option<(&'a str, &'a str)> {
    let (name, rest) = line.strip_prefix("pub const ")?.split_once(": ")?;
    let value = rest.strip_prefix(kind)?.strip_prefix(" = ")?.strip_suffix(';')?;
    Some((name, value))
}

fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let rules = "|---".repeat(head.len());
    let head = line(head.iter().map(|cell| (*cell).to_owned()).collect());
    let rows: String = rows.into_iter().map(line).collect();
    format!("{head}{rules}|\n{rows}")
}

/// Constants that are written as numbers: those which `is_one` says of by name and comment.
fn numbers(files: &[&str], kind: &str, is_one: impl Fn(&str, &str) -> bool) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for item in files.iter().flat_map(|file| items(file)) {
        if let Some((name, value)) = constant(&item.line, kind)
            && is_one(name, &item.says)
        {
            rows.push(vec![value.to_owned(), format!("`{name}`"), item.says.clone()]);
        }
    }
    rows
}

/// Places, states and limits: values that the crate has, with what its sources say of them.
fn known(file: &str, values: &[(&str, u64)]) -> Vec<Vec<String>> {
    let items = items(file);
    let row = |&(name, value): &(&str, u64)| {
        let begin = format!("pub const {name}: ");
        let item = items.iter().find(|item| item.line.starts_with(&begin));
        let item = item.unwrap_or_else(|| panic!("{file} has no {name}"));
        vec![value.to_string(), format!("`{name}`"), item.says.clone()]
    };
    values.iter().map(row).collect()
}

/// The variants of an enum by their numbers.
fn variants(file: &str, name: &str) -> Vec<Vec<String>> {
    let within = items(file).into_iter().skip_while(|item| item.line != format!("pub enum {name} {{"));
    let variants = within.skip(1).take_while(|item| item.line != "}");
    let row = |item: Item| {
        let (name, value) = item.line.trim_end_matches(',').split_once(" = ").unwrap();
        vec![value.to_owned(), format!("`{name}`"), item.says.clone()]
    };
    variants.map(row).collect()
}

/// Bytes of a type; `structs` has those of structs.
fn bytes(kind: &str, structs: &BTreeMap<String, u64>) -> u64 {
    let array = kind.strip_prefix('[').and_then(|array| array.strip_suffix(']'));
    if let Some((of, count)) = array.and_then(|array| array.split_once("; ")) {
        let count = match count {
            "DOORBELL_PRIVATE_BYTES" => message::DOORBELL_PRIVATE_BYTES as u64,
            count => count.parse().unwrap_or_else(|_| panic!("how much is {count}?")),
        };
        return bytes(of, structs) * count;
    }
    match kind {
        "u8" => 1,
        "u16" => 2,
        "u32" | "i32" => 4,
        "u64" | "Handle" => 8,
        _ => *structs.get(kind).unwrap_or_else(|| panic!("how long is {kind}?")),
    }
}

/// The structs of sources with their bytes and fields. `repr(C)` and `IntoBytes`: no field is followed by a gap.
fn structs(files: &[&str]) -> Vec<Vec<String>> {
    let (mut sizes, mut rows) = (BTreeMap::new(), Vec::new());
    for file in files {
        let (mut fields, mut whole) = (Vec::new(), None);
        for Item { line, .. } in items(file) {
            let begins = line.strip_prefix("pub struct ").and_then(|rest| rest.strip_suffix(" {"));
            if let Some(name) = begins.filter(|name| !name.contains('<')) {
                whole = Some((name.to_owned(), 0));
            } else if let (Some((_, size)), Some(field)) = (&mut whole, line.strip_prefix("pub ")) {
                let (name, kind) = field.trim_end_matches(',').split_once(": ").unwrap();
                *size += bytes(kind, &sizes);
                let private = message::DOORBELL_PRIVATE_BYTES.to_string();
                fields.push(format!("{name} {}", kind.replace("DOORBELL_PRIVATE_BYTES", &private)));
            } else if line == "}"
                && let Some((name, size)) = whole.take()
            {
                rows.push(vec![
                    format!("`{name}`"),
                    size.to_string(),
                    std::mem::take(&mut fields).join(", "),
                ]);
                sizes.insert(name, size);
            }
        }
    }
    rows
}

const MESSAGES: [&str; 5] = ["message", "scheduling", "memory", "native_fence", "away"];

/// Codes of messages are those whose comment begins with a body.
fn is_code(says: &str) -> bool {
    says.starts_with("No body") || (says.starts_with('`') && !says.contains("` flag"))
}

fn control(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| format!("control/{name}.rs")).collect()
}

fn tables() -> Vec<(&'static str, String)> {
    let files = control(&MESSAGES);
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let bodies: Vec<&str> =
        [&["control/frame.rs", "control/reply.rs", "queue/ring.rs"], &files[..], &["packet.rs"]].concat();
    let places = values!(device_page: DEVICE_STATUS, LOSS, LOSS_REPORT, BUDGET, LEAVE, PAGING_FENCE, GLOBAL_CELLS,
        SUMMARIES, CELLS, STATUSES, FENCES, LAST_QUEUED, RESPONSES, DEVICE_PAGE_BYTES);
    let states = values!(device_page: DEVICE_ACTIVE, DEVICE_RESET, DEVICE_HUNG, DEVICE_STOPPED, DEVICE_OUT_OF_MEMORY,
        DEVICE_DMA_FAULT, DEVICE_PAGE_FAULT);
    let control = values!(ring: CONTROL_WRITE_POINTER, CONTROL_READ_POINTER, CONTROL_BYTES);
    let limits = [
        known("control/frame.rs", &values!(frame: MAX_CONTROL_BYTES)),
        known("control/reply.rs", &values!(reply: MAX_PAYLOAD)),
        known("device_page.rs", &values!(device_page: RESPONSE_SLOTS, RESPONSE_SLOT_BYTES, MAX_QUEUES)),
        known("control/memory.rs", &values!(memory: MAX_LIST)),
        known("queue/ring.rs", &values!(ring: RING_ENTRY_BYTES, MIN_RING_ENTRIES, MAX_RING_ENTRIES)),
        known("packet.rs", &values!(packet: MAX_DMA_BUFFER, MAX_BINDINGS, MAX_CONSTANTS)),
        vec![vec![
            MAX_CALL_BYTES.to_string(),
            "`MAX_CALL_BYTES`".into(),
            "Bytes of a call on the fs front.".into(),
        ]],
        known("fs/place.rs", &values!(place: STAGE_BASE, REGISTER_BASE, MAX_REGISTERED, MAX_BLOB)),
        vec![vec![PAGE_SIZE.to_string(), "`PAGE_SIZE`".into(), "Bytes of a page.".into()]],
    ];
    let command = |_: &str, says: &str| says.starts_with("`VIRTIO_GPU_CMD");
    let commands = numbers(&["virtio_gpu/command.rs"], "u32", command).into_iter();
    let commands = commands.map(|row| vec![row[0].clone(), row[2].trim_end_matches('.').to_owned()]);
    let code = ["code", "name", "what"];
    vec![
        ("gpu-commands", table(&["code", "command"], commands)),
        ("fs-calls", table(&["number", "call", "body → answer"], variants("fs/call.rs", "Call"))),
        (
            "messages",
            table(&["code", "message", "body → answer"], numbers(&files, "u32", |_, says| is_code(says))),
        ),
        ("statuses", table(&code, variants("control/status.rs", "Status"))),
        ("places", table(&["byte", "place", "what"], known("device_page.rs", &places))),
        ("states", table(&code, known("device_page.rs", &states))),
        ("doorbells", table(&code, variants("queue/doorbell.rs", "DoorbellStatus"))),
        ("ring-control", table(&["byte", "place", "what"], known("queue/ring.rs", &control))),
        ("packets", table(&["code", "packet", "body"], numbers(&["packet.rs"], "u16", |_, _| true))),
        ("faults", table(&code, variants("packet.rs", "Fault"))),
        ("limits", table(&["value", "name", "what"], limits.concat())),
        (
            "fs-bodies",
            table(&["struct", "bytes", "fields, in order"], structs(&["fs/call.rs", "fs/body.rs"])),
        ),
        ("bodies", table(&["struct", "bytes", "fields, in order"], structs(&bodies))),
    ]
}

#[test]
fn the_tables_of_the_page_are_those_of_this_crate() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    let kept = fs::read_to_string(&path).unwrap();
    let mut page = kept.clone();
    for (name, table) in tables() {
        let mark = format!("<!-- table: {name} -->\n\n");
        let (before, rest) = page.split_once(&mark).unwrap_or_else(|| panic!("the page has no {mark}"));
        let after = rest.split_once("\n\n").map_or("", |(_, after)| after);
        let old = rest.len() - after.len();
        let after = if rest.starts_with('|') { &rest[old..] } else { rest };
        page = format!("{before}{mark}{table}\n{after}");
    }
    if std::env::var_os("CAMPANILE_WRITE_PROTOCOL").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap();
    assert!(kept == page, "with CAMPANILE_WRITE_PROTOCOL=1 this test mends {}", path.display());
}

/// What the sources are read as, held against what the compiler makes of them.
#[test]
fn sources_are_read_as_the_compiler_reads_them() {
    let by_name = |rows: Vec<Vec<String>>| -> BTreeMap<String, String> {
        rows.into_iter().map(|row| (row[1].trim_matches('`').to_owned(), row[0].clone())).collect()
    };
    for (number, name) in
        by_name(variants("control/status.rs", "Status")).into_iter().map(|(name, at)| (at, name))
    {
        assert_eq!(format!("{:?}", Status::from_word(number.parse().unwrap()).unwrap()), name);
    }
    for (name, number) in by_name(variants("packet.rs", "Fault")) {
        assert_eq!(format!("{:?}", Fault::from_word(number.parse().unwrap()).unwrap()), name);
    }
    for (name, number) in by_name(variants("queue/doorbell.rs", "DoorbellStatus")) {
        assert_eq!(format!("{:?}", DoorbellStatus::from_word(number.parse().unwrap()).unwrap()), name);
    }
    let packets = by_name(numbers(&["packet.rs"], "u16", |_, _| true));
    assert_eq!((packets.len(), &*packets["DISPATCH_BASE"]), (10, "9"));
    let files = control(&MESSAGES);
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let messages = by_name(numbers(&files, "u32", |_, says| is_code(says)));
    assert_eq!(messages["SET_PRIORITY"].parse(), Ok(memory::SET_PRIORITY));
    assert!(!messages.contains_key("MAP_WRITABLE") && !messages.contains_key("EVICT_NOW"));
    let sizes: BTreeMap<String, String> = structs(&["control/message.rs", "packet.rs"])
        .into_iter()
        .map(|row| (row[0].clone(), row[1].clone()))
        .collect();
    for (name, size) in [
        ("`CreateDoorbell`", size_of::<message::CreateDoorbell>()),
        ("`DispatchBase`", size_of::<packet::DispatchBase>()),
        ("`Binding`", size_of::<packet::Binding>()),
    ] {
        assert_eq!(sizes[name], size.to_string(), "{name}");
    }
    assert_eq!(plain("[`a::B`] is (UMS-1, PRE-2) [x] (y)"), "`B` is [x] (y)");
}

/// No word of the device page is left out, and numbers in sentences are right.
#[test]
fn every_place_of_the_device_page_and_the_version_are_told() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE)).unwrap();
    let names = items("device_page.rs").into_iter().filter_map(|item| {
        let name = item.line.strip_prefix("pub const ")?.split_once(": u64")?.0;
        Some(name.to_owned())
    });
    for name in names {
        assert!(page.contains(&format!("`{name}`")), "the page does not say what {name} is");
    }
    let [major, minor] = [PROTOCOL_VERSION >> 16, PROTOCOL_VERSION & 0xffff];
    for says in [
        format!("This is version {major}.{minor}."),
        format!("capability set {CAPSET_ID}"),
        format!("A virtio-gpu device (id {})", virtio_gpu::DEVICE_ID),
        format!("A virtio-fs device (id {})", campanile_protocol::fs::DEVICE_ID),
        format!("shared memory region {}", virtio_gpu::SHM_HOST_VISIBLE),
        format!("\"{}\"", String::from_utf8_lossy(&frame::MAGIC.to_le_bytes())),
    ] {
        assert!(page.contains(&says), "the page does not say: {says}");
    }
}
