"""The parts that a driver gives to this process, one at a time, instead of a shard's own list."""

from collections.abc import Callable, Iterator

from ortdeploy.parts.receipt import Receipt
from ortdeploy.plan.part_table import PartTable, PlannedPart

Answer = Callable[[PlannedPart, Receipt, bool], None]
"""Called with a decided part, the receipt that stands, and whether this process made it."""


class AssignedParts:
    """The requests of a driver. `numbers` waits for the next part, and ends when there are no more.

    `on_ready` is called when the sessions are open, `answer` for each part.
    """

    def __init__(
        self, name: str, numbers: Iterator[int], *, on_ready: Callable[[], None] = lambda: None, answer: Answer
    ) -> None:
        """Take the driver's name for this process, and the functions that talk to the driver."""
        self._name = name
        self._numbers = numbers
        self._on_ready = on_ready
        self._answer = answer
        self._at_hand: PlannedPart | None = None

    def parts(self, table: PartTable) -> Iterator[PlannedPart]:
        """Yield the parts as they come; first the one that was in work when a session failed and another took over."""
        if self._at_hand is not None:
            yield self._at_hand
        else:
            self._on_ready()
        for number in self._numbers:
            self._at_hand = table.part(number)
            yield self._at_hand

    def decided(self, part: PlannedPart, receipt: Receipt, *, made_here: bool) -> None:
        """Tell the driver that a part is decided."""
        self._at_hand = None
        self._answer(part, receipt, made_here)

    def __str__(self) -> str:
        """Return the name for receipts, such as `ray 3`."""
        return self._name
