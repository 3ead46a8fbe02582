//! Images and samplers as instructions name them.

use super::array::Element;
use super::shape::Shape;

/// What a type holds of images and samplers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opaque {
    Image(Shape),
    Combined(Shape),
    Sampler,
}

/// Where a record begins: at a vector that is known, or at one that the kernel computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    At(u32),
    Id(u32),
}

/// An image or a sampler, or a pointer to one or to an array of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Handle {
    pub(super) what: Opaque,
    /// The record of the image, where there is one.
    pub(super) image: Option<Place>,
    /// The record of the sampler, where there is one.
    pub(super) sampler: Option<Place>,
    /// Where an image was loaded from, or a pointer to it.
    pub(super) pointer: Option<u32>,
    /// Whether it is a pointer to an array: indices count in records.
    pub(super) is_array: bool,
    /// Which one of an array it is, where an index says it at run time: nothing names it then.
    pub(super) element: Option<Element>,
}

impl Handle {
    /// One whose record, or the first of whose records, is there. A sampler that comes with an image stands behind it.
    pub(super) fn to(what: Opaque, place: Place, pointer: Option<u32>, is_array: bool) -> Self {
        let (image, sampler) = match what {
            Opaque::Sampler => (None, Some(place)),
            Opaque::Image(_) | Opaque::Combined(_) => (Some(place), None),
        };
        Self { what, image, sampler, pointer, is_array, element: None }
    }
}
