//! The region behind the video memory, where save areas lie.

use campanile_protocol::PAGE_SIZE;

use super::ranges::Ranges;
use super::vram::Place;
use super::vram::VideoMemory;

impl VideoMemory {
    /// Takes zeroed memory for a save area.
    pub fn allocate_area(&mut self, length: u64) -> Option<Place> {
        let offset = self.areas.allocate(length)?;
        self.hand_out(offset, length);
        Some(Place::Area(offset))
    }

    /// Takes memory for a save area that is copied there whole.
    pub fn take_area(&mut self, length: u64) -> Option<Place> {
        let offset = self.areas.allocate(length)?;
        self.touch(offset, length);
        Some(Place::Area(offset))
    }

    /// Takes memory at `offset` for a save area that is copied there whole.
    pub fn reserve_area(&mut self, offset: u64, length: u64) -> Option<Place> {
        if !self.areas.reserve(offset, length) {
            return None;
        }
        self.touch(offset, length);
        Some(Place::Area(offset))
    }

    /// Free memory for save areas.
    pub fn areas(&self) -> &Ranges {
        &self.areas
    }

    /// Takes zeroed room for what begins evicted.
    pub fn allocate_host(&mut self, length: u64) -> Option<Place> {
        let place = self.take_host(length)?;
        self.zero(place, length);
        Some(place)
    }

    /// Zeroes all of a place.
    fn zero(&self, place: Place, length: u64) {
        const ZERO: [u8; 4096] = [0; 4096];
        let mut at = 0;
        while at < length {
            if let Some(slice) = self.mapping_of(place).slice(place.offset() + at, PAGE_SIZE) {
                slice.copy_from(&ZERO);
            }
            at += PAGE_SIZE;
        }
        self.mark(place, place.offset(), length);
    }
}
