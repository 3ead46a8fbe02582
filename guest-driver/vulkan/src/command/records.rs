//! What a dispatch tells its kernel of the images and samplers that are bound: records, in memory of the command buffer.

use campanile_protocol::packet::BINDING_ALIGNMENT;
use campanile_protocol::packet::Binding;

use super::recording::Recording;
use crate::abi::Outcome;
use crate::descriptor::slots::Range;
use crate::device::Core;
use crate::lower::records::Kind;
use crate::lower::records::SAMPLED;
use crate::lower::records::VECTOR;
use crate::pipeline::Pipeline;
use crate::spirv;

/// Writes the record of what is bound; nothing of what is not.
fn write(place: &mut [u32], kind: Kind, range: &Range) {
    let (image, sampler) = match kind {
        Kind::Storage | Kind::Sampled => (place, &mut [][..]),
        Kind::Combined => place.split_at_mut(SAMPLED as usize * VECTOR),
        Kind::Sampler => (&mut [][..], place),
    };
    let shown = range.view.as_ref().and_then(|view| view.shown.as_ref());
    let copy = |place: &mut [u32], words: &[u32]| {
        place.iter_mut().zip(words).for_each(|(place, word)| *place = *word);
    };
    shown.into_iter().for_each(|shown| copy(image, &shown.record));
    range.sampler.iter().for_each(|from| copy(sampler, &from.record));
}

impl Recording {
    /// The buffer of records of a pipeline whose kernel reads one.
    pub(super) fn records(&mut self, core: &Core, pipeline: &Pipeline) -> Outcome<Option<Binding>> {
        let Some(images) = pipeline.images.as_ref().filter(|_| pipeline.reads_records) else {
            return Ok(None);
        };
        let mut words = vec![0; images.vectors as usize * VECTOR];
        for records in &images.records {
            let binding = pipeline.names.get(&(records.set, records.slot)).copied().unwrap_or(records.slot);
            let size = records.kind.vectors() as usize * VECTOR;
            let places = words.get_mut(records.first as usize * VECTOR..).unwrap_or_default();
            for (element, place) in (0..records.count).zip(places.chunks_mut(size)) {
                let range =
                    self.sets.get(records.set as usize).and_then(|bound| bound.range(binding, element));
                range.iter().for_each(|range| write(place, records.kind, range));
            }
        }
        let bytes: Vec<u8> = spirv::bytes(&words).collect();
        let length = bytes.len() as u64;
        let piece = core.heap.allocate(length + BINDING_ALIGNMENT)?;
        let va = piece.va().next_multiple_of(BINDING_ALIGNMENT);
        piece.write(va - piece.va(), &bytes)?;
        self.inline.push(piece);
        let (set, slot) = images.place;
        Ok(Some(Binding::new(va, length, slot).in_set(u16::try_from(set).unwrap_or(u16::MAX))))
    }
}
