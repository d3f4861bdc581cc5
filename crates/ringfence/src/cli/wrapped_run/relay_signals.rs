//! Signals of a wrapped run: window changes, continuation, signals that are forwarded to the program, and the checkpoint key.
//!
//! While this runs, a signal that would end us reaches the program instead, and the terminal is restored in order. A second one
//! soon after it ends the jail.
//!
//! Not here: delivering a signal in the jail (`ringfence-sandbox`), and signals of other commands (`process/signals.rs`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ringfence_kernel::sync::Mutex;
use ringfence_sandbox::SignalSource;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Signal;
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// A second signal within this time ends the jail.
const SECOND_SIGNAL: Duration = Duration::from_secs(3);

/// `^]` as terminals send it: plain, and with the two protocols that name keys.
const CHECKPOINT_KEY: [&[u8]; 3] = [b"\x1d", b"\x1b[93;5u", b"\x1b[27;5;93~"];

/// Signals for the program, in their order.
#[derive(Debug, Default)]
pub(crate) struct SignalForwarder {
    pending: Vec<Signal>,
    last: Option<Instant>,
    is_ending: bool,
}

impl SignalForwarder {
    /// Takes a signal that we got.
    pub(crate) fn push(&mut self, signal: Signal, now: Instant) {
        if !self.pending.contains(&signal) {
            self.pending.push(signal);
        }
        // A terminal that closes sends several of them.
        if signal == Signal::HUP {
            return;
        }
        self.is_ending |= self.last.is_some_and(|last| now.saturating_duration_since(last) <= SECOND_SIGNAL);
        self.last = Some(now);
    }

    /// The next one to be delivered.
    pub(crate) fn pop(&mut self) -> Option<i32> {
        (!self.pending.is_empty()).then(|| self.pending.remove(0).as_raw())
    }

    /// Whether the jail is to be ended.
    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending
    }
}

/// Signals that came and were not handled yet. Its descriptor is readable when there is something to look at.
#[derive(Debug)]
pub(crate) struct SignalInbox {
    pub(crate) forwarder: Mutex<SignalForwarder>,
    is_resized: AtomicBool,
    is_continued: AtomicBool,
    /// Whether the checkpoint key is taken, and whether it was pressed.
    takes_checkpoint_key: AtomicBool,
    is_checkpoint_wanted: AtomicBool,
    wake: OwnedFd,
    woken: OwnedFd,
}

impl SignalInbox {
    pub(crate) fn new() -> io::Result<Self> {
        let (woken, wake) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Self {
            forwarder: Mutex::default(),
            is_resized: AtomicBool::new(false),
            is_continued: AtomicBool::new(false),
            takes_checkpoint_key: AtomicBool::new(false),
            is_checkpoint_wanted: AtomicBool::new(false),
            wake,
            woken,
        })
    }

    /// Wakes the reader.
    pub(crate) fn wake(&self) {
        // A full pipe wakes it too.
        let _ = rustix::io::write(&self.wake, &[0]);
    }

    /// Makes the descriptor wait for the next wake-up.
    pub(crate) fn clear_wakes(&self) {
        let mut bytes = [0; 64];
        while rustix::io::read(&self.woken, &mut bytes).is_ok_and(|count| count > 0) {}
    }

    /// Whether the window changed since the last call.
    pub(crate) fn take_resized(&self) -> bool {
        self.is_resized.swap(false, Ordering::AcqRel)
    }

    /// Takes the checkpoint key out of the input from now on.
    pub(crate) fn take_checkpoint_keys(&self) {
        self.takes_checkpoint_key.store(true, Ordering::Release);
    }

    /// Whether this input is the checkpoint key, which then is not for the program.
    pub(crate) fn takes_key(&self, input: &[u8]) -> bool {
        CHECKPOINT_KEY.contains(&input) && self.request_checkpoint()
    }

    /// Wants a checkpoint, as the key does. False where none are made.
    pub(crate) fn request_checkpoint(&self) -> bool {
        let takes = self.takes_checkpoint_key.load(Ordering::Acquire);
        self.is_checkpoint_wanted.fetch_or(takes, Ordering::AcqRel);
        takes
    }

    /// Whether the checkpoint key was pressed since the last call.
    pub(crate) fn take_checkpoint_request(&self) -> bool {
        self.is_checkpoint_wanted.swap(false, Ordering::AcqRel)
    }

    /// Whether we were continued since the last call.
    pub(crate) fn take_continued(&self) -> bool {
        self.is_continued.swap(false, Ordering::AcqRel)
    }
}

impl SignalSource for SignalInbox {
    fn next_signal(&self) -> Option<i32> {
        self.forwarder.lock().pop()
    }

    fn should_end(&self) -> bool {
        self.forwarder.lock().is_ending()
    }
}

impl AsFd for SignalInbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.woken.as_fd()
    }
}

/// A thread that fills an inbox. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct SignalThread {
    over: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl SignalThread {
    /// From here on, these signals do nothing but fill the inbox.
    pub(crate) fn start(inbox: Arc<SignalInbox>) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut streams = {
            let _entered = runtime.enter();
            SignalStreams::install()?
        };
        let over = CancellationToken::new();
        let ended = over.clone();
        let receive = async move {
            loop {
                tokio::select! {
                    () = ended.cancelled() => return,
                    signal = streams.next() => {
                        match signal {
                            Signal::WINCH => inbox.is_resized.store(true, Ordering::Release),
                            Signal::CONT => inbox.is_continued.store(true, Ordering::Release),
                            signal => inbox.forwarder.lock().push(signal, Instant::now()),
                        }
                        inbox.wake();
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("signals".to_owned()).spawn(move || runtime.block_on(receive))?;
        Ok(Self { over, thread: Some(thread) })
    }
}

impl Drop for SignalThread {
    fn drop(&mut self) {
        self.over.cancel();
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported already.
            let _ = thread.join();
        }
    }
}

struct SignalStreams {
    resized: SignalStream,
    continued: SignalStream,
    interrupt: SignalStream,
    quit: SignalStream,
    hang_up: SignalStream,
    terminate: SignalStream,
}

impl SignalStreams {
    fn install() -> io::Result<Self> {
        Ok(Self {
            resized: signal(SignalKind::window_change())?,
            continued: signal(SignalKind::from_raw(Signal::CONT.as_raw()))?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            hang_up: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.resized.recv() => Signal::WINCH,
            _ = self.continued.recv() => Signal::CONT,
            _ = self.interrupt.recv() => Signal::INT,
            _ = self.quit.recv() => Signal::QUIT,
            _ = self.hang_up.recv() => Signal::HUP,
            _ = self.terminate.recv() => Signal::TERM,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use rustix::process::Signal;

    use super::{SignalForwarder, SignalInbox};

    #[test]
    fn the_checkpoint_key_is_taken_where_it_is_wanted_and_alone() {
        let inbox = SignalInbox::new().unwrap();
        assert!(!inbox.takes_key(b"\x1d"));
        inbox.take_checkpoint_keys();
        for (input, is_key) in [
            (&b"\x1d"[..], true),
            (b"\x1b[93;5u", true),
            (b"\x1b[27;5;93~", true),
            (b"a", false),
            (b"\x1d\x1d", false),
            (b"pasted \x1d", false),
        ] {
            assert_eq!((inbox.takes_key(input), inbox.take_checkpoint_request()), (is_key, is_key), "{input:?}");
        }
    }

    #[test]
    fn a_second_signal_soon_after_the_first_ends_the_jail() {
        let now = Instant::now();
        let after = |first: Signal, second: Signal, seconds: u64| {
            let mut forwarder = SignalForwarder::default();
            forwarder.push(first, now);
            assert!(!forwarder.is_ending());
            forwarder.push(second, now + Duration::from_secs(seconds));
            forwarder.is_ending()
        };
        assert!(after(Signal::TERM, Signal::TERM, 3));
        assert!(after(Signal::QUIT, Signal::TERM, 1));
        assert!(!after(Signal::TERM, Signal::TERM, 4));
        assert!(!after(Signal::HUP, Signal::HUP, 0));
        assert!(!after(Signal::HUP, Signal::TERM, 0));
    }

    #[test]
    fn signals_are_delivered_once_in_their_order() {
        let (mut forwarder, now) = (SignalForwarder::default(), Instant::now());
        for signal in [Signal::HUP, Signal::TERM, Signal::HUP] {
            forwarder.push(signal, now);
        }
        assert_eq!([forwarder.pop(), forwarder.pop(), forwarder.pop()], [Some(1), Some(15), None]);
    }
}
