//! Reads one file.

use std::collections::BTreeMap;
use std::ops::Range;

use toml::Spanned;
use toml::de::DeTable;
use toml::de::DeValue;

use super::fault::Fault;
use super::fault::Place;
use super::files::Text;
use super::kind::Kind;
use super::known::Options;
use super::known::nearest;
use super::settings::Claim;
use super::settings::PlacedVgpu;
use super::settings::Setting;
use super::settings::Settings;
use super::vgpu;
use super::vgpu::Draft;
use super::vgpu::DraftError;
use super::vgpu::KEYS;

/// The name of the tables of vGPUs.
const VGPU: &str = "vgpu";

/// A file that is being read.
struct Reader<'a> {
    text: &'a Text,
    faults: Vec<Fault>,
}

/// Adds what a file says: an option that an earlier file has is replaced, vGPUs are added. Returns what is wrong.
pub fn read(text: &Text, options: &Options, settings: &mut Settings) -> Vec<Fault> {
    let mut reader = Reader { text, faults: Vec::new() };
    let (table, errors) = DeTable::parse_recoverable(&text.text);
    for error in &errors {
        reader.fault(error.span().unwrap_or_default(), error.message());
    }
    // What could be made of the rest would be beside the point.
    if errors.is_empty() {
        for (key, value) in table.get_ref() {
            match key.get_ref().as_ref() {
                VGPU => reader.vgpus(value, settings),
                name => reader.option(name, key.span(), value, options, settings),
            }
        }
    }
    reader.faults
}

impl Reader<'_> {
    fn place(&self, span: &Range<usize>) -> Place {
        Place::in_text(&self.text.file, &self.text.text, span.start)
    }

    fn fault(&mut self, span: Range<usize>, text: &str) {
        let place = self.place(&span);
        self.faults.push(Fault::new(place, text));
    }

    fn option(
        &mut self,
        name: &str,
        key: Range<usize>,
        value: &Spanned<DeValue<'_>>,
        options: &Options,
        settings: &mut Settings,
    ) {
        let Some(known) = options.find(name) else {
            return self.unknown(name, key, options);
        };
        let Some(text) = known.kind.text(value.get_ref()) else {
            return self.wrong_kind(name, value, &known.allowed());
        };
        match options.check(known, &text) {
            Ok(()) => {
                let place = self.place(&key);
                settings.options.insert(name.to_owned(), Setting { text, place });
            }
            Err(error) => self.fault(value.span(), &format!("{name}: {error}")),
        }
    }

    fn unknown(&mut self, name: &str, key: Range<usize>, options: &Options) {
        let names = options.all().iter().map(|known| known.name.as_str()).chain([VGPU]);
        let remedy = match nearest(name, names) {
            Some(near) => format!("{near:?} is known"),
            None => "`campanile config example` lists all options".to_owned(),
        };
        self.fault(key, &format!("the option {name:?} is unknown; {remedy}"));
    }

    fn wrong_kind(&mut self, name: &str, value: &Spanned<DeValue<'_>>, allowed: &str) {
        let found = value.get_ref().type_str();
        if let DeValue::Integer(number) = value.get_ref()
            && i64::from_str_radix(number.as_str(), number.radix()).is_err()
        {
            return self.fault(value.span(), &format!("{name}: the number {number} is too large"));
        }
        self.fault(value.span(), &format!("{name}: this is of the type {found}; {allowed} is possible"));
    }

    fn vgpus(&mut self, value: &Spanned<DeValue<'_>>, settings: &mut Settings) {
        let tables = value.get_ref().as_array();
        let Some(tables) = tables.filter(|all| all.iter().all(|each| each.get_ref().is_table())) else {
            return self.fault(value.span(), "vgpu: tables are possible, each under a line [[vgpu]]");
        };
        for table in tables.iter() {
            if let Some(keys) = table.get_ref().as_table() {
                self.vgpu(&table.span(), keys, settings);
            }
        }
    }

    fn vgpu(&mut self, span: &Range<usize>, table: &DeTable<'_>, settings: &mut Settings) {
        let before = self.faults.len();
        for key in table.keys() {
            let name = key.get_ref().as_ref();
            if !KEYS.iter().any(|known| known.name == name) {
                let names = vgpu::names();
                self.fault(key.span(), &format!("a vGPU's key {name:?} is unknown; {names} are known"));
            }
        }
        let mut draft = Draft::default();
        let mut keys = BTreeMap::new();
        // In this order, so that what is said of one node replaces what is said of both.
        for known in &KEYS {
            let Some((key, value)) = table.get_key_value(known.name) else { continue };
            keys.insert(known.name, self.place(&key.span()));
            let values = match value.get_ref() {
                DeValue::Array(values) if known.repeats => values.iter().collect(),
                _ => vec![value],
            };
            for value in values {
                self.value(known.name, known.kind, value, &mut draft);
            }
        }
        let place = self.place(span);
        let at = |key: &str| keys.get(key).unwrap_or(&place).clone();
        settings.claims.push(Claim {
            name: draft.name().map(|name| (name.to_owned(), at("name"))),
            socket: draft.socket().map(|socket| (socket.to_owned(), at("socket"))),
        });
        if self.faults.len() > before {
            return;
        }
        match draft.finish() {
            Ok(options) => settings.vgpus.push(PlacedVgpu { options, place, keys }),
            Err(error) => {
                let (DraftError::Missing(key) | DraftError::Front(key)) = &error;
                let place = keys.get(key).unwrap_or(&place).clone();
                self.faults.push(Fault::new(place, &format!("vGPU: {error}")));
            }
        }
    }

    fn value(&mut self, name: &'static str, kind: Kind, value: &Spanned<DeValue<'_>>, draft: &mut Draft) {
        match kind.text(value.get_ref()) {
            None => self.wrong_kind(name, value, kind.allowed()),
            Some(text) => {
                if let Err(error) = draft.set(name, &text) {
                    self.fault(value.span(), &format!("{name}: {error}"));
                }
            }
        }
    }
}
