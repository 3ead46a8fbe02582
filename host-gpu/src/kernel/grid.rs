//! The number of workgroups, from memory.
//!
//! A dispatch may run in slices, and a device tells each slice its own count. So where the entry point `main` asks for
//! it, `main` becomes an ordinary function, called by an entry point of ours that knows better:
//!
//! ```text
//!   @compute fn main(groups, id, …) { … }   ──▶   fn main(groups, id, …) { … }
//!                                                  @binding(16) var<storage> grid: vec3<u32>;
//!                                                  @compute fn entry(id, …) { main(grid, id, …); }
//! ```
//!
//! Nothing inside the guest's function changes. Arguments that are structs are composed anew, since one of them may
//! hold the count beside others.

use naga::AddressSpace;
use naga::Binding;
use naga::BuiltIn;
use naga::Expression;
use naga::Function;
use naga::FunctionArgument;
use naga::GlobalVariable;
use naga::Handle;
use naga::MemoryDecorations;
use naga::Module;
use naga::Range;
use naga::ResourceBinding;
use naga::Scalar;
use naga::Span;
use naga::Statement;
use naga::StorageAccess;
use naga::Type;
use naga::TypeInner;
use naga::VectorSize;

use crate::kernel::error::KernelError;
use crate::kernel::program::GRID_BINDING;

const NOWHERE: Span = Span::UNDEFINED;

/// Wraps the only entry point of `module`, whose inputs [`super::interface`] has checked. What naga knew of the module
/// holds no more.
pub(super) fn read_from_memory(module: &mut Module) -> Result<(), KernelError> {
    let Module { types, global_variables, functions, entry_points, .. } = module;
    let [entry] = entry_points.as_mut_slice() else { return Err(KernelError::NoEntry) };
    let inner = TypeInner::Vector { size: VectorSize::Tri, scalar: Scalar::U32 };
    let grid = GlobalVariable {
        name: None,
        space: AddressSpace::Storage { access: StorageAccess::LOAD },
        binding: Some(ResourceBinding { group: 0, binding: GRID_BINDING }),
        ty: types.insert(Type { name: None, inner }, NOWHERE),
        init: None,
        memory_decorations: MemoryDecorations::empty(),
    };
    let grid = global_variables.append(grid, NOWHERE);
    let mut guests = std::mem::take(&mut entry.function);
    let mut ours = Caller::new(grid, guests.diagnostic_filter_leaf);
    let mut arguments = Vec::with_capacity(guests.arguments.len());
    for FunctionArgument { ty, binding, .. } in &mut guests.arguments {
        arguments.push(match (binding.take(), &types[*ty].inner) {
            (None, TypeInner::Struct { members, .. }) => {
                let members = members.iter().map(|member| ours.input(member.ty, member.binding.clone()));
                let components = members.collect();
                ours.compute(Expression::Compose { ty: *ty, components })
            }
            (binding, _) => ours.input(*ty, binding),
        });
    }
    entry.function = ours.call(functions.append(guests, NOWHERE), arguments);
    Ok(())
}

/// Our entry point, while it is made.
struct Caller {
    function: Function,
    groups: Handle<Expression>,
}

impl Caller {
    fn new(
        grid: Handle<GlobalVariable>,
        filter: Option<Handle<naga::diagnostic_filter::DiagnosticFilterNode>>,
    ) -> Self {
        let mut function = Function { diagnostic_filter_leaf: filter, ..Function::default() };
        let pointer = function.expressions.append(Expression::GlobalVariable(grid), NOWHERE);
        let mut caller = Self { function, groups: pointer };
        caller.groups = caller.compute(Expression::Load { pointer });
        caller
    }

    fn compute(&mut self, expression: Expression) -> Handle<Expression> {
        let value = self.function.expressions.append(expression, NOWHERE);
        self.function.body.push(Statement::Emit(Range::new_from_bounds(value, value)), NOWHERE);
        value
    }

    /// What the guest's function is given for an argument, or a member of one, with this binding.
    fn input(&mut self, ty: Handle<Type>, binding: Option<Binding>) -> Handle<Expression> {
        if binding == Some(Binding::BuiltIn(BuiltIn::NumWorkGroups)) {
            return self.groups;
        }
        let arguments = &mut self.function.arguments;
        // A struct has no more members than the builtins that there are.
        let index = u32::try_from(arguments.len()).unwrap_or(u32::MAX);
        arguments.push(FunctionArgument { name: None, ty, binding });
        self.function.expressions.append(Expression::FunctionArgument(index), NOWHERE)
    }

    fn call(mut self, function: Handle<Function>, arguments: Vec<Handle<Expression>>) -> Function {
        self.function.body.push(Statement::Call { function, arguments, result: None }, NOWHERE);
        self.function.body.push(Statement::Return { value: None }, NOWHERE);
        self.function
    }
}
