//! The charge of a request of a class of `tbf`, from the moment that it is let run until its end.

/// The charge of a request that runs: the class that pays, and the estimated microseconds at the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Ticket(u64);

/// How a request that ran is charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Done {
    /// The ticket that it got when it was let run.
    pub(crate) ticket: Ticket,
    /// The microseconds that it took from the device.
    pub(crate) device_us: u32,
}

impl Ticket {
    pub(super) fn new(bucket: u32, device_us: u32) -> Ticket {
        Ticket(u64::from(bucket) << 32 | u64::from(device_us))
    }

    /// The ticket as a number, which is 0 for a request without a class.
    pub(crate) fn number(self) -> u64 {
        self.0
    }

    /// The ticket with this number.
    pub(crate) fn of_number(number: u64) -> Ticket {
        Ticket(number)
    }

    pub(super) fn bucket(self) -> u32 {
        (self.0 >> 32) as u32
    }

    pub(super) fn device_us(self) -> u32 {
        self.0 as u32
    }
}
