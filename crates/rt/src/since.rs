//! When counting began.

use crate::Rt;
use nacre_base::param::value::Window;
use nacre_base::{Time, Timestamp};
use parking_lot::Mutex;
use std::sync::Arc;

/// Since when something is counted. Cloning shares it.
#[derive(Clone)]
pub struct Since {
    rt: Rt,
    began: Arc<Mutex<(Time, Timestamp)>>,
}

impl Since {
    /// Counting begins now.
    pub fn new(rt: Rt) -> Since {
        let began = Arc::new(Mutex::new((rt.now(), rt.wall())));
        Since { rt, began }
    }

    /// Counting begins anew.
    pub fn restart(&self) {
        *self.began.lock() = (self.rt.now(), self.rt.wall());
    }

    /// From the beginning until now.
    pub fn window(&self) -> Window {
        let (began, wall) = *self.began.lock();
        Window { now: self.rt.wall(), began: Some((wall, self.rt.now().since(began))) }
    }
}
