"""A connection by the name of its wire."""

from courser.bench.classic_wire import ClassicWire
from courser.bench.plan import WireName
from courser.bench.vsr_wire import VsrWire
from courser.bench.wires import Wire
from courser.client.targets import Target


def open_wire(name: WireName, target: Target) -> Wire:
    """Connect and log in.

    Raises:
        ConnectionFailed: nobody listens there.
        AuthenticationFailed: the login was refused.
    """
    return ClassicWire(target) if name is WireName.CLASSIC else VsrWire(target)
