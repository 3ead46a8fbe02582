//! A file with all of its mutants in it, each of which an environment variable chooses at run time.

use std::ops::Range;

use super::list::Listed;
use super::sites::Kind;
use super::sites::Site;

/// The module that each rewritten crate has: `is(number)` says which mutant was chosen.
pub const MODULE: &str = "chosen_mutant";

/// A file to be written anew.
pub struct Original<'a> {
    /// Its text.
    pub text: &'a str,
    /// Its mutants.
    pub mutants: &'a [Listed],
    /// The number of the first one, among those of all files.
    pub first: usize,
    /// Its sites, outer ones before those in them.
    pub sites: &'a [Site],
}

/// How the sites of a file are written, as far as the compiler has its say in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Form {
    /// Mutants that are left out.
    pub is_left_out: Vec<bool>,
    /// Sites of two operands that repeat these for each operator; the others evaluate them first, once.
    pub is_repeated: Vec<bool>,
}

/// What some bytes of the rewritten file are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// All of a site.
    Site(usize),
    /// What this mutant alone evaluates.
    Mutant(usize),
}

/// A rewritten file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewritten {
    /// Its text.
    pub text: String,
    /// What is where in it: inner ones behind those that they are in.
    pub owners: Vec<(Range<usize>, Owner)>,
}

/// Writes a file anew.
pub fn rewrite(original: &Original<'_>, form: &Form) -> Rewritten {
    let mut writer = Writer { original, form, written: Rewritten::default() };
    writer.source(0..original.text.len(), 0);
    writer.written
}

struct Writer<'a> {
    original: &'a Original<'a>,
    form: &'a Form,
    written: Rewritten,
}

impl Writer<'_> {
    /// These bytes of the original, in which sites from this one on are written anew.
    fn source(&mut self, range: Range<usize>, first_site: usize) {
        let original = self.original;
        let mut at = range.start;
        for (index, site) in original.sites.iter().enumerate().skip(first_site) {
            if site.range.start > range.end {
                break;
            }
            if site.range.start < at || site.range.end > range.end {
                continue;
            }
            self.text(&original.text[at..site.range.start]);
            self.owned(Owner::Site(index), |writer| writer.site(index));
            at = site.range.end;
        }
        self.text(&original.text[at..range.end]);
    }

    fn text(&mut self, text: &str) {
        self.written.text.push_str(text);
    }

    fn owned(&mut self, owner: Owner, write: impl FnOnce(&mut Self)) {
        let (start, at) = (self.written.text.len(), self.written.owners.len());
        self.written.owners.push((start..start, owner));
        write(self);
        self.written.owners[at].0.end = self.written.text.len();
    }

    /// `if is(m) { … } else` for each mutant.
    fn alternatives(&mut self, mutants: &[usize], mut write: impl FnMut(&mut Self, usize)) {
        for &mutant in mutants {
            self.text(&format!("if {} {{ ", self.is(mutant)));
            self.owned(Owner::Mutant(mutant), |writer| write(writer, mutant));
            self.text(" } else ");
        }
    }

    fn is(&self, mutant: usize) -> String {
        format!("crate::{MODULE}::is({})", self.original.first + mutant)
    }

    fn site(&mut self, index: usize) {
        let original = self.original;
        let site = &original.sites[index];
        let is_in = |mutant: &&usize| !self.form.is_left_out[**mutant];
        let mutants: Vec<usize> = site.mutants.iter().filter(is_in).copied().collect();
        if mutants.is_empty() {
            self.source(site.range.clone(), index + 1);
            return;
        }
        let replacement = |mutant: usize| original.mutants[mutant].replacement.as_str();
        match &site.kind {
            Kind::Body => {
                for mutant in mutants {
                    self.text(&format!(" if {} {{ return ", self.is(mutant)));
                    self.owned(Owner::Mutant(mutant), |writer| writer.text(replacement(mutant)));
                    self.text("; }");
                }
                self.source(site.range.clone(), index + 1);
            }
            Kind::Binary([left, operator, right]) | Kind::Assign([left, operator, right]) => {
                let parts = (left.clone(), &original.text[operator.clone()], right.clone());
                if matches!(site.kind, Kind::Assign(..)) || self.form.is_repeated[index] {
                    self.repeated(index, &mutants, parts);
                } else if matches!(parts.1, "&&" | "||") {
                    self.lazy(index, mutants[0], parts);
                } else {
                    self.binary(index, &mutants, parts);
                }
            }
            Kind::Unary(operand) => {
                self.text("(match ");
                self.source(operand.clone(), index + 1);
                self.text(" { operand => ");
                self.alternatives(&mutants, |writer, _| writer.text("operand"));
                let operator = original.text[site.range.start..operand.start].trim();
                self.text(&format!("{{ {operator}operand }} }})"));
            }
            Kind::Guard => {
                self.text("(");
                self.alternatives(&mutants, |writer, mutant| writer.text(replacement(mutant)));
                self.text("{ ");
                self.source(site.range.clone(), index + 1);
                self.text(" })");
            }
            Kind::Arm => {
                self.text(&format!(" if !{}", self.is(mutants[0])));
            }
            Kind::Fields(fields) => {
                self.text("(");
                self.alternatives(&mutants, |writer, mutant| {
                    let at = site.mutants.iter().position(|other| *other == mutant).unwrap_or(0);
                    writer.source(site.range.start..fields[at].start, index + 1);
                    writer.source(fields[at].end..site.range.end, index + 1);
                });
                self.text("{ ");
                self.source(site.range.clone(), index + 1);
                self.text(" })");
            }
        }
    }

    /// Both operands once more for each operator.
    fn repeated(&mut self, index: usize, mutants: &[usize], parts: (Range<usize>, &str, Range<usize>)) {
        let (left, operator, right) = parts;
        let write = |writer: &mut Self, operator: &str| {
            writer.source(left.clone(), index + 1);
            writer.text(&format!(" {operator} "));
            writer.source(right.clone(), index + 1);
        };
        let listed = self.original.mutants;
        self.text("(");
        self.alternatives(mutants, |writer, mutant| write(writer, &listed[mutant].replacement));
        self.text("{ ");
        write(self, operator);
        self.text(" })");
    }

    /// The right operand counts where the left one is true, or false: the mutant has it the other way round.
    fn lazy(&mut self, index: usize, mutant: usize, parts: (Range<usize>, &str, Range<usize>)) {
        let (left, operator, right) = parts;
        let (compared, otherwise) = if operator == "&&" { ("!=", "") } else { ("==", "!") };
        let is = self.is(mutant);
        self.text("(if (");
        self.source(left, index + 1);
        self.text(&format!(") {compared} {is} {{ "));
        self.source(right, index + 1);
        self.text(&format!(" }} else {{ {otherwise}{is} }})"));
    }

    /// Both operands once, then the operators. Comparisons borrow their operands, and other operators take them.
    fn binary(&mut self, index: usize, mutants: &[usize], parts: (Range<usize>, &str, Range<usize>)) {
        let (left, operator, right) = parts;
        let is_compared = matches!(operator, "==" | "!=" | "<" | "<=" | ">" | ">=");
        let (borrow, value) = if is_compared { ("&", "*") } else { ("", "") };
        let operation = |operator: &str| format!("{value}left {operator} {value}right");
        let listed = self.original.mutants;
        self.text(&format!("(match ({borrow}("));
        self.source(left, index + 1);
        self.text(&format!("), {borrow}("));
        self.source(right, index + 1);
        self.text(")) { (left, right) => ");
        self.alternatives(mutants, |writer, mutant| writer.text(&operation(&listed[mutant].replacement)));
        self.text(&format!("{{ {} }} }})", operation(operator)));
    }
}

#[cfg(test)]
mod tests {
    use super::super::list::Listed;
    use super::super::list::listed;
    use super::super::sites::Sites;
    use super::super::sites::find;
    use super::Form;
    use super::Original;
    use super::Rewritten;
    use super::rewrite;

    /// The inside of `fn f`, rewritten: `[n]` stands for the question whether mutant n is chosen.
    fn written(text: &str, mutants: &[Listed], form: impl Fn(&Sites) -> Form) -> Rewritten {
        let sites = find(text, mutants).unwrap();
        let original = Original { text, mutants, first: 0, sites: &sites.sites };
        rewrite(&original, &form(&sites))
    }

    fn whole(sites: &Sites) -> Form {
        Form { is_left_out: vec![false; 9], is_repeated: vec![false; sites.sites.len()] }
    }

    fn inside(body: &str, mutants: &[(&str, &str, &str)], form: impl Fn(&Sites) -> Form) -> String {
        let text = format!("fn f() {{{body}}}");
        let listed: Vec<_> =
            mutants.iter().map(|(genre, what, with)| listed(genre, &text, what, with)).collect();
        let written = written(&text, &listed, form).text.replace("crate::chosen_mutant::is", "");
        syn::parse_file(&written).unwrap();
        written["fn f() {".len()..written.len() - 1].to_owned()
    }

    #[test]
    fn a_function_returns_at_once() {
        let found = inside("g(); 1", &[("FnValue", "g(); 1", "0"), ("FnValue", "g(); 1", "2")], whole);
        assert_eq!(found, " if (0) { return 0; } if (1) { return 2; }g(); 1");
    }

    #[test]
    fn operands_are_evaluated_once() {
        let found = inside("a < b", &[("BinaryOperator", "<", "=="), ("BinaryOperator", "<", ">")], whole);
        let comparison = "(match (&(a), &(b)) { (left, right) => if (0) { *left == *right } else if (1) { *left > *right } \
            else { *left < *right } })";
        assert_eq!(found, comparison);
        let found = inside("a /* b */ + c", &[("BinaryOperator", "+", "-")], whole);
        assert_eq!(
            found,
            "(match ((a), (c)) { (left, right) => if (0) { left - right } else { left + right } })"
        );
    }

    #[test]
    fn what_counts_of_a_lazy_operator_is_turned_round() {
        assert_eq!(
            inside("a && b", &[("BinaryOperator", "&&", "||")], whole),
            "(if (a) != (0) { b } else { (0) })"
        );
        assert_eq!(
            inside("a || b", &[("BinaryOperator", "||", "&&")], whole),
            "(if (a) == (0) { b } else { !(0) })"
        );
    }

    #[test]
    fn one_site_may_be_in_another_one() {
        let found = inside(
            "a && !b",
            &[("BinaryOperator", "&&", "||"), ("UnaryOperator", "!", ""), ("FnValue", "a && !b", "c")],
            whole,
        );
        let expected = " if (2) { return c; }(if (a) != (0) { (match b { operand => if (1) { operand } else { !operand } }) } \
            else { (0) })";
        assert_eq!(found, expected);
    }

    #[test]
    fn operands_can_be_repeated_and_always_are_where_one_is_assigned() {
        let repeated = |sites: &Sites| Form { is_repeated: vec![true; sites.sites.len()], ..whole(sites) };
        let found = inside("a + b", &[("BinaryOperator", "+", "*")], repeated);
        assert_eq!(found, "(if (0) { a * b } else { a + b })");
        let found = inside("a += b;", &[("BinaryOperator", "+=", "-=")], whole);
        assert_eq!(found, "(if (0) { a -= b } else { a += b });");
    }

    #[test]
    fn arms_and_guards_depend_on_the_mutant() {
        let found = inside("match a { 1 => 2, _ => 3 }", &[("MatchArm", "1 => 2,", "")], whole);
        assert_eq!(found, "match a { 1 if !(0) => 2, _ => 3 }");
        let found = inside("match a { b if c() => 2, _ => 3 }", &[("MatchArmGuard", "c()", "true")], whole);
        assert_eq!(found, "match a { b if (if (0) { true } else { c() }) => 2, _ => 3 }");
    }

    #[test]
    fn a_field_can_come_from_the_base() {
        let found = inside("S { a: 1, b: 2, ..c }", &[("StructField", "b: 2,", "")], whole);
        assert_eq!(found, "(if (0) { S { a: 1,  ..c } } else { S { a: 1, b: 2, ..c } })");
    }

    #[test]
    fn what_is_left_out_is_not_there() {
        let left_out = |sites: &Sites| Form { is_left_out: vec![true; 9], ..whole(sites) };
        assert_eq!(inside("a < b", &[("BinaryOperator", "<", "==")], left_out), "a < b");
    }
}
