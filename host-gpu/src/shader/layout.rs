//! Where the members of buffers lie: the rules that drivers take for granted.

use std::collections::HashMap;

use spirv::Decoration as Name;

use crate::shader::decorations::Decorations;
use crate::shader::decorations::WHOLE;
use crate::shader::shape::Shape;
use crate::shader::symbols::Symbols;

/// What is known of a type under one set of rules.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    pub(super) align: u64,
    pub(super) bytes: u64,
}

/// Layouts found so far, by type and whether arrays and structs are aligned to 16.
pub(super) type Layouts = HashMap<(u32, bool), Option<Layout>>;

/// How a matrix lies: its stride, and whether rows follow each other.
type Major = Option<(u64, bool)>;

pub(super) struct LayoutFinder<'s, 'a> {
    pub(super) symbols: &'s Symbols<'a>,
    pub(super) decorations: &'s Decorations,
    pub(super) layouts: &'s mut Layouts,
}

impl LayoutFinder<'_, '_> {
    /// The layout of `ty` in a buffer; `None` where it breaks the rules. `uniform` as in uniform buffers.
    pub(super) fn layout(&mut self, ty: u32, uniform: bool) -> Option<Layout> {
        if let Some(known) = self.layouts.get(&(ty, uniform)) {
            return *known;
        }
        let found = self.lay_out(ty, uniform, None);
        self.layouts.insert((ty, uniform), found);
        found
    }

    fn lay_out(&mut self, ty: u32, uniform: bool, major: Major) -> Option<Layout> {
        let round = |align: u64| if uniform { align.next_multiple_of(16) } else { align };
        match self.symbols.shape(ty) {
            Shape::Int { bits, .. } | Shape::Float { bits } => {
                let bytes = u64::from(bits / 8);
                Some(Layout { align: bytes, bytes })
            }
            Shape::Vector { of, count } => {
                let unit = self.lay_out(of, uniform, None)?.bytes;
                Some(Layout { align: unit * if count == 2 { 2 } else { 4 }, bytes: unit * u64::from(count) })
            }
            Shape::Matrix { column, count } => {
                let (stride, rows) = major?;
                let Shape::Vector { of, count: height } = self.symbols.shape(column) else { return None };
                let unit = self.lay_out(of, uniform, None)?.bytes;
                let (wide, many) = if rows { (count, height) } else { (height, count) };
                let align = round(unit * if wide == 2 { 2 } else { 4 });
                let good = stride > 0 && stride.is_multiple_of(align);
                good.then_some(Layout { align, bytes: stride.checked_mul(u64::from(many))? })
            }
            Shape::Array { of, count } => {
                let (element, stride) = self.element(ty, of, uniform, major)?;
                Some(Layout { align: round(element.align), bytes: stride.checked_mul(u64::from(count))? })
            }
            Shape::Runtime { of } => {
                // One element: what a buffer must have for an index to be in bounds at all.
                let (element, stride) = self.element(ty, of, uniform, major)?;
                Some(Layout { align: round(element.align), bytes: stride })
            }
            Shape::Struct => self.lay_out_struct(ty, uniform),
            _ => None,
        }
    }

    fn element(&mut self, ty: u32, of: u32, uniform: bool, major: Major) -> Option<(Layout, u64)> {
        let stride = u64::from(self.decorations.decoration(ty, WHOLE, Name::ArrayStride)?);
        let element = match self.symbols.shape(of) {
            Shape::Struct => self.layout(of, uniform)?,
            _ => self.lay_out(of, uniform, major)?,
        };
        let align = if uniform { element.align.next_multiple_of(16) } else { element.align };
        (stride >= element.bytes && stride.is_multiple_of(align)).then_some((element, stride))
    }

    fn lay_out_struct(&mut self, ty: u32, uniform: bool) -> Option<Layout> {
        let members = self.symbols.members(ty).to_vec();
        let mut places = Vec::with_capacity(members.len());
        let mut align = 1;
        for (index, member) in (0..).zip(members) {
            let offset = u64::from(self.decorations.decoration(ty, index, Name::Offset)?);
            let stride = self.decorations.decoration(ty, index, Name::MatrixStride).map(u64::from);
            let rows = self.decorations.is_decorated(ty, index, Name::RowMajor);
            let shape = self.symbols.shape(member);
            let is_matrix =
                matches!(self.symbols.shape(self.symbols.innermost(member)), Shape::Matrix { .. });
            if is_matrix && rows == self.decorations.is_decorated(ty, index, Name::ColMajor) {
                return None;
            }
            let laid = match shape {
                Shape::Struct => self.layout(member, uniform)?,
                _ => self.lay_out(member, uniform, stride.map(|stride| (stride, rows)))?,
            };
            // Drivers compute in 32 bits, and spirv-val takes the last of these offsets for none.
            let end = offset.checked_add(laid.bytes).filter(|end| *end <= u64::from(u32::MAX))?;
            let good = match shape {
                // Relaxed: aligned to a component, if it does not straddle 16 bytes needlessly.
                Shape::Vector { of, .. } => {
                    let unit = self.lay_out(of, uniform, None)?.bytes;
                    let straddles =
                        if laid.bytes <= 16 { offset / 16 != (end - 1) / 16 } else { offset % 16 != 0 };
                    offset.is_multiple_of(unit) && !straddles
                }
                _ => offset.is_multiple_of(laid.align),
            };
            if !good {
                return None;
            }
            let tail = matches!(shape, Shape::Struct | Shape::Array { .. } | Shape::Matrix { .. });
            places.push((offset, if tail { end.next_multiple_of(laid.align) } else { end }, end));
            align = align.max(laid.align);
        }
        places.sort_unstable();
        if places.windows(2).any(|pair| matches!(pair, [(_, end, _), (next, _, _)] if next < end)) {
            return None;
        }
        let bytes = places.iter().map(|(_, _, end)| *end).max().unwrap_or(0);
        Some(Layout { align: if uniform { align.next_multiple_of(16) } else { align }, bytes })
    }
}
