"""Runs the golden checks of one session: every data set, compared. A data set that cannot run is a result too."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.checks.golden import GoldenSet, difference, in_folder, read_set, write_outputs
from ortdeploy.checks.proof import Tolerances, why_not_proven, within
from ortdeploy.checks.synthetic_inputs import synthetic_feeds
from ortdeploy.diagnostics import OrtdeployError, ProviderFailedError
from ortdeploy.files.content_store import name_in_tree
from ortdeploy.files.golden_sets import find_sets
from ortdeploy.files.names import is_folder
from ortdeploy.plan.steps import PlannedCheck
from ortdeploy.process.leaks import look_for_leak
from ortdeploy.runtime.protocol import Session
from ortdeploy.sessions.opening import ModelOpener

PASSED, FAILED, ERROR = "passed", "failed", "error"


class CheckResult(Struct, frozen=True, kw_only=True):
    """How one data set ended on one session, with an adapter or without: passed, failed or error.

    `max_abs_diff` is the largest difference where numbers differ. `not_proven` says why a data set that passed proves
    nothing.
    """

    model: str
    session: str
    check: str
    status: str
    max_abs_diff: float | None = None
    message: str | None = None
    adapter: str | None = None
    not_proven: str | None = None


def run_check(check: PlannedCheck, opener: ModelOpener, roots: Sequence[str]) -> Iterator[CheckResult]:
    """Open the session of a check, and yield a result for every data set of its folders.

    `roots` are those that the command line allows; golden data lies below them, or below the manifest's folder.
    """
    allowed = (check.root, *roots)
    try:
        (opened,) = opener.open_model(check.opening, check.opening.candidates).sessions
        if check.adapter is not None:
            opener.runtime.load_adapter(check.adapter, opened.session)
    except OrtdeployError as error:
        yield from (result_of(check, folder, ERROR, str(error)) for folder in check.folders)
        return
    if check.leak_runs:
        yield _look_for_leak(check, opened.session, allowed)
        return
    for folder, tolerances in zip(check.folders, check.tolerances, strict=True):
        try:
            sets = _sets_in(Path(check.root) / folder, allowed)
        except OrtdeployError as error:
            yield result_of(check, folder, ERROR, str(error))
            continue
        if not sets:
            yield result_of(check, folder, ERROR, f"there is no test_data_set_N, input_0.pb or inputs.npz in {folder}")
        for path in sets:
            shown = path.relative_to(check.root).as_posix() if path.is_relative_to(check.root) else str(path)
            yield _run_set(check, opened.session, path, name_in_tree(shown), tolerances, allowed)


def _sets_in(folder: Path, roots: Sequence[str]) -> list[Path]:
    """Return the data sets of a folder. Raises OrtdeployError if it leads out of the roots."""
    if not is_folder(folder):
        return []
    with in_folder(folder, roots) as held:
        return [folder / path.relative_to(held) for path in find_sets(held)]


def result_of(
    check: PlannedCheck, shown: str, status: str, message: str | None, apart: float | None = None
) -> CheckResult:
    """Return a result of a check's session."""
    return CheckResult(
        model=check.opening.model,
        session=check.opening.candidates[0].name,
        check=shown,
        status=status,
        max_abs_diff=apart,
        message=message,
        adapter=check.adapter.adapter if check.adapter else None,
    )


def _adapters(check: PlannedCheck) -> tuple[str, ...]:
    return (check.adapter.adapter,) if check.adapter else ()


def _run_set(
    check: PlannedCheck,
    session: Session,
    path: Path,
    shown: str,
    tolerances: Tolerances,
    roots: Sequence[str],
) -> CheckResult:
    try:
        golden = read_set(path, check.inputs, check.outputs, roots)
        if check.record:
            return _record(check, session, path, shown, golden, roots)
        if not golden.outputs:
            return result_of(check, shown, ERROR, "it has no outputs to compare with")
        unknown = (golden.outputs.keys() - {value.name for value in check.outputs}) or None
        if unknown:
            return result_of(check, shown, ERROR, f"the model has no output {', '.join(sorted(unknown))}")
        result = _compare(check, shown, golden, _run(session, golden, _adapters(check)), tolerances)
    except (OrtdeployError, ProviderFailedError) as error:
        return result_of(check, shown, ERROR, str(error))
    if result.status != PASSED:
        return result
    why = why_not_proven(golden, tolerances) or _without_adapter(check, session, golden, tolerances)
    return replace(result, not_proven=why)


def _run(session: Session, golden: GoldenSet, adapters: tuple[str, ...]) -> Mapping[str, Any]:
    names = list(golden.outputs)
    return dict(zip(names, session.run(names, golden.inputs, adapters), strict=True))


def _without_adapter(check: PlannedCheck, session: Session, golden: GoldenSet, tolerances: Tolerances) -> str | None:
    """Return why nothing is proven of an adapter: the model alone passes too. A model may not run alone."""
    if check.adapter is None:
        return None
    try:
        alone = _compare(check, "", golden, _run(session, golden, ()), tolerances)
    except (OrtdeployError, ProviderFailedError):
        return None
    return "all results were equal without the adapter" if alone.status == PASSED else None


def _record(
    check: PlannedCheck, session: Session, path: Path, shown: str, golden: GoldenSet, roots: Sequence[str]
) -> CheckResult:
    names = [value.name for value in check.outputs]
    values = dict(zip(names, session.run(names, golden.inputs, _adapters(check)), strict=True))
    write_outputs(path, values, check.outputs, roots)
    return result_of(check, shown, PASSED, "recorded")


def _look_for_leak(check: PlannedCheck, session: Session, roots: Sequence[str]) -> CheckResult:
    """Run on the golden inputs, or on synthetic ones, and judge what memory does."""
    try:
        paths = [path for folder in check.folders for path in _sets_in(Path(check.root) / folder, roots)]
        feeds = [read_set(path, check.inputs, check.outputs, roots).inputs for path in paths] or synthetic_feeds(
            check.synthetic_inputs
        )
        outputs = [value.name for value in check.outputs]
        verdict = look_for_leak(
            lambda number: discard(session.run(outputs, feeds[number % len(feeds)], ())), len(feeds), check.leak_runs
        )
    except (OrtdeployError, ProviderFailedError) as error:
        hint = "" if check.folders else "; golden inputs would run instead, if checks: named some"
        return result_of(check, "leaks", ERROR, f"{error}{hint}")
    if verdict is None:
        return result_of(check, "leaks", ERROR, "this system does not tell what memory a process has of its own")
    return result_of(check, "leaks", FAILED if verdict.leaks else PASSED, verdict.text)


def discard(_values: object) -> None:
    """Let go of a run's outputs."""


def _compare(
    check: PlannedCheck, shown: str, golden: GoldenSet, values: Mapping[str, Any], tolerances: Tolerances
) -> CheckResult:
    largest: float | None = None
    problems = []
    for name, expected in golden.outputs.items():
        apart, problem = difference(values[name], expected, *within(tolerances, name))
        largest = apart if largest is None else max(largest, apart or 0.0)
        problems += [f"output {name}: {problem}"] if problem else []
    if not problems:
        return result_of(check, shown, PASSED, None, largest)
    why = ". ".join(("; ".join(problems), *check.opening.computes)).removesuffix(".")
    return result_of(check, shown, FAILED, why, largest)
