"""How many examples property tests draw: few with every run of the tests, many where they are asked for."""

import os


def effort(few: int, many: int) -> int:
    """Return how many examples to draw; ORTDEPLOY_EXAMPLES=many asks for many."""
    return many if os.environ.get("ORTDEPLOY_EXAMPLES") == "many" else few
