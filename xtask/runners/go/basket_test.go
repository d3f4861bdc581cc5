package basket

import (
	"fmt"
	"testing"
)

func TestTotal(t *testing.T) {
	for count := 0; count < 20; count++ {
		t.Run(fmt.Sprintf("of %d", count), func(t *testing.T) {
			if got := Total(make([]int, count)...); got != 0 {
				t.Errorf("total is %d", got)
			}
		})
	}
}

func TestDiscounted(t *testing.T) {
	for _, percent := range []int{0, 10, 50, 100} {
		t.Run(fmt.Sprint(percent), func(t *testing.T) {
			if got, want := Discounted(100, percent), 100-percent; got != want {
				t.Fatalf("got %d, want %d", got, want)
			}
		})
	}
}

func TestLarge(t *testing.T) {
	t.Skip("slow")
}

func TestCents(t *testing.T) {
	t.Run("two digits", func(t *testing.T) {
		if got := Parse("3.5"); got != 350 {
			t.Errorf("Parse(3.5) = %d, want 350", got) // fails
		}
	})
}
