use std::collections::BTreeSet;

use super::*;

const LEAST: &str = "drivers = []\nlibraries = []\nnodes = []\nlists = []\nreads = []\nrequests = []\n";

/// Names of nodes as machines have them, of GPUs and of others.
const NODES: [&str; 22] = [
    "nvidiactl",
    "nvidia0",
    "nvidia12",
    "nvidia-uvm",
    "nvidia-uvm-tools",
    "nvidia-modeset",
    "nvidia-caps/nvidia-cap1",
    "nvidia-caps-imex-channels",
    "dri/renderD128",
    "dri/renderD129",
    "dri/card0",
    "dri/by-path",
    "kfd",
    "mali0",
    "malign",
    "sda",
    "mem",
    "kvm",
    "null",
    "vhost-net",
    "nvidia",
    "nvidia0x",
];

fn dev() -> tempfile::TempDir {
    let dev = tempfile::tempdir().unwrap();
    for folder in ["dri", "nvidia-caps"] {
        fs::create_dir(dev.path().join(folder)).unwrap();
    }
    for name in NODES {
        fs::write(dev.path().join(name), "").unwrap();
    }
    dev
}

fn profile(file: &str) -> DriverProfile {
    let (_, text) = FILES.into_iter().find(|(name, _)| *name == file).unwrap();
    parse(file, text).unwrap()
}

/// Whether a request of this family and number is one of these.
fn admits(requests: &[Requests], family: u8, number: u8) -> bool {
    let request = u64::from(family) << 8 | u64::from(number);
    requests.iter().flat_map(Requests::masks).any(|(mask, value)| request & mask == value)
}

#[test]
fn every_file_is_a_profile_and_no_driver_or_library_has_two() {
    let all = all().unwrap();
    assert_eq!(all.len(), FILES.len());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/engine/sandbox/profiles");
    let there: BTreeSet<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(there, FILES.iter().map(|(name, _)| (*name).to_owned()).collect(), "all are loaded");
    for names in [|it: &DriverProfile| it.drivers.clone(), |it: &DriverProfile| it.libraries.clone()] {
        let named: Vec<String> = all.iter().flat_map(names).collect();
        assert_eq!(named.iter().collect::<BTreeSet<_>>().len(), named.len(), "{named:?}");
    }
}

#[test]
fn a_field_that_is_unknown_missing_or_wrong_is_refused_with_file_and_line() {
    parse("x.toml", LEAST).unwrap();
    let request = "[[requests]]\nfamily = 1\nof = \"one\"\n";
    let without = LEAST.replace("requests = []\n", "");
    for (text, line, part) in [
        (format!("{LEAST}colour = 1\n"), 7, "colour"),
        (format!("# none\n{}", LEAST.replace("lists = []", "list = []")), 5, "list"),
        (LEAST.replace("reads = []\n", ""), 1, "reads"),
        (LEAST.replace("nodes = []", "nodes = 5"), 3, "sequence"),
        (LEAST.replace("nodes = []", "nodes = ["), 4, ""),
        (format!("{without}{request}size = 2\n"), 9, "size"),
        (format!("{without}{}", request.replace("= 1", "= 256")), 7, "256"),
        (format!("{without}{request}numbers = [[1]]\n"), 9, ""),
        (format!("{without}{request}numbers = [[1, 2], [7, 6]]\n"), 8, "from 0x7 to 0x6"),
        (LEAST.replace("nodes = []", "nodes = [\n\"/dev/a\",\n\"/etc/b\"]"), 5, "`/etc/b`"),
        (LEAST.replace("nodes = []", "nodes = [\"/dev/#\"]"), 3, "`/dev/#`"),
        (LEAST.replace("nodes = []", "nodes = [\"/dev/a#b#\"]"), 3, "`/dev/a#b#`"),
        (LEAST.replace("nodes = []", "nodes = [\"/dev/../etc/b\"]"), 3, "`/dev/../etc/b`"),
    ] {
        let error = parse("x.toml", &text).unwrap_err();
        assert_eq!((error.file.as_str(), error.line), ("x.toml", line), "{error}\n{text}");
        assert!(error.to_string().starts_with(&format!("driver profile x.toml, line {line}: ")), "{error}");
        assert!(error.reason.contains(part), "{part}: {error}");
    }
}

#[test]
fn a_profile_admits_the_nodes_of_its_driver_and_no_others() {
    let dev = dev();
    let nvidia = [
        "dri/renderD128",
        "dri/renderD129",
        "nvidia-caps/nvidia-cap1",
        "nvidia-modeset",
        "nvidia-uvm",
        "nvidia-uvm-tools",
        "nvidia0",
        "nvidia12",
        "nvidiactl",
    ];
    let render = ["dri/renderD128", "dri/renderD129"];
    let other = ["dri/card0", "dri/renderD128", "dri/renderD129", "kfd", "mali0"];
    for (file, expected) in [
        ("nvidia.toml", &nvidia[..]),
        ("radv.toml", &render),
        ("anv.toml", &render),
        ("nouveau.toml", &render),
        ("lavapipe.toml", &[]),
        ("other.toml", &other),
    ] {
        let mut found = profile(file).nodes_below(dev.path());
        found.sort();
        assert_eq!(found, expected.iter().map(|name| dev.path().join(name)).collect::<Vec<_>>(), "{file}");
    }
}

#[test]
fn a_profile_admits_the_requests_of_its_driver_and_no_others() {
    let of = |file: &str| profile(file).requests;
    for (file, admitted, refused) in [
        ("nvidia.toml", &[(b'F', 200), (0, 1), (b'm', 0), (b'd', 0x41)][..], &[(b'K', 1), (b'd', 0xb2)][..]),
        (
            "radv.toml",
            &[(b'd', 0x44), (b'd', 0), (b'd', 0xc3)],
            &[(b'F', 200), (0, 1), (b'd', 0x60), (b'd', 0x1e)],
        ),
        ("anv.toml", &[(b'd', 0x69), (b'd', 0x7c)], &[(b'F', 200), (b'd', 0x80)]),
        ("nouveau.toml", &[(b'd', 0x52), (b'd', 0x81)], &[(b'F', 200), (b'd', 0x60)]),
        ("lavapipe.toml", &[], &[(b'd', 0), (b'F', 200), (0, 1)]),
    ] {
        let requests = of(file);
        assert!(admitted.iter().all(|(family, number)| admits(&requests, *family, *number)), "{file}");
        assert!(!refused.iter().any(|(family, number)| admits(&requests, *family, *number)), "{file}");
        // FIONBIO would take an eventfd's O_NONBLOCK away.
        assert!(!admits(&requests, b'T', 0x21), "{file}");
    }
    let unknown = requests_of("Turnip").unwrap();
    assert!([(b'F', 200), (b'd', 0x60), (b'K', 1), (0x80, 0)].iter().all(|(f, n)| admits(&unknown, *f, *n)));
    assert!(!admits(&unknown, b'T', 0x21));
    assert_eq!(requests_of("radv").unwrap(), of("radv.toml"));
}

#[test]
fn drivers_are_known_by_their_libraries_and_one_that_is_not_may_be_any() {
    let chosen = |libraries: &[&str]| {
        let names: Vec<String> = libraries.iter().map(|name| (*name).to_owned()).collect();
        of_libraries(&names).unwrap()
    };
    assert_eq!(chosen(&["libvulkan_lvp.so"]), [profile("lavapipe.toml")]);
    assert_eq!(
        chosen(&["libvulkan_lvp.so", "libGLX_nvidia.so.0"]),
        [profile("nvidia.toml"), profile("lavapipe.toml")]
    );
    assert_eq!(chosen(&[]), all().unwrap());
    assert_eq!(chosen(&["libvulkan_lvp.so", "libvulkan_strange.so"]), all().unwrap());
}

#[test]
fn a_range_is_blocks_that_have_all_of_it_and_nothing_else() {
    for (first, last) in [(0, 0), (0, 255), (1, 254), (0x40, 0x5f), (0xbf, 0xc5), (3, 3), (255, 255)] {
        let numbers = Some(vec![[first, last]]);
        let requests = [Requests { family: 7, of: String::new(), numbers }];
        for number in 0..=255 {
            assert_eq!(
                admits(&requests, 7, number),
                (first..=last).contains(&number),
                "{number} of {first} to {last}"
            );
            assert!(!admits(&requests, 6, number));
        }
    }
    assert_eq!(blocks(0x40, 0x5f), [(0x40, 0x20)]);
}
