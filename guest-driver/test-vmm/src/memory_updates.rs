//! Telling the device of guest memory.

use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::VhostUserProtocolFeatures as Protocol;

use super::front_end::FrontEnd;
use super::front_end::Main;
use super::memory_table::Region;
use campanile_guest_driver::transport::error::TransportError;

impl FrontEnd {
    /// Tells the device what changed: regions one by one where it has slots for that, or else the whole table.
    pub(super) fn send_memory(&self, main: &mut Main) -> Result<(), TransportError> {
        let wanted = main.table.wanted();
        if main.protocol.contains(Protocol::CONFIGURE_MEM_SLOTS) {
            let gone = |region: &Region| !wanted.iter().any(|other| other.is(region));
            while let Some(at) = main.table.sent.iter().position(gone) {
                let region = main.table.sent.swap_remove(at);
                self.exchange("REM_MEM_REG", || main.frontend.remove_mem_region(&region.info()))?;
            }
            for region in wanted {
                if !main.table.sent.iter().any(|other| other.is(&region)) {
                    self.exchange("ADD_MEM_REG", || main.frontend.add_mem_region(&region.info()))?;
                    main.table.sent.push(region);
                }
            }
        } else {
            let infos: Vec<_> = wanted.iter().map(Region::info).collect();
            self.exchange("SET_MEM_TABLE", || main.frontend.set_mem_table(&infos))?;
            main.table.sent = wanted;
        }
        Ok(())
    }

    /// The window changed: tells the device, if it runs.
    pub(super) fn memory_changed(&self, main: &mut Main) -> Result<(), TransportError> {
        if main.table.live && main.table.window.is_some() { self.send_memory(main) } else { Ok(()) }
    }
}
