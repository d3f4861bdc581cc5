//! FUSE file system in memory that stops answering on demand.
//!
//! A request of the kind that is held is put aside with everything needed to answer it; the thread that took it
//! goes on to the next. So the caller in the kernel waits, and no other.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, SystemTime};

use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use crate::patience::PATIENCE;
use crate::requirement::{Requirement, skip_without};

/// Nothing is remembered by the kernel, so that everything is asked for.
const TTL: Duration = Duration::ZERO;

const ROOT: u64 = 1;

/// Operations that can be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FuseOp {
    Lookup,
    Getattr,
    Open,
    Opendir,
    Read,
    Create,
    Write,
    Fsync,
    Rename,
    Mkdir,
}

/// Lets requests through, or puts them aside.
#[derive(Default)]
pub struct FuseGate {
    state: Mutex<FuseGateState>,
    changed: Condvar,
}

#[derive(Default)]
struct FuseGateState {
    held: Option<FuseOp>,
    /// Number of requests that are answered first.
    pass_first: usize,
    deferred: Vec<Box<dyn FnOnce() + Send>>,
    /// Nothing more comes to wait.
    is_given_up: bool,
    /// Every request that was let through or put aside, in order.
    seen: Vec<FuseOp>,
}

impl fmt::Debug for FuseGate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("FuseGate").finish_non_exhaustive()
    }
}

impl FuseGate {
    /// From now on requests of this kind wait, after `spare` more.
    pub fn hold_after(&self, spare: usize, op: FuseOp) {
        let mut state = self.state.lock().unwrap();
        state.held = Some(op);
        state.pass_first = spare;
        state.is_given_up = false;
    }

    /// From now on requests of this kind wait.
    pub fn hold(&self, op: FuseOp) {
        self.hold_after(0, op);
    }

    /// Waits until `count` requests wait.
    pub fn wait_until_held(&self, count: usize) {
        self.wait_while(|state| state.deferred.len() < count);
    }

    /// Waits until one waits, or until `give_up`. Whether one waits then.
    pub fn waits_or_gives_up(&self) -> bool {
        self.wait_while(|state| state.deferred.is_empty() && !state.is_given_up);
        !self.state.lock().unwrap().deferred.is_empty()
    }

    fn wait_while(&self, is_short: impl Fn(&FuseGateState) -> bool) {
        let state = self.state.lock().unwrap();
        let (state, late) = self.changed.wait_timeout_while(state, PATIENCE, |state| is_short(state)).unwrap();
        drop(state);
        assert!(!late.timed_out(), "nothing came to wait at the gate");
    }

    /// Says that no further request comes, until the gate is held again.
    pub fn give_up(&self) {
        self.state.lock().unwrap().is_given_up = true;
        self.changed.notify_all();
    }

    /// Answers everything that waits, and holds nothing any more.
    pub fn release(&self) {
        let aside = {
            let mut state = self.state.lock().unwrap();
            state.held = None;
            std::mem::take(&mut state.deferred)
        };
        aside.into_iter().for_each(|answer| answer());
    }

    /// How many requests of a kind there were.
    pub fn count(&self, op: FuseOp) -> usize {
        self.state.lock().unwrap().seen.iter().filter(|seen| **seen == op).count()
    }

    fn admit(&self, op: FuseOp, answer: impl FnOnce() + Send + 'static) {
        let mut state = self.state.lock().unwrap();
        state.seen.push(op);
        if state.held == Some(op) {
            if state.pass_first == 0 {
                state.deferred.push(Box::new(answer));
                self.changed.notify_all();
                return;
            }
            state.pass_first -= 1;
        }
        drop(state);
        answer();
    }
}

/// The file system, mounted. Dropped, it answers everything and goes away.
#[derive(Debug)]
pub struct StallingFs {
    /// Lets requests through, or holds them.
    pub gate: Arc<FuseGate>,
    at: PathBuf,
    session: Option<BackgroundSession>,
}

impl StallingFs {
    /// Mounts it, or skips the test that needs it.
    ///
    /// # Panics
    /// If it cannot be mounted though this is root and there is `/dev/fuse`.
    #[must_use]
    pub fn mount(at: &Path) -> Option<Self> {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            skip_without(Requirement::Fuse, "only root mounts a file system of its own, through `/dev/fuse`");
            return None;
        }
        let gate = Arc::new(FuseGate::default());
        let slow = MemoryFs { gate: Arc::clone(&gate), nodes: Arc::new(Mutex::new(MemoryFsNodes::new())) };
        let mut config = Config::default();
        config.mount_options.extend([MountOption::FSName("slow".to_owned()), MountOption::DefaultPermissions]);
        let session = fuser::spawn_mount(slow, at, &config).unwrap();
        Some(Self { gate, at: at.to_owned(), session: Some(session) })
    }
}

impl Drop for StallingFs {
    fn drop(&mut self) {
        self.gate.release();
        // Descriptors of it may still be open, so it is detached first and ends with the last of them.
        let _ = rustix::mount::unmount(&self.at, rustix::mount::UnmountFlags::DETACH);
        drop(self.session.take());
    }
}

#[derive(Clone)]
struct MemoryFs {
    gate: Arc<FuseGate>,
    nodes: Arc<Mutex<MemoryFsNodes>>,
}

/// Every file and directory there ever was, by its number.
struct MemoryFsNodes(BTreeMap<u64, MemoryFsNode>);

struct MemoryFsNode {
    kind: MemoryFsNodeKind,
    mode: u16,
    links: u32,
    modified: SystemTime,
}

enum MemoryFsNodeKind {
    File(Vec<u8>),
    Directory(BTreeMap<OsString, u64>),
}

impl MemoryFsNodes {
    fn new() -> Self {
        let root = MemoryFsNode::new(MemoryFsNodeKind::Directory(BTreeMap::new()), 0o755);
        Self(BTreeMap::from([(ROOT, root)]))
    }

    fn names(&mut self, directory: u64) -> Result<&mut BTreeMap<OsString, u64>, Errno> {
        match self.0.get_mut(&directory) {
            Some(MemoryFsNode { kind: MemoryFsNodeKind::Directory(names), .. }) => Ok(names),
            Some(_) => Err(Errno::ENOTDIR),
            None => Err(Errno::ENOENT),
        }
    }

    fn content(&mut self, file: u64) -> Result<&mut Vec<u8>, Errno> {
        match self.0.get_mut(&file) {
            Some(MemoryFsNode { kind: MemoryFsNodeKind::File(content), .. }) => Ok(content),
            Some(_) => Err(Errno::EISDIR),
            None => Err(Errno::ENOENT),
        }
    }

    fn find(&mut self, directory: u64, name: &OsStr) -> Result<u64, Errno> {
        self.names(directory)?.get(name).copied().ok_or(Errno::ENOENT)
    }

    fn add(&mut self, directory: u64, name: OsString, node: MemoryFsNode) -> Result<u64, Errno> {
        if self.names(directory)?.contains_key(&name) {
            return Err(Errno::EEXIST);
        }
        let number = self.0.keys().max().unwrap_or(&ROOT) + 1;
        self.0.insert(number, node);
        self.names(directory)?.insert(name, number);
        Ok(number)
    }

    fn remove(&mut self, directory: u64, name: &OsStr) -> Result<(), Errno> {
        let number = self.find(directory, name)?;
        if self.names(number).is_ok_and(|names| !names.is_empty()) {
            return Err(Errno::ENOTEMPTY);
        }
        self.names(directory)?.remove(name);
        if let Some(node) = self.0.get_mut(&number) {
            node.links = 0;
        }
        Ok(())
    }

    fn rename(&mut self, from: (u64, OsString), to: (u64, OsString), how: RenameFlags) -> Result<(), Errno> {
        let moved = self.find(from.0, &from.1)?;
        let target = self.find(to.0, &to.1).ok();
        match target {
            Some(target) if how.contains(RenameFlags::RENAME_EXCHANGE) => {
                self.names(from.0)?.insert(from.1, target);
            }
            None if how.contains(RenameFlags::RENAME_EXCHANGE) => return Err(Errno::ENOENT),
            Some(_) if how.contains(RenameFlags::RENAME_NOREPLACE) => return Err(Errno::EEXIST),
            _ => {
                self.names(from.0)?.remove(&from.1);
            }
        }
        self.names(to.0)?.insert(to.1, moved);
        Ok(())
    }

    fn attributes(&self, number: u64) -> Result<FileAttr, Errno> {
        let node = self.0.get(&number).ok_or(Errno::ENOENT)?;
        let (kind, size) = match &node.kind {
            MemoryFsNodeKind::File(content) => (FileType::RegularFile, content.len() as u64),
            MemoryFsNodeKind::Directory(_) => (FileType::Directory, 0),
        };
        let (ino, perm, nlink) = (INodeNo(number), node.mode, node.links);
        let [atime, mtime, ctime, crtime] = [node.modified; 4];
        let (blocks, uid, gid, rdev, flags, blksize) = (0, 0, 0, 0, 0, 4096);
        Ok(FileAttr {
            ino,
            size,
            blocks,
            atime,
            mtime,
            ctime,
            crtime,
            kind,
            perm,
            nlink,
            uid,
            gid,
            rdev,
            blksize,
            flags,
        })
    }
}

impl MemoryFsNode {
    fn new(kind: MemoryFsNodeKind, mode: u32) -> Self {
        let mode = u16::try_from(mode & 0o7777).unwrap();
        Self { kind, mode, links: 1, modified: SystemTime::now() }
    }
}

impl MemoryFs {
    /// Does something to the nodes and answers, now or when the gate lets it.
    fn answer<T>(
        &self,
        op: FuseOp,
        act: impl FnOnce(&mut MemoryFsNodes) -> Result<T, Errno> + Send + 'static,
        say: impl FnOnce(Result<T, Errno>) + Send + 'static,
    ) {
        let nodes = Arc::clone(&self.nodes);
        self.gate.admit(op, move || {
            let result = act(&mut nodes.lock().unwrap());
            say(result);
        });
    }
}

/// An answer without contents.
fn empty(reply: ReplyEmpty) -> impl FnOnce(Result<(), Errno>) + Send {
    |result| match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

fn entry(reply: ReplyEntry) -> impl FnOnce(Result<FileAttr, Errno>) + Send {
    |result| match result {
        Ok(attributes) => reply.entry(&TTL, &attributes, Generation(0)),
        Err(errno) => reply.error(errno),
    }
}

impl Filesystem for MemoryFs {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.to_owned();
        let act = move |nodes: &mut MemoryFsNodes| {
            let found = nodes.find(parent.0, &name)?;
            nodes.attributes(found)
        };
        self.answer(FuseOp::Lookup, act, entry(reply));
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.answer(
            FuseOp::Getattr,
            move |nodes| nodes.attributes(ino.0),
            |result| match result {
                Ok(attributes) => reply.attr(&TTL, &attributes),
                Err(errno) => reply.error(errno),
            },
        );
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut nodes = self.nodes.lock().unwrap();
        if let (Some(size), Ok(content)) = (size, nodes.content(ino.0)) {
            content.resize(usize::try_from(size).unwrap(), 0);
        }
        if let (Some(mode), Some(node)) = (mode, nodes.0.get_mut(&ino.0)) {
            node.mode = u16::try_from(mode & 0o7777).unwrap();
        }
        match nodes.attributes(ino.0) {
            Ok(attributes) => reply.attr(&TTL, &attributes),
            Err(errno) => reply.error(errno),
        }
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let name = name.to_owned();
        let act = move |nodes: &mut MemoryFsNodes| {
            let made = nodes.add(
                parent.0,
                name,
                MemoryFsNode::new(MemoryFsNodeKind::Directory(BTreeMap::new()), mode & !umask),
            )?;
            nodes.attributes(made)
        };
        self.answer(FuseOp::Mkdir, act, entry(reply));
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(reply)(self.nodes.lock().unwrap().remove(parent.0, name));
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(reply)(self.nodes.lock().unwrap().remove(parent.0, name));
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (from, to) = ((parent.0, name.to_owned()), (newparent.0, newname.to_owned()));
        self.answer(FuseOp::Rename, move |nodes| nodes.rename(from, to, flags), empty(reply));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // Past the kernel's own memory, so that each read and write comes here.
        self.answer(FuseOp::Open, |_| Ok(()), |_| reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO));
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.answer(FuseOp::Opendir, |_| Ok(()), |_| reply.opened(FileHandle(0), FopenFlags::empty()));
    }

    fn create(&self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, _: i32, reply: ReplyCreate) {
        let name = name.to_owned();
        let act = move |nodes: &mut MemoryFsNodes| {
            let made =
                nodes.add(parent.0, name, MemoryFsNode::new(MemoryFsNodeKind::File(Vec::new()), mode & !umask))?;
            nodes.attributes(made)
        };
        self.answer(FuseOp::Create, act, |result| match result {
            Ok(made) => reply.created(&TTL, &made, Generation(0), FileHandle(0), FopenFlags::FOPEN_DIRECT_IO),
            Err(errno) => reply.error(errno),
        });
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let act = move |nodes: &mut MemoryFsNodes| {
            let content = nodes.content(ino.0)?;
            let start = usize::try_from(offset).unwrap().min(content.len());
            let end = (start + size as usize).min(content.len());
            Ok(content[start..end].to_vec())
        };
        self.answer(FuseOp::Read, act, |result| match result {
            Ok(part) => reply.data(&part),
            Err(errno) => reply.error(errno),
        });
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let data = data.to_vec();
        let act = move |nodes: &mut MemoryFsNodes| {
            let content = nodes.content(ino.0)?;
            let start = usize::try_from(offset).unwrap();
            content.resize(content.len().max(start + data.len()), 0);
            content[start..start + data.len()].copy_from_slice(&data);
            Ok(u32::try_from(data.len()).unwrap())
        };
        self.answer(FuseOp::Write, act, |result| match result {
            Ok(length) => reply.written(length),
            Err(errno) => reply.error(errno),
        });
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.answer(FuseOp::Fsync, |_| Ok(()), empty(reply));
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let mut nodes = self.nodes.lock().unwrap();
        let names = match nodes.names(ino.0) {
            Ok(names) => names.clone(),
            Err(errno) => return reply.error(errno),
        };
        let dots = [(OsString::from("."), ino.0), (OsString::from(".."), ROOT)];
        let entries = dots.into_iter().chain(names).zip(1u64..);
        for ((name, number), next) in entries.skip(usize::try_from(offset).unwrap()) {
            let kind = if nodes.names(number).is_ok() { FileType::Directory } else { FileType::RegularFile };
            if reply.add(INodeNo(number), next, kind, &name) {
                break;
            }
        }
        reply.ok();
    }
}
