"""How much of the data of a manifest's jobs planning looks at."""

from collections.abc import Collection, Mapping

from msgspec import Struct, field

from ortdeploy.facts.counting import Counting


class Scope(Struct, frozen=True, kw_only=True):
    """How planning looks at inputs and outputs.

    The outputs of `stale` jobs are replaced, so the inputs recorded for them do not count. `counting` says how the rows
    of text files are counted. `elsewhere`: the plan is for another machine. So this one's ledger and outputs say
    nothing, and data may be missing. `planned` has by job the input files of a saved plan, by path from the manifest:
    no others are looked at. The data of `unseen` jobs is not looked at, even if it is here. `new_run` is that of
    `look_at_output`.
    """

    stale: Collection[str] = ()
    counting: Counting = Counting.NOT
    elsewhere: bool = False
    planned: Mapping[str, frozenset[str]] = field(default_factory=dict)
    unseen: Collection[str] = ()
    new_run: bool = False


ALL = Scope()
"""All data of this machine, of jobs that go on."""
