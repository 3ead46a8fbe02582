//! Memory, by where it lies.

use serde::Deserialize;
use serde::Serialize;

/// Where an allocation lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SavedPlace {
    /// Nobody has looked at it yet: it reads zero.
    Nowhere,
    /// In the aperture, at this offset.
    Aperture(u64),
    /// In the rest of the video memory, at this offset from the head of all of it.
    Local(u64),
    /// Behind that, where save areas lie, at this offset from the head of all of it.
    Area(u64),
    /// Evicted: in the other memory, at this offset.
    Host(u64),
    /// In guest RAM: this segment.
    Guest(u16),
}

/// One allocation: number, bytes, place, priority (PRE-41). Who refers to it follows from the rest of the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedAllocation(pub u64, pub u64, pub SavedPlace, pub u32);

/// One blob resource: its number, its allocation, whether it is video memory, whether it may be mapped into the window,
/// and whether it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedBlob(pub u32, pub u64, pub bool, pub bool, pub bool);

/// One blob of a process that is away: its name, its allocation, whether it may be mapped into the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedKeptBlob(pub u64, pub u64, pub bool);

/// Guest RAM that engines map as one piece.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedSegment {
    /// Its number.
    pub id: u16,
    /// Guest-physical address and bytes of each piece, in order.
    pub pieces: Vec<(u64, u64)>,
}
