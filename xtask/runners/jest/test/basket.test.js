const { discounted, parse, total } = require("../src/basket.js");

describe("basket", () => {
  for (let count = 0; count < 20; count += 1) {
    it(`adds ${count} prices`, () => {
      expect(total(Array(count).fill(1))).toEqual(count);
    });
  }

  it("takes off a discount", () => {
    expect(discounted(200, 10)).toEqual(180);
  });

  it("has two digits of cents", () => {
    expect(parse("3.5")).toEqual(350); // fails
  });

  it("takes an amount without cents as whole", () => {
    expect(parse("3")).toEqual(300);
  });

  it.skip("adds large baskets", () => {
    expect(total(Array(1000).fill(1))).toEqual(1000);
  });
});

describe("till", () => {
  it("rounds down", async () => {
    const price = await Promise.resolve(99);
    expect(discounted(price, 50)).toEqual(49); // fails
  });
});
