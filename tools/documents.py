"""Documents that are partly written by hand: their generated part is between two marks, or after one."""


def with_part(document: str, begin: str, part: str, end: str = "") -> str:
    """The document with a new part after ``begin``, up to ``end``, or to its own end.

    Raises:
        ValueError: the document has no such mark.
    """
    head, found, rest = document.partition(begin)
    tail = rest.partition(end)[2] if end else ""
    if not found or (end and end not in rest):
        raise ValueError(f"the document has no line {begin.strip()} or no line {end.strip()}")
    return f"{head}{begin}\n{part}{end}{tail}"
