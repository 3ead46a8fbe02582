//! Which engine: that of one node on one physical adapter (TDR-05, TDR-07, TDR-08).

use std::fmt;

use campanile_protocol::capset;
use campanile_protocol::capset::MAX_ENGINES;

use super::message::NodeKind;

/// The nodes, by ordinal. Every physical adapter has each of them.
pub const NODES: [NodeKind; 2] = [NodeKind::Compute, NodeKind::Copy];

/// Places that engines can have in arrays: one a node of each physical adapter.
pub const MAX_PLACES: usize = MAX_ENGINES * NODES.len();

/// Place of a node in arrays.
pub const fn node_index(node: NodeKind) -> usize {
    match node {
        NodeKind::Compute => 0,
        NodeKind::Copy => 1,
    }
}

/// Ordinal of a node, as the guest knows it.
pub const fn node_ordinal(node: NodeKind) -> u32 {
    match node {
        NodeKind::Compute => capset::NODE_COMPUTE,
        NodeKind::Copy => capset::NODE_COPY,
    }
}

/// The node's name for people, as on the command line.
pub const fn node_name(node: NodeKind) -> &'static str {
    match node {
        NodeKind::Compute => "compute",
        NodeKind::Copy => "copy",
    }
}

/// The engine of `node` on physical adapter `engine`. Written `compute` or `copy` on the first, `compute@1` on the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineAddress {
    /// EngineOrdinal: which of the linked physical adapters; less than [`MAX_ENGINES`].
    pub engine: u8,
    /// What it does.
    pub node: NodeKind,
}

impl EngineAddress {
    /// The engine of `node` on physical adapter `engine`.
    pub const fn new(engine: u8, node: NodeKind) -> Self {
        Self { engine, node }
    }

    /// Its place in arrays; less than [`MAX_PLACES`], and less than twice the number of physical adapters.
    pub fn index(self) -> usize {
        usize::from(self.engine) * NODES.len() + node_index(self.node)
    }

    /// The engine with this place.
    pub fn from_index(index: usize) -> Option<Self> {
        let engine = u8::try_from(index / NODES.len()).ok()?;
        (index < MAX_PLACES).then(|| Self { engine, node: NODES[index % NODES.len()] })
    }

    /// Every engine of so many physical adapters, by place.
    pub fn all(engines: u8) -> impl Iterator<Item = Self> + Clone {
        (0..engines).flat_map(|engine| NODES.map(|node| Self { engine, node }))
    }

    /// The engine that an affinity of `engines` physical adapters says: exactly one bit, 1 << EngineOrdinal (TDR-09);
    /// so on an adapter that is not linked ordinal 0 alone (TDR-10).
    pub fn from_affinity(affinity: u32, node: NodeKind, engines: u8) -> Option<Self> {
        let engine = (0..engines).find(|engine| affinity == 1 << engine)?;
        Some(Self { engine, node })
    }
}

impl fmt::Display for EngineAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(node_name(self.node))?;
        if self.engine == 0 { Ok(()) } else { write!(f, "@{}", self.engine) }
    }
}

#[cfg(test)]
mod tests {
    use super::EngineAddress;
    use super::MAX_PLACES;
    use super::NodeKind;

    #[test]
    fn tdr_07_every_physical_adapter_has_the_same_nodes_each_in_a_place_of_its_own() {
        for engines in 1..=4 {
            let places: Vec<usize> = EngineAddress::all(engines).map(EngineAddress::index).collect();
            assert_eq!(places, (0..usize::from(engines) * 2).collect::<Vec<_>>());
            assert!(places.len() <= MAX_PLACES);
        }
    }

    #[test]
    fn tdr_08_tdr_09_tdr_10_an_affinity_is_one_bit_of_an_engine_that_there_is() {
        let found = |affinity, engines| {
            let address = EngineAddress::from_affinity(affinity, NodeKind::Copy, engines);
            address.map(|address| address.engine)
        };
        assert_eq!(
            [1, 2, 0, 3, 4, u32::MAX].map(|affinity| found(affinity, 1)),
            [Some(0), None, None, None, None, None]
        );
        assert_eq!(
            [1, 2, 0, 3, 4, 5].map(|affinity| found(affinity, 2)),
            [Some(0), Some(1), None, None, None, None]
        );
    }

    #[test]
    fn an_engine_is_named_by_node_and_ordinal() {
        let named = |engine, node| EngineAddress::new(engine, node).to_string();
        assert_eq!(named(0, NodeKind::Compute), "compute");
        assert_eq!(named(1, NodeKind::Copy), "copy@1");
    }
}
