//! An ext4 over a loop device, slowed down by the kernel's I/O throttle (the blkio controller of cgroup v1).

use crate::failure::{Context, Outcome};
use crate::power_cut::device::{Disk, Mounted};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// The disk, mounted, and the group of processes whose requests to it are slow. Dropping it takes both down.
pub(crate) struct SlowDisk {
    mounted: Option<Mounted>,
    dir: PathBuf,
    /// Device numbers as the throttle wants them: `7:3`.
    number: String,
    group: PathBuf,
}

/// Where this controller is.
const BLKIO: &str = "/sys/fs/cgroup/blkio";

impl SlowDisk {
    /// Makes a disk of this many bytes below a directory.
    pub(crate) fn make(below: &Path, bytes: u64) -> Outcome<SlowDisk> {
        fs::create_dir_all(below)?;
        let image = below.join("image");
        File::create(&image)?.set_len(bytes).context("the disk's image")?;
        let disk = Disk::attach(&image)?;
        disk.make_file_system()?;
        let number = disk.number()?;
        // On a disk with a moving head, writes of 1 MiB would be gathered in the page cache, where no throttle counts them.
        let rotational = format!("/sys/dev/block/{number}/queue/rotational");
        fs::write(&rotational, "0").context(rotational)?;
        let mounted = Mounted::at(disk, &below.join("mounted"))?;
        let dir = mounted.path().join("ost");
        let group = Path::new(BLKIO).join(format!("nacre-e2e-{}", std::process::id()));
        fs::create_dir(&group).context(group.display().to_string())?;
        Ok(SlowDisk { mounted: Some(mounted), dir, number, group })
    }

    /// Directory for the OST.
    pub(crate) fn dir(&self) -> PathBuf {
        self.dir.clone()
    }

    /// From now on, what this process asks of the disk is served at so many bytes a second.
    pub(crate) fn throttle(&self, pid: u32, bytes: u64) -> Outcome {
        self.limit(bytes)?;
        let procs = self.group.join("cgroup.procs");
        fs::write(&procs, pid.to_string()).context(procs.display().to_string())
    }

    /// Lets the disk be as fast as it is.
    pub(crate) fn release(&self) -> Outcome {
        self.limit(0)
    }

    fn limit(&self, bytes: u64) -> Outcome {
        for way in ["read", "write"] {
            let file = self.group.join(format!("blkio.throttle.{way}_bps_device"));
            fs::write(&file, format!("{} {bytes}", self.number)).context(file.display().to_string())?;
        }
        Ok(())
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        let _ = self.release();
        drop(self.mounted.take());
        // The processes have ended by now; otherwise the group stays, without a limit.
        let _ = fs::remove_dir(&self.group);
    }
}
