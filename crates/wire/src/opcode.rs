//! Operation codes, numbered as Lustre numbers them where it has the operation.

macro_rules! opcodes {
    ($($(#[$meta:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        wire_enum! {
            /// What an RPC asks for. Prints as Lustre writes it: `OST_WRITE`.
            pub enum Opcode: u32 { $($(#[$meta])* $name = $value,)* }
        }

        impl Opcode {
            /// Every opcode, in numeric order of the table.
            pub const ALL: &[Opcode] = &[$(Opcode::$name,)*];

            /// The name as Lustre writes it.
            pub fn name(self) -> &'static str {
                match self { $(Opcode::$name => $text,)* }
            }
        }
    };
}

opcodes! {
    /// Attributes of an object: the glimpse of its size.
    OstGetattr = 1, "OST_GETATTR";
    /// Sets attributes of an object.
    OstSetattr = 2, "OST_SETATTR";
    /// Reads extents.
    OstRead = 3, "OST_READ";
    /// Writes extents.
    OstWrite = 4, "OST_WRITE";
    /// Precreates objects.
    OstCreate = 5, "OST_CREATE";
    /// Destroys objects.
    OstDestroy = 6, "OST_DESTROY";
    /// Connects to an OST.
    OstConnect = 8, "OST_CONNECT";
    /// Disconnects from an OST.
    OstDisconnect = 9, "OST_DISCONNECT";
    /// Truncates or punches a hole.
    OstPunch = 10, "OST_PUNCH";
    /// Space and objects of an OST.
    OstStatfs = 13, "OST_STATFS";
    /// Makes an object, or all, durable.
    OstSync = 16, "OST_SYNC";
    /// Allocates space.
    OstFallocate = 22, "OST_FALLOCATE";
    /// Finds data or a hole.
    OstSeek = 23, "OST_SEEK";
    /// Sizes of several objects, as far as nobody writes them.
    OstGlimpse = 24, "OST_GLIMPSE";
    /// Which parts of an object have space on the disk, and where.
    OstFiemap = 25, "OST_FIEMAP";
    /// Attributes by FID.
    MdsGetattr = 33, "MDS_GETATTR";
    /// Attributes by name: lookup.
    MdsGetattrName = 34, "MDS_GETATTR_NAME";
    /// Closes an open handle.
    MdsClose = 35, "MDS_CLOSE";
    /// A change of the namespace: see [`crate::mds::Reint`].
    MdsReint = 36, "MDS_REINT";
    /// Entries of a directory.
    MdsReadpage = 37, "MDS_READPAGE";
    /// Connects to an MDT.
    MdsConnect = 38, "MDS_CONNECT";
    /// Disconnects from an MDT.
    MdsDisconnect = 39, "MDS_DISCONNECT";
    /// The FID of the root directory.
    MdsGetRoot = 40, "MDS_GET_ROOT";
    /// Space and inodes of an MDT.
    MdsStatfs = 41, "MDS_STATFS";
    /// Makes changes durable.
    MdsSync = 44, "MDS_SYNC";
    /// Reads one extended attribute, or lists their names.
    MdsGetxattr = 49, "MDS_GETXATTR";
    /// Paths of a FID.
    MdsFid2path = 70, "MDS_FID2PATH";
    /// Opens, perhaps creating: the open intent.
    MdsOpen = 71, "MDS_OPEN";
    /// Asks for a lock.
    LdlmEnqueue = 101, "LDLM_ENQUEUE";
    /// Gives up part of a lock.
    LdlmConvert = 102, "LDLM_CONVERT";
    /// Gives locks back.
    LdlmCancel = 103, "LDLM_CANCEL";
    /// Server to client: somebody waits for this lock.
    LdlmBlCallback = 104, "LDLM_BL_CALLBACK";
    /// Server to client: this lock is granted.
    LdlmCpCallback = 105, "LDLM_CP_CALLBACK";
    /// Server to client: what is the size?
    LdlmGlCallback = 106, "LDLM_GL_CALLBACK";
    /// Server to client: there is room for so many locks.
    LdlmSetInfo = 107, "LDLM_SET_INFO";
    /// Connects to the MGS.
    MgsConnect = 250, "MGS_CONNECT";
    /// Disconnects from the MGS.
    MgsDisconnect = 251, "MGS_DISCONNECT";
    /// A target announces itself.
    MgsTargetReg = 253, "MGS_TARGET_REG";
    /// Sets a parameter for the whole file system.
    MgsSetParam = 255, "MGS_SET_PARAM";
    /// The configuration, when it is newer than the one the asker has.
    MgsConfigRead = 256, "MGS_CONFIG_READ";
    /// Says where a target is that was moved.
    MgsReplaceNids = 257, "MGS_REPLACE_NIDS";
    /// Which clients hold leases, and whose lease has ended.
    MgsLeases = 258, "MGS_LEASES";
    /// Clients that have asked a router to renew their leases.
    MgsRenew = 259, "MGS_RENEW";
    /// Is the server there? Also carries last_committed.
    ObdPing = 400, "OBD_PING";
    /// Leases FID sequences.
    SeqQuery = 700, "SEQ_QUERY";
    /// MDT to OST: repairs of objects that a check found wrong.
    LfsckNotify = 1101, "LFSCK_NOTIFY";
    /// MDT to OST: what is known of objects.
    LfsckQuery = 1102, "LFSCK_QUERY";
}

/// An opcode that arrives is looked up by binary search.
const _: () = {
    let mut at = 1;
    while at < Opcode::ALL.len() {
        assert!(
            (Opcode::ALL[at - 1] as u32) < Opcode::ALL[at] as u32,
            "the opcodes stand in the order of their numbers"
        );
        at += 1;
    }
};

impl std::fmt::Display for Opcode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
