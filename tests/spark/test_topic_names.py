"""How the option ``topic`` spells names: a list, in which any name can be written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from courser.spark.option_kinds import parse_topics, topic_text


@pytest.mark.parametrize(
    ("text", "topics"),
    [
        ("orders", ("orders",)),
        ("orders,payments", ("orders", "payments")),
        (" orders , late payments ", ("orders", "late payments")),
        (r"orders\, all,payments", ("orders, all", "payments")),
        (r"a\\,b", ("a\\", "b")),
        (r"back\slash", (r"back\slash",)),
        (r"\ padded\ ", (" padded ",)),
    ],
)
def test_names_have_commas_between_them_and_a_backslash_keeps_what_belongs_to_a_name(
    text: str, topics: tuple[str, ...]
) -> None:
    assert parse_topics(text) == topics


@pytest.mark.parametrize("text", ["", " ", "orders,", ",orders", "orders,,payments", "orders, orders"])
def test_a_name_that_is_empty_or_comes_twice_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r'distinct names; write a comma inside a name as "\\,"'):
        parse_topics(text)


@given(st.lists(st.text(min_size=1) | st.text(alphabet=", \\a\n", min_size=1), min_size=1, unique=True))
def test_every_list_of_names_can_be_written(names: list[str]) -> None:
    assert parse_topics(topic_text(*names)) == tuple(names)
