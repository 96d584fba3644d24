//! Targets on disks: a directory is formatted, opened as its label says and served.

use crate::listen::host_name;
use crate::target_options::{TargetOptions, describe_mmp};
use crate::{client_cache, memory};
use nacre_base::{Nid, TargetName, Uuid};
use nacre_node::{Node, ServeError, Served, TargetSpec, tables};
use nacre_osd::disk::{self, DiskOptions, DiskOsd, Label};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Formats `dir` for the target `name`, with `parts` parts for each object, or with as many as suit its disk. Blocks until
/// everything is on the disk.
pub fn format_target(
    dir: &Path,
    name: &TargetName,
    uuid: Uuid,
    options: &TargetOptions,
    parts: Option<u32>,
) -> Result<Label, String> {
    let parts = parts.unwrap_or_else(|| disk::suitable_parts(dir));
    let mut label = Label { uuid, target: name.clone(), parts, options: BTreeMap::new() };
    options.put_into(&mut label);
    disk::format(dir, &label).map_err(|e| format!("{}: {e}", dir.display()))?;
    Ok(label)
}

/// A target's storage that is being opened. If several nodes may serve it, this may take a while, because the last
/// holder may be alive.
pub struct Opening {
    dir: PathBuf,
    label: Label,
    options: TargetOptions,
    osd: tokio::task::JoinHandle<Result<Arc<DiskOsd>, String>>,
}

impl Opening {
    /// Begins to open the storage in `dir` for a node at `nid`.
    pub fn begin(node: &Node, nid: Nid, dir: &Path, label: Label) -> Result<Opening, String> {
        if client_cache::is_cache(&label) {
            return Err(format!("{} is the cache of a mount, and no target", dir.display()));
        }
        let target = TargetOptions::of(&label)?;
        if !target.service_nodes.is_empty() && !target.service_nodes.contains(&nid) {
            tracing::warn!("{} is served at {nid}, which is none of its service nodes", label.target);
        }
        let mmp = target.mmp(&format!("{} ({nid})", host_name()), node.rt().random());
        let usual = DiskOptions::default();
        let commit_interval = target.commit_interval().unwrap_or(usual.commit_interval);
        let options = DiskOptions { mmp, commit_interval, faults: node.faults().clone(), ..usual };
        let interval_ms = commit_interval.as_millis() as u64;
        node.params().add(format!("osd-nacre.{}.commit_interval_ms", label.target), move || interval_ms);
        let (path, params, shown) = (dir.to_owned(), node.params().clone(), label.target.clone());
        let osd = tokio::task::spawn_blocking(move || {
            let osd =
                DiskOsd::open(&path, tables(shown.kind), options).map_err(|e| format!("{}: {e}", path.display()))?;
            let osd = Arc::new(osd);
            let opened = Arc::downgrade(&osd);
            let show = move || describe_mmp(opened.upgrade().and_then(|osd| osd.mmp_status()).as_ref());
            params.add(format!("osd-disk.{shown}.mmp"), show);
            Ok(osd)
        });
        Ok(Opening { dir: dir.to_owned(), label, options: target, osd })
    }

    /// The storage, once it is open.
    pub async fn opened(self) -> Result<Opened, String> {
        let Opening { dir, label, options, osd } = self;
        let osd = osd.await.map_err(|e| e.to_string())??;
        Ok(Opened { dir, label, options, osd })
    }
}

/// A target's storage, which this process has to itself.
pub struct Opened {
    pub(crate) dir: PathBuf,
    pub(crate) label: Label,
    options: TargetOptions,
    osd: Arc<DiskOsd>,
}

impl Opened {
    /// Serves the target until another node takes it or the node is stopped.
    pub async fn serve(self, node: &Node) -> Result<Served, String> {
        let Opened { dir, label, options, osd } = self;
        let taken = osd.taken();
        let name = label.target;
        let spec = TargetSpec {
            host: host_name(),
            presets: options.presets(&name),
            service_nodes: options.service_nodes,
            lock_memory: memory::of_machine(),
            ..TargetSpec::new(name.clone(), label.uuid, options.mgs)
        };
        let served = node.serve(osd, spec).await.map_err(|e| {
            let advice = match &e {
                ServeError::Preset(_) => {
                    "; its label says so: tunefs.nacre --param NAME=VALUE changes that, NAME= removes it"
                }
                _ => "",
            };
            format!("{name} in {}: {e}{advice}", dir.display())
        })?;
        // If another node takes the target, the process goes on with its other targets.
        let (ended, name) = (node.clone(), name.to_string());
        drop(node.rt().spawn(async move {
            if taken.await {
                ended.end(&name).await;
            }
        }));
        Ok(served)
    }
}
