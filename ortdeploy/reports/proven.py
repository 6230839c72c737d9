"""What is proven of a job over its sessions and runs, and which rows are in doubt if a comparison disagrees."""

from collections.abc import Iterable, Mapping
from typing import Any

from ortdeploy.plan.steps import OpenSession, RunJob
from ortdeploy.providers.catalogue import CPU as CPU_PROVIDER
from ortdeploy.sessions.evidence import CPU, ROWS, DisagreementError, Evidence

Proven = dict[str, dict[str, Any]]
"""By kind: how many rows were compared, in how many looks; `since`: the first row after the last look that was not
compared; `not_proven`: why nothing is proven, if so; `remembered`: an earlier job has proven it.
"""


def proven_by(found: Iterable[Mapping[str, Iterable[Evidence]]]) -> Proven:
    """Return what several sessions have proven in one run, from the evidence of each by kind."""
    total: Proven = {}
    for one in found:
        for kind, evidence in one.items():
            for plain in (each.plain() for each in evidence if each.blocks):
                total[kind] = _beside(total[kind], plain) if kind in total else plain
    return total


def _beside(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return what two sessions have proven. They may run at the same time, so rows of either may be in doubt."""
    both = (one, other)
    since = [each["since"] for each in both if each["since"] is not None]
    why = [each["not_proven"] for each in both]
    return {
        "rows": one["rows"] + other["rows"],
        "looks": one["looks"] + other["looks"],
        "since": min(since, default=None),
        "not_proven": None if None in why else why[0],
        "remembered": one["remembered"] or other["remembered"],
    }


def sum_of_proven(one: Proven, other: Proven) -> Proven:
    """Return what two shards have proven."""
    return {
        kind: _beside(one[kind], other[kind]) if kind in one and kind in other else {**(one.get(kind) or other[kind])}
        for kind in sorted({*one, *other})
    }


def added(earlier: Proven, now: Proven) -> Proven:
    """Return what a run and those before it have proven: a look that agreed is one for all rows before it."""
    total = sum_of_proven(earlier, now)
    for kind, plain in total.items():
        if kind in now and now[kind]["looks"]:
            plain["since"] = now[kind]["since"]
    return total


def without(now: Proven, before: Proven) -> Proven:
    """Return what was compared since then: comparisons with the CPU go on while sessions make part after part."""
    counts = ("rows", "looks")
    return {
        kind: plain | {name: plain[name] - before[kind][name] for name in counts} if kind in before else plain
        for kind, plain in now.items()
    }


def first_in_doubt(error: DisagreementError, proven: Proven) -> int | None:
    """Return the first row in doubt after a comparison that disagrees; `proven` is of all runs of the job.

    None if every row was looked at, or has passed before a look that agreed.
    """
    before = proven[error.kind]["since"] if error.kind in proven else None
    return min((since for since in (error.since, before) if since is not None), default=None)


def doubt_of(error: DisagreementError, proven: Proven, done: int) -> dict[str, int] | None:
    """Return which of the rows before `done` are in doubt after a comparison that disagrees, as kept; None if none is.

    `proven` is of all runs of the job.
    """
    since = first_in_doubt(error, proven)
    return None if since is None or since >= done else {"first": since, "last": done - 1}


def in_doubt(doubt: Mapping[str, int], output: str) -> str:
    """Say that rows are in doubt, and what to do."""
    return (
        f"Rows {doubt['first']} to {doubt['last']} of {output} were committed or kept after the last comparison that "
        "agreed, and may be wrong. Once the manifest is right, ortdeploy apply --new-run makes all rows again"
    )


def reported(step: RunJob, openings: Iterable[OpenSession], statistics: Mapping[str, Any]) -> Proven:
    """Return the report's entry: what is proven by kind, or why it is not."""
    nothing = {"rows": 0, "looks": 0, "since": None, "remembered": False}
    why = step.row_check.why_not or "no rows have run beside each other"
    entry = {ROWS: {**nothing, "not_proven": why}}
    own = [one for one in openings if one.session in step.sessions and not _is_on_cpu(one)]
    if any(one.probe is None for one in own):
        entry[CPU] = {**nothing, "not_proven": "probe: false, or a model that its provider has compiled"}
    found: Proven = {**entry, **statistics.get("proven", {})}
    if CPU in found:
        found[CPU] = {**found[CPU], **_allowed(own)}
    return found


def _allowed(openings: Iterable[OpenSession]) -> dict[str, Any]:
    """Return how much results could differ from the CPU's, and because of which number formats."""
    found = [(one, one.probe) for one in openings if one.probe is not None]
    if not found:
        return {}
    rtol, atol = max(within for _, within in found)
    return {"rtol": rtol, "atol": atol, "because": list(dict.fromkeys(why for one, _ in found for why in one.computes))}


def _is_on_cpu(opening: OpenSession) -> bool:
    return all(one.name == CPU_PROVIDER for candidate in opening.candidates for one in candidate.providers)


def check_proven(kept: Any) -> None:
    """Raise ValueError if something is not what `proven_by` returns."""
    if not isinstance(kept, dict) or not all(map(_is_plain, kept.values())):
        raise ValueError(f"what is proven of a job is {kept!r}")


def _is_plain(one: Any) -> bool:
    return (
        isinstance(one, dict)
        and set(one) == {"rows", "looks", "since", "not_proven", "remembered"}
        and type(one["rows"]) is type(one["looks"]) is int
        and isinstance(one["since"], int | None)
        and isinstance(one["not_proven"], str | None)
        and isinstance(one["remembered"], bool)
    )


def check_doubt(kept: Any) -> None:
    """Raise ValueError if something does not say which rows are in doubt."""
    is_right = isinstance(kept, dict) and set(kept) == {"first", "last"} and all(type(x) is int for x in kept.values())
    if not is_right:
        raise ValueError(f"the rows in doubt are {kept!r}")
