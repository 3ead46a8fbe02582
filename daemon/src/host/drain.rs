//! A daemon that is drained: it lets nothing more in, and what can move away moves.

use serde_json::Value;
use serde_json::json;

use super::tenants::State;
use crate::operator::vgpu::Vgpu;

/// Drains a daemon, or ends that. Which VMs are left, in the operator's words.
pub(super) fn drain(state: &mut State, is_drained: bool) -> Value {
    // SYNC POINT: closed before what is there is looked for; a front-end that connects is noted before it looks whether it may.
    state.intake.set_closed(is_drained);
    state.remember();
    log::info!("the operator {}", if is_drained { "drains this daemon" } else { "has it take VMs again" });
    let with_vm = state.tenants.iter().map(|tenant| &tenant.served).filter(|served| served.has_vm());
    let left: Vec<Value> = with_vm.map(|served| move_away(&served.known, is_drained)).collect();
    json!({ "drained": is_drained, "vms": left })
}

/// Begins to move a vGPU away from a daemon that is drained, unless that is under way. Its name, whether it moves, and why not.
fn move_away(vgpu: &Vgpu, is_drained: bool) -> Value {
    let departure = &vgpu.endpoint.departure;
    let begun = || {
        if departure.is_under_way() {
            return Ok(());
        }
        if !is_drained {
            return Err("it stays".to_owned());
        }
        if !departure.has_peer() {
            return Err("no --migrate-to says where it goes; move its VM, or stop it".to_owned());
        }
        vgpu.log.within(|| departure.start(None)).map_err(|error| error.to_string())
    };
    let why = begun().err();
    json!({ "vgpu": vgpu.name, "moves": why.is_none(), "why": why })
}
