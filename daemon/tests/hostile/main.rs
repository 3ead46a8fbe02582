//! A hostile guest, VMM or engine against a real daemon: each test is named after what is refused, and ends with
//! [`scene::Scene::unharmed`]: whoever did nothing wrong goes on computing, in the same daemon process.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod attacker;
mod away;
mod blobs;
mod budget;
mod bystander;
mod chains;
mod commands;
mod counters;
mod daemon;
mod descriptors;
mod doorbells;
mod engines;
mod floods;
mod frames;
mod front_ends;
mod hogs;
mod kernel_lies;
mod liars;
mod lies;
mod lifetimes;
mod logs;
mod memory;
mod memory_files;
mod messages;
mod native_fences;
mod packets;
mod processes;
mod puppet;
mod ring;
mod rings;
mod scene;
#[path = "../end_to_end/signals.rs"]
mod signals;
mod stderr;
mod suspends;
mod wire;
#[allow(dead_code, reason = "the fuzz targets use all of it")]
#[path = "../fuzz/targets/words.rs"]
mod words;

use daemon::until;
