//! Images of an array that an index chooses at run time. Kernels name texel buffers by constants alone, so functions are added that choose
//! among the elements: one for each way in which an array is accessed.
//!
//! ```text
//!   texel(array[i], at) ─▶ chosen(i, at):  switch i { 1: texel(array[1], at)  2: …  default: texel(array[0], at) }
//! ```
//!
//! An index is never beyond the last element. Records are found by arithmetic, and samplers are no more than those.

use ::spirv::FunctionControl;
use ::spirv::Op;
use ::spirv::SelectionControl;

use super::array::Access;
use super::array::Array;
use super::array::Element;
use super::array::Operand;
use super::body::Body;
use super::body::Used;
use super::code::Refusal;
use super::code::UINT;
use super::code::push;
use super::emit::Emit;
use super::handle::Handle;
use super::handle::Opaque;
use super::handle::Place;
use super::module::Module;
use super::records::Kind;

impl Module {
    /// The function that chooses an element and accesses it: its parameters are the index, and those operands that are given.
    fn chosen(&mut self, array: Array, access: Access) -> u32 {
        if let Some(known) = self.chosen.functions.get(&(array, access.clone())) {
            return *known;
        }
        let (word, nothing) = (self.code.ty(UINT), self.code.type_of(Op::TypeVoid, &[]));
        let result = access.result.unwrap_or(nothing);
        let given = access.operands.iter().filter_map(|operand| match operand {
            Operand::Given(ty) => Some(*ty),
            Operand::Fixed(_) => None,
        });
        let types: Vec<u32> = std::iter::once(word).chain(given).collect();
        let ty = self.code.type_of(Op::TypeFunction, &[&[result], types.as_slice()].concat());
        let function = self.code.id();
        let (mut words, mut parameters) = (Vec::new(), Vec::new());
        push(&mut words, Op::Function, &[result, function, FunctionControl::NONE.bits(), ty]);
        for ty in types {
            let parameter = self.code.id();
            push(&mut words, Op::FunctionParameter, &[ty, parameter]);
            parameters.push(parameter);
        }
        let (index, given) = parameters.split_first().map_or((0, &[][..]), |(index, given)| (*index, given));
        let (entry, behind) = (self.code.id(), self.code.id());
        let cases: Vec<u32> = (0..array.count).map(|_| self.code.id()).collect();
        push(&mut words, Op::Label, &[entry]);
        push(&mut words, Op::SelectionMerge, &[behind, SelectionControl::NONE.bits()]);
        let others = (1..).zip(cases.iter().skip(1)).flat_map(|(number, label)| [number, *label]);
        let switch: Vec<u32> = [index].into_iter().chain(cases.first().copied()).chain(others).collect();
        push(&mut words, Op::Switch, &switch);
        for (number, label) in (0..).zip(&cases) {
            push(&mut words, Op::Label, &[*label]);
            let mut emit = Emit::new(&mut self.code);
            emit.access(array, number, &access, given);
            words.extend(emit.words);
        }
        push(&mut words, Op::Label, &[behind]);
        push(&mut words, Op::Unreachable, &[]);
        push(&mut words, Op::FunctionEnd, &[]);
        self.code.added.extend(words);
        self.chosen.functions.insert((array, access), function);
        function
    }

    /// The function that fetches a texel of an element, by the index of the texel, as vectors of the type `result`.
    pub(super) fn fetching(&mut self, array: Array, result: u32) -> u32 {
        let word = self.code.ty(UINT);
        self.chosen(array, Access::of(Op::ImageFetch, Some(result), vec![Operand::Given(word)]))
    }
}

impl Emit<'_> {
    /// A block that accesses one element, and returns.
    fn access(&mut self, array: Array, number: u32, access: &Access, given: &[u32]) {
        let number = self.code.uint(number);
        let pointer = self.typed(Op::AccessChain, array.pointer, &[array.variable, number]);
        let mut given = given.iter();
        let mut operands = access.operands.iter().filter_map(|operand| match operand {
            Operand::Given(_) => given.next().copied(),
            Operand::Fixed(id) => Some(*id),
        });
        let place = match access.texel {
            None => self.typed(Op::Load, array.image, &[pointer]),
            Some(ty) => {
                let (index, sample) = (operands.next().unwrap_or(0), self.code.uint(0));
                self.typed(Op::ImageTexelPointer, ty, &[pointer, index, sample])
            }
        };
        let all: Vec<u32> = std::iter::once(place).chain(operands).collect();
        match access.result {
            Some(ty) => {
                let found = self.typed(access.op, ty, &all);
                push(&mut self.words, Op::ReturnValue, &[found]);
            }
            None => {
                push(&mut self.words, access.op, &all);
                push(&mut self.words, Op::Return, &[]);
            }
        }
    }
}

impl Body<'_> {
    /// An element of an array of images or samplers.
    pub(super) fn element(&mut self, ty: u32, id: u32, base: u32, index: u32) -> Result<(), Refusal> {
        let array = self.module.handles[&base];
        let vectors = match array.what {
            Opaque::Sampler => Kind::Sampler,
            Opaque::Combined(_) => Kind::Combined,
            Opaque::Image(shape) if shape.is_storage => Kind::Storage,
            Opaque::Image(_) => Kind::Sampled,
        }
        .vectors();
        let Some(Place::At(first)) = array.image.or(array.sampler) else {
            return Err("an array of images is given to a function");
        };
        let own = self.module.records.iter().find(|records| records.first == first);
        let count = own.map_or(1, |records| records.count.max(1));
        let constant = self.module.constants.get(&index).copied();
        // Code that never runs may name an element that there is not.
        let index = match constant {
            Some(number) if number >= count => self.module.code.uint(count - 1),
            _ => index,
        };
        let (place, element) = match constant.map(|number| number.min(count - 1)) {
            Some(number) => (Place::At(first + number * vectors), None),
            None => {
                let (element, record) =
                    self.choose([ty, base, index], [count, first, vectors], array.what)?;
                (Place::Id(record), element)
            }
        };
        let handle = Handle { element, ..Handle::to(array.what, place, Some(id), false) };
        self.module.handles.insert(id, handle);
        if array.what == Opaque::Sampler || element.is_some() {
            self.module.removed.insert(id);
        } else {
            self.write(Op::AccessChain, &[self.module.mapped(ty), id, base, index]);
        }
        Ok(())
    }

    /// The element that an index chooses of an array, and the vector that its record begins at.
    fn choose(
        &mut self,
        [ty, base, index]: [u32; 3],
        [count, first, vectors]: [u32; 3],
        what: Opaque,
    ) -> Result<(Option<Element>, u32), Refusal> {
        let of = self.module.values.get(&index).copied().ok_or("an index is no word")?;
        let within = self.module.library("within")?;
        let (index, record) = self.inline(|emit| {
            let (first, vectors, count) =
                (emit.code.uint(first), emit.code.uint(vectors), emit.code.uint(count));
            let index = if of == UINT { index } else { emit.op(Op::Bitcast, UINT, &[index]) };
            let index = emit.op(Op::FunctionCall, UINT, &[within, index, count]);
            let rows = emit.op(Op::IMul, UINT, &[index, vectors]);
            (index, emit.op(Op::IAdd, UINT, &[first, rows]))
        });
        if what == Opaque::Sampler {
            return Ok((None, record));
        }
        let (pointer, image) = (self.module.mapped(ty), self.module.pointers.get(&ty).copied().unwrap_or(0));
        let array = Array { variable: base, count, pointer, image: self.module.mapped(image) };
        Ok((Some(Element { array, index }), record))
    }

    /// An access of an image, by the index of a texel and what the instruction has behind it: the last of them, from the mask of image
    /// operands on, are the same everywhere.
    pub(super) fn reach(
        &mut self,
        op: Op,
        result: Option<[u32; 2]>,
        used: &Used,
        given: &[u32],
        fixed: &[u32],
    ) -> Result<(), Refusal> {
        let Some(Element { array, index }) = used.handle.element else {
            let head = result.iter().flatten().chain(std::iter::once(&used.id));
            let all: Vec<u32> = head.chain(given).chain(fixed).copied().collect();
            self.write(op, &all);
            return Ok(());
        };
        // The index of a texel is a word.
        let mut operands = vec![Operand::Given(self.module.code.ty(UINT))];
        self.operands(given.get(1..).unwrap_or_default(), &mut operands)?;
        operands.extend(fixed.iter().map(|word| Operand::Fixed(*word)));
        let function = self.module.chosen(array, Access::of(op, result.map(|[ty, _]| ty), operands));
        self.call_chosen(function, result, index, given);
        Ok(())
    }

    /// An atomic on a texel of an element that was chosen, where it is one: whether it is.
    pub(super) fn atomic(&mut self, op: Op, instruction: &[u32]) -> Result<bool, Refusal> {
        let (result, at) = match (op, instruction) {
            (Op::AtomicStore, _) => (None, 1),
            (_, [_, ty, id, ..]) if is_atomic(op) => (Some([*ty, *id]), 3),
            _ => return Ok(false),
        };
        let Some((pointer, operands)) = instruction.get(at..).and_then(|rest| rest.split_first()) else {
            return Ok(false);
        };
        let Some((Element { array, index }, texel, ty)) = self.module.chosen.texels.get(pointer).copied()
        else {
            return Ok(false);
        };
        let is_fixed = |id: &&u32| self.module.constants.contains_key(id);
        let fixed = operands.iter().take_while(is_fixed).count();
        // A value that is a constant is one for all, too.
        let (fixed, given) = operands.split_at(fixed);
        let mut all = vec![Operand::Given(self.module.code.ty(UINT))];
        all.extend(fixed.iter().map(|id| Operand::Fixed(*id)));
        self.operands(given, &mut all)?;
        let access = Access { texel: Some(ty), ..Access::of(op, result.map(|[ty, _]| ty), all) };
        let function = self.module.chosen(array, access);
        self.call_chosen(function, result, index, &[&[texel], given].concat());
        Ok(true)
    }

    fn operands(&mut self, given: &[u32], all: &mut Vec<Operand>) -> Result<(), Refusal> {
        for id in given {
            let ty = self.module.values.get(id).copied().ok_or("an operand is no number of 32 bits")?;
            all.push(Operand::Given(self.module.code.ty(ty)));
        }
        Ok(())
    }

    fn call_chosen(&mut self, function: u32, result: Option<[u32; 2]>, index: u32, given: &[u32]) {
        let [ty, id] =
            result.unwrap_or_else(|| [self.module.code.type_of(Op::TypeVoid, &[]), self.module.code.id()]);
        self.write(Op::FunctionCall, &[&[ty, id, function, index], given].concat());
    }
}

/// Whether an instruction changes what a pointer points to, as one.
fn is_atomic(op: Op) -> bool {
    matches!(op as u32, 227..=242 | 5614 | 5615 | 6035)
}
