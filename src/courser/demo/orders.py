"""Generates the orders of one evening in a made-up shop, reproducible by seed.

They arrive almost in the order in which they were placed: a phone without a signal sends its order minutes later.
"""

import bisect
import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

EVENING = datetime(2026, 1, 30, 18, 0, tzinfo=UTC)
"""When the first order is placed."""
LENGTH = timedelta(hours=3)
LATE_MAX = timedelta(minutes=4)
"""The maximum lateness of an order, which a watermark must allow for."""

ORDER_SCHEMA = (
    "order_id BIGINT, at TIMESTAMP, customer STRING, city STRING, category STRING, product STRING, quantity INT, "
    "price DECIMAL(9,2), total DECIMAL(11,2)"
)
"""For Spark's ``from_json``."""

_LATE_SHARE = 0.02
_CUSTOMER_COUNT = 1500
_CITIES = {"Berlin": 30, "Hamburg": 18, "Munich": 15, "Cologne": 11, "Leipzig": 8, "Dresden": 6, "Bremen": 5, "Kiel": 2}
"""With the approximate percentage of customers who live there."""


@dataclass(frozen=True, slots=True)
class Product:
    """What can be ordered."""

    name: str
    category: str
    cents: int
    weight: int
    """How popular it is."""


PRODUCTS = (
    Product("espresso beans 1 kg", "coffee", 2190, 18),
    Product("filter coffee 500 g", "coffee", 1150, 14),
    Product("hand grinder", "coffee", 8900, 2),
    Product("green tea 100 g", "tea", 890, 10),
    Product("assam 250 g", "tea", 1240, 8),
    Product("teapot", "tea", 3450, 2),
    Product("dark chocolate", "sweets", 340, 22),
    Product("almond biscuits", "sweets", 495, 15),
    Product("nougat box", "sweets", 1690, 5),
    Product("espresso cups, set of 4", "tableware", 2800, 3),
    Product("breakfast plate", "tableware", 1450, 3),
    Product("carafe", "tableware", 2600, 2),
)


@dataclass(frozen=True, slots=True)
class Order:
    """An order of the demonstration."""

    order_id: int
    at: datetime
    customer: str
    city: str
    product: Product
    quantity: int

    @property
    def total_cents(self) -> int:
        """What is paid for it."""
        return self.quantity * self.product.cents

    def document(self) -> dict[str, object]:
        """As it travels: JSON."""
        return {
            "order_id": self.order_id,
            "at": self.at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "customer": self.customer,
            "city": self.city,
            "category": self.product.category,
            "product": self.product.name,
            "quantity": self.quantity,
            "price": _money(self.product.cents),
            "total": _money(self.total_cents),
        }


def make_orders(count: int, seed: int) -> Iterator[Order]:
    """So many orders of the evening, in the order in which they arrive."""
    dice = random.Random(seed)
    cities = dice.choices(list(_CITIES), list(_CITIES.values()), k=_CUSTOMER_COUNT)
    # Few customers order often, most of them once in a while.
    regulars = list(itertools.accumulate(1 / (rank + 10) for rank in range(_CUSTOMER_COUNT)))
    products = list(itertools.accumulate(product.weight for product in PRODUCTS))
    arrivals = sorted(
        (at + (dice.random() * LATE_MAX if dice.random() < _LATE_SHARE else timedelta()), number, at)
        for number, at in enumerate(_moments(count, dice))
    )
    for _, number, at in arrivals:
        customer = bisect.bisect(regulars, dice.random() * regulars[-1])
        product = PRODUCTS[bisect.bisect(products, dice.random() * products[-1])]
        quantity = 1 + min(int(dice.expovariate(1.2)), 9)
        yield Order(number + 1, at, f"customer-{customer:04}", cities[customer], product, quantity)


def _moments(count: int, dice: random.Random) -> list[datetime]:
    """When orders are placed: more and more until the middle of the evening, then fewer."""
    moments: list[datetime] = []
    while len(moments) < count:
        share = dice.random()
        if dice.random() < 0.25 + 0.75 * math.sin(math.pi * share) ** 2:
            moments.append(EVENING + timedelta(milliseconds=int(share * LENGTH / timedelta(milliseconds=1))))
    return sorted(moments)


def _money(cents: int) -> str:
    """As text: a float would not be exact."""
    return f"{cents // 100}.{cents % 100:02}"
