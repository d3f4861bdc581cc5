"""Prices of a basket."""


def total(prices):
    return sum(prices)


def discounted(price, percent):
    return price - price * percent // 100


def parse(amount):
    whole, cents = amount.split(".")  # fails
    return int(whole) * 100 + int(cents)
