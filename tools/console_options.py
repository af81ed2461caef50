"""The options of topics as a module of the console: what its forms show and accept."""

import json

from courser.model.topic_options import TOPIC_OPTIONS, TopicOption

_HEAD = """\
// Written by: make reference. The rows are in src/courser/model/topic_options.py.

/**
 * @typedef {object} TopicOption
 * @property {string} name
 * @property {string} title
 * @property {"duration" | "size" | "count" | "flag" | "choice"} kind
 * @property {string} help
 * @property {string[]} words the values of a choice or a flag
 * @property {boolean} isChangeable
 */

/** @type {TopicOption[]} */
export const TOPIC_OPTIONS = [
"""


def module() -> str:
    """The module: every option that has an effect, in the order of the forms."""
    rows = (json.dumps(_row(option)) for option in TOPIC_OPTIONS.values() if option.has_effect)
    return f"{_HEAD}{''.join(f'  {row},{chr(10)}' for row in rows)}];\n"


def _row(option: TopicOption) -> dict[str, object]:
    return {
        "name": option.name,
        "title": option.title,
        "kind": option.kind.name,
        "help": _help(option),
        "words": ["true", "false"] if option.kind.name == "flag" else list(option.kind.words),
        "isChangeable": option.is_changeable,
    }


def _help(option: TopicOption) -> str:
    sentences = [option.sentence]
    if option.kind.examples:
        sentences.append(f"Write {' or '.join(option.kind.examples)}. Empty: the default of the server.")
    if not option.is_changeable:
        sentences.append("Cannot be changed later.")
    return " ".join(sentences)
