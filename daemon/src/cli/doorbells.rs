//! Doorbell models and notify mode as people write them.

use std::fmt;

use campanile_protocol::queue::doorbell::DoorbellModel;

use crate::vgpu::doorbells::modes::DoorbellModes;
use crate::vgpu::doorbells::modes::NodeMode;

/// Names of the nodes, by ordinal.
const NODES: [&str; 2] = ["compute", "copy"];

/// The doorbell model of each node, by ordinal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DoorbellModels([DoorbellModel; 2]);

/// Some of the nodes, by ordinal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeSet([bool; 2]);

fn node(text: &str) -> Result<usize, String> {
    let found = NODES.iter().position(|name| *name == text);
    found.ok_or_else(|| format!("{text:?} is no node; {} are", NODES.join(" and ")))
}

fn model(text: &str) -> Result<DoorbellModel, String> {
    match text {
        "dedicated" => Ok(DoorbellModel::Dedicated),
        "global" => Ok(DoorbellModel::Global),
        _ => Err(format!("{text:?} is no doorbell model; dedicated and global are")),
    }
}

/// `global`, `dedicated`, or `NODE=MODEL,…`; a node that is not named has the dedicated model.
pub fn parse_models(text: &str) -> Result<DoorbellModels, String> {
    if !text.contains('=') {
        return Ok(DoorbellModels([model(text)?; 2]));
    }
    let mut models = [DoorbellModel::Dedicated; 2];
    for part in text.split(',') {
        let (name, value) = part.split_once('=').ok_or_else(|| format!("{part:?} is not node=model"))?;
        models[node(name)?] = model(value)?;
    }
    Ok(DoorbellModels(models))
}

/// `NODE,…`.
pub fn parse_nodes(text: &str) -> Result<NodeSet, String> {
    let mut nodes = [false; 2];
    for name in text.split(',') {
        nodes[node(name)?] = true;
    }
    Ok(NodeSet(nodes))
}

/// Both together.
pub fn modes(models: DoorbellModels, notify: Option<NodeSet>) -> DoorbellModes {
    let notify = notify.unwrap_or(NodeSet([false; 2]));
    DoorbellModes([0, 1].map(|node| NodeMode { model: models.0[node], notify: notify.0[node] }))
}

impl fmt::Display for DoorbellModels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, model)) in NODES.iter().zip(self.0).enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let model = match model {
                DoorbellModel::Dedicated => "dedicated",
                DoorbellModel::Global => "global",
            };
            write!(f, "{comma}{name}={model}")?;
        }
        Ok(())
    }
}

impl fmt::Display for NodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> =
            NODES.iter().zip(self.0).filter_map(|(name, named)| named.then_some(*name)).collect();
        f.write_str(&names.join(","))
    }
}

#[cfg(test)]
mod tests {
    use campanile_protocol::queue::doorbell::DoorbellModel;

    use super::DoorbellModels;
    use super::NodeSet;
    use super::modes;
    use super::parse_models;
    use super::parse_nodes;

    #[test]
    fn models_are_read_for_all_nodes_or_one_by_one() {
        let (dedicated, global) = (DoorbellModel::Dedicated, DoorbellModel::Global);
        assert_eq!(parse_models("global"), Ok(DoorbellModels([global; 2])));
        assert_eq!(parse_models("copy=global"), Ok(DoorbellModels([dedicated, global])));
        let mixed = parse_models("compute=global,copy=dedicated").unwrap();
        assert_eq!(parse_models(&mixed.to_string()), Ok(mixed));
        for wrong in ["", "shared", "copy", "copy=", "gpu=global", "copy=global,"] {
            assert!(parse_models(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn nodes_are_read_from_a_list() {
        assert_eq!(parse_nodes("copy"), Ok(NodeSet([false, true])));
        let both = parse_nodes("copy,compute").unwrap();
        assert_eq!(parse_nodes(&both.to_string()), Ok(both));
        assert!(parse_nodes("").is_err() && parse_nodes("gpu").is_err());
        let modes = modes(parse_models("global").unwrap(), parse_nodes("compute").ok());
        assert_eq!(modes.0.map(|mode| mode.notify), [true, false]);
    }
}
