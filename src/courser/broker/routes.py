"""Ways that were asked for before: a user's way to a topic, with the permission for it.

Producers and consumers name the same topic over and over. What was found and allowed once stays so until metadata
changes, whatever it is that changes: then everything is looked up again.
"""

from courser.broker.access import AccessControl
from courser.broker.catalog_service import CatalogService
from courser.broker.partition_registry import OpenTopic
from courser.broker.sessions import Session
from courser.model.identifiers import Identifier
from courser.model.permissions import Action

_COUNT_MAX = 10_000
"""Ways that are remembered: about 2 MiB."""


class Routes:
    """From the names in a request to a topic, for sends and polls."""

    def __init__(self, catalog: CatalogService, access: AccessControl) -> None:
        self._catalog = catalog
        self._access = access
        self._known: dict[tuple[Action, int | None, Identifier, Identifier], OpenTopic] = {}
        self._version = 0

    def known(self, session: Session, action: Action, stream: Identifier, topic: Identifier) -> OpenTopic | None:
        """The topic, if this user was allowed to do this there, and nothing has changed since."""
        if self._version != self._catalog.version:
            self._known.clear()
            self._version = self._catalog.version
        return self._known.get((action, session.user_id, stream, topic))

    def allow(
        self, session: Session, action: Action, stream: Identifier, topic: Identifier, found: OpenTopic
    ) -> OpenTopic:
        """Ask for the permission and remember the way. Raises ``CommandRejected``: 40, 47 or 41."""
        self._access.require(session, action, found.stream_id, found.topic_id)
        if self._version == self._catalog.version:
            if len(self._known) >= _COUNT_MAX:
                self._known.clear()
            self._known[action, session.user_id, stream, topic] = found
        return found
