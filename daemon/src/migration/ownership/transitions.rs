//! What each side does and becomes, in every state and at every event: all of it, as it is decided.

use super::claimant::Claimant;
use super::claimant::Step;
use super::holder::Duty;
use super::holder::Holder;

/// What a source does at an event, by state in the order of [`HOLDERS`], and what it becomes.
type AtHolder = (&'static str, fn(&mut Holder) -> Duty, [(Duty, Holder); 5]);

const HOLDERS: [Holder; 5] = [Holder::Runs, Holder::Offered, Holder::Granted, Holder::Recalls, Holder::Gone];

const AT_HOLDER: [AtHolder; 7] = {
    use Duty::Decline;
    use Duty::Grant;
    use Duty::Lose;
    use Duty::Nothing;
    use Duty::Recall;
    use Duty::Run;
    use Duty::RunAndRevoke;
    use Holder::Gone;
    use Holder::Granted;
    use Holder::Offered;
    use Holder::Recalls;
    use Holder::Runs;
    [
        (
            "complete",
            Holder::complete,
            [(Nothing, Offered), (Nothing, Offered), (Nothing, Granted), (Nothing, Recalls), (Nothing, Gone)],
        ),
        (
            "asked",
            Holder::asked,
            [(Decline, Runs), (Grant, Granted), (Grant, Granted), (Decline, Recalls), (Decline, Gone)],
        ),
        (
            "thaw",
            Holder::thaw,
            [(Run, Runs), (RunAndRevoke, Runs), (Recall, Recalls), (Nothing, Recalls), (Lose, Gone)],
        ),
        (
            "revoked",
            Holder::revoked,
            [(Nothing, Runs), (Nothing, Offered), (Nothing, Granted), (Run, Runs), (Nothing, Gone)],
        ),
        (
            "committed",
            Holder::committed,
            [(Nothing, Runs), (Nothing, Offered), (Nothing, Granted), (Lose, Gone), (Nothing, Gone)],
        ),
        (
            "unreachable",
            Holder::unreachable,
            [(Nothing, Runs), (Nothing, Offered), (Nothing, Granted), (Lose, Gone), (Nothing, Gone)],
        ),
        (
            "closed",
            Holder::closed,
            [(Nothing, Gone), (Grant, Gone), (Nothing, Gone), (Nothing, Gone), (Nothing, Gone)],
        ),
    ]
};

#[test]
fn lm_65_a_source_does_what_is_decided_in_every_state_at_every_event() {
    for (event, happens, outcomes) in AT_HOLDER {
        for (from, (duty, becomes)) in HOLDERS.into_iter().zip(outcomes) {
            let mut holder = from;
            assert_eq!((happens(&mut holder), holder), (duty, becomes), "{event} in {from:?}");
        }
    }
}

/// The same of a target.
type AtClaimant = (&'static str, fn(&mut Claimant) -> Step, [(Step, Claimant); 7]);

const STORED: Claimant = Claimant::Stored { granted: false };
const STORED_GRANTED: Claimant = Claimant::Stored { granted: true };
const CLAIMED: Claimant = Claimant::Claimed { granted: false };
const CLAIMED_GRANTED: Claimant = Claimant::Claimed { granted: true };

const CLAIMANTS: [Claimant; 7] =
    [STORED, STORED_GRANTED, CLAIMED, CLAIMED_GRANTED, Claimant::Asks, Claimant::Runs, Claimant::Dropped];

const AT_CLAIMANT: [AtClaimant; 7] = {
    use Claimant::Asks;
    use Claimant::Dropped;
    use Claimant::Runs;
    use Step::Ask;
    use Step::Confirm;
    use Step::Drop;
    use Step::DropAndConfirm;
    use Step::Insist;
    use Step::Nothing;
    use Step::Refuse;
    use Step::Run;
    let forgets = [
        (Drop, Dropped),
        (Drop, Dropped),
        (Drop, Dropped),
        (Drop, Dropped),
        (Drop, Dropped),
        (Nothing, Runs),
        (Nothing, Dropped),
    ];
    [
        (
            "load",
            Claimant::load,
            [
                (Nothing, CLAIMED),
                (Nothing, CLAIMED_GRANTED),
                (Refuse, CLAIMED),
                (Refuse, CLAIMED_GRANTED),
                (Refuse, Asks),
                (Refuse, Runs),
                (Refuse, Dropped),
            ],
        ),
        (
            "started",
            Claimant::started,
            [
                (Refuse, STORED),
                (Refuse, STORED_GRANTED),
                (Ask, Asks),
                (Run, Runs),
                (Refuse, Asks),
                (Refuse, Runs),
                (Refuse, Dropped),
            ],
        ),
        (
            "granted",
            Claimant::granted,
            [
                (Nothing, STORED_GRANTED),
                (Nothing, STORED_GRANTED),
                (Nothing, CLAIMED_GRANTED),
                (Nothing, CLAIMED_GRANTED),
                (Run, Runs),
                (Nothing, Runs),
                (Nothing, Dropped),
            ],
        ),
        ("declined", Claimant::declined, forgets),
        (
            "revoke",
            Claimant::revoke,
            [
                (DropAndConfirm, Dropped),
                (DropAndConfirm, Dropped),
                (DropAndConfirm, Dropped),
                (DropAndConfirm, Dropped),
                (DropAndConfirm, Dropped),
                (Insist, Runs),
                (Confirm, Dropped),
            ],
        ),
        (
            "unreachable",
            Claimant::unreachable,
            [
                (Drop, Dropped),
                (Nothing, STORED_GRANTED),
                (Drop, Dropped),
                (Nothing, CLAIMED_GRANTED),
                (Drop, Dropped),
                (Nothing, Runs),
                (Nothing, Dropped),
            ],
        ),
        ("forget", Claimant::forget, forgets),
    ]
};

#[test]
fn lm_39_lm_65_a_target_does_what_is_decided_in_every_state_at_every_event() {
    assert_eq!(Claimant::stored(), STORED);
    for (event, happens, outcomes) in AT_CLAIMANT {
        for (from, (step, becomes)) in CLAIMANTS.into_iter().zip(outcomes) {
            let mut claimant = from;
            assert_eq!((happens(&mut claimant), claimant), (step, becomes), "{event} in {from:?}");
        }
    }
}
