"""The register of scenarios. Each is a coroutine over an ``Sdk``: it returns, or one of its assertions fails."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.sdk.programs.sdk import Sdk, numbers

Body = Callable[[Sdk], Awaitable[None]]


@dataclass(frozen=True)
class Scenario:
    """One thing that a program does with the SDK."""

    name: str
    body: Body
    since: tuple[int, int]
    until: tuple[int, int]

    def concerns(self, release: str) -> bool:
        """Whether this release offers what the scenario needs."""
        return self.since <= numbers(release) <= self.until


class Register:
    """Scenarios in the order of their writing."""

    def __init__(self) -> None:
        self.scenarios: list[Scenario] = []

    def scenario(self, since: str = "0.5", until: str = "0.10") -> Callable[[Body], Body]:
        """Enter a coroutine: it is run with the releases from ``since`` to ``until``."""

        def enter(body: Body) -> Body:
            name = getattr(body, "__name__", "")
            self.scenarios.append(Scenario(name, body, numbers(since), numbers(until)))
            return body

        return enter
