"""Check what callers pass in, so that a wrong type is reported by its name and not by an error from deep inside."""

from collections.abc import Callable, Iterable, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

Settings = TypeVar("Settings")

_NAMES = {int: "an int", float: "a number", bool: "True or False", str: "a str", bytes: "bytes", NoneType: "None"}


def settings_of(owner: str, kind: Callable[..., Settings], options: Mapping[str, object]) -> Settings:
    """The settings from the options of a call.

    Raises:
        TypeError: an option is unknown, or its value has another type.
    """
    hints = _hints(kind)
    check_names(f"a {owner}", options, hints)
    for name, value in options.items():
        if not _is_of(value, hints[name]):
            raise TypeError(f"a {owner}'s {name} must be {_words(hints[name])}, not {value!r}")
    return kind(**options)


def check_names(owner: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise ``TypeError`` if one of the names is unknown."""
    for name in names:
        if name not in known:
            raise TypeError(f'{owner} has no option "{name}"; it has {", ".join(known)}')


def check_seconds(name: str, value: object) -> float:
    """A time in seconds. Raises ``TypeError`` or ``ValueError``."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number of seconds, not {value!r}")
    if not value >= 0:
        raise ValueError(f"{name} must not be negative: {value}")
    return value


def wrong_type(thing: object) -> str | None:
    """What is wrong about the first field of a command whose value has another type; None if there is none."""
    for name, hint in _hints(type(thing)).items():
        value = getattr(thing, name, None)
        if not _is_of(value, hint):
            return f"{name} must be {_words(hint)}, not {value!r}"
        if isinstance(value, msgspec.Struct) and (wrong := wrong_type(value)) is not None:
            return f"{name}: {wrong}"
    return None


def has_type(value: object, kind: type, name: str) -> bool:
    """Whether the field of a class may have this value. Kinds of values that are not known here may be anything."""
    return _is_of(value, _hints(kind)[name])


def _hints(kind: Callable[..., Any]) -> dict[str, Any]:
    """The types of the fields that values are created with."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: hint for name, hint in hints.items() if not name.startswith("_") and name != "row"}


def _alternatives(hint: Any) -> tuple[Any, ...]:
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, UnionType):
        return tuple(one for part in get_args(hint) for one in _alternatives(part))
    return (hint,)


def _is_of(value: object, hint: Any) -> bool:
    return any(_is_one(value, one) for one in _alternatives(hint))


def _is_one(value: object, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin is Literal:
        # Whether the word is a known one, the settings themselves say.
        return isinstance(value, str)
    kind = hint if origin is None else origin
    if not isinstance(kind, type):
        return True
    if isinstance(value, bool):
        return kind in (bool, object)
    return isinstance(value, int | float) if kind is float else isinstance(value, kind)


def _words(hint: Any) -> str:
    """The types of a hint, for a message."""
    return " or ".join(dict.fromkeys(_word(one) for one in _alternatives(hint)))


def _word(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(f'"{word}"' for word in get_args(hint))
    kind = get_origin(hint) or hint
    return _NAMES.get(kind) or f"a {getattr(kind, '__name__', kind)}"
