# Prices of a basket.
module Basket
  def self.total(prices)
    prices.sum
  end

  def self.discounted(price, percent)
    price - price * percent / 100
  end

  def self.parse(amount)
    whole, cents = amount.split(".")
    raise ArgumentError, "no cents in #{amount}" if cents.nil? # fails

    whole.to_i * 100 + cents.to_i
  end
end
