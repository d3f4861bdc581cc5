//! Request rate limit: a token bucket for each token of `ringfence serve`, at `/v1` and at `/mcp` together.
//!
//! Not here: how many requests a token may have under way at once (`token_slots.rs`).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use ringfence_kernel::sync::Mutex;

/// The reply to a request beyond the limit.
pub(crate) const RATE_LIMITED: &str = "rate limit exceeded for this token; try again in a moment";

/// Token bucket rate limiter, per access token.
#[derive(Clone, Debug)]
pub(crate) struct RequestRate {
    per_second: u32,
    buckets: Arc<Mutex<HashMap<Arc<str>, TokenBucket>>>,
}

/// Remaining requests of a token, as of the last count.
#[derive(Debug)]
struct TokenBucket {
    left: f64,
    since: Instant,
}

impl RequestRate {
    pub(crate) fn new(per_second: u32) -> Self {
        Self { per_second, buckets: Arc::default() }
    }

    /// Counts a request. False where the token has made too many.
    pub(crate) fn try_acquire(&self, token: &Arc<str>, now: Instant) -> bool {
        let most = f64::from(self.per_second) * 2.0;
        let mut buckets = self.buckets.lock();
        let bucket = buckets.entry(Arc::clone(token)).or_insert(TokenBucket { left: most, since: now });
        let grown = now.saturating_duration_since(bucket.since).as_secs_f64() * f64::from(self.per_second);
        bucket.left = (bucket.left + grown).min(most);
        bucket.since = now;
        let fits = bucket.left >= 1.0;
        if fits {
            bucket.left -= 1.0;
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use super::RequestRate;

    #[test]
    fn requests_per_second_are_limited_per_token() {
        let rate = RequestRate::new(2);
        let (one, other): (Arc<str>, Arc<str>) = ("one".into(), "other".into());
        let now = Instant::now();
        // Both fronts count together.
        let taken =
            [rate.clone(), rate.clone()].iter().cycle().take(10).filter(|rate| rate.try_acquire(&one, now)).count();
        assert_eq!(taken, 4);
        assert!(rate.try_acquire(&other, now));
        assert!(rate.try_acquire(&one, now + Duration::from_millis(500)));
        assert!(!rate.try_acquire(&one, now + Duration::from_millis(500)));
    }
}
