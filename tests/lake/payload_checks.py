"""Compares the two ways of a format to decode: many payloads at once, and one by one."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from courser.lake.payloads import Decoded, PayloadFormat, decode
from courser.lake.text_values import Unsure


class OneByOne:
    """A format without its fast way."""

    def __init__(self, payload_format: PayloadFormat) -> None:
        self.schema = payload_format.schema
        self.values = payload_format.values

    def columns(self, payloads: Any) -> Sequence[Any]:
        raise Unsure


def binary(payloads: Sequence[bytes | None]) -> Any:
    return pa.array(payloads, pa.binary())


def check_both_ways(payload_format: PayloadFormat, payloads: Sequence[bytes]) -> Decoded:
    """The batch as it is decoded, which must be what its payloads are one by one."""
    batch = binary(payloads)
    slow = decode(OneByOne(payload_format), batch)
    found = decode(payload_format, batch)
    found.rows.validate(full=True)
    assert found.rows.equals(slow.rows), (found.rows.to_pylist(), slow.rows.to_pylist())
    assert found.good.equals(slow.good)
    assert found.bad == slow.bad
    places = [*found.good.to_pylist(), *(bad.index for bad in found.bad)]
    assert sorted(places) == list(range(len(payloads)))
    assert found.rows.num_rows == len(found.good)
    # Again without those that are bad: now the fast way has its turn.
    good = [payloads[place] for place in found.good.to_pylist()]
    if len(good) < len(payloads):
        again = decode(payload_format, binary(good))
        assert again.rows.equals(slow.rows)
        assert not again.bad
    return found
