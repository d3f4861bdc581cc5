//! Addresses of names in a jail: each name that a run asks for has one address of a range for benchmarks (RFC 2544),
//! which leads to nothing but us.
//!
//! A name keeps its address for the run, and no two names share one, so an address tells which name is meant. The number
//! of names is limited. Nothing is looked up outside.
//!
//! Not here: whether a name may be reached. That is decided at each connection.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ringfence_kernel::sync::Mutex;

/// Names of one run.
pub(crate) const MAX_NAMES: usize = 4096;

/// The range that is local to the jail: 198.18.0.0/16. The other half of the range for benchmarks is the jail's own link.
const RANGE: [u8; 2] = [198, 18];

/// Addresses of the last part that are used, which leaves out those that look like a network or a broadcast.
const ADDRESSES_IN_A_ROW: usize = 250;

/// Names of one run with their addresses.
#[derive(Debug, Default)]
pub(crate) struct NameTable(Mutex<NameTableEntries>);

#[derive(Debug, Default)]
struct NameTableEntries {
    /// In the order of their addresses.
    names: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, usize>,
}

impl NameTable {
    /// The address of a name, which is in lower case and without a final dot. `None` where there are too many names.
    pub(crate) fn address_of(&self, name: &str) -> Option<Ipv4Addr> {
        // It is the program itself (RFC 6761).
        if name == "localhost" || name.ends_with(".localhost") {
            return Some(Ipv4Addr::LOCALHOST);
        }
        let mut entries = self.0.lock();
        if let Some(number) = entries.numbers.get(name) {
            return address(*number);
        }
        let number = entries.names.len();
        if number >= MAX_NAMES {
            return None;
        }
        let name: Arc<str> = Arc::from(name);
        entries.names.push(Arc::clone(&name));
        entries.numbers.insert(name, number);
        address(number)
    }

    /// The name that has this address.
    pub(crate) fn name_of(&self, address: IpAddr) -> Option<Arc<str>> {
        let IpAddr::V4(address) = address else { return None };
        let [first, second, row, place] = address.octets();
        let place = usize::from(place).checked_sub(1).filter(|place| *place < ADDRESSES_IN_A_ROW)?;
        let number = usize::from(row).checked_sub(1)? * ADDRESSES_IN_A_ROW + place;
        self.0.lock().names.get(number).filter(|_| [first, second] == RANGE).cloned()
    }
}

fn address(number: usize) -> Option<Ipv4Addr> {
    let [first, second] = RANGE;
    let row = u8::try_from(number / ADDRESSES_IN_A_ROW + 1).ok()?;
    let place = u8::try_from(number % ADDRESSES_IN_A_ROW + 1).ok()?;
    Some(Ipv4Addr::new(first, second, row, place))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::net::{IpAddr, Ipv4Addr};

    use super::{MAX_NAMES, NameTable};

    #[test]
    fn a_name_has_one_address_and_an_address_one_name() {
        let table = NameTable::default();
        let mut seen = HashSet::new();
        for number in 0..MAX_NAMES {
            let name = format!("n{number}.org");
            let address = table.address_of(&name).unwrap();
            assert!(seen.insert(address), "{address}");
            assert_eq!(address.octets()[..2], [198, 18]);
            assert_eq!(table.name_of(IpAddr::V4(address)).as_deref(), Some(name.as_str()));
        }
        assert_eq!(table.address_of("n0.org"), Some(Ipv4Addr::new(198, 18, 1, 1)));
        for number in 0..10_000 {
            assert_eq!(table.address_of(&format!("more{number}.org")), None);
        }
        assert_eq!(table.address_of("n4095.org"), seen.iter().copied().max(), "names that have an address keep it");
    }

    #[test]
    fn an_unused_address_has_no_name() {
        let table = NameTable::default();
        table.address_of("a.org");
        for address in ["198.18.1.2", "198.18.1.0", "198.18.0.1", "198.18.1.251", "198.19.1.1", "127.0.0.1", "::1"] {
            assert_eq!(table.name_of(address.parse().unwrap()), None, "{address}");
        }
        for name in ["localhost", "a.localhost"] {
            assert_eq!(table.address_of(name), Some(Ipv4Addr::LOCALHOST));
        }
    }
}
