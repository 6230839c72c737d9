"""The protocol by which many processes commit each part of one plan exactly once: stage, decide, publish.

1. stage: the part's bytes are written under a hidden name in `<output>/_parts/<plan>/`, and are durable;
2. decide: the part's receipt is created there, if none exists. The first one stands; bytes of any other are deleted;
3. publish: the bytes get the part's name in the output, by a rename, or on an object store by a copy. Any process may
   do that, any number of times. Images of the part get their names first.

Before that, the first process of a plan creates the file that says which plan makes the parts from its first one on,
then the plan's `bound.json`. If it dies in between, another plan creates that `bound.json`, with the words that the
plan is given up, and a file of its own.

A process that is paused during any of it loses at the decision, or finds its bytes published. Nothing is visible before
it is decided. Once all parts are in the ledger, `closed.json` replaces the decisions.
"""

import errno
import hashlib
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

from msgspec import to_builtins

from ortdeploy.diagnostics import OrtdeployError, RefusedError
from ortdeploy.files.atomic import Written
from ortdeploy.files.digests import is_digest
from ortdeploy.files.json_text import read_json
from ortdeploy.files.names import BOUND, MARKER
from ortdeploy.files.shared_place import GIVEN_UP, SharedPlace, beside, beside_name
from ortdeploy.ledger.open_plans import CLOSED, FOLDER, KEPT, open_plans
from ortdeploy.ledger.records import part_name
from ortdeploy.parts.file_spans import sources_of_rows
from ortdeploy.parts.parallel_map import in_threads
from ortdeploy.parts.receipt import FORMAT_VERSION, Ended, Receipt, dump_receipt, load_receipt
from ortdeploy.plan.part_table import PartTable, PlannedPart, read_part_table
from ortdeploy.plan.plan_file import decode, encode
from ortdeploy.sinks.row_files import file_names

_FULL = (errno.ENOSPC, errno.EDQUOT)
_CLAIM = "from-"
"""How files are called, beside the plans' folders, that say which plan makes the parts from a number on."""


def tables_in(output: SharedPlace) -> Iterator[tuple[str, PartTable]]:
    """Yield the digests and parts of the plans that have begun in an output. Raises OrtdeployError, OSError."""
    names = sorted(name for name in output.names(FOLDER) if not name.startswith(_CLAIM))
    found = in_threads(lambda name: output.read(f"{FOLDER}/{name}/{BOUND}"), names, output.at_once)
    for name, raw in zip(names, found, strict=True):
        if raw is None or raw == GIVEN_UP:
            continue
        try:
            table = read_part_table(raw)
        except (ValueError, TypeError, LookupError) as error:
            raise OrtdeployError(
                f"{output.shown}/{FOLDER}/{name}/{BOUND} is damaged ({error}). Restore it from a copy"
            ) from error
        yield name, table


class ClosedError(OrtdeployError):
    """Every part of the plan is in the ledger: there is nothing more to decide."""


class WithdrawnError(OrtdeployError):
    """The plan was taken back as it began: nobody makes parts of it until it begins anew."""


class CommitLog:
    """The decisions about the parts of one job of one bound plan, in a folder of its output.

    `output` is where that is, and `table` has the parts of the plan.
    """

    def __init__(
        self,
        output: SharedPlace,
        digest: str,
        table: PartTable,
        *,
        suffix: str,
        digits: int,
        images: Mapping[str, str] = MappingProxyType({}),
        form: str | None = None,
    ) -> None:
        """Take the output, the plan's digest, how part files are named, and the suffixes of columns that are files.

        `form` is the format of the input, which says whether these are named after its files.

        Nothing is touched yet.
        """
        self.output = output
        self._digest = digest
        self.table = table
        self._suffix = suffix
        self._digits = digits
        self._images, self._form = images, form
        self._folder = f"{FOLDER}/{digest}"

    def begin(self, *, known: bool, look: Callable[[], None] = lambda: None) -> None:
        """Take the output for this plan, together with all processes that run it. Raises OrtdeployError, OSError.

        `known`: the ledger that this process sees knows the output. `look` is called first if nobody has begun it.
        """
        if self.is_closed():
            raise ClosedError("the plan is finished")
        bound = self.output.read(self._name(BOUND))
        if bound is None:  # else the process that began the plan has looked, and no other one begins beside it
            look()
            self._check_others()
        self.output.make(self._folder)
        plan = {"format_version": FORMAT_VERSION, "plan": self._digest, "parts": to_builtins(self.table)}
        text = (json.dumps(plan, sort_keys=True) + "\n").encode()
        if bound is None:
            self._claim()
            is_first = self.output.create(self._name(BOUND), text)
            if is_first and not known and self.output.exists(MARKER):
                self.output.clear(self._folder)  # the next plan that begins finds the claim, and gives this one up
                raise RefusedError(
                    f"a run on one machine has begun in {self.output.shown} since this plan was made, and the ledger "
                    f"that its {MARKER} names is not seen here. Make the plan again where that ledger is (--state-dir)"
                )
            bound = text if is_first else self.output.read(self._name(BOUND))
        if bound == GIVEN_UP:
            raise RefusedError(
                f"this plan was given up when another one began in {self.output.shown}: the process that began this "
                "one was killed before it had its parts. Make the plan again when the other one is finished"
            )
        if bound != text:
            raise RefusedError(
                f"{self.shown(BOUND)} says that the parts of this plan are others. Restore the ledger that the "
                "plan was made with, or finish with the ortdeploy that began it"
            )

    def _claim(self) -> None:
        """Decide which plan makes the parts from the first number on: others may have begun since they were looked for.

        A plan that loses has decided nothing, and never will. Raises OrtdeployError, OSError.
        """
        if not len(self.table):
            return
        ours = self._digest.encode()
        for name in self._claims():
            if self.output.create(name, ours):
                return
            holder = self.output.read(name) or b""
            if holder == ours:
                return
            if not self._gives_up(holder.decode(errors="replace"), name):
                self.output.unmake(self._folder)
                raise self._taken_by(holder.decode(errors="replace"))

    def _claims(self) -> Iterator[str]:
        """Yield the names of claims: each one counts if the plan of the one before was given up."""
        yield f"{FOLDER}/{self._claimed}.json"
        yield from (f"{FOLDER}/{self._claimed}.{later}.json" for later in count(1))

    @property
    def _claimed(self) -> str:
        return f"{_CLAIM}{self.table.first_number}"

    def _gives_up(self, other: str, claim: str) -> bool:
        """Give another plan up, unless it has its parts; return whether it is given up. Raises OrtdeployError, OSError.

        Its process may be about to begin it: then one of the two creates the file, and the other one finds that.
        """
        if not is_digest(other):
            raise OrtdeployError(f"{self.output.shown}/{claim} is damaged. Restore it from a copy")
        bound = f"{FOLDER}/{other}/{BOUND}"
        self.output.make(f"{FOLDER}/{other}")
        return self._is_given_up(bound)

    def _is_given_up(self, name: str) -> bool:
        """Return whether a file gives its plan up, which it does from now on if nobody has created it."""
        return self.output.create(name, GIVEN_UP) or self.output.read(name) == GIVEN_UP

    def _taken_by(self, other: str) -> RefusedError:
        return RefusedError(
            f"{self.output.shown} holds parts of another plan, {other[:12]}…, that is not finished. Finish it with "
            "ortdeploy finish and its plan file; or start over on one machine with ortdeploy apply --new-run, which "
            "keeps them under another name"
        )

    def _check_others(self) -> None:
        """Refuse to begin beside a plan that is open, or if a finished one has made parts of these numbers.

        Then the ledger is older than the output. Files of the other plan would be replaced, and their rows made again
        beside those of parts that stay. Raises RefusedError, OrtdeployError, OSError.
        """
        others = sorted(open_plans(self.output) - {self._digest})
        if others:
            raise self._taken_by(others[0])
        for other, table in tables_in(self.output):
            if other == self._digest:
                continue
            end = table.first_number + len(table)
            if table.first_number < self.table.first_number + len(self.table) and self.table.first_number < end:
                raise RefusedError(
                    f"a finished plan has made the parts {table.first_number} to {end - 1} of {self.output.shown}, "
                    "and the ledger that this plan was made with does not know them. Make that ledger again with "
                    "ortdeploy finish and a plan file of this output, and then the plan; or start over with ortdeploy "
                    "apply --new-run"
                )

    def is_begun(self) -> bool:
        """Return whether any process has begun the plan. Raises OSError, OrtdeployError."""
        return self.output.read(self._name(BOUND)) not in {None, GIVEN_UP}

    def settled(self, file: str) -> Mapping[str, Any] | None:
        """Return what the plan's processes have settled on in a file of its folder; None if nothing yet.

        Raises OrtdeployError, OSError.
        """
        raw = self.output.read(self._name(file))
        if raw is None:
            return None
        try:
            return dict(read_json(raw))
        except (ValueError, TypeError) as error:
            raise OrtdeployError(f"{self.shown(file)} is damaged ({error}). Restore it from a copy") from error

    def settle(self, file: str, ours: Mapping[str, Any], look: Callable[[], None] = lambda: None) -> Mapping[str, Any]:
        """Settle on something, unless another process has; return what stands. `look` is called before that.

        Raises ClosedError, OrtdeployError, OSError.
        """
        stands = self.settled(file)
        if stands is not None:
            return stands
        look()
        is_first = self.output.create(self._name(file), (json.dumps(ours, sort_keys=True) + "\n").encode())
        if is_first and self.is_closed():
            self.output.delete(self._name(file))
            is_first = False
        stands = ours if is_first else self.settled(file)
        if stands is None:
            raise ClosedError("the plan is finished")
        return stands

    def withdraw(self, file: str) -> None:
        """Take a plan back that has begun, unless its processes have settled on something in a file: they go on.

        If that was begun already, its process may have been killed: this does the rest. Raises OrtdeployError, OSError.
        """
        with suppress(FileNotFoundError):  # another process has done it
            if self._is_given_up(self._name(file)):
                self.output.clear(self._folder)

    @contextmanager
    def staging(self, part: PlannedPart) -> Iterator[Path]:
        """Yield a local path of this process's own for the bytes of a part; if the block fails, they are deleted.

        Images of the part go into the folder `beside` it.
        """
        with self.output.staging(self._name(f".part-{part.number}.{uuid.uuid4().hex}")) as path:
            if self._images:
                beside(path).mkdir()
            yield path

    def stage(self, path: Path) -> tuple[str, ...]:
        """Make what was written at a path of `staging` durable; return the marks for its receipt. Raises as above."""
        return self.output.stage(path, self._name(path.name))

    def name(self, part: PlannedPart) -> str:
        """Return the name of a part's file."""
        return part_name(part.number, self._digits, self._suffix)

    def decided(self, part: PlannedPart) -> Receipt | None:
        """Return the receipt that was decided on. It is asked for by name, because a listing on NFS may be old.

        Raises OrtdeployError, OSError.
        """
        raw = self.output.read(self._name(self._decision(part)))
        return None if raw is None else load_receipt(raw, part, self.name(part), self.shown(self._decision(part)))

    def rolled_forward(self, part: PlannedPart) -> Receipt | None:
        """Publish a decided part, and return its receipt; None if it is not decided. Raises OrtdeployError, OSError."""
        receipt = self.decided(part)
        if receipt is not None:
            self.publish(receipt)
        return receipt

    def all_rolled_forward(self, parts: Iterable[PlannedPart]) -> Iterator[tuple[PlannedPart, Receipt | None]]:
        """Yield each part with what `rolled_forward` returns for it. Raises as above."""
        asked = tuple(parts)
        yield from zip(asked, in_threads(self.rolled_forward, asked, self.at_once), strict=True)

    @property
    def at_once(self) -> int:
        """How many parts to ask about at the same time."""
        return self.output.at_once

    def decide(self, part: PlannedPart, receipt: Receipt) -> Receipt:
        """Decide on a part whose bytes are staged; return the receipt that stands, perhaps of another process.

        Raises ClosedError, OrtdeployError, OSError.
        """
        decision = self._name(self._decision(part))
        try:
            is_first = self.output.create(decision, dump_receipt(receipt))
        except OSError as error:
            if error.errno in _FULL and self.decided(part) is None:  # of other errors, the decision may come to stand
                self._discard(receipt)
            raise
        if is_first and not self._is_open():  # decided after the plan was closed: nobody saw it
            self.output.delete(decision)
            is_first = False
        if is_first:
            return receipt
        stands = self.decided(part)
        if stands is not None and stands.staged == receipt.staged is not None:  # won, but the answer was lost
            return receipt
        self._discard(receipt)
        if stands is not None:
            return stands
        if self.is_closed():
            raise ClosedError(f"part {part.number} was finished by another process")
        raise self._put_aside()

    def check_there(self) -> None:
        """Raise OrtdeployError if the output was put aside for a new run since this process began, OSError."""
        if not self._is_open():
            raise self._put_aside()

    def _put_aside(self) -> OrtdeployError:
        return OrtdeployError(f"{self.output.shown} was put aside for a new run while this process made parts of it")

    def publish(self, receipt: Receipt) -> None:
        """Give the bytes of a decided part their name, unless they have it already. Raises OrtdeployError, OSError."""
        if receipt.staged is None or receipt.part.file is None:
            return
        staged = self._name(receipt.staged)
        if self._images and self.output.exists(staged):
            for file in self._pictures(receipt):
                self.output.publish(f"{beside_name(staged)}/{file}", file)
        if self.output.publish(staged, receipt.part.file) and self._images:
            self.output.clear(beside_name(staged))

    def _pictures(self, receipt: Receipt) -> Iterator[str]:
        """Return the names of a part's images: each row that is committed has one of each column."""
        part = receipt.part
        without = {one.row for one in receipt.failed}.union(part.skipped_rows)
        rows = (row for row in range(part.start, part.end) if row not in without)
        return file_names(self._images, rows, sources_of_rows(self._form, receipt.spans))

    def remove_other(self, part: PlannedPart) -> None:
        """Delete the file that a killed run on one machine has left of a part which was decided to have none.

        Only the holder of the output's lock may: else a new run may have made the part. Raises OrtdeployError, OSError.
        """
        self.output.delete(self.name(part))

    def lost(self, receipt: Receipt, *, removable: bool) -> str | None:
        """Return how the file of a published part differs from what was decided, if it does. Raises OSError."""
        part = receipt.part
        if part.file is None:
            return None
        written = Written(sha256=str(part.sha256), bytes=part.bytes, mtime_ns=part.mtime_ns or 0)
        try:
            if self.output.holds(part.file, written, receipt.marks):
                return None
        except FileNotFoundError:
            return None if removable else f"{part.file} was decided on and is gone"
        return f"{part.file} is not what was decided on"

    def taken(self) -> int:
        """Return how many bytes the published parts take. Raises OrtdeployError, OSError."""
        return self.output.taken("part-")

    def _is_open(self) -> bool:
        """Return whether the plan still runs: it is not closed, and its output was not put aside for a new run."""
        return not self.is_closed() and self.is_begun()

    def is_closed(self) -> bool:
        """Return whether every part is in the ledger."""
        return self.output.exists(self._name(CLOSED))

    def close(self, receipts: Sequence[Receipt], ended: Ended) -> None:
        """Replace the decisions by `closed.json`, once every part is in the ledger. Raises OSError."""
        lines = [dump_receipt(one).decode() for one in receipts]
        parts, how = [json.loads(line) for line in lines], encode(ended, packed=True)
        closed = {"format_version": FORMAT_VERSION, "digest": _digest_of(lines, how), "parts": parts, "ended": how}
        self.output.create(self._name(CLOSED), (json.dumps(closed, sort_keys=True) + "\n").encode())
        self.tidy()

    def closed(self) -> tuple[dict[int, Receipt], Ended]:
        """Return the receipts of a plan that is closed, by part, and how it ended. Raises OrtdeployError, OSError."""
        shown = self.shown(CLOSED)
        try:
            data = json.loads(self.output.read(self._name(CLOSED)) or b"")
            lines_by_part, ended = _lines_of(data), decode(Ended, data["ended"])
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
            raise OrtdeployError(f"{shown} is damaged ({error}). Restore it from a copy") from error
        receipts = {
            part.number: load_receipt(lines_by_part[part.number].encode(), part, self.name(part), shown)
            for part in self.table
            if part.number in lines_by_part
        }
        return receipts, ended

    def tidy(self) -> None:
        """Delete decisions and left-over bytes of a closed plan. A process that still asks for them finds it closed."""
        self.output.clear(self._folder, keep=KEPT)
        left_over = f".{self._claimed}."
        for name in self.output.names(FOLDER):
            if name.startswith(left_over):  # of a process that was killed as it claimed the parts
                self.output.delete(f"{FOLDER}/{name}")

    def _decision(self, part: PlannedPart) -> str:
        return f"part-{part.number:0{self._digits}d}.json"

    def _name(self, file: str) -> str:
        return f"{self._folder}/{file}"

    def shown(self, file: str) -> str:
        """Return how messages call a file of the plan's folder."""
        return f"{self.output.shown}/{self._name(file)}"

    def _discard(self, receipt: Receipt) -> None:
        if receipt.staged is not None:
            self.output.delete(self._name(receipt.staged))
            if self._images:
                self.output.clear(beside_name(self._name(receipt.staged)))


def _lines_of(closed: Mapping[str, Any]) -> dict[int, str]:
    """Return the receipts of a closed plan as text, by part. Raises ValueError if they are damaged."""
    found: Sequence[Mapping[str, Any]] = closed["parts"]
    lines = {one["part"]["number"]: json.dumps(one, sort_keys=True) + "\n" for one in found}
    if _digest_of(lines.values(), closed["ended"]) != closed["digest"]:
        raise ValueError("its digest does not fit")
    return lines


def _digest_of(lines: Iterable[str], ended: Mapping[str, Any]) -> str:
    return hashlib.sha256("".join((*lines, json.dumps(ended, sort_keys=True))).encode()).hexdigest()
