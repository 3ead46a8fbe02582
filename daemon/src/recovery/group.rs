//! Nodes that are reset together (TDR-30 to TDR-34).

/// A node that leaves itself out of its own group, which no adapter may (TDR-31).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("node {node} is not in its own dependent group {mask:#x}")]
pub struct NotItself {
    /// Ordinal of the node.
    pub node: usize,
    /// What the adapter answered.
    pub mask: u64,
}

/// The nodes that a reset of one of them takes down, by ordinal. All of one engine ordinal (TDR-33): there is but one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DependentGroup {
    mask: u64,
}

impl DependentGroup {
    /// From the adapter's answer about `node`.
    ///
    /// # Errors
    /// The node itself is not in it.
    pub const fn new(mask: u64, node: usize) -> Result<Self, NotItself> {
        if node < 64 && mask & (1 << node) != 0 { Ok(Self { mask }) } else { Err(NotItself { node, mask }) }
    }

    /// Ordinals of the nodes, rising: the order in which they are reset (TDR-35).
    pub fn nodes(self) -> impl Iterator<Item = usize> {
        (0..64).filter(move |node| self.mask & (1 << node) != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::DependentGroup;
    use super::NotItself;

    #[test]
    fn tdr_31_tdr_32_a_group_holds_its_own_node_and_is_walked_in_order() {
        let group = DependentGroup::new(0x16, 1).unwrap();
        assert_eq!(group.nodes().collect::<Vec<_>>(), [1, 2, 4]);
        assert_eq!(DependentGroup::new(0x16, 0), Err(NotItself { node: 0, mask: 0x16 }));
        assert_eq!(DependentGroup::new(0, 0), Err(NotItself { node: 0, mask: 0 }));
        assert_eq!(DependentGroup::new(1 << 63, 63).unwrap().nodes().collect::<Vec<_>>(), [63]);
        assert!(DependentGroup::new(u64::MAX, 64).is_err());
    }
}
