//! One look at everything.

use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use campanile_host_gpu::adapter::containment::allocated_by;
use campanile_host_gpu::outside;
use serde_json::Value as Json;

use super::family::Families;
use super::family::Kind;
use super::family::Labels;
use super::family::Value;
use super::names;
use super::nodes;
use super::scrapes::Texts;
use crate::operator::roster::Roster;
use crate::operator::vgpu::Vgpu;
use crate::vgpu::control::orders::Order;
use crate::vgpu::control::orders::OrderError;
use crate::vgpu::tdr::reason::Reason;

/// How long the threads of all vGPUs together may take for their part.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Where numbers come from.
#[derive(Debug)]
pub struct Source {
    roster: Arc<Roster>,
}

impl Source {
    /// These vGPUs, and those that come.
    pub fn new(roster: Arc<Roster>) -> Self {
        Self { roster }
    }
}

impl Texts for Source {
    fn text(&self) -> String {
        let mut families = Families::default();
        let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
        let info = families.family("build_info", "The version of the daemon", Kind::Gauge);
        info.add(version, Value::Whole(1));
        let ends = Instant::now() + TIMEOUT;
        for vgpu in self.roster.all().iter() {
            let left = ends.saturating_duration_since(Instant::now());
            // First: what is asked of the session makes another one due.
            let holds = u64::from(vgpu.shell_counters.checkpoint_holds());
            let said = vgpu.commands.ask(Order::Describe, left);
            let hears = !matches!(said, Err(OrderError::Late | OrderError::Full));
            let session = said.ok();
            let mut of = OfVgpu { families: &mut families, vgpu };
            of.gauge("responds", "Whether the thread of the vGPU answers", u64::from(hears));
            of.gauge("checkpoint_holds", "Whether devices would go on if the daemon were killed now", holds);
            of.counts();
            of.standing();
            of.memory(session.as_ref());
            of.engine_memory(session.as_ref());
            of.migration();
            nodes::add(&mut families, vgpu, session.as_ref());
        }
        families.text().unwrap_or_default()
    }
}

/// A vGPU whose numbers are added.
struct OfVgpu<'a> {
    families: &'a mut Families,
    vgpu: &'a Vgpu,
}

impl OfVgpu<'_> {
    fn labels(&self, more: Option<(&'static str, &str)>) -> Labels {
        let more = more.map(|(name, value)| (name, value.to_owned()));
        std::iter::once(("vgpu", self.vgpu.name.clone())).chain(more).collect()
    }

    fn gauge(&mut self, name: &str, help: &'static str, value: u64) {
        self.gauge_of(name, help, None, value);
    }

    fn gauge_of(&mut self, name: &str, help: &'static str, label: Option<(&'static str, &str)>, value: u64) {
        let labels = self.labels(label);
        self.families.family(name, help, Kind::Gauge).add(labels, Value::Whole(value));
    }

    fn counter_of(
        &mut self,
        name: &str,
        help: &'static str,
        label: Option<(&'static str, &str)>,
        count: u64,
    ) {
        let labels = self.labels(label);
        self.families.family(name, help, Kind::Counter).add(labels, Value::Whole(count));
    }

    /// What is counted.
    fn counts(&mut self) {
        let counters = &self.vgpu.counters;
        let of_sockets = self.vgpu.shell_counters.all().map(|(name, count)| (names::of_socket(name), count));
        for (name, count) in counters.all().into_iter().chain(of_sockets) {
            if name == "submissions" {
                let help = "Buffers: of kernel-mode queues that the daemon took, of user-mode queues that engines have retired";
                self.counter_of(name, help, Some(("mode", "kernel")), count);
                self.counter_of(name, help, Some(("mode", "user")), self.vgpu.user_submissions());
            } else if let Some(help) = names::help(name) {
                self.counter_of(name, help, None, count);
            }
        }
        for (reason, count) in Reason::ALL.into_iter().zip(counters.measures.resets()) {
            let help = "Resets of engines and adapters, by what led to them";
            self.counter_of("resets", help, Some(("cause", reason.name())), count);
        }
        let fences = counters.measures.submit_to_fence.distribution();
        let labels = self.labels(None);
        let help = "From SUBMIT to the fence, of kernel-mode submissions";
        let family = self.families.family("submit_to_fence_seconds", help, Kind::Histogram);
        family.add(labels, Value::Distribution(fences));
    }

    /// Whether it works, and what the daemon holds for it.
    fn standing(&mut self) {
        let vgpu = self.vgpu;
        self.gauge("vm_connected", "Whether a VM is connected", u64::from(vgpu.commands.has_session()));
        let is_quarantined = u64::from(vgpu.standing.quarantined().is_some());
        self.gauge("quarantined", "Whether the vGPU is quarantined", is_quarantined);
        let budget = vgpu.budget.standing();
        self.gauge("budget_held_bytes", "What the daemon holds for the VM", budget.held.bytes);
        self.gauge("budget_limit_bytes", "What the daemon may hold for the VM", budget.limit.bytes);
        self.counter_of("budget_refusals", "What was refused because of the budget", None, budget.refused);
        let left_out = vgpu.log.left_out();
        self.counter_of("log_lines_left_out", "Log lines of the VM that were too many", None, left_out);
    }

    /// Video memory, by place.
    fn memory(&mut self, session: Option<&Json>) {
        let vgpu = self.vgpu;
        let (quota, budget) = (vgpu.account.quota(), vgpu.account.budget());
        self.gauge("vram_size_bytes", "Video memory of the vGPU", vgpu.vram_bytes);
        self.gauge("vram_guaranteed_bytes", "What its guests can always have", quota.min);
        self.gauge("vram_limit_bytes", "What its guests may have at the most", quota.max);
        self.gauge(
            "vram_committed_bytes",
            "What its guests have allocated, wherever it lies",
            budget.committed,
        );
        let Some(memory) = session.map(|session| &session["memory"]) else { return };
        let field = |name: &str| memory[name].as_u64().unwrap_or(0);
        let used = |all: &str, free: &str| field(all).saturating_sub(field(free));
        for (place, bytes) in [
            ("visible", used("visible", "visible_free")),
            ("local", used("local", "local_free")),
            ("evicted", field("evicted")),
            ("save_areas", field("save_areas")),
        ] {
            let help = "Memory of its guests, by where it lies: visible and local video memory, host memory, save areas";
            self.gauge_of("vram_bytes", help, Some(("place", place)), bytes);
        }
    }

    /// Memory of engine processes, beside video memory.
    fn engine_memory(&mut self, session: Option<&Json>) {
        let limit = self.vgpu.held.containment.memory.unwrap_or(0);
        let help = "Memory that each engine process may have beside video memory; 0 for no limit";
        self.gauge("engine_memory_limit_bytes", help, limit);
        let engines = session.and_then(|session| session["engines"].as_array()).into_iter().flatten();
        let pids: Vec<u32> =
            engines.filter_map(|engine| u32::try_from(engine["pid"].as_u64()?).ok()).collect();
        // This thread opens no file.
        let sum = outside::run(move || pids.into_iter().filter_map(allocated_by).sum::<u64>());
        if let Ok(sum) = sum {
            let help = "Private memory of the engine processes of the vGPU, resident and swapped out";
            self.gauge("engine_memory_bytes", help, sum);
        }
    }

    /// Its way to another daemon, the last or the one under way.
    fn migration(&mut self) {
        let said = self.vgpu.endpoint.departure.describe();
        let progress = &said["progress"];
        let field = |name: &str| progress[name].as_u64().unwrap_or(0);
        let is_under_way = matches!(said["phase"].as_str(), Some("brownout" | "finishing"));
        self.gauge("migration_active", "Whether the vGPU is on its way", u64::from(is_under_way));
        let passes = progress["passes"].as_array().map_or(0, Vec::len);
        let passes = u64::try_from(passes).unwrap_or(u64::MAX);
        self.gauge("migration_passes", "Passes over its memory, of this migration or the last", passes);
        self.gauge("migration_sent_bytes", "Bytes of it that were sent", field("sent_bytes"));
        let dirty = field("left_bytes");
        self.gauge("migration_dirty_bytes", "Pages of it that are dirty and were not sent, in bytes", dirty);
        let labels = self.labels(None);
        let pause = Duration::from_micros(field("blackout_us")).as_secs_f64();
        let help = "How long it stood still until all was sent";
        self.families
            .family("migration_pause_seconds", help, Kind::Gauge)
            .add(labels, Value::Fraction(pause));
    }
}
