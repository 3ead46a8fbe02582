//! Reports on what went wrong, as files for the operator: bounded in number and size, whatever guests do.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;
use std::time::Instant;

use serde_json::Value;

/// Reports kept in a folder; the oldest goes when there is one more.
const MAX_KEPT: usize = 256;
/// Digits of the number in a report's name.
const DIGITS: usize = 12;
/// Bytes of the longest report.
const MAX_BYTES: usize = 64 << 10;
/// Reports of one vGPU that may be written in one go.
const BURST: u32 = 32;
/// Reports of one vGPU that stay in memory, for those that look.
const MAX_RECENT: usize = 8;
/// How long one more takes to be allowed.
const PER_REPORT: Duration = Duration::from_secs(2);

/// Where the reports of all vGPUs go.
#[derive(Debug)]
pub struct ReportFolder {
    path: PathBuf,
}

impl ReportFolder {
    /// In a folder `reports` of the state directory, which is made where it is missing.
    ///
    /// # Errors
    /// It cannot be made, or not be listed.
    pub fn open(state: &Path) -> io::Result<Self> {
        let path = state.join("reports");
        // What guests do is the operator's affair alone.
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
        if fs::symlink_metadata(&path)?.is_symlink() {
            return Err(io::Error::other("the folder for reports is a symlink, which is not followed"));
        }
        fs::read_dir(&path)?;
        Ok(Self { path })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The highest number of any report that is there.
    fn last_number(&self) -> u64 {
        self.names().iter().filter_map(|name| number_of(name)).max().unwrap_or(0)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    /// Writes one, under another name first, so that a reader sees all of it or nothing.
    fn write(&self, number: u64, text: &[u8]) -> io::Result<()> {
        let name = format!("{number:0DIGITS$}.json");
        // A random name and O_EXCL: no link that lies in the folder is ever written through.
        let mut draft = tempfile::Builder::new().prefix(".report.").tempfile_in(&self.path)?;
        draft.write_all(text)?;
        draft.persist(self.path.join(&name)).map_err(|error| error.error)?;
        let mut names = self.names();
        names.retain(|name| number_of(name).is_some());
        names.sort();
        let surplus = names.len().saturating_sub(MAX_KEPT);
        for old in &names[..surplus] {
            fs::remove_file(self.path.join(old))?;
        }
        Ok(())
    }
}

/// The number of a report, by its name. Longer numbers than those of reports are none: after the highest of all there
/// would be no next.
fn number_of(name: &str) -> Option<u64> {
    name.strip_suffix(".json").filter(|digits| digits.len() == DIGITS)?.parse().ok()
}

#[derive(Debug)]
struct Allowance {
    allowed: u32,
    counted: Instant,
}

/// What became of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filed {
    /// It lies in the folder.
    Written,
    /// There is no folder, or there were too many of late.
    LeftOut,
}

/// Numbers for reports, and the folder where there is one; shared by all vGPUs.
#[derive(Debug)]
pub struct Reports {
    folder: Option<ReportFolder>,
    last: Mutex<u64>,
}

impl Reports {
    /// Into `folder`, or nowhere: numbers are given all the same.
    pub fn new(folder: Option<ReportFolder>) -> Self {
        let last = folder.as_ref().map_or(0, ReportFolder::last_number);
        Self { folder, last: Mutex::new(last) }
    }

    /// The number of a new report.
    pub fn number(&self) -> u64 {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        *last += 1;
        *last
    }
}

/// One vGPU's way to file reports.
#[derive(Debug)]
pub struct Clerk {
    allowance: Mutex<Allowance>,
    /// The newest, whether they were written or not; the newest last.
    recent: Mutex<VecDeque<Arc<str>>>,
}

impl Default for Clerk {
    fn default() -> Self {
        let allowance = Mutex::new(Allowance { allowed: BURST, counted: Instant::now() });
        Self { allowance, recent: Mutex::default() }
    }
}

impl Clerk {
    fn admit(&self, now: Instant) -> bool {
        let mut allowance = self.allowance.lock().unwrap_or_else(PoisonError::into_inner);
        let earned = now.saturating_duration_since(allowance.counted).as_secs() / PER_REPORT.as_secs();
        if let Ok(earned) = u32::try_from(earned) {
            allowance.allowed = allowance.allowed.saturating_add(earned).min(BURST);
            allowance.counted += PER_REPORT * earned;
        }
        if allowance.allowed == 0 {
            return false;
        }
        allowance.allowed -= 1;
        true
    }

    /// Files a report.
    ///
    /// # Errors
    /// It is longer than any report may be, or the folder cannot be written.
    pub fn file(&self, reports: &Reports, number: u64, report: &Value, now: Instant) -> io::Result<Filed> {
        let text = serde_json::to_string_pretty(report)?;
        if text.len() > MAX_BYTES {
            return Err(io::Error::other(format!("a report of {} bytes", text.len())));
        }
        self.keep(text.as_str().into());
        let Some(folder) = &reports.folder else { return Ok(Filed::LeftOut) };
        if !self.admit(now) {
            return Ok(Filed::LeftOut);
        }
        folder.write(number, text.as_bytes())?;
        Ok(Filed::Written)
    }

    fn keep(&self, text: Arc<str>) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.len() >= MAX_RECENT {
            let _oldest = recent.pop_front();
        }
        recent.push_back(text);
    }

    /// The newest reports, as JSON, the newest last.
    pub fn recent(&self) -> Vec<Arc<str>> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::sync::Mutex;
    use std::time::Duration;
    use std::time::Instant;

    use serde_json::json;

    use super::Allowance;
    use super::BURST;
    use super::Clerk;
    use super::Filed;
    use super::MAX_BYTES;
    use super::MAX_KEPT;
    use super::MAX_RECENT;
    use super::PER_REPORT;
    use super::ReportFolder;
    use super::Reports;

    #[test]
    fn reports_are_bounded_in_number_and_size_and_a_flood_is_left_out() {
        let state = tempfile::tempdir().unwrap();
        let reports = Reports::new(Some(ReportFolder::open(state.path()).unwrap()));
        let clerk = Clerk::default();
        let mut now = Instant::now();
        let mut written = 0;
        for _ in 0..MAX_KEPT + 50 {
            let number = reports.number();
            written = number;
            assert_eq!(clerk.file(&reports, number, &json!({ "n": number }), now).unwrap(), Filed::Written);
            now += PER_REPORT;
        }
        let folder = ReportFolder::open(state.path()).unwrap();
        assert_eq!(folder.names().len(), MAX_KEPT);
        assert_eq!(folder.last_number(), written, "the newest are kept");
        let filed = (0..1000).map(|_| clerk.file(&reports, reports.number(), &json!(1), now).unwrap());
        assert_eq!(filed.filter(|filed| *filed == Filed::Written).count(), BURST as usize);
        now += Duration::from_secs(3600);
        assert!(clerk.file(&reports, 1, &json!("x".repeat(MAX_BYTES)), now).is_err());
        assert_eq!(Reports::new(Some(folder)).number(), written + u64::from(BURST) + 1);
    }

    #[test]
    fn one_more_report_is_written_for_each_two_seconds_and_none_before() {
        let state = tempfile::tempdir().unwrap();
        let reports = Reports::new(Some(ReportFolder::open(state.path()).unwrap()));
        let begun = Instant::now();
        let allowance = Mutex::new(Allowance { allowed: 0, counted: begun });
        let clerk = Clerk { allowance, recent: Mutex::default() };
        let seconds = [0, 1, 2, 2, 3, 4, 4, 5, 10, 10, 10, 10, 11];
        let filed = seconds.map(|second| {
            let now = begun + Duration::from_secs(second);
            clerk.file(&reports, reports.number(), &json!(second), now).unwrap() == Filed::Written
        });
        let written: Vec<u64> =
            seconds.into_iter().zip(filed).filter_map(|(at, it)| it.then_some(at)).collect();
        assert_eq!(written, [2, 4, 10, 10, 10]);
    }

    #[test]
    fn a_report_as_long_as_any_may_be_is_written_and_one_byte_more_is_refused() {
        let state = tempfile::tempdir().unwrap();
        let folder = ReportFolder::open(state.path()).unwrap();
        let path = folder.path().to_owned();
        let reports = Reports::new(Some(folder));
        // Two quotes around it.
        let mut text = "x".repeat(MAX_BYTES - 2);
        let now = Instant::now();
        assert_eq!(Clerk::default().file(&reports, 1, &json!(text), now).unwrap(), Filed::Written);
        assert_eq!(fs::metadata(path.join("000000000001.json")).unwrap().len(), 64 << 10);
        text.push('x');
        let error = Clerk::default().file(&reports, 2, &json!(text), now).unwrap_err();
        assert!(error.to_string().contains("a report of 65537 bytes"), "{error}");
    }

    #[test]
    fn a_symlink_in_the_folder_is_not_written_through() {
        let state = tempfile::tempdir().unwrap();
        let reports = Reports::new(Some(ReportFolder::open(state.path()).unwrap()));
        let (folder, victim) = (state.path().join("reports"), state.path().join("victim"));
        fs::write(&victim, "precious").unwrap();
        // The draft as it was called when its name could be guessed, and the report itself.
        for name in [".000000000001.json", "000000000001.json"] {
            symlink(&victim, folder.join(name)).unwrap();
        }
        let filed = Clerk::default().file(&reports, 1, &json!({ "n": 1 }), Instant::now()).unwrap();
        assert_eq!(filed, Filed::Written);
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
        let report = folder.join("000000000001.json");
        assert!(fs::symlink_metadata(&report).unwrap().is_file());
        assert!(fs::read_to_string(report).unwrap().contains("\"n\": 1"));
    }

    #[test]
    fn a_folder_that_is_a_symlink_is_refused() {
        let (state, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        symlink(elsewhere.path(), state.path().join("reports")).unwrap();
        assert!(ReportFolder::open(state.path()).is_err());
    }

    #[test]
    fn a_file_with_the_highest_number_leaves_numbers_for_reports() {
        let state = tempfile::tempdir().unwrap();
        let folder = ReportFolder::open(state.path()).unwrap();
        fs::write(folder.path().join("000000000007.json"), "{}").unwrap();
        fs::write(folder.path().join(format!("{}.json", u64::MAX)), "{}").unwrap();
        assert_eq!(Reports::new(Some(folder)).number(), 8);
    }

    #[test]
    fn without_a_folder_reports_have_numbers_all_the_same() {
        let reports = Reports::new(None);
        assert_eq!((reports.number(), reports.number()), (1, 2));
        let filed = Clerk::default().file(&reports, 1, &json!({}), Instant::now());
        assert_eq!(filed.unwrap(), Filed::LeftOut);
    }

    #[test]
    fn the_newest_reports_stay_in_memory_and_no_more_whether_they_are_written_or_not() {
        let (reports, clerk) = (Reports::new(None), Clerk::default());
        for number in 0..BURST + 10 {
            let _left_out = clerk.file(&reports, 1, &json!(number), Instant::now()).unwrap();
        }
        let newest: Vec<String> = clerk.recent().iter().map(|text| text.to_string()).collect();
        assert_eq!(newest.len(), MAX_RECENT);
        assert_eq!(newest.last(), Some(&(BURST + 9).to_string()));
        assert!(clerk.file(&reports, 1, &json!("x".repeat(MAX_BYTES)), Instant::now()).is_err());
        assert_eq!(clerk.recent().last().map(|text| text.len()), Some(2), "what is too long is not kept");
    }
}
