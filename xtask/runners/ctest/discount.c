#include <stdio.h>

#include "basket.h"

int main(void) {
    int prices[] = {200};
    int price = discounted(total(prices, 1), 10);
    printf("a basket of 200 is %d\n", price);
    return price == 180 ? 0 : 1;
}
