"""How many examples property tests draw: few with every run of the tests, some or many where they are asked for."""

import os


def effort(few: int, many: int) -> int:
    """Return how many examples to draw; ORTDEPLOY_EXAMPLES asks for `some`, which are nearer to few, or `many`."""
    asked = os.environ.get("ORTDEPLOY_EXAMPLES")
    return many if asked == "many" else round((few * few * many) ** (1 / 3)) if asked == "some" else few
