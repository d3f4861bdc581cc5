//! From a process of ours to the program, through every wall.
//!
//! The order of the steps is the promise: what a later step takes away, no earlier one needs, the filter of system calls
//! comes last, and the program starts only when all of them are done. A step that fails ends the process. What is the same
//! for every program is done before there is an order.
//!
//! Not here: what the walls are made of (`ruleset.rs`, `filter.rs`, `limits.rs`).

use std::convert::Infallible;
use std::ffi::CString;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::process::{chdir, setrlimit, setsid, umask};
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, UnshareFlags, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_capabilities_secure_bits, set_no_new_privs,
    unshare_unsafe,
};

use crate::bwrap::Backend;
use crate::cargo_home::link_cargo_home;
use crate::claim::WORKSPACE;
use crate::environment::CARGO_HOME;
use crate::filter::Filters;
use crate::limits::MemoryKeeper;
use crate::message::{LONGEST, Order, Reply, Step, Trouble};
use crate::ruleset::{ConfineError, Confined, Rules, rules};
use crate::sys;

/// Where the program may write, besides the workspace, which is not there yet when this is said.
const WRITABLE: [&str; 2] = ["/tmp", "/dev/shm"];

/// Does what can be done ahead, waits for an order on `socket`, and becomes its program, or says there why not.
pub(crate) fn live(socket: &OwnedFd, doors: &[OwnedFd], filter: &Filters, backend: Backend) -> ! {
    let entered =
        doors.iter().try_for_each(|door| rustix::io::write(door, b"0").map(drop)).and_then(|()| match backend {
            Backend::Native => own_groups(),
            // It made that namespace too.
            Backend::Bwrap => Ok(()),
        });
    let Ok(()) = sys::keep_only(&[socket.as_fd()]) else { sys::leave() };
    let socket = sys::kept(0);
    let entered = entered.map_err(|errno| Refused::from(Step::Cgroup.failed()(errno)));
    let reply = match entered.and_then(|()| prepare(backend)).and_then(|rules| obey(&socket, rules, filter, backend)) {
        Ok(never) => match never {},
        Err(Refused::NoProgram) => Reply::NoProgram,
        Err(Refused::Trouble(trouble)) => Reply::Failed(trouble),
    };
    let _ = sys::send(socket.as_fd(), &reply.encode(), &[]);
    sys::leave()
}

/// From here on the group that this process is in is the topmost that it sees. What the group is called says which process
/// of the host made it.
fn own_groups() -> Result<(), Errno> {
    // SAFETY: this process has one thread, and its descriptors stay its own.
    unsafe { unshare_unsafe(UnshareFlags::NEWCGROUP) }
}

enum Refused {
    NoProgram,
    Trouble(Trouble),
}

impl From<Trouble> for Refused {
    fn from(trouble: Trouble) -> Self {
        Self::Trouble(trouble)
    }
}

/// What does not depend on the program: a session of its own, no input yet, and nothing to be gained by a capability.
fn prepare(backend: Backend) -> Result<Rules, Refused> {
    let failed = || Step::Start.failed::<Errno>();
    setsid().map_err(failed())?;
    sys::unblock_signals();
    umask(Mode::from_raw_mode(0o022));
    let nothing = open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(failed())?;
    sys::put_at(nothing.as_fd(), 0).map_err(failed())?;
    match backend {
        Backend::Native => bound_capabilities().map_err(Step::Capabilities.failed())?,
        // It left no capability, not even the one to say so.
        Backend::Bwrap => has_none().map_err(Step::Capabilities.failed())?,
    }
    set_no_new_privs(true).map_err(Step::Capabilities.failed())?;
    Ok(rules(&WRITABLE.map(Path::new)).map_err(no_rules)?)
}

fn obey(socket: &OwnedFd, rules: Rules, filter: &Filters, backend: Backend) -> Result<Infallible, Refused> {
    let failed = || Step::Order.failed::<Errno>();
    let mut buffer = [0; LONGEST];
    let (_, descriptors) = sys::receive(socket.as_fd(), &mut buffer).map_err(failed())?;
    let [text, output, errors, input @ ..] = &descriptors[..] else { return Err(failed()(Errno::BADMSG).into()) };
    let order = Order::read(text).map_err(failed())?;
    sys::put_at(output.as_fd(), 1).map_err(failed())?;
    sys::put_at(errors.as_fd(), 2).map_err(failed())?;
    if let [input] = input {
        sys::put_at(input.as_fd(), 0).map_err(failed())?;
    }
    // From here on there is nothing open but the streams, and the socket that closes with the change of programs.
    drop(descriptors);
    let rules = match backend {
        Backend::Native => rules.and_writable(&[Path::new(WORKSPACE)]).map_err(no_rules)?,
        Backend::Bwrap => rules,
    };
    lock_down(&order, socket, rules, filter)
}

fn no_rules(_: ConfineError) -> Trouble {
    Step::Landlock.failed()(Errno::PERM)
}

fn lock_down(order: &Order, socket: &OwnedFd, rules: Rules, filter: &Filters) -> Result<Infallible, Refused> {
    let program = Program::from(order)?;
    chdir(WORKSPACE).map_err(Step::Start.failed())?;
    if !order.cargo_home.as_os_str().is_empty() {
        link_cargo_home(&order.cargo_home, Path::new(CARGO_HOME));
    }
    let keeper = if order.memory_kept { MemoryKeeper::Cgroup } else { MemoryKeeper::Rlimit };
    for (resource, limit) in order.limits.rlimits(keeper) {
        setrlimit(resource, limit).map_err(Step::Limits.failed())?;
    }
    if rules.confine().map_err(no_rules)? == Confined::Not {
        return Err(Step::Landlock.failed()(Errno::NOSYS).into());
    }
    drop_capabilities().map_err(Step::Capabilities.failed())?;
    let requests = filter.install(keeper).map_err(|_| Step::Seccomp.failed()(Errno::PERM))?;

    let (started, requests) = (Reply::Started { proc: true }, requests.as_slice());
    sys::send(socket.as_fd(), &started.encode(), &sys::borrowed(requests)).map_err(Step::Start.failed())?;
    Err(program.execute())
}

/// No program that is started from here on gains a capability, and there is no way to change that.
fn bound_capabilities() -> Result<(), Errno> {
    let bits = CapabilitiesSecureBits::NO_ROOT
        | CapabilitiesSecureBits::NO_ROOT_LOCKED
        | CapabilitiesSecureBits::NO_SETUID_FIXUP
        | CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED
        | CapabilitiesSecureBits::KEEP_CAPS_LOCKED
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED;
    set_capabilities_secure_bits(bits)?;
    clear_ambient_capability_set()?;
    for number in 0..64 {
        match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)) {
            Ok(()) => {}
            // Past the last one that this kernel knows.
            Err(Errno::INVAL) => break,
            Err(other) => return Err(other),
        }
    }
    Ok(())
}

/// That there is no capability to be lost, and none to be gained.
fn has_none() -> Result<(), Errno> {
    let CapabilitySets { effective, permitted, inheritable } = capabilities(None)?;
    let none = effective.union(permitted).union(inheritable).is_empty();
    if none { clear_ambient_capability_set() } else { Err(Errno::PERM) }
}

/// No capability, now and for good.
pub(crate) fn drop_capabilities() -> Result<(), Errno> {
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
}

/// What is to be executed, in the kernel's form, so that nothing is left to do behind the walls.
struct Program {
    /// Where it may be, in order.
    places: Vec<CString>,
    argv: Vec<CString>,
    env: Vec<CString>,
}

impl Program {
    fn from(order: &Order) -> Result<Self, Refused> {
        let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| Step::Order.failed()(Errno::INVAL));
        let texts = |list: &[std::ffi::OsString]| list.iter().map(|one| text(one.as_bytes())).collect();
        let (argv, env): (Result<Vec<_>, _>, Result<Vec<_>, _>) = (texts(&order.argv), texts(&order.env));
        let name = order.argv.first().map(|name| name.as_bytes()).unwrap_or_default();
        if name.is_empty() {
            return Err(Refused::NoProgram);
        }
        let path = order.env.iter().find_map(|one| one.as_bytes().strip_prefix(b"PATH=")).unwrap_or_default();
        let places = if name.contains(&b'/') {
            vec![text(name)?]
        } else {
            let directories = path.split(|&byte| byte == b':').filter(|directory| directory.starts_with(b"/"));
            directories.map(|directory| text(&[directory, b"/", name].concat())).collect::<Result<_, _>>()?
        };
        Ok(Self { places, argv: argv?, env: env? })
    }

    /// Comes back only with the reason why it could not.
    fn execute(&self) -> Refused {
        for place in &self.places {
            match sys::execute(place, &self.argv, &self.env) {
                Errno::NOENT | Errno::NOTDIR | Errno::ACCESS => {}
                other => return Refused::Trouble(Step::Start.failed()(other)),
            }
        }
        Refused::NoProgram
    }
}
