//! Ports of one wrapped program: those that its person published at the start, and offers of others.
//!
//! A port at which the program begins to listen is offered: the policy decides whether it may be published, mostly by a
//! question. Ports that the kernel chose by itself, as it does for a program that does not care, are not offered, and only some
//! offers are made.
//!
//! Not here: serving published ports (`published_ports.rs`).

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use ringfence_kernel::{ConnectionAttempt, ConnectionDecider, NET_MOUNT, PolicyAction, PolicyResource, ResourceAccess};

use crate::environment::PROXY_PORT;
use crate::job::JailError;
use crate::program_network::{ListenerTable, ProgramNetwork};
use crate::published_ports::{OpenPort, PublishedPort, PublishedPorts, ReservedPort, reserve_error};

/// Interval of looks for new listeners. A port is offered when it was there at two of them.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Offers of one run.
const MAX_OFFERS: usize = 8;

/// Ports that the kernel gives to programs that name none.
const EPHEMERAL_PORTS: RangeInclusive<u16> = 32768..=60999;

/// Ports outside that are tried for one inside.
const OUTSIDE_CANDIDATES: u16 = 10;

/// The ports of one program.
#[derive(Debug)]
pub(crate) struct ProgramPorts {
    published: PublishedPorts,
    /// Until the program runs.
    open: RefCell<Vec<OpenPort>>,
    offers: RefCell<PortOffers>,
    network: RefCell<Option<(Arc<ProgramNetwork>, ListenerTable)>>,
    approved: (Sender<ReservedPort>, Receiver<ReservedPort>),
}

impl ProgramPorts {
    /// Opens the ports that were published at the start. Ports of this machine that the program reaches are not
    /// offered.
    pub(crate) fn open(published: &[PublishedPort], connected: &[u16]) -> Result<Self, JailError> {
        let open = |port: &PublishedPort| {
            ReservedPort::reserve(*port).and_then(ReservedPort::listen).map_err(|errno| reserve_error(*port, errno))
        };
        let open = published.iter().map(open).collect::<Result<_, _>>()?;
        let inside = published.iter().map(|port| port.inside);
        let known = inside.chain(connected.iter().copied()).chain([PROXY_PORT]).collect();
        Ok(Self {
            published: PublishedPorts::new().map_err(JailError::io("start a thread"))?,
            open: RefCell::new(open),
            offers: RefCell::new(PortOffers { known, last: BTreeSet::new(), looked_at: Instant::now(), made: 0 }),
            network: RefCell::default(),
            approved: channel(),
        })
    }

    /// The program runs in this network.
    pub(crate) fn start(&self, network: ProgramNetwork) {
        let network = Arc::new(network);
        for port in self.open.take() {
            self.published.serve(port, &network);
        }
        // Without the table nothing is offered.
        *self.network.borrow_mut() = network.listener_table().ok().map(|table| (network, table));
    }

    /// Offers new ports, and serves those that were approved. To be called often while the program runs.
    pub(crate) fn poll(&self, connections: &ConnectionDecider<'_>) {
        let network = self.network.borrow();
        let Some((network, table)) = &*network else { return };
        let new = self.offers.borrow_mut().look(table);
        for port in new {
            let (approved, access) = (self.approved.0.clone(), listen_access(port.port));
            let reply = move |decision: Result<(), _>| {
                if decision.is_ok() {
                    // The receiver lives as long as the run.
                    let _ = approved.send(port);
                }
            };
            connections.decide_attempt(ConnectionAttempt::undecided(access, reply));
        }
        for port in self.approved.1.try_iter() {
            // Another program may have taken it meanwhile.
            if let Ok(open) = port.listen() {
                self.published.serve(open, network);
            }
        }
    }
}

/// The access that publishes a port.
pub(crate) fn listen_access(port: PublishedPort) -> ResourceAccess {
    let resource = PolicyResource {
        mount: Arc::from(NET_MOUNT),
        requested_path: port.outside.to_string(),
        display_path: port.to_string(),
        ..PolicyResource::default()
    };
    ResourceAccess { action: PolicyAction::Listen, resource }
}

/// Looks for ports to offer.
#[derive(Debug)]
struct PortOffers {
    /// Ports inside that were offered, or need no offer.
    known: BTreeSet<u16>,
    /// Ports at the last look.
    last: BTreeSet<u16>,
    looked_at: Instant,
    made: usize,
}

impl PortOffers {
    /// Ports to offer now, each with a free one outside.
    fn look(&mut self, table: &ListenerTable) -> Vec<ReservedPort> {
        if self.looked_at.elapsed() < LOOK_INTERVAL || self.made >= MAX_OFFERS {
            return Vec::new();
        }
        self.looked_at = Instant::now();
        let listeners = table.read().unwrap_or_default();
        self.select(&listeners).into_iter().filter_map(reserve_near).collect()
    }

    fn select(&mut self, listeners: &BTreeSet<SocketAddr>) -> Vec<u16> {
        let reachable = listeners.iter().filter(|address| address.ip().is_loopback() || address.ip().is_unspecified());
        let ports: BTreeSet<u16> = reachable.map(SocketAddr::port).collect();
        let stays = |port: &&u16| self.last.contains(port) && !self.known.contains(port);
        let fits = |port: &&u16| stays(port) && !EPHEMERAL_PORTS.contains(*port);
        let new: Vec<u16> = ports.iter().filter(fits).take(MAX_OFFERS - self.made).copied().collect();
        self.made += new.len();
        self.known.extend(&new);
        self.last = ports;
        new
    }
}

/// The same port of the loopback address, or one near it that is free.
fn reserve_near(inside: u16) -> Option<ReservedPort> {
    let first = if inside < 1024 { 8000 + inside % 1000 } else { inside.saturating_add(1) };
    let near =
        (first..=first.saturating_add(OUTSIDE_CANDIDATES)).map(|outside| PublishedPort::on_loopback(outside, inside));
    let mut candidates = std::iter::once(PublishedPort::on_loopback(inside, inside)).chain(near);
    candidates.find_map(|port| ReservedPort::reserve(port).ok())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::TcpListener;
    use std::time::Instant;

    use super::{MAX_OFFERS, PortOffers, reserve_near};

    fn offers(known: &[u16]) -> PortOffers {
        let known = known.iter().copied().collect();
        PortOffers { known, last: BTreeSet::new(), looked_at: Instant::now(), made: 0 }
    }

    #[test]
    fn a_port_is_offered_once_when_it_stays() {
        let mut offers = offers(&[3128]);
        let listeners = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        let all = listeners(&["127.0.0.1:3128", "[::1]:5173", "0.0.0.0:8000", "127.0.0.1:40000", "198.19.0.2:9000"]);
        assert_eq!(offers.select(&listeners(&["127.0.0.1:7000"])), Vec::<u16>::new());
        assert_eq!(offers.select(&all), Vec::<u16>::new());
        assert_eq!(offers.select(&all), [5173, 8000]);
        assert_eq!(offers.select(&all), Vec::<u16>::new());
    }

    #[test]
    fn the_number_of_offers_is_limited() {
        let mut offers = offers(&[]);
        let listeners = (1..=50).map(|port| format!("127.0.0.1:{}", 1000 + port).parse().unwrap()).collect();
        assert_eq!(offers.select(&listeners), Vec::<u16>::new());
        assert_eq!(offers.select(&listeners).len(), MAX_OFFERS);
        assert_eq!(offers.select(&listeners), Vec::<u16>::new());
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "another program of this machine")]
    fn a_port_that_is_taken_outside_is_offered_at_another_one() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let inside = taken.local_addr().unwrap().port();
        let reserved = reserve_near(inside).unwrap();
        assert_eq!(reserved.port.inside, inside);
        assert_ne!(reserved.port.outside.port(), inside);
    }
}
