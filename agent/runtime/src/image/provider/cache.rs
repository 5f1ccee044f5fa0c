//! A plugin's answer, for as long as it is valid.
//!
//! The caller brings the time. Bound: `ENTRIES_MAX`; further answers are not cached.
// k8s: pkg/credentialprovider/plugin/plugin.go getCachedCredentials

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use pintle_agent_core::image::registry_match;

use super::Logins;
use super::account::AccountKey;

/// Most answers of a plugin that are remembered.
pub(super) const ENTRIES_MAX: usize = 4096;
/// Key of an answer that is good for every image; no image is named like that.
pub(super) const GLOBAL: &str = "<global>";
/// How often expired answers are dropped.
const PURGE_EVERY: Duration = Duration::from_secs(15 * 60);

struct CacheEntry {
    logins: Rc<Logins>,
    ends_at: Option<Instant>,
}

/// The answers of one plugin.
pub(super) struct Cache {
    entries: BTreeMap<(String, AccountKey), CacheEntry>,
    purged_at: Instant,
}

impl CacheEntry {
    fn is_good(&self, now: Instant) -> bool {
        self.ends_at.is_none_or(|end| now <= end)
    }
}

impl Cache {
    /// Without answers.
    pub(super) fn new(now: Instant) -> Self {
        Self { entries: BTreeMap::new(), purged_at: now }
    }

    /// The answer for an image: its own, its registry's, or the one for all.
    pub(super) fn find(
        &mut self,
        image: &str,
        account: &AccountKey,
        now: Instant,
    ) -> Option<Rc<Logins>> {
        if now.saturating_duration_since(self.purged_at) > PURGE_EVERY {
            self.purge(now);
        }
        [image, registry_match::registry(image), GLOBAL].into_iter().find_map(|base| {
            let entry = self.entries.get(&(base.to_owned(), account.clone()))?;
            entry.is_good(now).then(|| Rc::clone(&entry.logins))
        })
    }

    /// Remembers an answer; false when there is no room.
    pub(super) fn add(
        &mut self,
        base: &str,
        account: AccountKey,
        logins: Rc<Logins>,
        lasts: Duration,
        now: Instant,
    ) -> bool {
        let key = (base.to_owned(), account);
        if self.entries.len() >= ENTRIES_MAX && !self.entries.contains_key(&key) {
            self.purge(now);
            if self.entries.len() >= ENTRIES_MAX {
                return false;
            }
        }
        self.entries.insert(key, CacheEntry { logins, ends_at: now.checked_add(lasts) });
        true
    }

    fn purge(&mut self, now: Instant) {
        self.entries.retain(|_, entry| entry.is_good(now));
        self.purged_at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pintle_agent_core::image::pull_credential::Coordinates;

    const HOUR: Duration = Duration::from_secs(3600);

    fn logins(user: &str) -> Rc<Logins> {
        Rc::new(Logins::from([("r".to_owned(), (user.to_owned(), "p".to_owned()))]))
    }

    fn found(cache: &mut Cache, image: &str, account: &AccountKey, now: Instant) -> Option<String> {
        let logins = cache.find(image, account, now)?;
        logins.values().next().map(|(user, _)| user.clone())
    }

    #[test]
    fn most_specific_cache_entry_applies_until_it_expires() {
        let (start, none) = (Instant::now(), AccountKey::default());
        let mut cache = Cache::new(start);
        for (base, user, lasts) in
            [("reg/a", "image", HOUR), ("reg", "registry", HOUR * 2), (GLOBAL, "all", HOUR * 3)]
        {
            assert!(cache.add(base, none.clone(), logins(user), lasts, start));
        }
        for (image, after, want) in [
            ("reg/a", HOUR, Some("image")),
            ("reg/b", HOUR, Some("registry")),
            ("other/b", HOUR, Some("all")),
            ("reg/a", HOUR + Duration::from_secs(1), Some("registry")),
            ("reg/a", HOUR * 3, Some("all")),
            ("reg/a", HOUR * 4, None),
        ] {
            let user = found(&mut cache, image, &none, start + after);
            assert_eq!(user.as_deref(), want, "{image} {after:?}");
        }
        assert!(cache.entries.is_empty(), "what is over goes from time to time");
    }

    #[test]
    fn cached_credentials_are_used_only_for_the_same_account_and_token() {
        let start = Instant::now();
        let mut cache = Cache::new(start);
        let account = |uid: &str, token: Option<&str>| AccountKey {
            account: Some(Coordinates {
                namespace: "ns".to_owned(),
                name: "sa".to_owned(),
                uid: uid.to_owned(),
            }),
            annotations: BTreeMap::new(),
            token_hash: token.map(str::to_owned),
        };
        cache.add(GLOBAL, account("1", None), logins("one"), HOUR, start);
        cache.add(GLOBAL, account("2", Some("t")), logins("two"), HOUR, start);
        for (key, want) in [
            (account("1", None), Some("one")),
            (account("3", None), None),
            (account("2", Some("t")), Some("two")),
            (account("2", Some("u")), None),
            (AccountKey::default(), None),
        ] {
            assert_eq!(found(&mut cache, "reg/a", &key, start).as_deref(), want, "{key:?}");
        }
    }

    #[test]
    fn full_cache_accepts_no_new_key_until_an_entry_expires() {
        let (start, none) = (Instant::now(), AccountKey::default());
        let mut cache = Cache::new(start);
        for n in 0..ENTRIES_MAX {
            assert!(cache.add(&n.to_string(), none.clone(), logins("u"), HOUR, start));
        }
        assert!(!cache.add("more", none.clone(), logins("u"), HOUR, start));
        assert!(cache.add("0", none.clone(), logins("u"), HOUR * 3, start), "it is there");
        assert!(cache.add("more", none, logins("u"), HOUR, start + HOUR * 2));
        assert_eq!(cache.entries.len(), 2);
    }
}
