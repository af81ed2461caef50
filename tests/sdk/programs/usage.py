"""What of the SDK was used: every public class and every public attribute of it, as ``Class`` and ``Class.attribute``.

The attributes of the classes are replaced by descriptors that note their name and hand out the original, so that a
scenario cannot claim to have called what it has not.
"""

import enum
import types
from typing import Any


class Recorded:
    """Stands where an attribute of a class stood."""

    def __init__(self, name: str, original: Any, used: set[str]) -> None:
        self._name = name
        self._original = original
        self._used = used

    def __get__(self, instance: Any, owner: Any) -> Any:
        self._used.add(self._name)
        getter = getattr(type(self._original), "__get__", None)
        return self._original if getter is None else getter(self._original, instance, owner)


class RecordedModule:
    """The SDK's module as a program sees it after ``import``."""

    def __init__(self, module: types.ModuleType) -> None:
        self._module = module
        self._used: set[str] = set()
        self._offered = set()
        for class_name, kind in vars(module).items():
            if class_name.startswith("_") or not isinstance(kind, type):
                continue
            self._offered.add(class_name)
            if issubclass(kind, enum.Enum):
                continue  # a Python enum does not let its members be replaced; its name still counts
            for name, original in list(vars(kind).items()):
                if not name.startswith("_"):
                    self._offered.add(f"{class_name}.{name}")
                    setattr(kind, name, Recorded(f"{class_name}.{name}", original, self._used))

    def __getattr__(self, name: str) -> Any:
        self._used.add(name)
        return getattr(self._module, name)

    def unused(self) -> list[str]:
        """What the release offers and nobody has touched."""
        # A class that a program only ever receives counts as used with its first attribute.
        return sorted(self._offered - self._used - {name.partition(".")[0] for name in self._used})
