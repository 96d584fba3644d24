//! A hostile client: it speaks RPC from a node that the MGS lists for no server, knows every name, UUID and NID of the
//! file system, and tries every request that was once accepted from anybody. Each is refused, logged, and harmless.

use super::replays::layout_of;
use super::*;
use nacre_base::param::Params;
use nacre_base::param::declared::{Access, Kind};
use nacre_base::{Faults, Fid, Nid, TargetKind, TargetName, Uuid};
use nacre_osd::mem::Crash;
use nacre_ptlrpc::{CallOptions, Import, ImportConfig, RpcError, RpcNode};
use nacre_sim::cluster::Server;
use nacre_wire::connect::{ConnectData, connect_flags};
use nacre_wire::ldlm::{
    BlockingCallback, Cancel, Enqueue, EnqueueReply, GlimpseCallback, GlimpseReply, LockKind, LockMode, LockVolume,
    callback_target, enqueue_flags,
};
use nacre_wire::lfsck::{ObjectFacts, ObjectQuery, ObjectRepairs};
use nacre_wire::mgs::{
    ChangeReply, Config, ConfigRead, ConfigReply, LeaseQuery, LeaseReply, Renewals, RenewalsReply, ReplaceNids,
    SetParam, TargetReg, TargetRegReply,
};
use nacre_wire::ost::{Create, CreateReply, Destroy};
use nacre_wire::{Field, Opcode};
use parking_lot::Mutex;

const MGS_NODE: u32 = 1;
const MDS_NODE: u32 = 2;
const OSS_NODE: u32 = 10;
const CLIENT_NODE: u32 = 10_000;
/// Node number that no node of the cluster has.
const STRANGER: u32 = 66_000;

/// A stranger on the network.
struct Stranger {
    node: RpcNode,
    net: nacre_lnet::SimNet,
    config: Config,
}

impl Stranger {
    async fn new(c: &Cluster) -> Stranger {
        let rt = c.rt().child("stranger");
        let node = RpcNode::simulated(rt, c.net(), Some(STRANGER), Faults::new());
        let mut stranger = Stranger { node, net: c.net().clone(), config: Config::default() };
        let asked = ConfigRead { fsname: "nacre".into(), ..ConfigRead::default() };
        let mgs = stranger.import(MGS_NODE, "MGS");
        stranger.config = call::<ConfigReply>(&mgs, Opcode::MgsConfigRead, &asked).await.unwrap().config;
        stranger
    }

    /// Connects as any client may.
    fn import(&self, server: u32, target: &str) -> Arc<Import> {
        let rt = self.node.rt();
        self.import_as(server, target, Uuid::from_random(rt.random(), rt.random()), "stranger", 0)
    }

    fn import_as(&self, server: u32, target: &str, client: Uuid, name: &str, flags: u64) -> Arc<Import> {
        self.node.import(ImportConfig {
            client,
            client_name: name.into(),
            target: target.into(),
            nids: [Nid::sim(server)].into(),
            kind: target.parse::<TargetName>().map_or(TargetKind::Ost, |name| name.kind),
            data: ConnectData { flags, ..ConnectData::default() }.into(),
            label: format!("{target}-hostile").into(),
        })
    }

    fn uuid(&self, target: &str) -> Uuid {
        self.config.targets.iter().find(|entry| entry.target == target).unwrap().uuid
    }

    async fn leave(self) {
        self.node.shutdown().await;
        self.net.crash(STRANGER);
        self.node.rt().kill();
    }
}

async fn call<R: Field>(import: &Import, opcode: Opcode, body: &impl Field) -> Result<R, RpcError> {
    let options = CallOptions { deadline: Some(secs(60)), ..CallOptions::default() };
    import.call(opcode, body, options).await.map(|reply| reply.body)
}

#[track_caller]
fn assert_refused<R: std::fmt::Debug>(result: Result<R, RpcError>) {
    let is_refused = matches!(result, Err(RpcError::Status(Errno::EPERM) | RpcError::Refused(Errno::EPERM)));
    assert!(is_refused, "not refused: {result:?}");
}

/// Asserts that the MGS refused to register `target`, and told the reason.
#[track_caller]
fn assert_not_registered(reply: Result<TargetRegReply, RpcError>, target: &str) {
    let reply = reply.unwrap();
    let reason = reply.refused.as_ref().expect("a reason").as_str();
    assert!(reason.contains(target) && reply.object_seq == 0, "{reply:?}");
}

/// Tells a story with a stranger in it, and checks that there is a warning with each of these texts.
fn hostile<F, Fut>(warnings: &[&str], tell: F)
where
    F: FnOnce(Arc<Cluster>, Stranger) -> Fut + Send + 'static,
    Fut: Future<Output = Stranger> + Send + 'static,
{
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_ansi(false).with_writer({
        let log = log.clone();
        move || log.clone()
    });
    tracing::subscriber::with_default(subscriber.finish(), || {
        story(1, 2, |c| async move {
            let stranger = Stranger::new(&c).await;
            tell(c, stranger).await.leave().await;
        });
    });
    let text = String::from_utf8(log.0.lock().clone()).unwrap();
    for warning in warnings {
        assert!(text.contains(warning), "no line says {warning:?}:\n{text}");
    }
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Any client could make an OST destroy objects by their numbers, or all above a number as orphans, and rewrite the
/// objects' records of their files: the OST did it, and reported success.
#[test]
fn an_ost_has_its_objects_made_and_destroyed_by_its_mdt_only() {
    let warnings = [
        "refused OST_DESTROY of stranger at 66000@sim: it is for MDTs only",
        "refused 66000@sim, which connects as nacre-MDT0000",
    ];
    hostile(&warnings, |c, stranger| async move {
        let (u, w) = (user(&c, 0), user(&c, 1));
        let fid = u.file(ROOT, "precious", b"content").await;
        let object = layout_of(&u, fid).await.components[0].stripes[0].object;
        u.sync().await.unwrap();
        let ost = stranger.import(OSS_NODE, "nacre-OST0000");
        assert_refused(call::<()>(&ost, Opcode::OstDestroy, &Destroy { fids: vec![object] }).await);
        // In another second than the line before.
        c.rt().sleep(secs(2)).await;
        let orphans = Create { count: 0, delete_orphans_after: Some(Fid { oid: 0, ..object }) };
        assert_refused(call::<CreateReply>(&ost, Opcode::OstCreate, &orphans).await);
        assert_refused(call::<ObjectFacts>(&ost, Opcode::LfsckQuery, &ObjectQuery::default()).await);
        assert_refused(call::<()>(&ost, Opcode::LfsckNotify, &ObjectRepairs::default()).await);
        c.rt().sleep(secs(2)).await;
        // Claiming to be the MDT does not help, under whatever UUID.
        for client in [stranger.uuid("nacre-MDT0000"), Uuid([9; 16])] {
            let flags = connect_flags::MDS | connect_flags::RECOVERY;
            let mdt = stranger.import_as(OSS_NODE, "nacre-OST0000", client, "nacre-MDT0000", flags);
            assert_refused(call::<CreateReply>(&mdt, Opcode::OstCreate, &orphans).await);
        }
        let mdt = stranger.import_as(OSS_NODE, "nacre-OST0000", stranger.uuid("nacre-MDT0000"), "nacre-MDT0000", 0);
        assert_refused(call::<CreateReply>(&mdt, Opcode::OstCreate, &orphans).await);
        assert_eq!(w.content(fid).await, b"content");
        // The MDT's own connection was not affected: it can still create and remove files.
        for i in 0..300 {
            u.file(ROOT, &format!("f{i}"), b"x").await;
        }
        let before = c.executed(Server::Oss(0), Opcode::OstDestroy);
        u.remove(ROOT, "precious").await.unwrap();
        c.rt().sleep(secs(30)).await;
        assert!(c.executed(Server::Oss(0), Opcode::OstDestroy) > before, "the MDT destroys objects");
        stranger
    });
}

/// A target's UUID, which the MGS tells everybody, was enough to register the target at another node: all clients went
/// there. Anybody could add an MDT, and set any parameter on every client.
#[test]
fn the_mgs_is_changed_by_its_servers_and_its_own_node_only() {
    let warnings = ["lctl replace_nids nacre-OST0000 66000@sim", "refused MGS_SET_PARAM of stranger at 66000@sim"];
    hostile(&warnings, |c, stranger| async move {
        let mgs = stranger.import(MGS_NODE, "MGS");
        let here = Nid::sim(STRANGER);
        let reg =
            |target: &str, uuid, nids| TargetReg { target: target.into(), uuid, nids, instance: 99, host: "h".into() };
        let (ost, own) = (stranger.uuid("nacre-OST0000"), Uuid([9; 16]));
        for attempt in [
            reg("nacre-OST0000", ost, vec![here]),
            reg("nacre-OST0000", ost, vec![Nid::sim(OSS_NODE), here]),
            reg("nacre-OST0000", ost, vec![Nid::sim(OSS_NODE)]),
            reg("nacre-MDT0001", own, vec![here]),
            reg("nacre-MDT0001", own, vec![Nid::sim(MDS_NODE), here]),
        ] {
            assert_not_registered(call(&mgs, Opcode::MgsTargetReg, &attempt).await, &attempt.target);
        }
        c.rt().sleep(secs(2)).await;
        let param =
            |name: &str, value: &str| SetParam { fsname: "nacre".into(), name: name.into(), value: Some(value.into()) };
        for attempt in [param("fail_loc", "rpc.request.drop:crash"), param("osc.*.active", "0")] {
            assert_refused(call::<ChangeReply>(&mgs, Opcode::MgsSetParam, &attempt).await);
        }
        let asked = LeaseQuery { evicted: vec![c.client(0).uuid()], ..LeaseQuery::default() };
        assert_refused(call::<LeaseReply>(&mgs, Opcode::MgsLeases, &asked).await);
        // A stranger cannot renew a lease, because he does not know the cookie of the client's export.
        let guessed = Renewals { exports: (0..1000).collect() };
        assert_eq!(call::<RenewalsReply>(&mgs, Opcode::MgsRenew, &guessed).await.unwrap().renewed, [] as [u64; 0]);
        let moved = ReplaceNids { target: "nacre-OST0000".into(), nids: vec![here] };
        assert_refused(call::<ChangeReply>(&mgs, Opcode::MgsReplaceNids, &moved).await);
        let asked = ConfigRead { fsname: "nacre".into(), ..ConfigRead::default() };
        let ConfigReply { config, .. } = call(&mgs, Opcode::MgsConfigRead, &asked).await.unwrap();
        assert_eq!(config, stranger.config);
        assert_eq!(c.param(Server::Mgs, "mgs.MGS.leases_ended")[0].1, "0");
        user(&c, 0).file(ROOT, "f", b"x").await;
        stranger
    });
}

/// Anybody may register a new OST. Its node was then taken for a server of the file system: it could register an MDT,
/// which every OST obeys, or connect under the UUID of the MDT, if it had registered the OST under that UUID.
#[test]
fn an_ost_of_a_stranger_does_not_make_it_an_mdt() {
    let warnings = ["66000@sim asks to be nacre-MDT0001", "refused 66000@sim, which connects as nacre-MDT0000"];
    hostile(&warnings, |c, stranger| async move {
        let mgs = stranger.import(MGS_NODE, "MGS");
        let (mdt, nids) = (stranger.uuid("nacre-MDT0000"), vec![Nid::sim(STRANGER)]);
        let reg = |target: &str, uuid| TargetReg {
            target: target.into(),
            uuid,
            nids: nids.clone(),
            instance: 1,
            host: "h".into(),
        };
        let ost = reg("nacre-OST00ff", mdt);
        let reply: TargetRegReply = call(&mgs, Opcode::MgsTargetReg, &ost).await.unwrap();
        assert_eq!(reply.refused, None, "an OST may come from anywhere");
        c.rt().sleep(secs(5)).await;
        let further = reg("nacre-MDT0001", Uuid([9; 16]));
        assert_not_registered(call(&mgs, Opcode::MgsTargetReg, &further).await, &further.target);
        let as_mdt = stranger.import_as(OSS_NODE, "nacre-OST0000", mdt, "nacre-MDT0000", 0);
        let orphans = Create { count: 0, delete_orphans_after: None };
        assert_refused(call::<CreateReply>(&as_mdt, Opcode::OstCreate, &orphans).await);
        stranger
    });
}

/// A client that replays a lock chooses its id, and no limit of locks applies. That was possible at any time: locks without
/// number, under ids that made the server's index of them so deep that its recursion overflowed the stack.
#[test]
fn a_lock_is_restored_in_a_recovery_only() {
    hostile(&[], |c, stranger| async move {
        let u = user(&c, 0);
        let fid = u.file(ROOT, "f", b"content").await;
        let object = layout_of(&u, fid).await.components[0].stripes[0].object;
        let ost = stranger.import(OSS_NODE, "nacre-OST0000");
        let lock = Enqueue {
            kind: LockKind::Extent,
            resource: object,
            mode: LockMode::Pr,
            end: 9,
            flags: enqueue_flags::NO_EXPANSION,
            ..Enqueue::default()
        };
        let held: EnqueueReply = call(&ost, Opcode::LdlmEnqueue, &lock).await.unwrap();
        let replay = async |handle| {
            let body = Enqueue { handle, flags: lock.flags | enqueue_flags::REPLAY, ..lock.clone() };
            let options = CallOptions { deadline: Some(secs(60)), recovery: true, ..CallOptions::default() };
            let reply = ost.call::<EnqueueReply>(Opcode::LdlmEnqueue, &body, options).await;
            reply.map(|reply| reply.body.handle)
        };
        for handle in 1..10 {
            assert_eq!(replay(handle).await, Err(RpcError::Status(Errno::ESTALE)));
        }
        assert_eq!(replay(held.handle).await, Ok(held.handle), "a client may repeat the replay of a lock that it has");
        call::<()>(&ost, Opcode::LdlmCancel, &Cancel { handles: vec![held.handle] }).await.unwrap();
        assert_eq!(replay(held.handle).await, Err(RpcError::Status(Errno::ESTALE)));
        stranger
    });
}

/// The name of a client is no secret either: a stranger that connected under it got the client evicted, with its
/// unwritten data, and took over its export.
#[test]
fn a_client_that_answers_is_not_pushed_out() {
    hostile(&["refused 66000@sim, which connects as"], |c, stranger| async move {
        let u = user(&c, 0);
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        u.put(&file, 0, b"not written yet").await.unwrap();
        let exports = (c.exports(Server::Mds), c.exports(Server::Oss(0)));
        for (server, target) in [(MDS_NODE, "nacre-MDT0000"), (OSS_NODE, "nacre-OST0000")] {
            let import = stranger.import_as(server, target, u.uuid(), "client-10000", connect_flags::RECOVERY);
            let answer: Result<(), _> = call(&import, Opcode::MdsSync, &()).await;
            assert_eq!(
                answer,
                Err(RpcError::TimedOut),
                "{target}: it is told to come again, as long as the client lives"
            );
            import.disconnect().await;
        }
        assert_eq!((c.exports(Server::Mds), c.exports(Server::Oss(0))), exports);
        u.fsync(&file, false).await.unwrap();
        u.release(file).await.unwrap();
        assert_eq!(user(&c, 1).content(u.find(ROOT, "f").await.unwrap().fid).await, b"not written yet");
        stranger
    });
}

/// Any process could call a client back about its locks, for a target of its choice: the client gave them up, and
/// reported sizes.
#[test]
fn a_client_is_called_back_by_its_own_servers_only() {
    hostile(&["refused 66000@sim, which would call back as nacre-OST0000"], |c, stranger| async move {
        let u = user(&c, 0);
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        u.put(&file, 0, b"dirty").await.unwrap();
        let object = layout_of(&u, file.fid()).await.components[0].stripes[0].object;
        let target = callback_target(u.uuid());
        for client in [stranger.uuid("nacre-OST0000"), Uuid([9; 16])] {
            let import = stranger.import_as(CLIENT_NODE, &target, client, "nacre-OST0000", connect_flags::MDS);
            let glimpse = GlimpseCallback { handle: 1, resource: object };
            assert_refused(call::<GlimpseReply>(&import, Opcode::LdlmGlCallback, &glimpse).await);
            let blocking = BlockingCallback { handle: 1, resource: object, ..BlockingCallback::default() };
            assert_refused(call::<()>(&import, Opcode::LdlmBlCallback, &blocking).await);
            let no_room = LockVolume { volume: 1, limit: 1 };
            assert_refused(call::<()>(&import, Opcode::LdlmSetInfo, &no_room).await);
        }
        // A callback from its own OST is obeyed.
        assert_eq!(user(&c, 1).content(file.fid()).await, b"dirty");
        u.release(file).await.unwrap();
        stranger
    });
}

/// If the MGS is away, an OST knows from its last run which node has the MDT.
#[test]
fn an_ost_that_starts_without_the_mgs_obeys_its_mdt() {
    story(1, 1, |c| async move {
        let u = user(&c, 0);
        u.file(ROOT, "before", b"1").await;
        c.rt().sleep(secs(20)).await;
        u.sync().await.unwrap();
        c.crash(Server::Mgs, Crash::Process);
        c.crash(Server::Oss(0), Crash::PowerCut);
        c.restart(Server::Oss(0)).await.unwrap();
        let made = c.executed(Server::Oss(0), Opcode::OstCreate);
        // More files than there were precreated objects.
        for i in 0..300 {
            u.file(ROOT, &format!("f{i}"), b"x").await;
        }
        assert!(c.executed(Server::Oss(0), Opcode::OstCreate) > made);
        c.restart(Server::Mgs).await.unwrap();
    });
}

/// Compares the table of parameters with the registered ones.
#[test]
fn every_parameter_that_can_be_set_is_declared_with_its_range() {
    story(1, 1, |c| async move {
        user(&c, 0).file(ROOT, "f", b"x").await;
        let nodes = c.servers().into_iter().map(|server| c.server_node(server).unwrap());
        let all: Vec<Params> = nodes.chain([c.client_node(0).clone()]).map(|node| node.params().clone()).collect();
        // Registering asserts that each parameter is declared; this checks that each declared one is registered.
        let tables = all[0].declarations();
        for d in tables.all().filter(|d| d.access == Access::Kept) {
            let name = |params: &&Params| {
                let is_it = |n: &str| tables.find(n).is_some_and(|(found, _)| std::ptr::eq(found, d));
                params.list("**").into_iter().find(|(n, settable)| *settable && is_it(n))
            };
            let params = all.iter().find(|params| name(params).is_some());
            let params = params.unwrap_or_else(|| panic!("nothing has the parameter {:?}.*.{}", d.layers, d.name));
            let (name, _) = name(&params).unwrap();
            let shown = params.value(&name).unwrap();
            let (good, bad) = match d.kind {
                Kind::Number { least, most, step } => {
                    (vec![least.to_string(), most.to_string()], vec![(most + step).to_string(), "x".to_owned()])
                }
                Kind::Percent => (vec!["0".to_owned(), "100%".to_owned()], vec!["101".to_owned()]),
                Kind::Words(words) => (words.iter().map(|w| (*w).to_owned()).collect(), vec!["x".to_owned()]),
                Kind::Counted { words, counted, most } => {
                    let numbers = [0, most].map(|n| format!("{counted}:{n}"));
                    let good = words.iter().map(|w| (*w).to_owned()).chain(numbers).collect();
                    (good, vec![counted.to_owned(), format!("{counted}:{}", most + 1), "x".to_owned()])
                }
                Kind::ByPriority { field, of } => {
                    let good = if let Kind::Words(words) = of { words[0] } else { "7" };
                    let both = format!("reg_{field}:{good} hp_{field}:{good}");
                    let bad = [String::new(), "x".to_owned(), format!("reg_{field}:x"), format!("lp_{field}:{good}")];
                    (vec![good.to_owned(), format!("hp_{field}:{good}"), both], bad.to_vec())
                }
                Kind::Syntax(syntax) => {
                    let owned = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect();
                    (owned(syntax.good), owned(syntax.bad))
                }
                Kind::Squash => (vec!["65534:65534".to_owned()], vec!["x".to_owned()]),
                Kind::Nids => (vec!["10.0.0.[1-4]@tcp *@sim".to_owned()], vec!["x".to_owned()]),
                Kind::Gauge | Kind::Counter | Kind::Text | Kind::Statistics | Kind::Histograms | Kind::Action => {
                    panic!("{name} has no type that can be checked, so it must not be kept")
                }
            };
            for value in good {
                assert!(params.set(&name, &value).is_ok(), "{name} refuses {value}, which is declared");
            }
            for value in bad {
                assert!(params.set(&name, &value).is_err(), "{name} takes {value}, which is not declared");
            }
            // `max_cached_mb` shows more than what is set.
            let before = shown.field("max_cached_mb").unwrap_or(&shown).to_string();
            assert!(d.default.is_empty() || before == d.default, "{name} is {before}, not {} as declared", d.default);
            let _ = params.set(&name, &before);
        }
    });
}

/// Settings that the MGS keeps reach servers and clients, also those that start later, and survive a restart of every part
/// and of the whole cluster. What is unknown, of another type or out of range is refused with a sentence, and changes nothing.
#[test]
fn a_kept_setting_is_everywhere_and_stays() {
    story(1, 1, |c| async move {
        let mgs = c.server_node(Server::Mgs).unwrap();
        let keep = |name: &str, value: Option<&str>| {
            let param = SetParam { fsname: String::new(), name: name.into(), value: value.map(str::to_owned) };
            let mgs = mgs.clone();
            async move { nacre_mgc::keep_param(mgs.rpc(), &param).await }
        };
        keep("obdfilter.*.degraded", Some("1")).await.unwrap();
        keep("lod.*.stripesize", Some("131072")).await.unwrap();
        keep("osc.*.max_dirty_mb", Some("77")).await.unwrap();
        let range = "must be a number from 1 to 2047, not";
        for (name, value, why) in [
            ("fail_loc", Some("rpc.request.drop:crash"), "\"fail_loc\" is no parameter that can be kept".to_owned()),
            ("osc.*.no_such_thing", Some("1"), "\"osc.*.no_such_thing\" is no parameter that can be kept".to_owned()),
            ("osc.*.max_dirty_mb", Some("4096"), format!("osc.*.max_dirty_mb {range} \"4096\"")),
            ("osc.*.max_dirty_mb", Some("many"), format!("osc.*.max_dirty_mb {range} \"many\"")),
            ("obdfilter.*.degraded", Some("yes"), "obdfilter.*.degraded must be ".to_owned()),
            ("obdfilter.*.sync_journal", None, "obdfilter.*.sync_journal is not set".to_owned()),
        ] {
            let refused = keep(name, value).await.expect_err(name);
            assert!(refused.starts_with(&why), "{name}: {refused:?} does not begin with {why:?}");
        }
        let shown = |c: &Cluster| {
            // One line for each mount of the node.
            let mounts = c.client_node(0).params().get("osc.*-osc-ffff*.max_dirty_mb").unwrap();
            let of_servers = [(Server::Mds, "lod.*.stripesize"), (Server::Oss(0), "obdfilter.*.degraded")]
                .map(|(server, name)| c.param(server, name)[0].1.clone());
            (of_servers, mounts.into_iter().map(|(_, value)| value).collect::<Vec<_>>())
        };
        let kept = |mounts| (["131072".to_owned(), "1".to_owned()], vec!["77".to_owned(); mounts]);
        c.rt().sleep(secs(5)).await;
        assert_eq!(shown(&c), kept(1));
        let all = [Server::Mgs, Server::Mds, Server::Oss(0)];
        for servers in [&all[..1], &all[1..2], &all[2..], &all] {
            servers.iter().for_each(|server| c.crash(*server, Crash::PowerCut));
            for server in servers {
                c.restart(*server).await.unwrap();
            }
            c.rt().sleep(secs(60)).await;
            let beside = c.mount_beside(0).await.unwrap();
            c.rt().sleep(secs(5)).await;
            assert_eq!(shown(&c), kept(2), "after a restart of {servers:?}");
            beside.unmount().await;
        }

        let mgs = c.server_node(Server::Mgs).unwrap();
        let forgotten = SetParam { fsname: String::new(), name: "obdfilter.*.degraded".into(), value: None };
        nacre_mgc::keep_param(mgs.rpc(), &forgotten).await.unwrap();
        c.crash(Server::Oss(0), Crash::Process);
        c.restart(Server::Oss(0)).await.unwrap();
        c.rt().sleep(secs(5)).await;
        assert_eq!(c.param(Server::Oss(0), "obdfilter.*.degraded")[0].1, "0", "the default");
    });
}

/// Root on a client was root on the file system, and that could not be turned off.
#[test]
fn root_is_squashed_but_on_trusted_nodes() {
    story(1, 2, |c| async move {
        let (u, w) = (user(&c, 0), user(&c, 1));
        let private = u.mkdir(&root(), ROOT, b"private", 0o700, 0).await.unwrap().fid;
        let open = u.mkdir(&root(), ROOT, b"open", 0o777, 0).await.unwrap().fid;
        u.chmod(open, 0o777).await.unwrap();
        assert_eq!(c.set_param(Server::Mds, "mdt.*.root_squash", "65534:65533"), 1);
        assert_eq!(c.set_param(Server::Mds, "mdt.*.nosquash_nids", &format!("{}@sim", CLIENT_NODE + 1)), 1);
        assert_eq!(u.dir(private, "a").await, Err(Errno::EACCES));
        assert_eq!(u.chmod(private, 0o777).await.map(drop), Err(Errno::EPERM));
        u.dir(open, "mine").await.unwrap();
        let attr = w.find(open, "mine").await.unwrap();
        assert_eq!((attr.uid, attr.gid), (65534, 65533));
        w.dir(private, "b").await.expect("this node is trusted");
        assert_eq!(w.find(private, "b").await.unwrap().uid, 0);
        assert_eq!(c.set_param(Server::Mds, "mdt.*.root_squash", "0:0"), 1);
        u.dir(private, "a").await.unwrap();
    });
}
