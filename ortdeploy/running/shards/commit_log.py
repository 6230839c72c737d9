"""How many processes commit the parts of one plan exactly once: stage, decide, publish.

1. stage: the part's bytes are written under a hidden name in `<output>/_parts/<plan>/`, and are durable;
2. decide: the part's receipt is created there, create-only. The first one stands; all else is litter;
3. publish: the bytes get the part's name in the output folder, by a rename. Anybody may do that, any number of times.

A process that sleeps through any of it loses at the decision, or finds its bytes published. Nothing is visible before
it is decided. When every row is folded into the ledger, `closed.json` takes the place of the decisions.
"""

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.atomic import make_durable_folder, sync_folder
from ortdeploy.files.create_only import check_decides, create_only
from ortdeploy.ledger.open_parts import CLOSED, FOLDER, open_plans
from ortdeploy.ledger.records import part_name
from ortdeploy.ledger.written import is_as_written
from ortdeploy.plan.part_table import PartTable, PlannedPart
from ortdeploy.running.shards.receipt import FORMAT_VERSION, Receipt, dump_receipt, load_receipt

BOUND = "bound.json"
"""Says in the folder of a plan which parts it has."""


class ClosedError(OrtdeployError):
    """Every part of the plan is in the ledger: there is nothing more to decide."""


class CommitLog:
    """The decisions about the parts of one job of one bound plan, in a folder of its output."""

    def __init__(self, output: Path, digest: str, table: PartTable, *, suffix: str, digits: int) -> None:
        """Take the output folder, the plan's digest, and what names of part files are; nothing is touched yet."""
        self._output = output
        self._digest = digest
        self._table = table
        self._suffix = suffix
        self._digits = digits
        self.folder = output / FOLDER / digest

    def begin(self) -> None:
        """Take the output for this plan, together with all who run it. Raises OrtdeployError, OSError."""
        if self.is_closed():
            raise ClosedError("the plan is finished")
        others = sorted(open_plans(self._output) - {self._digest})
        if others:
            raise OrtdeployError(
                f"{self._output} holds parts of another plan, {others[0][:12]}…, that is not finished. Finish it with "
                "ortdeploy finish and its plan file, or choose another output"
            )
        make_durable_folder(self.folder)
        check_decides(self.folder)
        plan = {"format_version": FORMAT_VERSION, "plan": self._digest, "parts": asdict(self._table)}
        text = (json.dumps(plan, sort_keys=True) + "\n").encode()
        if not create_only(self.folder / BOUND, text) and (self.folder / BOUND).read_bytes() != text:
            raise OrtdeployError(
                f"{self.folder / BOUND} says that the parts of this plan are others. Bring back the ledger that the "
                "plan was made with, or finish with the ortdeploy that began it"
            )

    def stage(self, part: PlannedPart) -> Path:
        """Return a hidden path for the bytes of a part that nobody else has."""
        return self.folder / f".part-{part.number}.{uuid.uuid4().hex}"

    def name(self, part: PlannedPart) -> str:
        """Return the name of a part's file."""
        return part_name(part.number, self._digits, self._suffix)

    def decided(self, part: PlannedPart) -> Receipt | None:
        """Return the receipt that was decided on, asked for by its name: a listing may be old on NFS.

        Raises OrtdeployError, OSError.
        """
        path = self._decision(part)
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            return None
        return load_receipt(raw, part, self.name(part), path)

    def decide(self, part: PlannedPart, receipt: Receipt) -> Receipt:
        """Decide on a part whose bytes are staged; return the receipt that stands, which may be somebody else's.

        Raises ClosedError, OrtdeployError, OSError.
        """
        sync_folder(self.folder)  # the staged name
        is_first = not self.is_closed() and create_only(self._decision(part), dump_receipt(receipt))
        if is_first and self.is_closed():  # who woke after the decisions were put away: nobody has seen this one
            self._decision(part).unlink(missing_ok=True)
            is_first = False
        if is_first:
            return receipt
        self._discard(receipt)
        stands = self.decided(part)
        if stands is None:
            raise ClosedError(f"part {part.number} was finished by another process")
        return stands

    def publish(self, receipt: Receipt) -> None:
        """Give the bytes of a decided part their name, unless they have it already. Raises OrtdeployError, OSError."""
        if receipt.staged is None or receipt.part.file is None:
            return
        place = self._output / receipt.part.file
        try:
            (self.folder / receipt.staged).rename(place)
        except FileNotFoundError:
            return  # somebody has published it
        sync_folder(self._output)
        sync_folder(self.folder)

    def lost(self, receipt: Receipt, *, removable: bool) -> str | None:
        """Say how the file of a published part is not what was decided; None if it is. Raises OSError."""
        if receipt.part.file is None:
            return None
        path = self._output / receipt.part.file
        try:
            if is_as_written(path, receipt.part):
                return None
        except FileNotFoundError:
            return None if removable else f"{receipt.part.file} was decided on and is gone"
        return f"{receipt.part.file} is not what was decided on"

    def is_closed(self) -> bool:
        """Return whether every part is in the ledger."""
        return (self.folder / CLOSED).exists()

    def close(self, receipts: Sequence[Receipt]) -> None:
        """Put the decisions away, once every part is in the ledger. Raises OSError."""
        lines = [dump_receipt(one).decode() for one in receipts]
        digest = hashlib.sha256("".join(lines).encode()).hexdigest()
        closed = {"format_version": FORMAT_VERSION, "digest": digest, "parts": [json.loads(line) for line in lines]}
        create_only(self.folder / CLOSED, (json.dumps(closed, sort_keys=True) + "\n").encode())
        self.tidy()

    def closed_receipts(self) -> dict[int, Receipt]:
        """Return the receipts of a plan that is closed, by part. Raises OrtdeployError, OSError."""
        path = self.folder / CLOSED
        try:
            lines_by_part = _lines_of(json.loads(path.read_bytes()))
        except (ValueError, TypeError, LookupError) as error:
            raise OrtdeployError(f"{path} is damaged ({error}). Bring it back from a copy") from error
        return {
            part.number: load_receipt(lines_by_part[part.number].encode(), part, self.name(part), path)
            for part in self._table
            if part.number in lines_by_part
        }

    def tidy(self) -> None:
        """Delete decisions and litter of a closed plan. What somebody still needs, he finds to be closed."""
        for path in self.folder.iterdir():
            if path.name not in {CLOSED, BOUND}:
                with suppress(FileNotFoundError):
                    path.unlink()

    def _decision(self, part: PlannedPart) -> Path:
        return self.folder / f"part-{part.number:0{self._digits}d}.json"

    def _discard(self, receipt: Receipt) -> None:
        if receipt.staged is not None:
            with suppress(FileNotFoundError):
                (self.folder / receipt.staged).unlink()


def _lines_of(closed: Mapping[str, Any]) -> dict[int, str]:
    """Return the receipts of a closed plan as text, by part. Raises ValueError where they are not what was written."""
    found: Sequence[Mapping[str, Any]] = closed["parts"]
    lines = {one["part"]["number"]: json.dumps(one, sort_keys=True) + "\n" for one in found}
    if hashlib.sha256("".join(lines.values()).encode()).hexdigest() != closed["digest"]:
        raise ValueError("its digest does not fit")
    return lines
