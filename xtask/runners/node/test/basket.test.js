const assert = require("node:assert");
const { describe, it } = require("node:test");

const { discounted, parse, total } = require("../src/basket.js");

describe("basket", () => {
  for (let count = 0; count < 20; count += 1) {
    it(`adds ${count} prices`, () => {
      assert.strictEqual(total(Array(count).fill(1)), count);
    });
  }

  it("takes off a discount", () => {
    assert.strictEqual(discounted(200, 10), 180);
  });

  it("has two digits of cents", () => {
    assert.strictEqual(parse("3.5"), 350); // fails
  });

  it("takes an amount without cents as whole", () => {
    assert.strictEqual(parse("3"), 300);
  });

  it.skip("adds large baskets", () => {
    assert.strictEqual(total(Array(1000).fill(1)), 1000);
  });
});

describe("till", () => {
  it("rounds down", async () => {
    const price = await Promise.resolve(99);
    assert.strictEqual(discounted(price, 50), 49); // fails
  });
});
