//! The modules of a crate and which of them names which, read from its source as the compiler reads
//! it: whole files, every `use`, every path; a name that is re-exported counts for the file that
//! re-exports it and for the one that defines it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, Meta, UseTree};

/// How many re-exports a name may pass through.
const REEXPORTS_MAX: usize = 8;

/// A module's path from the crate's root, which is empty.
type Name = Vec<String>;

/// The modules of one crate, without those that only tests have.
#[derive(Debug, Default)]
pub struct Modules {
    modules: BTreeMap<Name, Module>,
}

#[derive(Debug, Default)]
struct Module {
    /// The file's name is that of the module, so inline modules count as part of their file.
    file: PathBuf,
    /// What `use` brings in, by the name that it has here.
    imports: BTreeMap<String, Name>,
    /// Modules of which everything is brought in.
    globs: Vec<Name>,
    /// Every path that is named, absolute.
    paths: BTreeSet<Name>,
}

impl Modules {
    /// Reads the crate whose root is `root` (`src/lib.rs` or `src/main.rs`).
    ///
    /// # Panics
    /// If a file cannot be read or parsed.
    #[must_use]
    pub fn read(root: &Path) -> Self {
        let mut modules = Self::default();
        modules.read_file(root, Vec::new(), root.parent().expect("a folder"));
        modules
    }

    /// Every circle of files that name each other, each with what ties it. A module may name what
    /// is in its ancestors: it is part of them.
    #[must_use]
    pub fn circles(&self) -> Vec<String> {
        let arrows = self.arrows();
        let reached: BTreeMap<&PathBuf, BTreeSet<&PathBuf>> =
            arrows.keys().map(|from| (from, reach(&arrows, from))).collect();
        let mut circles = BTreeSet::new();
        for (from, all) in &reached {
            let back = |to: &&&PathBuf| reached.get(*to).is_some_and(|files| files.contains(*from));
            let circle: BTreeSet<&PathBuf> = all.iter().filter(back).copied().collect();
            if circle.len() > 1 {
                circles.insert(circle);
            }
        }
        let tie = |circle: &BTreeSet<&PathBuf>| {
            let inside = circle.iter().flat_map(|from| {
                arrows[*from]
                    .iter()
                    .filter(|to| circle.contains(to))
                    .map(|to| format!("  {} -> {}\n", from.display(), to.display()))
            });
            inside.collect::<String>()
        };
        circles.iter().map(tie).collect()
    }

    /// Which file names which others.
    fn arrows(&self) -> BTreeMap<PathBuf, BTreeSet<PathBuf>> {
        let mut arrows: BTreeMap<PathBuf, BTreeSet<PathBuf>> = BTreeMap::new();
        for (name, module) in &self.modules {
            let to = arrows.entry(module.file.clone()).or_default();
            for path in &module.paths {
                // A reader opens the file that re-exports an item, and the one that defines it.
                for reexports in [0, REEXPORTS_MAX] {
                    let Some(target) = self.home(path, reexports) else { continue };
                    let other = &self.modules[&target].file;
                    if !name.starts_with(&target) && *other != module.file {
                        to.insert(other.clone());
                    }
                }
            }
        }
        arrows
    }

    /// The module in which the item at `path` lives, re-exports followed.
    fn home(&self, path: &[String], reexports: usize) -> Option<Name> {
        let length = (0..=path.len()).rev().find(|end| self.modules.contains_key(&path[..*end]))?;
        let (module, rest) = path.split_at(length);
        let found = &self.modules[module];
        if let (Some(item), true) = (rest.first(), reexports > 0) {
            let through = found.imports.get(item).cloned();
            let through = through.filter(|target| target.as_slice() != path);
            let globs = found.globs.iter().map(|glob| [&glob[..], &rest[..1]].concat());
            let imported = through.map(|target| [&target[..], &rest[1..]].concat());
            let followed = imported.into_iter().chain(globs.filter(|target| target != path));
            for target in followed {
                let home = self.home(&target, reexports - 1);
                if home.as_ref().is_some_and(|home| home.as_slice() != module) {
                    return home;
                }
            }
        }
        Some(module.to_vec())
    }

    fn read_file(&mut self, file: &Path, name: Name, children: &Path) {
        let text = fs::read_to_string(file).unwrap_or_else(|error| {
            panic!("{}: {error}", file.display());
        });
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| {
            panic!("{}: {error}", file.display());
        });
        self.read_items(&parsed.items, file, name, children);
    }

    fn read_items(&mut self, items: &[Item], file: &Path, name: Name, children: &Path) {
        let below: Vec<&ItemMod> = items.iter().filter_map(submodule).collect();
        let names = below.iter().map(|inner| inner.ident.to_string()).collect();
        let module = Module { file: file.to_owned(), ..Module::default() };
        let mut reader = Reader { name: name.clone(), below: names, module };
        for item in items.iter().filter(|item| !matches!(item, Item::Mod(_))) {
            reader.visit_item(item);
        }
        self.modules.insert(name.clone(), reader.module);
        for inner in below {
            let word = inner.ident.to_string();
            let path = [&name[..], std::slice::from_ref(&word)].concat();
            match &inner.content {
                Some((_, items)) => self.read_items(items, file, path, &children.join(&word)),
                None => {
                    let flat = children.join(format!("{word}.rs"));
                    let folder = children.join(&word).join("mod.rs");
                    let file = if flat.is_file() { flat } else { folder };
                    self.read_file(&file, path, &children.join(&word));
                }
            }
        }
    }
}

/// All that can be reached from a file.
fn reach<'a>(
    arrows: &'a BTreeMap<PathBuf, BTreeSet<PathBuf>>,
    from: &'a PathBuf,
) -> BTreeSet<&'a PathBuf> {
    let mut found = BTreeSet::new();
    let mut left = vec![from];
    while let Some(next) = left.pop() {
        left.extend(arrows.get(next).into_iter().flatten().filter(|to| found.insert(*to)));
    }
    found
}

/// The module that an item declares, unless only tests have it.
fn submodule(item: &Item) -> Option<&ItemMod> {
    match item {
        Item::Mod(inner) if !is_test(&inner.attrs) => Some(inner),
        _ => None,
    }
}

/// Whether only tests have what these attributes are on.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg") => list.tokens.to_string() == "test",
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(_) | Meta::NameValue(_) => false,
    })
}

/// Collects what one module names.
struct Reader {
    name: Name,
    /// The modules right below.
    below: BTreeSet<String>,
    module: Module,
}

impl Reader {
    /// The absolute path of what is named here, or `None` if it is of another crate, or local.
    fn absolute(&self, path: &[String]) -> Option<Name> {
        let first = path.first()?.as_str();
        let supers = path.iter().take_while(|word| *word == "super").count();
        Some(match first {
            "crate" => path[1..].to_vec(),
            "self" => [&self.name[..], &path[1..]].concat(),
            "super" => {
                let kept = self.name.len().checked_sub(supers)?;
                [&self.name[..kept], &path[supers..]].concat()
            }
            _ if self.below.contains(first) => [&self.name[..], path].concat(),
            _ => return None,
        })
    }

    fn named(&mut self, path: &[String]) {
        if let Some(path) = self.absolute(path) {
            self.module.paths.insert(path);
        }
    }

    fn import(&mut self, before: &[String], tree: &UseTree) {
        let joined = |word: String| [before, &[word]].concat();
        match tree {
            UseTree::Path(path) => self.import(&joined(path.ident.to_string()), &path.tree),
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.import(before, tree);
                }
            }
            UseTree::Glob(_) => {
                self.named(before);
                self.module.globs.extend(self.absolute(before));
            }
            UseTree::Name(name) if name.ident == "self" => {
                self.bring(before.last().cloned().unwrap_or_default(), before);
            }
            UseTree::Name(name) => {
                let word = name.ident.to_string();
                self.bring(word.clone(), &joined(word));
            }
            UseTree::Rename(rename) => {
                self.bring(rename.rename.to_string(), &joined(rename.ident.to_string()));
            }
        }
    }

    fn bring(&mut self, word: String, path: &[String]) {
        self.named(path);
        if let Some(path) = self.absolute(path) {
            self.module.imports.insert(word, path);
        }
    }

    /// Paths within a macro's call, which the parser leaves as they are.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path = Vec::new();
        for token in tokens {
            match token {
                TokenTree::Ident(word) => {
                    if !path.is_empty() && path.last().is_none_or(|last| last != "::") {
                        self.end(&mut path);
                    }
                    path.push(word.to_string());
                }
                TokenTree::Punct(colon) if colon.as_char() == ':' && !path.is_empty() => {
                    if path.last().is_some_and(|last| last != "::") {
                        path.push("::".into());
                    }
                }
                TokenTree::Group(group) => {
                    self.end(&mut path);
                    self.tokens(group.stream());
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => self.end(&mut path),
            }
        }
        self.end(&mut path);
    }

    fn end(&mut self, path: &mut Vec<String>) {
        path.retain(|word| word != "::");
        self.named(path);
        path.clear();
    }
}

impl<'a> Visit<'a> for Reader {
    fn visit_item(&mut self, item: &'a Item) {
        let attributes = match item {
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            Item::Struct(item) => &item.attrs,
            Item::Enum(item) => &item.attrs,
            Item::Const(item) => &item.attrs,
            Item::Mod(item) => &item.attrs,
            _ => return visit::visit_item(self, item),
        };
        if !is_test(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        self.import(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        let words: Vec<String> =
            path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.named(&words);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'a syn::Macro) {
        self.tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }
}
