//! Threads that work for a VM log within its limit: each thread that is started in the folders that face guests, VMMs, engines and
//! peers inherits the limit of its starter.

use crate::finding::Finding;
use crate::test_files::TestFiles;
use crate::tree::Tree;

/// Where guests, VMMs, engines and peers are served.
const FOLDERS: [&str; 6] = [
    "daemon/src/frontend/",
    "daemon/src/migration/",
    "daemon/src/vgpu/",
    "daemon/src/frontend/vhost/",
    "daemon/src/vgpu/memory/vidmm/",
    "host-gpu/src/adapter/",
];

/// Ways to start a thread. `essential_thread::spawn` inherits by itself.
const STARTS: [&[&str]; 3] =
    [&["thread", ":", ":", "Builder"], &["thread", ":", ":", "spawn", "("], &["scope", ".", "spawn", "("]];
/// In how many lines a statement that starts a thread says that it inherits.
const LINES: usize = 4;

/// Finds threads that are started there and do not inherit.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let tests = TestFiles::of(tree);
    for file in tree.rust().filter(|file| !tests.contains(&file.path)) {
        if !FOLDERS.iter().any(|folder| file.path.starts_with(folder)) {
            continue;
        }
        let source = file.source();
        for at in source.shipped().filter(|at| STARTS.iter().any(|start| source.has(*at, start))) {
            let line = source.line(at);
            let mut statement = (at..source.count()).take_while(|at| source.line(*at) < line + LINES);
            if !statement.any(|at| source.has(at, &["inherit", "("])) {
                let message = "this thread logs within no limit: start it with `log_limit::inherit(…)`";
                findings.push(Finding::new(&file.path, line, message));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tree::Tree;

    fn findings(path: &str, text: &str) -> Vec<String> {
        check(&Tree::of([(path, text)])).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_thread_that_serves_a_vm_inherits_its_log_limit() {
        let bare = "fn a() {\n    let it = thread::Builder::new()\n        .spawn(move || work());\n}\n";
        assert_eq!(findings("daemon/src/frontend/vhost/a.rs", bare).len(), 1);
        assert_eq!(findings("daemon/src/operator/a.rs", bare).len(), 0, "the operator is trusted");
        let right = bare.replace("move || work()", "inherit(move || work())");
        assert_eq!(findings("daemon/src/frontend/vhost/a.rs", &right).len(), 0);
        let essential = "fn a() { essential_thread::spawn(\"a\", work); }";
        assert_eq!(findings("daemon/src/frontend/vhost/a.rs", essential).len(), 0);
        for start in ["thread::spawn(work)", "scope.spawn(|| work())"] {
            let text = format!("fn a() {{ {start}; }}");
            assert_eq!(findings("host-gpu/src/adapter/a.rs", &text).len(), 1, "{start}");
            let test = format!("#[cfg(test)]\nmod tests {{ fn a() {{ {start}; }} }}");
            assert_eq!(findings("host-gpu/src/adapter/a.rs", &test).len(), 0, "{start}");
        }
    }
}
