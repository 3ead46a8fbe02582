//! The files of a configuration.

use std::fs;
use std::fs::File;
use std::io;
use std::io::Read;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::Mode;
use rustix::fs::OFlags;
use rustix::fs::open;

use super::fault::Fault;
use super::fault::Place;

/// Where the configuration of an installed daemon is.
pub const DEFAULT: &str = "/etc/campanile/campanile.toml";
/// The folder beside it whose files add to it.
const FOLDER: &str = "conf.d";
/// Bytes of the largest file.
const MAX_BYTES: u64 = 1 << 20;
/// Files of a folder at the most.
const MAX_FILES: usize = 1024;

/// A file that was read.
#[derive(Debug)]
pub struct Text {
    /// Its path.
    pub file: Arc<PathBuf>,
    /// What is in it.
    pub text: String,
}

/// The file at `path`, then those of `conf.d` beside it that end in `.toml`, by name; and what could not be read.
pub fn read(path: &Path) -> (Vec<Text>, Vec<Fault>) {
    let (mut texts, mut faults) = (Vec::new(), Vec::new());
    let folder = path.parent().unwrap_or(Path::new("")).join(FOLDER);
    let more = list(&folder).unwrap_or_else(|error| {
        faults.push(unreadable(&folder, &error));
        Vec::new()
    });
    for file in std::iter::once(path.to_owned()).chain(more) {
        match read_one(&file) {
            Ok(text) => texts.push(Text { file: Arc::new(file), text }),
            Err(error) => faults.push(unreadable(&file, &error)),
        }
    }
    (texts, faults)
}

fn unreadable(path: &Path, error: &io::Error) -> Fault {
    Fault::new(Place::whole(&Arc::new(path.to_owned())), &format!("cannot be read: {error}"))
}

fn list(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if path.extension().is_some_and(|extension| extension == "toml") && !is_hidden {
            files.push(path);
        }
    }
    if files.len() > MAX_FILES {
        return Err(io::Error::other(format!("{} files; {MAX_FILES} are possible", files.len())));
    }
    files.sort();
    Ok(files)
}

fn read_one(path: &Path) -> io::Result<String> {
    // A pipe without a writer, or a device, could keep it waiting.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let mut text = String::new();
    // One byte more says that there are too many.
    file.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(io::Error::other(format!("it has more than {MAX_BYTES} bytes")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::CWD;
    use rustix::fs::FileType;
    use rustix::fs::Mode;
    use rustix::fs::mknodat;

    use super::MAX_BYTES;
    use super::MAX_FILES;
    use super::read;

    #[test]
    fn a_folder_adds_its_files_by_name_and_what_cannot_be_read_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let main = folder.path().join("campanile.toml");
        let more = folder.path().join("conf.d");
        fs::create_dir(&more).unwrap();
        fs::write(&main, "main").unwrap();
        for (name, text) in [("20-b.toml", "b"), ("10-a.toml", "a"), ("notes.txt", "no"), (".x.toml", "no")] {
            fs::write(more.join(name), text).unwrap();
        }
        let (texts, faults) = read(&main);
        let read_texts: Vec<_> = texts.iter().map(|text| text.text.as_str()).collect();
        assert_eq!((read_texts, faults), (vec!["main", "a", "b"], Vec::new()));
        fs::create_dir(more.join("30-folder.toml")).unwrap();
        fs::write(more.join("40-latin1.toml"), [0xe4]).unwrap();
        fs::write(more.join("50-large.toml"), vec![b'#'; usize::try_from(MAX_BYTES).unwrap() + 1]).unwrap();
        fs::remove_file(&main).unwrap();
        let (texts, faults) = read(&main);
        assert_eq!(texts.len(), 2);
        let names = ["campanile.toml", "30-folder.toml", "40-latin1.toml", "50-large.toml"];
        assert_eq!(faults.len(), names.len(), "{faults:?}");
        for (fault, name) in faults.iter().zip(names) {
            assert!(fault.place.file.ends_with(name) && fault.text.contains("cannot be read"), "{fault}");
        }
    }

    #[test]
    fn a_pipe_keeps_nothing_waiting_and_a_folder_has_so_many_files() {
        let folder = tempfile::tempdir().unwrap();
        let main = folder.path().join("campanile.toml");
        mknodat(CWD, &main, FileType::Fifo, Mode::RUSR, 0).unwrap();
        let (texts, faults) = read(&main);
        assert!(texts.is_empty() && faults[0].text.contains("it is no file"), "{faults:?}");
        fs::remove_file(&main).unwrap();
        fs::write(&main, "").unwrap();
        let more = folder.path().join("conf.d");
        fs::create_dir(&more).unwrap();
        for index in 0..MAX_FILES {
            fs::write(more.join(format!("{index}.toml")), "").unwrap();
        }
        assert_eq!((read(&main).0.len(), read(&main).1), (MAX_FILES + 1, Vec::new()));
        fs::write(more.join("more.toml"), "").unwrap();
        let (texts, faults) = read(&main);
        assert_eq!((texts.len(), faults.len()), (1, 1));
        assert!(faults[0].text.contains("1025 files; 1024 are possible"), "{faults:?}");
    }
}
