"""Asks ONNX Runtime whether it opens models, in a process of its own: a graph that ends it takes only that with it.

The parent calls `try_to_open`. On Linux the child is a fork, which has all libraries loaded already: that takes some
hundredths of a second where a new Python takes several tenths, and seconds on a small board. Elsewhere it is `python -m
ortdeploy.runtime.trial_opening` and reads the requests from its standard input. It says what it is about to do, then
what came of it, a line of JSON each, over a pipe; what the library prints is dropped.

Of a model the outline is opened first, without optimization: that takes milliseconds whatever the weights. Only what is
refused is opened again as it is and with its own options, and nothing is called refused that this does not refuse too.
"""

import faulthandler
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from io import RawIOBase
from typing import Any, NoReturn

from ortdeploy.facts.facts import Opening
from ortdeploy.process.child import child_command

_SECONDS = 120
_PIECE = 64 * 1024
_CRASHES = {
    -getattr(signal, name) for name in ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV") if hasattr(signal, name)
}
"""Ends that the graph has brought about; SIGKILL is the system's, for memory."""
_ORIGIN = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (?:Load model from .* failed:)?(?:Fatal error: )?")
_KEPT_OUT = {
    "enable_profiling", "graph_optimization_level", "optimized_model_filepath", "profile_file_prefix"
}  # fmt: skip
"""Session options that write files, and the one that says how far the graph is optimized, which is for the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRequest:
    """A model to open: its outline (None: it has none), its file, and how much of it is to be proven.

    `on_cpu`: the chain is the CPU provider's, so the session is made; else the graph is loaded only, which every chain
    does. `domains` are those of its nodes and `opsets` its operator sets. `elsewhere` is the version of ONNX Runtime on
    another machine that the plan is for.
    """

    outline: str | None
    file: str
    on_cpu: bool
    options: Mapping[str, Any] = field(default_factory=dict)
    extensions: bool = False
    domains: Sequence[str] = ()
    opsets: Mapping[str, int] = field(default_factory=dict)
    elsewhere: str | None = None


def try_to_open(requests: Sequence[TrialRequest]) -> list[Opening | None]:
    """Return what came of each; None where nothing was proven."""
    found: list[Opening | None] = []
    rest = list(requests)
    while rest:
        answers, doing, code = _ask(rest)
        found += answers
        rest = rest[len(answers) :]
        if not rest or code not in _CRASHES:
            break
        if doing == "outline":
            rest[0] = replace(rest[0], outline=None)
        else:
            name = signal.Signals(-code).name
            found.append(Opening(refusal=f"opening it ends the process with {name}"))
            rest = rest[1:]
    return found + [None] * len(rest)


def _ask(requests: Sequence[TrialRequest]) -> tuple[list[Opening | None], str, int]:
    """Return the answers of one child, what it did last, and its exit status."""
    said, code = _ask_fork(requests) if _can_fork() else _ask_python(requests)
    lines = [json.loads(line) for line in said.splitlines(keepends=True) if line.endswith(b"\n")]
    answers = [Opening(**line["opening"]) if line["opening"] else None for line in lines if "opening" in line]
    doing = next((line["doing"] for line in reversed(lines) if "doing" in line), "outline")
    return answers, doing, code


def _can_fork() -> bool:
    """Return whether a fork is safe: plans are made in the main thread, before a job has threads in ONNX Runtime."""
    return sys.platform == "linux" and threading.current_thread() is threading.main_thread()


def _ask_fork(requests: Sequence[TrialRequest]) -> tuple[bytes, int]:
    """Return what a fork of this process says, and its exit status."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads that are not in any library
        child = os.fork()
    if child == 0:
        _be_the_fork(requests, writing)
    os.close(writing)
    with os.fdopen(reading, "rb", buffering=0) as answers:
        said, ended = _read_until(answers, time.monotonic() + _SECONDS)
    if not ended:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return said, os.waitstatus_to_exitcode(status)


def _be_the_fork(requests: Sequence[TrialRequest], writing: int) -> NoReturn:
    """Answer and end, without anything that the parent has registered for its own end."""
    code = 1
    try:
        faulthandler.disable()
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        for request in requests:
            for line in _open(request):
                os.write(writing, f"{json.dumps(line)}\n".encode())
        code = 0
    finally:
        os._exit(code)


def _read_until(pipe: RawIOBase, deadline: float) -> tuple[bytes, bool]:
    """Return what comes over a pipe, and whether its other end was closed before the deadline."""
    said = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while selector.select(max(deadline - time.monotonic(), 0)):
            piece = pipe.read(_PIECE)
            if not piece:
                return bytes(said), True
            said += piece
    return bytes(said), False


def _ask_python(requests: Sequence[TrialRequest]) -> tuple[bytes, int]:
    """Return what a new Python says, and its exit status."""
    command = child_command("ortdeploy.runtime.trial_opening")
    child = subprocess.Popen(  # noqa: S603  our own module
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        said, _ = child.communicate(json.dumps([asdict(one) for one in requests]).encode(), timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        said, _ = child.communicate()
    return said, child.returncode


def main() -> None:
    """Be the child."""
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for request in json.load(sys.stdin):
        for line in _open(TrialRequest(**request)):
            answer.write(f"{json.dumps(line)}\n")
            answer.flush()
    os._exit(0)  # without the libraries' own clean-up, which may print or abort


def _open(request: TrialRequest) -> Iterator[dict[str, Any]]:
    """Yield what is done, and what came of it: the outline, then the file where the outline is refused."""
    refusal = None
    if not _is_judged(request):
        yield {"opening": None}
        return
    if request.outline is not None:
        yield {"doing": "outline"}
        refusal = _refusal(request, request.outline, optimize=False)
        if refusal is None:
            yield {"opening": asdict(Opening(with_kernels=request.on_cpu))}
            return
    yield {"doing": "file"}
    confirmed = _refusal(request, request.file, optimize=True)
    if confirmed is None:
        yield {"opening": asdict(Opening(with_kernels=request.on_cpu))}
        return
    told = refusal if refusal is not None and type(refusal) is type(confirmed) else confirmed
    yield {"opening": asdict(Opening(refusal=_text(told), with_kernels=request.on_cpu))}


def _is_judged(request: TrialRequest) -> bool:
    """Tell whether this ONNX Runtime is the judge: other chains may have providers with operators of their own.

    Of another version it tells only of ONNX's own operators, whose definitions are the same in all that know them.
    """
    import onnxruntime as ort  # noqa: PLC0415  only the child
    from onnxruntime.capi import _pybind_state  # noqa: PLC0415

    from ortdeploy.runtime.supported_versions import find_limits  # noqa: PLC0415

    if request.elsewhere not in {None, ort.__version__}:
        ir_version, known = find_limits()
        return ir_version is not None and all(
            domain in known and version <= known[domain] for domain, version in request.opsets.items()
        )
    domains = {schema.domain or "ai.onnx" for schema in _pybind_state.get_all_operator_schema()}
    return request.on_cpu or request.extensions or domains.issuperset(request.domains)


def _refusal(request: TrialRequest, path: str, *, optimize: bool) -> Exception | None:
    import onnxruntime as ort  # noqa: PLC0415  only the child
    from onnxruntime.capi import _pybind_state  # noqa: PLC0415

    from ortdeploy.runtime.session import register_extensions, session_options  # noqa: PLC0415

    own = {name: value for name, value in request.options.items() if name not in _KEPT_OUT}
    if optimize and "graph_optimization_level" in request.options:
        own["graph_optimization_level"] = request.options["graph_optimization_level"]
    options = session_options(own)
    options.log_severity_level = 4
    options.add_session_config_entry("ep.context_enable", "0")
    options.add_session_config_entry("session.disable_prepacking", "1")
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        if request.extensions:
            register_extensions(options)
        if request.on_cpu:
            ort.InferenceSession(path, options, providers=["CPUExecutionProvider"], enable_fallback=0)
        else:
            _pybind_state.InferenceSession(options, path, True, False)
    except Exception as error:  # noqa: BLE001  every error of the binding is its own class, all derived from Exception
        return error
    return None


def _text(error: Exception) -> str:
    """Return the first line of what ONNX Runtime says, without its number and the file that it was given."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return _ORIGIN.sub("", lines[0]).strip().rstrip(".")


if __name__ == "__main__":
    main()
