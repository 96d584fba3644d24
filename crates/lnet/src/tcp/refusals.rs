//! Which refused introductions are worth a line in the log: one for each address, not one for each attempt. A sans-IO
//! engine.

use nacre_base::Time;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// The addresses that were named in the log lately.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    logged: BTreeMap<IpAddr, Time>,
}

/// An address that is still refused is named again after this time.
const LOG_AGAIN: Duration = Duration::from_secs(3600);
/// Most addresses remembered. Beyond, further addresses are not named until the oldest are forgotten.
const ADDRESSES_MAX: usize = 1024;

impl Refusals {
    /// A connection from `address` was refused: returns whether the log should say so.
    pub(super) fn handle_refused(&mut self, address: IpAddr, now: Time) -> bool {
        self.logged.retain(|_, at| now < *at + LOG_AGAIN);
        if self.logged.contains_key(&address) || self.logged.len() >= ADDRESSES_MAX {
            return false;
        }
        self.logged.insert(address, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn address(n: u32) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from(n))
    }

    #[test]
    fn an_address_is_named_once_an_hour() {
        let mut refusals = Refusals::default();
        assert!(refusals.handle_refused(address(1), Time::ZERO));
        assert!(!refusals.handle_refused(address(1), Time::from_secs(3599)));
        assert!(refusals.handle_refused(address(2), Time::from_secs(3599)));
        assert!(refusals.handle_refused(address(1), Time::from_secs(3600)));
    }

    #[test]
    fn only_so_many_addresses_are_remembered() {
        let mut refusals = Refusals::default();
        let named = (0..5000).filter(|n| refusals.handle_refused(address(*n), Time::ZERO)).count();
        assert_eq!((named, refusals.logged.len()), (ADDRESSES_MAX, ADDRESSES_MAX));
    }
}
