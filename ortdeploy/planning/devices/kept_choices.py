"""Keeps which profile each manifest was last applied with, and the facts that decided it, so that no device alternates.

A device can lose what its profile was chosen for: a GPU hangs, a driver is not loaded, memory is gone. If it then took
another profile, and the first one again once that is back, its output would be of two deployments in turn. So after a
loss the other profile does not run; after a gain it does. What is kept is the most that was seen since the choice was
last made anew, so each change needs something that was never there before.

The note has the form of those of `on_end`, with the manifest in its second line, so that `cache prune` frees it with
its manifest.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import to_builtins
from msgspec.structs import replace

from ortdeploy.events import log
from ortdeploy.facts.variants import Choice, Fact
from ortdeploy.files.atomic import open_whole
from ortdeploy.files.disk import make_folders
from ortdeploy.files.names import TOLD
from ortdeploy.files.opening import read_whole
from ortdeploy.ledger.records import output_file
from ortdeploy.plan.plan_file import decode
from ortdeploy.plan.steps import Plan

_SUFFIX = ".profile"
PATTERN = f"*{_SUFFIX}"
"""What matches the notes in their folder."""


def last_choice(manifest: str, state: Path | None) -> Choice | None:
    """Return the choice of the last apply of a manifest; None if there was none, or its note is damaged."""
    if state is None:
        return None
    with suppress(OSError, ValueError, TypeError, KeyError):
        return decode(Choice, json.loads(read_whole(_note_of(manifest, state)).partition(b"\n")[0]))
    return None


def lost_facts(then: Mapping[str, Fact], now: Mapping[str, Fact]) -> list[str]:
    """Return the facts that are less than they were: what opened and does not, memory, cores."""
    both = ((name, value, now[name]) for name, value in sorted(then.items()) if name in now)
    return [
        name for name, before, after in both if isinstance(before, int) and isinstance(after, int) and after < before
    ]


def keep_choice(plan: Plan, choice: Choice, state: Path, now: str, *, anew: bool, runs: bool = True) -> str:
    """Keep the choice of a plan that is about to run, before anything of it does; log it if it is another one.

    Return since when it is the choice. `runs`: else nothing is kept, for a golden check may refuse it. Raises OSError.
    """
    manifest = str(Path(plan.folder) / Path(plan.manifest).name)
    last = last_choice(manifest, state)
    is_other = last is None or last.name != choice.name
    facts = dict(choice.facts) if last is None or anew else _most(last.facts, choice.facts)
    since = now if last is None or is_other else last.since or now
    if not runs:
        return since
    kept = replace(choice, facts=facts, since=since)
    if last is not None and is_other:
        log.info("profile.changed", manifest=plan.manifest, profile=choice.name, reason=choice.reason, before=last.name)
    if kept != last:
        note = _note_of(manifest, state)
        make_folders(note.parent)
        with open_whole(note) as file:
            file.write(os.fsencode(f"{json.dumps(to_builtins(kept), sort_keys=True)}\n{manifest}\n"))
    return since


def _most(then: Mapping[str, Fact], now: Mapping[str, Fact]) -> dict[str, Fact]:
    """Return the facts of now, with the most of those that can be lost."""
    lost = dict.fromkeys(lost_facts(then, now))
    return {**then, **{name: value for name, value in now.items() if name not in lost}}


def _note_of(manifest: str, state: Path) -> Path:
    return output_file(state, TOLD, os.path.abspath(manifest), _SUFFIX)  # noqa: PTH100  keeps links
