"""Makes those models of the gallery that no package ships ready: trained on data that packages ship, or converted.

Each function writes models/NAME.onnx and, where it trains, rows that it held out to inbox/NAME/. fetch.py calls them.
"""

import json
import re
import string
import wave
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from installed import file_of, package
from PIL import Image, ImageDraw, ImageFont

Array = npt.NDArray[Any]
SEED = 7
SAMPLE_RATE = 16_000
OPSETS = {"": 17, "ai.onnx.ml": 3}
"""Those that both converters write and every supported ONNX Runtime reads."""


def save(folder: Path, name: str, model: onnx.ModelProto) -> None:
    """Write a model."""
    (folder / "models").mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / "models" / f"{name}.onnx")


def inbox(folder: Path, name: str) -> Path:
    """Return the folder that a manifest reads its rows from."""
    made = folder / "inbox" / name
    made.mkdir(parents=True, exist_ok=True)
    return made


def write_table(path: Path, names: list[str], rows: Array) -> None:
    """Write rows [rows, columns] as CSV; NaN becomes an empty cell."""
    cells = [["" if np.isnan(cell) else repr(float(cell)) for cell in row] for row in rows]
    path.write_text("\n".join(",".join(line) for line in [names, *cells]) + "\n", encoding="utf-8")


def converted(model: Any, columns: int, **options: Any) -> onnx.ModelProto:
    """Return a fitted scikit-learn model as ONNX with one input, x: float32 [rows, columns]."""
    from skl2onnx import to_onnx  # noqa: PLC0415  only some of the models are made with it
    from skl2onnx.common.data_types import FloatTensorType  # noqa: PLC0415

    kinds = [("x", FloatTensorType([None, columns]))]
    made: onnx.ModelProto = to_onnx(model, initial_types=kinds, options=options, target_opset=OPSETS)
    return made


def halves(rows: Array, targets: Array) -> tuple[Array, Array, Array]:
    """Return what a model is trained on, rows and targets, and the rows that it does not see."""
    from sklearn.model_selection import train_test_split  # noqa: PLC0415

    seen, held, answers, _ = train_test_split(rows, targets, test_size=0.5, random_state=SEED)
    return seen, answers, held


def fitted_wine() -> tuple[Any, Array, list[str]]:
    """Return a classifier of wines by chemistry, rows that it did not see, and their columns."""
    from sklearn.datasets import load_wine  # noqa: PLC0415
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415
    from sklearn.pipeline import make_pipeline  # noqa: PLC0415
    from sklearn.preprocessing import StandardScaler  # noqa: PLC0415

    data = load_wine()
    seen, answers, held = halves(data.data, data.target)
    names = [name.replace("/", "_") for name in data.feature_names]
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(seen, answers), held, names


def wine(folder: Path) -> None:
    """Write wine.onnx and its table."""
    model, held, names = fitted_wine()
    save(folder, "wine", converted(model, len(names), zipmap=False))
    write_table(inbox(folder, "wine") / "wine.csv", names, held)


def fitted_diabetes() -> tuple[Any, Array, list[str]]:
    """Return a forest that predicts a disease's progress, rows with gaps that it did not see, and their columns."""
    from sklearn.datasets import load_diabetes  # noqa: PLC0415
    from sklearn.ensemble import RandomForestRegressor  # noqa: PLC0415
    from sklearn.impute import SimpleImputer  # noqa: PLC0415
    from sklearn.pipeline import make_pipeline  # noqa: PLC0415

    data = load_diabetes(scaled=False)
    seen, answers, held = halves(with_gaps(data.data), data.target)
    forest = RandomForestRegressor(n_estimators=50, max_depth=6, random_state=SEED)
    return make_pipeline(SimpleImputer(strategy="median"), forest).fit(seen, answers), held, data.feature_names


def with_gaps(rows: Array) -> Array:
    """Return rows of which one value in twenty is missing."""
    return np.where(np.random.default_rng(SEED).random(rows.shape) < 1 / 20, np.nan, rows)


def diabetes(folder: Path) -> None:
    """Write diabetes.onnx and its table."""
    model, held, names = fitted_diabetes()
    save(folder, "diabetes", converted(model, len(names)))
    write_table(inbox(folder, "diabetes") / "diabetes.csv", names, held)


def fitted_breast_cancer() -> tuple[Any, Array, list[str]]:
    """Return boosted trees that tell malignant cells, rows with gaps that they did not see, and their columns."""
    from lightgbm import LGBMClassifier  # noqa: PLC0415
    from sklearn.datasets import load_breast_cancer  # noqa: PLC0415

    data = load_breast_cancer()
    seen, answers, held = halves(with_gaps(data.data), data.target)
    model = LGBMClassifier(n_estimators=40, random_state=SEED, n_jobs=1, verbose=-1)
    return model.fit(seen, answers), held, [name.replace(" ", "_") for name in data.feature_names]


def breast_cancer(folder: Path) -> None:
    """Write breast-cancer.onnx and its table."""
    from onnxmltools import convert_lightgbm  # noqa: PLC0415
    from onnxmltools.convert.common.data_types import FloatTensorType  # noqa: PLC0415

    model, held, names = fitted_breast_cancer()
    kinds = [("x", FloatTensorType([None, len(names)]))]
    save(folder, "breast-cancer", convert_lightgbm(model, initial_types=kinds, zipmap=False, target_opset=15))
    write_table(inbox(folder, "breast-cancer") / "cells.csv", names, held)


def fitted_faces() -> tuple[Any, Array]:
    """Return a classifier of grey pictures of 25 x 25 pixels, face or not, and pictures [n, 25, 25] it did not see."""
    from skimage.data import lfw_subset  # noqa: PLC0415
    from sklearn.decomposition import PCA  # noqa: PLC0415
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415
    from sklearn.pipeline import make_pipeline  # noqa: PLC0415

    pictures = lfw_subset().astype(np.float32)
    is_face = np.arange(len(pictures)) < len(pictures) // 2
    seen, answers, held = halves(pictures, is_face.astype(np.int64))
    model = make_pipeline(PCA(40, random_state=SEED), LogisticRegression(max_iter=1000))
    return model.fit(seen.reshape(len(seen), -1), answers), held


def faces(folder: Path) -> None:
    """Write faces.onnx and pictures."""
    model, held = fitted_faces()
    save(folder, "faces", converted(model, held[0].size, zipmap=False))
    np.save(inbox(folder, "faces") / "pictures.npy", held)


def vibrations(number: int, seconds: float, *, worn: bool) -> Array:
    """Return the sound of a motor, float32 [samples] from -1 to 1; a worn bearing knocks in the second half."""
    random = np.random.default_rng(number)
    time = np.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    sound = 0.2 * np.sin(2 * np.pi * 50 * time + number) + 0.1 * np.sin(2 * np.pi * 150 * time)
    sound += 0.02 * random.standard_normal(len(time))
    knocks = (random.random(len(time)) < 0.01) & (time > seconds / 2)
    return np.asarray(sound + 0.6 * worn * knocks, np.float32)


def features(windows: Array) -> Array:
    """Return both lengths and the peak [n, 3] of windows [n, samples], as vibration.yaml computes them."""
    sizes = np.abs(windows)
    return np.stack([np.sqrt(np.sum(windows**2, axis=1)), np.sum(sizes, axis=1), np.max(windows, axis=1)], axis=1)


def fitted_vibration() -> Any:
    """Return an isolation forest that knows windows of 1024 samples of healthy motors."""
    from sklearn.ensemble import IsolationForest  # noqa: PLC0415

    healthy = np.concatenate([vibrations(number, 4, worn=False) for number in range(100, 108)])
    windows = healthy[: len(healthy) // 1024 * 1024].reshape(-1, 1024)
    return IsolationForest(n_estimators=50, contamination=0.01, random_state=SEED).fit(features(windows))


def vibration(folder: Path) -> None:
    """Write vibration.onnx and recordings of a healthy and a worn motor."""
    save(folder, "vibration", converted(fitted_vibration(), 3))
    for name, worn in (("healthy", False), ("worn", True)):
        write_recording(inbox(folder, "vibration") / f"{name}.wav", vibrations(len(name), 2, worn=worn))


def write_recording(path: Path, samples: Array) -> None:
    """Write samples [frames] from -1 to 1 as a WAV file of 16 bits."""
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, SAMPLE_RATE, 0, "NONE", ""))
        file.writeframes(np.asarray(np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())


def fitted_prose() -> tuple[Any, list[str]]:
    """Return a classifier of lines, prose (0) or Python (1), and lines that it did not see."""
    from sklearn.feature_extraction.text import TfidfVectorizer  # noqa: PLC0415
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415
    from sklearn.pipeline import make_pipeline  # noqa: PLC0415

    prose, code = (lines_of(f"datasets/{pattern}") for pattern in ("descr/*.rst", "*.py"))
    seen, answers = [*prose[::2], *code[::2]], [0] * len(prose[::2]) + [1] * len(code[::2])
    # ONNX Runtime makes letters small by the system's locale, which may be missing: the words stay as they are.
    words = TfidfVectorizer(token_pattern="[a-zA-Z]+", lowercase=False)  # noqa: S106  a pattern of words
    return make_pipeline(words, LogisticRegression()).fit(seen, answers), [*prose[1::20], *code[1::20]]


def lines_of(pattern: str) -> list[str]:
    """Return the lines of four words and more in files of the package scikit-learn."""
    files = sorted(package("sklearn", "scikit-learn").glob(pattern))
    texts = [line.strip() for path in files for line in path.read_text(encoding="utf-8").splitlines()]
    return [line for line in texts if len(line.split()) >= 4]


def prose(folder: Path) -> None:
    """Write prose.onnx, whose input is text, and lines."""
    from skl2onnx import to_onnx  # noqa: PLC0415
    from skl2onnx.common.data_types import StringTensorType  # noqa: PLC0415

    model, held = fitted_prose()
    kinds = [("text", StringTensorType([None, 1]))]
    made = to_onnx(model, initial_types=kinds, options={"zipmap": False}, target_opset=OPSETS)
    save(folder, "prose", made)
    (inbox(folder, "prose") / "lines.txt").write_text("\n".join(held) + "\n", encoding="utf-8")


def nudenet_half(folder: Path) -> None:
    """Write nudenet-half.onnx: weights and arithmetic in float16, inputs and outputs in float32."""
    from onnxruntime.transformers.float16 import convert_float_to_float16  # noqa: PLC0415

    model = onnx.load(file_of("nudenet", "nudenet", "320n.onnx"))
    save(folder, "nudenet-half", convert_float_to_float16(model, keep_io_types=True))


def text_line(number: int) -> Image.Image:
    """Return a picture of a line of letters on light ground; every other one is upside down."""
    random = np.random.default_rng(number)
    letters = "".join(random.choice(list(string.ascii_letters + string.digits + "    "), random.integers(6, 26)))
    font = ImageFont.load_default(int(random.integers(24, 44)))
    picture = Image.new("RGB", (900, 60), tuple(random.integers(200, 256, 3).tolist()))
    draw = ImageDraw.Draw(picture)
    draw.text((8, 4), letters, fill=tuple(random.integers(0, 90, 3).tolist()), font=font)
    right, lower = draw.textbbox((8, 4), letters, font=font)[2:]
    return picture.crop((0, 0, int(min(right + 8, 900)), int(min(lower + 6, 60)))).rotate(180 * (number % 2))


def direction_input(line: Image.Image) -> Array:
    """Return what the classifier of directions is fed, float32 [1, 3, 48, 192], BGR from -1 to 1."""
    width = min(192, -(-48 * line.width // line.height))
    pixels = np.asarray(line.resize((width, 48), Image.Resampling.BILINEAR), np.float32)[:, :, ::-1] / 127.5 - 1
    return np.pad(pixels, ((0, 0), (0, 192 - width), (0, 0))).transpose(2, 0, 1)[None]


def text_direction_int8(folder: Path) -> None:
    """Write text-direction-int8.onnx, quantized with scales that 64 drawn lines of text call for."""
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static  # noqa: PLC0415

    class Lines(CalibrationDataReader):  # type: ignore[misc]  # the package ships no types
        """Lines of text, one after the other."""

        def __init__(self) -> None:
            self.rest = iter(range(64))

        def get_next(self) -> dict[str, Array] | None:
            """Return the next input, or None."""
            number = next(self.rest, None)
            return None if number is None else {"x": direction_input(text_line(number))}

    source = file_of("rapidocr", "rapidocr", "models/ch_ppocr_mobile_v2.0_cls_mobile.onnx")
    target = folder / "models/text-direction-int8.onnx"
    quantize_static(source, target, Lines(), per_channel=True, activation_type=QuantType.QInt8)


YEARS, AHEAD = 33, 5
"""How many years a forecast of sunspots is made from, and how many it is for: three cycles, and half of one."""


def fitted_forecast() -> tuple[Any, Array, Array]:
    """Return a ridge regression from 33 years of sunspots to the next five, years from 1700, and their sunspots."""
    from sklearn.linear_model import Ridge  # noqa: PLC0415
    from statsmodels.datasets import sunspots  # noqa: PLC0415

    table = sunspots.load_pandas().data
    spots = table["SUNACTIVITY"].to_numpy(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(spots[:200], YEARS + AHEAD)
    model = Ridge(alpha=100.0).fit(windows[:, :YEARS], windows[:, YEARS:])
    return model, table["YEAR"].to_numpy(np.int64), spots


def forecast(folder: Path) -> None:
    """Write forecast.onnx and the sunspots of each year."""
    model, years, spots = fitted_forecast()
    save(folder, "forecast", converted(model, YEARS))
    lines = [f"{year}-01-01,{count!r}" for year, count in zip(years, spots.tolist(), strict=True)]
    (inbox(folder, "forecast") / "sunspots.csv").write_text("\n".join(["date,spots", *lines]) + "\n", encoding="utf-8")


def fitted_search() -> tuple[Any, Array, Array, Array]:
    """Return what makes vectors of handwritten digits [n, 64], vectors and names of a catalogue, and other digits."""
    from sklearn.datasets import load_digits  # noqa: PLC0415
    from sklearn.decomposition import PCA  # noqa: PLC0415

    data = load_digits()
    seen, answers, held = halves(data.data, data.target)
    model = PCA(16, random_state=SEED).fit(seen)
    names = np.array([f"digit {answer}, number {number}" for number, answer in enumerate(answers)])
    return model, model.transform(seen).astype(np.float32), names, held[:50]


def search(folder: Path) -> None:
    """Write search.onnx, the catalogue search.npz and digits that are not in it."""
    model, known, names, held = fitted_search()
    save(folder, "search", converted(model, held.shape[1]))
    np.savez(folder / "models/search.npz", vectors=known, names=names)
    write_table(inbox(folder, "search") / "digits.csv", [f"p{number:02}" for number in range(held.shape[1])], held)


STAINS = ("ground", "nuclei", "stain")
"""What the pixels of stained tissue show."""


def patches(picture: Array) -> Array:
    """Return for each pixel of a picture uint8 [h, w, 3] the nine around it from 0 to 1, [h * w, 27], black outside."""
    padded = np.pad(picture.astype(np.float32) / 255, ((1, 1), (1, 1), (0, 0)))
    around = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(0, 1))
    return np.asarray(around.reshape(-1, 27))


def fitted_stain() -> tuple[Any, Array]:
    """Return a classifier of the pixels of tissue by the nine around each, and the half of a picture it did not see."""
    from skimage.color import rgb2hed  # noqa: PLC0415
    from skimage.data import immunohistochemistry  # noqa: PLC0415
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415

    picture = immunohistochemistry()
    seen, held = picture[:, :256], picture[:, 256:]
    blue, _, brown = np.moveaxis(rgb2hed(seen), 2, 0)
    answers = np.where(brown > 0.06, 2, np.where(blue > 0.05, 1, 0)).ravel()
    return LogisticRegression(max_iter=500).fit(patches(seen)[::7], answers[::7]), held


def stain(folder: Path) -> None:
    """Write stain.onnx, a convolution with the classifier's weights, and a picture."""
    model, held = fitted_stain()
    kinds = onnx.TensorProto.FLOAT
    weights = model.coef_.reshape(len(STAINS), 3, 3, 3).astype(np.float32)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Conv", ["image", "weights", "bias"], ["out"], pads=[1, 1, 1, 1])],
        "stain",
        [onnx.helper.make_tensor_value_info("image", kinds, ["n", 3, "height", "width"])],
        [onnx.helper.make_tensor_value_info("out", kinds, ["n", len(STAINS), "height", "width"])],
        [
            onnx.numpy_helper.from_array(weights, "weights"),
            onnx.numpy_helper.from_array(model.intercept_.astype(np.float32), "bias"),
        ],
    )
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.helper.set_model_props(made, {"classes": repr(list(STAINS))})
    save(folder, "stain", made)
    Image.fromarray(held).save(inbox(folder, "stain") / "tissue.png")


TAGS = ("O", "B-PART", "I-PART", "B-MACHINE", "I-MACHINE")
AROUND = 5
"""How many words a tag is chosen by: the word itself and two on each side."""

_PARTS = ("bearing", "seal", "belt", "filter", "drive shaft", "coupling", "oil filter", "fan belt", "pressure valve")
_MACHINES = ("pump", "press", "mixer", "feed pump", "conveyor", "cooling fan", "boiler")
_NOTES = (
    "Replaced the {part} of {machine} {number}.",
    "{machine} {number} makes noise, {part} is worn",
    "The {part} at {machine} {number} leaks again!",
    "Checked {machine} {number}: {part} and {second} are fine.",
    "Ordered a new {part} and a {second}",
    "Nothing found. {machine} {number} runs again.",
)


def tagged_notes(number: int) -> list[tuple[str, list[str]]]:
    """Return notes with a tag for each of their words and signs."""
    random = np.random.default_rng(number)
    return [_tagged_note(random) for _ in range(300)]


def _tagged_note(random: np.random.Generator) -> tuple[str, list[str]]:
    note = str(random.choice(_NOTES))
    named = {
        "part": (str(random.choice(_PARTS)), "PART"),
        "second": (str(random.choice(_PARTS)), "PART"),
        "machine": (str(random.choice(_MACHINES)), "MACHINE"),
        "number": (str(random.integers(1, 40)), ""),
    }
    words: list[str] = []
    tags: list[str] = []
    for piece in re.findall(r"\{\w+\}|\w+|[^\w\s]", note):
        text, tag = named.get(piece.strip("{}"), (piece, "")) if piece.startswith("{") else (piece, "")
        parts = text.split()
        words += parts
        first = "I-" if piece == "{number}" and tags and tags[-1].endswith("MACHINE") else "B-"
        tag = "MACHINE" if first == "I-" else tag
        tags += [f"{first if place == 0 else 'I-'}{tag}" if tag else "O" for place in range(len(parts))]
    return " ".join(words), tags


def fitted_parts() -> tuple[Any, Any, list[str]]:
    """Return a tokenizer of words, a classifier of their tags by the words around, and notes that it did not see."""
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415
    from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: PLC0415

    seen = tagged_notes(1)
    words = sorted({word for note, _ in seen for word in note.split()})
    known = models.WordLevel({word: number for number, word in enumerate(["[UNK]", *words])}, unk_token="[UNK]")  # noqa: S106  of a tokenizer
    tokenizer = Tokenizer(known)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    size = tokenizer.get_vocab_size()
    rows = np.concatenate([around(tokenizer.encode(note).ids, size) for note, _ in seen])
    tags = [TAGS.index(tag) for _, tags in seen for tag in tags]
    return tokenizer, LogisticRegression(max_iter=300).fit(rows, tags), [note for note, _ in tagged_notes(2)[:20]]


def around(ids: list[int], size: int) -> Array:
    """Return for each word which words stand around it, [words, 5 * size]: a one for each, zeros outside."""
    ones = np.pad(np.eye(size, dtype=np.float32)[ids], ((AROUND // 2, AROUND // 2), (0, 0)))
    return np.stack([ones[place : place + AROUND].ravel() for place in range(len(ids))])


def parts(folder: Path) -> None:
    """Write parts/parts.onnx with its tokenizer.json, config.json and tags, and notes."""
    tokenizer, model, held = fitted_parts()
    made = folder / "models/parts"
    made.mkdir(parents=True, exist_ok=True)
    size, helper = tokenizer.get_vocab_size(), onnx.helper
    weights = model.coef_.reshape(len(TAGS), AROUND, size).transpose(0, 2, 1).astype(np.float32)
    constants = {
        "size": np.array([size], np.int64),
        "values": np.array([0, 1], np.float32),
        "weights": weights,
        "bias": model.intercept_.astype(np.float32),
    }
    graph = helper.make_graph(
        [
            helper.make_node("OneHot", ["input_ids", "size", "values"], ["ones"], axis=1),
            helper.make_node("Conv", ["ones", "weights", "bias"], ["scores"], pads=[AROUND // 2, AROUND // 2]),
            helper.make_node("Transpose", ["scores"], ["logits"], perm=[0, 2, 1]),
        ],
        "parts",
        [helper.make_tensor_value_info("input_ids", onnx.TensorProto.INT64, ["batch", "words"])],
        [helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["batch", "words", len(TAGS)])],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), made / "parts.onnx")
    tokenizer.save(str(made / "tokenizer.json"))
    config = {"architectures": ["WordsForTokenClassification"], "id2label": dict(enumerate(TAGS))}
    (made / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (made / "tags.txt").write_text("\n".join(TAGS) + "\n", encoding="utf-8")
    (inbox(folder, "parts") / "notes.txt").write_text("\n".join(held) + "\n", encoding="utf-8")
