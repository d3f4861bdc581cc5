#include <assert.h>

#include "basket.h"

int main(void) {
    int prices[] = {1, 2, 3};
    assert(total(prices, 3) == 6);
    assert(discounted(6, 0) == 6);
    return 0;
}
