//! What the guard lets through, what it makes of it, and what it refuses and why.

pub(crate) mod assembly;
mod composed;
mod copied;
mod declared;
mod emitted;
mod flow;
mod frame;
mod header;
mod layout;
mod made;
mod mutations;
mod palette;
mod producers;
mod reached;
mod refused;
mod rounded;
mod samples;
mod specialised;
mod texel_bindings;
mod texels;
mod typing;
