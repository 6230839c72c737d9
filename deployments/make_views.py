"""Trains the digit reader of deployments/views.yaml and its two LoRA adapters, and writes the scans that they read.

The base network reads upright scans. Its weights are then frozen, and pairs of low-rank matrices beside each of its
layers are trained (PyTorch) until it reads scans that lie on their side (rank 8) or are white on black (rank 2). The
graph takes these matrices as inputs with defaults of rank zero, as Olive exports them.

Data: the handwritten digits that scikit-learn ships, 1797 scans of 8x8 pixels with 17 grey levels (E. Alpaydin and
C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, CC BY 4.0). A fifth is held out.

Run: pip install torch, then python deployments/make_views.py
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

from ortdeploy.runtime.adapter_writer import write_adapter

Array = npt.NDArray[Any]
Pair = tuple[torch.Tensor, torch.Tensor]

HERE = Path(__file__).parent
WIDTHS = (64, 128, 128, 10)
LEVELS = 16
RANKS = {"rotated": 8, "inverted": 2}
EPOCHS, BATCH, RATE, DECAY = 600, 64, 2e-3, 1e-4


def low_rank(layer: nn.Linear, rank: int) -> Pair:
    """Return two matrices beside a layer; the second begins as zeros, so that their product does nothing yet."""
    first = torch.randn(layer.in_features, rank) / layer.in_features**0.5
    return first.requires_grad_(), torch.zeros(rank, layer.out_features, requires_grad=True)


def scores(layers: list[nn.Linear], pairs: list[Pair], x: torch.Tensor) -> torch.Tensor:
    """Return the network's output [n, 10]; without pairs, the base network's."""
    for index, layer in enumerate(layers):
        more = x @ pairs[index][0] @ pairs[index][1] if pairs else 0
        x = layer(x) + more
        x = torch.relu(x) if index < len(layers) - 1 else x
    return x


def views(scans: Array) -> dict[str, Array]:
    """Return scans [n, 64] as they are, on their side, and white on black."""
    turned = np.rot90(scans.reshape(-1, 8, 8), axes=(1, 2)).reshape(-1, 64)
    return {"upright": scans, "rotated": turned, "inverted": LEVELS - scans}


def tensor(scans: Array) -> torch.Tensor:
    """Return scans as the network takes them, from 0 to 1."""
    return torch.tensor(scans / LEVELS, dtype=torch.float32)


def train(
    layers: list[nn.Linear], pairs: list[Pair], parameters: list[torch.Tensor], scans: Array, labels: Array
) -> None:
    """Minimise the cross entropy over some parameters."""
    x, y = tensor(scans), torch.tensor(labels)
    optimizer = torch.optim.AdamW(parameters, lr=RATE, weight_decay=DECAY)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(scores(layers, pairs, x[batch]), y[batch]).backward()
            optimizer.step()


def accuracy(layers: list[nn.Linear], pairs: list[Pair], scans: Array, labels: Array) -> float:
    """Return the share of scans that are read right."""
    with torch.no_grad():
        found = scores(layers, pairs, tensor(scans)).argmax(dim=1).numpy()
    return float((found == labels).mean())


def save_base(layers: list[nn.Linear], path: Path) -> None:
    """Write the graph: each layer with the product of two inputs beside it, whose defaults have rank zero."""
    nodes, inputs, weights, last = [], [], [], "image"
    for index, layer in enumerate(layers):
        name = f"layer{index}"
        a, b = f"{name}.lora_A", f"{name}.lora_B"
        size_in, size_out = layer.in_features, layer.out_features
        arrays = {
            f"{name}.weight": layer.weight.detach().numpy().T,
            f"{name}.bias": layer.bias.detach().numpy(),
            a: np.zeros((size_in, 0)),
            b: np.zeros((0, size_out)),
        }
        weights += [numpy_helper.from_array(array.astype(np.float32), key) for key, array in arrays.items()]
        inputs += [
            helper.make_tensor_value_info(a, TensorProto.FLOAT, [size_in, f"{name}.rank"]),
            helper.make_tensor_value_info(b, TensorProto.FLOAT, [f"{name}.rank", size_out]),
        ]
        nodes += [
            helper.make_node("Gemm", [last, f"{name}.weight", f"{name}.bias"], [f"{name}.base"]),
            helper.make_node("MatMul", [last, a], [f"{name}.low"]),
            helper.make_node("MatMul", [f"{name}.low", b], [f"{name}.more"]),
            helper.make_node("Add", [f"{name}.base", f"{name}.more"], [f"{name}.out"]),
        ]
        last = f"{name}.out"
        if index < len(layers) - 1:
            nodes.append(helper.make_node("Relu", [last], [f"{name}.active"]))
            last = f"{name}.active"
    nodes[-1].output[0] = "scores"
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", WIDTHS[0]])
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", WIDTHS[-1]])
    graph = helper.make_graph(nodes, "views", [image, *inputs], [scores], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def save_check(folder: Path, layers: list[nn.Linear], pairs: list[Pair], scans: Array) -> None:
    """Write scans and what the network says of them with the pairs multiplied into its weights, in double precision."""
    merged = []
    for layer, (first, second) in zip(layers, pairs, strict=True):
        whole = nn.Linear(layer.in_features, layer.out_features).double()
        whole.weight.data = (layer.weight.double() + (first.double() @ second.double()).T).detach()
        whole.bias.data = layer.bias.double().detach()
        merged.append(whole)
    with torch.no_grad():
        found = scores(merged, [], tensor(scans).double()).numpy().astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "inputs.npz", image=tensor(scans).numpy())
    np.savez(folder / "outputs.npz", scores=found)


def main() -> None:
    """Train, write model, adapters, checks and scans, and say how well each reads what."""
    torch.manual_seed(0)
    scans, labels = load_digits(return_X_y=True)
    seen, held, seen_labels, held_labels = train_test_split(scans, labels, test_size=0.2, random_state=0)
    layers = [nn.Linear(*pair) for pair in pairwise(WIDTHS)]
    train(layers, [], [part for layer in layers for part in layer.parameters()], seen, seen_labels)
    save_base(layers, HERE / "models/views.onnx")
    print(f"upright: the base model reads {accuracy(layers, [], held, held_labels):.1%}")
    for view, rank in RANKS.items():
        pairs = [low_rank(layer, rank) for layer in layers]
        train(layers, pairs, [part for pair in pairs for part in pair], views(seen)[view], seen_labels)
        arrays = {
            f"layer{index}.lora_{side}": matrix.detach().numpy()
            for index, pair in enumerate(pairs)
            for side, matrix in zip("AB", pair, strict=True)
        }
        path = HERE / f"adapters/{view}.onnx_adapter"
        path.parent.mkdir(exist_ok=True)
        write_adapter(path, arrays, adapter_version=1, model_version=1)
        save_check(HERE / f"checks/{view}", layers, pairs, views(held)[view][:16])
        alone, adapted = (accuracy(layers, with_, views(held)[view], held_labels) for with_ in ([], pairs))
        print(f"{view}: the base model reads {alone:.1%}, with its adapter of rank {rank} {adapted:.1%}")
    kinds = np.array([list(views(held))[index % 3] for index in range(len(held))])
    chosen = np.stack([views(held)[kind][index] for index, kind in enumerate(kinds)]).astype(np.uint8)
    np.savez_compressed(HERE / "views.npz", image=chosen, view=kinds, label=held_labels.astype(np.uint8))


if __name__ == "__main__":
    main()
