"""A limit that is a number, or a share of a total."""


def allowed_count(limit: int | str, total: int) -> int:
    """Return how many of `total` a limit allows: a number, or a share written as "5%", rounded down."""
    return limit if isinstance(limit, int) else int(total * float(limit.rstrip("%")) / 100)
