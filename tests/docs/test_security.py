"""The bounds in docs/security.md are enforced by tests: those that it names exist."""

import re

from tests.docs.blocks import ROOT, text_of

_NAMED = re.compile(r"`(test_\w+?)(\.py)?`")


def test_every_test_that_is_named_exists() -> None:
    sources = list((ROOT / "tests").rglob("test_*.py"))
    known = {name for source in sources for name in re.findall(r"def (test_\w+)", source.read_text())}
    known |= {source.stem for source in sources}
    named = [match[1] for match in _NAMED.finditer(text_of("docs/security.md"))]
    assert len(named) > 30
    assert [name for name in named if name not in known] == []
