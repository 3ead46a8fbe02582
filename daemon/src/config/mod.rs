//! The daemon's configuration as files: `/etc/campanile/campanile.toml`, and what lies beside it in `conf.d`.
//!
//! ```text
//!   campanile.toml, conf.d/*.toml ──files──▶ text ──document──▶ settings: each option once, with its place
//!                                                                  │ kind: values as the command line has them
//!   options of `campanile serve` (clap), keys of a vGPU ──known────┤
//!                                                                  ▼
//!   command line ──────────────────────────────────────command_line──▶ one command line, read as any other
//! ```
//!
//! There is one list of options: those of `campanile serve`, and [`vgpu::KEYS`]. A key of a file is the long name of an option
//! and its value goes through the same parser, so that neither can know what the other does not. What the command line says
//! wins. What is wrong is a [`fault::Fault`]: file, line, column, and what would be right.

pub mod command_line;
pub mod document;
pub mod example;
pub mod fault;
pub mod files;
pub mod kind;
pub mod known;
pub mod read;
pub mod settings;
pub mod size;
pub mod vgpu;
