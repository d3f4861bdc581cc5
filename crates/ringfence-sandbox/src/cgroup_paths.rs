//! Cgroup hierarchies that this process may create groups in.
//!
//! From what the kernel says about this process and its mounts: the directory that is ours in each hierarchy, and whether
//! groups made there or above have limits.
//!
//! Not here: making them (`cgroup.rs`).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

/// A cgroup hierarchy, with the parent directories of new groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CgroupHierarchy {
    V2 { base: PathBuf },
    V1 { memory: PathBuf, pids: PathBuf },
}

impl CgroupHierarchy {
    pub(crate) fn bases(&self) -> Vec<&Path> {
        match self {
            Self::V2 { base } => vec![base],
            // Both may be one hierarchy.
            Self::V1 { memory, pids } if memory == pids => vec![memory],
            Self::V1 { memory, pids } => vec![memory, pids],
        }
    }
}

/// The directories of this process in each hierarchy that is mounted.
#[derive(Debug, Default)]
pub(crate) struct CgroupMounts {
    /// By controller; version 2 has none of that name.
    controllers: BTreeMap<String, ControllerDir>,
}

#[derive(Debug)]
struct ControllerDir {
    directory: PathBuf,
    mount: PathBuf,
}

impl CgroupMounts {
    /// From `/proc/self/cgroup` and `/proc/self/mountinfo`.
    pub(crate) fn read(cgroup: &str, mountinfo: &str) -> Self {
        let mut found = Self::default();
        for line in cgroup.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
            for controller in controllers.split(',') {
                if let Some(own) = controller_dir(mountinfo, controller, path) {
                    found.controllers.insert(controller.to_owned(), own);
                }
            }
        }
        found
    }

    /// A group of version 2 has either processes or groups with limits in it, and we are in ours. So it is one above us
    /// that is divided. A plain user who may write there was given it; root may write everywhere, and goes no higher than
    /// the next.
    pub(crate) fn v2(&self) -> Option<CgroupHierarchy> {
        let own = self.controllers.get("")?;
        let highest = if rustix::process::geteuid().is_root() { 2 } else { usize::MAX };
        let above = own.directory.ancestors().take_while(|directory| directory.starts_with(&own.mount));
        let base = above.take(highest).find(|directory| delegates_controllers(directory))?;
        Some(CgroupHierarchy::V2 { base: base.to_owned() })
    }

    /// Below our own groups, so that what bounds us bounds the run too.
    pub(crate) fn v1(&self) -> Option<CgroupHierarchy> {
        let own = |controller| self.controllers.get(controller).map(|own: &ControllerDir| own.directory.clone());
        let (memory, pids) = (own("memory")?, own("pids")?);
        (is_writable(&memory) && is_writable(&pids)).then_some(CgroupHierarchy::V1 { memory, pids })
    }
}

/// Mount point of a controller's hierarchy, and our own path in it. In a container the mount may show only a part.
fn controller_dir(mountinfo: &str, controller: &str, path: &str) -> Option<ControllerDir> {
    mountinfo.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let (before, after): (Vec<&str>, Vec<&str>) = (before.split(' ').collect(), after.split(' ').collect());
        let (root, mount) = (*before.get(3)?, PathBuf::from(*before.get(4)?));
        let is_it = match *after.first()? {
            "cgroup2" => controller.is_empty(),
            "cgroup" => !controller.is_empty() && after.get(2)?.split(',').any(|option| option == controller),
            _ => false,
        };
        let below = Path::new(path).strip_prefix(root).ok()?;
        is_it.then(|| ControllerDir { directory: mount.join(below), mount })
    })
}

/// Whether groups made here get both controllers.
fn delegates_controllers(directory: &Path) -> bool {
    let divided = fs::read_to_string(directory.join("cgroup.subtree_control")).unwrap_or_default();
    let has = |controller: &str| divided.split_whitespace().any(|name| name == controller);
    has("memory") && has("pids") && is_writable(directory) && is_writable(&directory.join("cgroup.procs"))
}

fn is_writable(path: &Path) -> bool {
    access(path, Access::WRITE_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{CgroupHierarchy, CgroupMounts};

    const MOUNTS: &str = "\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    #[test]
    fn our_own_directories_are_found() {
        let cgroup = "8:pids:/\n4:memory:/docker/abc/x\n2:cpu,cpuacct:/a\n1:devices:/\n0::/user.slice/a:b\n";
        let found = CgroupMounts::read(cgroup, MOUNTS);
        let own = |name: &str| found.controllers.get(name).map(|own| own.directory.display().to_string());
        assert_eq!(own("memory").as_deref(), Some("/sys/fs/cgroup/memory/x"));
        assert_eq!(own("pids").as_deref(), Some("/sys/fs/cgroup/pids/"));
        assert_eq!(own("cpuacct").as_deref(), Some("/sys/fs/cgroup/cpu,cpuacct/a"));
        assert_eq!(own("").as_deref(), Some("/sys/fs/cgroup/unified/user.slice/a:b"));
        assert_eq!(own("devices"), None);
        // Above what the mount shows.
        assert!(!CgroupMounts::read("4:memory:/elsewhere\n", MOUNTS).controllers.contains_key("memory"));
    }

    #[test]
    fn version_two_is_taken_where_it_is_divided() {
        let directory = tempfile::tempdir().unwrap();
        let mount = directory.path();
        let mounts = format!("41 31 0:38 / {} rw - cgroup2 cgroup2 rw\n", mount.display());
        let divide = |path: &str, controllers: &str| {
            let path = mount.join(path);
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("cgroup.subtree_control"), controllers).unwrap();
            fs::write(path.join("cgroup.procs"), "").unwrap();
        };
        let found = || CgroupMounts::read("0::/app.slice/run.scope\n", &mounts).v2();
        divide("app.slice/run.scope", "");
        divide("app.slice", "cpu pids\n");
        assert_eq!(found(), None);
        divide("app.slice", "cpu memory pids\n");
        assert_eq!(found(), Some(CgroupHierarchy::V2 { base: mount.join("app.slice") }));
    }
}
