"""Guesses which character stands between the cells of a CSV file that seems to have one column."""

from ortdeploy.facts.data import InputFacts

_LIKELY = (";", "\t", "|", ",")


def advice_on_delimiter(source: InputFacts) -> str:
    """Return what to write if the only name of a CSV header looks like several; empty if it does not."""
    if source.format != "csv" or len(source.columns) != 1:
        return ""
    (name,) = source.columns
    likely = max(_LIKELY, key=name.count)
    if likely not in name:
        return ""
    written = likely.replace("\t", "\\t")
    return f'The header is one name, {name!r}. If it should be several, write delimiter: "{written}".'
