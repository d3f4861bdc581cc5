#include <assert.h>
#include <stdio.h>

#include "basket.h"

int main(void) {
    int prices[] = {3, 5};
    printf("checking cents\n");
    fflush(stdout);
    assert(total(prices, 2) == discounted(350, 0)); /* fails */
    return 0;
}
