"""Which adapters the rows of a job get, as the manifest says it and the plan holds it."""

from collections.abc import Mapping

from msgspec import Struct, field


class PlannedAdapters(Struct, frozen=True, kw_only=True):
    """The adapters of a job's rows: `always` these, or by the text in a `column`.

    `otherwise` is for a text without an entry in `mapping`: none, fail or an adapter's name. `names` are all adapters
    that a row may get.
    """

    names: tuple[str, ...] = ()
    always: tuple[str, ...] = ()
    column: str | None = None
    mapping: Mapping[str, str] = field(default_factory=dict)
    otherwise: str = "fail"

    def of(self, text: str) -> tuple[str, ...] | None:
        """Return the adapters of a row with this text in the column; None if it must fail."""
        name = self.mapping.get(text, self.otherwise)
        return None if name == "fail" else () if name == "none" else (name,)
