//! Tests each rule on made-up targets: with the cause that it names, and with similar cases in which it names nobody.

use crate::picture::{Holder, Link, Picture, Process, Target, Use};
use crate::rules::report;
use nacre_base::Part;
use std::collections::BTreeMap;

/// A job: its name, how many requests it had, and milliseconds of each part of one.
type Job<'a> = (&'a str, f64, &'a [(Part, f64)]);

/// A target whose jobs have had this many requests of 1 MiB each, with the parts of a request in milliseconds.
fn target(jobs: &[Job]) -> Target {
    let mut target =
        Target { is_ost: true, health: "healthy".into(), recovery: "COMPLETE".into(), ..Target::default() };
    for (job, requests, parts) in jobs {
        let mut used = Use { requests: *requests, written: requests * (1 << 20) as f64, ..Use::default() };
        parts.iter().for_each(|(part, ms)| used.parts[*part as usize] = requests * ms * 1000.0);
        target.jobs.insert((*job).to_owned(), used);
        target.operations.entry("write".to_owned()).or_default().add(&used);
        let client = target.clients.entry(format!("of {job}")).or_default();
        (client.name, client.nid) = (format!("node of {job}"), format!("{job}@tcp"));
        client.used.add(&used);
    }
    target
}

/// Findings about the first five seconds of these targets.
fn found(targets: Vec<Target>) -> Vec<(&'static str, String)> {
    found_with(targets, BTreeMap::new(), BTreeMap::new())
}

/// Findings about the first five seconds of these targets, with the processes before and after.
fn found_with(
    targets: Vec<Target>,
    were: BTreeMap<String, Process>,
    are: BTreeMap<String, Process>,
) -> Vec<(&'static str, String)> {
    let name = |n, target: &Target| if target.is_ost { format!("a-OST000{n}") } else { format!("a-MDT000{n}") };
    let named = |targets: Vec<Target>| targets.into_iter().enumerate().map(|(n, t)| (name(n, &t), t)).collect();
    let before = targets.iter().map(|t| Target { is_ost: t.is_ost, ..Target::default() }).collect();
    let first = Picture { time: 100.0, targets: named(before), processes: were, ..Picture::default() };
    let last = Picture { time: 105.0, targets: named(targets), processes: are, ..Picture::default() };
    let report = report([&first, &last].into_iter());
    report.findings.iter().map(|f| (f.kind, f.who.clone())).collect()
}

const EVEN: &[(Part, f64)] =
    &[(Part::Queue, 300.0), (Part::Device, 40.0), (Part::Transfer, 10.0), (Part::Service, 1.0)];

#[test]
fn idle_and_busy_systems_whose_load_is_even_have_nothing_wrong() {
    assert_eq!(found(vec![target(&[]), target(&[])]), []);
    let even = || target(&[("a", 500.0, EVEN), ("b", 480.0, EVEN), ("c", 520.0, EVEN)]);
    assert_eq!(found(vec![even(), even(), even()]), []);
    assert_eq!(found(vec![target(&[("a", 500.0, EVEN)])]), []);
}

#[test]
fn a_disk_is_slow_beside_its_peers_only() {
    let slow: &[(Part, f64)] = &[(Part::Queue, 300.0), (Part::Device, 400.0), (Part::Transfer, 10.0)];
    let one = |parts| target(&[("a", 50.0, parts)]);
    assert_eq!(found(vec![one(EVEN), one(slow), one(EVEN)]), [("slow-disk", "a-OST0001".to_owned())]);
    assert_eq!(found(vec![one(slow), one(slow), one(slow)]), []);
}

#[test]
fn a_job_that_takes_a_target_is_named_if_others_wait_for_it() {
    let mine: &[(Part, f64)] = &[(Part::Queue, 900.0), (Part::Device, 40.0)];
    let theirs: &[(Part, f64)] = &[(Part::Queue, 800.0), (Part::Device, 40.0)];
    let taken = || target(&[("big", 900.0, mine), ("small", 20.0, theirs)]);
    assert_eq!(found(vec![taken()]), [("greedy-job", "big".to_owned())]);
    let patient: &[(Part, f64)] = &[(Part::Queue, 1.0), (Part::Device, 40.0)];
    assert_eq!(found(vec![target(&[("big", 900.0, mine), ("small", 20.0, patient)])]), []);
}

#[test]
fn holders_of_locks_are_named_once_others_wait_for_them() {
    let waits: &[(Part, f64)] = &[(Part::Locks, 90.0), (Part::Device, 5.0)];
    let holder = |client: &str, callbacks, waited_for| Holder {
        resource: "[0x1:0x2:0x0]".into(),
        client: client.into(),
        callbacks,
        waited_for,
    };
    let mut contended = target(&[("a", 100.0, waits)]);
    contended.holders = vec![holder("n1", 40.0, 0.0), holder("n2", 60.0, 0.1)];
    assert_eq!(found(vec![contended]), [("contended-lock", "n2".to_owned())]);
    let mut kept = target(&[]);
    kept.holders = vec![holder("n7", 1.0, 8.0)];
    assert_eq!(found(vec![kept]), [("kept-lock", "n7".to_owned())]);
}

#[test]
fn a_slow_link_is_its_clients_and_a_stalled_commit_its_targets() {
    let slow: &[(Part, f64)] = &[(Part::Transfer, 200.0), (Part::Device, 20.0)];
    let usual: &[(Part, f64)] = &[(Part::Transfer, 10.0), (Part::Device, 20.0)];
    let one = target(&[("a", 50.0, slow), ("b", 50.0, usual), ("c", 50.0, usual)]);
    assert_eq!(found(vec![one]), [("slow-link", "node of a".to_owned())]);
    let stalled: &[(Part, f64)] = &[(Part::Commit, 2500.0), (Part::Device, 20.0)];
    assert_eq!(found(vec![target(&[("a", 20.0, stalled)])]), [("slow-commit", "a-OST0000".to_owned())]);
}

#[test]
fn targets_that_are_full_or_recover_say_so() {
    let mut full = target(&[]);
    (full.size, full.available) = (1000.0, 0.0);
    let mut recovering = target(&[]);
    recovering.recovery = "RECOVERING".into();
    let found = found(vec![full, recovering]);
    assert_eq!(found, [("full", "a-OST0000".to_owned()), ("recovery", "a-OST0001".to_owned())]);
}

#[test]
fn a_server_is_slow_at_computing_or_at_its_link_beside_its_peers_only() {
    let computes: &[(Part, f64)] = &[(Part::Service, 60.0), (Part::Device, 20.0)];
    let moves: &[(Part, f64)] = &[(Part::Transfer, 300.0), (Part::Device, 20.0)];
    let usual: &[(Part, f64)] = &[(Part::Transfer, 10.0), (Part::Device, 20.0), (Part::Service, 1.0)];
    let with = |parts| target(&[("a", 50.0, parts), ("b", 50.0, parts)]);
    assert_eq!(found(vec![with(usual), with(computes), with(usual)]), [("slow-server", "a-OST0001".to_owned())]);
    assert_eq!(found(vec![with(usual), with(usual), with(moves)]), [("slow-link", "a-OST0002".to_owned())]);
    assert_eq!(found(vec![with(computes), with(computes)]), []);
    assert_eq!(found(vec![with(moves), with(moves)]), []);
}

#[test]
fn small_requests_that_take_a_target_are_named_so() {
    let mine: &[(Part, f64)] = &[(Part::Queue, 900.0), (Part::Device, 40.0)];
    let theirs: &[(Part, f64)] = &[(Part::Queue, 800.0), (Part::Device, 40.0)];
    let mut taken = target(&[("tiny", 900.0, mine), ("large", 20.0, theirs)]);
    taken.jobs.get_mut("tiny").unwrap().written = 900.0 * 4096.0;
    assert_eq!(found(vec![taken]), [("small-records", "tiny".to_owned())]);
}

#[test]
fn one_directory_is_named_if_most_changes_of_a_crowded_mdt_are_there() {
    let waits: &[(Part, f64)] = &[(Part::Queue, 30.0), (Part::Service, 1.0)];
    let mdt = |directories: &[(&str, f64)]| {
        let mut mdt = Target { is_ost: false, ..target(&[("a", 2000.0, waits), ("b", 2000.0, waits)]) };
        mdt.directories = directories.iter().map(|(fid, changes)| ((*fid).to_owned(), *changes)).collect();
        mdt
    };
    let one = mdt(&[("[0x1:0x2:0x0]", 3500.0), ("[0x1:0x3:0x0]", 500.0)]);
    assert_eq!(found(vec![one]), [("busy-directory", "[0x1:0x2:0x0]".to_owned())]);
    assert_eq!(found(vec![mdt(&[("[0x1:0x2:0x0]", 2000.0), ("[0x1:0x3:0x0]", 2000.0)])]), []);
}

/// A full target also reports that it is unhealthy. That is the same fault, so only one finding names it.
#[test]
fn a_target_that_says_that_it_is_full_is_named_once() {
    let with_health = |health: &str| Target { health: health.into(), size: 1e6, available: 900.0, ..target(&[]) };
    assert_eq!(found(vec![with_health("it is full: no space for data is left")]), [("full", "a-OST0000".to_owned())]);
    let failed = found(vec![with_health("it has stopped, its log says why")]);
    assert_eq!(failed.first(), Some(&("unhealthy", "a-OST0000".to_owned())));
}

/// The whole count of a directory was once taken for its changes in the span when it came into the list of the busiest.
#[test]
fn a_directory_that_comes_into_a_full_list_is_not_busy_for_that() {
    let waits: &[(Part, f64)] = &[(Part::Queue, 30.0), (Part::Service, 1.0)];
    let mdt = |requests: f64, directories: [(&str, f64); 2]| Target {
        is_ost: false,
        directories: directories.map(|(fid, changes)| (fid.to_owned(), changes)).into(),
        ..target(&[("a", requests, waits), ("b", requests, waits)])
    };
    let found = |last: Target| {
        let first = mdt(0.0, [("[0x1:0x2:0x0]", 90_000.0), ("[0x1:0x3:0x0]", 80_000.0)]);
        let picture =
            |time, mdt| Picture { time, targets: [("a-MDT0000".to_owned(), mdt)].into(), ..Picture::default() };
        let report = report([&picture(100.0, first), &picture(105.0, last)].into_iter());
        report.findings.iter().map(|f| (f.kind, f.who.clone())).collect::<Vec<_>>()
    };
    assert_eq!(found(mdt(2000.0, [("[0x1:0x2:0x0]", 90_300.0), ("[0x1:0x4:0x0]", 80_300.0)])), []);
    let busy = found(mdt(2000.0, [("[0x1:0x2:0x0]", 90_300.0), ("[0x1:0x4:0x0]", 83_000.0)]));
    assert_eq!(busy, [("busy-directory", "[0x1:0x4:0x0]".to_owned())]);
}

#[test]
fn a_window_is_small_if_others_do_not_wait_for_theirs() {
    let waits: &[(Part, f64)] = &[(Part::Window, 90.0), (Part::Device, 10.0)];
    let usual: &[(Part, f64)] = &[(Part::Window, 1.0), (Part::Device, 10.0)];
    let one = || target(&[("a", 50.0, waits), ("b", 50.0, usual), ("c", 50.0, usual)]);
    let even = || target(&[("a", 50.0, waits), ("b", 50.0, waits), ("c", 50.0, waits)]);
    assert_eq!(found(vec![one(), target(&[("c", 50.0, usual)])]), [("window", "node of a".to_owned())]);
    assert_eq!(found(vec![even(), even()]), []);
}

#[test]
fn a_lossy_link_is_its_clients_or_its_servers() {
    let usual: &[(Part, f64)] = &[(Part::Transfer, 10.0), (Part::Device, 20.0)];
    let load = || target(&[("a", 50.0, usual), ("b", 50.0, usual)]);
    let processes = |lost: &dyn Fn(usize, &str) -> f64| -> BTreeMap<String, Process> {
        let link = |server, peer: &str| (peer.to_owned(), Link { packets: 10_000.0, lost: lost(server, peer) });
        let process = |server: usize| Process {
            targets: vec![format!("a-OST000{server}")],
            links: ["a@tcp", "b@tcp"].map(|peer| link(server, peer)).into(),
            ..Process::default()
        };
        (0..3).map(|server| (format!("s{server}@tcp"), process(server))).collect()
    };
    let found = |lost: &dyn Fn(usize, &str) -> f64| {
        let none = processes(&|_, _| 0.0).into_iter();
        let none = none.map(|(nid, process)| (nid, Process { links: BTreeMap::new(), ..process })).collect();
        found_with(vec![load(), load(), load()], none, processes(lost))
    };
    assert_eq!(found(&|_, _| 3.0), []);
    let of_client = found(&|_, peer| if peer == "a@tcp" { 200.0 } else { 0.0 });
    assert_eq!(of_client, [("lossy-link", "node of a".to_owned())]);
    let of_server = found(&|server, _| if server == 1 { 200.0 } else { 0.0 });
    assert_eq!(of_server, [("lossy-link", "a-OST0001".to_owned())]);
}

#[test]
fn a_lossy_router_is_named_once_for_all_of_its_nids() {
    let links = |peers: &[&str], lost: f64| -> BTreeMap<String, Link> {
        peers.iter().map(|peer| ((*peer).to_owned(), Link { packets: 10_000.0, lost })).collect()
    };
    let processes = |lost: f64| {
        let (near, far) = (["s1@tcp", "s2@tcp"], ["c1@tcp1", "c2@tcp1"]);
        let process = |peers: &[&str]| Process { links: links(peers, lost), ..Process::default() };
        let servers = near.map(|server| (server.to_owned(), process(&["r@tcp"])));
        let clients = far.map(|client| (client.to_owned(), process(&["r@tcp1"])));
        let router = ("r@tcp,r@tcp1".to_owned(), process(&[near, far].concat()));
        servers.into_iter().chain(clients).chain([router]).collect()
    };
    let before = |processes: BTreeMap<String, Process>| -> BTreeMap<String, Process> {
        processes.into_iter().map(|(nids, of)| (nids, Process { links: BTreeMap::new(), ..of })).collect()
    };
    assert_eq!(found_with(vec![], before(processes(0.0)), processes(1.0)), []);
    let lossy = found_with(vec![], before(processes(0.0)), processes(200.0));
    assert_eq!(lossy, [("lossy-link", "r@tcp".to_owned())]);
}

#[test]
fn routers_are_told_apart_by_what_messages_wait_for() {
    let waits: &[(Part, f64)] = &[(Part::Transfer, 100.0), (Part::Device, 10.0)];
    let process = |held: f64, routed: f64, waited: &[(&str, f64)]| Process {
        is_router: true,
        held,
        routed,
        waits: waited.iter().map(|(what, micros)| ((*what).to_owned(), *micros)).collect(),
        ..Process::default()
    };
    let named = |one: Process, two: Process| BTreeMap::from([("r1@tcp".to_owned(), one), ("r2@tcp".to_owned(), two)]);
    let found = |bad: Process| {
        let (idle, good) = (process(1.0, 0.0, &[]), process(2.0, 2000.0, &[]));
        let waits_before =
            || process(bad.held, 0.0, &bad.waits.keys().map(|what| (&what[..], 0.0)).collect::<Vec<_>>());
        let load = target(&[("a", 500.0, waits), ("b", 500.0, waits)]);
        found_with(vec![load], named(waits_before(), idle), named(bad, good))
    };
    let second = 1e6;
    assert_eq!(found(process(20.0, 900.0, &[])), [("slow-router", "r1@tcp".to_owned())]);
    assert_eq!(found(process(20.0, 900.0, &[("large", 80.0 * second)])), [("router-buffers", "r1@tcp".to_owned())]);
    assert_eq!(found(process(3.0, 900.0, &[("router", 80.0 * second)])), [("router-credits", "r1@tcp".to_owned())]);
    assert_eq!(found(process(2.0, 2000.0, &[])), []);
}

#[test]
fn targets_and_routers_that_do_not_answer_are_named() {
    let first = Picture { time: 100.0, targets: [("a-OST0001".to_owned(), target(&[]))].into(), ..Picture::default() };
    let mut last = Picture { time: 105.0, ..Picture::default() };
    last.silent.insert("a-OST0002".to_owned());
    last.unread.insert("10.0.0.9:9464".to_owned(), "connection refused".to_owned());
    let dead_routers = vec!["5@tcp".to_owned()];
    last.processes.insert("1@tcp".to_owned(), Process { dead_routers, ..Process::default() });
    let report = report([&first, &last].into_iter());
    let found: Vec<_> = report.findings.iter().map(|f| (f.kind, f.who.as_str())).collect();
    let away = |who| ("unreachable", who);
    assert_eq!(found, [away("10.0.0.9:9464"), away("a-OST0001"), away("a-OST0002"), ("router-down", "5@tcp")]);
}

#[test]
fn a_target_that_was_restarted_is_looked_at_anew() {
    let stalled: &[(Part, f64)] = &[(Part::Commit, 2500.0), (Part::Device, 20.0)];
    let now = Target { instance: 2.0, ..target(&[("a", 20.0, stalled)]) };
    let before = Target { instance: 1.0, is_ost: true, ..Target::default() };
    let picture =
        |time, target| Picture { time, targets: [("a-OST0000".to_owned(), target)].into(), ..Picture::default() };
    assert!(report([&picture(100.0, before), &picture(105.0, now)].into_iter()).findings.is_empty());
}
