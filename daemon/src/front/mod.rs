//! What a guest sees: the fronts over the session layer (design §2).
//!
//! One today: [`gpu`], a virtio-gpu device. A front decodes its own commands and answers them in its own words;
//! control messages are the same bytes on every front.

pub mod gpu;
