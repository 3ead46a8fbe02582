//! Which lines have to go so that there is room for another.
//!
//! A line is a *stranger's* until its HELLO or JOIN is accepted. Strangers are bounded in all and by address, and never
//! count against lines that were accepted. A newcomer is always let in: it takes the place of the oldest stranger of its
//! own address where that has its share, or else of the address that has most. So silent connections keep no peer out,
//! and a flood from one address displaces its own connections first.

use std::net::IpAddr;

/// Lines of strangers at a time.
pub(super) const MAX_STRANGERS: usize = 64;
/// Of these, from one address: the lines of one migration, and as many more.
pub(super) const MAX_OF_ADDRESS: usize = 32;

/// Where a line comes from; `None` is this machine, over a Unix socket.
pub(super) type Address = Option<IpAddr>;

/// Which of `strangers`, oldest first, makes room for one from `newcomer`; `None` where there is room.
pub(super) fn displaced(strangers: &[Address], newcomer: Address) -> Option<usize> {
    let count = |address: Address| strangers.iter().filter(|other| **other == address).count();
    let oldest = |address: Address| strangers.iter().position(|other| *other == address);
    if count(newcomer) >= MAX_OF_ADDRESS {
        return oldest(newcomer);
    }
    if strangers.len() < MAX_STRANGERS {
        return None;
    }
    // Of those with equally many, the one whose line is oldest.
    let most = strangers.iter().rev().copied().max_by_key(|address| count(*address))?;
    oldest(most)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::net::Ipv4Addr;

    use super::Address;
    use super::MAX_OF_ADDRESS;
    use super::MAX_STRANGERS;
    use super::displaced;
    use crate::migration::channel::message::MAX_STREAMS;

    fn host(number: u8) -> Address {
        Some(IpAddr::V4(Ipv4Addr::new(10, 0, 0, number)))
    }

    #[test]
    fn an_address_that_has_its_share_displaces_its_own_oldest_line() {
        let mut strangers = vec![host(1)];
        strangers.extend([host(2); MAX_OF_ADDRESS - 1]);
        assert_eq!(displaced(&strangers, host(2)), None);
        strangers.push(host(2));
        assert_eq!(displaced(&strangers, host(2)), Some(1));
        assert_eq!(displaced(&strangers, host(3)), None);
        assert!(MAX_OF_ADDRESS > usize::from(MAX_STREAMS), "all lines of a migration come at once");
    }

    #[test]
    fn where_all_places_are_taken_the_address_with_most_lines_gives_one() {
        let few = 5;
        let mut strangers = vec![None; few];
        strangers.extend([host(1); MAX_OF_ADDRESS]);
        strangers.extend([host(2); MAX_STRANGERS - MAX_OF_ADDRESS - 5]);
        assert_eq!(strangers.len(), MAX_STRANGERS);
        assert_eq!(displaced(&strangers, host(3)), Some(few));
        assert_eq!(displaced(&strangers, None), Some(few));
        assert_eq!(displaced(&strangers, host(1)), Some(few));
    }

    #[test]
    fn of_addresses_with_equally_many_lines_the_oldest_line_goes() {
        let strangers: Vec<_> =
            (0..MAX_STRANGERS).map(|number| host(u8::try_from(number).unwrap())).collect();
        assert_eq!(displaced(&strangers, host(200)), Some(0));
    }
}
