//! The account that the daemon serves as.

use std::ffi::CString;
use std::fmt;
use std::str::FromStr;

use nix::unistd::Gid;
use nix::unistd::Group;
use nix::unistd::Uid;
use nix::unistd::User;
use nix::unistd::getgrouplist;

use super::error::ConfineError;

/// `--user NAME|UID[:GROUP|GID]`, as the operator wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserSpec {
    user: String,
    group: Option<String>,
}

impl FromStr for UserSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
        if user.is_empty() || group.is_some_and(|group| group.is_empty() || group.contains(':')) {
            return Err(format!("{text:?} is not NAME, UID, NAME:GROUP or UID:GID"));
        }
        Ok(Self { user: user.to_owned(), group: group.map(ToOwned::to_owned) })
    }
}

impl fmt::Display for UserSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.group {
            Some(group) => write!(f, "{}:{group}", self.user),
            None => f.write_str(&self.user),
        }
    }
}

/// An account in the kernel's terms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The user.
    pub uid: Uid,
    /// Its group.
    pub gid: Gid,
    /// The groups that it is in besides, such as those of GPU device nodes.
    pub groups: Vec<Gid>,
}

impl Identity {
    /// Looks the account up. A number need not be that of a known user, but then comes with its group and has no
    /// other.
    ///
    /// # Errors
    /// There is no such user or group, the number is too large, or it is root, which is no account to change to.
    pub fn find(spec: &UserSpec) -> Result<Self, ConfineError> {
        let wrong = |why: String| ConfineError::User { name: spec.to_string(), why };
        let user = match spec.user.parse::<u32>() {
            Ok(uid) => User::from_uid(Uid::from_raw(uid)),
            Err(_) => User::from_name(&spec.user),
        }
        .map_err(|error| wrong(format!("looking for the user: {error}")))?;
        let uid = match (&user, spec.user.parse::<u32>()) {
            (Some(user), _) => user.uid,
            (None, Ok(uid)) => Uid::from_raw(uid),
            (None, Err(_)) => return Err(wrong("there is no such user".to_owned())),
        };
        let gid = match (&spec.group, &user) {
            (Some(group), _) => find_group(group).map_err(wrong)?,
            (None, Some(user)) => user.gid,
            (None, None) => return Err(wrong("no user has this number: name its group too".to_owned())),
        };
        // The kernel takes the largest number for "as it is".
        if uid.as_raw() == u32::MAX || gid.as_raw() == u32::MAX {
            return Err(wrong(format!("{} is no account", u32::MAX)));
        }
        if uid.is_root() || gid.as_raw() == 0 {
            return Err(wrong("this is root, whose rights are to be given up".to_owned()));
        }
        let groups = match user {
            Some(user) => {
                let name = CString::new(user.name).map_err(|error| wrong(error.to_string()))?;
                getgrouplist(&name, gid).map_err(|error| wrong(format!("looking for its groups: {error}")))?
            }
            None => vec![gid],
        };
        Ok(Self { uid, gid, groups })
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "user {}, group {}", self.uid, self.gid)
    }
}

/// The number of a user by name or number, which may be root. A number need not be that of a known user.
///
/// # Errors
/// There is no such user, or the number is none.
pub fn find_user(name: &str) -> Result<u32, String> {
    match name.parse() {
        Ok(u32::MAX) => Err(format!("{name}: this is no account")),
        Ok(number) => Ok(number),
        Err(_) => {
            let user =
                User::from_name(name).map_err(|error| format!("{name}: looking for the user: {error}"))?;
            user.map(|user| user.uid.as_raw()).ok_or_else(|| format!("{name:?}: there is no such user"))
        }
    }
}

fn find_group(name: &str) -> Result<Gid, String> {
    if let Ok(gid) = name.parse() {
        return Ok(Gid::from_raw(gid));
    }
    let group = Group::from_name(name).map_err(|error| format!("looking for the group: {error}"))?;
    group.map(|group| group.gid).ok_or_else(|| "there is no such group".to_owned())
}

#[cfg(test)]
mod tests {
    use nix::unistd::Gid;
    use nix::unistd::Uid;

    use super::Identity;
    use super::UserSpec;
    use super::find_user;

    #[test]
    fn a_user_is_found_by_name_or_number_root_too() {
        assert_eq!((find_user("0"), find_user("root"), find_user("54321")), (Ok(0), Ok(0), Ok(54321)));
        for wrong in ["", "no-such-user-here", "4294967295", "-1"] {
            assert!(find_user(wrong).is_err(), "{wrong}");
        }
    }

    fn find(text: &str) -> Result<Identity, String> {
        Identity::find(&text.parse::<UserSpec>()?).map_err(|error| error.to_string())
    }

    #[test]
    fn a_number_without_an_account_has_its_group_and_no_other() {
        let gid = Gid::from_raw(54322);
        let expected = Identity { uid: Uid::from_raw(54321), gid, groups: vec![gid] };
        assert_eq!(find("54321:54322"), Ok(expected));
        assert_eq!(find("54321").unwrap_err(), "--user 54321: no user has this number: name its group too");
    }

    #[test]
    fn a_named_user_is_the_same_as_its_number_and_a_named_group_replaces_its_own() {
        let named = find("nobody").unwrap();
        assert_eq!(find(&named.uid.to_string()).unwrap(), named);
        assert!(named.groups.contains(&named.gid));
        let other = find("nobody:54322").unwrap();
        assert_eq!((other.uid, other.gid), (named.uid, Gid::from_raw(54322)));
        assert!(other.groups.contains(&other.gid) && !other.groups.contains(&named.gid));
    }

    #[test]
    fn what_is_no_account_is_refused_with_the_reason() {
        for (text, why) in [
            ("no-such-user-here", "there is no such user"),
            ("54321:no-such-group-here", "there is no such group"),
            ("root", "this is root"),
            ("0:0", "this is root"),
            ("54321:0", "this is root"),
            ("4294967295:1", "is no account"),
            ("1:4294967295", "is no account"),
            ("", "is not NAME"),
            (":1", "is not NAME"),
            ("1:", "is not NAME"),
            ("1:2:3", "is not NAME"),
        ] {
            let said = find(text).unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
    }
}
