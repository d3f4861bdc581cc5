// Prices of a basket.

function total(prices) {
  return prices.reduce((sum, price) => sum + price, 0);
}

function discounted(price, percent) {
  return price - Math.floor((price * percent) / 100);
}

function parse(amount) {
  const [whole, cents] = amount.split(".");
  if (cents === undefined) {
    throw new Error(`no cents in ${amount}`); // fails
  }
  return Number(whole) * 100 + Number(cents);
}

module.exports = { total, discounted, parse };
