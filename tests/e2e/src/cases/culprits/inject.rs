//! Makes causes happen, and ends them.

use super::stage::{NETWORKS, OSSS, RECORD, ROUTERS, Stage};
use crate::failure::{Context, Outcome, ensure};
use crate::prng::Prng;
use crate::sys::AlignedBuffer;
use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// Bytes a second of a slow disk. The even load of an OST writes more.
const SLOW_DISK: u64 = 2 << 20;
/// Streams of a greedy job on a mount. They are more than a window.
const STREAMS: usize = 40;
/// Mounts that use the busy directory. The kernel lets one program of each mount change a directory at a time.
const MOUNTS_OF_DIRECTORY: usize = 18;
/// Streams that change names on a mount without waiting for one of its modify slots.
const SLOTS: usize = 6;
/// Time between two writes of a stream into the cache.
const CACHED_PACE: Duration = Duration::from_millis(20);
/// Part of the packets that a lossy link loses.
const LOSS: f64 = 0.02;

/// Causes at servers and their storage.
impl Stage {
    pub(super) fn throttle_disk(&self) -> Outcome {
        self.disk()?.throttle(self.cluster.pid("oss3")?, SLOW_DISK)
    }

    pub(super) fn release_disk(&self) -> Outcome {
        self.disk()?.release()
    }

    /// Writes a block again and again, each time until it is durable.
    pub(super) fn write_durably(&self, ost: usize) -> Outcome {
        let file = self.file(1, ost, "durable", 0)?;
        self.start_thread("durable", move |_| file.write_at(&[1; 4096], 0).and_then(|_| file.sync_all()).is_ok());
        Ok(())
    }

    /// Makes directories, and waits until each is durable.
    pub(super) fn make_durable_names(&self) -> Outcome {
        let dir = self.mount(1).join("durable");
        fs::create_dir(&dir)?;
        let opened = File::open(&dir)?;
        self.start_thread("durable", move |n| {
            fs::create_dir(dir.join(n.to_string())).and_then(|()| opened.sync_all()).is_ok()
        });
        Ok(())
    }

    /// Writes files of all mounts until the disk of OST 2 is full.
    pub(super) fn fill_disk(&self) -> Outcome {
        std::thread::scope(|scope| {
            for mount in 1..=self.mounts() {
                let path = self.path(mount, 2, &format!("fill{mount}"));
                scope.spawn(move || {
                    let Ok(mut file) = File::create(path) else { return };
                    let data = vec![1; 4 << 20];
                    while file.write_all(&data).and_then(|()| file.sync_all()).is_ok() {}
                });
            }
        });
        Ok(())
    }

    pub(super) fn empty_disk(&self) -> Outcome {
        (1..=self.mounts()).try_for_each(|mount| Ok(fs::remove_file(self.path(mount, 2, &format!("fill{mount}")))?))
    }

    /// Stops a further mount, and restarts an OSS, which then waits for it. No file is open on this mount: when a program starts, the
    /// kernel closes copies of all open files, and would wait for the mount.
    pub(super) fn recover_without_client(&self, oss: &str) -> Outcome {
        self.cluster.add_mount(self.mounts() + 1)?;
        // Once data of the client is durable, the OST knows the client for certain.
        let file = self.file(self.mounts() + 1, 0, "known", 0)?;
        file.write_all_at(&[1; 4096], 0).and_then(|()| file.sync_all())?;
        drop(file);
        self.cluster.signal(&format!("mount{}", self.mounts() + 1), libc::SIGSTOP)?;
        self.cluster.kill(oss)?;
        self.cluster.start_again(oss)
    }

    pub(super) fn complete_recovery(&self, oss: &str) -> Outcome {
        self.resume(self.mounts() + 1)?;
        self.cluster.wait_until_ready(oss)?;
        self.cluster.remove_mount(self.mounts() + 1)
    }
}

/// Causes that concern locks.
impl Stage {
    /// Stops the first mount while it holds a lock on data that the second one wants.
    pub(super) fn keep_lock(&self) -> Outcome {
        self.file(1, 0, "kept", 0)?.write_all_at(&[1; 4096], 0)?;
        self.cluster.signal("mount1", libc::SIGSTOP)?;
        let path = self.path(2, 0, "kept");
        let write = move || OpenOptions::new().write(true).open(&path)?.write_all_at(&[2; 4096], 0);
        self.start_thread("waiting", move |_| write().is_ok());
        Ok(())
    }

    /// Stops the second mount while it holds a lock on a directory in which the third one changes names.
    pub(super) fn keep_directory(&self) -> Outcome {
        let dir = self.mount(2).join("kept");
        fs::create_dir(&dir)?;
        // The mount keeps the empty listing, and that a name is not there, under a lock.
        ensure!(fs::read_dir(&dir)?.next().is_none() && !dir.join("nothing").exists(), "a new directory is empty");
        self.cluster.signal("mount2", libc::SIGSTOP)?;
        let name = self.mount(3).join("kept/name");
        self.start_thread("waiting", move |_| make_and_remove(&name));
        Ok(())
    }

    /// Lets a stopped mount go on.
    pub(super) fn resume(&self, mount: usize) -> Outcome {
        self.cluster.signal(&format!("mount{mount}"), libc::SIGCONT)
    }

    /// Two mounts write the same bytes in turn. By default clients soon write such data without locks of their own, which is faster;
    /// here they go on taking the lock from each other.
    pub(super) fn contend(&self, one: usize, other: usize) -> Outcome {
        self.set_shared_writes("grown")?;
        for mount in [one, other] {
            let file = self.file(mount, 1, "contended", 0)?;
            self.start_thread("contending", move |_| file.write_all_at(&[mount as u8; 4096], 0).is_ok());
        }
        Ok(())
    }

    /// Sets how the mounts get their locks on files that several of them write.
    pub(super) fn set_shared_writes(&self, policy: &str) -> Outcome {
        self.cluster.lctl(&["set_param", &format!("osc.*.shared_write_policy={policy}")]).map(drop)
    }

    /// Many mounts make and remove names in one directory.
    pub(super) fn crowd_directory(&self) -> Outcome {
        self.narrow_mdt()?;
        fs::create_dir(self.mount(1).join("busy"))?;
        for mount in self.mounts() + 1..=MOUNTS_OF_DIRECTORY {
            self.cluster.add_mount(mount)?;
        }
        for mount in 1..=MOUNTS_OF_DIRECTORY {
            let name = self.mount(mount).join(format!("busy/{mount}"));
            self.start_thread("busy", move |_| make_and_remove(&name));
        }
        Ok(())
    }

    pub(super) fn remove_more_mounts(&self) -> Outcome {
        self.widen_mdt()?;
        // Their threads need a moment to end.
        std::thread::sleep(Duration::from_secs(1));
        (self.mounts() + 1..=MOUNTS_OF_DIRECTORY).try_for_each(|mount| self.cluster.remove_mount(mount))
    }
}

/// Causes that are jobs and clients.
impl Stage {
    /// Makes all OSTs serve one request at a time, in the order of their arrival, and take some time for each write, so that a job can crowd
    /// one of them. The OST of the job is not slower than its peers.
    pub(super) fn narrow_osts(&self) -> Outcome {
        // In turns, the default, other clients hardly wait for a greedy job.
        self.cluster.lctl(&["set_param", "ost.OSS.ost_io.threads_max=1", "ost.OSS.ost_io.nrs_policies=reg fifo"])?;
        OSSS.iter().try_for_each(|oss| self.arm(oss, "ost.write.before_reply:delay=5:always"))
    }

    pub(super) fn widen_osts(&self) -> Outcome {
        self.cluster.disarm_faults()?;
        let settings = ["set_param", "ost.OSS.ost_io.threads_max=64", "ost.OSS.ost_io.nrs_policies=reg turns"];
        self.cluster.lctl(&settings).map(drop)
    }

    /// Many streams of a mount write records at random places of files of their own, all on one OST.
    pub(super) fn write_greedily(&self, record: usize) -> Outcome {
        for stream in 0..STREAMS {
            let file = self.file(1, 0, &format!("greedy{stream}"), libc::O_DIRECT)?;
            let (mut buffer, mut prng) = (AlignedBuffer::new(record), Prng::new(stream as u64));
            self.start_thread("greedy", move |_| {
                file.write_at(buffer.bytes(), (prng.below(64) * record) as u64).is_ok()
            });
        }
        Ok(())
    }

    /// Many streams of a mount read records of files of their own, all on one OST.
    pub(super) fn read_greedily(&self) -> Outcome {
        for stream in 0..STREAMS {
            let file = self.file(1, 0, &format!("greedy{stream}"), libc::O_DIRECT)?;
            let mut buffer = AlignedBuffer::new(RECORD);
            file.write_all_at(buffer.bytes(), 0)?;
            self.start_thread("greedy", move |_| file.read_at(buffer.bytes(), 0).is_ok());
        }
        Ok(())
    }

    /// Makes the MDT serve one request at a time, and take some time for each change: the programs of this machine could not crowd it
    /// otherwise.
    fn narrow_mdt(&self) -> Outcome {
        self.cluster.lctl(&["set_param", "mds.MDS.mdt.threads_max=1"])?;
        self.arm("mds", "mdt.reint.before_reply:delay=3:always")
    }

    /// A job of all mounts changes names as fast as a narrow MDT can.
    pub(super) fn crowd_mdt(&self) -> Outcome {
        self.narrow_mdt()?;
        (1..=self.mounts()).try_for_each(|mount| self.change_names("greedy", mount, SLOTS))
    }

    pub(super) fn widen_mdt(&self) -> Outcome {
        self.cluster.disarm_faults()?;
        self.cluster.lctl(&["set_param", "mds.MDS.mdt.threads_max=256"]).map(drop)
    }

    /// Starts streams that make and remove names, each in a directory of its own.
    pub(super) fn change_names(&self, job: &str, mount: usize, streams: usize) -> Outcome {
        for stream in 0..streams {
            let dir = self.mount(mount).join(format!("names{mount}-{stream}"));
            fs::create_dir_all(&dir)?;
            let name = dir.join("name");
            self.start_thread(job, move |_| make_and_remove(&name));
        }
        Ok(())
    }

    /// Lets a mount have one request at a time under way to an OST, and many streams write there.
    pub(super) fn narrow_window(&self, mount: usize) -> Outcome {
        self.set_window(mount, 1)?;
        for stream in 0..16 {
            let mut file = self.file(mount, 1, &format!("stream{stream}"), 0)?;
            let data = vec![1; RECORD];
            self.start_thread("streams", move |n| {
                std::thread::sleep(CACHED_PACE);
                let begin = if n % 64 == 0 { file.seek(SeekFrom::Start(0)).map(drop) } else { Ok(()) };
                begin.and_then(|()| file.write_all(&data)).is_ok()
            });
        }
        Ok(())
    }

    /// Sets the number of requests that a mount may have under way to OST 1; 0 leaves it to the server.
    pub(super) fn set_window(&self, mount: usize, rpcs: u32) -> Outcome {
        let setting = format!("osc.*OST0001*.max_rpcs_in_flight={rpcs}");
        self.cluster.set_param_of(&format!("mount{mount}"), &setting)
    }
}

/// Causes in the network.
impl Stage {
    /// Slows all links of a host down to so many bits a second.
    pub(super) fn slow_link(&self, host: &str, bits_per_second: u64) -> Outcome {
        self.hosts()?.shape_host(host, Some(bits_per_second))
    }

    pub(super) fn lose_packets(&self, host: &str) -> Outcome {
        self.hosts()?.lose_packets(host, LOSS)
    }

    pub(super) fn keep_packets(&self, host: &str) -> Outcome {
        self.hosts()?.keep_packets(host)
    }

    /// Gives the links of a host their speed back.
    pub(super) fn mend_link(&self, host: &str) -> Outcome {
        self.hosts()?.shape_host(host, self.scene.link_rate())
    }

    /// Sets the number of large buffers of a router.
    pub(super) fn set_buffers(&self, router: usize, buffers: u32) -> Outcome {
        self.configure_router(router, &["set", "large_buffers", &buffers.to_string()])
    }

    /// Gives a router few large buffers, or few credits for each peer. Nodes prefer the other router while that has room, so many streams read
    /// to keep both busy.
    pub(super) fn starve_router(&self, act: impl FnOnce(&Stage) -> Outcome) -> Outcome {
        act(self)?;
        for mount in 1..=self.mounts() {
            for stream in 0..4 * OSSS.len() {
                let file = self.file(mount, stream % OSSS.len(), &format!("many{mount}-{stream}"), libc::O_DIRECT)?;
                let mut buffer = AlignedBuffer::new(RECORD);
                file.write_all_at(buffer.bytes(), 0)?;
                self.start_thread("many", move |_| file.read_at(buffer.bytes(), 0).is_ok());
            }
        }
        Ok(())
    }

    /// Sets the number of messages that a router takes from each peer at a time.
    pub(super) fn set_credits(&self, router: usize, credits: u32) -> Outcome {
        let set = |net: &&str| {
            let credits = credits.to_string();
            self.configure_router(router, &["net", "set", "--net", net, "--peer-buffer-credits", &credits])
        };
        NETWORKS.iter().try_for_each(set)
    }

    fn configure_router(&self, router: usize, args: &[&str]) -> Outcome {
        let process = format!("router-{}", self.cluster.pid(ROUTERS[router])?);
        let lnetctl = self.cluster.tool_program("lnetctl").args(["--process", &process]).args(args);
        lnetctl.run().map(drop).context("configuring a router")
    }

    pub(super) fn restart_router(&self, router: &str) -> Outcome {
        self.cluster.restart(router)?;
        self.show(router)
    }
}

fn make_and_remove(name: &Path) -> bool {
    fs::create_dir(name).and_then(|()| fs::remove_dir(name)).is_ok()
}
