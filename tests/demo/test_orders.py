"""The orders of the demo: the same every time, plausible, and late within bounds."""

from collections import Counter

from courser.demo.orders import EVENING, LATE_MAX, LENGTH, make_orders


def test_the_same_seed_makes_the_same_orders() -> None:
    assert list(make_orders(200, 3)) == list(make_orders(200, 3))
    assert list(make_orders(200, 3)) != list(make_orders(200, 4))


def test_each_order_is_there_once_and_in_the_evening() -> None:
    orders = list(make_orders(3000, 1))
    assert sorted(order.order_id for order in orders) == list(range(1, 3001))
    assert all(EVENING <= order.at < EVENING + LENGTH for order in orders)


def test_some_are_late_but_never_later_than_the_watermark_allows() -> None:
    newest, late = EVENING, []
    for order in make_orders(3000, 1):
        newest = max(newest, order.at)
        if order.at < newest:
            late.append(newest - order.at)
    assert len(late) > 30
    assert max(late) <= LATE_MAX


def test_some_things_and_customers_are_more_popular() -> None:
    orders = list(make_orders(3000, 1))
    assert Counter(order.product.name for order in orders).most_common(1)[0][0] == "dark chocolate"
    per_customer = Counter(order.customer for order in orders).most_common()
    assert per_customer[0][1] > 20 * per_customer[-1][1]


def test_an_order_travels_as_json_with_exact_money() -> None:
    document = next(make_orders(1, 1)).document()
    assert list(document) == [
        "order_id",
        "at",
        "customer",
        "city",
        "category",
        "product",
        "quantity",
        "price",
        "total",
    ]
    assert str(document["at"]).endswith("Z")
    assert len(str(document["total"]).partition(".")[2]) == 2
