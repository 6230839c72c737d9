"""The lines of files in which each line is a value of its own, such as a letter or the name of a class."""


def lines_of(text: str) -> tuple[str, ...]:
    """Return the lines of a text; a character such as U+2028 may belong to an alphabet, and ends none."""
    return tuple(line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")) if text else ()
