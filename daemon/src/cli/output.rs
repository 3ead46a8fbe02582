//! What commands say on standard output.

use std::io;
use std::io::Write;

/// Writes a text, all of it.
///
/// # Errors
/// The output takes no more, as on a full disk. A pipe whose reader has gone is no error: it has read what it wanted.
pub(super) fn print(text: &str) -> io::Result<()> {
    write(&mut io::stdout().lock(), text)
}

fn write(output: &mut impl Write, text: &str) -> io::Result<()> {
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written
            .map_err(|error| io::Error::new(error.kind(), format!("writing to standard output: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::ErrorKind;

    use super::write;

    #[test]
    fn a_full_disk_is_told_and_a_reader_that_has_gone_is_none_of_it() {
        let mut full = File::options().write(true).open("/dev/full").unwrap();
        let error = write(&mut full, "text").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        assert!(error.to_string().contains("writing to standard output: No space left"), "{error}");
        let (reader, mut writer) = std::io::pipe().unwrap();
        drop(reader);
        write(&mut writer, "text").unwrap();
    }
}
