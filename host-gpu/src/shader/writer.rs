//! The words of a result, while they are written.

use std::collections::HashMap;

use spirv::Op;

/// The result, while it is written.
pub(super) struct Writer {
    pub(super) words: Vec<u32>,
    /// The next free id.
    pub(super) next: u32,
    /// Constants of ours, by type and value.
    pub(super) constants: HashMap<(u32, u64), u32>,
    pub(super) bool: u32,
    /// The variables that were the number of workgroups, all of them one buffer now.
    pub(super) grid: Vec<Grid>,
    /// Copies of pointers to their vectors.
    pub(super) copies: HashMap<u32, Grid>,
}

/// One of the guest's variables for the number of workgroups.
#[derive(Clone, Copy)]
pub(super) struct Grid {
    pub(super) variable: u32,
    pub(super) block: u32,
    /// Pointers to its vector and to a component, and the index 0.
    pub(super) vector: u32,
    pub(super) component: u32,
    pub(super) zero: u32,
}

impl Writer {
    /// Nothing yet, with room for `words`; ids from `next` on are free.
    pub(super) fn new(words: usize, next: u32) -> Self {
        Self {
            words: Vec::with_capacity(words),
            next,
            constants: HashMap::new(),
            bool: 0,
            grid: Vec::new(),
            copies: HashMap::new(),
        }
    }

    pub(super) fn put(&mut self, op: Op, operands: &[u32]) {
        self.raw(op as u32, operands);
    }

    pub(super) fn raw(&mut self, code: u32, operands: &[u32]) {
        let length = u32::try_from(operands.len() + 1).unwrap_or(0);
        self.words.push(length << 16 | code);
        self.words.extend_from_slice(operands);
    }

    pub(super) fn id(&mut self) -> u32 {
        self.next += 1;
        self.next - 1
    }

    pub(super) fn grid_of(&self, id: u32) -> Option<Grid> {
        self.grid.iter().find(|grid| grid.variable == id).copied()
    }

    /// The grid of which `id` is a copied pointer.
    pub(super) fn copy_of_grid(&self, id: u32) -> Option<Grid> {
        self.copies.get(&id).copied()
    }
}
