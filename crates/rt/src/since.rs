//! Time at which a count began.

use crate::Rt;
use nacre_base::param::value::Window;
use nacre_base::{Time, Timestamp};
use parking_lot::Mutex;
use std::sync::Arc;

/// The time since which something is counted. Clones share it.
#[derive(Clone)]
pub struct Since {
    rt: Rt,
    began: Arc<Mutex<(Time, Timestamp)>>,
}

impl Since {
    /// Makes a count that begins now.
    pub fn new(rt: Rt) -> Since {
        let began = Arc::new(Mutex::new((rt.now(), rt.wall())));
        Since { rt, began }
    }

    /// Lets the count begin again now.
    pub fn restart(&self) {
        *self.began.lock() = (self.rt.now(), self.rt.wall());
    }

    /// The time from the beginning until now.
    pub fn window(&self) -> Window {
        let (began, wall) = *self.began.lock();
        Window { now: self.rt.wall(), began: Some((wall, self.rt.now().since(began))) }
    }
}
