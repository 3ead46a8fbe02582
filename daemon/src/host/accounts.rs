//! The accounts of engine processes.
//!
//! ```text
//!   --engine-user USER ─────────────────────────────▶ that one, or no start
//!   --engine-user none, --user, no CAP_SETUID ──────▶ the daemon's
//!   --engine-user auto ─┬─ campanile-engine exists ─▶ that one            ┐ unless engines start as the daemon and
//!                       └─ else ────────────────────▶ one for each vGPU   ┘ not so: then the daemon's, with a warning
//! ```
//!
//! An account of [`RANGE`] is a number that nothing else has, user and group: no entry of the user database, no files, no
//! processes but engines of one vGPU, so limits of a user are those of one vGPU, too: [`TASKS`].

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;

use campanile_host_gpu::adapter::containment::Account;
use nix::unistd::Gid;
use nix::unistd::Group;
use nix::unistd::Uid;
use nix::unistd::User;
use rustix::thread::CapabilitySet;

use crate::confine::error::ConfineError;
use crate::confine::identity::Identity;
use crate::confine::identity::UserSpec;

/// The system account that engines have where it exists.
pub const NAME: &str = "campanile-engine";
/// Processes and threads that the engines of a vGPU with a user of its own may have in all: those of a driver are a few for each CPU.
const TASKS: u64 = 4096;
/// Numbers that neither systemd nor Debian gives out.
pub const RANGE: Range<u32> = 60706..61184;
/// Groups of GPU device nodes, by name.
const GROUPS: [&str; 2] = ["render", "video"];
/// What the daemon needs to start engines as another user, and to end them.
const NEEDED: CapabilitySet = CapabilitySet::SETUID.union(CapabilitySet::SETGID).union(CapabilitySet::KILL);

/// The accounts of engine processes, and why it is those.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accounts {
    /// By vGPU; of one only, that of all; of none, the daemon's.
    each: Vec<Arc<Account>>,
    why: String,
    is_automatic: bool,
}

impl Accounts {
    /// That of the daemon, and why.
    pub fn of_the_daemon(why: impl Into<String>) -> Self {
        Self { each: Vec::new(), why: why.into(), is_automatic: false }
    }

    /// The one that the operator has named.
    pub fn named(identity: &Identity) -> Self {
        let account = Arc::new(account_of(identity, Vec::new()));
        Self { each: vec![account], why: "--engine-user".to_owned(), is_automatic: false }
    }

    /// Accounts of their own for the engines of the vGPUs with these sockets, where this process may give them any.
    pub fn automatic(sockets: &[&Path]) -> Self {
        // Where there is no vGPU yet, the first number says that those to come have their own.
        let of_none = [Path::new("")];
        let sockets = if sockets.is_empty() { &of_none } else { sockets };
        if !may_change_user() {
            return Self::of_the_daemon("the daemon is not root (CAP_SETUID, CAP_SETGID, CAP_KILL)");
        }
        let groups = match groups_of_gpus(Path::new("/dev")) {
            Ok(groups) => groups,
            Err(node) => {
                return Self::of_the_daemon(format!("only root opens {}", node.display()));
            }
        };
        let groups: Vec<u32> = groups.into_iter().chain(named_groups()).collect();
        match find_named() {
            Ok(identity) => Self {
                each: vec![Arc::new(account_of(&identity, groups))],
                why: format!("the account {NAME} exists"),
                is_automatic: true,
            },
            Err(why) => match free_numbers(sockets, is_taken) {
                Some(numbers) => Self {
                    each: numbers.into_iter().map(|number| Arc::new(made_up(number, &groups))).collect(),
                    why: format!("{NAME}: {why}"),
                    is_automatic: true,
                },
                None => Self::of_the_daemon(format!(
                    "{NAME}: {why}; of the users {} to {} too few are free",
                    RANGE.start,
                    RANGE.end - 1
                )),
            },
        }
    }

    /// That of the engines of this vGPU; none for the daemon's.
    pub fn of_vgpu(&self, index: usize) -> Option<Arc<Account>> {
        self.each.get(index).or(self.each.first()).cloned()
    }

    /// The same where that vGPU alone is served.
    #[must_use]
    pub fn only(self, index: usize) -> Self {
        Self { each: self.of_vgpu(index).into_iter().collect(), ..self }
    }

    /// That of the engines of a vGPU that comes later, at this socket; none for the daemon's. `others` have those that are there.
    ///
    /// # Errors
    /// In words: no number is left that nothing has.
    pub fn of_new(&self, socket: &Path, others: &BTreeSet<u32>) -> Result<Option<Arc<Account>>, String> {
        let Some(first) = self.each.first() else { return Ok(None) };
        if first.tasks.is_none() {
            return Ok(Some(Arc::clone(first)));
        }
        let numbers = free_numbers(&[socket], |number| others.contains(&number) || is_taken(number));
        let number = numbers.and_then(|numbers| numbers.first().copied());
        let number = number
            .ok_or_else(|| format!("of the users {} to {} none is free", RANGE.start, RANGE.end - 1))?;
        let groups: Vec<u32> = first.groups.iter().copied().filter(|group| !RANGE.contains(group)).collect();
        Ok(Some(Arc::new(made_up(number, &groups))))
    }

    /// Why it is this one.
    pub fn why(&self) -> &str {
        &self.why
    }

    /// Whether engines may have the daemon's account, where they cannot start with these.
    pub fn is_automatic(&self) -> bool {
        self.is_automatic
    }
}

impl fmt::Display for Accounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.each.as_slice() {
            [] => write!(f, "the daemon's user")?,
            each => {
                let users: Vec<String> = each.iter().map(|account| account.uid.to_string()).collect();
                write!(f, "user {}", users.join(", "))?;
            }
        }
        write!(f, " ({})", self.why)
    }
}

/// Whether the calling thread can start processes of another user, and end them.
pub fn may_change_user() -> bool {
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(NEEDED))
}

fn account_of(identity: &Identity, more: Vec<u32>) -> Account {
    let groups: BTreeSet<u32> = identity.groups.iter().copied().map(Gid::as_raw).chain(more).collect();
    Account {
        uid: identity.uid.as_raw(),
        gid: identity.gid.as_raw(),
        groups: groups.into_iter().collect(),
        // It may have other processes, of other vGPUs or of anything.
        tasks: None,
    }
}

fn made_up(number: u32, groups: &[u32]) -> Account {
    let groups: BTreeSet<u32> = groups.iter().copied().chain([number]).collect();
    Account { uid: number, gid: number, groups: groups.into_iter().collect(), tasks: Some(TASKS) }
}

/// The system account, or why engines cannot have it.
fn find_named() -> Result<Identity, String> {
    let spec: UserSpec = NAME.parse()?;
    let identity = Identity::find(&spec).map_err(|error| match error {
        ConfineError::User { why, .. } => why,
        other => other.to_string(),
    })?;
    if identity.uid == Uid::effective() {
        return Err("it is the daemon's own".to_owned());
    }
    Ok(identity)
}

/// Whether a user or a group has this number; also where that cannot be found out.
fn is_taken(number: u32) -> bool {
    let user = User::from_uid(Uid::from_raw(number));
    let group = Group::from_gid(Gid::from_raw(number));
    Uid::effective().as_raw() == number || !matches!((user, group), (Ok(None), Ok(None)))
}

/// For each socket a number of [`RANGE`] that is free, and that of no other of these. It is the same at each start, and that of
/// a vGPU of another daemon on this host only by chance: its place follows from the path.
fn free_numbers(sockets: &[&Path], is_taken: impl Fn(u32) -> bool) -> Option<Vec<u32>> {
    let mut used = BTreeSet::new();
    let count = RANGE.end - RANGE.start;
    let mut free_from = |start: u32| {
        let numbers = (0..count).map(|step| RANGE.start + (start + step) % count);
        numbers.into_iter().find(|number| !is_taken(*number) && used.insert(*number))
    };
    sockets.iter().map(|socket| free_from(place(socket) % count)).collect()
}

/// FNV-1a.
fn place(socket: &Path) -> u32 {
    let bytes = socket.as_os_str().as_encoded_bytes();
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

fn named_groups() -> impl Iterator<Item = u32> {
    let found = GROUPS.into_iter().filter_map(|name| Group::from_name(name).ok().flatten());
    found.map(|group| group.gid.as_raw()).filter(|gid| *gid != 0)
}

/// The groups that GPU device nodes below `dev` are open to, where they are not open to all.
///
/// # Errors
/// A node that is open to root only.
fn groups_of_gpus(dev: &Path) -> Result<BTreeSet<u32>, PathBuf> {
    const OTHERS: u32 = 0o006;
    const GROUP: u32 = 0o060;
    let of = |folder: &Path, starts: &'static [&'static str]| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let nodes = entries.filter(move |entry| {
            entry.file_name().to_str().is_some_and(|name| starts.iter().any(|start| name.starts_with(start)))
        });
        nodes.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let mut groups = BTreeSet::new();
    for node in of(&dev.join("dri"), &["renderD"]).into_iter().chain(of(dev, &["nvidia", "kfd", "mali"])) {
        let Ok(metadata) = fs::metadata(&node) else { continue };
        let mode = metadata.mode();
        if metadata.is_dir() || mode & OTHERS == OTHERS {
            continue;
        }
        if mode & GROUP != GROUP || metadata.gid() == 0 {
            return Err(node);
        }
        groups.insert(metadata.gid());
    }
    Ok(groups)
}

/// What came of starting an engine with the first of these accounts, and the accounts that engines are to have. `start`
/// starts one, and `works` says of what came of it whether that engine works.
pub fn settle<T>(
    accounts: Accounts,
    start: impl Fn(&Accounts) -> io::Result<T>,
    reason: impl Fn(&io::Result<T>) -> Option<String>,
) -> (io::Result<T>, Accounts) {
    let started = start(&accounts);
    let Some(why) = reason(&started).filter(|_| accounts.is_automatic()) else { return (started, accounts) };
    let daemons = Accounts::of_the_daemon(format!("engines do not start as {accounts}: {why}"));
    let again = start(&daemons);
    if reason(&again).is_some() { (started, accounts) } else { (again, daemons) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing test stops here")]

    use std::collections::BTreeSet;
    use std::fs;
    use std::io;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::fs::chown;
    use std::path::Path;
    use std::path::PathBuf;

    use super::Accounts;
    use super::RANGE;
    use super::free_numbers;
    use super::groups_of_gpus;
    use super::made_up;
    use super::settle;

    #[test]
    fn each_vgpu_has_a_number_that_is_free_and_its_own_and_the_same_each_time() {
        let paths: Vec<PathBuf> = (0..40).map(|index| format!("/run/vm{index}.sock").into()).collect();
        let paths: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
        let all = free_numbers(&paths, |_| false).unwrap();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 40);
        assert!(all.iter().all(|number| RANGE.contains(number)));
        assert_eq!(free_numbers(&paths, |_| false).unwrap(), all);
        let first = all[0];
        assert_ne!(free_numbers(&paths[..1], |number| number == first).unwrap(), [first], "it is taken");
        let even = free_numbers(&paths, |number| number % 2 == 1).unwrap();
        assert!(even.iter().all(|number| number % 2 == 0));
        assert_eq!(even.iter().collect::<BTreeSet<_>>().len(), 40);
        assert_eq!(free_numbers(&paths, |number| number >= RANGE.start + 39), None);
    }

    #[test]
    fn a_worker_has_the_number_of_its_vgpu_among_those_of_all() {
        let each = [60_800, 60_801].map(|number| std::sync::Arc::new(made_up(number, &[]))).to_vec();
        let all = Accounts { each, why: String::new(), is_automatic: true };
        for (index, number) in [(0, 60_800), (1, 60_801)] {
            let own = all.clone().only(index).of_vgpu(0).unwrap();
            assert_eq!(own.uid, number);
        }
    }

    #[test]
    fn a_made_up_account_is_in_its_own_group_and_those_of_the_gpus() {
        let account = made_up(60_800, &[44, 104, 44]);
        assert_eq!((account.uid, account.gid), (60_800, 60_800));
        assert_eq!(account.groups, [44, 104, 60_800]);
    }

    #[test]
    fn groups_are_those_of_gpus_only_and_a_node_that_is_roots_alone_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let dev = folder.path();
        fs::create_dir(dev.join("dri")).unwrap();
        fs::create_dir(dev.join("nvidia-caps")).unwrap();
        let node = |name: &str, mode: u32, gid: u32| {
            fs::write(dev.join(name), "").unwrap();
            fs::set_permissions(dev.join(name), PermissionsExt::from_mode(mode)).unwrap();
            // A user that is not root owns them by a group that it has.
            let _ = chown(dev.join(name), None, Some(gid));
        };
        let is_root = rustix::process::geteuid().is_root();
        let own = rustix::process::getegid().as_raw();
        let render = if is_root { 104 } else { own };
        node("dri/renderD128", 0o660, render);
        node("dri/card0", 0o600, own);
        node("nvidia0", 0o666, own);
        node("sda", 0o600, own);
        assert_eq!(groups_of_gpus(dev), Ok(BTreeSet::from([render])));
        node("kfd", 0o640, render);
        assert_eq!(groups_of_gpus(dev), Err(dev.join("kfd")), "its group may not write");
        fs::remove_file(dev.join("kfd")).unwrap();
        if is_root {
            node("nvidiactl", 0o660, 0);
            assert_eq!(groups_of_gpus(dev), Err(dev.join("nvidiactl")), "root's group is given to no engine");
        }
    }

    #[test]
    fn a_vgpu_that_comes_later_has_a_number_that_none_has() {
        let socket = Path::new("/run/vm7.sock");
        let first = own_account();
        let own = first.of_new(socket, &BTreeSet::new()).unwrap().unwrap();
        assert!(RANGE.contains(&own.uid) && own.groups == [own.uid], "{own:?}");
        let other = first.of_new(socket, &BTreeSet::from([own.uid])).unwrap().unwrap();
        assert_ne!(other.uid, own.uid);
        assert!(first.of_new(socket, &RANGE.collect()).unwrap_err().contains("none is free"));
        assert_eq!(Accounts::of_the_daemon("none").of_new(socket, &BTreeSet::new()), Ok(None));
    }

    /// The account of the daemon works or not, and the others do or not.
    fn settled(is_automatic: bool, daemons: bool, own: bool) -> (bool, Accounts) {
        let accounts = Accounts { is_automatic, ..own_account() };
        let start = |accounts: &Accounts| {
            let works = if accounts.of_vgpu(0).is_some() { own } else { daemons };
            if works { Ok(()) } else { Err(io::Error::other("no driver")) }
        };
        let (started, accounts) =
            settle(accounts, start, |started| started.as_ref().err().map(ToString::to_string));
        (started.is_ok(), accounts)
    }

    fn own_account() -> Accounts {
        Accounts { each: vec![made_up(60_800, &[]).into()], why: "made up".to_owned(), is_automatic: true }
    }

    #[test]
    fn only_an_automatic_account_gives_way_and_only_where_engines_work_without_it() {
        assert_eq!(settled(true, true, true), (true, own_account()));
        assert_eq!(settled(true, false, true), (true, own_account()));
        assert_eq!(settled(true, false, false), (false, own_account()));
        let (works, daemons) = settled(true, true, false);
        assert!(works && daemons.of_vgpu(0).is_none());
        assert!(daemons.why().contains("60800") && daemons.why().contains("no driver"), "{daemons}");
        assert!(!settled(false, true, false).0, "what the operator has named is kept");
        assert!(settled(false, true, false).1.of_vgpu(0).is_some());
    }
}
