//! Layouts over the network: components that get their objects late, automatic stripe counts, clients without
//! overstriping.

use super::cluster::*;
use crate::linger::LINGER;
use nacre_base::fault::{Fault, FaultAction};
use nacre_base::{Errno, Fid};
use nacre_wire::Opcode;
use nacre_wire::attr::SetAttr;
use nacre_wire::connect::connect_flags::OVERSTRIPING;
use nacre_wire::layout::{ComponentSpec, Layout, LayoutSpec, STRIPE_COUNT_AUTO};
use nacre_wire::mds::open_flags::{FASYNC, O_CREAT, O_RDWR};
use nacre_wire::mds::*;

const M: u64 = 1 << 20;

fn component(end: u64, stripe_count: i32, overstripe: bool) -> ComponentSpec {
    ComponentSpec { end, stripe_count, overstripe, stripe_offset: -1, ..ComponentSpec::default() }
}

async fn make(client: &Client, n: &str, components: Vec<ComponentSpec>) -> Result<(Fid, Layout), Errno> {
    let opened = client.open(Fid::ROOT, n, O_CREAT | O_RDWR | FASYNC).await?;
    let fid = opened.attr.fid;
    let r = ReintSetLayout { fid, spec: Some(LayoutSpec { components }), ..ReintSetLayout::default() };
    let reply: AttrReply = client.reint(ReintRecord::SetLayout(r)).await?;
    Ok((fid, reply.layout.unwrap()))
}

async fn write_to(client: &Client, fid: Fid, start: u64, end: u64) -> Result<Layout, Errno> {
    let r = ReintSetLayout { fid, spec: None, start, end };
    let reply: AttrReply = client.reint(ReintRecord::SetLayout(r)).await?;
    Ok(reply.layout.unwrap())
}

fn counts(layout: &Layout) -> Vec<usize> {
    layout.components.iter().map(|c| c.stripes.len()).collect()
}

#[test]
fn clients_that_write_at_once_get_the_same_objects_and_unlink_frees_them() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt, 3).await;
        let client = cluster.client(1);
        rt.sleep(secs(1)).await;
        let spec = vec![component(M, 1, false), component(2 * M, 2, false), component(u64::MAX, 12, true)];
        let (fid, layout) = make(&client, "f", spec).await.unwrap();
        assert_eq!((counts(&layout), layout.generation), (vec![1, 0, 0], 3));
        assert_eq!(layout.components[2].stripe_count(), 12, "as it will be");
        let writers =
            (2..8).map(|n| cluster.client(n).start(move |c| async move { write_to(&c, fid, 0, 9 * M).await }));
        let mut layouts = Vec::new();
        for writer in writers.collect::<Vec<_>>() {
            layouts.push(writer.await.unwrap().unwrap());
        }
        assert_eq!((counts(&layouts[0]), layouts[0].generation), (vec![1, 2, 12], 4), "one step, all at once");
        assert!(layouts.iter().all(|l| *l == layouts[0]));
        assert!(layouts[0].components[2].is_overstriped() && !layouts[0].components[1].is_overstriped());
        client.unlink(Fid::ROOT, "f").await.unwrap();
        for n in 1..8 {
            cluster.client(n).import.disconnect().await;
        }
        client.import.disconnect().await;
        rt.sleep(LINGER * 2).await;
        cluster.commit().await;
        rt.sleep(secs(5)).await;
        assert_eq!(cluster.osts.iter().map(|o| o.state().destroyed.len()).sum::<usize>(), 15);
    });
}

#[test]
fn a_write_waits_for_objects_and_what_cannot_be_is_refused_at_once() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt, 2).await;
        let client = cluster.client(1);
        rt.sleep(secs(1)).await;
        let (fid, _) = make(&client, "f", vec![component(M, 1, false), component(u64::MAX, 1500, true)]).await.unwrap();
        cluster.faults.arm("osp.create", Fault { action: FaultAction::Delay(secs(2)), skip: 0, times: 2 });
        assert_eq!(counts(&write_to(&client, fid, M, M + 1).await.unwrap()), [1, 1500]);
        let much = vec![component(M, 2000, true), component(2 * M, 2000, true), component(u64::MAX, 1, false)];
        assert_eq!(make(&client, "too much", much).await, Err(Errno::E2BIG));
        let unknown = ComponentSpec { osts: vec![nacre_base::OstIndex(9)], ..component(u64::MAX, 0, false) };
        assert_eq!(make(&client, "where", vec![component(M, 1, false), unknown]).await, Err(Errno::EINVAL));
    });
}

#[test]
fn stripes_are_counted_by_the_writers_there_are() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt, 3).await;
        let client = cluster.client(1);
        rt.sleep(secs(1)).await;
        let auto = || vec![component(u64::MAX, STRIPE_COUNT_AUTO, true)];
        let (one, layout) = make(&client, "one", auto()).await.unwrap();
        assert_eq!(counts(&layout), [1, 0, 0]);
        assert_eq!(counts(&write_to(&client, one, 64 * M, 65 * M).await.unwrap()), [1, 3, 0]);
        let (many, _) = make(&client, "many", auto()).await.unwrap();
        for n in 2..6 {
            cluster.client(n).open(Fid::ROOT, "many", O_RDWR).await.unwrap();
            cluster.client(n + 10).open(Fid::ROOT, "many", 0).await.unwrap();
        }
        let layout = write_to(&client, many, 64 * M, 65 * M).await.unwrap();
        assert_eq!(counts(&layout), [1, 6, 0], "five writers on three OSTs; readers don't count");
        assert!(layout.components[1].is_overstriped());
        // As the default of files without a layout of their own.
        assert_eq!(cluster.param("lod.nacre-MDT0000-mdtlov.auto_stripe"), "0");
        let param = "lod.nacre-MDT0000-mdtlov.auto_stripe";
        cluster.server.params.set(param, "1").unwrap();
        let opened = client.open(Fid::ROOT, "new", O_CREAT | O_RDWR).await.unwrap();
        assert_eq!(counts(&opened.layout.unwrap()), [1, 0, 0]);
        assert_eq!(counts(&make(&client, "c2", vec![component(u64::MAX, 2, false)]).await.unwrap().1), [2]);
    });
}

#[test]
fn a_client_without_overstriping_sees_such_files_and_cannot_open_them() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt, 2).await;
        let client = cluster.client(1);
        let old = cluster.client_with(2, !OVERSTRIPING);
        rt.sleep(secs(1)).await;
        let (fid, layout) = make(&client, "over", vec![component(u64::MAX, 4, true)]).await.unwrap();
        make(&client, "plain", vec![component(u64::MAX, 2, false)]).await.unwrap();
        assert_eq!(client.getattr(fid).await.unwrap().layout, Some(layout));
        assert_eq!(old.open(Fid::ROOT, "over", 0).await.map(drop), Err(Errno::EOPNOTSUPP));
        assert_eq!(old.open(Fid::ROOT, "over", O_RDWR).await.map(drop), Err(Errno::EOPNOTSUPP));
        assert_eq!(old.getattr(fid).await.unwrap().layout, None);
        assert_eq!(old.lookup(Fid::ROOT, "over").await.unwrap().layout, None);
        let page = Readpage { fid: Fid::ROOT, max_bytes: 65536, with_attr: true, ..Readpage::default() };
        let page: ReadpageReply = old.call(Opcode::MdsReadpage, &page).await.unwrap();
        let given = page.entries.iter().filter(|e| e.attr.as_ref().is_some_and(|a| a.layout.is_some()));
        assert_eq!(given.map(|e| &e.name[..]).collect::<Vec<_>>(), [b"plain"]);
        let set = |set| ReintRecord::Setattr(ReintSetattr { fid, set, handle: 0 });
        let cut: Result<AttrReply, Errno> = old.reint(set(SetAttr { size: Some(9), ..SetAttr::default() })).await;
        assert_eq!(cut.map(drop), Err(Errno::EOPNOTSUPP));
        assert_eq!(client.getattr(fid).await.unwrap().attr.size, 0, "undone");
        let chmod: AttrReply = old.reint(set(SetAttr { mode: Some(0o600), ..SetAttr::default() })).await.unwrap();
        assert_eq!((chmod.layout, chmod.attr.mode & 0o777), (None, 0o600));
        assert!(old.open(Fid::ROOT, "plain", O_RDWR).await.unwrap().layout.is_some());
        old.unlink(Fid::ROOT, "over").await.unwrap();
    });
}
