"""Pictures of every mode and format: each value as its file has it, or a failed row; and transparency on a ground."""

import io
import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli
from onnx import TensorProto, helper
from PIL import Image, ImageCms
from support.models import save_model

from ortdeploy.results.rows import Block
from ortdeploy.sources.image import open_source
from ortdeploy.sources.protocol import TRANSPARENT, Wanted
from ortdeploy.tensors.types import ROWS, TensorType
from ortdeploy.transforms.catalogue import PREPARE

RANDOM = np.random.default_rng(11)


def read(path: Path, keys: Sequence[str] = (), **settings: Any) -> Block:
    wanted = Wanted(dtypes={"pixels": "uint8"}, keys=tuple(keys), settings=settings)
    with open_source([str(path)], str(path.parent), wanted) as source:
        return next(source.blocks(0, iter([1])))


def pixels(path: Path, **settings: Any) -> np.ndarray:
    block = read(path, **settings)
    assert not block.failed, block.failed
    return np.asarray(block.columns["pixels"][0])


def tiff(path: Path, values: np.ndarray, sample_format: int, photometric: int = 1, extra: Sequence[int] = ()) -> Path:
    """Write a TIFF of one strip, values [height, width] or [height, width, bands]."""
    height, width, *bands = values.shape
    samples, bits = bands[0] if bands else 1, values.dtype.itemsize * 8
    tags: list[tuple[int, list[int]]] = [
        (256, [width]), (257, [height]), (258, [bits] * samples), (259, [1]), (262, [photometric]), (273, [0]),
        (277, [samples]), (278, [height]), (279, [values.nbytes]), (339, [sample_format] * samples),
    ]  # fmt: skip
    tags += [(338, list(extra))] if extra else []
    tags.sort()
    more_at = 8 + 2 + 12 * len(tags) + 4
    more = b""
    entries = b""
    for tag, numbers in tags:
        packed = struct.pack(f"<{len(numbers)}H", *numbers) if tag not in {273, 279} else struct.pack("<I", numbers[0])
        kind = 4 if tag in {273, 279} else 3
        place = packed.ljust(4, b"\0") if len(packed) <= 4 else struct.pack("<I", more_at + len(more))
        more += packed if len(packed) > 4 else b""
        entries += struct.pack("<HHI", tag, kind, len(numbers)) + place
    at = more_at + len(more)
    entries = entries.replace(struct.pack("<HHI", 273, 4, 1) + bytes(4), struct.pack("<HHII", 273, 4, 1, at))
    head = b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4)
    path.write_bytes(head + more + values.astype(values.dtype.newbyteorder("<")).tobytes())
    return path


def png(path: Path, values: np.ndarray, color: int, *, more: Sequence[tuple[bytes, bytes]] = ()) -> Path:
    """Write a PNG of 8 or 16 bits, values [height, width, …], with more chunks before the pixels."""
    height, width = values.shape[:2]
    lines = values.astype(values.dtype.newbyteorder(">")).reshape(height, -1)
    data = b"".join(b"\0" + line.tobytes() for line in lines)
    head = struct.pack(">IIBBBBB", width, height, 8 * values.dtype.itemsize, color, 0, 0, 0)

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    chunks = [(b"IHDR", head), *more, (b"IDAT", zlib.compress(data)), (b"IEND", b"")]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*one) for one in chunks))
    return path


GREY: dict[str, tuple[np.ndarray, int]] = {
    "uint8": (np.array([[0, 7, 255]], np.uint8), 1),
    "int8": (np.array([[-128, -5, 127]], np.int8), 2),
    "uint16": (np.array([[0, 65535, 300]], np.uint16), 1),
    "int16": (np.array([[-32768, -5, 32767]], np.int16), 2),
    "uint32": (np.array([[0, 70000, 2**32 - 1]], np.uint32), 1),
    "int32": (np.array([[-(2**31), 70000, -1]], np.int32), 2),
    "float32": (np.array([[-0.5, 1e30, 0.25]], np.float32), 3),
}


@pytest.mark.parametrize("dtype", GREY)
@pytest.mark.parametrize("exif", [True, False])
def test_grey_keeps_its_element_type(tmp_path: Path, dtype: str, exif: bool) -> None:
    values, sample_format = GREY[dtype]
    have = pixels(tiff(tmp_path / "a.tif", values, sample_format), exif=exif)
    assert have.dtype == dtype
    assert have[..., 0].tolist() == values.tolist()


def test_grey_of_a_png_of_16_bits(tmp_path: Path) -> None:
    values = np.array([[0, 300], [65535, 1]], np.uint16)
    have = pixels(png(tmp_path / "a.png", values, 0))
    assert have.dtype == np.uint16
    assert have[..., 0].tolist() == values.tolist()


@pytest.mark.parametrize("dtype", ["uint16", "float32"])
def test_grey_of_many_bits_whose_zero_is_white_fails_by_name(tmp_path: Path, dtype: str) -> None:
    """Pillow turns 8 bits round, and leaves others as they are: the same picture would be its negative."""
    values, sample_format = GREY[dtype]
    (row,) = read(tiff(tmp_path / "a.tif", values, sample_format, photometric=0)).failed
    assert row.code == "white-is-zero"
    assert "its 0 is white" in row.message
    have = pixels(tiff(tmp_path / "b.tif", GREY["uint8"][0], 1, photometric=0))
    assert have[..., 0].tolist() == [[255, 248, 0]]


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_the_transparent_sample_of_a_grey_png_is_found_at_any_depth(tmp_path: Path, bits: int) -> None:
    most = 2**bits - 1
    samples = sorted({0, 1, most // 2, most})
    line = sum(sample << (bits * place) for place, sample in enumerate(reversed(samples)))
    line <<= -bits * len(samples) % 8
    row = line.to_bytes(-(-bits * len(samples) // 8))
    for clear in samples:
        path = png(tmp_path / "a.png", np.frombuffer(row, np.uint8)[None], 0, more=[(b"tRNS", clear.to_bytes(2))])
        content = bytearray(path.read_bytes())
        content[16:26] = struct.pack(">IIBB", len(samples), 1, bits, 0)
        content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
        path.write_bytes(content)
        grey = [sample * 255 // most for sample in samples]
        assert pixels(path)[0, :, 0].tolist() == grey
        for ground, value in (("white", 255), ("black", 0)):
            laid = [value if sample == clear else shade for sample, shade in zip(samples, grey, strict=True)]
            assert pixels(path, background=ground)[0, :, 0].tolist() == laid
        assert read(path, keys=(TRANSPARENT,)).columns[TRANSPARENT] == [True]


def test_what_would_lose_low_bytes_or_bands_fails_by_name(tmp_path: Path) -> None:
    words = RANDOM.integers(0, 2**16, (2, 3, 4)).astype(np.uint16)
    for color, bands in ((2, 3), (6, 4), (4, 2)):
        (row,) = read(png(tmp_path / "a.png", words[..., :bands], color)).failed
        assert row.code == "lost-bits"
        assert row.message.startswith("it has colours of 16 bits, and 8 can be read; write")
    (row,) = read(tiff(tmp_path / "a.tif", words[..., :3], 1, photometric=2)).failed
    assert row.code == "lost-bits"
    levels = words.astype(np.uint8)
    for extra, bands in (((0,), 4), ((0,), 2)):
        (row,) = read(tiff(tmp_path / "a.tif", levels[..., :bands], 1, 2 if bands == 4 else 1, extra)).failed
        assert row.code == "lost-bands"
        assert row.message.startswith(f"it has {bands} bands, and {bands - 1} can be read")
    (tmp_path / "a.ppm").write_bytes(b"P6 1 1 65535\n" + bytes(6))
    assert read(tmp_path / "a.ppm").failed[0].code == "lost-bits"


def transparent(mode: str) -> tuple[Image.Image, dict[str, Any]]:
    """Return a picture of a mode with transparency, and what to save it with."""
    size, save = (7, 5), dict[str, Any]()
    alpha = Image.fromarray(RANDOM.integers(0, 256, (5, 7), dtype=np.uint8))
    colours = Image.fromarray(RANDOM.integers(0, 256, (5, 7, 3), dtype=np.uint8))
    if mode in {"RGBA", "LA"}:
        image = colours.convert(mode)
        image.putalpha(alpha)
        return image, save
    image = colours.quantize(8) if mode in {"P", "P1"} else colours.convert(mode)
    first = image.getpixel((0, 0))
    save = {"transparency": bytes(range(0, 256, 32))} if mode == "P" else {"transparency": first}
    assert image.size == size
    return image, save


def laid(rgba: np.ndarray, ground: int) -> np.ndarray:
    alpha = rgba[..., 3:].astype(np.float64) / 255
    return np.asarray(rgba[..., :3] * alpha + ground * (1 - alpha))


FORMATS = {
    "LA": ["png"],
    "RGBA": ["png", "webp", "tif"],
    "P": ["png"],
    "P1": ["gif", "png"],
    "L": ["png"],
    "RGB": ["png"],
    "1": ["png"],
}


@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
@pytest.mark.parametrize(("mode", "suffix"), [(mode, suffix) for mode in FORMATS for suffix in FORMATS[mode]])
def test_transparency_is_laid_on_a_ground(tmp_path: Path, mode: str, suffix: str) -> None:
    image, save = transparent(mode)
    lossless: dict[str, Any] = {"lossless": True, "exact": True} if suffix == "webp" else {}
    path = tmp_path / f"a.{suffix}"
    image.save(path, **save, **lossless)
    with Image.open(path) as stored:
        stored.load()
        rgba = np.asarray(stored.convert("RGBA"))
        today = np.asarray(stored if mode == "L" else stored.convert("RGB")).reshape(5, 7, -1)
    assert (rgba[..., 3] < 255).any()
    for name, ground in (("white", 255), ("black", 0)):
        have = pixels(path, background=name).astype(float)
        assert have.shape[2] == (1 if mode == "L" else 3)
        assert np.abs(have - laid(rgba, ground)).max() <= 1
        clear, opaque = rgba[..., 3] == 0, rgba[..., 3] == 255
        assert (have[clear] == ground).all()
        assert (have[opaque] == rgba[opaque][:, :3]).all()
    for none in (None, "none"):
        assert (pixels(path, background=none) == today).all()


def test_grey_of_16_bits_with_a_transparent_value(tmp_path: Path) -> None:
    path = png(tmp_path / "a.png", np.array([[300, 7]], np.uint16), 0, more=[(b"tRNS", struct.pack(">H", 300))])
    assert pixels(path, background="white").ravel().tolist() == [65535, 7]
    assert pixels(path, background="black").ravel().tolist() == [0, 7]
    assert pixels(path).ravel().tolist() == [300, 7]


def test_of_an_animation_the_first_frame_is_laid(tmp_path: Path) -> None:
    frames = [Image.new("RGBA", (2, 1), colour) for colour in ((9, 9, 9, 0), (1, 2, 3, 255))]
    for suffix in ("png", "gif", "webp"):
        frames[0].save(tmp_path / f"a.{suffix}", save_all=True, append_images=frames[1:])
        assert (pixels(tmp_path / f"a.{suffix}", background="white") == 255).all()


def deploy(folder: Path, more: str = "") -> Path:
    sizes: list[int | str | None] = ["batch", "h", "w", 3]
    node = helper.make_node("Identity", ["x"], ["y"])
    save_model(folder / "m.onnx", [node], {"x": (TensorProto.UINT8, sizes)}, {"y": (TensorProto.UINT8, sizes)})
    (folder / "m.yaml").write_text(
        "version: 1\nmodels: {m: {path: m.onnx}}\njobs:\n  run:\n    model: m\n    batch: {size: 1}\n"
        f"    input: {{path: '*.png', columns: {{x: pixels}}{more}}}\n    output: {{path: out}}\n"
    )
    return folder / "m.yaml"


def test_the_plan_warns_of_transparency_that_is_in_use(cli: Cli, tmp_path: Path) -> None:
    def flagged(more: str = "") -> bool:
        said = cli("plan", deploy(tmp_path, more), "--format", "json")
        assert said.code == 0, said.out
        return "dropped-transparency" in {one["rule"] for one in said.json["diagnostics"]}

    Image.new("RGBA", (2, 2), (1, 2, 3, 255)).save(tmp_path / "a.png")
    assert not flagged()  # nothing lies behind what is opaque
    Image.new("RGBA", (2, 2), (0, 0, 0, 254)).save(tmp_path / "b.png")
    assert flagged()
    assert "Row 1 of the first 2 rows is transparent in places, and the colours" in cli("plan", deploy(tmp_path)).words
    Image.new("RGBA", (2, 2), (0, 0, 0, 254)).save(tmp_path / "c.png")
    assert "2 of the first 3 rows are transparent in places, row 1 the first" in cli("plan", deploy(tmp_path)).words
    for ground in ("white", "black", "none"):
        assert not flagged(f", background: {ground}")


def test_another_ground_is_another_deployment_and_none_is_not(cli: Cli, tmp_path: Path) -> None:
    Image.new("RGBA", (1, 1), (0, 0, 0, 0)).save(tmp_path / "a.png")
    assert cli("apply", deploy(tmp_path), "-q").code == 0
    assert "[[[0, 0, 0]]]" in next((tmp_path / "out").glob("part-*.jsonl")).read_text()
    assert cli("apply", deploy(tmp_path, ", background: none"), "-q").code == 0
    assert cli("apply", deploy(tmp_path, ", background: white"), "-q").code == 1
    assert cli("apply", deploy(tmp_path, ", background: white"), "-q", "--new-run").code == 0
    assert "[[[255, 255, 255]]]" in next((tmp_path / "out").glob("part-*.jsonl")).read_text()


def test_a_ground_is_for_pictures(cli: Cli, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((1, 2, 2, 3), np.uint8))
    path = deploy(tmp_path, ", background: white")
    path.write_text(path.read_text().replace("*.png", "a.npy").replace("x: pixels", "x: array"))
    said = cli("validate", path)
    said = cli("plan", path)
    assert said.code == 1
    assert "background: is for pictures" in said.out + said.err


COUNT = int(os.environ.get("ORTDEPLOY_PICTURES", "40"))
SEED = int(os.environ.get("ORTDEPLOY_FUZZ_SEED", "7"))
SUFFIXES = {
    "1": ["png", "tif", "bmp"], "L": ["png", "jpg", "tif", "bmp", "webp"], "LA": ["png", "tif"],
    "P": ["png", "gif", "bmp"], "RGB": ["png", "jpg", "tif", "bmp", "webp"], "RGBA": ["png", "tif", "webp"],
    "CMYK": ["jpg", "tif"], "I;16": ["png", "tif"], "F": ["tif"], "I": ["tif"],
}  # fmt: skip
TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}


def random_picture(random: np.random.Generator, path: Path, mode: str) -> int:
    """Write a picture, and return its EXIF orientation; 1 if it has none."""
    height, width = (int(one) for one in random.integers(1, 41, 2))
    if mode in {"I;16", "F", "I"}:
        dtype = {"I;16": np.uint16, "F": np.float32, "I": np.int32}[mode]
        values = random.normal(size=(height, width)) * 1e4 + 2e4
        image = Image.fromarray(values.clip(0, 65535).astype(dtype))
    else:
        image = Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8))
        image = image.quantize(16) if mode == "P" else image.convert(mode)
        if mode in {"LA", "RGBA"}:
            image.putalpha(Image.fromarray(random.integers(0, 256, (height, width), dtype=np.uint8)))
    save: dict[str, Any] = {}
    if path.suffix in {".png", ".gif"} and mode in {"P", "L", "RGB"} and random.integers(2):
        save["transparency"] = image.getpixel((0, 0))
    if path.suffix in {".png", ".jpg", ".tif", ".webp"} and mode in {"L", "RGB"} and random.integers(2):
        save["icc_profile"] = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    turn = 1
    if path.suffix in {".png", ".jpg", ".tif", ".webp"} and random.integers(2):
        turn = int(random.integers(1, 9))
        exif = Image.Exif()
        exif[0x0112] = turn
        save["exif"] = exif
    image.save(path, **save)
    return turn


def model_of(path: Path, turn: int, background: str | None) -> np.ndarray:
    """Return the pixels, float64 [height, width, channels], by Pillow and by formulas."""
    with Image.open(io.BytesIO(path.read_bytes())) as opened:  # of files that it maps, Pillow turns some not at all
        form = opened.format
        opened.load()
        image = opened if turn == 1 or form == "TIFF" else opened.transpose(Image.Transpose[TURNS[turn]])
        ground = {"white": 255, "black": 0}.get(str(background))
        if image.mode in {"I;16", "F", "I"}:
            return np.asarray(image).astype(np.float64)[..., None]
        if ground is None or not opened.has_transparency_data:
            return (
                np.asarray(image if image.mode == "L" else image.convert("RGB"))
                .astype(float)
                .reshape(image.height, image.width, -1)
            )
        made = laid(np.asarray(image.convert("RGBA")), ground)
        return made[..., :1] if image.mode == "L" else made


def luma(x: np.ndarray) -> np.ndarray:
    return x if x.shape[-1] == 1 else (x @ np.array([0.299, 0.587, 0.114]))[..., None]


def by_pillow(x: np.ndarray, height: int, width: int) -> np.ndarray:
    planes = [Image.fromarray(x[..., one].astype(np.float32)) for one in range(x.shape[2])]
    return np.stack([np.asarray(one.resize((width, height), Image.Resampling.BILINEAR)) for one in planes], 2).astype(
        float
    )


def padded(x: np.ndarray, height: int, width: int, value: float) -> np.ndarray:
    missing = [max(side - have, 0) for side, have in zip((height, width), x.shape, strict=False)]
    return np.pad(x, [*((one // 2, one - one // 2) for one in missing), (0, 0)], constant_values=value)


def middle(x: np.ndarray, height: int, width: int, like: str) -> np.ndarray:
    rests = [(have - side) for side, have in zip((height, width), x.shape, strict=False)]
    top, left = (round(rest / 2) if like == "torchvision" else rest // 2 for rest in rests)
    return x[top : top + height, left : left + width]


def chain(random: np.random.Generator, x: np.ndarray) -> list[tuple[dict[str, Any], Any]]:
    """Return random steps, each with its model on float64 [height, width, channels]."""
    height, width = (int(one) for one in random.integers(1, 50, 2))
    like = str(random.choice(["transformers", "torchvision"]))
    small = [int(random.integers(1, side + 1)) for side in x.shape[:2]]
    steps: list[tuple[dict[str, Any], Any]] = [
        ({"center_crop": small, "like": like}, lambda x: middle(x, small[0], small[1], like)),
        ({"resize": [height, width]}, lambda x: by_pillow(x, height, width)),
        ({"pad": [height, width], "value": 3}, lambda x: padded(x, height, width, 3)),
        ({"grayscale": True}, luma),
        ({"rgb": True}, lambda x: x.repeat(3, 2) if x.shape[2] == 1 else x),
        ({"bgr": True}, lambda x: (x.repeat(3, 2) if x.shape[2] == 1 else x)[..., ::-1]),
        ({"scale": 1 / 255}, lambda x: x / 255),
        ({"normalize": {"mean": 0.5, "std": 0.25}}, lambda x: (x - 0.5) / 0.25),
    ]
    chosen = sorted(random.choice(len(steps), int(random.integers(1, 6)), replace=False).tolist())
    return [
        ({"cast": "float32"}, lambda x: x),
        *(steps[one] for one in chosen),
        ({"layout": "NCHW"}, lambda x: x.transpose(2, 0, 1)),
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_many_pictures_through_chains_of_steps(tmp_path: Path) -> None:
    random = np.random.default_rng(SEED)
    modes = list(SUFFIXES)
    for number in range(COUNT):
        mode = modes[number % len(modes)]
        path = tmp_path / f"{number}.{random.choice(SUFFIXES[mode])}"
        turn = random_picture(random, path, mode)
        background = [None, "white", "black", "none"][int(random.integers(4))]
        have, want = pixels(path, background=background), model_of(path, turn, background)
        assert have.shape == want.shape, path
        is_laid = background in {"white", "black"} and have.dtype == np.uint8
        assert np.abs(have.astype(float) - want).max() <= (1 if is_laid else 0), path
        want = have.astype(np.float64)
        batch = have[None]
        layout, said = "NHWC", []
        for options, model in chain(random, want):
            name = next(iter(options))
            tensor = TensorType(str(batch.dtype), (ROWS, *batch.shape[1:]), layout)
            (batch,) = PREPARE[name].build(options, tensor)(batch)
            want = model(want)
            said.append(options)
        assert batch.shape[1:] == want.shape, (path, said)
        size = np.abs(want).max(initial=1) + have.astype(np.float64).max(initial=0)
        assert np.abs(batch[0] - want).max(initial=0) <= 1e-4 * max(size, 1), (path, said)
