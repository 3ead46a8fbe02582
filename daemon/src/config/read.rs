//! Reads all files of a configuration.

use std::path::Path;
use std::sync::Arc;

use super::document;
use super::fault::Fault;
use super::files;
use super::known::Options;
use super::settings::Settings;

/// Reads the file at `path`, and what lies beside it. What is wrong is left out, and told, in the order of the files. What two tables of vGPUs
/// claim is told with it, at the end; where nothing else is wrong, that is found with all that cannot be together.
pub fn read(path: &Path, options: &Options) -> (Settings, Vec<Fault>) {
    let (texts, mut faults) = files::read(path);
    let mut settings = Settings { file: Some(Arc::new(path.to_owned())), ..Settings::default() };
    for text in &texts {
        let mut found = document::read(text, options, &mut settings);
        found.sort_by_key(|fault| fault.place.at);
        faults.extend(found);
    }
    if !faults.is_empty() {
        faults.extend(settings.claimed_twice());
    }
    (settings, faults)
}
