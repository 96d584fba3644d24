//! Root squash: this MDT treats clients' superusers as a user without privileges, unless their node is trusted. Lustre's
//! names are used, `mdt.*.root_squash` (`UID:GID`; `0:0` is off, the default) and `mdt.*.nosquash_nids`. It keeps an
//! administrator of a client from acting as root by mistake; it does not stop a client that forges user ids.

use nacre_base::Errno;
use nacre_base::param::squash::{NidPattern, parse_nosquash, parse_squash};
use nacre_ptlrpc::{Identity, ServerRequest};
use nacre_tgt::Target;
use nacre_wire::Field;
use nacre_wire::attr::Credentials;
use nacre_wire::mds::{Fid2path, Getattr, GetattrName, Getxattr, Open, Readpage, Reint};
use parking_lot::Mutex;
use std::sync::Arc;

/// The settings. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Squash(Arc<Mutex<Settings>>);

#[derive(Default)]
struct Settings {
    /// User and group that root becomes; uid 0 turns squashing of users off, gid 0 that of groups.
    uid: u32,
    gid: u32,
    /// Nodes whose root stays root.
    trusted: Vec<NidPattern>,
}

impl Squash {
    /// Creates the settings, turned off, and registers them as parameters.
    pub(crate) fn register(target: &Target) -> Squash {
        let squash = Squash::default();
        let (params, prefix) = (target.params(), target.param_prefix());
        let (shown, set) = (squash.clone(), squash.clone());
        params.add_rw(
            format!("{prefix}root_squash"),
            move || {
                let settings = shown.0.lock();
                format!("{}:{}", settings.uid, settings.gid)
            },
            move |text| {
                let (uid, gid) = parse_squash(text)?;
                let mut settings = set.0.lock();
                (settings.uid, settings.gid) = (uid, gid);
                Ok(())
            },
        );
        let (shown, set) = (squash.clone(), squash.clone());
        params.add_rw(
            format!("{prefix}nosquash_nids"),
            move || {
                let trusted: Vec<String> = shown.0.lock().trusted.iter().map(NidPattern::to_string).collect();
                if trusted.is_empty() { "NONE".to_owned() } else { trusted.join(" ") }
            },
            move |text| {
                set.0.lock().trusted = parse_nosquash(text)?;
                Ok(())
            },
        );
        squash
    }

    /// Decodes a request with the credentials that count on this MDT. Every handler that checks permissions decodes its
    /// request through this.
    pub(crate) fn decode<M: HasCredentials>(&self, request: &ServerRequest) -> Result<M, Errno> {
        let mut message: M = request.decode()?;
        self.apply(request.identity, message.cred());
        Ok(message)
    }

    fn apply(&self, who: Identity, cred: &mut Credentials) {
        let settings = self.0.lock();
        if settings.uid == 0 && settings.gid == 0 || settings.trusted.iter().any(|pattern| pattern.matches(who.nid)) {
            return;
        }
        if cred.uid == 0 && settings.uid != 0 {
            // Root loses the privileges of user id 0, and also its groups.
            cred.uid = settings.uid;
            cred.groups.clear();
        }
        if settings.gid != 0 {
            cred.groups.retain(|gid| *gid != 0);
            if cred.gid == 0 {
                cred.gid = settings.gid;
            }
        }
    }
}

/// A request that carries credentials.
pub(crate) trait HasCredentials: Field {
    /// The credentials of the request.
    fn cred(&mut self) -> &mut Credentials;
}

macro_rules! has_credentials {
    ($($message:ty),*) => {
        $(impl HasCredentials for $message {
            fn cred(&mut self) -> &mut Credentials {
                &mut self.cred
            }
        })*
    };
}

has_credentials!(Fid2path, Getattr, GetattrName, Getxattr, Open, Readpage, Reint);

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Nid;

    fn squashed(squash: &Squash, nid: &str, uid: u32, gid: u32, groups: &[u32]) -> (u32, u32, Vec<u32>) {
        let mut cred = Credentials { uid, gid, groups: groups.to_vec() };
        squash.apply(Identity { nid: nid.parse::<Nid>().unwrap() }, &mut cred);
        (cred.uid, cred.gid, cred.groups)
    }

    #[test]
    fn root_is_nobody_but_on_trusted_nodes() {
        let squash = Squash::default();
        assert_eq!(squashed(&squash, "10.0.0.9@tcp", 0, 0, &[0, 4]), (0, 0, vec![0, 4]), "off unless set");
        *squash.0.lock() = Settings { uid: 65534, gid: 65533, trusted: parse_nosquash("10.0.0.[1-4]@tcp").unwrap() };
        assert_eq!(squashed(&squash, "10.0.0.9@tcp", 0, 0, &[0, 4]), (65534, 65533, vec![]));
        assert_eq!(squashed(&squash, "10.0.0.3:1022@tcp", 0, 0, &[0, 4]), (0, 0, vec![0, 4]));
        assert_eq!(squashed(&squash, "10.0.0.9@tcp", 7, 0, &[0, 4]), (7, 65533, vec![4]));
        assert_eq!(squashed(&squash, "10.0.0.9@tcp", 7, 8, &[4]), (7, 8, vec![4]));
        squash.0.lock().gid = 0;
        assert_eq!(squashed(&squash, "10.0.0.9@tcp", 0, 0, &[4]), (65534, 0, vec![]));
    }
}
