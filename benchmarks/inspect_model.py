"""How long a look at a model with 2 GiB of external weights takes, and what it costs in memory."""

import resource
import tempfile
import time
from pathlib import Path

import onnx
from measure import describe_machine
from onnx import TensorProto, helper

from ortdeploy.files.digest_cache import DigestCache
from ortdeploy.graph.model import read_model

LAYERS, WIDTH = 8, 8192
ROUNDS = 5


def make_model(folder: Path) -> Path:
    """Eight layers of 256 MiB each in one file beside the model, which is sparse: nothing reads it but the digest."""
    bytes_each = WIDTH * WIDTH * 4
    with (folder / "weights.bin").open("wb") as file:
        file.truncate(LAYERS * bytes_each)
    weights = [
        TensorProto(name=f"w{layer}", data_type=TensorProto.FLOAT, dims=[WIDTH, WIDTH]) for layer in range(LAYERS)
    ]
    for layer, tensor in enumerate(weights):
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "weights.bin"), ("offset", layer * bytes_each), ("length", bytes_each)):
            tensor.external_data.add(key=key, value=str(value))
    names = ["x", *(f"y{layer}" for layer in range(LAYERS))]
    nodes = [helper.make_node("MatMul", [names[i], f"w{i}"], [names[i + 1]]) for i in range(LAYERS)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", WIDTH]) for name in (names[0], names[-1])]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    path = folder / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def peak_mib() -> float:
    """Return the peak of the resident set in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Measure and print."""
    before = peak_mib()
    print(f"{describe_machine()}; 2 GiB of external data")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = make_model(folder)
        time.sleep(3)  # a digest is remembered only of files that are not brand new
        for number in range(ROUNDS):
            begin = time.perf_counter()
            facts = read_model(path, path.name, DigestCache(folder).digest)
            seconds = time.perf_counter() - begin
            what = "with reading the weights for their digest" if number == 0 else "with a remembered digest"
            print(
                f"{seconds * 1000:7.1f} ms {what}; {len(facts.nodes)} nodes; "
                f"peak {peak_mib():.0f} MiB, {before:.0f} before"
            )


if __name__ == "__main__":
    main()
