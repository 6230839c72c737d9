"""Asks ONNX Runtime whether it opens models, in a child process: a graph that crashes it ends only the child.

The parent calls `try_to_open`. The child is a fork if that is safe; otherwise it runs `main`. It says what it is about
to do, and then the outcome.

A model's outline is opened first, without optimization: that takes milliseconds, however large the weights are. If it
is refused, the model itself is opened with its own options, and only a second refusal counts.
"""

import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from msgspec import Struct, convert, field, to_builtins
from msgspec.structs import replace

from ortdeploy.diagnostics import OutOfMemoryError
from ortdeploy.facts.preflight import Opening
from ortdeploy.files.opening import regular_path
from ortdeploy.process.child import CRASHES, Asked, ask
from ortdeploy.process.cores import core_count
from ortdeploy.process.fork import ask_fork, can_fork
from ortdeploy.process.memory import held_memory
from ortdeploy.process.memory_limit import MemoryBound

_SECONDS, _LATE = 120, 1000
_MOST_BYTES = 2 * 2**30
"""Memory that GenAI may take beside the weights, which are not there: a json_schema may take any amount."""
_THREADS_A_CORE = 4
_ORIGIN = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (?:Load model from .* failed:)?(?:Fatal error: )?")
_KEPT_OUT = {
    "enable_profiling", "graph_optimization_level", "optimized_model_filepath", "profile_file_prefix"
}  # fmt: skip
"""Session options that write files, and the one that says how far the graph is optimized, which is for the file."""

_NO_LOCALE = "Failed to construct locale"
"""What a StringNormalizer says here that it may not say on another machine."""


class TrialRequest(Struct, frozen=True, kw_only=True):
    """A model to open: its outline (None: it has none), its file, and how much of it is to be proven.

    `on_cpu`: the chain is the CPU provider's, so the session is made; else the graph is loaded only, which every chain
    does. `domains` are those of its nodes and `opsets` its operator sets. `elsewhere` is the version of ONNX Runtime on
    another machine that the plan is for. `writing` is how texts are written, if `file` is a folder of GenAI.
    """

    outline: str | None
    file: str
    on_cpu: bool
    options: Mapping[str, Any] = field(default_factory=dict)
    extensions: bool = False
    domains: Sequence[str] = ()
    opsets: Mapping[str, int] = field(default_factory=dict)
    elsewhere: str | None = None
    writing: Mapping[str, Any] | None = None


def try_to_open(requests: Sequence[TrialRequest]) -> list[Opening | None]:
    """Return the outcome for each model; None if nothing was proven."""
    found: list[Opening | None] = []
    rest = list(requests)
    while rest:
        answers, doing, code = _ask(rest)
        found += answers
        rest = rest[len(answers) :]
        if not rest or (doing is None and code != _LATE):
            break
        if code == _LATE and rest[0].writing is not None:  # GenAI may be at it for ever, or until no memory is left
            found.append(Opening(refusal=f"opening it takes more than {_SECONDS} s"))
        elif code not in CRASHES:
            break
        elif doing == "outline":
            rest[0] = replace(rest[0], outline=None)
            continue
        else:
            found.append(Opening(refusal=_how_it_crashed(signal.Signals(-code).name, rest[0])))
        rest = rest[1:]
    return found + [None] * len(rest)


def _how_it_crashed(name: str, request: TrialRequest) -> str:
    if name == "SIGPROF":
        return "its tokenizer comes to no end over a short text"
    why = f", as it does if {_too_much()}" if name == "SIGABRT" and request.writing is not None else ""
    return f"opening it ends the process with {name}{why}"


def _too_much() -> str:
    return f"it takes more than {_MOST_BYTES / 2**30:g} GiB of memory beside the weights"


def _ask(requests: Sequence[TrialRequest]) -> tuple[list[Opening | None], str | None, int]:
    """Return the answers of one child, what it was doing when it ended, if anything, and its exit status, or _LATE."""
    if can_fork():
        answer = ask_fork(lambda: chain.from_iterable(map(_open, requests)), seconds=_SECONDS)
    else:
        answer = ask(__name__, [to_builtins(one) for one in requests], seconds=_SECONDS)
    said = answer.messages
    answers = [Opening(**one["opening"]) if one["opening"] else None for one in said if "opening" in one]
    return answers, said[-1].get("doing") if said else None, _LATE if answer.late else answer.code


def main(asked: Asked) -> None:
    """Entry of the child process."""
    for request in asked.request:
        for message in _open(TrialRequest(**request)):
            asked.say(**message)


def _open(request: TrialRequest) -> Iterator[dict[str, Any]]:
    """Yield each action and its outcome: the outline, then the file if the outline is refused."""
    refusal = None
    if request.writing is not None:
        yield {"doing": "file"}
        yield {"opening": to_builtins(Opening(refusal=_refusal_of_folder(request.file, request.writing)))}
        return
    if not _is_judged(request):
        yield {"opening": None}
        return
    if request.outline is not None:
        yield {"doing": "outline"}
        refusal = _refusal(request, request.outline, optimize=False)
        if refusal is None:
            yield {"opening": to_builtins(Opening(with_kernels=request.on_cpu))}
            return
    yield {"doing": "file"}
    confirmed = _refusal(request, request.file, optimize=True)
    if confirmed is None:
        yield {"opening": to_builtins(Opening(with_kernels=request.on_cpu))}
        return
    told = refusal if refusal is not None and type(refusal) is type(confirmed) else confirmed
    yield {"opening": to_builtins(Opening(refusal=refusal_text(told), with_kernels=request.on_cpu))}


def _is_judged(request: TrialRequest) -> bool:
    """Return whether this ONNX Runtime is the judge: other chains may have providers with operators of their own.

    Of another version it tells only of ONNX's own operators, whose definitions are the same in all that know them.
    """
    from ortdeploy.runtime.library import binding, ort  # noqa: PLC0415  only the child
    from ortdeploy.runtime.supported_versions import find_limits  # noqa: PLC0415

    if request.elsewhere is not None and request.extensions:  # this machine may have another package, or none
        return False
    if request.elsewhere not in {None, ort.__version__}:
        ir_version, known = find_limits()
        return ir_version is not None and all(
            domain in known and version <= known[domain] for domain, version in request.opsets.items()
        )
    if request.on_cpu or request.extensions:
        return True
    domains = {schema.domain or "ai.onnx" for schema in binding.get_all_operator_schema()}
    return domains.issuperset(request.domains)


def _refusal_of_folder(folder: str, writing: Mapping[str, Any]) -> str | None:
    from ortdeploy.runtime.generation import Writing, refusal_of  # noqa: PLC0415  only the child, and only for folders

    how = {name: value for name, value in writing.items() if name != "senses"}
    with MemoryBound((held_memory() or 0) + _MOST_BYTES, _THREADS_A_CORE * core_count()):
        try:
            return refusal_of(Path(folder), convert(how, Writing), senses=writing["senses"])
        except OutOfMemoryError:
            return _too_much()


def _refusal(request: TrialRequest, path: str, *, optimize: bool) -> Exception | None:
    from ortdeploy.runtime.library import binding, ort  # noqa: PLC0415  only the child
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
            ort.InferenceSession(regular_path(path), options, providers=["CPUExecutionProvider"], enable_fallback=0)
        else:
            binding.InferenceSession(options, regular_path(path), True, False)
    except Exception as error:  # noqa: BLE001  every error of the binding is its own class, all derived from Exception
        if request.on_cpu and request.elsewhere is not None and _NO_LOCALE in str(error):
            return _refusal(replace(request, on_cpu=False), path, optimize=optimize)
        return error
    return None


def refusal_text(error: Exception) -> str:
    """Return the first line of what ONNX Runtime says, without its number and the file that it was given."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return _ORIGIN.sub("", lines[0]).strip().rstrip(".")
