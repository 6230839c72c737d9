"""Texts as JSON lines have them: what JSON has no number for is a text there."""

import json


def as_json(text: str) -> str:
    """Return a text that is JSON as it is, and any other in quotes."""
    try:
        json.loads(text)
    except ValueError:
        return json.dumps(text)
    return text
