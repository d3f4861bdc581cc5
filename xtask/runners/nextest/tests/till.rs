//! Sales.

use basket::{discounted, total};

fn check(prices: &[u32], percent: u32, expected: u32) {
    assert_eq!(discounted(total(prices), percent), expected, "{prices:?} less {percent} %"); // fails
}

#[test]
fn a_sale_is_discounted() {
    check(&[100, 200], 50, 150);
}

#[test]
fn a_sale_is_rounded_up() {
    check(&[99], 50, 49);
}
