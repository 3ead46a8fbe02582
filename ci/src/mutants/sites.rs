//! Where the mutants of a file are, by its syntax tree: what has to be written anew so that all of them are in it.

use std::ops::Range;

use syn::BinOp;
use syn::Block;
use syn::Expr;
use syn::Pat;
use syn::ReturnType;
use syn::Signature;
use syn::spanned::Spanned;
use syn::visit;
use syn::visit::Visit;

use super::list::Genre;
use super::list::Listed;

/// What is written anew, with the mutants that differ there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Its bytes in the file. Sites lie in one another, or apart.
    pub range: Range<usize>,
    /// Mutants, by their place in the file's list.
    pub mutants: Vec<usize>,
    /// What it is.
    pub kind: Kind,
}

/// What a site is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The inside of a function's braces.
    Body,
    /// Two operands, with the operator between them.
    Binary([Range<usize>; 3]),
    /// A place and an operand, with an operator between them that assigns.
    Assign([Range<usize>; 3]),
    /// An operand, behind an operator.
    Unary(Range<usize>),
    /// The guard of an arm.
    Guard,
    /// The place behind an arm's pattern.
    Arm,
    /// A struct expression with a base; for each mutant the field that it is without, and its comma.
    Fields(Vec<Range<usize>>),
}

impl Kind {
    /// Which of two sites with the same bytes is outside of the other.
    fn depth(&self) -> usize {
        match self {
            Self::Body => 0,
            Self::Guard => 1,
            _ => 2,
        }
    }
}

/// A file's sites, outer ones before those in them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sites {
    /// In the order of the text.
    pub sites: Vec<Site>,
    /// Mutants that would not be Rust: another operator among `let` conditions.
    pub unviable: Vec<usize>,
}

/// Finds the sites of a file's mutants. Those without one cannot be chosen at run time: in constants, and where a function's type is
/// `impl`, which stands for one type and not for two.
pub fn find(text: &str, mutants: &[Listed]) -> syn::Result<Sites> {
    let file = syn::parse_file(text)?;
    let wanted = mutants.iter().enumerate().map(|(number, mutant)| Wanted {
        number,
        genre: mutant.genre,
        range: mutant.range(text),
    });
    let mut finder = Finder { wanted: wanted.collect(), ..Finder::default() };
    finder.visit_file(&file);
    finder.found.sites.sort_by_key(|site| (site.range.start, usize::MAX - site.range.end, site.kind.depth()));
    Ok(finder.found)
}

struct Wanted {
    number: usize,
    genre: Genre,
    range: Range<usize>,
}

#[derive(Default)]
struct Finder {
    /// Mutants without a site so far.
    wanted: Vec<Wanted>,
    found: Sites,
    /// So many constants and constant functions are around this.
    constants: usize,
}

impl Finder {
    /// Takes the mutants of a genre out of those that are wanted.
    fn take(&mut self, genre: Genre, is_here: impl Fn(&Range<usize>) -> bool) -> Vec<(usize, Range<usize>)> {
        if self.constants > 0 {
            return Vec::new();
        }
        let here = self.wanted.extract_if(.., |wanted| wanted.genre == genre && is_here(&wanted.range));
        here.map(|wanted| (wanted.number, wanted.range)).collect()
    }

    fn add(&mut self, range: Range<usize>, mutants: Vec<(usize, Range<usize>)>, kind: Kind) {
        let mutants: Vec<_> = mutants.into_iter().map(|(number, _)| number).collect();
        if !mutants.is_empty() {
            self.found.sites.push(Site { range, mutants, kind });
        }
    }

    fn function(&mut self, signature: &Signature, block: &Block, visit_inside: impl FnOnce(&mut Self)) {
        let is_constant = usize::from(signature.constness.is_some());
        self.constants += is_constant;
        visit_inside(self);
        // Functions inside of this one have theirs by now.
        if !returns_impl(&signature.output) {
            let range = inside(block);
            let mutants =
                self.take(Genre::FnValue, |span| range.start <= span.start && span.end <= range.end);
            self.add(range, mutants, Kind::Body);
        }
        self.constants -= is_constant;
    }

    fn constant(&mut self, visit_inside: impl FnOnce(&mut Self)) {
        self.constants += 1;
        visit_inside(self);
        self.constants -= 1;
    }
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, &item.block, |finder| visit::visit_item_fn(finder, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig, &item.block, |finder| visit::visit_impl_item_fn(finder, item));
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.sig, block, |finder| visit::visit_trait_item_fn(finder, item));
        }
    }

    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        let operator = binary.op.span().byte_range();
        let mutants = self.take(Genre::BinaryOperator, |span| *span == operator);
        if has_let(&binary.left) || has_let(&binary.right) {
            self.found.unviable.extend(mutants.into_iter().map(|(number, _)| number));
        } else {
            let [left, right] = [&binary.left, &binary.right].map(|operand| operand.span().byte_range());
            let parts = [left, operator, right];
            let kind = if assigns(&binary.op) { Kind::Assign(parts) } else { Kind::Binary(parts) };
            self.add(binary.span().byte_range(), mutants, kind);
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_unary(&mut self, unary: &'ast syn::ExprUnary) {
        let operator = unary.op.span().byte_range();
        let mutants = self.take(Genre::UnaryOperator, |span| *span == operator);
        self.add(unary.span().byte_range(), mutants, Kind::Unary(unary.expr.span().byte_range()));
        visit::visit_expr_unary(self, unary);
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        if let Pat::Guard(pattern) = &arm.pat {
            let guard = pattern.guard.span().byte_range();
            if !has_let(&pattern.guard) {
                let mutants = self.take(Genre::MatchArmGuard, |span| *span == guard);
                self.add(guard, mutants, Kind::Guard);
            }
        } else {
            let start = arm.span().byte_range().start;
            let behind = arm.pat.span().byte_range().end;
            let mutants = self.take(Genre::MatchArm, |span| span.start == start);
            self.add(behind..behind, mutants, Kind::Arm);
        }
        visit::visit_arm(self, arm);
    }

    fn visit_expr_struct(&mut self, expression: &'ast syn::ExprStruct) {
        let starts: Vec<_> = expression.fields.iter().map(|field| field.span().byte_range().start).collect();
        let mutants = self.take(Genre::StructField, |span| starts.contains(&span.start));
        let fields = mutants.iter().map(|(_, field)| field.clone()).collect();
        self.add(expression.span().byte_range(), mutants, Kind::Fields(fields));
        visit::visit_expr_struct(self, expression);
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.constant(|finder| visit::visit_item_const(finder, item));
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.constant(|finder| visit::visit_item_static(finder, item));
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.constant(|finder| visit::visit_impl_item_const(finder, item));
    }

    fn visit_trait_item_const(&mut self, item: &'ast syn::TraitItemConst) {
        self.constant(|finder| visit::visit_trait_item_const(finder, item));
    }

    fn visit_expr_const(&mut self, expression: &'ast syn::ExprConst) {
        self.constant(|finder| visit::visit_expr_const(finder, expression));
    }

    fn visit_expr_repeat(&mut self, expression: &'ast syn::ExprRepeat) {
        self.visit_expr(&expression.expr);
        self.constant(|finder| finder.visit_expr(&expression.len));
    }

    fn visit_type(&mut self, written: &'ast syn::Type) {
        self.constant(|finder| visit::visit_type(finder, written));
    }

    fn visit_generic_argument(&mut self, argument: &'ast syn::GenericArgument) {
        self.constant(|finder| visit::visit_generic_argument(finder, argument));
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        self.constant(|finder| visit::visit_variant(finder, variant));
    }
}

fn assigns(operator: &BinOp) -> bool {
    !matches!(
        operator,
        BinOp::Add(_)
            | BinOp::Sub(_)
            | BinOp::Mul(_)
            | BinOp::Div(_)
            | BinOp::Rem(_)
            | BinOp::And(_)
            | BinOp::Or(_)
            | BinOp::BitXor(_)
            | BinOp::BitAnd(_)
            | BinOp::BitOr(_)
            | BinOp::Shl(_)
            | BinOp::Shr(_)
            | BinOp::Eq(_)
            | BinOp::Ne(_)
            | BinOp::Lt(_)
            | BinOp::Le(_)
            | BinOp::Gt(_)
            | BinOp::Ge(_)
    )
}

/// What is between the braces of a block.
fn inside(block: &Block) -> Range<usize> {
    block.brace_token.span.open().byte_range().end..block.brace_token.span.close().byte_range().start
}

/// Whether an expression is a condition of which `let` is a part, outside of any parentheses.
fn has_let(expression: &Expr) -> bool {
    match expression {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

fn returns_impl(output: &ReturnType) -> bool {
    struct Impl(bool);
    impl Visit<'_> for Impl {
        fn visit_type_impl_trait(&mut self, _: &syn::TypeImplTrait) {
            self.0 = true;
        }
    }
    let mut found = Impl(false);
    found.visit_return_type(output);
    found.0
}

#[cfg(test)]
mod tests {
    use super::super::list::listed;
    use super::Sites;
    use super::find;

    fn found(text: &str, genre: &str, what: &str) -> Sites {
        find(text, &[listed(genre, text, what, "x")]).unwrap()
    }

    #[test]
    fn constants_have_no_sites() {
        for text in [
            "const A: u8 = 1 + 2;",
            "static A: u8 = 1 + 2;",
            "const fn f() -> u8 { 1 + 2 }",
            "fn f() { const A: u8 = 1 + 2; }",
            "fn f() { let a = [0; 1 + 2]; }",
            "fn f(a: [u8; 1 + 2]) {}",
            "fn f() { g::<{ 1 + 2 }>() }",
            "enum A { B = 1 + 2 }",
            "impl A { const B: u8 = 1 + 2; }",
        ] {
            assert_eq!(found(text, "BinaryOperator", "+"), Sites::default(), "{text}");
        }
        assert_eq!(found("fn f() -> u8 { 1 + 2 }", "BinaryOperator", "+").sites.len(), 1);
        assert_eq!(found("const fn f() -> u8 { 1 }", "FnValue", "1"), Sites::default());
    }

    #[test]
    fn a_type_that_stands_for_one_type_has_no_second_one() {
        assert_eq!(found("fn f() -> Option<impl A> { g() }", "FnValue", "g()"), Sites::default());
        assert_eq!(found("fn f() -> Option<A> { g() }", "FnValue", "g()").sites.len(), 1);
    }

    #[test]
    fn conditions_with_let_are_not_joined_otherwise() {
        let sites = found("fn f() { if let A = a && b {} }", "BinaryOperator", "&&");
        assert_eq!((sites.sites.len(), sites.unviable), (0, vec![0]));
        let sites = found("fn f() { if let A = a && (b || c) {} }", "BinaryOperator", "||");
        assert_eq!((sites.sites.len(), sites.unviable), (1, Vec::new()));
    }

    #[test]
    fn a_function_in_another_one_has_its_own_mutants() {
        let text = "fn f() { fn g() { h(1) } h(2) }";
        let mutants =
            [listed("FnValue", text, "h(1)", "()"), listed("FnValue", text, "fn g() { h(1) } h(2)", "()")];
        let sites = find(text, &mutants).unwrap().sites;
        assert_eq!(sites.iter().map(|site| &site.mutants[..]).collect::<Vec<_>>(), [&[1], &[0]]);
        assert_eq!(&text[sites[1].range.clone()], " h(1) ");
    }
}
