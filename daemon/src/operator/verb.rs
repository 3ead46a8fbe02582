//! What the operator can say.

use campanile_host_gpu::engine::message::NodeKind;
use clap::Subcommand;
use clap::ValueEnum;
use serde::Deserialize;
use serde::Serialize;

/// A node by the name that people use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum NodeName {
    /// Kernels, copies, fills.
    Compute,
    /// Copies and fills.
    Copy,
}

impl From<NodeName> for NodeKind {
    fn from(name: NodeName) -> Self {
        match name {
            NodeName::Compute => Self::Compute,
            NodeName::Copy => Self::Copy,
        }
    }
}

/// A device power state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum PowerName {
    /// On.
    D0,
    /// Off, with all that its guests have kept.
    D3,
}

/// Whether guests send a message after each ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum NotifyMode {
    /// They do.
    On,
    /// They need not, but for doorbells that were made so.
    Off,
}

/// The commands: on the command line of `campanile ctl`, and on the socket as `{"verb": NAME, …}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Subcommand)]
#[serde(tag = "verb", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Verb {
    /// Show the vGPUs: who uses them, their engines, who is not allowed.
    Status,
    /// Reset the engine of a node, or of all: whose work it runs is lost, everybody else goes on.
    Reset {
        /// The vGPU.
        #[arg(long, value_name = "NAME")]
        vgpu: String,
        /// The node; all without it.
        #[arg(long, value_name = "NODE")]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node: Option<NodeName>,
    },
    /// Reset everything of a vGPU, or of all: every device is lost.
    ResetAdapter {
        /// The vGPU; all without it.
        #[arg(long, value_name = "NAME")]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vgpu: Option<String>,
    },
    /// Put a vGPU to sleep, so that its engine processes end, or wake it. A guest that has work wakes it too.
    Power {
        /// The vGPU.
        #[arg(long, value_name = "NAME")]
        vgpu: String,
        /// The state.
        #[arg(value_name = "STATE")]
        state: PowerName,
    },
    /// Let a vGPU work again that is quarantined, and forget its past.
    Allow {
        /// The vGPU.
        #[arg(long, value_name = "NAME")]
        vgpu: String,
    },
    /// Have the guests of a vGPU send a message after each ring on a node, so that its engine need not poll, or not.
    Notify {
        /// The vGPU.
        #[arg(long, value_name = "NAME")]
        vgpu: String,
        /// The node.
        #[arg(long, value_name = "NODE")]
        node: NodeName,
        /// The mode.
        #[arg(value_name = "MODE")]
        mode: NotifyMode,
    },
    /// Show what was counted of each vGPU.
    Metrics,
}

#[cfg(test)]
mod tests {
    use super::NodeName;
    use super::Verb;

    #[test]
    fn a_verb_is_read_from_the_line_that_it_is_written_as() {
        let reset = Verb::Reset { vgpu: "a".to_owned(), node: Some(NodeName::Copy) };
        let line = serde_json::to_string(&reset).unwrap();
        assert_eq!(line, r#"{"verb":"reset","vgpu":"a","node":"copy"}"#);
        assert_eq!(serde_json::from_str::<Verb>(&line).unwrap(), reset);
        assert_eq!(
            serde_json::from_str::<Verb>(r#"{"verb":"reset-adapter"}"#).unwrap(),
            Verb::ResetAdapter { vgpu: None }
        );
        for wrong in
            [r#"{"verb":"reset"}"#, r#"{"verb":"reset","vgpu":"a","force":1}"#, r#"{"verb":"x"}"#, "{}", "1"]
        {
            assert!(serde_json::from_str::<Verb>(wrong).is_err(), "{wrong}");
        }
    }
}
