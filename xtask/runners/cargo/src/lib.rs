//! Prices of a basket.

/// Total of some prices, in cents.
pub fn total(prices: &[u32]) -> u32 {
    prices.iter().sum()
}

/// Price after a discount in percent.
pub fn discounted(price: u32, percent: u32) -> u32 {
    price - price * percent / 100
}

/// Cents in an amount such as `3.50`.
pub fn parse(amount: &str) -> Option<u32> {
    let (whole, cents) = amount.split_once('.')?;
    Some(whole.parse::<u32>().ok()? * 100 + cents.parse::<u32>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::{discounted, parse, total};

    #[test]
    fn an_empty_basket_is_free() {
        assert_eq!(total(&[]), 0);
    }

    #[test]
    fn prices_are_added() {
        assert_eq!(total(&[1, 2, 3]), 6);
    }

    #[test]
    fn a_discount_is_taken_off() {
        assert_eq!(discounted(200, 10), 180);
    }

    #[test]
    fn a_full_discount_is_free() {
        assert_eq!(discounted(200, 100), 0);
    }

    #[test]
    fn an_amount_has_two_digits_of_cents() {
        assert_eq!(parse("3.5"), Some(350)); // fails
    }

    #[test]
    fn an_amount_without_cents_is_whole() {
        let cents = parse("3").unwrap(); // fails
        assert_eq!(cents, 300);
    }

    #[test]
    fn words_are_not_amounts() {
        assert_eq!(parse("a.b"), None);
    }

    #[test]
    #[ignore = "slow"]
    fn large_baskets_are_added() {
        assert_eq!(total(&[1; 1000]), 1000);
    }
}
