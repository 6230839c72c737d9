"""Videos, a frame a row: held against a plain loop of PyAV, from any row on, and damaged in any place."""

import shutil
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import REPOSITORY, Cli, read_rows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from support.clips import CODECS, Codec, av, clip, picture, plain
from support.effort import effort
from support.models import save_model

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.process.memory_limit import MemoryWatch
from ortdeploy.sources import video_decoder
from ortdeploy.sources.catalogue import open_input
from ortdeploy.sources.protocol import Wanted
from ortdeploy.sources.video_frames import check_video, index_of


class Read:
    """What was read of clips: frames by number, their times, and rows that failed."""

    def __init__(self, *paths: Path, start: int = 0, only: Any = None, limit: int | None = None, **chosen: Any) -> None:
        self.frames: list[int] = []
        self.times: list[float] = []
        self.pixels: list[np.ndarray] = []
        self.failed: list[Any] = []
        wanted = Wanted(
            dtypes={"pixels": "uint8"}, keys=("frame", "time"), settings=chosen, only=only, memory_limit=limit
        )
        files = [str(path) for path in paths]
        with open_input("video", files, str(paths[0].parent), wanted) as source:
            for block in source.blocks(start, iter(lambda: 3, 0)):
                self.frames += [int(one) for one in block.columns["frame"]]
                self.times += [float(one) for one in block.columns["time"]]
                self.pixels += list(block.columns["pixels"])
                self.failed += block.failed

    def same(self, expected: list[np.ndarray]) -> bool:
        return all(np.array_equal(one, expected[at]) for at, one in zip(self.frames, self.pixels, strict=True))


@pytest.mark.quick("mpeg4", "h264-mkv", "no-times", "mjpeg", "vp8")
@pytest.mark.parametrize("name", CODECS)
def test_frames_are_those_of_a_plain_loop_from_any_row_on(tmp_path: Path, name: str) -> None:
    path = clip(tmp_path / f"a{CODECS[name].suffix}", CODECS[name])
    pixels, times = plain(path)
    whole = Read(path)
    assert whole.frames == list(range(len(pixels))) == list(range(40))
    assert whole.same(pixels)
    assert not whole.failed
    if name not in {"no-times", "h264-avi"}:  # these do not say when a frame is shown, and FFmpeg guesses or is silent
        assert whole.times == times
    for start in (1, 11, 12, 13, 38):
        later = Read(path, start=start)
        assert later.frames == list(range(start, 40))
        assert later.same(pixels)
    some = Read(path, start=2, only=(2, 3, 17, 39))
    assert some.frames == [2, 3, 17, 39]
    assert some.same(pixels)


@pytest.mark.parametrize(
    ("chosen", "frames"),
    [
        ({"every": "200ms"}, [0, 5, 10, 15, 20, 25, 30, 35]),
        ({"every": 0.2}, [0, 5, 10, 15, 20, 25, 30, 35]),
        ({"fps": 5}, [0, 5, 10, 15, 20, 25, 30, 35]),
        ({"every": "500ms"}, [0, 13, 25, 38]),
        ({"fps": 12.5}, list(range(0, 40, 2))),
        ({"fps": 1000}, list(range(40))),
        ({"every": "1h"}, [0]),
    ],
)
def test_the_first_frame_of_each_interval_is_a_row(tmp_path: Path, chosen: Any, frames: list[int]) -> None:
    path = clip(tmp_path / "a.mp4", CODECS["mpeg4"])
    assert Read(path, **chosen).frames == frames
    assert Read(path, **chosen).same(plain(path)[0])


def test_key_frames_are_rows_alone(tmp_path: Path) -> None:
    path = clip(tmp_path / "a.mkv", CODECS["ffv1"])
    found = Read(path, key_frames=True)
    assert found.frames == [0, 12, 24, 36]
    assert found.same(plain(path)[0])


def test_intervals_do_not_drift_where_frames_have_any_distance(tmp_path: Path) -> None:
    """In a clip of 29.97 frames a second, hours on; the model is exact: numbers of thirtieths as fractions."""
    times = [number * 1001 for number in range(30)] + [10**9 + number * 1001 for number in range(30)]
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=Fraction(30000, 1001))
        stream.height, stream.width = 48, 64
        stream.codec_context.time_base = Fraction(1, 30000)
        for number, time in enumerate(times):
            frame = av.VideoFrame.from_ndarray(picture(number), format="rgb24")
            frame.pts, frame.time_base = time, Fraction(1, 30000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    index = index_of(str(path))
    assert len(index.times) == 60
    seconds = [time * index.base for time in index.times]
    expected, last = [], None
    for number, second in enumerate(seconds):
        interval = (second - seconds[0]) // Fraction(1, 10)
        if interval != last:
            expected.append(number)
        last = interval
    assert Read(path, fps=10).frames == expected == Read(path, every="100ms").frames


def test_a_clip_is_turned_as_its_display_matrix_says(tmp_path: Path) -> None:
    for turned, quarters in ((90, 1), (-90, 3), (180, 2), (0, 0)):
        path = clip(tmp_path / f"{turned}.mp4", CODECS["h264"], 4, turned=turned)
        expected = [np.rot90(one, quarters) for one in plain(path)[0]]
        assert Read(path).same(expected), turned


def test_a_mirrored_frame_is_mirrored() -> None:
    shape = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)

    class Data:
        type = type("Type", (), {"name": "DISPLAYMATRIX"})

        def __init__(self, *numbers: int) -> None:
            self.numbers = np.array(numbers, np.int32)

        def __bytes__(self) -> bytes:
            return self.numbers.tobytes()

    def shown(*numbers: int) -> np.ndarray:
        frame = type("Frame", (), {"side_data": [Data(*numbers)]})
        return video_decoder.upright(shape, frame)

    one = 1 << 16
    assert np.array_equal(shown(-one, 0, 0, 0, one, 0, 0, 0, 1 << 30), shape[:, ::-1])
    assert np.array_equal(shown(one, 0, 0, 0, -one, 0, 0, 0, 1 << 30), shape[::-1])
    assert np.array_equal(shown(0, one, 0, one, 0, 0, 0, 0, 1 << 30), shape.transpose(1, 0, 2))
    assert np.array_equal(shown(0, one, 0, -one, 0, 0, 0, 0, 1 << 30), np.rot90(shape, -1))


def test_grey_frames_have_one_channel_and_keep_their_bits(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    deep = [rng.integers(0, 65536, (48, 64), dtype=np.uint16) for _ in range(3)]
    path = clip(tmp_path / "a.mkv", Codec("ffv1", ".mkv", "gray16le"), pictures=deep, form="gray16le")
    wanted = Wanted(dtypes={"pixels": "uint16"})
    with open_input("video", [str(path)], str(tmp_path), wanted) as source:
        (block,) = source.blocks(0, [9])
    assert np.array_equal(block.columns["pixels"], np.stack(deep)[..., None])
    flat = [picture(number)[..., 0] for number in range(3)]
    path = clip(tmp_path / "b.mkv", Codec("ffv1", ".mkv", "gray"), pictures=flat, form="gray")
    assert Read(path).same([one[..., None] for one in flat])


def test_rows_of_several_files_follow_each_other(tmp_path: Path) -> None:
    one = clip(tmp_path / "a.mp4", CODECS["mpeg4"], 7)
    other = clip(tmp_path / "b.mp4", CODECS["mpeg4"], 5)
    assert Read(one, other, start=5).frames == [5, 6, 0, 1, 2, 3, 4]


def test_far_frames_are_looked_for_instead_of_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = clip(tmp_path / "a.mp4", CODECS["h264"], 120)
    pixels, _ = plain(path)
    monkeypatch.setattr(video_decoder, "_FAR", 16)
    fed = []
    real = video_decoder.decoded

    def counted(context: Any, packet: Any) -> Any:
        fed.append(packet)
        return real(context, packet)

    monkeypatch.setattr(video_decoder, "decoded", counted)
    found = Read(path, start=100)
    assert found.frames == list(range(100, 120))
    assert found.same(pixels)
    assert len(fed) < 40


def cut(path: Path, size: int) -> Path:
    path.write_bytes(path.read_bytes()[:size])
    return path


@pytest.mark.quick("h264", "vp9")
@pytest.mark.parametrize("name", ["h264", "h264-mkv", "vp9", "mjpeg"])
def test_a_clip_that_is_cut_off_ends_as_one_failed_row(tmp_path: Path, name: str) -> None:
    path = clip(tmp_path / f"a{CODECS[name].suffix}", CODECS[name], fast_start=name == "h264")
    pixels, _ = plain(path)
    cut(path, len(path.read_bytes()) * 2 // 3)
    found = Read(path)
    assert 0 < len(found.frames) < 40
    assert found.frames == list(range(len(found.frames)))
    assert found.same(pixels)
    (failed,) = found.failed
    assert failed.code == "not-video"
    assert failed.row == failed.file_row == len(found.frames)


def test_a_damaged_frame_fails_with_those_that_build_on_it_up_to_the_next_key_frame(tmp_path: Path) -> None:
    path = clip(tmp_path / "a.mp4", CODECS["h264"])
    pixels, _ = plain(path)
    with av.open(str(path)) as container:
        packets = [one for one in container.demux(video=0) if one.size]
    place = next(at for at, one in enumerate(packets) if at > 3 and not one.is_keyframe and one.size > 60)
    key = next(at for at, one in enumerate(packets) if at > place and one.is_keyframe)
    raw = bytearray(path.read_bytes())
    begin = packets[place].pos
    raw[begin + 8 : begin + packets[place].size] = bytes(packets[place].size - 8)
    path.write_bytes(raw)
    found = Read(path)
    assert found.same(pixels)
    assert set(range(key, 40)) <= set(found.frames)
    assert found.failed
    assert [one.row for one in found.failed] == sorted(set(range(40)) - set(found.frames))
    later = Read(path, start=key - 1)
    assert later.frames == [one for one in found.frames if one >= key - 1]


def check_starts(path: Path, found: Read) -> None:
    """Check that no frame depends on where reading began."""
    for start in (1, 9, 15):
        later = Read(path, start=start)
        places = [at for at, frame in enumerate(found.frames) if frame >= start]
        assert later.frames == [found.frames[at] for at in places]
        assert all(np.array_equal(one, found.pixels[at]) for one, at in zip(later.pixels, places, strict=True))


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=effort(12, 400),
    deadline=None,
)
@given(name=st.sampled_from(["mpeg4", "h264-mkv", "h264-ts", "mjpeg", "vp9"]), data=st.data())
def test_what_is_damaged_anywhere_is_told_in_words(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    folder = tmp_path_factory.getbasetemp() / "clips"
    folder.mkdir(exist_ok=True)
    whole = folder / f"{name}{CODECS[name].suffix}"
    if not whole.exists():
        clip(whole, CODECS[name], 20)
    raw = whole.read_bytes()
    begin = data.draw(st.integers(0, len(raw) - 1))
    gone = data.draw(st.sampled_from([0, 1, 4, 100, len(raw)]))
    path = folder / f"damaged{whole.suffix}"
    path.write_bytes(raw[:begin] + data.draw(st.binary(max_size=8)) + raw[begin + gone :])
    try:
        found = Read(path)
    except OrtdeployError as error:
        words = str(error)
    else:
        words = found.failed[0].message if found.failed else "nothing to tell"
        check_starts(path, found)
    assert words


def deploy(folder: Path, **keys: Any) -> Path:
    """A job that takes the mean of each frame, [batch, 3]."""
    save_model(
        folder / "m.onnx",
        [
            helper.make_node("Cast", ["image"], ["floating"], to=TensorProto.FLOAT),
            helper.make_node("ReduceMean", ["floating"], ["mean"], axes=[1, 2], keepdims=0),
        ],
        {"image": (TensorProto.UINT8, ["batch", "height", "width", 3])},
        {"mean": (TensorProto.FLOAT, ["batch", 3])},
    )
    said = "".join(f", {key}: {value}" for key, value in keys.items())
    (folder / "m.yaml").write_text(
        f"""\
version: 1
models: {{m: {{path: m.onnx}}}}
jobs:
  run:
    model: m
    input: {{path: "*.mp4", key: [path, frame, time]{said}}}
    batch: {{size: 4}}
    output: {{path: out, format: jsonl, rows_per_part: 8}}
    errors: {{max_failed: 50%}}
"""
    )
    return folder / "m.yaml"


def test_a_job_reads_clips_and_a_broken_one_is_a_failed_row(tmp_path: Path, cli: Cli) -> None:
    path = clip(tmp_path / "a.mp4", CODECS["mpeg4"], 30)
    (tmp_path / "b.mp4").write_bytes(b"nothing")
    done = cli("apply", deploy(tmp_path, every="200ms"))
    assert done.code == 0, done.words
    rows = read_rows(tmp_path / "out")
    assert [row["frame"] for row in rows] == [0, 5, 10, 15, 20, 25]
    assert [row["time"] for row in rows] == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    pixels, _ = plain(path)
    for row in rows:
        assert row["mean"] == pytest.approx(pixels[row["frame"]].mean((0, 1)).tolist(), rel=1e-5)
    assert "b.mp4" in (tmp_path / "out" / "_failed.jsonl").read_text()
    assert "nothing to do" in cli("apply", tmp_path / "m.yaml").words


def test_a_saved_plan_knows_the_rows_of_clips(tmp_path: Path, cli: Cli) -> None:
    clip(tmp_path / "a.mp4", CODECS["mpeg4"], 30)
    clip(tmp_path / "b.mp4", CODECS["mpeg4"], 11)
    assert cli("plan", deploy(tmp_path), "--out", tmp_path / "plan.json").code == 0
    for shard in ("1/2", "0/2"):
        assert cli("apply", tmp_path / "plan.json", "--shard", shard).code == 0
    assert cli("finish", tmp_path / "plan.json").code == 0
    rows = read_rows(tmp_path / "out")
    assert [(row["path"], row["frame"]) for row in rows] == [
        *(("a.mp4", frame) for frame in range(30)),
        *(("b.mp4", frame) for frame in range(11)),
    ]


def test_a_job_of_clips_that_is_interrupted_goes_on_with_the_same_rows(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(_: MemoryWatch) -> bool:
        raise OrtdeployError("enough")

    path = clip(tmp_path / "a.mp4", CODECS["h264"], 30)
    pixels, _ = plain(path)
    deploy(tmp_path)
    for _ in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(MemoryWatch, "is_near", end)
            assert "enough" in cli("apply", tmp_path / "m.yaml").words
    assert cli("apply", tmp_path / "m.yaml").code == 0
    rows = read_rows(tmp_path / "out")
    assert [row["frame"] for row in rows] == list(range(30))
    for row in rows:
        assert row["mean"] == pytest.approx(pixels[row["frame"]].mean((0, 1)).tolist(), rel=1e-5)


def test_the_example_follows_each_digit(tmp_path: Path, cli: Cli) -> None:
    for name in ("clips", "models", "video.yaml"):
        source = REPOSITORY / "deployments" / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    done = cli("apply", tmp_path / "video.yaml")
    assert done.code == 0, done.words
    rows = read_rows(tmp_path / "outbox/video")
    assert [row["frame"] for row in rows] == list(range(0, 60, 2))
    assert {tuple(row["ids"]) for row in rows} == {(1, 2, 3)}
    page = (tmp_path / "outbox/video/_run.html").read_text()
    assert page.count("data:image/") >= 4
    assert "<title>" in page


def test_init_writes_a_manifest_for_clips(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(REPOSITORY / "deployments/models/detector.onnx", tmp_path)
    clip(tmp_path / "a.mp4", CODECS["mpeg4"], 3)
    assert cli("init", "detector.onnx", "--from", "a.mp4", "-o", "m.yaml").code == 0
    assert "columns: {page: pixels}" in (tmp_path / "m.yaml").read_text()
    assert cli("apply", "m.yaml").code == 0


def test_sound_alone_is_no_video(tmp_path: Path, cli: Cli) -> None:
    with av.open(str(tmp_path / "a.mp4"), "w") as container:
        stream = container.add_stream("aac", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    assert "it holds no video" in cli("plan", deploy(tmp_path)).words


def test_a_clip_without_frames_is_a_failed_row(tmp_path: Path) -> None:
    with av.open(str(tmp_path / "a.avi"), "w") as container:
        stream = container.add_stream("mjpeg", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p"
        container.start_encoding()
    (failed,) = Read(tmp_path / "a.avi").failed
    assert "it holds no frames" in failed.message


@pytest.mark.parametrize(
    "text", ["ffconcat version 1.0\nfile secret.mkv\n", "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nsecret.mkv\n"]
)
def test_a_list_of_other_files_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """FFmpeg would read what such a file names."""
    monkeypatch.chdir(tmp_path)
    clip(tmp_path / "secret.mkv", CODECS["ffv1"], 3)
    (tmp_path / "a.mp4").write_text(text)
    with pytest.raises(OrtdeployError, match="cannot be read as video"):
        check_video(str(tmp_path / "a.mp4"))


def test_frames_larger_than_memory_fail_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = clip(tmp_path / "a.mkv", CODECS["ffv1"], 2, pictures=[np.zeros((1024, 1024, 3), np.uint8)] * 2)
    monkeypatch.setattr("ortdeploy.files.memory_budget.available_memory", lambda: 16 * 1024 * 1024)
    failed = Read(path).failed
    assert len(failed) == 2
    assert "a frame of 1,024 x 1,024 pixels takes 48 MiB of memory" in failed[0].message
    assert failed[0].code == "too-large"


def test_a_plan_knows_what_decoding_takes(tmp_path: Path, cli: Cli) -> None:
    """Of a frame of 3 MiB, decoding holds 15 more."""
    path = deploy(tmp_path)
    path.write_text(path.read_text().replace("size: 4", "size: 1") + "    limits: {memory: 1GiB}\n")
    taken = []
    for side in (64, 1024):
        clip(tmp_path / "a.mp4", CODECS["mpeg4"], 2, pictures=[np.zeros((side, side, 3), np.uint8)] * 2)
        *_, job = cli("plan", path, "--format", "json").json["steps"]
        parts = {one["what"]: one["size"] for one in job["limits"]["forecast"]["parts"]}
        taken.append(parts["rows and results"])
    assert taken[1] - taken[0] > 15 * 3 * 2**20


def test_a_package_that_is_missing_is_named(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ortdeploy.runtime.probe._EXTRAS", ())
    clip(tmp_path / "a.mp4", CODECS["mpeg4"], 2)
    said = cli("plan", deploy(tmp_path)).words
    assert 'reads video files, which needs PyAV. Install it: pip install "ortdeploy[video]"' in said
