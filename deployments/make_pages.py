"""Writes the pages of deployments/pages.yaml, and the model that finds digits on them.

The digits are those that make_digits.py held out from training, in deployments/digits: 16 to 24 of them are pasted on
each page, in rows with gaps between them, over paper that is not quite white. The detector measures ink: the mean of
the 3 x 3 pixels around each, as a convolution, through a sigmoid that rises where a pen was.

Run: python deployments/make_pages.py
"""

import csv
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

HERE = Path(__file__).parent
PAGES, HEIGHT, WIDTH, LINE, STEP, GAP = 12, 64, 112, 15, 17, 4
PAPER = 6


def save_detector(path: Path) -> None:
    """Write page [batch, 1, height, width] -> heat of the same shape."""
    weights = {
        "mean": np.full((1, 1, 3, 3), 1 / 9, dtype=np.float32),
        "sharpness": np.array(60, dtype=np.float32),
        "ink": np.array(0.05, dtype=np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["page", "mean"], ["blurred"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Sub", ["blurred", "ink"], ["over"]),
        helper.make_node("Mul", ["over", "sharpness"], ["sharp"]),
        helper.make_node("Sigmoid", ["sharp"], ["heat"]),
    ]
    shape: list[str | int | None] = ["batch", 1, "height", "width"]
    graph = helper.make_graph(
        nodes,
        "detector",
        [helper.make_tensor_value_info("page", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("heat", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))


def main() -> None:
    """Write the pages, what stands on them from top to bottom and left to right, and the detector."""
    random = np.random.default_rng(7)
    with (HERE / "digits/labels.csv").open(encoding="utf-8", newline="") as file:
        known = [(row["path"], int(row["label"])) for row in csv.DictReader(file)]
    folder = HERE / "pages"
    folder.mkdir(exist_ok=True)
    lines = []
    for number in range(PAGES):
        page = random.integers(0, PAPER, size=(HEIGHT, WIDTH)).astype(np.uint8)
        digits = []
        for top in range(GAP, HEIGHT - 8 - GAP + 1, LINE):
            for left in range(GAP, WIDTH - 8 - GAP + 1, STEP):
                if random.random() < 0.15:
                    continue
                path, digit = known[random.integers(len(known))]
                y, x = top + random.integers(-1, 2), left + random.integers(-2, 3)
                scan = np.asarray(Image.open(HERE / path).convert("L"))
                place = page[y : y + 8, x : x + 8]
                np.maximum(place, scan, out=place)
                digits.append(digit)
        name = f"pages/{number:02}.png"
        Image.fromarray(page).save(HERE / name)
        lines.append((name, " ".join(map(str, digits))))
    with (folder / "labels.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("path", "digits"), *lines])
    save_detector(HERE / "models/detector.onnx")


if __name__ == "__main__":
    main()
