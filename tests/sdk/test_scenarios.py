"""Every scenario with every release that offers what it needs, and nothing that a release offers is left out.

The tests of a release share a child process and stay together on one worker (``tests/conftest.py``).
"""

import re
from collections.abc import Callable

import pytest

from tests.sdk.conversations import Conversation
from tests.sdk.environments import RELEASES
from tests.sdk.programs.catalogue import SCENARIOS, scenarios_of

CASES = [
    pytest.param(release, scenario.name, id=f"{release}-{scenario.name}")
    for release in RELEASES
    for scenario in scenarios_of(release)
]

LEFT_OUT = {
    # what is not used: why
    r"(Http|Quic|WebSocket)\w*Config(\.\w+)?": "another transport: its own tests come with it",
    r"CacheMetrics(\.\w+)?": "the server relies on the cache of the kernel and has no figures of its own",
    r"ReceiveMessageIterator": "handed out by iter_messages, without a name of its own to call",
}


@pytest.mark.parametrize(("release", "name"), CASES)
def test_scenario(child_of: Callable[[str], Conversation], release: str, name: str) -> None:
    child_of(release).ask("run", scenario=name)


@pytest.mark.parametrize("release", [release for release in RELEASES if ".dev" not in release])
def test_everything_that_the_release_offers_is_used(child_of: Callable[[str], Conversation], release: str) -> None:
    unused = child_of(release).ask("unused")
    assert [name for name in unused if not any(re.fullmatch(pattern, name) for pattern in LEFT_OUT)] == []


def test_names_of_scenarios_are_unique() -> None:
    names = [scenario.name for scenario in SCENARIOS]
    assert sorted(names) == sorted(set(names))
