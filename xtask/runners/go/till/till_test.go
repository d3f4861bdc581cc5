package till

import (
	"testing"

	"example.test/basket"
)

func TestSale(t *testing.T) {
	if got := basket.Discounted(99, 50); got != 49 {
		t.Fatalf("a sale of 99 at half price is %d, want 49", got) // fails
	}
}

func TestWhole(t *testing.T) {
	if got := basket.Parse("3"); got != 300 {
		t.Errorf("got %d, want 300", got)
	}
}
