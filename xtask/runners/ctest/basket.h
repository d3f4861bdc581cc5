/* Prices of a basket. */
static int total(const int *prices, int count) {
    int sum = 0;
    for (int i = 0; i < count; i++)
        sum += prices[i];
    return sum;
}

static int discounted(int price, int percent) {
    return price - price * percent / 100;
}
