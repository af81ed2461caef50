"""The reference of the client, from signatures and docstrings: one page per subject, and a list of all names."""

import re
from collections.abc import Iterator, Mapping

from tools.public_names import ClassName, FunctionName, PublicName, Value, named, names_in

INDEX = "index.md"
COMMON_ERRORS = f"[those of every request]({INDEX}#errors-of-every-request)"

PAGES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "connecting": (
        "Connecting",
        (
            "courser.client.client:connect",
            "courser.client.sync:connect_sync",
            "courser.client.client:Connecting",
            "courser.client.client:Client",
            "courser.client.targets:Target",
            "courser.model.identifiers:Identifier",
        ),
    ),
    "streams": (
        "Streams, topics and groups",
        (
            "courser.client.administration:Administration=Client",
            "courser.model.topic_options:ChangeableTopicSettings",
            "courser.model.topic_options:TopicSettings",
            "courser.client.group_reset:GroupResets=Client",
            "courser.client.group_reset:GroupReset",
            "courser.client.group_reset:PartitionReset",
        ),
    ),
    "messages": (
        "Messages",
        (
            "courser.client.messaging:Messaging=Client",
            "courser.client.messages:Message",
            "courser.client.messages:SendMessage",
            "courser.client.messages:Payload",
            "courser.client.messages:Headers",
            "courser.records.user_headers:HeaderValue",
            "courser.client.messages:Partitioning",
            "courser.client.messages:AnyPartitioning",
            "courser.client.messages:PollingStrategy",
            "courser.client.tracing:trace_context",
        ),
    ),
    "producer": (
        "Producers",
        (
            "courser.client.producer:Producer",
            "courser.client.delivery:ProducerSettings",
            "courser.client.pending_batches:Ticket",
            "courser.client.pending_batches:Receipt",
        ),
    ),
    "consumer": (
        "Consumers",
        (
            "courser.client.consumer:Consumer",
            "courser.client.consumed:ConsumerSettings",
            "courser.client.consumed:ConsumedMessage",
            "courser.client.consumed:PartitionsCallback",
            "courser.client.starting_point:Start",
        ),
    ),
    "processing": (
        "Processing",
        (
            "courser.client.processing:Processor",
            "courser.client.handling:ProcessSettings",
            "courser.client.handling:ReceivedMessage",
            "courser.client.handling:Handler",
            "courser.client.workload:Ordering",
        ),
    ),
    "batches": (
        "Whole batches",
        ("courser.client.batches:PolledBatches", "courser.client.batch_view:BatchView"),
    ),
    "users": (
        "Users and the server",
        (
            "courser.client.accounts:Accounts=Client",
            "courser.model.permissions:Permissions",
            "courser.model.permissions:GlobalPermissions",
            "courser.model.permissions:StreamPermissions",
            "courser.model.permissions:TopicPermissions",
        ),
    ),
    "sinks": ("Staged writes", ("courser.client.sinks:SinkCommands=Client",)),
    "sync": (
        "The sync client",
        (
            "courser.client.sync:SyncClient",
            "courser.client.sync_producer:SyncProducer",
            "courser.client.sync_producer:SyncTicket",
            "courser.client.sync:SyncConsumer",
            "courser.client.sync:SyncConsumedMessage",
            "courser.client.sync:SyncProcessor",
        ),
    ),
    "testing": (
        "Tests without a server",
        ("courser.testing.broker:TestBroker", "courser.testing.broker:SyncTestBroker"),
    ),
    "errors": (
        "Errors",
        tuple(
            f"courser.errors:{name}"
            for name in (
                "CourserError",
                "RequestFailed",
                "NotFound",
                "AlreadyExists",
                "AuthenticationFailed",
                "NotAllowed",
                "NotAssigned",
                "InvalidRequest",
                "TooLarge",
                "ServerFailure",
                "OffsetsUnavailable",
                "InvalidBatch",
                "ConnectionFailed",
                "TimedOut",
                "Uncertain",
                "NotDelivered",
                "ClientClosed",
                "TargetRefused",
                "DecryptionFailed",
                "HandlerFailed",
            )
        ),
    ),
}
"""By page: its title, and what it describes. The methods of ``Administration=Client`` are shown as those of Client."""
REPLIES = "replies"
_REPLIES_MODULES = ("courser.api.replies", "courser.api.operating_replies")


class Reference:
    """All pages. Names are looked up in each other's pages, for links."""

    def __init__(self) -> None:
        self.pages = {page: [named(place) for place in places] for page, (_, places) in PAGES.items()}
        self.titles = {page: title for page, (title, _) in PAGES.items()} | {REPLIES: "Replies"}
        self.pages[REPLIES] = list(self._replies())
        self._places: dict[str, str] = {}
        """By name, the page and the heading."""
        for page, entries in self.pages.items():
            for entry in entries:
                for name in names_in(entry):
                    self._places.setdefault(name.path, f"{page}.md#{anchor_of(name.path)}")

    def _replies(self) -> Iterator[PublicName]:
        """The replies that documented methods return, and those that they contain."""
        found: dict[str, PublicName] = {}
        texts = [name.returns for page in self.pages.values() for entry in page for name in names_in(entry)]
        while texts:
            for word in re.findall(r"\w+", texts.pop()):
                for module in _REPLIES_MODULES:
                    entry = None if word in found else named(f"{module}:{word}", missing_ok=True)
                    if isinstance(entry, ClassName):
                        found[word] = entry
                        texts += [value.kind for value in entry.values]
        yield from sorted(found.values(), key=lambda entry: entry.path)

    def names(self) -> Iterator[PublicName]:
        """Every public name."""
        for entries in self.pages.values():
            for entry in entries:
                yield from names_in(entry)

    # --- pages ----------------------------------------------------------------------------------------

    def files(self) -> dict[str, str]:
        """The generated pages by file name."""
        return {f"{page}.md": "\n".join(self._page(page)) for page in self.pages}

    def _page(self, page: str) -> Iterator[str]:
        yield from (f"# {self.titles[page]}", "")
        if page == REPLIES:
            yield "Times are in microseconds since 1970, sizes are in bytes."
            yield ""
        for entry in self.pages[page]:
            if isinstance(entry, ClassName):
                yield from self._class(entry)
            else:
                yield from self._function(entry, "##")

    def _class(self, entry: ClassName) -> Iterator[str]:
        if not entry.is_part:
            yield from (f"## {entry.path}", "")
            yield from self._paragraphs(entry.docstring.meaning)
            if bases := self._known(" ".join(entry.bases)):
                yield from (f"A kind of {self._linked(f'``{bases[0]}``')}.", "")
            yield from _example(entry.docstring.example)
            yield from self._table(entry.values)
            yield from self._twins(entry)
        for function in entry.functions:
            yield from self._function(function, "##" if entry.is_part else "###")

    def _twins(self, entry: ClassName) -> Iterator[str]:
        """What works as in the async class, by the page that describes it."""
        if not entry.twins:
            return
        original = entry.twins[0].partition(".")[0]
        yield from (f"These work as in [`{original}`]({self._places[original]}), without `await`:", "")
        lists: dict[str, list[str]] = {}
        for path in entry.twins:
            place = self._places.get(path, self._places[original])
            lists.setdefault(place.partition(".")[0], []).append(f"[`{path.partition('.')[2]}`]({place})")
        yield from (f"- {self.titles[page]}: {', '.join(links)}" for page, links in lists.items())
        yield ""

    def _table(self, values: tuple[Value, ...]) -> Iterator[str]:
        if values:
            yield from ("| name | type | default | meaning |", "| --- | --- | --- | --- |")
            for value in values:
                kind, default = (f"`{text}`" if text else "" for text in (value.kind, value.default))
                # A vertical bar would end the cell, even within code, in some dialects of Markdown.
                row = (
                    f"| `{value.name}` | {kind.replace(' | ', '` or `')} | {default} | {self._linked(value.meaning)} |"
                )
                yield " ".join(row.split())
            yield ""

    def _function(self, name: PublicName, heading: str) -> Iterator[str]:
        yield from (f"{heading} {name.path}", "", "```py", name.signature, "```", "")
        yield from self._paragraphs(name.docstring.meaning)
        arguments = name.docstring.entries("Args")
        yield from (f"- `{key}`: {self._linked(text)}" for key, text in arguments.items())
        if arguments:
            yield ""
        if returned := ", ".join(self._linked(f"``{word}``") for word in self._known(name.returns)):
            yield from (f"Returns: {returned}.", "")
        yield from self._errors(name)
        yield from _example(name.docstring.example)

    def _errors(self, name: PublicName) -> Iterator[str]:
        if not isinstance(name, FunctionName):
            return
        errors = name.docstring.entries("Raises")
        common = f"{'and ' if errors else ''}{COMMON_ERRORS}" if name.is_request else ""
        if not errors:
            yield from (f"Errors: {common or 'none'}.", "")
            return
        yield from ("Errors:", "")
        yield from (f"- {self._linked(f'``{key}``')}: {self._linked(text)}" for key, text in errors.items())
        yield from ((f"- {common}",) if common else ())
        yield ""

    def _known(self, text: str) -> list[str]:
        return [word for word in dict.fromkeys(re.findall(r"\w+", text)) if word in self._places]

    def _paragraphs(self, text: str) -> Iterator[str]:
        for paragraph in re.split(r"\n\s*\n", text.strip()):
            yield from (self._linked(" ".join(paragraph.split())), "")

    def _linked(self, text: str) -> str:
        """Text with the code marks of Markdown, and with links to the names that it mentions."""

        def mark(found: re.Match[str]) -> str:
            place = self._places.get(found[1].partition("(")[0])
            return f"[`{found[1]}`]({place})" if place else f"`{found[1]}`"

        return re.sub(r"``([^`]+)``", mark, text)

    # --- the index ------------------------------------------------------------------------------------

    def overview(self) -> str:
        """A table of all names for each page."""
        return "\n".join(self._overview())

    def _overview(self) -> Iterator[str]:
        for page, entries in self.pages.items():
            yield from (f"## {self.titles[page]}", "", "| name | what it is |", "| --- | --- |")
            for name in (name for entry in entries for name in names_in(entry)):
                summary = re.split(r"(?<=\.) ", " ".join(name.docstring.meaning.split()), maxsplit=1)[0]
                yield f"| {self._linked(f'``{name.path}``')} | {self._linked(summary)} |"
            yield ""


def anchor_of(path: str) -> str:
    """The anchor of a name's heading."""
    return path.lower().replace(".", "")


def _example(code: str) -> Iterator[str]:
    if code:
        yield from ("```python", code, "```", "")
