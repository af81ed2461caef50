"""Names of streams and topics on the command line: ``stream/topic`` or ``stream topic``; numbers are ids.

The first argument of a command may contain two words with a slash in between, so that ``topic get demo/orders`` and
``topic get demo orders`` are equivalent. A word of digits is an id; everything else is a name.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from courser.cli.lazy import completed_by
from courser.cli.options import add_parameter
from courser.model.identifiers import Identifier

_ID_MAX = 2**32 - 1
_WORDS = "courser.words"
_Function = TypeVar("_Function", bound=Callable[..., object])


def identifier(word: str) -> Identifier:
    """An id if the word is a valid one, else a name."""
    return int(word) if word.isascii() and word.isdigit() and int(word) <= _ID_MAX else word


@dataclass(frozen=True, slots=True)
class TopicPath:
    """A stream, a topic or a partition."""

    stream: Identifier
    topic: Identifier | None = None
    partition_id: int | None = None

    @property
    def names(self) -> tuple[Identifier, Identifier]:
        """The stream and the topic, which must be there."""
        assert self.topic is not None, "a command that needs a topic asks for one"
        return self.stream, self.topic

    def __str__(self) -> str:
        return f"{self.stream}" if self.topic is None else f"{self.stream}/{self.topic}"


@dataclass(frozen=True, slots=True)
class Word:
    """One argument after the stream or topic."""

    name: str
    kind: click.ParamType[Any] = click.STRING
    is_required: bool = True
    takes_all: bool = False
    """Whether it takes all remaining words, as a tuple."""
    meaning: str = ""

    @property
    def metavar(self) -> str:
        """The text in the usage line."""
        text = self.name.removesuffix("_id").upper() + ("..." if self.takes_all else "")
        return text if self.is_required else f"[{text}]"


class TopicPathArgument(click.Argument):
    """The arguments of a command: a stream or topic, and further words. Each becomes an argument of the function."""

    def __init__(self, depth: str, rest: Sequence[Word], *, is_optional: bool) -> None:
        self.depth = depth
        self.rest = tuple(rest)
        self.is_place_optional = is_optional
        place = {"stream": "STREAM", "topic": "STREAM/TOPIC", "any": "[STREAM[/TOPIC]]"}[depth]
        super().__init__(
            ["words"],
            nargs=-1,
            metavar=" ".join((place, *(word.metavar for word in rest))),
            callback=self._understand,
            expose_value=False,
            shell_complete=completed_by("complete_place"),
        )

    def _understand(self, ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> None:
        del param
        if ctx.resilient_parsing:
            # For the completion of the next word.
            ctx.meta[_WORDS] = value
            return
        words = self._split(value)
        count = {"stream": 1, "topic": 2, "any": min(len(words), 2)}[self.depth]
        if len(words) < count or not all(words[:count]):
            raise click.UsageError(f"missing {'STREAM' if not words else 'TOPIC'}", ctx)
        names = [identifier(word) for word in words[:count]]
        rest = _assign(self.rest, words[count:], ctx)
        partition_id = rest.pop("partition_id", None)
        assert partition_id is None or isinstance(partition_id, int)
        topic = names[1] if count == 2 else None
        ctx.params["place"] = TopicPath(names[0], topic, partition_id) if names else None
        ctx.params |= rest

    def _split(self, words: Sequence[str]) -> list[str]:
        if self.depth == "stream" or not words:
            return list(words)
        stream, slash, topic = words[0].partition("/")
        return [stream, topic, *words[1:]] if slash else list(words)

    def words_before(self, ctx: click.Context) -> list[str]:
        """The words before the one that is being completed."""
        # Before the value of an option, the words are not assigned to this argument yet.
        return self._split(ctx.meta.get(_WORDS) or ctx.args)


def _assign(rest: Sequence[Word], words: Sequence[str], ctx: click.Context) -> dict[str, object]:
    values: dict[str, object] = {}
    left = list(words)
    for word in rest:
        if word.takes_all:
            values[word.name] = tuple(_convert(word, text, ctx) for text in left)
            left = []
        elif left:
            values[word.name] = _convert(word, left.pop(0), ctx)
        elif word.is_required:
            raise click.UsageError(f"missing {word.metavar}", ctx)
        else:
            values[word.name] = None
    if left:
        raise click.UsageError(f"unexpected word: {left[0]}", ctx)
    return values


def _convert(word: Word, text: str, ctx: click.Context) -> object:
    try:
        return word.kind.convert(text, None, ctx)
    except click.BadParameter as error:
        raise click.UsageError(f"{word.metavar.strip('[]')}: {error.message}", ctx) from None


def _place_argument(depth: str, *rest: Word, is_optional: bool = False) -> Callable[[_Function], _Function]:
    def add(function: _Function) -> _Function:
        return add_parameter(function, TopicPathArgument(depth, rest, is_optional=is_optional))

    return add


def stream_argument(*rest: Word) -> Callable[[_Function], _Function]:
    """``STREAM``, and further words."""
    return _place_argument("stream", *rest)


def topic_argument(*rest: Word) -> Callable[[_Function], _Function]:
    """``STREAM/TOPIC`` or ``STREAM TOPIC``, and further words."""
    return _place_argument("topic", *rest)


def any_place_argument() -> Callable[[_Function], _Function]:
    """An optional stream or topic."""
    return _place_argument("any", is_optional=True)


PARTITION = Word("partition_id", click.IntRange(min=0))


def sought(**names: Identifier | None) -> Mapping[str, Identifier]:
    """Other names that a command uses, for the message about a missing one."""
    return {kind: name for kind, name in names.items() if name is not None}
