import pytest

from basket import discounted, parse, total


@pytest.mark.parametrize("count", range(20))
def test_prices_are_added(count):
    assert total([1] * count) == count


@pytest.mark.parametrize("percent, price", [(0, 200), (10, 180), (50, 100), (100, 0)])
def test_a_discount_is_taken_off(percent, price):
    assert discounted(200, percent) == price


def test_an_amount_has_two_digits_of_cents():
    assert parse("3.5") == 350  # fails


def test_an_amount_without_cents_is_whole():
    assert parse("3") == 300


class TestTill:
    def test_a_sale_is_discounted(self):
        assert discounted(total([100, 200]), 50) == 150

    def test_a_sale_is_rounded_down(self):
        prices = [99]
        assert discounted(total(prices), 50) == 49  # fails


@pytest.mark.skip(reason="slow")
def test_large_baskets_are_added():
    assert total([1] * 1000) == 1000


@pytest.fixture
def till():
    raise RuntimeError("the till is closed")  # fails


def test_the_till_is_open(till):
    assert till
