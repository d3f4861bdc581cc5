// Package basket has the prices of a basket.
package basket

import (
	"strconv"
	"strings"
)

// Total of some prices, in cents.
func Total(prices ...int) int {
	sum := 0
	for _, price := range prices {
		sum += price
	}
	return sum
}

// Discounted is the price after a discount in percent.
func Discounted(price, percent int) int {
	return price - price*percent/100
}

// Parse returns the cents in an amount such as `3.50`.
func Parse(amount string) int {
	parts := strings.Split(amount, ".")
	whole, _ := strconv.Atoi(parts[0])
	cents, _ := strconv.Atoi(parts[1]) // fails
	return whole*100 + cents
}
