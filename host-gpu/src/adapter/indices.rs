//! Places in a table that another process reads: a place is used again only after that process has said that
//! it looked.

/// Hands out places of a table.
#[derive(Debug)]
pub struct Indices {
    free: Vec<u32>,
    retired: Vec<(u64, u32)>,
    generation: u64,
}

impl Indices {
    /// A table of `count` places.
    pub fn new(count: u32) -> Self {
        Self { free: (0..count).rev().collect(), retired: Vec::new(), generation: 0 }
    }

    /// A free place and its generation (never zero). `acknowledged`: the last watch sequence acted on.
    pub fn take(&mut self, acknowledged: u64) -> Option<(u32, u64)> {
        let free = &mut self.free;
        self.retired.retain(|&(sequence, index)| {
            let waits = sequence > acknowledged;
            if !waits {
                free.push(index);
            }
            waits
        });
        let index = self.free.pop()?;
        self.generation += 1;
        Some((index, self.generation))
    }

    /// Gives a place back that the watch sequence `sequence` takes away.
    pub fn retire(&mut self, index: u32, sequence: u64) {
        self.retired.push((sequence, index));
    }
}

#[cfg(test)]
mod tests {
    use super::Indices;

    #[test]
    fn a_place_is_used_again_only_after_the_acknowledgement() {
        let mut indices = Indices::new(1);
        let (index, first) = indices.take(0).unwrap();
        assert!(indices.take(0).is_none());
        indices.retire(index, 5);
        assert!(indices.take(4).is_none());
        let (again, second) = indices.take(5).unwrap();
        assert_eq!(again, index);
        assert_ne!(first, second);
    }
}
