r"""How the option ``topic`` spells names: ``orders,payments``.

Names of topics may hold anything. A comma that belongs to a name is written ``\,``, a backslash before such a character
``\\``; blanks around a name are no part of it, unless they are written with a backslash too.
"""

import re
from collections.abc import Iterable
from itertools import dropwhile

_ATOM = re.compile(r"\\[,\\\s]|.", re.DOTALL)
_SPECIAL = re.compile(r"[,\\]|\A\s|\s\Z")


def parse_topics(text: str) -> tuple[str, ...]:
    """The names in a list. Raises ``ValueError`` with what was expected."""
    names: list[list[str]] = [[]]
    for atom in _ATOM.findall(text):
        if atom == ",":
            names.append([])
        else:
            names[-1].append(atom)
    topics = tuple(map(_name, names))
    if not all(topics) or len(set(topics)) != len(topics):
        raise ValueError(r'names with commas between them, each of them once; a comma inside a name is written "\,"')
    return topics


def _name(atoms: list[str]) -> str:
    kept = list(dropwhile(str.isspace, atoms))
    while kept and kept[-1].isspace():
        kept.pop()
    return "".join(atom[-1] for atom in kept)


def topic_text(*topics: str) -> str:
    """How the option spells these names."""
    return ",".join(_SPECIAL.sub(lambda found: f"\\{found[0]}", topic) for topic in topics)


def listed(topics: Iterable[str]) -> str:
    """For messages: ``"orders", "payments"``."""
    return ", ".join(f'"{topic}"' for topic in topics)
