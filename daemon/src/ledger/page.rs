//! Where the device page of a guest process lies, and how its process is told that the device is lost when no session is left that
//! could say so.

use std::io;
use std::iter;

use campanile_protocol::PAGE_SIZE;
use campanile_protocol::device_page;
use campanile_protocol::queue::doorbell::DoorbellStatus;
use serde::Deserialize;
use serde::Serialize;

/// Where a page lies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PagePlace {
    /// From this byte of video memory on.
    Video(u64),
    /// In guest RAM: guest-physical address and bytes of each piece, in their order.
    Guest(Vec<(u64, u64)>),
}

impl PagePlace {
    /// In guest RAM, in pages at these addresses.
    pub fn of_pages(addresses: &[u64]) -> Self {
        let mut pieces: Vec<(u64, u64)> = Vec::new();
        for address in addresses {
            match pieces.last_mut() {
                Some((start, bytes)) if *start + *bytes == *address => *bytes += PAGE_SIZE,
                _ => pieces.push((*address, PAGE_SIZE)),
            }
        }
        Self::Guest(pieces)
    }

    /// Writes into the page that the device is lost: no doorbell is connected any more, and its GPU has stopped, in this order.
    /// `store` writes a word at a byte of video memory, or at a guest-physical address.
    ///
    /// # Errors
    /// A word lies outside of the page, or cannot be written.
    pub fn lose(&self, mut store: impl FnMut(Spot, u64) -> io::Result<()>) -> io::Result<()> {
        let abort = DoorbellStatus::DisconnectedAbort.word();
        let statuses = (0..device_page::MAX_QUEUES).map(|queue| (device_page::status(queue), abort));
        let cause = [(device_page::LOSS, 0), (device_page::LOSS_REPORT, 0)];
        let status = iter::once((device_page::DEVICE_STATUS, device_page::DEVICE_STOPPED));
        for (offset, word) in statuses.chain(cause).chain(status) {
            let spot = self
                .spot(offset)
                .ok_or_else(|| io::Error::other(format!("byte {offset} of the page lies nowhere")))?;
            store(spot, word)?;
        }
        Ok(())
    }

    fn spot(&self, offset: u64) -> Option<Spot> {
        match self {
            Self::Video(start) => start.checked_add(offset).map(Spot::Video),
            Self::Guest(pieces) => {
                let mut left = offset;
                for (start, bytes) in pieces {
                    if left < *bytes {
                        return start.checked_add(left).map(Spot::Guest);
                    }
                    left -= bytes;
                }
                None
            }
        }
    }
}

/// Where a word lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spot {
    /// At this byte of video memory.
    Video(u64),
    /// At this guest-physical address.
    Guest(u64),
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use campanile_protocol::device_page;
    use campanile_protocol::queue::doorbell::DoorbellStatus;

    use super::PagePlace;
    use super::Spot;

    #[test]
    fn a_lost_page_says_abort_of_each_queue_and_then_that_its_gpu_has_stopped() {
        let mut said = Vec::new();
        PagePlace::Video(0x10000)
            .lose(|spot, word| {
                said.push((spot, word));
                Ok(())
            })
            .unwrap();
        let last = (Spot::Video(0x10000 + device_page::DEVICE_STATUS), device_page::DEVICE_STOPPED);
        assert_eq!(said.pop(), Some(last));
        let words: BTreeMap<u64, u64> = said
            .into_iter()
            .map(|(spot, word)| match spot {
                Spot::Video(at) => (at - 0x10000, word),
                Spot::Guest(_) => panic!("{spot:?}"),
            })
            .collect();
        for queue in [0, device_page::MAX_QUEUES - 1] {
            assert_eq!(words[&device_page::status(queue)], DoorbellStatus::DisconnectedAbort.word());
        }
        assert_eq!((words[&device_page::LOSS], words[&device_page::LOSS_REPORT]), (0, 0));
    }

    #[test]
    fn a_page_of_guest_ram_is_written_where_its_pieces_lie() {
        let pages: Vec<u64> = [0x1000, 0x2000, 0x9000]
            .into_iter()
            .chain((0..20).map(|page| 0x4_0000 + page * 0x1000))
            .collect();
        let place = PagePlace::of_pages(&pages);
        assert_eq!(place, PagePlace::Guest(vec![(0x1000, 0x2000), (0x9000, 0x1000), (0x4_0000, 0x1_4000)]));
        let mut spots = Vec::new();
        place
            .lose(|spot, _| {
                spots.push(spot);
                Ok(())
            })
            .unwrap();
        // Statuses lie from byte 16,384 on: in the second page of the third piece.
        assert_eq!(device_page::status(0), 0x4000);
        assert_eq!(spots[0], Spot::Guest(0x4_1000));
        assert_eq!(spots.last(), Some(&Spot::Guest(0x1000 + device_page::DEVICE_STATUS)));
        assert!(PagePlace::of_pages(&pages[..2]).lose(|_, _| Ok(())).is_err(), "it is too short");
    }
}
