//! How a node's copy of the configuration becomes the newest version by a reply of the MGS.

use crate::shared::News;
use nacre_wire::mgs::Config;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The configuration after a reply to a question that named the version of `known`; `None` if nothing has changed.
pub(crate) fn updated(known: &Config, news: News) -> Option<Arc<Config>> {
    let News { since, config, unset } = news;
    let silent_changed = config.silent_version != known.silent_version;
    if config.version == known.version && !silent_changed {
        return None;
    }
    // Changes since another version than the one that is known are of no use: the next question is answered again.
    if since != 0 && since != known.version {
        return None;
    }
    if since == 0 && silent_changed {
        return Some(config);
    }
    let mut newest = Arc::unwrap_or_clone(config);
    if !silent_changed {
        newest.silent.clone_from(&known.silent);
    }
    if since != 0 {
        let mut targets: BTreeMap<&str, _> = known.targets.iter().map(|t| (&t.target[..], t)).collect();
        targets.extend(newest.targets.iter().map(|t| (&t.target[..], t)));
        let targets = targets.into_values().cloned().collect();
        let mut params: BTreeMap<_, _> = known.params.iter().cloned().collect();
        params.retain(|name, _| !unset.contains(name));
        params.extend(newest.params);
        newest.targets = targets;
        newest.params = params.into_iter().collect();
    }
    Some(Arc::new(newest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_wire::mgs::TargetEntry;

    fn config(version: u64, targets: &[(&str, u64)], params: &[(&str, &str)]) -> Config {
        let target = |(name, instance): &(&str, u64)| {
            Arc::new(TargetEntry { target: (*name).to_owned(), instance: *instance, ..TargetEntry::default() })
        };
        Config {
            version,
            fsname: "n".to_owned(),
            targets: targets.iter().map(target).collect(),
            params: params.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            ..Config::default()
        }
    }

    fn known() -> Config {
        let silent = vec!["n-OST0000".to_owned()];
        Config {
            silent_version: 4,
            silent,
            ..config(7, &[("n-MDT0000", 1), ("n-OST0000", 1)], &[("a", "1"), ("b", "1")])
        }
    }

    fn changes(since: u64, config: Config, unset: &[&str]) -> News {
        let config = Arc::new(Config { silent_version: 4, ..config });
        News { since, config, unset: unset.iter().map(|name| (*name).to_owned()).collect() }
    }

    #[test]
    fn changes_are_put_over_what_is_known() {
        let news = config(9, &[("n-OST0000", 2), ("n-OST0001", 1)], &[("c", "2"), ("b", "3")]);
        let newest = updated(&known(), changes(7, news, &["a"])).unwrap();
        let expected = config(9, &[("n-MDT0000", 1), ("n-OST0000", 2), ("n-OST0001", 1)], &[("b", "3"), ("c", "2")]);
        assert_eq!(*newest, Config { silent_version: 4, silent: known().silent, ..expected });
    }

    #[test]
    fn a_whole_configuration_replaces_what_is_known() {
        let whole = config(3, &[("n-MDT0000", 5)], &[]);
        let newest = updated(&known(), changes(0, whole.clone(), &[])).unwrap();
        assert_eq!(*newest, Config { silent_version: 4, silent: known().silent, ..whole });
    }

    #[test]
    fn other_silent_targets_are_news_without_changes() {
        let config_of_reply = Config { silent_version: 5, ..config(7, &[], &[]) };
        let news = News { since: 7, config: Arc::new(config_of_reply), unset: vec![] };
        let newest = updated(&known(), news).unwrap();
        assert_eq!(*newest, Config { silent_version: 5, silent: vec![], ..known() });
        assert_eq!(updated(&known(), changes(7, config(7, &[], &[]), &[])), None);
    }

    /// Thousands of simulated clients that have just been mounted have one copy.
    #[test]
    fn a_whole_configuration_with_its_silent_targets_is_not_copied() {
        let news = News { config: Arc::new(Config { silent_version: 5, ..config(3, &[], &[]) }), ..News::default() };
        let newest = updated(&Config::default(), news.clone()).unwrap();
        assert!(Arc::ptr_eq(&newest, &news.config));
    }

    /// The reply to an earlier question may come after that to a later one.
    #[test]
    fn changes_since_another_version_are_ignored() {
        assert_eq!(updated(&known(), changes(6, config(8, &[("n-OST0001", 1)], &[]), &[])), None);
    }
}
