"""Which tests are `unit`, `job`, `process`, `device`, `draws` or `slow`, and the guard that holds unit and job tests to it.

Nobody has to remember a marker: a test that runs the program, or names something that starts a process or waits, is
found here; one that is not found fails, and says so.
"""

import inspect
import os
import re
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import CodeType, FunctionType
from typing import Any, NoReturn

import pytest

PROCESS_NAMES = {
    *("Child", "Fork", "Popen", "ask", "ask_fork", "fork", "forks", "sleep", "start_program", "subprocess"),
    *(
        "Supervisor",
        "find_missing",
        "loading_problem",
        "main",
        "plan_manifests",
        "probe_plugin",
        "run_fork",
        "run_process",
        "try_to_open",
    ),
}
"""What runs the program whole, starts a process or waits; a plan opens its models in a process of its own."""
_JOB_NAMES = {"Execution"}
"""What runs whole jobs, in this process with a fake of ONNX Runtime: a ledger and parts, each synced to disk."""
_DEVICES = re.compile(r"CUDA|OpenVINO|QNN|WebGPU", re.IGNORECASE)


def mark(items: Sequence[pytest.Item], *, are_all: bool) -> None:
    """Mark what needs a device, what is about processes, and, if it is neither nor slow, the rest as job or unit tests.

    If `are_all` cases of each test are there, whatever a marker `quick` names must be among them.
    """
    if are_all:
        _check_quick(items)
    for item in items:
        if not _is_quick(item):
            item.add_marker("slow")
        used = _used_by(item)
        if "effort" in used or hasattr(getattr(item, "function", None), "hypothesis"):
            item.add_marker("draws")
        if any(_DEVICES.search(str(one.kwargs.get("reason"))) for one in item.iter_markers("skipif")):
            item.add_marker("device")
        if used & PROCESS_NAMES:
            item.add_marker("process")
        if not is_marked(item, "process", "device", "slow"):
            item.add_marker("job" if used & _JOB_NAMES else "unit")


def _is_quick(item: pytest.Item) -> bool:
    """Return whether the marker `quick` of a test names this case of it; True if the test has no such marker.

    A case is named by its id or by its number in the list of parameters; of several lists, in each of them.
    """
    marker = item.get_closest_marker("quick")
    if marker is None:
        return True
    call = item.callspec  # type: ignore[attr-defined]  # a test without cases has none, and no use for the marker
    return call.id in marker.args or any({one} == set(call.indices.values()) for one in marker.args)


def _check_quick(items: Iterable[pytest.Item]) -> None:
    named: dict[str, set[str | int]] = defaultdict(set)
    found: dict[str, set[str | int]] = defaultdict(set)
    for item in items:
        if marker := item.get_closest_marker("quick"):
            test = item.nodeid.partition("[")[0]
            named[test].update(marker.args)
            found[test] |= {item.callspec.id, *item.callspec.indices.values()}  # type: ignore[attr-defined]  # as above
    for test, names in named.items():
        if missing := names - found[test]:
            raise pytest.UsageError(f"{test} has no case {missing}, which its marker `quick` names")


def is_marked(item: pytest.Item, *names: str) -> bool:
    """Return whether a test has one of these markers."""
    return any(item.get_closest_marker(name) for name in names)


def _used_by(item: pytest.Item) -> set[str]:
    """Return the names that a test and its own fixtures use."""
    if not isinstance(item, pytest.Function):
        return set()
    fixtures = [one[-1].func for one in item._fixtureinfo.name2fixturedefs.values()]  # noqa: SLF001  no public name
    own = [one for one in fixtures if _of_the_tests(one, item.function.__module__)]
    return set().union(*map(_names, (item.function, *own)))


@cache
def _names(function: Callable[..., Any]) -> frozenset[str]:
    """Return the names that a function uses, and those that functions and classes of the tests use which it names."""
    found: set[str] = set()
    seen = {function}
    waiting = [function]
    while waiting:
        names, others = _own_names(waiting.pop())
        found |= names
        waiting += others - seen
        seen |= others
    return frozenset(found)


@cache
def _own_names(function: Callable[..., Any]) -> tuple[frozenset[str], frozenset[Callable[..., Any]]]:
    """Return the names in a function's own code, and the functions of the tests that they stand for.

    Thousands of tests share the helpers that they name, so each helper is read once.
    """
    function = getattr(getattr(function, "hypothesis", None), "inner_test", function)
    function = inspect.unwrap(function)
    names = frozenset(_names_of(function.__code__)) if isinstance(function, FunctionType) else frozenset()
    known = getattr(function, "__globals__", {})
    return names, frozenset(one for name in names for one in _of_the_tests(known.get(name), function.__module__))


def _of_the_tests(value: object, module: str) -> list[FunctionType]:
    """Return the functions that stand for a value of this module, of the tests' shared language or of their fixtures."""
    place = str(getattr(value, "__module__", ""))
    if place != module and place.partition(".")[0] not in {"support", "conftest", "tests"}:
        return []
    members = vars(value).values() if isinstance(value, type) else [value]
    return [one for one in members if isinstance(one, FunctionType)]


def _names_of(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_of(constant)


@contextmanager
def held(item: pytest.Item) -> Iterator[None]:
    """Fail a unit or job test that starts a process or waits."""
    if not is_marked(item, "unit", "job"):
        yield
        return
    done: list[str] = []

    def refuse(what: str) -> NoReturn:
        done.append(what)
        pytest.fail(
            f"a test marked neither process nor slow {what}: mark it `process`, or name what does it in tests/support/markers.py"
        )

    def sleep(seconds: float, real: Callable[[float], None] = time.sleep) -> None:
        if seconds > 0:
            refuse("sleeps")
        real(seconds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "__init__", lambda *_, **__: refuse("starts a process"))
        if hasattr(os, "fork"):
            patch.setattr(os, "fork", lambda: refuse("forks"))
        patch.setattr(time, "sleep", sleep)
        yield
    if done:
        pytest.fail(f"in a thread, a test marked neither process nor slow {done[0]}: mark it `process`")
