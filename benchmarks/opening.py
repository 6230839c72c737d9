"""What proving a session costs: ortdeploy's opening against a bare InferenceSession, for a model of 100 MB.

ortdeploy records the node assignment and compares it with the plan. Behind another provider than the CPU it also opens
a CPU session and runs the first batch on both; that is measured where onnxruntime-qnn is installed, on its simulator.
Both sides are timed from opening to the end of the first batch.
"""

import importlib.util
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime
from measure import describe_machine, interleaved
from onnx import TensorProto, helper, numpy_helper, save

from ortdeploy.plan.steps import OpenSession, PlannedDevice, PlannedProvider, PlannedSession
from ortdeploy.providers.catalogue import find_provider
from ortdeploy.runtime.plugins import describe, ep_devices, find_library, register
from ortdeploy.runtime.session import OrtRuntime
from ortdeploy.sessions.opening import ModelOpener, OpenedModel

WIDTH, LAYERS, ROWS, ROUNDS = 1024, 25, 1, 9
QNN, CPU = "QNNExecutionProvider", "CPUExecutionProvider"


def make_model(path: Path) -> None:
    """25 layers of 1024 x 1024 float32: 100 MB of weights."""
    rng = np.random.default_rng(0)
    names = ["x", *(f"h{layer}" for layer in range(LAYERS))]
    graph = helper.make_graph(
        [helper.make_node("MatMul", [names[i], f"w{i}"], [names[i + 1]]) for i in range(LAYERS)],
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, WIDTH])],
        [helper.make_tensor_value_info(names[-1], TensorProto.FLOAT, [ROWS, WIDTH])],
        [
            numpy_helper.from_array(rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 32, f"w{i}")
            for i in range(LAYERS)
        ],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))


def timed(action: Callable[[], object]) -> Callable[[], float]:
    """Return the action as one that says how many seconds it took."""

    def run() -> float:
        begin = time.perf_counter()
        action()
        return time.perf_counter() - begin

    return run


def opening(path: Path, providers: tuple[PlannedProvider, ...]) -> OpenSession:
    """Return the plan's step for a chain."""
    return OpenSession(
        session="mlp",
        model="mlp",
        path=str(path),
        sha256="",
        candidates=(PlannedSession(name="mlp", providers=providers),),
        use="first",
        on_unavailable="fail",
        cpu_fallback="forbid" if len(providers) > 1 else "warn",
        probe=(0.05, 0.001),
        options={},
        run_options={},
        cache=False,
    )


def open_proven(step: OpenSession) -> OpenedModel:
    """Open as ortdeploy does, and run one batch as a job does first."""
    opener = ModelOpener(runtime=OrtRuntime(), on_native_call=lambda _doing: None, native_text=lambda: "")
    opened = opener.open_model(step, step.candidates)
    (session,) = opened.sessions
    feeds, output = {"x": np.ones((ROWS, WIDTH), np.float32)}, f"h{LAYERS - 1}"
    cpu = session.probe.take() if session.probe else None
    if session.probe is None or cpu is None:
        session.session.run([output], feeds, ())
        return opened
    with ThreadPoolExecutor(1) as beside:
        reference = beside.submit(cpu.run, [output], feeds, ())
        values = session.session.run([output], feeds, ())
    session.probe.compare([output], values, reference.result())
    return opened


def bare_qnn(path: Path) -> onnxruntime.InferenceSession:
    """Open on QNN and run one batch."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_provider_for_devices(ep_devices(QNN)[:1], {"backend_type": "htp"})
    return run_once(onnxruntime.InferenceSession(str(path), options, enable_fallback=0))


def run_once(session: onnxruntime.InferenceSession) -> onnxruntime.InferenceSession:
    """Run the batch that a job would run first."""
    session.run(None, {"x": np.ones((ROWS, WIDTH), np.float32)})
    return session


def main() -> None:
    """Measure and print."""
    print(f"{describe_machine()}; medians of {ROUNDS}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mlp.onnx"
        make_model(path)
        step = opening(path, (PlannedProvider(name=CPU, options={}),))
        report(
            "CPU",
            timed(lambda: run_once(onnxruntime.InferenceSession(str(path), providers=[CPU]))),
            timed(lambda: open_proven(step)),
        )
        provider = find_provider(QNN)
        library = find_library(provider) if provider else None
        if importlib.util.find_spec("onnxruntime_qnn") is None or library is None:
            return
        register(QNN, library)
        facts = describe(QNN, library)[0]
        device = PlannedDevice(
            index=facts.index, kind=facts.kind, vendor=facts.vendor, name=facts.name, library=library
        )
        qnn = PlannedProvider(name=QNN, options={"backend_type": "htp"}, device=device)
        step = opening(path, (qnn, PlannedProvider(name=CPU, options={})))
        report("QNN", timed(lambda: bare_qnn(path)), timed(lambda: open_proven(step)))


def report(name: str, bare: Callable[[], float], proven: Callable[[], float]) -> None:
    """Print how much longer the proven opening takes."""
    found = interleaved({"bare": bare, "proven": proven}, ROUNDS)
    ratio = found.ratio("proven", "bare")
    print(f"{name}: bare {found['bare'] * 1000:.0f} ms, proven {found['proven'] * 1000:.0f} ms: {ratio:.2f}")


if __name__ == "__main__":
    main()
