//! Extended attributes, stored and virtual.

use crate::cluster::{Cluster, root, run, striped};
use nacre_base::Errno;
use nacre_wire::attr::mode;
use nacre_wire::layout::LayoutSpec;
use nacre_wire::lov_ea;

fn names(list: &[u8]) -> Vec<String> {
    let parts = list.split(|b| *b == 0).filter(|n| !n.is_empty());
    parts.map(|n| String::from_utf8(n.to_vec()).unwrap()).collect()
}

#[test]
fn stored_attributes_are_the_mdts() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let c = cluster.client().await;
        let (cred, (attr, _)) = (root(), c.make("f", None).await);
        c.setxattr(&cred, attr.fid, b"user.a", b"1", 0).await.unwrap();
        assert_eq!(c.setxattr(&cred, attr.fid, b"user.a", b"2", 1).await, Err(Errno::EEXIST));
        assert_eq!(&c.getxattr(&cred, attr.fid, b"user.a").await.unwrap()[..], b"1");
        let list = names(&c.listxattr(&cred, attr.fid).await.unwrap());
        assert_eq!(list, ["user.a", "lustre.lov", "trusted.lov"]);
        c.removexattr(&cred, attr.fid, b"user.a").await.unwrap();
        assert_eq!(c.getxattr(&cred, attr.fid, b"user.a").await, Err(Errno::ENODATA));
        assert_eq!(c.getxattr(&cred, attr.fid, b"user.\xff").await, Err(Errno::EOPNOTSUPP));
    });
}

#[test]
fn the_layout_is_read_and_chosen_in_lustres_form() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 4).await;
        let c = cluster.client().await;
        let cred = root();
        let made = c.mknod(&cred, c.root(), b"f", mode::S_IFREG | 0o644, 0, 0).await.unwrap();
        assert_eq!(c.getxattr(&cred, made.fid, b"lustre.lov").await, Err(Errno::ENODATA));
        let wish = lov_ea::encode_spec(&striped(3, 1 << 20));
        c.setxattr(&cred, made.fid, b"lustre.lov", &wish, 0).await.unwrap();
        let value = c.getxattr(&cred, made.fid, b"lustre.lov").await.unwrap();
        let (layout, file) = lov_ea::decode_layout(&value).unwrap();
        assert_eq!((layout.stripe_count(), layout.components[0].stripe_size, file), (3, 1 << 20, made.fid));
        assert_eq!(c.getxattr(&cred, made.fid, b"trusted.lov").await.unwrap(), value);
        assert_eq!(c.setxattr(&cred, made.fid, b"lustre.lov", &wish, 0).await, Err(Errno::EEXIST));
        assert_eq!(c.setxattr(&cred, made.fid, b"lustre.lov", b"rubbish", 0).await, Err(Errno::EINVAL));
        // cp -a and rsync -X set the layout of a copy that has its own already.
        let (copy, _) = c.make("copy", None).await;
        c.setxattr(&cred, copy.fid, b"lustre.lov", &value, 0).await.unwrap();
        c.removexattr(&cred, copy.fid, b"lustre.lov").await.unwrap();
        assert!(c.getxattr(&cred, copy.fid, b"lustre.lov").await.is_ok(), "a file keeps its layout");
    });
}

#[test]
fn a_directorys_default_layout_is_inherited_and_can_be_dropped() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 4).await;
        let c = cluster.client().await;
        let cred = root();
        let dir = c.mkdir(&cred, c.root(), b"d", 0o755, 0).await.unwrap();
        assert_eq!(c.getxattr(&cred, dir.fid, b"lustre.lov").await, Err(Errno::ENODATA));
        let mut wish: LayoutSpec = striped(8, 1 << 20);
        wish.components[0].overstripe = true;
        c.setxattr(&cred, dir.fid, b"lustre.lov", &lov_ea::encode_spec(&wish), 0).await.unwrap();
        let value = c.getxattr(&cred, dir.fid, b"lustre.lov").await.unwrap();
        assert_eq!(lov_ea::decode_spec(&value), Ok(wish));
        let stripes = async |name: &[u8]| {
            let (attr, file) = c.create(&cred, dir.fid, name, 0o102, 0o644, 0, None).await.unwrap();
            c.release(file).await.unwrap();
            let value = c.getxattr(&cred, attr.fid, b"lustre.lov").await.unwrap();
            lov_ea::decode_layout(&value).unwrap().0.stripe_count()
        };
        assert_eq!(stripes(b"a").await, 8);
        c.removexattr(&cred, dir.fid, b"lustre.lov").await.unwrap();
        assert_eq!(stripes(b"b").await, 1);
    });
}

#[test]
fn fids_paths_and_targets_are_told() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 2).await;
        let c = cluster.client().await;
        let cred = root();
        let dir = c.mkdir(&cred, c.root(), b"d", 0o755, 0).await.unwrap();
        let (attr, _file) = c.create(&cred, dir.fid, b"f", 0o102, 0o644, 0, None).await.unwrap();
        c.link(&cred, attr.fid, c.root(), b"g").await.unwrap();
        let fid = c.getxattr(&cred, attr.fid, b"lustre.fid").await.unwrap();
        assert_eq!(&fid[..], attr.fid.to_string().as_bytes());
        let query = format!("lustre.fid2path:{}", attr.fid);
        let mut paths = names(&c.getxattr(&cred, c.root(), query.as_bytes()).await.unwrap());
        paths.sort();
        assert_eq!(paths, ["d/f", "g"]);
        assert_eq!(c.getxattr(&cred, c.root(), b"lustre.fid2path:[0x1:0x2]").await, Err(Errno::EINVAL));

        c.node.params().set("osc.*OST0001*.active", "0").unwrap();
        let json = c.getxattr(&cred, c.root(), b"lustre.targets").await.unwrap();
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!((json[0]["kind"].as_str(), json[0]["name"].as_str()), (Some("MDT"), Some("nacre-MDT0000")));
        assert_eq!((json[1]["kind"].as_str(), json[1]["index"].as_u64()), (Some("OST"), Some(0)));
        assert!(json[1]["statfs"]["blocks"].as_u64() > Some(0) && json[1]["error"].is_null());
        assert_eq!(json[1]["nids"][0].as_str(), Some("10@sim"));
        assert_eq!((json[2]["active"].as_bool(), json[2]["error"].as_str()), (Some(false), Some("inactive device")));
        assert!(json[2]["statfs"].is_null());
    });
}
