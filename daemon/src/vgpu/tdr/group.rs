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

/// The nodes that a reset of one of them takes down, all of one physical adapter (TDR-33).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DependentGroup {
    engine: u8,
    mask: u64,
}

impl DependentGroup {
    /// From the adapter's answer about a node, by EngineOrdinal and NodeOrdinal.
    ///
    /// # Errors
    /// The node itself is not in it.
    pub const fn new(mask: u64, (engine, node): (u8, usize)) -> Result<Self, NotItself> {
        if node < 64 && mask & (1 << node) != 0 {
            Ok(Self { engine, mask })
        } else {
            Err(NotItself { node, mask })
        }
    }

    /// The nodes, by rising ordinal: the order in which they are reset (TDR-35).
    pub fn nodes(self) -> impl Iterator<Item = (u8, usize)> {
        (0..64).filter(move |node| self.mask & (1 << node) != 0).map(move |node| (self.engine, node))
    }
}

#[cfg(test)]
mod tests {
    use super::DependentGroup;
    use super::NotItself;

    #[test]
    fn tdr_31_tdr_32_a_group_holds_its_own_node_and_is_walked_in_order() {
        let nodes = |mask, node| {
            let group = DependentGroup::new(mask, (0, node)).unwrap();
            group.nodes().map(|(_, node)| node).collect::<Vec<_>>()
        };
        assert_eq!(nodes(0x16, 1), [1, 2, 4]);
        assert_eq!(DependentGroup::new(0x16, (0, 0)), Err(NotItself { node: 0, mask: 0x16 }));
        assert_eq!(DependentGroup::new(0, (0, 0)), Err(NotItself { node: 0, mask: 0 }));
        assert_eq!(nodes(1 << 63, 63), [63]);
        assert!(DependentGroup::new(u64::MAX, (0, 64)).is_err());
    }

    #[test]
    fn tdr_33_all_nodes_of_a_group_are_of_the_engine_that_was_asked() {
        for engine in [0, 1, 3] {
            let group = DependentGroup::new(0x16, (engine, 2)).unwrap();
            assert_eq!(group.nodes().collect::<Vec<_>>(), [(engine, 1), (engine, 2), (engine, 4)]);
        }
    }
}
