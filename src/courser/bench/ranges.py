"""A number that is fixed, or picked at random between two bounds: sizes of messages and of batches."""

import random
from dataclasses import dataclass

from courser.model.quantities import parse_byte_size


@dataclass(frozen=True, slots=True)
class NumberRange:
    """``minimum`` to ``maximum``, both included."""

    minimum: int
    maximum: int

    @property
    def is_fixed(self) -> bool:
        """Whether there is only one."""
        return self.minimum == self.maximum

    @property
    def mean(self) -> float:
        """Of many picks."""
        return (self.minimum + self.maximum) / 2

    def pick(self, source: random.Random) -> int:
        """One of them; each is as likely as the others."""
        return self.minimum if self.is_fixed else source.randint(self.minimum, self.maximum)

    def __str__(self) -> str:
        return f"{self.minimum}" if self.is_fixed else f"{self.minimum}..{self.maximum}"


def parse_range(text: str) -> NumberRange:
    """``1000``, ``1 KB``, ``200..1800`` or ``1 KB..64 KiB``.

    Raises:
        ValueError: with what was expected.
    """
    first, dots, second = text.partition("..")
    minimum = parse_byte_size(first)
    maximum = parse_byte_size(second) if dots else minimum
    if not 1 <= minimum <= maximum:
        raise ValueError(f'a range of at least 1 with the smaller bound first, such as "200..1800", not "{text[:60]}"')
    return NumberRange(minimum, maximum)
