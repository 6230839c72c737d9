"""Trains the digit reader of deployments/digits.yaml and writes its model and pictures.

Data: the handwritten digits that scikit-learn ships, 1797 scans of 8x8 pixels with 17 grey levels (E. Alpaydin and
C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, CC BY 4.0). A fifth is held out
and written as PNG; the grey levels are multiplied by 15, so that nothing is lost. The network, two convolutions and a
dense layer, is trained with numpy alone.

Run: python deployments/make_digits.py
"""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

Array = npt.NDArray[Any]
Weights = dict[str, Array]

HERE = Path(__file__).parent
GREY_STEP = 15
EPOCHS, BATCH, RATE = 30, 64, 2e-3


def initial_weights(random: np.random.Generator) -> Weights:
    """He initialisation for two 3x3 convolutions (1 → 16 → 32 channels) and a dense layer from 32x4x4 to 10."""
    shapes = {"conv1.w": (16, 1, 3, 3), "conv2.w": (32, 16, 3, 3), "dense.w": (512, 10)}
    weights = {name: random.normal(0, np.sqrt(2 / _fan_in(shape)), shape) for name, shape in shapes.items()}
    return weights | {"conv1.b": np.zeros(16), "conv2.b": np.zeros(32), "dense.b": np.zeros(10)}


def _fan_in(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape[1:])) if len(shape) == 4 else shape[0]


def windows(images: Array) -> Array:
    """Return every 3x3 window of zero-padded images [n, c, h, w] as [n, h, w, c * 9]."""
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    view = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    n, c, h, w = images.shape
    return view.transpose(0, 2, 3, 1, 4, 5).reshape(n, h, w, c * 9)


def convolve(images: Array, weights: Array, bias: Array) -> tuple[Array, Array]:
    """Return the convolution with its windows, which the backward pass needs."""
    seen = windows(images)
    return (seen @ weights.reshape(len(weights), -1).T + bias).transpose(0, 3, 1, 2), seen


def forward(weights: Weights, images: Array) -> tuple[Array, dict[str, Array]]:
    """Return scores [n, 10] and what the backward pass needs."""
    a, seen1 = convolve(images, weights["conv1.w"], weights["conv1.b"])
    b, seen2 = convolve(np.maximum(a, 0), weights["conv2.w"], weights["conv2.b"])
    blocks = np.maximum(b, 0).reshape(len(images), 32, 4, 2, 4, 2)
    pooled = blocks.max(axis=(3, 5))
    flat = pooled.reshape(len(images), 512)
    kept = {"a": a, "b": b, "seen1": seen1, "seen2": seen2, "blocks": blocks, "pooled": pooled, "flat": flat}
    return flat @ weights["dense.w"] + weights["dense.b"], kept


def gradients(weights: Weights, images: Array, labels: Array) -> Weights:
    """Return the gradient of the mean cross-entropy."""
    scores, kept = forward(weights, images)
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    shares[np.arange(len(labels)), labels] -= 1
    error = shares / len(labels)
    up = (error @ weights["dense.w"].T).reshape(kept["pooled"].shape)
    is_largest = kept["blocks"] == kept["pooled"][:, :, :, None, :, None]
    error_b = (is_largest * up[:, :, :, None, :, None]).reshape(kept["b"].shape) * (kept["b"] > 0)
    flipped = weights["conv2.w"][:, :, ::-1, ::-1].transpose(1, 0, 2, 3)
    error_a = convolve(error_b, np.ascontiguousarray(flipped), np.zeros(16))[0] * (kept["a"] > 0)
    return {
        "dense.w": kept["flat"].T @ error,
        "dense.b": error.sum(axis=0),
        **_convolution_gradient("conv1", error_a, kept["seen1"], weights["conv1.w"].shape),
        **_convolution_gradient("conv2", error_b, kept["seen2"], weights["conv2.w"].shape),
    }


def _convolution_gradient(name: str, error: Array, seen: Array, shape: tuple[int, ...]) -> Weights:
    last = error.transpose(0, 2, 3, 1).reshape(-1, shape[0])
    return {f"{name}.w": (last.T @ seen.reshape(len(last), -1)).reshape(shape), f"{name}.b": last.sum(axis=0)}


def train(images: Array, labels: Array, random: np.random.Generator) -> Weights:
    """Adam with a falling rate."""
    weights = initial_weights(random)
    mean = {name: np.zeros_like(value) for name, value in weights.items()}
    square = {name: np.zeros_like(value) for name, value in weights.items()}
    step = 0
    for epoch in range(EPOCHS):
        order = random.permutation(len(images))
        for begin in range(0, len(order), BATCH):
            step += 1
            chosen = order[begin : begin + BATCH]
            for name, slope in gradients(weights, images[chosen], labels[chosen]).items():
                mean[name] = 0.9 * mean[name] + 0.1 * slope
                square[name] = 0.999 * square[name] + 0.001 * slope**2
                rate = RATE * (1 - epoch / EPOCHS) * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
                weights[name] -= rate * mean[name] / (np.sqrt(square[name]) + 1e-8)
    return weights


def export(weights: Weights) -> onnx.ModelProto:
    """Build the graph by hand; an old opset and IR version, so that devices with an older runtime load it too."""
    pads: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["image", "conv1.w", "conv1.b"], ["a"], **pads),
        helper.make_node("Relu", ["a"], ["a_positive"]),
        helper.make_node("Conv", ["a_positive", "conv2.w", "conv2.b"], ["b"], **pads),
        helper.make_node("Relu", ["b"], ["b_positive"]),
        helper.make_node("MaxPool", ["b_positive"], ["pooled"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("Gemm", ["flat", "dense.w", "dense.b"], ["scores"]),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8, producer_name="make_digits"
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> None:
    """Train, export, write the held-out pictures with their labels."""
    digits = load_digits()
    levels = digits.images.astype(np.uint8)
    split = train_test_split(levels, digits.target, test_size=0.2, random_state=0, stratify=digits.target)
    train_levels, test_levels, train_labels, test_labels = split
    weights = train((train_levels / 16)[:, None], train_labels, np.random.default_rng(0))
    predicted = forward(weights, (test_levels / 16)[:, None])[0].argmax(axis=1)
    onnx.save(export(weights), str(HERE / "models" / "digits.onnx"))
    with (HERE / "digits" / "labels.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["path", "label"])
        for number, (picture, label) in enumerate(zip(test_levels, test_labels, strict=True)):
            path = HERE / "digits" / f"{number:03d}.png"
            Image.fromarray(picture * GREY_STEP).save(path, optimize=True)
            writer.writerow([f"digits/{path.name}", label])
    print(f"{len(test_labels)} held-out pictures, {np.mean(predicted == test_labels):.2%} read right")


if __name__ == "__main__":
    main()
