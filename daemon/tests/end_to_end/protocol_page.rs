//! The page of the book on the protocol, held against a daemon.

use std::collections::BTreeMap;

use campanile_protocol::control::away::ATTACH_DEVICE;
use campanile_protocol::control::status::Status;

use crate::raw::RawGuest;
use crate::support::Daemon;

const PAGE: &str = include_str!("../../../docs/book/protocol.md");

/// The first two columns of a table of the page.
fn table(name: &str) -> BTreeMap<u32, &'static str> {
    let (_, rest) = PAGE.split_once(&format!("<!-- table: {name} -->\n\n")).unwrap();
    let rows = rest.lines().skip(2).take_while(|line| line.starts_with('|'));
    let row = |line: &'static str| {
        let mut cells = line.split('|').map(str::trim).skip(1);
        (cells.next().unwrap().parse().unwrap(), cells.next().unwrap())
    };
    rows.map(row).collect()
}

#[test]
fn the_daemon_takes_the_messages_of_the_page_and_no_other() {
    let daemon = Daemon::start();
    let (vm, _device) = daemon.device();
    let guest = RawGuest::open(&vm);
    let (messages, statuses) = (table("messages"), table("statuses"));
    assert!(messages.len() > 30 && statuses[&Status::UnknownMessage.word()] == "`UnknownMessage`");
    for opcode in (0..128).chain([u32::MAX]) {
        // No message has a body like this.
        let refused = guest.call(opcode, &[0xff_u8; 2040]).unwrap_err();
        let is_told = messages.get(&opcode);
        // A token that is not known is no message.
        let is_known = refused != Status::UnknownMessage || opcode == ATTACH_DEVICE;
        assert_eq!(is_known, is_told.is_some(), "{opcode}: {is_told:?} comes to {refused:?}");
        assert!(statuses.contains_key(&refused.word()));
    }
}
