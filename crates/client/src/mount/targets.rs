//! The targets of a mount, kept in line with the configuration: new ones appear without a remount, moved and restarted
//! ones are reconnected, settings for the whole file system are applied. An OST that nobody uses is a line of the
//! configuration and no more, unless administrators see it. Requests to targets are not here.

use crate::mdc::Mdc;
use crate::mount::Mount;
use crate::mount::connection::Connection;
use crate::osc::Osc;
use futures_util::future::join_all;
use nacre_base::{Errno, MdtIndex, OstIndex, TargetKind, TargetName};
use nacre_mgc::Settings;
use nacre_ptlrpc::{Import, ImportState};
use nacre_rt::Rt;
use nacre_wire::mgs::{Config, TargetEntry};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// How long an unmount waits for dirty data to be written.
const FLUSH_DEADLINE: Duration = Duration::from_secs(60);
/// How often the client checks whether the MGS answers.
const MGS_CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// All targets of a mount.
pub(crate) struct Targets {
    mount: Arc<Mount>,
    table: RwLock<Arc<Table>>,
    /// Wakes those that wait for a change of the table.
    changed: Notify,
    /// Held while a changed table is made, so that none of two changes at the same time is lost.
    turn: Mutex<()>,
    settings: Settings,
    /// Where targets are shown as parameters, if the mount has parameters.
    registry: Option<Box<dyn Registry>>,
}

/// Shows each target to administrators, before any operation can use it.
pub(crate) trait Registry: Send + Sync {
    fn add_osc(&self, osc: &Arc<Osc>);
    fn add_mdc(&self, mdc: &Arc<Mdc>);
}

/// The targets at one moment.
#[derive(Default, Clone)]
pub(crate) struct Table {
    /// The newest configuration, which has all OSTs.
    config: Arc<Config>,
    /// The OSTs that were used, or all if administrators see them.
    pub(crate) osts: BTreeMap<u32, Arc<Osc>>,
    pub(crate) mdts: BTreeMap<u32, Arc<Mdc>>,
    /// True if the mount has ended: nobody waits for a target then.
    closed: bool,
}

impl Table {
    /// The name of an OST.
    fn ost_name(&self, index: OstIndex) -> TargetName {
        TargetName::ost(&self.config.fsname, index)
    }

    /// The entry of an OST in the configuration.
    fn ost_entry(&self, index: OstIndex) -> Option<&Arc<TargetEntry>> {
        let name = self.ost_name(index).to_string();
        self.config.targets.iter().find(|entry| entry.target == name)
    }
}

impl Targets {
    pub(crate) fn new(mount: Arc<Mount>, registry: Option<Box<dyn Registry>>) -> Arc<Targets> {
        let (table, changed, turn, settings) = Default::default();
        Arc::new(Targets { mount, table, changed, turn, settings, registry })
    }

    /// The mount's clock and tasks.
    pub(crate) fn rt(&self) -> &Rt {
        &self.mount.rt
    }

    /// The targets as they are now.
    pub(crate) fn table(&self) -> Arc<Table> {
        self.table.read().clone()
    }

    /// Replaces the table, and returns the one before.
    fn set_table(&self, table: Table) -> Arc<Table> {
        let before = std::mem::replace(&mut *self.table.write(), Arc::new(table));
        self.changed.notify_waiters();
        before
    }

    /// An OST, if the configuration has it.
    pub(crate) fn known_osc(&self, index: OstIndex) -> Option<Arc<Osc>> {
        let made = self.table.read().osts.get(&index.0).cloned();
        made.or_else(|| self.make_osc(index))
    }

    /// An OST; waits until the configuration has it.
    pub(crate) async fn osc(&self, index: OstIndex) -> Result<Arc<Osc>, Errno> {
        loop {
            if let Some(osc) = self.known_osc(index) {
                return Ok(osc);
            }
            self.wait_for(|table| table.ost_entry(index).map(drop)).await?;
        }
    }

    /// All OSTs that the configuration has, in the order of their indexes.
    pub(crate) fn all_oscs(&self) -> Vec<Arc<Osc>> {
        let config = self.table().config.clone();
        let names = config.targets.iter().filter_map(|entry| entry.target.parse::<TargetName>().ok());
        let osts: BTreeSet<u32> = names.filter(|name| name.kind == TargetKind::Ost).map(|name| name.index).collect();
        osts.into_iter().filter_map(|index| self.known_osc(OstIndex(index))).collect()
    }

    /// An MDT; waits until the configuration has it.
    pub(crate) async fn mdc(&self, index: MdtIndex) -> Result<Arc<Mdc>, Errno> {
        self.wait_for(|table| table.mdts.get(&index.0).cloned()).await
    }

    async fn wait_for<T>(&self, find: impl Fn(&Table) -> Option<T>) -> Result<T, Errno> {
        loop {
            // Made before the look, so that a change after it is not missed.
            let changed = self.changed.notified();
            let (found, closed) = {
                let table = self.table.read();
                (find(&table), table.closed)
            };
            match found {
                Some(found) => return Ok(found),
                None if closed => return Err(Errno::ESHUTDOWN),
                None => changed.await,
            }
        }
    }

    /// Takes over a configuration.
    pub(crate) fn handle_config(&self, config: &Arc<Config>) {
        let turn = self.turn.lock();
        let mut table = Table::clone(&self.table.read());
        table.config = config.clone();
        for entry in &config.targets {
            let Ok(name) = entry.target.parse::<TargetName>() else {
                tracing::warn!(target = entry.target, "the configuration has a target with an impossible name");
                continue;
            };
            let known = match name.kind {
                TargetKind::Ost => table.osts.get(&name.index).map(|osc| osc.connection()),
                TargetKind::Mdt => table.mdts.get(&name.index).map(|mdc| mdc.connection()),
                TargetKind::Mgt => continue,
            };
            if let Some(connection) = known {
                connection.handle_entry(entry);
                connection.handle_silent(config.silent.contains(&entry.target));
                continue;
            }
            match name.kind {
                // `known_osc` makes it at the first use.
                TargetKind::Ost if self.registry.is_none() => {}
                TargetKind::Ost => drop(self.add_osc(&mut table, name, entry)),
                _ => self.add_mdc(&mut table, name, entry),
            }
        }
        if !table.closed {
            self.set_table(table);
        }
        drop(turn);
        if let Some(params) = &self.mount.params {
            self.settings.handle_config(params, config);
        }
    }

    /// Makes an OST that the configuration has, unless another caller has just made it.
    fn make_osc(&self, index: OstIndex) -> Option<Arc<Osc>> {
        let _turn = self.turn.lock();
        let before = self.table();
        if let Some(osc) = before.osts.get(&index.0) {
            return Some(osc.clone());
        }
        let (name, entry) = (before.ost_name(index), before.ost_entry(index)?.clone());
        let mut table = Table::clone(&before);
        let osc = self.add_osc(&mut table, name, &entry);
        self.set_table(table);
        Some(osc)
    }

    fn connection(&self, config: &Config, name: TargetName, entry: &Arc<TargetEntry>) -> Connection {
        let connection = Connection::new(self.mount.clone(), name, entry.clone());
        connection.handle_silent(config.silent.contains(&entry.target));
        connection
    }

    fn add_osc(&self, table: &mut Table, name: TargetName, entry: &Arc<TargetEntry>) -> Arc<Osc> {
        let index = name.index;
        let osc = Osc::new(self.connection(&table.config, name, entry));
        if let Some(registry) = &self.registry {
            osc.connection().import();
            registry.add_osc(&osc);
        }
        table.osts.insert(index, osc.clone());
        osc
    }

    fn add_mdc(&self, table: &mut Table, name: TargetName, entry: &Arc<TargetEntry>) {
        let index = name.index;
        let mdc = Mdc::new(self.connection(&table.config, name, entry));
        if let Some(registry) = &self.registry {
            mdc.connection().import();
            registry.add_mdc(&mdc);
        }
        table.mdts.insert(index, mdc);
    }

    fn set_told_of_restarts(&self, mgs_answers: bool) {
        let table = self.table();
        table.osts.values().for_each(|osc| osc.connection().set_told_of_restarts(mgs_answers));
        table.mdts.values().for_each(|mdc| mdc.connection().set_told_of_restarts(mgs_answers));
    }

    /// Asks each server where something is held whether it still knows this client.
    pub(crate) fn check_servers(&self) {
        let table = self.table();
        let (osts, mdts) =
            (table.osts.values().map(|osc| osc.connection()), table.mdts.values().map(|mdc| mdc.connection()));
        osts.chain(mdts).filter_map(|connection| connection.import_if_made()).for_each(|import| import.check());
    }

    /// Follows the configuration in a task until the mount is gone. `mgc` is the import of the MGS.
    pub(crate) fn follow(self: &Arc<Self>, mgc: Arc<Import>, mut config: watch::Receiver<Arc<Config>>) {
        let (targets, rt) = (Arc::downgrade(self), self.mount.rt.clone());
        drop(self.mount.rt.spawn(async move {
            loop {
                let changed = {
                    let changed = pin!(config.changed());
                    rt.timeout(MGS_CHECK_INTERVAL, changed).await
                };
                let Some(targets) = targets.upgrade() else { return };
                match changed {
                    Ok(Ok(())) => {
                        let newest = config.borrow_and_update().clone();
                        targets.handle_config(&newest);
                    }
                    Ok(Err(_)) => return,
                    Err(_) => targets.set_told_of_restarts(mgc.state() == ImportState::Full),
                }
            }
        }));
    }

    /// Writes back dirty data, disconnects from all targets, and fails callers that wait for one.
    pub(crate) async fn close(&self) {
        let table = {
            let _turn = self.turn.lock();
            self.set_table(Table { closed: true, ..Table::default() })
        };
        join_all(table.osts.values().map(|osc| osc.close(FLUSH_DEADLINE))).await;
        join_all(table.mdts.values().map(|mdc| mdc.connection().disconnect())).await;
    }
}
