//! What the operator says while the daemon serves: the same command line and files read again, and vGPUs as `--vgpu` has them.

use std::ffi::OsString;
use std::sync::Mutex;
use std::sync::PoisonError;

use signal_hook::iterator::Handle;

use super::configured;
use super::configured::Configured;
use super::options::host_options;
use super::options::listening;
use super::options::vgpus;
use crate::config::fault::Fault;
use crate::config::fault::Faults;
use crate::config::vgpu::change_vgpu;
use crate::config::vgpu::parse_vgpu;
use crate::host::check::objections;
use crate::host::options::HostOptions;
use crate::host::options::VgpuOptions;
use crate::host::source::Source;
use crate::host::source::Wanted;

/// Options that change while the daemon serves. All others need a restart.
const LIVE: [&str; 13] = [
    "log-level",
    "log-format",
    "tdr-timeout",
    "tdr-timeout-compute",
    "tdr-timeout-copy",
    "tdr-level",
    "tdr-debug",
    "tdr-limit-count",
    "tdr-limit-time",
    "readmission",
    "compile-timeout",
    "d3-after",
    "freeze-limit",
];

/// A command line that is read again, of a daemon that was started with it.
#[derive(Debug)]
pub(super) struct Reread {
    line: Vec<OsString>,
    /// All options in force, by name, as the command line has them.
    said: Mutex<Vec<(String, Vec<OsString>)>>,
    /// What the main thread waits for.
    signals: Handle,
}

impl Reread {
    pub(super) fn new(line: Vec<OsString>, configured: &Configured, signals: Handle) -> Self {
        Self { line, said: Mutex::new(configured.said.clone()), signals }
    }
}

impl Source for Reread {
    fn command_line(&self) -> Vec<OsString> {
        self.line.clone()
    }

    fn end(&self) {
        self.signals.close();
    }

    fn parse(&self, spec: &str) -> Result<VgpuOptions, String> {
        parse_vgpu(spec)
    }

    fn change(&self, vgpu: &VgpuOptions, values: &[String]) -> Result<VgpuOptions, String> {
        change_vgpu(vgpu, values)
    }

    fn read(&self) -> Result<Wanted, String> {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let configured = configured::read(self.line.clone()).map_err(|error| format!("{error:#}"))?;
        let options = host_options(vgpus(&configured), &configured.arguments.engine);
        let options = configured.at("vulkan-driver", options).map_err(|error| format!("{error:#}"))?;
        let listening = listening(&configured.arguments);
        let (vram_total, vm_budget) = (configured.arguments.vram_total, configured.arguments.vm_budget);
        let control = configured.arguments.control.clone();
        let options = HostOptions { listening, vram_total, vm_budget, control, ..options };
        let faults: Vec<Fault> =
            objections(&options).into_iter().map(|found| configured.fault(found)).collect();
        if !faults.is_empty() {
            return Err(Faults(faults).to_string());
        }
        let (mut changed, mut restart) = (Vec::new(), Vec::new());
        for ((name, before), (_, after)) in said.iter_mut().zip(&configured.said) {
            if before == after {
                continue;
            }
            if LIVE.contains(&name.as_str()) {
                changed.push(name.clone());
                before.clone_from(after);
            } else {
                restart.push(name.clone());
            }
        }
        configured.arguments.log_level.set();
        configured.arguments.log_format.set();
        Ok(Wanted { options, changed, restart })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use signal_hook::iterator::Signals;

    use super::LIVE;
    use super::Reread;
    use crate::cli::configured;
    use crate::host::source::Source;
    use crate::host::source::Wanted;
    use crate::vgpu::tdr::policy::DebugMode;
    use crate::vgpu::tdr::policy::Level;
    use crate::vgpu::tdr::policy::Policy;
    use crate::vgpu::tdr::policy::Readmission;

    #[test]
    fn what_changes_while_serving_is_an_option() {
        let all = configured::options();
        for name in LIVE {
            assert!(all.find(name).is_some(), "{name}");
        }
    }

    /// What there is to change from one file to the next.
    fn reread(before: &str, after: &str) -> Wanted {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("campanile.toml");
        fs::write(&file, before).unwrap();
        let line = vec!["campanile".into(), "serve".into(), "--config".into(), file.clone().into_os_string()];
        let reread = Reread::new(
            line.clone(),
            &configured::read(line).unwrap(),
            Signals::new(std::iter::empty::<i32>()).unwrap().handle(),
        );
        fs::write(&file, after).unwrap();
        reread.read().unwrap()
    }

    #[test]
    fn all_that_changes_while_serving_is_taken() {
        let vgpu = "[[vgpu]]\nname = \"a\"\nsocket = \"/a.sock\"\nvram = \"64M\"\ntdr-timeout-copy = 17\n";
        let live = "log-level = \"warn\"\nlog-format = \"json\"\ntdr-timeout = 2001\ntdr-timeout-compute = 500\ntdr-timeout-copy = 501\n\
                    tdr-level = 1\ntdr-debug = 3\ntdr-limit-count = 9\ntdr-limit-time = 11\n\
                    readmission = \"reboot\"\ncompile-timeout = 13000\nd3-after = 17000\nfreeze-limit = 19\n";
        let found = reread(vgpu, &format!("{live}{vgpu}"));
        let mut changed = found.changed;
        changed.sort_unstable();
        let mut expected = LIVE.map(str::to_owned).to_vec();
        expected.sort_unstable();
        assert_eq!((changed, found.restart), (expected, Vec::new()));
        let policy = Policy {
            level: Level::Fatal,
            debug: DebugMode::RecoverAlways,
            limit_count: 9,
            limit_time: Duration::from_secs(11),
            readmission: Readmission::Reboot,
            compile_timeout: Duration::from_secs(13),
        };
        let options = found.options;
        assert_eq!(options.policy, policy);
        assert_eq!(options.timeouts, [500, 501].map(Duration::from_millis));
        assert_eq!(options.vgpus[0].timeouts[1], Some(Duration::from_millis(17)));
        assert_eq!(options.engines.d3_after, Some(Duration::from_secs(17)));
        assert_eq!(options.freeze_limit, Duration::from_millis(19));
    }

    #[test]
    fn what_needs_a_restart_is_named() {
        let found = reread("engines = 1\ncontrol = \"/c\"\n", "engines = 2\ncontrol = \"/c\"\n");
        assert_eq!((found.changed, found.restart), (Vec::new(), vec!["engines".to_owned()]));
    }
}
