//! How guests ask to be scheduled, and what is refused.

use campanile_guest_driver::error::DriverError;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::scheduling::Band;
use campanile_guest_driver::scheduling::ProcessClass;
use campanile_guest_driver::scheduling::Properties;
use campanile_protocol::control::scheduling;
use campanile_protocol::control::scheduling::SetProcessClass;
use campanile_protocol::control::scheduling::SetSchedulingProperties;
use campanile_protocol::control::status::Status;
use zerocopy::IntoBytes;

use crate::native_fences::process;
use crate::operator::Operated;
use crate::preemption::REALTIME;
use crate::raw_queue::copy_guest;

fn refusal(outcome: Result<(), DriverError>) -> (Status, String) {
    match outcome {
        Err(DriverError::Refused { status, text, .. }) => (status, text),
        other => panic!("{other:?}"),
    }
}

#[test]
fn pre_65_mcdm_08_focus_and_realtime_are_for_those_to_whom_the_operator_grants_them() {
    let operated = Operated::with_shares(&["", "bands=focus", "bands=realtime"], &[]);
    let (focus, realtime) = (Band::Focus, Band::Realtime(31));
    for (vgpu, granted) in [vec![], vec![focus], vec![focus, realtime]].into_iter().enumerate() {
        let vm = operated.daemon.vm(vgpu);
        let device = process(&vm);
        let context = device.create_context(Node::Copy).unwrap();
        for band in [Band::Idle, Band::Normal, focus, realtime] {
            let outcome = context.set_scheduling(&Properties { band, ..REALTIME });
            if matches!(band, Band::Idle | Band::Normal) || granted.contains(&band) {
                outcome.unwrap();
            } else {
                let (status, text) = refusal(outcome);
                assert_eq!(status, Status::NotPermitted);
                assert!(text.contains("not granted"), "{text}");
            }
        }
        let outcome = device.set_process_class(ProcessClass::Realtime);
        if granted.contains(&realtime) {
            outcome.unwrap();
        } else {
            assert_eq!(refusal(outcome).0, Status::NotPermitted);
        }
    }
}

#[test]
fn pre_61_process_classes_are_0_to_5() {
    let operated = Operated::with_shares(&["bands=realtime"], &[]);
    let vm = operated.daemon.vm(0);
    let (guest, _context) = copy_guest(&vm);
    let set =
        |class, reserved| guest.call(scheduling::SET_PROCESS_CLASS, &SetProcessClass { class, reserved });
    let classes = [
        ProcessClass::Idle,
        ProcessClass::BelowNormal,
        ProcessClass::Normal,
        ProcessClass::AboveNormal,
        ProcessClass::High,
        ProcessClass::Realtime,
    ];
    for (number, class) in (0..).zip(classes) {
        assert_eq!(class as u32, number);
        assert_eq!(set(number, 0), Ok(Vec::new()));
        assert_eq!(set(number, 1), Err(Status::InvalidParameter));
    }
    assert_eq!(set(6, 0), Err(Status::InvalidParameter));
    assert_eq!(set(u32::MAX, 0), Err(Status::InvalidParameter));
}

// conformance: one table of values, and each line is the range of one field
#[test]
fn pre_62_pre_63_pre_64_pre_66_what_is_out_of_range_is_refused_by_its_name() {
    let operated = Operated::with_shares(&["bands=realtime"], &[]);
    let vm = operated.daemon.vm(0);
    let device = process(&vm);
    let own = device.create_context(Node::Copy).unwrap();
    let right = SetSchedulingProperties {
        context: own.handle(),
        band: scheduling::BAND_NORMAL,
        realtime_level: 0,
        in_process_priority: 0,
        quantum: 0,
        grace_same: 0,
        grace_lower: 0,
    };
    let control = |message: SetSchedulingProperties| {
        let (raw, context) = copy_guest(&vm);
        raw.call(scheduling::SET_SCHEDULING_PROPERTIES, &SetSchedulingProperties { context, ..message })
    };
    for good in [
        SetSchedulingProperties { in_process_priority: -7, ..right },
        SetSchedulingProperties { in_process_priority: 7, ..right },
        SetSchedulingProperties { band: scheduling::BAND_REALTIME, realtime_level: 31, ..right },
        // Outside of REALTIME the level is ignored (PRE-63).
        SetSchedulingProperties { realtime_level: u32::MAX, ..right },
        SetSchedulingProperties { quantum: scheduling::MAX_TIME, ..right },
    ] {
        assert_eq!(control(good), Ok(Vec::new()), "{good:?}");
    }
    for bad in [
        SetSchedulingProperties { band: 4, ..right },
        SetSchedulingProperties { band: u32::MAX, ..right },
        SetSchedulingProperties { in_process_priority: 8, ..right },
        SetSchedulingProperties { in_process_priority: i32::MIN, ..right },
        SetSchedulingProperties { band: scheduling::BAND_REALTIME, realtime_level: 32, ..right },
        SetSchedulingProperties { quantum: scheduling::MAX_TIME + 1, ..right },
        SetSchedulingProperties { grace_same: u32::MAX, ..right },
        SetSchedulingProperties { grace_lower: u32::MAX, ..right },
    ] {
        assert_eq!(control(bad), Err(Status::InvalidParameter), "{bad:?}");
    }
    assert_eq!(right.as_bytes().len(), 32);
    let (_, text) = refusal(own.set_scheduling(&Properties { in_process_priority: 8, ..REALTIME }));
    assert!(text.contains("in-process priority 8"), "{text}");
}
