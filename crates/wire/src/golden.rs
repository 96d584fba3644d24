//! Golden bytes: what is on the wire today must be on the wire tomorrow. A message changes only by appending fields
//! that a connect flag negotiates; then its line here is made anew, on purpose.

use crate::attr::{Attr, Credentials, ObjectAttr, SetAttr, StatFs};
use crate::codec::{Field, decode, encode, round_trip};
use crate::connect::{ConnectData, ConnectReply, ConnectRequest};
use crate::header::{HEADER_BYTES, RpcHeader, RpcKind, RpcMessage, Versions};
use crate::layout::{Component, Layout, LayoutSpec, Stripe};
use crate::{ldlm, lfsck, mds, mgs, ost};
use bytes::Bytes;
use nacre_base::hash::fnv_1a_64;
use nacre_base::{Fid, Nid, OstIndex, Prng, Timestamp, Uuid};

const FID: Fid = Fid { seq: 0x200000401, oid: 2, ver: 0 };
const NOW: Timestamp = Timestamp { secs: 1_700_000_000, nanos: 999_999_999 };

/// Checks that `message` survives the wire, that its bytes hash as they always did, and that no prefix of them decodes.
#[track_caller]
fn check<M: Field + PartialEq + std::fmt::Debug>(message: M, golden: u64) {
    let bytes = encode(&message);
    assert!(bytes.len() >= M::MIN_SIZE);
    assert_eq!(decode::<M>(&bytes).as_ref(), Ok(&message));
    for cut in 0..bytes.len() {
        assert!(decode::<M>(&bytes.slice(..cut)).is_err(), "{cut} bytes of {message:?} decode");
    }
    assert_eq!(fnv_1a_64(&bytes), golden, "the bytes of {message:?} changed: {bytes:02x?}");
}

fn attr() -> Attr {
    Attr { fid: FID, mode: 0o100644, nlink: 1, uid: 3, size: 5, mtime: NOW, version: 9, ..Attr::default() }
}

fn layout() -> Layout {
    let stripes = vec![Stripe { ost: OstIndex(1), object: FID }; 2];
    Layout { generation: 7, components: vec![Component { id: 1, end: u64::MAX, stripes, ..Component::default() }] }
}

fn cred() -> Credentials {
    Credentials { uid: 1, gid: 2, groups: vec![3, 4] }
}

#[test]
fn header() {
    let pre_versions = Versions([1 << 32, 0, u64::MAX, 3]);
    let ids = RpcHeader { opcode: 36, xid: 0x1122334455667788, pre_versions, ..RpcHeader::default() };
    let header = RpcHeader { status: -2, jobid: [7; 32], ..ids };
    let m = RpcMessage { kind: RpcKind::Reply, header, body: Bytes::from_static(b"body"), inline: Bytes::new() };
    let head = RpcMessage::encode_head(m.kind, &m.header, &m.body);
    assert_eq!(head.len(), HEADER_BYTES + 4);
    assert_eq!(&head[..8], b"NCR1\x02\x00\x02\x00");
    assert_eq!(fnv_1a_64(&head), 0x9592bac0e112713e);
    let back = RpcMessage::decode([&head[..], b"inline"].concat().into()).unwrap();
    assert_eq!(
        (back.kind, &back.header, &back.body[..], &back.inline[..]),
        (m.kind, &m.header, &b"body"[..], &b"inline"[..])
    );
}

#[test]
fn what_a_replay_was_based_on_must_be_there() {
    let was = Versions([5, 0, u64::MAX, 7]);
    for (found, agrees) in [
        ([5, 0, u64::MAX, 7], true),
        ([5, 9, u64::MAX, 7], true),
        ([4, 0, u64::MAX, 7], false),
        ([5, 0, 6, 7], false),
        ([5, 0, u64::MAX, 0], false),
    ] {
        assert_eq!(was.agree_with(&Versions(found)), agrees, "{found:?}");
    }
    assert!(Versions::default().agree_with(&was), "of a client that knows no versions");
}

#[test]
fn messages() {
    check(attr(), 0x1a6ef05572e02ca9);
    check(ObjectAttr { size: 1, blocks: 2, ctime: NOW, ..ObjectAttr::default() }, 0x1f6e6f52a6e71326);
    check(SetAttr { mode: Some(0o600), size: Some(9), ..SetAttr::default() }, 0x85eb2ca91710f855);
    check(StatFs { block_size: 4096, blocks: 5, name_max: 255, ..StatFs::default() }, 0x7bb8946ee5e9c97f);
    let data = ConnectData { flags: 3, brw_size: 4 << 20, max_modify_rpcs: 8, ..ConnectData::default() };
    check(
        ConnectRequest { client: Uuid([9; 16]), target: "n-OST0000".into(), data: data.clone(), ..Default::default() },
        0xc9207b68548d7aa6,
    );
    check(ConnectReply { data, target_uuid: Uuid([8; 16]) }, 0xa90f0d3f6dafaa5e);
    check(layout(), 0x7e1ce0ac19a021a8);
    let wanted = LayoutSpec::plain().components.pop();
    let rest = Component { id: 2, start: 9, end: u64::MAX, wanted, ..Component::default() };
    check(Layout { generation: 3, components: [layout().components, vec![rest]].concat() }, 0x9f053350bb6210c9);
    check(LayoutSpec::plain(), 0xf35fc440d4cdbf70);
}

#[test]
fn metadata_messages() {
    let name = Bytes::from_static(b"name");
    check(
        mds::GetattrName {
            cred: cred(),
            parent: Fid::ROOT,
            name: name.clone(),
            want: 1,
            want_parent: 2,
            ..Default::default()
        },
        0xdf44b14f7290b83b,
    );
    check(mds::AttrReply { attr: attr(), layout: Some(layout()), lock: None }, 0xd873505071b1597f);
    let parent_lock = Some(ldlm::InodeLock { handle: 1, bits: 2 });
    check(mds::LookupReply { parent_lock, ..Default::default() }, 0x87d569455eff81d9);
    check(
        mds::Open { cred: cred(), parent: Fid::ROOT, name: name.clone(), flags: 0o101, now: NOW, ..Default::default() },
        0x3ccf8cf256a76507,
    );
    check(
        mds::LookupReply { parent_lock: Some(ldlm::InodeLock { handle: 1, bits: 2 }), ..Default::default() },
        0x87d569455eff81d9,
    );
    check(mds::OpenReply { created: true, attr: attr(), handle: 5, ..Default::default() }, 0xd0730cfe658bbe97);
    check(
        mds::Close { fid: FID, handle: 5, size_blocks: Some((1, 0x40874ac0d18e16c9)), ..Default::default() },
        0xd30676cbd6aef0c6,
    );
    check(mds::Readpage { fid: FID, cookie: 7, max_bytes: 4096, ..Default::default() }, 0x1f0cd08191d81edd);
    let entry = mds::DirEntry { name: name.clone(), fid: FID, file_type: 0o100000, cookie: 77, attr: None };
    check(mds::ReadpageReply { entries: vec![entry], end: true, parent_lock: None }, 0x6c3777a3e10b9e0);
    let create = mds::ReintCreate { parent: Fid::ROOT, name, child: FID, mode: 0o40755, ..Default::default() };
    check(mds::Reint { cred: cred(), now: NOW, want: 0, record: mds::ReintRecord::Create(create) }, 0x8b2f994b7fb3317f);
    let set = mds::ReintSetattr { fid: FID, set: SetAttr { uid: Some(4), ..SetAttr::default() }, handle: 3 };
    check(mds::Reint { cred: cred(), now: NOW, want: 0, record: mds::ReintRecord::Setattr(set) }, 0xae4dc624a4c1e57b);
    let set = mds::ReintSetLayout { fid: FID, spec: None, start: 1 << 40, end: 1 << 41 };
    check(mds::Reint { cred: cred(), now: NOW, want: 0, record: mds::ReintRecord::SetLayout(set) }, 0x3e43591ea5e4be6e);
}

#[test]
fn object_messages() {
    let extents = vec![ost::Niobuf { offset: 1 << 40, len: 1 << 20, flags: 1 }];
    check(
        ost::Write { fid: FID, extents: extents.clone(), now: NOW, checksum: Some(5), ..Default::default() },
        0xa4e3a4e3431e68e5,
    );
    check(ost::WriteReply { grant: 4096, ..Default::default() }, 0xce509fa07c991a5f);
    check(ost::Read { fid: FID, extents, checksum: true, lock: 6 }, 0x64d12e391df4585c);
    check(ost::ReadReply { lens: vec![1, 2], ..Default::default() }, 0x90b164eea5f49c84);
    check(ost::Glimpse { fids: vec![FID] }, 0x8053e55d010c94d9);
    let lock = ldlm::EnqueueReply { handle: 3, mode: ldlm::LockMode::Pr, ..Default::default() };
    check(ost::GlimpseReply { objects: vec![None, Some(lock)] }, 0xc5d68638ae70e211);
    check(ost::Punch { fid: FID, start: 1, end: u64::MAX, now: NOW, ..Default::default() }, 0x2ec09737589d98f5);
    check(
        ost::Create { count: 32, delete_orphans_after: Some(Fid { seq: 0x240000400, oid: 7, ver: 0 }) },
        0xdde4f912565a3855,
    );
    check(ost::CreateReply { seq: 0x240000400, first: 2, count: 32, former_seq: 0x240000300 }, 0x8fd7d1d9b9dfe46a);
    check(ost::Destroy { fids: vec![FID] }, 0x8053e55d010c94d9);
}

#[test]
fn messages_of_checks() {
    check(lfsck::ObjectQuery { fids: vec![FID], after: FID, count: 7 }, 0xa8820d4ee5058c93);
    let fact = lfsck::ObjectFact { fid: FID, size: 5, data_size: Some(6), parent: FID, ..Default::default() };
    check(lfsck::ObjectFacts { seq: 3, last_id: 4, objects: vec![fact] }, 0x4f9b1191dab07a4b);
    let repair = lfsck::ObjectRepair { fid: FID, action: lfsck::ObjectAction::Create, uid: 1, ..Default::default() };
    check(lfsck::ObjectRepairs { repairs: vec![repair] }, 0x17ad7d816f0c4af9);
}

#[test]
fn lock_and_management_messages() {
    let lock =
        ldlm::Enqueue { kind: ldlm::LockKind::Flock, resource: FID, mode: ldlm::LockMode::Pw, ..Default::default() };
    check(lock, 0xfaff13e2924b335c);
    let more = vec![ldlm::LockRange { start: 10, end: 19 }];
    check(
        ldlm::Enqueue { resource: FID, end: 4, more, group: 1, cancels: vec![5], ..Default::default() },
        0x1cfff38a5f69ae0e,
    );
    check(ldlm::BlockingCallback { handle: 3, resource: FID, bits: 2, ..Default::default() }, 0x40874ac0d18e16c9);
    check(ldlm::GlimpseCallback { handle: 3, resource: FID }, 0xc3519cf77223579b);
    check(ldlm::LockVolume { volume: 3, limit: 2 }, 0x09b5dc69cb732424);
    check(ldlm::GlimpseReply::default(), 0x6e0dced21680d46f);
    check(ldlm::Convert { handle: 3, bits: ldlm::inode_bits::LOOKUP }, 0xf618fc8a7f03c6c7);
    check(ldlm::EnqueueReply { handle: 3, mode: ldlm::LockMode::Pr, ..Default::default() }, 0x50657e8d965a76a6);
    let nids = vec![Nid::LO, "10.0.0.1:7001@tcp1".parse().unwrap()];
    let target = mgs::TargetEntry { target: "n-OST0000".into(), nids, host: "h".into(), ..Default::default() };
    check(
        mgs::Config {
            version: 3,
            targets: vec![target.into()],
            params: vec![("a".into(), "b".into())],
            ..Default::default()
        },
        0x46210e5b58a81657,
    );
    let nids = vec!["2001:db8::1@tcp".parse().unwrap(), "[::1]:7001@tcp1".parse().unwrap(), Nid::sim(7)];
    let target = mgs::TargetEntry { target: "n-OST0000".into(), nids, host: "h".into(), ..Default::default() };
    check(target, 0x97dce646f03eea13);
    check(mgs::TargetRegReply { object_seq: Fid::SEQ_NORMAL, refused: None }, 0x83772c6af371d601);
    let refused = Some(mgs::Reason::new("a reason".into()));
    check(mgs::TargetRegReply { object_seq: 0, refused }, 0xca02c25b377c4261);
    check(mgs::SeqReply { first: Fid::SEQ_NORMAL, count: 1 }, 0x2f7d0b035810341a);
}

/// The MGS's and OSTs' records of targets have no version, so the encoding of NIDs that were written before IPv6 must stay.
#[test]
fn a_nid_on_disk_is_read_by_every_version() {
    let nid = |text: &str| text.parse::<Nid>().unwrap();
    let v6 = |network: u8, address: &[u8; 16], port: u8| [&[0, 0, network, 0x80], &address[..], &[port, 0]].concat();
    let mut loopback = [0; 16];
    loopback[15] = 1;
    for (nid, bytes) in [
        (nid("10.0.0.1:7@tcp1"), vec![1, 0, 2, 0, 1, 0, 0, 10, 7, 0]),
        (Nid::LO, vec![0, 0, 9, 0, 0, 0, 0, 0, 0, 0]),
        (Nid::sim(258), vec![0, 0, 0x5e, 0, 2, 1, 0, 0, 0, 0]),
        (nid("[::1]:7@tcp"), v6(2, &loopback, 7)),
    ] {
        assert_eq!((&encode(&nid)[..], decode(&Bytes::from(bytes.clone()))), (&bytes[..], Ok(nid)));
    }
    let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];
    let with_port = vec![0, 0, 9, 0, 0, 0, 0, 0, 1, 0];
    for bad in [v6(2, &mapped, 0), v6(9, &loopback, 0), v6(3, &loopback, 0), with_port] {
        let refused = decode::<Nid>(&Bytes::from(bad.clone()));
        assert!(matches!(refused, Err(crate::WireError::BadValue { .. })), "{bad:?}: {refused:?}");
    }
}

/// A person gets the beginning of a long reason; a peer that sends a longer one breaks the rules.
#[test]
fn a_reason_is_bounded() {
    let long = mgs::Reason::new("ä".repeat(mgs::Reason::MAX));
    assert_eq!(long.as_str().len(), mgs::Reason::MAX);
    assert_eq!(mgs::Reason::new(format!("x{long}")).as_str().len(), mgs::Reason::MAX - 1, "cut between letters");
    assert_eq!(decode(&encode(&long)), Ok(long.clone()));
    let hostile = encode(&format!("{long}x"));
    assert!(matches!(decode::<mgs::Reason>(&hostile), Err(crate::WireError::TooLong { .. })));
}

#[test]
fn random_bytes_never_panic_any_decoder() {
    let mut prng = Prng::new(7);
    for _ in 0..20_000 {
        let bytes: Bytes = (0..prng.below(400)).map(|_| (prng.next_u64() >> prng.below(64)) as u8).collect();
        let _ = RpcMessage::decode(bytes.clone());
        let _ = round_trip::<mds::Reint>(&bytes);
        for decoder in crate::DECODERS.iter().copied().flatten() {
            let _ = (decoder.round_trip)(&bytes);
        }
    }
    let names: std::collections::BTreeSet<_> = crate::DECODERS.iter().copied().flatten().map(|d| d.name).collect();
    assert!(names.len() > 70 && names.contains("nacre_wire::ost::Getattr"), "{names:?}");
}
