package shop;

/** Prices of a basket. */
public final class Basket {
    private Basket() {}

    public static int total(int... prices) {
        int sum = 0;
        for (int price : prices) {
            sum += price;
        }
        return sum;
    }

    public static int discounted(int price, int percent) {
        return price - price * percent / 100;
    }

    public static int parse(String amount) {
        String[] parts = amount.split("\\.");
        return Integer.parseInt(parts[0]) * 100 + Integer.parseInt(parts[1]);
    }
}
