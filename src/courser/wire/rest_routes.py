"""Which route a method and a path belong to. The routes of commands are in the table; others are added beside them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from urllib.parse import unquote_to_bytes

Target = TypeVar("Target")


@dataclass(slots=True)
class _Place(Generic[Target]):
    """A place in the tree of paths: what it answers, and what comes below it."""

    targets: dict[str, Target] = field(default_factory=dict)
    """By method."""
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By method: what the values in the path are called."""
    below: dict[str, "_Place[Target]"] = field(default_factory=dict)
    any_below: "_Place[Target] | None" = None


@dataclass(frozen=True, slots=True)
class Match(Generic[Target]):
    """A path that exists."""

    targets: Mapping[str, Target]
    """By method."""
    _values: Mapping[str, Mapping[str, str]]

    @property
    def allowed(self) -> str:
        """The methods that the path answers, as the header ``Allow`` lists them."""
        methods = set(self.targets) | ({"HEAD"} if "GET" in self.targets else set())
        return ",".join(sorted(methods))

    def values(self, method: str) -> Mapping[str, str]:
        """What the path says, by field."""
        return self._values[method]


class RouteTable(Generic[Target]):
    """A tree of paths. A part that stands in a path as it is comes before a value in its place."""

    def __init__(self) -> None:
        self._root: _Place[Target] = _Place()

    def add(self, method: str, path: str, target: Target) -> None:
        """Add a route. Its path may have fields in braces."""
        place, names = self._root, []
        for part in _parts(path):
            if part.startswith("{"):
                names.append(part[1:-1])
                place.any_below = place.any_below or _Place()
                place = place.any_below
            else:
                place = place.below.setdefault(part, _Place())
        assert method not in place.targets, f"{method} {path} exists twice"
        place.targets[method] = target
        place.names[method] = tuple(names)

    def find(self, path: bytes) -> Match[Target] | None:
        """The route of a path as it was sent, or None. A trailing slash makes it another path."""
        if not path.startswith(b"/"):
            return None
        place, values = self._root, []
        for part in _decoded_parts(path):
            known = place.below.get(part)
            if known is not None:
                place = known
            elif place.any_below is not None and part:
                place = place.any_below
                values.append(part)
            else:
                return None
        if not place.targets:
            return None
        return Match(
            place.targets,
            {method: dict(zip(names, values, strict=True)) for method, names in place.names.items()},
        )


def _parts(path: str) -> list[str]:
    return path.split("/")[1:] if path != "/" else []


def _decoded_parts(path: bytes) -> Iterator[str]:
    """Decoded one by one: an escaped slash belongs to a name."""
    if path != b"/":
        for part in path.split(b"/")[1:]:
            yield (unquote_to_bytes(part) if b"%" in part else part).decode(errors="surrogateescape")
