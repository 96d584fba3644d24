//! stub
/// v
pub const FORMAT_VERSION: u32 = 1;
