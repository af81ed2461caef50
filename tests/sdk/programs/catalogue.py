"""All scenarios."""

from tests.sdk.programs import access, administration, connections, consumers, examples, messages, producers, topics
from tests.sdk.programs.scenarios import Scenario

SCENARIOS: tuple[Scenario, ...] = tuple(
    scenario
    for module in (connections, topics, messages, consumers, producers, administration, access, examples)
    for scenario in module.register.scenarios
)


def scenarios_of(release: str) -> list[Scenario]:
    """Those that a release can run."""
    return [scenario for scenario in SCENARIOS if scenario.concerns(release)]


def scenario_named(name: str) -> Scenario:
    (found,) = [scenario for scenario in SCENARIOS if scenario.name == name]
    return found
