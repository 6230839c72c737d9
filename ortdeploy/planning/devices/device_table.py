"""Plans manifests for many devices at once, each described by a file: what runs where, and what is refused why.

The answer depends on manifests, models and device files alone. This machine's ledger, data, packages, locales, zones
and clock are not looked at, so a laptop and CI give the same answer. Each model is read once, whatever the number of
devices.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.diagnostics import Diagnostic, OrtdeployError, errors_in, has_errors, sort_diagnostics
from ortdeploy.facts.host import HostFacts
from ortdeploy.facts.variants import Choice
from ortdeploy.files.urls import is_url
from ortdeploy.manifest.loader import LoadOptions
from ortdeploy.manifest.named_paths import pinned_files
from ortdeploy.manifest.spec import Spec
from ortdeploy.planning.devices.device_file import load_device
from ortdeploy.planning.devices.variants import by_device_file
from ortdeploy.planning.job_names import select_jobs
from ortdeploy.planning.joining import join_facts, usable_state
from ortdeploy.planning.judging import judge, of_jobs
from ortdeploy.planning.probing.scope import Scope
from ortdeploy.planning.validation import Read, read_manifests
from ortdeploy.planning.workflow import assumed, unworkable

if TYPE_CHECKING:
    from ortdeploy.plan.steps import Plan


class Entry(Struct, frozen=True, kw_only=True):
    """A job on a device: the profile that it has there, and the memory that it takes, in bytes; or what refuses it.

    `choice` is None if there was nothing to choose, or if nothing could be chosen.
    """

    device: str
    deployment: str
    manifest: str
    job: str
    choice: Choice | None = None
    memory: int | None = None
    refused: Diagnostic | None = None


class DeviceTable(Struct, frozen=True, kw_only=True):
    """The jobs of all devices; every finding once, with the devices that it is about.

    `plans` are those for the device, if there is one device alone.
    """

    entries: tuple[Entry, ...]
    findings: tuple[Diagnostic, ...]
    plans: "tuple[Plan, ...]" = ()

    @property
    def is_refused(self) -> bool:
        """Whether something is refused on some device."""
        return has_errors(self.findings)


def plan_devices(
    paths: Sequence[str],
    options: LoadOptions,
    files: Sequence[str],
    *,
    jobs: Sequence[str] | None,
    excluded: Sequence[str],
    state_dir: str | None,
) -> DeviceTable:
    """Plan the chosen jobs for each device file. Raises UsageError."""
    from ortdeploy.planning.remembered.graph_cache import each_read_once  # noqa: PLC0415  brings numpy

    read = read_manifests(paths, options, elsewhere=True)
    known = [job.name for loaded, base in read.accepted for spec in (base, *loaded.variants) for job in spec.jobs]
    wanted = select_jobs(jobs, excluded, list(dict.fromkeys(known))) if known else ()
    findings: dict[Diagnostic, list[str]] = {one: [] for one in read.diagnostics}
    hosts: dict[str, HostFacts] = {}
    for file in files:
        host, problems = load_device(file)
        findings |= {one: [] for one in problems}
        if host is not None:
            hosts[file] = host
    entries: list[Entry] = []
    plans: list[Plan] = []
    with each_read_once(), TemporaryDirectory(prefix="ortdeploy-") as scratch:
        for file, device in _names(hosts).items():
            table = _Device(device, hosts[file], wanted, state_dir, Path(scratch), is_alone=len(hosts) == 1)
            for own, found, plan in table.of_manifests(read):
                entries += own
                plans += [] if plan is None else [plan]
                for one in dict.fromkeys(found):
                    findings.setdefault(one, []).append(device)
    found = tuple(replace(one, devices=tuple(findings[one])) for one in sort_diagnostics(findings))
    return DeviceTable(entries=tuple(entries), findings=found, plans=tuple(plans))


def _names(hosts: Mapping[str, HostFacts]) -> dict[str, str]:
    """Return what devices are called, by their files: the path, where a name is missing or not the only one."""
    names = [host.traits.name for host in hosts.values()]
    return {
        file: host.traits.name if host.traits.name and names.count(host.traits.name) == 1 else file
        for file, host in hosts.items()
    }


_Planned = tuple[list[Entry], tuple[Diagnostic, ...], "Plan | None"]


class _Device:
    """One column of the work: all manifests on one device."""

    def __init__(
        self,
        name: str,
        host: HostFacts,
        wanted: Collection[str],
        state_dir: str | None,
        scratch: Path,
        *,
        is_alone: bool,
    ) -> None:
        self._name, self._host, self._wanted = name, host, wanted
        self._state_dir, self._scratch, self._is_alone = state_dir, scratch, is_alone

    def of_manifests(self, read: Read) -> Iterator[_Planned]:
        choose = by_device_file(self._host)
        for loaded, base in read.accepted:
            spec, problem = choose(loaded)
            if spec is None or problem is not None:
                found = () if problem is None else (problem,)
                yield [self._entry(base, job, found) for job in self._jobs(base)], found, None
            else:
                yield self._of_spec(spec)

    def _jobs(self, spec: Spec) -> list[str]:
        return [job.name for job in spec.jobs if job.name in self._wanted]

    def _of_spec(self, spec: Spec) -> _Planned:
        from ortdeploy.planning.make.plan import make_plan  # noqa: PLC0415
        from ortdeploy.planning.remembered.graph_cache import remembered_in  # noqa: PLC0415  brings numpy

        jobs = self._jobs(spec)
        state = self._state(spec)
        if not isinstance(state, Path):
            return [self._entry(spec, job, state) for job in jobs], state, None
        unseen = [job.name for job in spec.jobs if job.input.job is None]
        try:
            with remembered_in(state):
                joined = join_facts(spec, self._host, state, Scope(elsewhere=True, unseen=unseen))
                judged, found = judge(of_jobs(joined, jobs), state, elsewhere=True)
        except OrtdeployError as error:
            found = (unworkable(spec, error),)
            return [self._entry(spec, job, found) for job in jobs], found, None
        found = assumed(found)
        memory = {name: forecast.total for name, forecast in judged.preflight.memory.items()}
        entries = [self._entry(spec, job, found, memory.get(job)) for job in jobs]
        plan = make_plan(judged, jobs) if self._is_alone and not has_errors(found) else None
        return entries, found, plan

    def _state(self, spec: Spec) -> Path | tuple[Diagnostic, ...]:
        """Return the folder of what is remembered of graphs: the manifest's own, only if it has models by URL."""
        is_local = not any(is_url(file.path) for file in pinned_files(spec))
        return self._scratch if is_local else usable_state(spec, self._state_dir)

    def _entry(self, spec: Spec, job: str, found: Sequence[Diagnostic], memory: int | None = None) -> Entry:
        refused = _refusal(spec, job, found)
        return Entry(
            device=self._name,
            deployment=spec.name,
            manifest=spec.path,
            job=job,
            choice=spec.choice,
            memory=None if refused else memory,
            refused=refused,
        )


def _refusal(spec: Spec, job: str, found: Sequence[Diagnostic]) -> Diagnostic | None:
    """Return the first error of a job; or of its manifest, which is refused as a whole."""
    errors = errors_in(sort_diagnostics(found))
    models = {model.name for one in spec.jobs if one.name == job for model in spec.models_of(one)}
    own = (one for one in errors if one.job == job or (one.job is None and one.model in models))
    return next(own, errors[0] if errors else None)
