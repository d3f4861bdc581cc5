//! A disk of its own for trials that break one: an ext4 file system in a file, mounted by a loop device.
//!
//! The journal of the file system goes to the file only on a sync, so that a power cut takes everything that was not
//! synced. Only root has such disks.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::site::run_checked;

const SIZE: u64 = 32 << 20;

/// Longer than the file system writes back by itself, and than a run takes.
const OPTIONS: &str = "commit=900,errors=remount-ro";

/// `FS_IOC_SHUTDOWN`, and the flag that says that nothing more is written, not even the journal.
const SHUTDOWN_SCRIPT: &str =
    r#"open(my $d, "<", $ARGV[0]) or die; my $how = pack("I", 2); ioctl($d, 0x8004587d, $how) or die "$!""#;

/// Time that killed processes may hold it.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(super) struct FaultDisk {
    image: PathBuf,
    device: String,
    pub(super) dir: PathBuf,
}

impl FaultDisk {
    pub(super) fn new(directory: &Path) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        let (image, dir) = (directory.join("image"), directory.join("mounted"));
        fs::create_dir_all(&dir)?;
        File::create(&image)?.set_len(SIZE)?;
        let quiet = ["-q", "-F", "-m", "0"].map(OsStr::new);
        run_checked("mkfs.ext4", &[&quiet[..], &[image.as_os_str()]].concat())?;
        let device = run_checked("losetup", &["--find".as_ref(), "--show".as_ref(), image.as_os_str()])?;
        let disk = Self { image, device, dir };
        disk.mount()?;
        Ok(disk)
    }

    /// Everything so far is on the disk.
    pub(super) fn sync(&self) -> io::Result<()> {
        run_checked("sync", &["--file-system".as_ref(), self.dir.as_os_str()]).map(drop)
    }

    /// The power goes: what was not synced is lost.
    pub(super) fn cut_power(&self) -> io::Result<()> {
        run_checked("perl", &["-e".as_ref(), SHUTDOWN_SCRIPT.as_ref(), self.dir.as_os_str()]).map(drop)
    }

    /// Injects a disk error, upon which the kernel remounts the file system read-only.
    pub(super) fn remount_read_only(&self) -> io::Result<()> {
        fs::write(format!("/sys/fs/ext4/{}/trigger_fs_error", self.name()), "tried by a fault trial\n")
    }

    /// It is there again, as after a start of the machine.
    pub(super) fn remount(&self) -> io::Result<()> {
        self.unmount()?;
        // Its exit code says whether it repaired something.
        let _ = run_checked("e2fsck", &["-f".as_ref(), "-y".as_ref(), self.device.as_ref()]);
        self.mount()
    }

    /// Fills the disk but for `left` bytes, until the file is removed.
    pub(super) fn fill(&self, left: u64) -> io::Result<PathBuf> {
        let path = self.dir.join("filler");
        let mut filler = File::create(&path)?;
        let mut piece = vec![b'f'; 1 << 20];
        while !piece.is_empty() {
            if filler.write_all(&piece).is_err() {
                piece.truncate(piece.len() / 2);
            }
        }
        filler.sync_all()?;
        let length = filler.metadata()?.len();
        filler.set_len(length.saturating_sub(left))?;
        filler.sync_all()?;
        Ok(path)
    }

    /// Processes whose namespace has it, or that have something on it open, by number and name.
    fn holders(&self) -> Vec<String> {
        let device = fs::metadata(&self.device).map_or(0, |device| device.rdev());
        let named = |process: fs::DirEntry| {
            let mounts = fs::read_to_string(process.path().join("mountinfo")).unwrap_or_default();
            let is_on_it = |open: fs::DirEntry| fs::metadata(open.path()).is_ok_and(|open| open.dev() == device);
            let has_open = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten().any(is_on_it);
            let has_it = mounts.contains(&format!(" {} ", self.device)) || has_open;
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            has_it.then(|| format!("{} {}", process.file_name().display(), name.trim()))
        };
        fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(named).collect()
    }

    fn mount(&self) -> io::Result<()> {
        let options = ["-t", "ext4", "-o", OPTIONS, &self.device].map(OsStr::new);
        run_checked("mount", &[&options[..], &[self.dir.as_os_str()]].concat()).map(drop)
    }

    fn unmount(&self) -> io::Result<()> {
        let begun = Instant::now();
        loop {
            match run_checked("umount", &[self.dir.as_os_str()]) {
                Err(error) if begun.elapsed() > UNMOUNT_TIMEOUT => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
                Ok(_) => break,
            }
        }
        // A jail that was just made has a copy of the mount, and with it the broken file system.
        let alive = format!("/sys/fs/ext4/{}", self.name());
        while Path::new(&alive).exists() {
            if begun.elapsed() > UNMOUNT_TIMEOUT {
                let who = self.holders().join(", ");
                return Err(io::Error::other(format!("the file system of a trial is still in use: {who}")));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn name(&self) -> &str {
        self.device.trim_start_matches("/dev/")
    }
}

impl Drop for FaultDisk {
    fn drop(&mut self) {
        // The failure cannot be reported any more.
        let _ = self.unmount();
        let _ = run_checked("losetup", &["--detach".as_ref(), self.device.as_ref()]);
        let _ = fs::remove_file(&self.image);
    }
}
