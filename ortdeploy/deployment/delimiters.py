"""Guesses which character stands between the cells of a CSV file that seems to have one column."""

from ortdeploy.facts.data import InputFacts

_LIKELY = (";", "\t", "|", ",")


def likely_delimiter(source: InputFacts) -> str | None:
    """Return the delimiter that would split the only name of a CSV header; None if there is no such name."""
    if source.format != "csv" or len(source.columns) != 1:
        return None
    (name,) = source.columns
    likely = max(_LIKELY, key=name.count)
    return likely if likely in name else None


def advice_on_delimiter(source: InputFacts) -> str:
    """Return what to write if the only name of a CSV header looks like several; empty if it does not."""
    likely = likely_delimiter(source)
    if likely is None:
        return ""
    (name,) = source.columns
    return f"The header is one name, {name!r}. If it should be several, write delimiter: {written_delimiter(likely)}."


def written_delimiter(delimiter: str) -> str:
    """Return a delimiter as YAML has it: a tab can be seen."""
    return '"\\t"' if delimiter == "\t" else f'"{delimiter}"'
