//! The caches on disk of the mounts in this process: their directories, and what `lctl pcc` asks for.
//!
//! A cache lies in a subdirectory that is named after its file system. One mount has it to itself.

use crate::routing::Refusal;
use nacre_base::size::MIB;
use nacre_base::{Errno, OstIndex, TargetName, Uuid};
use nacre_client::Client;
use nacre_osd::disk::{self, DiskOptions, DiskOsd, Label};
use nacre_osd::{Osd, OsdError};
use nacre_pcc::{Pcc, Status, TABLES};
use nacre_rt::Rt;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::{DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Option in the label of a directory that is a cache and no target.
pub(crate) const PURPOSE: &str = "purpose";
const CLIENT_CACHE: &str = "client-cache";

/// How long a new mount waits for one that is still giving the cache up, and how often it looks.
const BUSY_PATIENCE: Duration = Duration::from_secs(10);
const BUSY_PAUSE: Duration = Duration::from_millis(20);
/// Mode of its directory.
const PRIVATE: u32 = 0o700;
/// Smallest size of a cache, in bytes.
const SIZE_MIN: u64 = 64 * MIB;
/// Time before a crash in which reads may be missing from the cache afterwards. Commits are rare, because each one syncs a disk that
/// programs use.
const COMMIT_INTERVAL: Duration = Duration::from_secs(30);

/// What to do with the caches of a mount.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PccTask {
    /// Use the cache in a directory. Without a size it may take half of the free space there.
    Add {
        /// The directory, from the root; the cache is below it.
        dir: PathBuf,
        /// Bytes.
        size: Option<u64>,
    },
    /// No longer use it; what is in it stays.
    Remove {
        /// The directory that was added.
        dir: PathBuf,
    },
    /// Say what is used, and what it has done.
    List,
}

/// The caches of the mounts in this process.
#[derive(Default)]
pub(crate) struct ClientCaches {
    /// By the mounts' names, such as `nacre-ffff0123456789ab`.
    mounts: tokio::sync::Mutex<BTreeMap<String, Mounted>>,
}

struct Mounted {
    client: Weak<Client>,
    cache: Option<(PathBuf, Arc<Pcc>)>,
}

impl ClientCaches {
    /// Lists a mount.
    pub(crate) async fn add_mount(&self, client: &Arc<Client>) {
        let mounted = Mounted { client: Arc::downgrade(client), cache: None };
        self.mounts.lock().await.insert(name_of(client), mounted);
    }

    /// Has a mount use the cache in a directory.
    pub(crate) async fn add(&self, rt: &Rt, client: &Client, dir: &Path, size: Option<u64>) -> Result<(), Refusal> {
        self.change(rt, &name_of(client), PccTask::Add { dir: dir.to_owned(), size }).await.map(drop)
    }

    /// Carries out a task of `lctl pcc`.
    pub(crate) async fn change(&self, rt: &Rt, mount: &str, task: PccTask) -> Result<Value, Refusal> {
        let mut mounts = self.mounts.lock().await;
        let mounted = mounts.get_mut(mount).and_then(|mounted| Some((mounted.client.upgrade()?, mounted)));
        let Some((client, mounted)) = mounted else {
            return Err((Errno::ENOENT, format!("{mount} is not mounted by this process")));
        };
        match task {
            PccTask::Add { dir, size } => {
                if let Some((other, _)) = &mounted.cache {
                    let why = format!("the mount has a cache in {} already: remove that first", other.display());
                    return Err((Errno::EEXIST, why));
                }
                let pcc = open(rt, &dir, client.fsname(), size).await?;
                client.set_disk_cache(Some(pcc.clone()));
                mounted.cache = Some((dir, pcc));
                Ok(Value::Null)
            }
            PccTask::Remove { dir } => {
                let Some((_, pcc)) = mounted.cache.take_if(|(at, _)| *at == dir) else {
                    return Err((Errno::ENOENT, format!("the mount has no cache in {}", dir.display())));
                };
                client.set_disk_cache(None);
                close(&pcc).await;
                Ok(Value::Null)
            }
            PccTask::List => Ok(mounted.cache.iter().map(|(dir, pcc)| describe(dir, &pcc.status())).collect()),
        }
    }

    /// Closes all caches. Nothing is read from them any longer.
    pub(crate) async fn close(&self) {
        for mounted in self.mounts.lock().await.values_mut() {
            if let Some(client) = mounted.client.upgrade() {
                client.set_disk_cache(None);
            }
            if let Some((_, pcc)) = mounted.cache.take() {
                close(&pcc).await;
            }
        }
    }
}

/// The name that tells a mount apart from others of the host.
fn name_of(client: &Client) -> String {
    format!("{}-{}", client.fsname(), client.instance())
}

fn describe(dir: &Path, status: &Status) -> Value {
    json!({
        "dir": dir.display().to_string(),
        "size": status.limit,
        "used": status.used,
        "objects": status.objects,
        "has_failed": status.has_failed,
    })
}

async fn close(pcc: &Pcc) {
    // A cache that has failed has said so before.
    if let Err(error) = pcc.close().await {
        tracing::debug!(%error, "the cache on disk was not closed in order");
    }
}

/// Opens the cache of a file system in `dir`, or makes one there.
async fn open(rt: &Rt, dir: &Path, fsname: &str, size: Option<u64>) -> Result<Arc<Pcc>, Refusal> {
    if let Some(size) = size.filter(|size| *size < SIZE_MIN) {
        let least = SIZE_MIN / MIB;
        return Err((Errno::EINVAL, format!("a cache of {size} bytes is too small: at least {least} MiB are needed")));
    }
    let (place, uuid) = (dir.join(fsname), Uuid::from_random(rt.random(), rt.random()));
    let (path, fsname) = (place.clone(), fsname.to_owned());
    let opened = tokio::task::spawn_blocking(move || open_device(&path, &fsname, uuid)).await;
    let opened = opened.map_err(|e| (Errno::EIO, e.to_string()))?;
    let osd: Arc<DiskOsd> =
        opened.map_err(|why| (Errno::EINVAL, format!("the cache in {}: {why}", place.display())))?;
    let failed = |e: OsdError| (e.errno(), format!("the cache in {}: {e}", place.display()));
    let pcc = Pcc::open(rt.clone(), osd.clone(), u64::MAX).await.map_err(failed)?;
    let size = match size {
        Some(size) => size,
        None => (pcc.status().used + osd.statfs().await.map_err(failed)?.available_bytes) / 2,
    };
    pcc.set_limit(size.max(SIZE_MIN));
    Ok(pcc)
}

fn open_device(place: &Path, fsname: &str, uuid: Uuid) -> Result<Arc<DiskOsd>, String> {
    // Other users of this host must not read what only some users of the file system may.
    let private = Permissions::from_mode(PRIVATE);
    let made = DirBuilder::new().recursive(true).mode(PRIVATE).create(place);
    made.and_then(|()| std::fs::set_permissions(place, private)).map_err(|e| e.to_string())?;
    let label = match disk::read_label(place) {
        Err(OsdError::NotFormatted(_)) => {
            let options = BTreeMap::from([(PURPOSE.to_owned(), CLIENT_CACHE.to_owned())]);
            // A device has the name of a target; the option says that it is none.
            let target = TargetName::ost(fsname, OstIndex(0));
            let label = Label { uuid, target, parts: 1, options };
            disk::format(place, &label).map_err(|e| e.to_string())?;
            label
        }
        read => read.map_err(|e| e.to_string())?,
    };
    if !is_cache(&label) {
        return Err(format!("it is the storage of {}, and no cache", label.target));
    }
    let options = DiskOptions { commit_interval: COMMIT_INTERVAL, ..DiskOptions::default() };
    let give_up = Instant::now() + BUSY_PATIENCE;
    loop {
        match DiskOsd::open(place, &TABLES, options.clone()) {
            Err(OsdError::InUse(_)) if Instant::now() < give_up => std::thread::sleep(BUSY_PAUSE),
            Err(e @ (OsdError::Index(_) | OsdError::Corrupt { .. })) => {
                return Err(format!("{e}; remove the directory, which has nothing but copies"));
            }
            opened => return opened.map(Arc::new).map_err(|e| e.to_string()),
        }
    }
}

/// Whether a label is that of a client's cache, which no server may serve.
pub(crate) fn is_cache(label: &Label) -> bool {
    label.options.get(PURPOSE).is_some_and(|purpose| purpose == CLIENT_CACHE)
}
