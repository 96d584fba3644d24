//! Compatibility of lock modes: which can be held at the same time.
//!
//! ```text
//! held \ asked  NL  CR  CW  PR  PW  EX  GROUP
//! NL             x   x   x   x   x   x   x
//! CR             x   x   x   x   x   -   -
//! CW             x   x   x   -   -   -   -
//! PR             x   x   -   x   -   -   -
//! PW             x   x   -   -   -   -   -
//! EX             x   -   -   -   -   -   -
//! GROUP          x   -   -   -   -   -   same group
//! ```

use nacre_wire::ldlm::LockMode;

/// Returns whether a lock of mode `asked` can be granted while another client holds one of mode `held`. Two group locks
/// are compatible here; the caller knows whether they belong to one group.
pub fn compatible(held: LockMode, asked: LockMode) -> bool {
    compatible_with(held) & asked as u32 != 0
}

/// The modes that are compatible with `held`, as a mask.
const fn compatible_with(held: LockMode) -> u32 {
    use LockMode::*;
    match held {
        Nl => Nl as u32 | Cr as u32 | Cw as u32 | Pr as u32 | Pw as u32 | Ex as u32 | Group as u32,
        Cr => Nl as u32 | Cr as u32 | Cw as u32 | Pr as u32 | Pw as u32,
        Cw => Nl as u32 | Cr as u32 | Cw as u32,
        Pr => Nl as u32 | Cr as u32 | Pr as u32,
        Pw => Nl as u32 | Cr as u32,
        Ex => Nl as u32,
        Group => Nl as u32 | Group as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use LockMode::*;

    const ALL: [LockMode; 7] = [Nl, Cr, Cw, Pr, Pw, Ex, Group];

    #[test]
    fn the_matrix_is_as_drawn() {
        let drawn = ["xxxxxxx", "xxxxx--", "xxx----", "xx-x---", "xx-----", "x------", "x-----x"];
        for (held, row) in ALL.iter().zip(drawn) {
            let is: String = ALL.iter().map(|asked| if compatible(*held, *asked) { 'x' } else { '-' }).collect();
            assert_eq!(is, row, "held {held:?}");
        }
    }

    #[test]
    fn compatibility_is_symmetric() {
        for a in ALL {
            for b in ALL {
                assert_eq!(compatible(a, b), compatible(b, a), "{a:?} {b:?}");
            }
        }
    }
}
