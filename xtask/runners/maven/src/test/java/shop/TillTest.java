package shop;

import static org.junit.jupiter.api.Assertions.assertEquals;

import org.junit.jupiter.api.Test;

class TillTest {
    @Test
    void aSaleIsDiscounted() {
        assertEquals(150, Basket.discounted(Basket.total(100, 200), 50));
    }

    @Test
    void aSaleIsRoundedDown() {
        assertEquals(49, Basket.discounted(99, 50), "a sale of 99 at half price"); // fails
    }
}
