//! Types with their methods and fields, by syntax trees.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use syn::Attribute;
use syn::Fields;
use syn::ImplItem;
use syn::Item;
use syn::ItemImpl;
use syn::UseTree;

use crate::members::Members;
use crate::source::shipped::is_for_tests;

/// One struct, enum or union.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Type {
    /// Its path in the crate.
    pub name: String,
    /// Functions in its `impl` blocks, but for those of traits.
    pub methods: usize,
    /// Its fields; none for an enum.
    pub fields: usize,
    /// The files in which its methods are, by index.
    pub files: BTreeSet<usize>,
}

/// What one file holds.
#[derive(Default)]
struct Contents {
    /// Each type and the number of its fields.
    types: Vec<(String, usize)>,
    /// Imports: the name in this file, and the path.
    imports: BTreeMap<String, Vec<String>>,
    /// Each `impl` block: the path of the type as it is written, and the number of functions.
    impls: Vec<(Vec<String>, usize)>,
}

/// The types of a crate. Methods count for the type that the `impl` block's file defines, or imports; where it is of another
/// crate, for none.
pub fn types(members: &Members<'_>) -> Vec<Type> {
    let contents: Vec<Contents> = members.all().iter().map(|member| contents(&member.file.text)).collect();
    let mut found: BTreeMap<(usize, &str), Type> = BTreeMap::new();
    for (file, own) in contents.iter().enumerate() {
        for (name, fields) in &own.types {
            let path = [&members.all()[file].path[..], &[name]].concat().join("::");
            let new = Type { name: path, methods: 0, fields: *fields, files: BTreeSet::new() };
            found.insert((file, name), new);
        }
    }
    for (file, own) in contents.iter().enumerate() {
        for (written, methods) in &own.impls {
            let Some(name) = written.last() else { continue };
            let path = own.imports.get(name).filter(|_| written.len() == 1).unwrap_or(written);
            let words: Vec<&str> = path.iter().map(String::as_str).collect();
            let home = if path.len() == 1 { Some(file) } else { members.resolve(file, &words) };
            let defined =
                home.zip(path.last()).and_then(|(home, name)| found.get_mut(&(home, name.as_str())));
            if let Some(found) = defined {
                found.methods += methods;
                found.files.insert(file);
            }
        }
    }
    found.into_values().collect()
}

/// The shipped contents of a file; nothing of one that the compiler would refuse.
fn contents(text: &str) -> Contents {
    let mut contents = Contents::default();
    add(&mut contents, syn::parse_file(text).map(|file| file.items).unwrap_or_default());
    contents
}

fn add(contents: &mut Contents, items: Vec<Item>) {
    for item in items {
        match item {
            Item::Struct(item) if ships(&item.attrs) => {
                let fields = match item.fields {
                    Fields::Named(fields) => fields.named.iter().filter(|field| ships(&field.attrs)).count(),
                    fields => fields.len(),
                };
                contents.types.push((item.ident.to_string(), fields));
            }
            Item::Enum(item) if ships(&item.attrs) => contents.types.push((item.ident.to_string(), 0)),
            Item::Union(item) if ships(&item.attrs) => contents.types.push((item.ident.to_string(), 0)),
            Item::Use(item) if ships(&item.attrs) => import(contents, Vec::new(), &item.tree),
            Item::Impl(item) if ships(&item.attrs) => contents.impls.extend(methods(&item)),
            Item::Mod(item) if ships(&item.attrs) => {
                add(contents, item.content.map(|(_, items)| items).unwrap_or_default());
            }
            _ => {}
        }
    }
}

fn import(contents: &mut Contents, mut before: Vec<String>, tree: &UseTree) {
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            import(contents, before, &path.tree);
        }
        UseTree::Name(name) => {
            before.push(name.ident.to_string());
            contents.imports.insert(name.ident.to_string(), before);
        }
        UseTree::Rename(name) => {
            before.push(name.ident.to_string());
            contents.imports.insert(name.rename.to_string(), before);
        }
        _ => {}
    }
}

/// The type of an `impl` block, and how many functions it gives it; none for one of a trait.
fn methods(item: &ItemImpl) -> Option<(Vec<String>, usize)> {
    let syn::Type::Path(own) = &*item.self_ty else { return None };
    let words = own.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
    let functions = item.items.iter().filter(|item| matches!(item, ImplItem::Fn(item) if ships(&item.attrs)));
    item.trait_.is_none().then(|| (words, functions.count()))
}

fn ships(attributes: &[Attribute]) -> bool {
    !attributes.iter().any(|attribute| is_for_tests(&attribute.meta))
}

#[cfg(test)]
mod tests {
    use super::types;
    use crate::members::Members;
    use crate::test_files::TestFiles;
    use crate::tree::Tree;

    #[test]
    fn methods_count_for_the_type_that_they_are_of() {
        let tree = Tree::of([
            (
                "c/src/a.rs",
                "pub struct A<T> { x: T, #[cfg(test)] y: u8 } impl<T> A<T> { fn f() {} #[cfg(test)] fn t() {} }",
            ),
            (
                "c/src/b.rs",
                "use crate::a::A; impl A<u8> { fn g() {} fn h() {} } impl Drop for A<u8> { fn drop() {} }",
            ),
            (
                "c/src/d.rs",
                "use crate::a::A as B; impl B<u8> { fn i() {} } impl super::a::A<u16> { fn j() {} }",
            ),
            (
                "c/src/e.rs",
                "struct A(u8, u8); mod inner { enum E { F } impl E { fn k() {} } } #[cfg(test)] impl A { fn l() {} }",
            ),
            ("c/src/f.rs", "use std::x::A; impl A { fn m() {} }"),
        ]);
        let members = Members::of(&tree, "c", &TestFiles::of(&tree));
        let found: Vec<_> = types(&members)
            .into_iter()
            .map(|found| (found.name, found.methods, found.fields, found.files.len()))
            .collect();
        let expected = [("a::A", 5, 1, 3), ("e::A", 0, 2, 0), ("e::E", 1, 0, 1)];
        assert_eq!(
            found,
            expected.map(|(name, methods, fields, files)| (name.to_owned(), methods, fields, files))
        );
    }
}
