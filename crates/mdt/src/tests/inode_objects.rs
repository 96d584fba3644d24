//! When files get objects, which layout they get, and when the objects are destroyed.

use super::*;
use nacre_wire::layout::ComponentSpec;
use nacre_wire::ldlm::inode_bits::{LAYOUT, UPDATE};
use nacre_wire::mds::open_flags::{FASYNC, O_CREAT, O_RDWR, O_TRUNC, O_WRONLY};

fn stripes(count: i32) -> LayoutSpec {
    let c = ComponentSpec { stripe_count: count, end: u64::MAX, stripe_offset: -1, ..ComponentSpec::default() };
    LayoutSpec { components: vec![c] }
}

fn set_layout(fs: &mut Fs, cred: &Credentials, fid: Fid, spec: Option<LayoutSpec>) -> Result<(), Errno> {
    let r = ReintSetLayout { fid, spec, ..ReintSetLayout::default() };
    fs.op(cred, |cx, objects| ops::set_layout::set_layout(cx, &r, false, objects)).map(drop)
}

fn count(fs: &Fs, fid: Fid) -> Option<usize> {
    fs.inode(fid).unwrap().layout.map(|l| l.stripe_count())
}

#[test]
fn objects_come_with_the_first_open_for_writing() {
    let mut fs = Fs::new();
    let f = fs.mkfile(ROOT, "f");
    assert_eq!(count(&fs, f), None, "mknod makes none");
    fs.open_name(&root(), ROOT, "f", 0).unwrap();
    assert_eq!(count(&fs, f), None);
    fs.open_name(&root(), ROOT, "f", O_WRONLY).unwrap();
    assert_eq!(count(&fs, f), Some(1));
    let layout = fs.inode(f).unwrap().layout;
    fs.open_name(&root(), ROOT, "f", O_RDWR | O_TRUNC).unwrap();
    assert_eq!(fs.inode(f).unwrap().layout, layout, "the same ones ever after");
    let (g, _) = fs.open_name(&root(), ROOT, "g", O_CREAT | O_WRONLY).unwrap();
    assert_eq!(count(&fs, g), Some(1));
    let (h, _) = fs.open_name(&root(), ROOT, "h", O_CREAT | O_WRONLY | FASYNC).unwrap();
    assert_eq!(count(&fs, h), None, "delayed, so that its layout can be set");
    fs.open_name(&root(), ROOT, "h", O_WRONLY | FASYNC).unwrap();
    assert_eq!(count(&fs, h), None);
    let before = fs.attr(h).ctime;
    set_layout(&mut fs, &root(), h, None).unwrap();
    assert_eq!((count(&fs, h), fs.attr(h).ctime), (Some(1), before), "no program sees objects come");
    let i = fs.mkfile(ROOT, "i");
    fs.setattr(&root(), i, SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
    assert_eq!(count(&fs, i), None);
    fs.setattr(&root(), i, SetAttr { size: Some(9), ..SetAttr::default() }).unwrap();
    assert_eq!(count(&fs, i), Some(1), "a size needs a place");
    fs.check();
}

#[test]
fn a_layout_is_set_once() {
    let mut fs = Fs::new();
    let f = fs.mkfile(ROOT, "f");
    assert_eq!(set_layout(&mut fs, &user(5), f, Some(stripes(3))), Err(Errno::EACCES));
    assert_eq!(set_layout(&mut fs, &root(), f, Some(stripes(3))), Ok(()));
    assert_eq!(count(&fs, f), Some(3));
    assert_eq!(set_layout(&mut fs, &root(), f, Some(stripes(2))), Err(Errno::EEXIST));
    assert_eq!(set_layout(&mut fs, &root(), f, None), Err(Errno::EEXIST));
    let g = fs.mkfile(ROOT, "g");
    assert_eq!(set_layout(&mut fs, &root(), g, Some(stripes(2001))), Err(Errno::E2BIG));
    assert_eq!(set_layout(&mut fs, &root(), g, None), Ok(()));
    assert_eq!(count(&fs, g), Some(1));
}

#[test]
fn defaults_come_from_the_directory_then_from_the_root() {
    let mut fs = Fs::new();
    let d = fs.mkdir(ROOT, "d");
    let new = |fs: &mut Fs, dir, n: &str| {
        let (fid, _) = fs.open_name(&root(), dir, n, O_CREAT | O_WRONLY).unwrap();
        count(fs, fid).unwrap()
    };
    assert_eq!(new(&mut fs, d, "built-in"), 1);
    set_layout(&mut fs, &root(), ROOT, Some(stripes(2))).unwrap();
    assert_eq!((new(&mut fs, d, "root's"), new(&mut fs, ROOT, "in root")), (2, 2));
    set_layout(&mut fs, &root(), d, Some(stripes(3))).unwrap();
    assert_eq!(new(&mut fs, d, "own"), 3);
    let sub = fs.mkdir(d, "sub");
    assert_eq!(new(&mut fs, sub, "copied"), 3, "a new directory copies its parent's");
    set_layout(&mut fs, &root(), d, None).unwrap();
    assert_eq!((new(&mut fs, d, "root's again"), new(&mut fs, sub, "still")), (2, 3));
    assert_eq!(set_layout(&mut fs, &user(5), d, None), Err(Errno::EPERM));
    let default = fs.op(&user(5), |cx, _| ops::xattr::get(cx, sub, "trusted.lov")).unwrap();
    assert_eq!(nacre_wire::decode(&default), Ok(stripes(3)));
    assert_eq!(fs.op(&root(), |cx, _| ops::xattr::get(cx, d, "trusted.lov")), Err(Errno::ENODATA));
    let asked = Open {
        parent: sub,
        name: name("asked"),
        flags: O_CREAT | O_WRONLY,
        layout: Some(stripes(5)),
        ..Open::default()
    };
    let (fid, _) = fs.open(&root(), asked).unwrap();
    assert_eq!(count(&fs, fid), Some(5));
    fs.check();
}

#[test]
fn objects_are_destroyed_with_the_last_name() {
    let mut fs = Fs::new();
    let f = fs.mkfile(ROOT, "f");
    set_layout(&mut fs, &root(), f, Some(stripes(4))).unwrap();
    fs.link(&root(), f, ROOT, "g").unwrap();
    fs.unlink(&root(), ROOT, "f", false).unwrap();
    assert_eq!(fs.destroys(), 0);
    fs.unlink(&root(), ROOT, "g", false).unwrap();
    assert_eq!(fs.destroys(), 4);
    fs.check();
    let tx = fs.begin();
    assert_eq!(
        tables::destroys(&*tx, OstIndex(0), None, fs.clock - 1, 9).unwrap(),
        [],
        "not before the unlink is durable"
    );
    assert_eq!(tables::destroys(&*tx, OstIndex(1), None, u64::MAX, 9).unwrap(), []);
}

fn progressive() -> LayoutSpec {
    let c = |end, stripe_count| ComponentSpec { end, stripe_count, stripe_offset: -1, ..ComponentSpec::default() };
    LayoutSpec { components: vec![c(1 << 20, 1), c(2 << 20, 2), c(u64::MAX, 4)] }
}

/// Requests objects for a range. Returns the number of objects of each component afterwards, and the generation.
fn write_to(fs: &mut Fs, fid: Fid, start: u64, end: u64) -> Result<(Vec<usize>, u32), Errno> {
    let r = ReintSetLayout { fid, spec: None, start, end };
    let reply = fs.op(&root(), |cx, objects| ops::set_layout::set_layout(cx, &r, true, objects))?;
    let layout = fs.inode(fid).unwrap().layout;
    assert_eq!(reply.layout, layout);
    let layout = layout.unwrap();
    assert!(layout.components.iter().all(|c| c.stripes.is_empty() == c.wanted.is_some()));
    Ok((layout.components.iter().map(|c| c.stripes.len()).collect(), layout.generation))
}

#[test]
fn a_component_gets_objects_when_it_is_written_to() {
    let mut fs = Fs::new();
    let f = fs.mkfile(ROOT, "f");
    set_layout(&mut fs, &root(), f, Some(progressive())).unwrap();
    assert_eq!(count(&fs, f), Some(1), "only the first");
    assert_eq!(write_to(&mut fs, f, 0, 1 << 20), Ok((vec![1, 0, 0], 3)));
    assert!(fs.changed.is_empty(), "nothing new calls nobody back");
    let before = fs.attr(f).ctime;
    assert_eq!(write_to(&mut fs, f, 0, (1 << 20) + 1), Ok((vec![1, 2, 0], 4)));
    assert_eq!(fs.changed, [(f, LAYOUT | UPDATE)]);
    assert_eq!(fs.attr(f).ctime, before, "no program sees objects come");
    assert_eq!(write_to(&mut fs, f, 0, (1 << 20) + 1), Ok((vec![1, 2, 0], 4)));
    assert_eq!(write_to(&mut fs, f, u64::MAX - 1, u64::MAX), Ok((vec![1, 2, 4], 5)));
    assert_eq!(write_to(&mut fs, f, 0, 0), Err(Errno::EEXIST), "a range of nothing asks for a new file's objects");
    assert_eq!(set_layout(&mut fs, &root(), f, Some(progressive())), Err(Errno::EEXIST));
    fs.unlink(&root(), ROOT, "f", false).unwrap();
    assert_eq!(fs.destroys(), 7);
    fs.check();
}

#[test]
fn a_file_without_objects_gets_those_of_the_range_and_the_first() {
    let mut fs = Fs::new();
    fs.op(&root(), |cx, objects| {
        let r = ReintSetLayout { fid: ROOT, spec: Some(progressive()), ..ReintSetLayout::default() };
        ops::set_layout::set_layout(cx, &r, true, objects)
    })
    .unwrap();
    let f = fs.mkfile(ROOT, "f");
    assert_eq!(write_to(&mut fs, f, 5 << 20, 6 << 20), Ok((vec![1, 0, 4], 4)));
    // An open for writing creates the first objects; setting the size creates those that say how long the file is.
    let (g, _) = fs.open_name(&root(), ROOT, "g", O_CREAT | O_WRONLY).unwrap();
    assert_eq!(count(&fs, g), Some(1));
    fs.setattr(&root(), g, SetAttr { size: Some(1 << 20), ..SetAttr::default() }).unwrap();
    assert_eq!(count(&fs, g), Some(1), "the last byte is in the first");
    fs.setattr(&root(), g, SetAttr { size: Some((1 << 20) + 1), ..SetAttr::default() }).unwrap();
    assert_eq!((count(&fs, g), fs.changed[0].1 & LAYOUT), (Some(3), LAYOUT));
    fs.crash();
    fs.check();
}
