"""Numbers of an input that its provider cannot hold in the format that it computes in."""

from msgspec import Struct


class Narrowed(Struct, frozen=True, kw_only=True):
    """Finite numbers beyond `limits`, and numbers nearer to zero than `smallest`, become others; `why` says so.

    `fails`: they do so at once, and a row with one fails; else they may, and the first one is told. A `smallest` of 0
    leaves numbers near zero as they are.
    """

    limits: tuple[float, float] | None
    smallest: float
    fails: bool
    why: str
