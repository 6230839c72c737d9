"""Searches the settings of a job one after the other: chain, threads, sessions, batch and memory.

A trial runs the job itself on its own rows for some seconds; the caller reports speed and memory. The better setting
stays.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from ortdeploy.deployment.threads import sleeping, thread_layouts
from ortdeploy.manifest.spec import JobSpec, ModelSpec, Spec
from ortdeploy.plan.thread_layout import ThreadLayout
from ortdeploy.tuning.better import is_better

BATCHES = tuple(2**power for power in range(11))
_PATIENCE = 2  # one slower size may be noise

AS_IT_IS = "as it is"


class Setting(Struct, frozen=True, kw_only=True):
    """What is tried; None: as the manifest has it."""

    chain: str | None = None
    threads: int | None = None
    sessions: int | None = None
    callers: int | None = None
    batch: int | None = None
    memory: str | None = None

    @property
    def text(self) -> str:
        """`batch 64, threads 2`; `as it is` for the manifest's own settings."""
        return ", ".join(f"{name} {value}" for name, value in asdict(self).items() if value is not None) or AS_IT_IS


class Trial(Struct, frozen=True, kw_only=True):
    """How a setting did: rows per second, the 99th percentile of its runs in seconds, its peak memory in bytes.

    `refused` says why it was not run, or did not end well. `repeated` is the speed of a second try, and `rows` how many
    the job has, None if that is not known.
    """

    setting: Setting
    rows_per_second: float = 0.0
    p99: float | None = None
    memory: int | None = None
    refused: str | None = None
    repeated: float | None = None
    rows: int | None = None

    @property
    def speeds(self) -> tuple[float, ...]:
        """Rows per second of each try."""
        return (self.rows_per_second,) if self.repeated is None else (self.rows_per_second, self.repeated)

    @property
    def speed(self) -> float:
        """Rows per second of all tries together."""
        return sum(self.speeds) / len(self.speeds)

    def surely_beats(self, other: "Trial") -> bool:
        """Return whether the gain over another setting is more than chance, or that one did not run.

        Each try must be faster than each of the other, and the gain larger than what two tries of one of them differ
        by: the fastest of many tries is so by chance too.
        """
        if other.refused is not None:
            return True
        return min(self.speeds) > max(other.speeds) and 1 - other.speed / self.speed > noise((self, other))


def noise(trials: Iterable[Trial]) -> float:
    """Return by which share two tries of the same setting differed at most, 0 to 1."""
    pairs = [one.speeds for one in trials if one.repeated is not None and one.refused is None]
    return max((1 - min(pair) / max(pair) for pair in pairs if max(pair)), default=0.0)


class Bounds(Struct, frozen=True, kw_only=True):
    """What a setting may take: memory in bytes, and the 99th percentile of its runs in seconds."""

    memory: int | None = None
    p99: float | None = None

    def allow(self, trial: Trial) -> bool:
        """Return whether a trial ran, and stayed within them."""
        fits = self.memory is None or (trial.memory is not None and trial.memory <= self.memory)
        quick = self.p99 is None or (trial.p99 is not None and trial.p99 <= self.p99)
        return trial.refused is None and fits and quick


class Search(Struct, kw_only=True):
    """One search. `run` tries a setting; what was tried is not tried again."""

    spec: Spec
    job: JobSpec
    bounds: Bounds
    cores: int
    run: Callable[[Setting], Trial]
    trials: dict[Setting, Trial] = field(default_factory=dict)
    repeat: Callable[[Trial], Trial] | None = None

    def best(self) -> Trial | None:
        """Return the fastest trial within the bounds; None if there is none."""
        begin = Setting()
        self._try(begin)
        best = begin
        for candidates in (self._chains, self._threads, self._batches, self._memories):
            best = self._pick(best, candidates(best))
        if self.bounds.allow(self.trials[best]) and best != begin:
            self._repeat(begin)
            self._repeat(best)
        found = self.trials[best]
        return found if self.bounds.allow(found) else None

    def _repeat(self, setting: Setting) -> None:
        """Try a setting once more: how far two tries of the same lie apart is the noise of this machine."""
        trial = self.trials[setting]
        if self.repeat is not None and trial.repeated is None and trial.refused is None:
            self.trials[setting] = self.repeat(trial)

    def _pick(self, best: Setting, candidates: Iterator[Setting]) -> Setting:
        """Try candidates, and return the best; of equally fast ones the first."""
        for candidate in candidates:
            trial = self._try(candidate)
            if self._is_better(trial, self.trials[best]):
                best = candidate
        return best

    def _is_better(self, trial: Trial, than: Trial) -> bool:
        if not self.bounds.allow(trial):
            return False
        return not self.bounds.allow(than) or is_better(trial.rows_per_second, than.rows_per_second)

    def _try(self, setting: Setting) -> Trial:
        if setting not in self.trials:
            self.trials[setting] = self.run(setting)
        return self.trials[setting]

    @property
    def _models(self) -> tuple[ModelSpec, ...]:
        return self.spec.models_of(self.job)

    def _chains(self, best: Setting) -> Iterator[Setting]:
        """Yield the manifest's named chains, for a job of one model that has one."""
        if len(self._models) == 1 and self.job.pipeline is None and can_change_chain(self._models[0]):
            yield from (replace(best, chain=name) for name in self.spec.chains)

    def _threads(self, best: Setting) -> Iterator[Setting]:
        """Yield layouts of threads, sessions and callers, of no more threads than there are cores."""
        several = len(self._models) == 1 and self.job.pipeline is None and can_change_count(self._models[0])
        for layout in thread_layouts(self.cores) or (ThreadLayout(),):
            if several or layout.sessions == layout.callers == 1:
                sessions = layout.sessions if layout.sessions > 1 else None
                callers = layout.callers if layout.callers > 1 else None
                yield replace(best, threads=layout.threads, sessions=sessions, callers=callers)

    def _batches(self, best: Setting) -> Iterator[Setting]:
        """Yield batch sizes upwards, until several in a row are no better than the best of those before them.

        Sizes beyond the first that takes all rows of the job are all the same.
        """
        if self.job.batch.is_none:
            return
        worse, fastest, rows = 0, 0.0, self.trials[Setting()].rows
        enough = next((size for size in BATCHES if rows is not None and size >= rows), BATCHES[-1])
        for size in BATCHES[: BATCHES.index(enough) + 1]:
            candidate = replace(best, batch=size)
            yield candidate
            trial = self.trials[candidate]
            worse = 0 if self.bounds.allow(trial) and trial.rows_per_second > fastest else worse + 1
            fastest = max(fastest, trial.rows_per_second)
            if worse > _PATIENCE:
                return

    def _memories(self, best: Setting) -> Iterator[Setting]:
        """Yield memory profiles, if the manifest says nothing of memory."""
        if all(not model.memory.settings for model in self._models):
            yield from (replace(best, memory=name) for name in ("fast", "lean"))


def can_change_chain(model: ModelSpec) -> bool:
    """Return whether a model names one chain, and no sessions."""
    return (
        len(model.sessions) == 1 and model.sessions[0].chain_name is not None and not model.has_providers_and_sessions
    )


def can_change_count(model: ModelSpec) -> bool:
    """Return whether the number of a model's sessions can be replaced: it has a list of them, or no chain."""
    session = model.sessions[0]
    return len(model.sessions) == 1 and (
        session.at != model.at or (session.chain_name is None and session.chain[0].at == model.at)
    )


def overlay_of(setting: Setting, job: JobSpec, models: Sequence[ModelSpec]) -> dict[str, Any]:
    """Return what a setting changes, in the manifest's own keys."""
    overlay: dict[str, Any] = {}
    if setting.batch is not None:
        overlay["jobs"] = {job.name: {"batch": {"size": setting.batch}}}
    changed = {model.name: change for model in models if (change := _of_model(setting, model))}
    return {**overlay, **({"models": changed} if changed else {})}


def _of_model(setting: Setting, model: ModelSpec) -> dict[str, Any]:
    change: dict[str, Any] = {}
    if setting.chain is not None:
        change["providers"] = setting.chain
    if setting.sessions is not None or setting.callers is not None:
        own = model.sessions[0]
        name = own.name if own.at != model.at else "cpu"
        chain: Any = own.chain_name or [entry.name for entry in own.chain]
        several = {"count": setting.sessions} if setting.sessions is not None else {"callers": setting.callers}
        change["sessions"] = [{"name": name, "providers": chain, **several}]
    if setting.sessions is not None:
        change["session"] = sleeping({})
    if setting.threads is not None:
        change.setdefault("session", {})["intra_op_num_threads"] = setting.threads
    if setting.memory is not None:
        change["memory"] = setting.memory
    return change
