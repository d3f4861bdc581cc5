//! IP address policy: every range that is not the public internet, with the reason.
//!
//! An address passes only if no row has it and, for IPv6, if it is from the range that the internet uses. An IPv6 address
//! that carries an IPv4 one is refused whatever it carries: who unpacks it is not known here.
//!
//! Not here: names and URLs, and the exceptions of a user. Callers have those.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Decides which addresses a connection may go to.
pub trait AddressPolicy: Send + Sync + fmt::Debug {
    fn check(&self, address: IpAddr) -> Result<(), AddressRefusal>;
}

/// Any address: for a host that the operator named in the settings, such as a model's server.
#[derive(Clone, Copy, Debug)]
pub struct AnyAddress;

impl AddressPolicy for AnyAddress {
    fn check(&self, _: IpAddr) -> Result<(), AddressRefusal> {
        Ok(())
    }
}

/// Reason for refusing an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRefusal {
    /// After "leads to".
    pub reason: &'static str,
    /// A user may allow it, for a host and port or a range of their choice.
    pub overridable: bool,
}

/// Fails for an address that is not on the public internet.
pub fn check_public(address: IpAddr) -> Result<(), AddressRefusal> {
    match address {
        IpAddr::V4(address) => check_v4(address),
        IpAddr::V6(address) => check_v6(address),
    }
}

fn check_v4(address: Ipv4Addr) -> Result<(), AddressRefusal> {
    let bits = u32::from(address);
    let has = |row: &&(Ipv4Addr, u32, AddressRefusal)| {
        let (network, length, _) = row;
        (bits ^ u32::from(*network)).checked_shr(32 - length).unwrap_or_default() == 0
    };
    REFUSED_V4_RANGES.iter().find(has).map_or(Ok(()), |(_, _, refused)| Err(*refused))
}

fn check_v6(address: Ipv6Addr) -> Result<(), AddressRefusal> {
    let bits = u128::from(address);
    let has = |row: &&(Ipv6Addr, u32, AddressRefusal)| {
        let (network, length, _) = row;
        (bits ^ u128::from(*network)).checked_shr(128 - length).unwrap_or_default() == 0
    };
    if let Some((_, _, refused)) = REFUSED_V6_RANGES.iter().find(has) {
        return Err(*refused);
    }
    let segments = address.segments();
    // The interface of ISATAP, whatever network it is in: the rest is an IPv4 address.
    if segments[4] & 0xfdff == 0 && segments[5] == 0x5efe {
        return Err(EMBEDDED_V4);
    }
    // The public internet uses 2000::/3. The rest is unassigned, or not globally reachable.
    if segments[0] & 0xe000 == 0x2000 { Ok(()) } else { Err(RESERVED) }
}

const fn always_refused(why: &'static str) -> AddressRefusal {
    AddressRefusal { reason: why, overridable: false }
}

const fn refused_by_default(why: &'static str) -> AddressRefusal {
    AddressRefusal { reason: why, overridable: true }
}

const UNSPECIFIED: AddressRefusal = always_refused("an unspecified address");
const LOOPBACK: AddressRefusal = refused_by_default("this machine");
const PRIVATE: AddressRefusal = refused_by_default("a private network");
const LINK_LOCAL: AddressRefusal = refused_by_default("a link-local address");
const CARRIER_GRADE_NAT: AddressRefusal = refused_by_default("a carrier-grade NAT network");
const METADATA: AddressRefusal = always_refused("a cloud metadata service, which hands out credentials");
const MULTICAST: AddressRefusal = always_refused("a multicast address");
const DOCUMENTATION: AddressRefusal = refused_by_default("a documentation address");
const BENCHMARK: AddressRefusal = refused_by_default("a benchmarking network");
const RESERVED: AddressRefusal = refused_by_default("a reserved address");
const RELAY: AddressRefusal = always_refused("a relay or translation service");
const EMBEDDED_V4: AddressRefusal = always_refused("an IPv4 address embedded in an IPv6 address");

const fn v4(a: u8, b: u8, c: u8, d: u8, length: u32, refused: AddressRefusal) -> (Ipv4Addr, u32, AddressRefusal) {
    (Ipv4Addr::new(a, b, c, d), length, refused)
}

/// The first row that has an address counts: single addresses stand before the networks that they are in.
const REFUSED_V4_RANGES: &[(Ipv4Addr, u32, AddressRefusal)] = &[
    // Amazon, Google, Microsoft, DigitalOcean, Oracle, Hetzner and others; also as container and pod credentials, and
    // the name and time servers beside them.
    v4(169, 254, 169, 254, 32, METADATA),
    v4(169, 254, 169, 253, 32, METADATA),
    v4(169, 254, 169, 123, 32, METADATA),
    v4(169, 254, 170, 2, 32, METADATA),
    v4(169, 254, 170, 23, 32, METADATA),
    // Tencent and Scaleway.
    v4(169, 254, 0, 23, 32, METADATA),
    v4(169, 254, 42, 42, 32, METADATA),
    // Alibaba, inside a carrier's range.
    v4(100, 100, 100, 200, 32, METADATA),
    // Azure's wire server: a public address that answers to every machine there.
    v4(168, 63, 129, 16, 32, METADATA),
    // Oracle.
    v4(192, 0, 0, 192, 32, METADATA),
    // RFC 1122: "this network". Linux takes 0.0.0.0 for the loopback.
    v4(0, 0, 0, 0, 8, UNSPECIFIED),
    // RFC 1918.
    v4(10, 0, 0, 0, 8, PRIVATE),
    v4(172, 16, 0, 0, 12, PRIVATE),
    v4(192, 168, 0, 0, 16, PRIVATE),
    // RFC 6598.
    v4(100, 64, 0, 0, 10, CARRIER_GRADE_NAT),
    // RFC 1122.
    v4(127, 0, 0, 0, 8, LOOPBACK),
    // RFC 3927.
    v4(169, 254, 0, 0, 16, LINK_LOCAL),
    // RFC 6890: protocol assignments, among them DS-Lite and NAT64 discovery.
    v4(192, 0, 0, 0, 24, RESERVED),
    // RFC 5737.
    v4(192, 0, 2, 0, 24, DOCUMENTATION),
    v4(198, 51, 100, 0, 24, DOCUMENTATION),
    v4(203, 0, 113, 0, 24, DOCUMENTATION),
    // RFC 7535 and RFC 7534: answers for private networks. RFC 7450: multicast relays. RFC 3068: 6to4 relays.
    v4(192, 31, 196, 0, 24, RELAY),
    v4(192, 175, 48, 0, 24, RELAY),
    v4(192, 52, 193, 0, 24, RELAY),
    v4(192, 88, 99, 0, 24, RELAY),
    // RFC 2544.
    v4(198, 18, 0, 0, 15, BENCHMARK),
    // RFC 5771.
    v4(224, 0, 0, 0, 4, MULTICAST),
    // RFC 1112, and the broadcast.
    v4(240, 0, 0, 0, 4, RESERVED),
];

const fn v6(segments: [u16; 8], length: u32, refused: AddressRefusal) -> (Ipv6Addr, u32, AddressRefusal) {
    let [a, b, c, d, e, f, g, h] = segments;
    (Ipv6Addr::new(a, b, c, d, e, f, g, h), length, refused)
}

const REFUSED_V6_RANGES: &[(Ipv6Addr, u32, AddressRefusal)] = &[
    // Amazon's, for machines and for pods; Google's; Scaleway's.
    v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254], 128, METADATA),
    v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23], 128, METADATA),
    v6([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254], 128, METADATA),
    v6([0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42], 128, METADATA),
    v6([0, 0, 0, 0, 0, 0, 0, 0], 128, UNSPECIFIED),
    v6([0, 0, 0, 0, 0, 0, 0, 1], 128, LOOPBACK),
    // RFC 4291: IPv4-mapped and IPv4-compatible. RFC 2765: IPv4-translated.
    v6([0, 0, 0, 0, 0, 0xffff, 0, 0], 96, EMBEDDED_V4),
    v6([0, 0, 0, 0, 0xffff, 0, 0, 0], 96, EMBEDDED_V4),
    v6([0, 0, 0, 0, 0, 0, 0, 0], 96, EMBEDDED_V4),
    // RFC 6052 and RFC 8215: NAT64, the well-known prefix and the one for local use.
    v6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96, EMBEDDED_V4),
    v6([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48, EMBEDDED_V4),
    // RFC 3056: 6to4. RFC 4380: Teredo.
    v6([0x2002, 0, 0, 0, 0, 0, 0, 0], 16, EMBEDDED_V4),
    v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 32, EMBEDDED_V4),
    // RFC 6666: what is to be thrown away.
    v6([0x100, 0, 0, 0, 0, 0, 0, 0], 32, RESERVED),
    // RFC 5180 and RFC 3849, RFC 9637.
    v6([0x2001, 2, 0, 0, 0, 0, 0, 0], 48, BENCHMARK),
    v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32, DOCUMENTATION),
    v6([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20, DOCUMENTATION),
    // RFC 2928: protocol assignments, among them identifiers that are not addresses (ORCHID).
    v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 23, RESERVED),
    // RFC 7534.
    v6([0x2620, 0x4f, 0x8000, 0, 0, 0, 0, 0], 48, RELAY),
    // RFC 4193.
    v6([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7, PRIVATE),
    // RFC 4291, and RFC 3879 for what was once local to a site.
    v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10, LINK_LOCAL),
    v6([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10, PRIVATE),
    v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8, MULTICAST),
];

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::check_public;

    #[track_caller]
    fn assert_refused(address: &str, why: &str) {
        let refused = check_public(address.parse().unwrap()).unwrap_err();
        assert!(refused.reason.contains(why), "{address}: {}", refused.reason);
    }

    #[test]
    fn every_kind_of_address_that_is_not_public_is_refused_for_its_reason() {
        for (address, why) in [
            ("0.0.0.0", "unspecified"),
            ("0.1.2.3", "unspecified"),
            ("10.0.0.5", "private"),
            ("10.255.255.255", "private"),
            ("100.64.0.1", "carrier"),
            ("100.127.255.255", "carrier"),
            ("100.100.100.200", "metadata"),
            ("127.0.0.1", "this machine"),
            ("127.255.255.254", "this machine"),
            ("168.63.129.16", "metadata"),
            ("169.254.0.1", "link"),
            ("169.254.169.254", "metadata"),
            ("169.254.170.2", "metadata"),
            ("172.16.0.1", "private"),
            ("172.31.255.255", "private"),
            ("192.0.0.1", "reserved"),
            ("192.0.0.192", "metadata"),
            ("192.0.2.1", "documentation"),
            ("192.88.99.1", "relay"),
            ("192.168.1.1", "private"),
            ("198.18.0.1", "benchmarking"),
            ("198.19.255.255", "benchmarking"),
            ("198.51.100.7", "documentation"),
            ("203.0.113.7", "documentation"),
            ("224.0.0.1", "multicast"),
            ("239.255.255.255", "multicast"),
            ("240.0.0.1", "reserved"),
            ("255.255.255.255", "reserved"),
            ("::", "unspecified"),
            ("::1", "this machine"),
            ("::2", "IPv4"),
            ("::7f00:1", "IPv4"),
            ("::ffff:127.0.0.1", "IPv4"),
            ("::ffff:8.8.8.8", "IPv4"),
            ("::ffff:0:127.0.0.1", "IPv4"),
            ("64:ff9b::a9fe:a9fe", "IPv4"),
            ("64:ff9b::808:808", "IPv4"),
            ("64:ff9b:1::a9fe:a9fe", "IPv4"),
            ("64:ff9b:1:ffff::1", "IPv4"),
            ("64:ff9b:2::1", "reserved"),
            ("100::1", "reserved"),
            ("100:0:0:1::1", "reserved"),
            ("2001:0:7f00:1::", "IPv4"),
            ("2001:2::1", "benchmarking"),
            ("2001:10::1", "reserved"),
            ("2001:20::1", "reserved"),
            ("2001:1ff::1", "reserved"),
            ("2001:db8::1", "documentation"),
            ("2002:a9fe:a9fe::", "IPv4"),
            ("2002:808:808::1", "IPv4"),
            ("2620:4f:8000::1", "relay"),
            ("3fff::1", "documentation"),
            ("2600::5efe:7f00:1", "IPv4"),
            ("2600::200:5efe:7f00:1", "IPv4"),
            ("4000::1", "reserved"),
            ("5f00::1", "reserved"),
            ("fc00::1", "private"),
            ("fd12:3456::1", "private"),
            ("fd00:ec2::254", "metadata"),
            ("fd20:ce::254", "metadata"),
            ("fe80::1", "link"),
            ("fec0::1", "private"),
            ("ff02::1", "multicast"),
        ] {
            assert_refused(address, why);
        }
    }

    #[test]
    fn addresses_just_outside_the_ranges_are_public() {
        for address in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "168.63.129.15",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "203.0.112.255",
            "203.0.114.0",
            "223.255.255.255",
            "2001:200::1",
            "2001:4860:4860::8888",
            "2003::1",
            "2606:4700::1111",
            "2a00::1",
            "3ffe::1",
        ] {
            assert_eq!(check_public(address.parse().unwrap()), Ok(()), "{address}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn an_address_that_std_calls_private_never_passes(bits: u32) {
            let address = Ipv4Addr::from(bits);
            let private = address.is_private() || address.is_loopback() || address.is_link_local() || address.is_multicast()
                || address.is_broadcast() || address.is_documentation() || address.is_unspecified();
            prop_assert!(!private || check_public(IpAddr::V4(address)).is_err());
            for carrier in [address.to_ipv6_mapped(), address.to_ipv6_compatible()] {
                prop_assert!(check_public(IpAddr::V6(carrier)).is_err());
            }
        }

        #[test]
        fn outside_the_range_of_the_internet_nothing_passes(bits: u128) {
            let address = Ipv6Addr::from(bits);
            prop_assert!(bits >> 125 == 1 || check_public(IpAddr::V6(address)).is_err());
        }
    }
}
