"""The type of readable bytes: anything that can be read in place."""

from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
