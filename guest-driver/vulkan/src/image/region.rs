//! Which bytes a copy moves: boxes of texels in images and buffers, as runs that lie in one piece on both sides.

use ash::vk;

use super::surface::Surface;

/// Where the rows of a box lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grid {
    /// GPU virtual address of the first texel.
    pub(crate) va: u64,
    /// Bytes from a row to the next.
    pub(crate) row: u64,
    /// Bytes from a slice to the next.
    pub(crate) slice: u64,
}

/// How much a box holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Volume {
    /// Bytes of a row.
    pub(crate) bytes: u64,
    /// Rows of a slice.
    pub(crate) rows: u32,
    /// Slices.
    pub(crate) slices: u32,
}

/// Bytes that are moved in one piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    /// GPU virtual address of the first.
    pub(crate) from: u64,
    /// And where it goes.
    pub(crate) to: u64,
    /// How many.
    pub(crate) bytes: u64,
}

impl Grid {
    /// Of a box in an image at `va`.
    pub(crate) fn in_image(
        surface: &Surface,
        va: u64,
        layers: &vk::ImageSubresourceLayers,
        at: vk::Offset3D,
    ) -> Self {
        let level = layers.mip_level;
        let [x, y, z] = [at.x, at.y, at.z].map(|side| u32::try_from(side).unwrap_or(0));
        let slice = if surface.is_volume() { z } else { layers.base_array_layer };
        let (row, start) = (surface.row(level), surface.offset(level, slice));
        let first = start + row * u64::from(y) + surface.texel() * u64::from(x);
        Self { va: va + first, row, slice: surface.slice(level) }
    }

    /// Of a box in a buffer from `va` on, whose rows and slices have these texels; as many as the box has, where 0 is said.
    pub(crate) fn in_buffer(
        surface: &Surface,
        va: u64,
        [length, height]: [u32; 2],
        extent: vk::Extent3D,
    ) -> Self {
        let or = |said: u32, own: u32| u64::from(if said == 0 { own } else { said });
        let row = or(length, extent.width) * surface.texel();
        Self { va, row, slice: row * or(height, extent.height) }
    }
}

impl Volume {
    /// Of a box of an image.
    pub(crate) fn of(surface: &Surface, layers: u32, extent: vk::Extent3D) -> Self {
        let bytes = u64::from(extent.width) * surface.texel();
        Self { bytes, rows: extent.height, slices: layers.max(extent.depth) }
    }

    /// The runs of a copy from one grid to another.
    pub(crate) fn runs(self, from: Grid, to: Grid) -> impl Iterator<Item = Run> {
        let row = move |slice: u32, row: u32| {
            let at = |grid: Grid| grid.va + grid.slice * u64::from(slice) + grid.row * u64::from(row);
            Run { from: at(from), to: at(to), bytes: self.bytes }
        };
        let rows = (0..self.slices).flat_map(move |slice| (0..self.rows).map(move |at| row(slice, at)));
        let mut rows = rows.filter(|run| run.bytes > 0).peekable();
        std::iter::from_fn(move || {
            let mut run = rows.next()?;
            let goes_on =
                |run: &Run, next: &Run| next.from == run.from + run.bytes && next.to == run.to + run.bytes;
            while let Some(next) = rows.next_if(|next| goes_on(&run, next)) {
                run.bytes += next.bytes;
            }
            Some(run)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Grid;
    use super::Run;
    use super::Volume;

    #[test]
    fn rows_that_lie_behind_each_other_on_both_sides_are_one_run() {
        let grid = |va, row, slice| Grid { va, row, slice };
        let runs =
            |bytes, from, to| -> Vec<Run> { Volume { bytes, rows: 3, slices: 2 }.runs(from, to).collect() };
        let all = runs(16, grid(0, 16, 48), grid(1000, 16, 48));
        assert_eq!(all, [Run { from: 0, to: 1000, bytes: 96 }]);
        let slices = runs(16, grid(0, 16, 256), grid(1000, 16, 48));
        assert_eq!(slices, [Run { from: 0, to: 1000, bytes: 48 }, Run { from: 256, to: 1048, bytes: 48 }]);
        let rows = runs(16, grid(0, 20, 60), grid(1000, 16, 48));
        assert_eq!(rows.len(), 6);
        assert_eq!(rows[4], Run { from: 80, to: 1064, bytes: 16 });
        assert_eq!(runs(0, grid(0, 16, 48), grid(0, 16, 48)), []);
    }
}
