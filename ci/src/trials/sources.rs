//! A copy of the checkout, with the mutants in it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::path::PathBuf;

use anyhow::Context;
use anyhow::Result;

use crate::mutants::list::Listed;
use crate::mutants::refusals::Error;
use crate::mutants::refusals::Refusal;
use crate::mutants::refusals::refusal;
use crate::mutants::rewrite::Form;
use crate::mutants::rewrite::MODULE;
use crate::mutants::rewrite::Original;
use crate::mutants::rewrite::Rewritten;
use crate::mutants::rewrite::rewrite;
use crate::mutants::sites::Sites;
use crate::mutants::sites::find;
use crate::tree;

/// The module that says which mutant is chosen.
const CHOSEN: &str = include_str!("chosen_mutant.txt");

/// What the compiler finds wrong in mutants by itself is for tests to find.
const ALLOWED: &str =
    "#![allow(warnings, arithmetic_overflow, unconditional_panic, unconditional_recursion)]\n";

/// What is known of a mutant before a test has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It is in the copy.
    Built,
    /// No option of a build makes it a program.
    Unviable,
    /// It cannot be chosen at run time.
    NotTried,
}

/// The copy.
pub struct Sources {
    /// Its root.
    pub root: PathBuf,
    files: Vec<File>,
}

struct File {
    path: String,
    text: String,
    mutants: Vec<Listed>,
    first: usize,
    sites: Sites,
    form: Form,
    unviable: BTreeSet<usize>,
    rewritten: Rewritten,
}

impl Sources {
    /// Copies the checkout at `from` to `root`, with these mutants, of which those of one file stand together.
    pub fn copy(from: &Path, root: &Path, mutants: &[Listed]) -> Result<Self> {
        if root.exists() {
            fs::remove_dir_all(root).context("the old copy could not be removed")?;
        }
        for path in tree::listing(from)? {
            let (from, to) = (from.join(&path), root.join(&path));
            if from.is_file() {
                fs::create_dir_all(to.parent().unwrap_or(root))?;
                fs::copy(&from, &to).with_context(|| format!("{path} could not be copied"))?;
            }
        }
        let mut files = Vec::new();
        let mut first = 0;
        for own in mutants.chunk_by(|one, next| one.file == next.file) {
            let text = fs::read_to_string(from.join(&own[0].file))?;
            let sites = find(&text, own).with_context(|| format!("{} is no Rust", own[0].file))?;
            let form =
                Form { is_left_out: vec![false; own.len()], is_repeated: vec![false; sites.sites.len()] };
            let unviable = sites.unviable.iter().copied().collect();
            let (path, mutants) = (own[0].file.clone(), own.to_vec());
            files.push(File {
                path,
                text,
                mutants,
                first,
                sites,
                form,
                unviable,
                rewritten: Rewritten::default(),
            });
            first += own.len();
        }
        let members = fs::read_to_string(root.join("Cargo.toml"))?;
        fs::write(root.join("Cargo.toml"), without_lints(&members))?;
        let crates: BTreeSet<_> = files.iter().filter_map(|file| file.path.split_once("/src/")).collect();
        for source in crates.iter().map(|(folder, _)| root.join(folder).join("src")).collect::<BTreeSet<_>>()
        {
            let head = source.join("lib.rs");
            let text = fs::read_to_string(&head)?;
            fs::write(&head, format!("{ALLOWED}{text}\nmod {MODULE};\n"))?;
            fs::write(source.join(format!("{MODULE}.rs")), CHOSEN)?;
        }
        let mut sources = Self { root: root.to_owned(), files };
        (0..sources.files.len()).try_for_each(|file| sources.write(file))?;
        Ok(sources)
    }

    /// Takes what the compiler said. How many sites and mutants are written otherwise, or not at all, from now on.
    pub fn refuse(&mut self, errors: &[Error]) -> Result<usize> {
        let mut refused = BTreeSet::new();
        for error in errors {
            let Some(index) = self.files.iter().position(|file| file.path == error.path) else { continue };
            let file = &self.files[index];
            let refusal = refusal(&file.sites.sites, &file.form, &file.rewritten, error);
            refused.extend(refusal.map(|refusal| (index, refusal)));
        }
        let is_any_certain = refused.iter().any(|(_, refusal)| refusal.is_certain());
        refused.retain(|(_, refusal)| refusal.is_certain() || !is_any_certain);
        for (index, refusal) in &refused {
            let file = &mut self.files[*index];
            match refusal {
                Refusal::Repeat(site) => file.form.is_repeated[*site] = true,
                Refusal::Unviable(mutant) => {
                    file.form.is_left_out[*mutant] = true;
                    file.unviable.insert(*mutant);
                }
                Refusal::LeaveOut(site) => {
                    for mutant in &file.sites.sites[*site].mutants {
                        file.form.is_left_out[*mutant] = true;
                    }
                }
            }
        }
        for index in refused.iter().map(|(index, _)| *index).collect::<BTreeSet<_>>() {
            self.write(index)?;
        }
        Ok(refused.len())
    }

    /// What became of each mutant, in the order in which they were given.
    pub fn states(&self) -> Vec<State> {
        let mut states = Vec::new();
        for file in &self.files {
            for mutant in 0..file.mutants.len() {
                let has_site = file.sites.sites.iter().any(|site| site.mutants.contains(&mutant));
                states.push(match has_site && !file.form.is_left_out[mutant] {
                    _ if file.unviable.contains(&mutant) => State::Unviable,
                    true => State::Built,
                    false => State::NotTried,
                });
            }
        }
        states
    }

    fn write(&mut self, index: usize) -> Result<()> {
        let file = &mut self.files[index];
        let File { text, mutants, sites, .. } = &*file;
        let original = Original { text, mutants, first: file.first, sites: &sites.sites };
        file.rewritten = rewrite(&original, &file.form);
        fs::write(self.root.join(&file.path), &file.rewritten.text)?;
        Ok(())
    }
}

/// A workspace's manifest, with the lints of the house switched off.
fn without_lints(manifest: &str) -> String {
    let mut is_lint = false;
    let is_kept = |line: &&str| {
        if line.starts_with('[') {
            is_lint = line.starts_with("[workspace.lints");
        }
        !is_lint
    };
    let kept: Vec<&str> = manifest.lines().filter(is_kept).collect();
    format!("{}\n\n[workspace.lints]\n", kept.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::without_lints;

    #[test]
    fn lints_are_no_part_of_the_copy() {
        let manifest = "[workspace]\na = 1\n[workspace.lints.rust]\nb = 2\n[workspace.lints.clippy]\nc = 3\n[profile.dev]\nd = 4";
        assert_eq!(
            without_lints(manifest),
            "[workspace]\na = 1\n[profile.dev]\nd = 4\n\n[workspace.lints]\n"
        );
    }
}
