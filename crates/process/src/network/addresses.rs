//! The addresses of this host, from the kernel.

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address of this host, and the interface that has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostAddress {
    /// The interface's name.
    pub interface: String,
    /// The address.
    pub address: IpAddr,
}

/// The addresses of the interfaces that are up, of each interface IPv4 first. Link-local ones of IPv6 are left out, because they
/// mean nothing without their link.
pub fn of_this_host() -> Vec<HostAddress> {
    let mut list = std::ptr::null_mut();
    // SAFETY: `list` is a place for a pointer.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Vec::new();
    }
    let mut all = Vec::new();
    let mut next = list;
    while !next.is_null() {
        // SAFETY: the kernel's list is made of valid entries until it is freed below.
        let entry = unsafe { &*next };
        if entry.ifa_flags & libc::IFF_UP as u32 != 0
            && let Some(address) = address_in(entry)
        {
            // SAFETY: an entry's name ends with a zero.
            let interface = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
            all.push(HostAddress { interface, address });
        }
        next = entry.ifa_next;
    }
    // SAFETY: the list is from getifaddrs, and nothing refers to it any more.
    unsafe { libc::freeifaddrs(list) };
    all.sort_by_key(|own| own.address.is_ipv6());
    all
}

fn address_in(entry: &libc::ifaddrs) -> Option<IpAddr> {
    if entry.ifa_addr.is_null() {
        return None;
    }
    // SAFETY: an address begins with its family, which says how long it is.
    unsafe {
        match i32::from((*entry.ifa_addr).sa_family) {
            libc::AF_INET => {
                let address = &*entry.ifa_addr.cast::<libc::sockaddr_in>();
                Some(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)).into())
            }
            libc::AF_INET6 => {
                let address = Ipv6Addr::from((*entry.ifa_addr.cast::<libc::sockaddr_in6>()).sin6_addr.s6_addr);
                (!address.is_unicast_link_local()).then_some(address.into())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_host_has_a_loopback_address() {
        let all = of_this_host();
        let lo = all.iter().find(|own| own.interface == "lo").map(|own| own.address);
        assert_eq!(lo, Some(Ipv4Addr::LOCALHOST.into()), "{all:?}");
    }
}
