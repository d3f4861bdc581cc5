//! Private hosts and address ranges that the user allows.
//!
//! An entry names one host with its port, or a range of addresses (CIDR). It lifts what keeps web tools on the public
//! internet for exactly that.
//!
//! Not here: addresses that cannot be allowed (`ringfence-net`), and deciding who may reach what is allowed (the policy).

use std::net::{IpAddr, SocketAddr};

use ringfence_net::TargetHost;
use url::Url;

use crate::fetch_target::host_from_url;

/// Hosts outside of the public internet that the user lets web tools reach: a host with its port, or a range of
/// addresses, with or without a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrivateHosts {
    hosts: Vec<(TargetHost, u16)>,
    ranges: Vec<AddressRange>,
}

impl PrivateHosts {
    /// Hosts with their ports.
    pub fn parse(entries: &[String]) -> Result<Self, String> {
        let hosts = entries.iter().map(|entry| parse_host_port(entry)).collect::<Result<_, _>>()?;
        Ok(Self { hosts, ranges: Vec::new() })
    }

    /// Hosts with their ports, and ranges of addresses.
    pub fn parse_with_ranges(entries: &[String]) -> Result<Self, String> {
        let (ranges, hosts): (Vec<String>, Vec<String>) =
            entries.iter().cloned().partition(|entry| entry.contains('/'));
        let ranges = ranges.iter().map(|entry| AddressRange::parse(entry)).collect::<Result<_, _>>()?;
        Ok(Self { ranges, ..Self::parse(&hosts)? })
    }

    /// These, and the host of a URL.
    pub(crate) fn with_url_host(&self, url: &Url) -> Self {
        let one = url.host().map(host_from_url).zip(url.port_or_known_default());
        Self { hosts: self.hosts.iter().cloned().chain(one).collect(), ranges: self.ranges.clone() }
    }

    /// The same with one more address.
    pub(crate) fn with_address(&self, address: SocketAddr) -> Self {
        let one = (TargetHost::Address(address.ip()), address.port());
        Self { hosts: self.hosts.iter().cloned().chain([one]).collect(), ranges: self.ranges.clone() }
    }

    pub(crate) fn contains(&self, host: &TargetHost, port: u16) -> bool {
        self.hosts.iter().any(|(known, at)| known == host && *at == port)
    }

    /// Whether an address is in a range that is allowed at this port.
    pub(crate) fn contains_address(&self, ip: IpAddr, port: u16) -> bool {
        self.ranges.iter().any(|range| range.contains(ip) && range.port.is_none_or(|only| only == port))
    }

    /// Whether it is in a range that names this port, which may then be one that is not used for the web.
    pub(crate) fn allows_port_explicitly(&self, ip: IpAddr, port: u16) -> bool {
        self.ranges.iter().any(|range| range.contains(ip) && range.port == Some(port))
    }
}

fn parse_host_port(entry: &str) -> Result<(TargetHost, u16), String> {
    let wrong = || invalid_entry(entry);
    let (name, port) = entry.rsplit_once(':').ok_or_else(wrong)?;
    let port: u16 = port.parse().ok().filter(|port| *port != 0).ok_or_else(wrong)?;
    let url = Url::parse(&format!("http://{name}/")).map_err(|_| wrong())?;
    let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']'));
    // The URL would not tell of a second port that is the usual one.
    let has_port = name.contains(':') && !name.ends_with(']');
    let host = url.host().filter(|_| plain && !has_port).ok_or_else(wrong)?;
    Ok((host_from_url(host), port))
}

fn invalid_entry(entry: &str) -> String {
    format!(
        "invalid entry `{entry}`: write a host and port, such as `wiki.internal:8080` or `[::1]:8080`, or an address range, such as \
         `10.0.0.0/8`, `10.0.0.0/8:8080`, `fd00::/8` or `[fd00::/8]:8080`"
    )
}

/// Addresses with a common prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AddressRange {
    network: IpAddr,
    prefix_length: u8,
    /// Any that is used for the web, without.
    port: Option<u16>,
}

impl AddressRange {
    /// `10.0.0.0/8`, `10.0.0.0/8:8080`, `fd00::/8`, `[fd00::/8]:8080`.
    fn parse(entry: &str) -> Result<Self, String> {
        let wrong = || invalid_entry(entry);
        let (range, port) = match entry.strip_prefix('[').map(|rest| rest.split_once(']').ok_or_else(wrong)) {
            Some(parts) => {
                let (range, rest) = parts?;
                (range, Some(rest.strip_prefix(':').ok_or_else(wrong)?))
            }
            None if entry.contains("::") || entry.matches(':').count() > 1 => (entry, None),
            None => entry.split_once(':').map_or((entry, None), |(range, port)| (range, Some(port))),
        };
        let number = |text: &str| text.parse::<u16>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
        let port = port.map(|port| number(port).filter(|port| *port != 0).ok_or_else(wrong)).transpose()?;
        let (network, length) = range.split_once('/').ok_or_else(wrong)?;
        let network: IpAddr = network.parse().map_err(|_| wrong())?;
        let most = if network.is_ipv4() { 32 } else { 128 };
        let length = number(length).and_then(|length| u8::try_from(length).ok()).filter(|length| *length <= most);
        let found = Self { network, prefix_length: length.ok_or_else(wrong)?, port };
        match found.network_address() == network {
            true => Ok(found),
            false => Err(format!(
                "`{entry}` has host bits set; write the range as `{}/{}`",
                found.network_address(),
                found.prefix_length
            )),
        }
    }

    fn contains(&self, ip: IpAddr) -> bool {
        ip.is_ipv4() == self.network.is_ipv4()
            && Self { network: ip, ..*self }.network_address() == self.network_address()
    }

    /// The address with zeros behind the prefix.
    fn network_address(&self) -> IpAddr {
        let length = u32::from(self.prefix_length);
        match self.network {
            IpAddr::V4(ip) => {
                let mask = u32::MAX.checked_shl(32 - length).unwrap_or_default();
                IpAddr::V4((ip.to_bits() & mask).into())
            }
            IpAddr::V6(ip) => {
                let mask = u128::MAX.checked_shl(128 - length).unwrap_or_default();
                IpAddr::V6((ip.to_bits() & mask).into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ringfence_net::TargetHost;

    use super::PrivateHosts;
    use crate::fetch_target::FetchTarget;

    fn private(entries: &[&str]) -> PrivateHosts {
        PrivateHosts::parse_with_ranges(&entries.iter().map(|entry| (*entry).to_owned()).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn a_range_is_allowed_for_its_addresses_and_its_port() {
        let allowed = private(&[
            "10.1.0.0/16",
            "127.0.0.0/8:4873",
            "169.254.0.0/16",
            "100.64.0.0/10",
            "198.18.0.0/15",
            "fd00::/8",
            "[fe80::/10]:8080",
            "192.168.7.7/32:5432",
        ]);
        for url in [
            "http://10.1.255.9/",
            "https://10.1.0.0:8443/",
            "http://127.9.9.9:4873/",
            "http://0x7f.1:4873/",
            "http://169.254.7.7/",
            "http://100.100.100.1/",
            "http://198.19.0.1/",
            "http://[fd12::1]:9000/",
            "http://[fe80::1]:8080/",
            "http://192.168.7.7:5432/",
        ] {
            let target = FetchTarget::parse(url, &allowed).unwrap_or_else(|error| panic!("{url}: {error}"));
            assert!(FetchTarget::parse(url, &PrivateHosts::default()).is_err(), "{url}");
            let TargetHost::Address(ip) = *target.host() else { panic!("{url}") };
            target.check_address(ip, &allowed).unwrap();
        }
        for url in [
            "http://10.2.0.1/",
            // A port of another service is not meant by a range without one.
            "http://10.1.0.1:22/",
            "http://127.0.0.1:4874/",
            "http://127.0.0.1/",
            "http://[fe80::1]/",
            "http://192.168.7.6:5432/",
            // Keys of the machine are given out here, whatever range is named.
            "http://169.254.169.254/",
            "http://169.254.170.2/",
            "http://100.100.100.200/",
            "http://[fd00:ec2::254]/",
            "http://[::ffff:10.1.0.1]/",
            "http://0.0.0.0:4873/",
            // Names of private networks are named one by one.
            "http://localhost:4873/",
            "http://wiki.internal/",
        ] {
            assert!(FetchTarget::parse(url, &allowed).is_err(), "{url}");
        }
        // A public name may lead into the range, and nowhere else that is private.
        let public = FetchTarget::parse("https://registry.example.org/", &allowed).unwrap();
        assert!(public.check_address("10.1.2.3".parse().unwrap(), &allowed).is_ok());
        assert!(public.check_address("10.2.2.3".parse().unwrap(), &allowed).is_err());
        assert!(public.check_address("127.0.0.1".parse().unwrap(), &allowed).is_err());
        assert!(public.check_address("169.254.169.254".parse().unwrap(), &allowed).is_err());
    }

    #[test]
    fn a_range_is_read_strictly() {
        for entry in [
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "10.0.0/8",
            "10.0.0.0/8:0",
            "10.0.0.0/8:",
            "10.0.0.0/8:http",
            "wiki/8",
            "fd00::/129",
            "[fd00::/8]",
            "[fd00::]/8",
            "[fd00::/8]8080",
            "/8",
            "10.0.0.0/8/8",
        ] {
            assert!(PrivateHosts::parse_with_ranges(&[entry.to_owned()]).is_err(), "{entry}");
        }
        let error = PrivateHosts::parse_with_ranges(&["10.1.2.3/8".to_owned()]).unwrap_err();
        assert_eq!(error, "`10.1.2.3/8` has host bits set; write the range as `10.0.0.0/8`");
        assert!(PrivateHosts::parse_with_ranges(&["0.0.0.0/0".to_owned(), "::/0".to_owned()]).is_ok());
    }

    #[test]
    fn an_invalid_host_and_port_cannot_be_allowed() {
        for entry in [
            "",
            "wiki",
            "wiki.internal",
            "wiki:0",
            "wiki:80:80",
            "wiki:99999",
            "*.internal:80",
            "http://wiki:80",
            "a@b:80",
            "a/b:80",
            "::1",
        ] {
            assert!(PrivateHosts::parse(&[entry.to_owned()]).is_err(), "{entry}");
            assert!(PrivateHosts::parse_with_ranges(&[entry.to_owned()]).is_err(), "{entry}");
        }
        // A range is not valid where one host is meant.
        assert!(PrivateHosts::parse(&["10.0.0.0/8:80".to_owned()]).is_err());
    }
}
