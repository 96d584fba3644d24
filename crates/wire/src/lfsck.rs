//! Messages between the MDT that checks a file system and its OSTs: what an OST knows of objects, and what is to be done
//! about them. What is wrong is for the MDT to say, which knows the files.

use nacre_base::Fid;

/// Most objects in one query, reply or list of repairs.
pub const LFSCK_OBJECTS_MAX: usize = 512;

wire_enum! {
    /// What is to be done about an object. Each is done once however often it is asked for.
    #[derive(Default)]
    pub enum ObjectAction: u32 {
        /// Make it, empty, of this file and owner, unless it is there; no id up to it is handed out again.
        Create = 1,
        /// Note the file that it belongs to.
        SetParent = 2,
        /// Note its owner.
        SetOwner = 3,
        /// Destroy it, if it is empty.
        DestroyEmpty = 4,
        /// Make its record anew from its data.
        Rebuild = 5,
        /// Make its recorded size that of its data, which is missing.
        SetSize = 6,
        /// No id up to it is handed out again.
        #[default]
        RaiseLastId = 7,
    }
}

message! {
    MESSAGES;
    /// LFSCK_QUERY: asks for certain objects, or, without `fids`, for those after `after` in the order of FIDs.
    pub struct ObjectQuery {
        /// These.
        pub fids: Vec<Fid>,
        /// Those after this one.
        pub after: Fid,
        /// At most so many.
        pub count: u32,
    }

    /// Reply to LFSCK_QUERY.
    pub struct ObjectFacts {
        /// The sequence of the OST's objects.
        pub seq: u64,
        /// The last id that was handed out.
        pub last_id: u32,
        /// What there is, in the order of FIDs. Of those asked for by FID, the missing ones are left out.
        pub objects: Vec<ObjectFact>,
    }

    /// What an OST knows of an object.
    pub struct ObjectFact {
        /// Which.
        pub fid: Fid,
        /// Whether its record can be read; if not, what the record would tell is zero.
        pub is_readable: bool,
        /// Recorded size in bytes.
        pub size: u64,
        /// Size of its data in bytes, if there is any.
        pub data_size: Option<u64>,
        /// Recorded owner.
        pub uid: u32,
        /// Recorded group.
        pub gid: u32,
        /// The file that it belongs to, zero if that is not known yet.
        pub parent: Fid,
        /// Which stripe of the file it is.
        pub stripe_index: u32,
        /// Made ahead of use, and never changed since.
        pub is_precreated: bool,
    }

    /// LFSCK_NOTIFY: repairs. Durable before the reply.
    pub struct ObjectRepairs {
        /// In this order.
        pub repairs: Vec<ObjectRepair>,
    }

    /// A repair of an object.
    pub struct ObjectRepair {
        /// Which object.
        pub fid: Fid,
        /// What to do.
        pub action: ObjectAction,
        /// Its file, where one is to be noted.
        pub parent: Fid,
        /// Which stripe of it.
        pub stripe_index: u32,
        /// Its owner, where one is to be noted.
        pub uid: u32,
        /// Its group.
        pub gid: u32,
    }
}
