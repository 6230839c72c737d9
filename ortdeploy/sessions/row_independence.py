"""Proves that rows are rows: some of a job's rows run again in other batches, and each must give the same result.

This finds a graph that mixes rows (a softmax over the batch, a reshape across it, batch normalization in training mode)
or whose output has its rows on another axis, however it is built. A graph with a fixed batch runs its rows in another
order, beside other rows. `evidence` decides which rows are compared. A proof is remembered, so it is paid for once.
"""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from msgspec import Struct, field

from ortdeploy.diagnostics import as_key
from ortdeploy.files.tuning_cache import TuningCache, choice_key
from ortdeploy.plan.pipeline import PlannedWireStep, walk
from ortdeploy.plan.steps import RunJob
from ortdeploy.sessions.evidence import Evidence
from ortdeploy.sessions.rows_again import MixedRowsError, RunRows
from ortdeploy.sessions.rows_look import Number, RowsLook
from ortdeploy.tensors.columns import Array, Column
from ortdeploy.tensors.row_axes import to_place

OnProof = Callable[[bool], None]
"""Is told with True before a run that is no batch of the job, and with False after it."""


class ProvenRows(Struct):
    """The proofs of a job's sessions, kept in the tuning cache. Threads of several sessions share it."""

    tuning_cache: TuningCache
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def known(self, key: str) -> set[str]:
        """Return the inputs and outputs that differed between rows which gave the same results in other batches."""
        with self._turn:
            found = self.tuning_cache.find(key)
        try:
            names = json.loads(found) if isinstance(found, str) else []
        except ValueError:  # an older ortdeploy did not note on what rows it was proven
            return set()
        return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()

    def keep(self, key: str, varied: set[str]) -> None:
        """Remember a proof."""
        with self._turn:
            self.tuning_cache.find(key)  # what other processes have kept meanwhile is not lost
            self.tuning_cache.keep(key, json.dumps(sorted(varied)))


class RowProof:
    """Proves for one session, with each set of adapters, that its rows do not depend on each other.

    `holds_for` is what the proof depends on apart from the job: the session with its options, digests and versions.
    """

    def __init__(
        self,
        step: RunJob,
        proven: ProvenRows,
        holds_for: Any,
        *,
        is_on_cpu: bool = False,
        on_run: OnProof | None = None,
        why_not: str | None = None,
        survived: str | None = None,
    ) -> None:
        """Take what is known already. Other providers than the CPU's may compile anew for each number of rows.

        `on_run` is told before and after each run that is no batch of the job. `why_not`: nothing is to be compared.
        `survived` is the key under which it is remembered that a proof has not ended the process.
        """
        self._on_run = on_run
        self._survived = survived
        self._why_not = why_not
        self._step = step
        self._check = step.row_check
        self._proven = proven
        self._holds_for = holds_for
        self._looks: dict[tuple[str, ...], RowsLook] = {}
        sizes = [planned.shape[0] for planned in step.inputs if planned.shape]
        is_open = is_on_cpu and not any(isinstance(size, int) for size in sizes)
        self._takes_whole_batches = step.batching.pad_to is not None and not is_open

    def wants(self, adapters: tuple[str, ...], rows: int) -> bool:
        """Return whether nothing has been compared yet, and a batch of this number of rows can be."""
        known = self._looks.get(adapters)
        return rows > 1 and self._check.counts and (known is None or not known.evidence.is_begun)

    def look(
        self,
        run: RunRows,
        feeds: Mapping[str, Array],
        results: Mapping[str, Column],
        adapters: tuple[str, ...],
        *,
        rows: int,
        batch: int,
        number: Number,
        seconds: float,
    ) -> None:
        """Compare some rows that have run in batches of `batch`, if it is their turn. Raises as `RowsLook.look`.

        `feeds` and `results` are [rows, …]; padding rows may follow.
        """
        if rows > 1 and batch > 1 and self._check.counts:
            look = self._looks.get(adapters) or self._begin(feeds, adapters)
            if self._why_not is not None:
                look.evidence.give_up(self._why_not, rows, number(0))
            elif not look.is_over:
                told = self._told(run)
                look.look(told, feeds, results, rows=rows, batch=batch, number=number, seconds=seconds)

    def finish(self, run: Callable[[tuple[str, ...]], RunRows]) -> None:
        """Compare rows of the last blocks. Raises as `RowsLook.look`."""
        for adapters, look in self._looks.items():
            if not look.is_over:
                look.finish(self._told(run(adapters)))

    def _told(self, run: RunRows) -> RunRows:
        """Return what runs rows, and says so before and after, if somebody wants to know."""
        on_run = self._on_run
        if on_run is None:
            return run

        def told(feeds: Mapping[str, Any]) -> Mapping[str, Any]:
            on_run(True)
            try:
                return run(feeds)
            finally:
                on_run(False)

        return told

    @property
    def evidence(self) -> Sequence[Evidence]:
        """On what rows are proven, with each set of adapters; none if results are not compared."""
        return [] if self._check.agree is None else [one.evidence for one in self._looks.values()]

    def _begin(self, feeds: Mapping[str, Array], adapters: tuple[str, ...]) -> RowsLook:
        key = self._key(feeds, adapters)
        varied = self._proven.known(key) if self._check.agree is not None else set()
        pipeline = self._step.pipeline
        look = self._looks[adapters] = RowsLook(
            agree=self._check.agree,
            mixed=self._mixed,
            as_given=self._as_given,
            takes_whole_batches=self._takes_whole_batches,
            is_slow=pipeline is not None and pipeline.preset is not None,
            check_finite=self._step.errors.check_finite,
            evidence=Evidence(varied=varied, is_begun=bool(varied), is_remembered=bool(varied)),
            on_varied=partial(self._keep, key),
        )
        return look

    def _keep(self, key: str, varied: set[str]) -> None:
        """Remember a proof, and that no other batch has ended the process."""
        self._proven.keep(key, varied)
        if self._survived is not None:
            self._proven.keep(self._survived, varied)

    def _as_given(self, name: str, values: Any) -> tuple[int, ...]:
        """Return the shape of an output as the graph has it."""
        shape = values.shape if isinstance(values, np.ndarray) else (len(values),)
        return to_place(shape, self._step.row_axes.get(name))

    def _mixed(self, name: str, place: int, size: int, problem: str) -> MixedRowsError:
        beside = "alone" if size == 1 else f"in another batch of {size}"
        where, alone = (
            f"outputs: {{{as_key(name)}: {{row_axis: AXIS}}}} of model {self._step.model}",
            "{size: 1} or none,",
        )
        if self._step.pipeline is not None:
            where, alone = "row_axis: AXIS, under inputs or outputs of its model", "{size: 1},"
        return MixedRowsError(
            f"its results depend on the rows beside it. They are others {beside} than in its own batch ({problem}). "
            f"If another axis counts rows, say which: {where}. Batches of one, batch: {alone} have "
            "nothing beside a row. If it is on purpose (stateful, random, dynamically quantised), write "
            f"row_independence: {{rtol: …}}, or false{self._of_a_pipeline()}",
            name,
            place,
        )

    def _of_a_pipeline(self) -> str:
        """Return where a pipeline says so, and what else helps where its steps are operators, or fill texts up."""
        pipeline = self._step.pipeline
        if pipeline is None:
            return ""
        steps = list(walk(pipeline.steps))
        said = ", at the model"
        if any(step.kind == "op" for step in steps):
            said += ". An op step that works across rows takes by_row: true"
        if any(map(_fills_up, steps)):
            said += ". tokenize fills texts up to the longest of their batch: padding: none fills none of them"
        return said

    def _key(self, feeds: Mapping[str, Array], adapters: tuple[str, ...]) -> str:
        """Return what a proof holds for."""
        step = self._step
        shapes = sorted([name, str(array.dtype), *array.shape[1:]] for name, array in feeds.items())
        constants = (*step.values, *(step.pipeline.constants if step.pipeline else ()))
        values = [[one.name, json.dumps(one.content), one.row_axis] for one in constants]
        sizes = [step.batching.size, step.batching.pad_to, self._check.agree]
        return choice_key(
            "rows", self._holds_for, list(adapters), shapes, sorted(step.row_axes.items()), values, step.fetch, sizes
        )


def _fills_up(step: PlannedWireStep) -> bool:
    """Return whether a step fills rows up to the longest of their batch."""
    fills = step.options.get("padding") != "none" and "length" not in step.options
    return step.kind == "do" and step.name == "tokenize" and fills
