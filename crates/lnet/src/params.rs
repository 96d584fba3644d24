//! The counters of a node, and their declarations as parameters. A line of the table gives a counter's name in `lnetctl
//! stats show`, its kind and unit, its name in the metrics output, and a sentence.

use nacre_base::param::declared::{Declared, Kind};
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! stats {
    ($($name:ident: $kind:ident, $unit:literal, $metric:literal, $about:literal;)*) => {
        /// The node's counters: `lnetctl stats show`, in its order.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct Stats { $(#[doc = $about] pub $name: u64,)* }

        /// [`Stats`] while they count.
        #[derive(Default)]
        pub(crate) struct Counters { $(pub(crate) $name: AtomicU64,)* }

        impl Counters {
            pub(crate) fn read(&self) -> Stats {
                Stats { $($name: self.$name.load(Ordering::Relaxed),)* }
            }

            /// Sets the counters that only grow to zero, and the most messages to those of now.
            pub(crate) fn reset(&self) {
                $(if Kind::$kind == Kind::Counter {
                    self.$name.store(0, Ordering::Relaxed);
                })*
                self.msgs_max.store(self.msgs_alloc.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }

        impl Stats {
            /// Name of each counter and the function that reads it, in the order that `lnetctl stats show` prints.
            pub const FIELDS: &[(&'static str, fn(&Stats) -> u64)] = &[$((stringify!($name), |stats| stats.$name),)*];
        }

        /// The parameters of a node's network: all counters in one, which is Lustre's, and each as a metric.
        pub const PARAMS: &[Declared] = &[
            Declared::text(&[], "stats", "Counts of messages and bytes of the network, as lnetctl stats show prints them."),
            $(
                Declared::shown(&[], concat!("lnet.", stringify!($name)), Kind::$kind, $about)
                    .in_unit($unit)
                    .metric(concat!("lnet_", $metric)),
            )*
        ];
    };
}

stats! {
    msgs_alloc: Gauge, "", "messages", "Messages given to the network and not yet done.";
    msgs_max: Gauge, "", "messages_max", "The most messages that were not yet done at one time.";
    rst_alloc: Gauge, "", "gets", "GETs whose REPLY is awaited.";
    errors: Counter, "", "errors", "Messages refused as malformed or meaningless.";
    send_count: Counter, "", "messages_sent", "Messages that were sent.";
    resend_count: Counter, "", "messages_resent", "Messages given to another gateway, or another NID of their peer, because theirs was lost.";
    response_timeout_count: Counter, "", "response_timeouts", "GETs whose REPLY did not come in time.";
    local_interrupt_count: Counter, "", "local_interrupts", "Sends cut off by this node.";
    local_dropped_count: Counter, "", "local_drops", "Sends dropped by this node: its queue was full, or a fault point.";
    local_aborted_count: Counter, "", "local_aborts", "Sends given up at shutdown.";
    local_no_route_count: Counter, "", "local_no_routes", "Sends to networks without a route.";
    local_timeout_count: Counter, "", "local_timeouts", "Sends that the driver did not finish in time.";
    local_error_count: Counter, "", "local_errors", "Sends that failed for another reason on this node.";
    remote_dropped_count: Counter, "", "remote_drops", "Sends that failed because the peer is down.";
    remote_error_count: Counter, "", "remote_errors", "GETs that the peer refused, and messages that a router could not deliver.";
    remote_timeout_count: Counter, "", "remote_timeouts", "Peers that did not answer in time.";
    network_timeout_count: Counter, "", "network_timeouts", "Connections that timed out.";
    failed_resends: Counter, "", "failed_resends", "Messages that found no other gateway or NID of their peer, or lost that one, too.";
    successful_resends: Counter, "", "successful_resends", "Messages that another gateway or NID took.";
    recv_count: Counter, "", "messages_received", "Messages that were received.";
    route_count: Counter, "", "messages_routed", "Messages of others that were passed on.";
    drop_count: Counter, "", "messages_dropped", "Messages received that were for nobody.";
    send_length: Counter, "bytes", "sent", "Payload bytes sent.";
    recv_length: Counter, "bytes", "received", "Payload bytes received.";
    route_length: Counter, "bytes", "routed", "Payload bytes of others that were passed on.";
    drop_length: Counter, "bytes", "dropped", "Payload bytes of messages that were for nobody.";
    asymmetric_count: Counter, "", "asymmetric_routes", "Messages that came by a gateway by which there is no route back.";
}
