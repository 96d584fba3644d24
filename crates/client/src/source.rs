//! The source of a mount, as people write it.

use nacre_base::{Nid, TargetName};
use std::str::FromStr;

/// The parts of `MGSNID[,NID]:/FSNAME`. As in Lustre, a colon may stand for a comma between NIDs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountSource {
    /// NIDs where the MGS may be.
    pub mgs: Vec<Nid>,
    /// The file system.
    pub fsname: String,
}

impl FromStr for MountSource {
    type Err = String;
    fn from_str(s: &str) -> Result<MountSource, String> {
        let usage = || format!("{s:?} is not MGSNID:/FSNAME, such as 10.0.0.1@tcp:/nacre");
        let (nids, fsname) = s.rsplit_once(":/").ok_or_else(usage)?;
        let mgs: Result<Vec<Nid>, _> = split_nids(nids).into_iter().map(str::parse).collect();
        if !TargetName::is_fsname(fsname) {
            return Err(format!("{fsname:?} is not a file system's name: 1 to 8 letters, digits, - or _"));
        }
        Ok(MountSource { mgs: mgs.map_err(|e| e.to_string())?, fsname: fsname.to_owned() })
    }
}

/// The NIDs of a list. Addresses contain colons too, so a colon separates only behind a network (`@tcp`).
fn split_nids(list: &str) -> Vec<&str> {
    let mut has_network = false;
    let ends_nid = |c: char| {
        let ends = c == ',' || (c == ':' && has_network);
        has_network = !ends && (has_network || c == '@');
        ends
    };
    list.split(ends_nid).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_names_where_the_mgs_may_be_and_the_file_system() {
        let source: MountSource = "10.0.0.1@tcp,10.0.0.2@tcp:/scratch".parse().unwrap();
        assert_eq!((source.mgs.len(), source.fsname.as_str()), (2, "scratch"));
        for (list, nids) in [
            ("10.0.0.1@tcp:10.0.0.2:7001@tcp1,10.0.0.3", "10.0.0.1@tcp 10.0.0.2:7001@tcp1 10.0.0.3@tcp"),
            ("2001:db8::1@tcp", "2001:db8::1@tcp"),
            ("2001:db8::1,[::1]:7001", "2001:db8::1@tcp [::1]:7001@tcp"),
            ("2001:db8::1@tcp:[2001:db8::2]:7001@tcp1:::1@tcp", "2001:db8::1@tcp [2001:db8::2]:7001@tcp1 ::1@tcp"),
        ] {
            let source: MountSource = format!("{list}:/scratch").parse().unwrap();
            assert_eq!(source.mgs.iter().map(Nid::to_string).collect::<Vec<_>>().join(" "), nids, "{list}");
        }
        for (wrong, why) in [("10.0.0.1@tcp,:/scratch", "NID"), ("10.0.0.1:10.0.0.2:/scratch", "NID"), (":/a", "NID")] {
            assert!(wrong.parse::<MountSource>().unwrap_err().contains(why), "{wrong}");
        }
        for (wrong, why) in [("scratch", "MGSNID"), ("10.0.0.1@tcp:/much-too-long", "name"), ("x:/scratch", "x")] {
            assert!(wrong.parse::<MountSource>().unwrap_err().contains(why), "{wrong}");
        }
    }
}
