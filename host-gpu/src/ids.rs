//! Numbers that name things: each kind is a type of its own, so that one cannot be passed for another.
//!
//! A number from outside (a wire structure, a saved state, an index of a table) becomes one with `new`, once, at the edge; it becomes a
//! number again with `get`, where it goes out.

/// Declares a type for the numbers of one kind of thing. It is shown as the number alone, in texts and where it is debugged.
#[macro_export]
macro_rules! id {
    ($(#[$attribute:meta])* $name:ident($number:ty)) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name($number);

        impl $name {
            /// The one with this number.
            pub const fn new(number: $number) -> Self {
                Self(number)
            }

            /// Its number.
            pub const fn get(self) -> $number {
                self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(&self.0, f)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}

id! {
    /// Which context of an engine: the index of its entry in the tables of the shared block.
    ContextIndex(u32)
}

id! {
    /// Which guest process of an engine: likewise.
    ProcessIndex(u32)
}

id! {
    /// Which user-mode queue of an engine: likewise.
    QueueIndex(u16)
}

id! {
    /// Which physical doorbell of an engine: likewise.
    DoorbellIndex(u32)
}
