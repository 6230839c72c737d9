"""Deployments of the gallery in a folder of their own, with the models that packages ship."""

import csv
import shutil
import wave
from pathlib import Path
from typing import Any

import fetch
import numpy as np
import numpy.typing as npt
import pytest
from conftest import REPOSITORY, Cli, read_rows
from installed import MissingPackageError
from PIL import Image, ImageDraw, ImageFont
from pyarrow import parquet

GALLERY = REPOSITORY / "deployments/gallery"
Rows = list[dict[str, Any]]


def deployed(name: str, folder: Path) -> tuple[Path, Path]:
    """Return a manifest in a folder with its models, and the folder for its rows; skip where a package is missing."""
    try:
        fetch.fetch(name, folder)
    except MissingPackageError as problem:
        pytest.skip(str(problem))
    inbox = folder / "inbox" / name
    inbox.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(GALLERY / f"{name}.yaml", folder)), inbox


def applied(cli: Cli, manifest: Path) -> Rows:
    """Apply a manifest as it stands and return the rows that it leaves."""
    done = cli("apply", manifest, "-q")
    assert done.code == 0, done.out + done.err
    folder = manifest.parent / "outbox" / manifest.stem
    return read_rows(folder) + _tables(folder) + _texts(folder)


def _tables(folder: Path) -> Rows:
    return [row for path in sorted(folder.glob("part-*.parquet")) for row in parquet.read_table(path).to_pylist()]


def _texts(folder: Path) -> Rows:
    parts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("part-*.csv"))]
    return [row for part in parts for row in csv.DictReader(part.splitlines())]


def of_file(rows: Rows, name: str) -> Rows:
    """Return the rows of one file."""
    return [row for row in rows if Path(row["path"]).name == name]


def vectors(rows: Rows, column: str) -> npt.NDArray[np.float64]:
    """Return a column of a CSV part that holds vectors, [rows, values]."""
    names = [name for name in rows[0] if name.startswith(f"{column}.")]
    return np.array([[float(row[name]) for name in names] for row in rows])


LINES = ("Invoice number 4711-0815", "Hello, cool little balloon!", "Total: 1,234.56 EUR", "a line of text", "Exit 24")


def picture_of(line: str, size: int, *, upright: bool = True) -> Image.Image:
    """Return a picture of a line of text, as a camera cuts it out."""
    font = ImageFont.load_default(size)
    left, top, right, lower = (int(edge) for edge in font.getbbox(line))
    made = Image.new("RGB", (right - left + 12, lower - top + 10), (245, 240, 230))
    ImageDraw.Draw(made).text((6 - left, 5 - top), line, fill=(20, 20, 60), font=font)
    return made if upright else made.rotate(180)


def write_recording(path: Path, rate: int, samples: int, number: int) -> npt.NDArray[np.float32]:
    """Write a voice-like hum that comes and goes, over noise, and return it [samples] as its reader does."""
    time = np.arange(samples) / rate
    hum = sum(np.sin(2 * np.pi * (110 + 9 * number) * tone * time) / tone for tone in range(1, 9))
    noise = np.random.default_rng(number).standard_normal(samples)
    sound = 0.2 * hum * np.clip(np.sin(2 * np.pi * 1.5 * time + number), 0, 1) + 0.01 * noise
    whole = np.asarray(np.clip(sound, -1, 1) * 32767).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes(whole.tobytes())
    return np.asarray(whole / 32768, np.float32)
