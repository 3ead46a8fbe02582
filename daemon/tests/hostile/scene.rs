//! Two VMs of one daemon: the attacked one, with a bystander in it, and another.

use std::sync::Arc;

use campanile_test_vmm::vm::LoopbackVm;

use crate::attacker::Attacker;
use crate::bystander::Bystander;
use crate::daemon::Daemon;

pub(crate) struct Scene {
    pub(crate) vm: Arc<LoopbackVm>,
    pub(crate) neighbour: Option<Bystander>,
    pub(crate) other_vm: Bystander,
    pub(crate) daemon: Daemon,
}

impl Scene {
    pub(crate) fn new() -> Self {
        // Engines are killed more often here than limits allow.
        Self::with(&["--tdr-debug", "3"])
    }

    /// With more arguments for the daemon.
    pub(crate) fn with(arguments: &[&str]) -> Self {
        let daemon = Daemon::start(2, arguments);
        let vm = daemon.vm(0);
        let neighbour = Some(Bystander::new(&vm));
        let other_vm = Bystander::new(&daemon.vm(1));
        let mut scene = Self { vm, neighbour, other_vm, daemon };
        scene.unharmed();
        scene
    }

    /// A hostile process of the first VM, with a device.
    pub(crate) fn attacker(&self) -> Attacker {
        Attacker::new(&self.vm)
    }

    /// The first VM or its engine is attacked as a whole: the bystander in it is part of the damage.
    pub(crate) fn give_neighbour_up(&mut self) -> Bystander {
        self.neighbour.take().expect("it is given up once")
    }

    /// Everybody who did nothing wrong computes, in the daemon of the beginning.
    pub(crate) fn unharmed(&mut self) {
        if let Some(neighbour) = &mut self.neighbour {
            neighbour.compute();
        }
        self.other_vm.compute();
        assert!(self.daemon.is_alive(), "the daemon ended");
        let log = self.daemon.log();
        assert!(!log.contains("panicked"), "{log}");
    }
}
