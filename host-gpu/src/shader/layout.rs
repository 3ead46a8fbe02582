//! Where the members of buffers lie: the rules that drivers take for granted.

use std::collections::HashMap;

use spirv::Decoration as Name;

use crate::shader::decorations::Decorations;
use crate::shader::decorations::WHOLE;
use crate::shader::profile::Profile;
use crate::shader::shape::Shape;
use crate::shader::symbols::Symbols;

/// What is known of a type under one set of rules.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    pub(super) align: u64,
    pub(super) bytes: u64,
}

/// Under which rules members lie. Each allows all that the one before it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Rules {
    /// Of uniform buffers: arrays, structs and matrices are aligned to 16.
    Uniform,
    /// Of storage buffers and push constants; of uniform buffers too with `uniformBufferStandardLayout`.
    Storage,
    /// Of all of them with `scalarBlockLayout`: everything is aligned to its largest component alone.
    Scalar,
}

impl Rules {
    /// What a device of this profile lets blocks have.
    pub(super) fn of(profile: &Profile, is_uniform: bool) -> Self {
        match () {
            () if profile.scalar_layout => Self::Scalar,
            () if is_uniform && !profile.uniform_standard => Self::Uniform,
            () => Self::Storage,
        }
    }

    /// Alignment of an array, a struct or a matrix of what has alignment `inner`.
    fn outer(self, inner: u64) -> u64 {
        if self == Self::Uniform { inner.next_multiple_of(16) } else { inner }
    }

    /// Alignment of a vector of `count` components of `unit` bytes.
    fn vector(self, unit: u64, count: u32) -> u64 {
        match (self, count) {
            (Self::Scalar, _) => unit,
            (_, 2) => unit * 2,
            _ => unit * 4,
        }
    }
}

/// Layouts found so far, by type and rules.
pub(super) type Layouts = HashMap<(u32, Rules), Option<Layout>>;

/// How a matrix lies: its stride, and whether rows follow each other.
type Major = Option<(u64, bool)>;

pub(super) struct LayoutFinder<'s, 'a> {
    pub(super) symbols: &'s Symbols<'a>,
    pub(super) decorations: &'s Decorations,
    pub(super) layouts: &'s mut Layouts,
}

impl LayoutFinder<'_, '_> {
    /// The layout of `ty` in a buffer; `None` where it breaks the rules.
    pub(super) fn layout(&mut self, ty: u32, rules: Rules) -> Option<Layout> {
        if let Some(known) = self.layouts.get(&(ty, rules)) {
            return *known;
        }
        let found = self.lay_out(ty, rules, None);
        self.layouts.insert((ty, rules), found);
        found
    }

    fn lay_out(&mut self, ty: u32, rules: Rules, major: Major) -> Option<Layout> {
        match self.symbols.shape(ty) {
            Shape::Int { bits, .. } | Shape::Float { bits } => {
                let bytes = u64::from(bits / 8);
                Some(Layout { align: bytes, bytes })
            }
            Shape::Vector { of, count } => {
                let unit = self.lay_out(of, rules, None)?.bytes;
                Some(Layout { align: rules.vector(unit, count), bytes: unit * u64::from(count) })
            }
            Shape::Matrix { column, count } => {
                let (stride, rows) = major?;
                let Shape::Vector { of, count: height } = self.symbols.shape(column) else { return None };
                let unit = self.lay_out(of, rules, None)?.bytes;
                let (wide, many) = if rows { (count, height) } else { (height, count) };
                let align = rules.outer(rules.vector(unit, wide));
                let good = stride > 0 && stride.is_multiple_of(align);
                good.then_some(Layout { align, bytes: stride.checked_mul(u64::from(many))? })
            }
            Shape::Array { of, count } => {
                let (element, stride) = self.element(ty, of, rules, major)?;
                let whole = stride.checked_mul(u64::from(count))?;
                // What comes next may lie in the padding of the last element.
                let padding = if rules == Rules::Scalar { stride - element.bytes } else { 0 };
                Some(Layout { align: rules.outer(element.align), bytes: whole - padding })
            }
            Shape::Runtime { of } => {
                // One element: what a buffer must have for an index to be in bounds at all.
                let (element, stride) = self.element(ty, of, rules, major)?;
                Some(Layout { align: rules.outer(element.align), bytes: stride })
            }
            Shape::Struct => self.lay_out_struct(ty, rules),
            _ => None,
        }
    }

    fn element(&mut self, ty: u32, of: u32, rules: Rules, major: Major) -> Option<(Layout, u64)> {
        let stride = u64::from(self.decorations.decoration(ty, WHOLE, Name::ArrayStride)?);
        let element = match self.symbols.shape(of) {
            Shape::Struct => self.layout(of, rules)?,
            _ => self.lay_out(of, rules, major)?,
        };
        let align = rules.outer(element.align);
        (stride >= element.bytes && stride.is_multiple_of(align)).then_some((element, stride))
    }

    fn lay_out_struct(&mut self, ty: u32, rules: Rules) -> Option<Layout> {
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
                Shape::Struct => self.layout(member, rules)?,
                _ => self.lay_out(member, rules, stride.map(|stride| (stride, rows)))?,
            };
            // Drivers compute in 32 bits, and spirv-val takes the last of these offsets for none.
            let end = offset.checked_add(laid.bytes).filter(|end| *end <= u64::from(u32::MAX))?;
            let good = match shape {
                // Relaxed: aligned to a component, if it does not straddle 16 bytes needlessly.
                Shape::Vector { of, .. } => {
                    let unit = self.lay_out(of, rules, None)?.bytes;
                    let straddles =
                        if laid.bytes <= 16 { offset / 16 != (end - 1) / 16 } else { offset % 16 != 0 };
                    offset.is_multiple_of(unit) && (rules == Rules::Scalar || !straddles)
                }
                _ => offset.is_multiple_of(laid.align),
            };
            if !good {
                return None;
            }
            let tail = rules != Rules::Scalar
                && matches!(shape, Shape::Struct | Shape::Array { .. } | Shape::Matrix { .. });
            places.push((offset, if tail { end.next_multiple_of(laid.align) } else { end }, end));
            align = align.max(laid.align);
        }
        places.sort_unstable();
        if places.windows(2).any(|pair| matches!(pair, [(_, end, _), (next, _, _)] if next < end)) {
            return None;
        }
        let bytes = places.iter().map(|(_, _, end)| *end).max().unwrap_or(0);
        Some(Layout { align: rules.outer(align), bytes })
    }
}
