//! What the compiler refuses of a rewritten file, and which mutants have to do with it.

use std::ops::Range;

use super::rewrite::Form;
use super::rewrite::Owner;
use super::rewrite::Rewritten;
use super::sites::Kind;
use super::sites::Site;

/// What is to be written otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// This site of two operands: they are to be repeated for each operator, which is what the mutant is when it is alone.
    Repeat(usize),
    /// Without this mutant, which is refused for itself.
    Unviable(usize),
    /// Without the mutants of this site: one of them, or how they are put together, is refused.
    LeaveOut(usize),
}

impl Refusal {
    /// Whether what was refused is known for sure; what is not, may be a consequence of what is.
    pub fn is_certain(&self) -> bool {
        !matches!(self, Self::LeaveOut(_))
    }
}

/// An error of the compiler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The file, relative to the root of the copy.
    pub path: String,
    /// Where it is in there.
    pub range: Range<usize>,
    /// Whether a match does not have all patterns.
    pub is_of_patterns: bool,
}

/// What an error in a rewritten file means; `None` where no mutant is near.
pub fn refusal(sites: &[Site], form: &Form, rewritten: &Rewritten, error: &Error) -> Option<Refusal> {
    let is_left = |mutant: &usize| !form.is_left_out[*mutant];
    let is_arm = |owner: &Owner| matches!(owner, Owner::Site(site) if sites[*site].kind == Kind::Arm);
    let is_there = |owner: &Owner| match owner {
        Owner::Mutant(mutant) => is_left(mutant),
        // All of a function is around what is wrong in there, and does not tell anything.
        Owner::Site(site) => sites[*site].kind != Kind::Body && sites[*site].mutants.iter().any(is_left),
    };
    let owners = || rewritten.owners.iter().filter(|(_, owner)| is_there(owner));
    let contains = |range: &Range<usize>| range.start <= error.range.start && error.range.end <= range.end;
    let distance = |range: &Range<usize>| {
        let (before, behind) =
            (error.range.start.saturating_sub(range.end), range.start.saturating_sub(error.range.end));
        before.max(behind)
    };
    let around = || owners().filter(|(range, _)| contains(range)).min_by_key(|(range, _)| range.len());
    let (_, owner) = if error.is_of_patterns {
        // That is said of the whole match, before its arms.
        owners().find(|(range, owner)| is_arm(owner) && range.start >= error.range.start)
    } else {
        // A type that is not clear any more is missed elsewhere in the function.
        around().or_else(|| owners().min_by_key(|(range, _)| distance(range)))
    }?;
    let (site, mutant) = match owner {
        Owner::Site(site) => (*site, None),
        Owner::Mutant(mutant) => {
            (sites.iter().position(|site| site.mutants.contains(mutant))?, Some(*mutant))
        }
    };
    Some(match (&sites[site].kind, mutant) {
        (Kind::Binary(..), _) if !form.is_repeated[site] => Refusal::Repeat(site),
        (_, Some(mutant)) => Refusal::Unviable(mutant),
        (Kind::Arm, None) => Refusal::Unviable(sites[site].mutants[0]),
        _ => Refusal::LeaveOut(site),
    })
}

#[cfg(test)]
mod tests {
    use super::super::list::listed;
    use super::super::rewrite::Original;
    use super::super::rewrite::rewrite;
    use super::super::sites::find;
    use super::Error;
    use super::Form;
    use super::Refusal;
    use super::refusal;

    const TEXT: &str = "fn f() { match a { 1 => b + c, _ => 3 } }";

    /// What it means that the compiler refuses this.
    fn refused(what: &str, is_repeated: bool, is_of_patterns: bool) -> Option<Refusal> {
        let mutants = [
            listed("FnValue", TEXT, &TEXT[9..TEXT.len() - 2], "0"),
            listed("MatchArm", TEXT, "1 => b + c,", ""),
            listed("BinaryOperator", TEXT, "+", "-"),
        ];
        let sites = find(TEXT, &mutants).unwrap().sites;
        let form = Form { is_left_out: vec![false; 3], is_repeated: vec![is_repeated; sites.len()] };
        let rewritten = rewrite(&Original { text: TEXT, mutants: &mutants, first: 0, sites: &sites }, &form);
        let at = rewritten.text.find(what).unwrap();
        let error = Error { path: String::new(), range: at..at + what.len(), is_of_patterns };
        refusal(&sites, &form, &rewritten, &error)
    }

    #[test]
    fn a_mutant_is_refused_where_it_alone_is_evaluated() {
        assert_eq!(refused("0;", false, false), Some(Refusal::Unviable(0)));
        assert_eq!(refused("b - c", true, false), Some(Refusal::Unviable(2)));
    }

    #[test]
    fn two_operands_are_repeated_before_a_mutant_is_given_up() {
        assert_eq!(refused("left - right", false, false), Some(Refusal::Repeat(2)));
        assert_eq!(refused("b + c", true, false), Some(Refusal::LeaveOut(2)));
    }

    #[test]
    fn patterns_are_missing_where_an_arm_may_not_count() {
        assert_eq!(refused("a {", false, true), Some(Refusal::Unviable(1)));
    }

    #[test]
    fn what_is_wrong_elsewhere_is_due_to_what_is_near() {
        assert_eq!(refused("=> 3", true, false), Some(Refusal::LeaveOut(2)));
        assert!(!Refusal::LeaveOut(2).is_certain());
    }
}
