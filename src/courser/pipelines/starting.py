"""Where a new checkpoint begins, as people write it."""

import json
import re
from collections.abc import Sequence
from datetime import datetime

from courser.pipelines.definition import Start
from courser.pipelines.keys import alike


def parse_start(text: str) -> Start:
    """``earliest``, ``latest``, a time, or offsets by partition. Raises ``ValueError`` with a sentence."""
    word = text.strip()
    if word in ("earliest", "latest"):
        return Start(word)
    if word.startswith("{"):
        try:
            offsets = json.loads(word)
        except ValueError:
            offsets = None
        if isinstance(offsets, dict) and offsets and all(_is_offset(*item) for item in offsets.items()):
            return Start(json.dumps(dict(sorted(offsets.items(), key=lambda item: int(item[0])))))
        raise ValueError(f'takes offsets by partition such as {{"0": 1200, "1": 987}}, not {word[:80]}')
    try:
        moment = datetime.fromisoformat(word)
    except ValueError:
        near = alike(word, ("earliest", "latest"))
        raise ValueError(f'takes "earliest", "latest", a time or offsets as JSON, not "{word[:80]}"{near}') from None
    if moment.tzinfo is None:
        raise ValueError(f'needs a time zone: "{word}Z" is UTC')
    return Start("earliest", moment.isoformat())


def completed(start: Start, partitions: Sequence[int]) -> Start:
    """The same start, with a place for every partition: those that offsets do not name begin at their beginning.

    Spark's stream would begin them at their end, and nobody would notice what is missing.
    """
    if not start.offsets.startswith("{"):
        return start
    offsets = {str(partition): -2 for partition in partitions} | json.loads(start.offsets)
    return Start(json.dumps(dict(sorted(offsets.items(), key=lambda item: int(item[0])))))


def _is_offset(partition: str, offset: object) -> bool:
    is_number = isinstance(offset, int) and not isinstance(offset, bool)
    return bool(re.fullmatch(r"[0-9]{1,9}", partition)) and is_number and -2 <= int(str(offset)) < 2**63
