//! Every edge of one doorbell, and every edge that is not there.

use campanile_protocol::queue::doorbell::DoorbellStatus;

use super::state::Connect;
use super::state::Disconnect;
use super::state::DoorbellState;

const STATES: [DoorbellState; 3] = [DoorbellState::Retry, DoorbellState::Connected(7), DoorbellState::Abort];

#[test]
fn ums_65_ums_74_every_disconnect_succeeds_and_its_reason_is_the_status() {
    for before in STATES {
        let mut state = before;
        let disconnect = state.retry();
        let expected = if before == DoorbellState::Abort { before } else { DoorbellState::Retry };
        assert_eq!(state, expected, "a dead doorbell stays dead");
        assert_eq!(disconnect == Disconnect::FreeSlot(7), before == DoorbellState::Connected(7));
        let mut state = before;
        let disconnect = state.abort();
        assert_eq!(state, DoorbellState::Abort);
        assert_eq!(disconnect == Disconnect::FreeSlot(7), before == DoorbellState::Connected(7));
    }
    assert_eq!(DoorbellState::Retry.status(), DoorbellStatus::DisconnectedRetry);
    assert_eq!(DoorbellState::Abort.status(), DoorbellStatus::DisconnectedAbort);
    assert_eq!(DoorbellState::Connected(7).status(), DoorbellStatus::Connected);
}

#[test]
fn ums_60_ums_61_a_connect_fails_only_on_a_dead_doorbell() {
    for before in STATES {
        let mut state = before;
        let connect = state.connect();
        assert_eq!(connect == Connect::Refused, before == DoorbellState::Abort);
        state.connected(3);
        let after = if connect == Connect::TakeSlot { DoorbellState::Connected(3) } else { before };
        assert_eq!(state, after, "nobody is given a second slot");
    }
}
