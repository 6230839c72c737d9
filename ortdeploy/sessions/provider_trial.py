"""Tries a provider on a small model that is made here, so that what is offered is known to compute.

y = relu(x · w), x float32 [4, 8] (rows, features), w float32 [8, 8]; the result is compared with NumPy's.
"""

import re
import time
from collections.abc import Iterator

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.host import NO_DEVICE, RuntimeFacts
from ortdeploy.plan.op_graph import OpConstant, OpGraph, OpNode
from ortdeploy.plan.pipeline import PlannedValue
from ortdeploy.plan.plan_file import encode
from ortdeploy.plan.steps import OpenSession, PlannedDevice, PlannedProvider, PlannedSession
from ortdeploy.process.child import ask, how_it_ended
from ortdeploy.providers.catalogue import CPU, find_provider
from ortdeploy.sessions.opening import ModelOpener

ONNX = "ai.onnx"
_OPSET = 13  # which every provider reads
_WEIGHTS = (np.arange(64, dtype=np.float32).reshape(8, 8) % 7 - 3) / 4
_ROWS = (np.arange(32, dtype=np.float32).reshape(4, 8) % 5 - 2) / 2
_CHILD = "ortdeploy.cli.children.doctor"
_NO_CUDA = "no CUDA-capable device"
"""How CUDA says that there is no device."""
_MOST_SECONDS = 60.0  # a GPU's first kernels may take a while to compile
_TOLERANCE = 0.05  # providers that compute in half precision, or with integers, come this near


class ProviderTrial(Struct, frozen=True, kw_only=True):
    """How a provider did: `nodes` of two that it took, and seconds to open a session; or the problem.

    `absent`: the problem is that it has no device on this machine.
    """

    provider: str
    device: str | None
    nodes: int = 0
    seconds: float = 0.0
    problem: str | None = None
    absent: bool = False


def device_name(provider: PlannedProvider) -> str | None:
    """Return a device of a plugin package as people call it; None of a provider that is built in."""
    device = provider.device
    if device is None:
        return None
    return f"{device.kind} {device.index}" if device.name in {"", device.kind} else f"{device.kind} {device.name}"


def trial_options(provider: str, kind: str) -> dict[str, str]:
    """Return the options without which a provider opens nothing: QNN's simulator is on a device of kind CPU."""
    return {"backend_type": "htp"} if (provider, kind) == ("QNNExecutionProvider", "CPU") else {}


def trial_step(provider: PlannedProvider) -> OpenSession:
    """Return what opens the small model on a provider, with the CPU's behind it for what it does not take."""
    chain = (provider,) if provider.name == CPU else (provider, PlannedProvider(name=CPU, options={}))
    values = [PlannedValue(name=name, dtype="float32", shape=(4, 8), layout=None) for name in ("x", "y")]
    graph = OpGraph(
        nodes=(
            OpNode(operator="MatMul", domain=ONNX, inputs=("x", "w"), outputs=("h",), attributes={}),
            OpNode(operator="Relu", domain=ONNX, inputs=("h",), outputs=("y",), attributes={}),
        ),
        constants=(OpConstant(name="w", dtype="float32", content=_WEIGHTS.tolist()),),
        inputs=(values[0],),
        outputs=(values[1],),
        opsets={ONNX: _OPSET},
    )
    return OpenSession(
        session="trial",
        model="trial",
        path="",
        sha256="0" * 64,
        candidates=(PlannedSession(name="trial", providers=chain),),
        use="first",
        on_unavailable="fail",
        cpu_fallback="allow",
        probe=None,
        options={"intra_op_num_threads": 1, "graph_optimization_level": "disable"},
        run_options={},
        cache=False,
        graph=graph,
    )


def run_trial(step: OpenSession, opener: ModelOpener) -> ProviderTrial:
    """Open the small model and run it once."""
    first = step.candidates[0].providers[0]
    trial = ProviderTrial(provider=first.name, device=device_name(first))
    begin = time.perf_counter()
    try:
        (opened,) = opener.open_model(step, step.candidates).sessions
        seconds = time.perf_counter() - begin
        (result,) = opened.session.run(["y"], {"x": _ROWS}, ())
    except OrtdeployError as error:
        return replace(trial, problem=str(error))
    apart = float(np.max(np.abs(np.asarray(result) - np.maximum(_ROWS @ _WEIGHTS, 0))))
    nodes = opened.session.placement.get(first.name, 0)
    problem = None if apart <= _TOLERANCE else f"its results are {apart:.3g} away from the CPU's"
    if problem is None and not nodes:
        problem = "it is offered and took none of the model's two nodes"
    return replace(trial, nodes=nodes, seconds=seconds, problem=problem)


def offered(runtime: RuntimeFacts) -> Iterator[PlannedProvider]:
    """Yield the providers that can compute: the built-in ones, and each device of a plugin package."""
    for name in runtime.available_providers:
        known = find_provider(name)
        if known is None or known.claims_nodes:
            yield PlannedProvider(name=name, options={})
    for device in runtime.devices:
        found = PlannedDevice(
            index=device.index, kind=device.kind, vendor=device.vendor, name=device.name, library=device.library
        )
        options = trial_options(device.provider, device.kind)
        yield PlannedProvider(name=device.provider, options=options, device=found)


def tried(provider: PlannedProvider) -> ProviderTrial:
    """Try a provider in a child. A provider that crashes or never ends does not work."""
    answer = ask(_CHILD, encode(provider), seconds=_MOST_SECONDS)
    if answer.messages:
        trial = ProviderTrial(**answer.messages[0])
        return replace(trial, absent=is_absent(trial.problem or ""))
    how = f"did not end within {_MOST_SECONDS:.0f} s" if answer.late else how_it_ended(answer.code)
    words = f": {answer.last_words}" if answer.last_words else ""
    problem = f"the process that tried it {how}{words}"
    return ProviderTrial(provider=provider.name, device=device_name(provider), problem=problem)


def is_absent(problem: str) -> bool:
    """Return whether a provider's problem is that this machine has no device for it."""
    return re.search(f"{NO_DEVICE}|{_NO_CUDA}", problem) is not None
