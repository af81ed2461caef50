"""Directories whose removal may not be durable yet, by path."""

from collections.abc import Iterable, Iterator, Mapping

from courser.catalog.entities import DeletedDirectory


class DeletedDirectories(Mapping[str, DeletedDirectory]):
    """A directory replaces those inside it, which are found without a walk over all: there may be very many."""

    def __init__(self, directories: Iterable[DeletedDirectory] = ()) -> None:
        self._by_path: dict[str, DeletedDirectory] = {}
        self._inside: dict[str, set[str]] = {}
        """The paths in a directory, by its path."""
        for directory in directories:
            self.add(directory)

    def add(self, directory: DeletedDirectory) -> None:
        """Note a directory for removal, and forget those inside it."""
        path = directory.path
        for inside in tuple(self._inside.get(path, ())):
            self.discard(inside)
        self._by_path[path] = directory
        for above in _above(path):
            self._inside.setdefault(above, set()).add(path)

    def discard(self, path: str) -> None:
        """Forget a directory: it is gone."""
        if self._by_path.pop(path, None) is None:
            return
        for above in _above(path):
            paths = self._inside[above]
            paths.discard(path)
            if not paths:
                del self._inside[above]

    def __getitem__(self, path: str) -> DeletedDirectory:
        return self._by_path[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_path)

    def __len__(self) -> int:
        return len(self._by_path)


def _above(path: str) -> list[str]:
    """The directories of a stream and a topic above a path: each takes two names."""
    names = path.split("/")
    return ["/".join(names[:count]) for count in range(2, len(names), 2)]
