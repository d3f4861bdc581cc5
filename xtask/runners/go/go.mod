module example.test/basket

go 1.19
