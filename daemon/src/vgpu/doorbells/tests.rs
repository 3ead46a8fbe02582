//! Every edge of one doorbell, and every edge that is not there.

use campanile_protocol::queue::doorbell::DoorbellStatus;

use crate::vgpu::objects::doorbell_state::Connect;
use crate::vgpu::objects::doorbell_state::Disconnect;
use crate::vgpu::objects::doorbell_state::DoorbellState;
use crate::vgpu::objects::doorbell_state::Place;
use campanile_host_gpu::ids::DoorbellIndex;

const PLACES: [Place; 3] =
    [Place::Own(DoorbellIndex::new(7)), Place::Shared(DoorbellIndex::new(7)), Place::Notified];

const STATES: [DoorbellState; 5] = [
    DoorbellState::Retry,
    DoorbellState::Connected(PLACES[0]),
    DoorbellState::Connected(PLACES[1]),
    DoorbellState::Connected(PLACES[2]),
    DoorbellState::Abort,
];

/// What can happen to a doorbell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Happens {
    /// A connect that finds this place.
    Connect(Place),
    Victim,
    Retry,
    Lost,
}

/// The diagram of the folder, edge by edge: state, what happens, state after it, and what the guest's words and the
/// engine's slots have to be told. What does not stand here changes nothing.
fn edges() -> Vec<(DoorbellState, Happens, DoorbellState, Disconnect)> {
    let mut edges =
        vec![(DoorbellState::Retry, Happens::Lost, DoorbellState::Abort, Disconnect::PublishOnly)];
    for place in PLACES {
        let connected = DoorbellState::Connected(place);
        edges.push((DoorbellState::Retry, Happens::Connect(place), connected, Disconnect::Nothing));
        edges.push((connected, Happens::Retry, DoorbellState::Retry, Disconnect::Free(place)));
        edges.push((connected, Happens::Lost, DoorbellState::Abort, Disconnect::Free(place)));
    }
    let own = Place::Own(DoorbellIndex::new(7));
    edges.push((DoorbellState::Connected(own), Happens::Victim, DoorbellState::Retry, Disconnect::Free(own)));
    edges
}

fn apply(state: &mut DoorbellState, happens: Happens) -> Disconnect {
    match happens {
        Happens::Connect(place) => {
            state.connected(place);
            Disconnect::Nothing
        }
        Happens::Victim => state.victimise(),
        Happens::Retry => state.retry(),
        Happens::Lost => state.abort(),
    }
}

// conformance: each line is an edge of one state diagram, which is only right as a whole
#[test]
fn ums_54_ums_63_ums_65_ums_66_ums_73_a_doorbell_goes_along_these_edges_and_no_others() {
    let mut walked = 0;
    for before in STATES {
        for happens in [
            Happens::Connect(PLACES[0]),
            Happens::Connect(PLACES[1]),
            Happens::Connect(PLACES[2]),
            Happens::Victim,
            Happens::Retry,
            Happens::Lost,
        ] {
            let edge = edges().into_iter().find(|(from, by, ..)| *from == before && *by == happens);
            walked += usize::from(edge.is_some());
            let (after, disconnect) =
                edge.map_or((before, Disconnect::Nothing), |(_, _, to, what)| (to, what));
            let mut state = before;
            let told = apply(&mut state, happens);
            assert_eq!((state, told), (after, disconnect), "{before:?}, {happens:?}");
        }
    }
    assert_eq!(walked, edges().len(), "an edge of the diagram was not walked");
}

#[test]
fn ums_15_only_a_slot_of_its_own_makes_a_victim() {
    for before in STATES {
        let mut state = before;
        let disconnect = state.victimise();
        assert_eq!(
            disconnect != Disconnect::Nothing,
            before == DoorbellState::Connected(Place::Own(DoorbellIndex::new(7)))
        );
    }
}

// conformance: each line is one word of the table of all states
#[test]
fn ums_49_ums_51_ums_58_ums_74_the_status_says_where_a_doorbell_stands() {
    let words = STATES.map(DoorbellState::status);
    assert_eq!(
        words,
        [
            DoorbellStatus::DisconnectedRetry,
            DoorbellStatus::Connected,
            DoorbellStatus::Connected,
            DoorbellStatus::ConnectedNotify,
            DoorbellStatus::DisconnectedAbort,
        ]
    );
}

#[test]
fn ums_60_ums_61_a_connect_fails_only_on_a_dead_doorbell() {
    for before in STATES {
        let mut state = before;
        let connect = state.connect();
        assert_eq!(connect == Connect::Refused, before == DoorbellState::Abort);
        state.connected(Place::Own(DoorbellIndex::new(3)));
        let after = if connect == Connect::FindPlace {
            DoorbellState::Connected(Place::Own(DoorbellIndex::new(3)))
        } else {
            before
        };
        assert_eq!(state, after, "none is given a second place");
    }
}
