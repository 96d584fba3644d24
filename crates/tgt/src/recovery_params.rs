//! Parameters of a target's recovery, under Lustre's names: `recovery_status`, `recovery_time_soft`,
//! `recovery_time_hard` (seconds), `abort_recovery`; and `evict_client`, which evicts clients by UUID or as `nid:NID`.

use crate::recovery::{Phase, Settings};
use crate::recovery_service::RecoveryService;
use nacre_base::Time;
use nacre_base::param::value::Fields;
use std::sync::Arc;
use std::time::Duration;

/// Longest time limit that may be set, in seconds.
const LIMIT_MAX: u64 = 24 * 3600;

/// Registers the parameters.
pub(crate) fn register(service: &Arc<RecoveryService>) {
    let target = service.target();
    let (params, prefix) = (target.params(), target.param_prefix());
    let shown = service.clone();
    params.add(format!("{prefix}recovery_status"), move || status(&shown));
    limit(service, "recovery_time_soft", |s| &mut s.soft);
    limit(service, "recovery_time_hard", |s| &mut s.hard);
    let aborted = service.clone();
    let evicting = service.clone();
    params.add_rw(format!("{prefix}evict_client"), String::new, move |text| evicting.evict_clients(text.trim()));
    params.add_rw(format!("{prefix}abort_recovery"), String::new, move |_| {
        aborted.abort();
        Ok(())
    });
}

fn limit(service: &Arc<RecoveryService>, name: &str, field: fn(&mut Settings) -> &mut Duration) {
    let target = service.target();
    let (shown, set) = (service.clone(), service.clone());
    target.params().add_rw(
        format!("{}{name}", target.param_prefix()),
        move || field(&mut shown.settings()).as_secs(),
        move |text| {
            let seconds = text.trim().parse().ok().filter(|s| (1..=LIMIT_MAX).contains(s));
            let seconds =
                seconds.ok_or_else(|| format!("'{text}' is not a number of seconds from 1 to {LIMIT_MAX}"))?;
            let mut settings = set.settings();
            *field(&mut settings) = Duration::from_secs(seconds);
            set.set_settings(settings);
            Ok(())
        },
    );
}

/// The fields of `recovery_status`, which differ before and after the end.
fn status(service: &RecoveryService) -> Fields {
    let status = service.status();
    let (now, target) = (service.target().rt().now(), service.target());
    let wall = |at: Time| target.rt().wall().secs - now.since(at).as_secs() as i64;
    let mut fields = Fields::default();
    if status.counts.known == 0 {
        fields.push("status", "INACTIVE");
        return fields;
    }
    fields.push("status", status.phase.name());
    fields.push("recovery_start", status.began.map_or(0, wall));
    let counts = status.counts;
    if let (Phase::Complete, Some(began), Some(ended)) = (status.phase, status.began, status.ended) {
        fields.push("recovery_duration", ended.since(began).as_secs());
        fields.push("completed_clients", format!("{}/{}", counts.known - counts.evicted, counts.known));
        fields.push("replayed_requests", counts.replayed);
        if counts.failed > 0 {
            fields.push("failed_requests", counts.failed);
        }
        fields.push("last_transno", target.last_committed().0);
    } else {
        let left = if status.deadline == Time::FAR_FUTURE { 0 } else { status.deadline.since(now).as_secs() };
        fields.push("time_remaining", left);
        fields.push("connected_clients", format!("{}/{}", counts.connected, counts.known));
        fields.push("req_replay_clients", counts.connected - counts.requests_done);
        fields.push("lock_repay_clients", counts.connected - counts.completed);
        fields.push("completed_clients", counts.completed);
        fields.push("evicted_clients", counts.evicted);
        fields.push("replayed_requests", counts.replayed);
        if counts.failed > 0 {
            fields.push("failed_requests", counts.failed);
        }
        fields.push("queued_requests", counts.waiting);
        fields.push("next_transno", status.last_transno + 1);
    }
    fields.push("VBR", if status.by_version { "ENABLED" } else { "DISABLED" });
    fields
}
