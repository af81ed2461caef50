"""Which source knows the topic, and which places have its messages: what the options ``source`` and ``path`` decide."""

from courser.spark.places import Place
from courser.spark.planning import PlacesOf, Range
from courser.spark.read_options import ReadOptions
from courser.spark.server_place import ServerPlace
from courser.spark.topics import ServerTopic, TopicFacts, TopicSource


def source_of(options: ReadOptions) -> TopicSource:
    """Who is asked about the topic."""
    assert options.target is not None
    return ServerTopic(options.target, options.stream, options.topic, options.retries)


def places_in(options: ReadOptions, source: TopicSource, facts: TopicFacts) -> PlacesOf:
    """How ranges of this topic are cut by the places that have them."""
    assert options.target is not None
    server = ServerPlace(options.target, options.stream, options.topic, facts.uuid, options.batch_size, options.retries)

    def only_the_server(part: Range) -> list[tuple[Range, tuple[Place, ...]]]:
        return [(part, (server,))]

    return only_the_server
