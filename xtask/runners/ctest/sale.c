#include <stdio.h>

#include "basket.h"

static int failures;

static void check(const char *file, int line, int got, int want) {
    if (got != want) {
        printf("%s:%d: Failure: got %d, want %d\n", file, line, got, want);
        failures++;
    }
}

int main(void) {
    int prices[] = {99};
    check(__FILE__, __LINE__, discounted(100, 50), 50);
    check(__FILE__, __LINE__, discounted(total(prices, 1), 50), 49); /* fails */
    return failures;
}
