"""Recordings with headers of every kind, of open length, and cut anywhere: all samples, or a failed row."""

import io
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from ortdeploy.results.rows import Block
from ortdeploy.sources.catalogue import open_input
from ortdeploy.sources.protocol import Wanted

GUID = bytes.fromhex("000000001000800000aa00389b71")
COUNT = int(os.environ.get("ORTDEPLOY_RECORDINGS", "60"))
SEED = int(os.environ.get("ORTDEPLOY_FUZZ_SEED", "5"))


def read(path: Path, form: str) -> Block:
    with open_input(form, [str(path)], str(path.parent), Wanted(dtypes={"samples": "float32", "rate": None})) as source:
        return next(iter(source.blocks(0, iter([1]))))


def samples(path: Path, form: str) -> np.ndarray:
    block = read(path, form)
    assert not block.failed, block.failed
    return np.asarray(block.columns["samples"][0])


def wav(content: bytes, *, head: bytes | None = None, size: int | None = None, riff: int | None = None) -> bytes:
    head = head or struct.pack("<HHIIHH", 1, 1, 16000, 32000, 2, 16)
    size = len(content) if size is None else size
    body = b"WAVEfmt " + struct.pack("<I", len(head)) + head + b"data" + struct.pack("<I", size) + content
    return b"RIFF" + struct.pack("<I", len(body) if riff is None else riff) + body


def extensible(bits: int, kind: int = 1) -> bytes:
    width = -(-bits // 8)
    return (
        struct.pack("<HHIIHHHHI", 0xFFFE, 1, 16000, 16000 * width, width, 8 * width, 22, bits, 4)
        + struct.pack("<H", kind)
        + GUID
    )


@pytest.mark.parametrize("form", ["wav", "audio"])
def test_the_extensible_header(tmp_path: Path, form: str) -> None:
    words = np.array([0, -32768, 32767, 5], "<i2")
    (tmp_path / "a.wav").write_bytes(wav(words.tobytes(), head=extensible(16)))
    assert samples(tmp_path / "a.wav", form).tolist() == (words / 32768).astype(np.float32).tolist()
    long = np.array([-(2**31), 256 * 5], "<i4")
    (tmp_path / "a.wav").write_bytes(wav(long.tobytes(), head=extensible(32)))
    assert samples(tmp_path / "a.wav", form).tolist() == (long / 2**31).tolist()


def test_floating_samples_with_an_extensible_header_are_for_the_format_audio(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav(np.zeros(4, "<f4").tobytes(), head=extensible(32, kind=3)))
    assert "say format: audio" in read(tmp_path / "a.wav", "wav").failed[0].message
    assert samples(tmp_path / "a.wav", "audio").tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("size", "riff"), [(0xFFFFFFFF, 0xFFFFFFFF), (0x7FFFF000, 0x7FFFF024), (0, 0), (0, 0xFFFFFFFF)]
)
def test_a_wav_of_open_length_is_read_to_its_end(tmp_path: Path, size: int, riff: int) -> None:
    words = np.arange(100, dtype="<i2")
    (tmp_path / "a.wav").write_bytes(wav(words.tobytes(), size=size, riff=riff))
    assert samples(tmp_path / "a.wav", "wav").tolist() == (words / 32768).tolist()
    if size:
        assert samples(tmp_path / "a.wav", "audio").tolist() == (words / 32768).tolist()


@pytest.mark.parametrize("form", ["wav", "audio"])
def test_frames_of_another_size_than_their_samples_are_refused(tmp_path: Path, form: str) -> None:
    """24 bits in four bytes each would be read as noise."""
    head = struct.pack("<HHIIHH", 1, 1, 16000, 64000, 4, 24)
    (tmp_path / "a.wav").write_bytes(wav(np.array([1 << 24, 1 << 25], "<i4").tobytes(), head=head))
    (failed,) = read(tmp_path / "a.wav", form).failed
    assert "its frames have 4 bytes, and 1 channels of 24 bits have 3" in failed.message


def test_a_wav_without_samples_stays_one(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav(b""))
    assert samples(tmp_path / "a.wav", "wav").size == 0


def flac(frames: int) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.sin(np.arange(frames) / 20) * 0.3, 48000, format="FLAC")
    content = bytearray(file.getvalue())
    content[21] &= 0xF0
    content[22:26] = bytes(4)
    return bytes(content)


@pytest.mark.parametrize("frames", [1, 4800, 65536, 2 * 65536 + 7])
def test_a_flac_of_open_length_is_read_to_its_end(tmp_path: Path, frames: int) -> None:
    (tmp_path / "a.flac").write_bytes(flac(frames))
    have = samples(tmp_path / "a.flac", "audio")
    assert have.shape == (frames,)
    assert np.abs(have - np.sin(np.arange(frames) / 20) * 0.3).max() < 1e-4


KINDS = [
    ("WAV", "PCM_16"), ("WAV", "PCM_24"), ("WAV", "FLOAT"), ("WAV", "PCM_U8"), ("WAV", "ULAW"), ("WAVEX", "PCM_24"),
    ("AIFF", "PCM_16"), ("AIFF", "PCM_24"), ("FLAC", "PCM_16"), ("FLAC", "PCM_24"), ("OGG", "VORBIS"), ("OGG", "OPUS"),
    ("MP3", "MPEG_LAYER_III"), ("W64", "PCM_16"), ("W64", "FLOAT"), ("AU", "PCM_16"), ("AU", "ULAW"), ("CAF", "PCM_24"),
    ("SVX", "PCM_16"),
]  # fmt: skip


def written(random: np.random.Generator, form: str, subtype: str) -> tuple[bytes, Any]:
    """Return a random recording as its file, and what soundfile reads of it, float32 [frames] or [channels, frames]."""
    rate = int(random.choice([8000, 16000, 24000, 48000] if subtype == "OPUS" else [8000, 16000, 22050, 44100, 48000]))
    channels = 1 if form == "SVX" else int(random.integers(1, 3))  # libsndfile writes no other
    sound = random.uniform(-0.9, 0.9, (int(random.integers(1, 3 * rate)), channels))
    file = io.BytesIO()
    soundfile.write(file, sound, rate, format=form, subtype=subtype)
    want, _ = soundfile.read(io.BytesIO(file.getvalue()), dtype="float32")
    return file.getvalue(), want if channels == 1 else want.T


def check(random: np.random.Generator, path: Path, form: str, subtype: str) -> str:
    content, want = written(random, form, subtype)
    path.write_bytes(content)
    readers = ["audio", "wav"] if form.startswith("WAV") and subtype.startswith("PCM") else ["audio"]
    for reader in readers:
        have = samples(path, reader)
        assert have.shape == want.shape, (form, subtype, reader)
        far = 1e-6 if form in {"MP3", "OGG"} else 0  # their decoders depend on the processor's instructions
        assert np.abs(have - want).max() <= far, (form, subtype, reader)
    path.write_bytes(content[: int(len(content) * random.uniform(0.01, 0.99))])
    for reader in readers:
        block = read(path, reader)
        if not block.failed:  # the samples were there, and what is cut off were others
            assert np.asarray(block.columns["samples"][0]).shape == want.shape, (form, subtype, reader)
    return "failed" if block.failed else "whole"


@pytest.mark.parametrize(("form", "subtype"), KINDS)
def test_a_cut_recording_is_no_shorter_one(tmp_path: Path, form: str, subtype: str) -> None:
    assert check(np.random.default_rng(3), tmp_path / "a", form, subtype) == "failed"


@pytest.mark.slow
def test_many_recordings(tmp_path: Path) -> None:
    random = np.random.default_rng(SEED)
    for number in range(COUNT):
        check(random, tmp_path / "a", *KINDS[number % len(KINDS)])


@pytest.mark.parametrize("riff", [0, 36])
def test_a_recorder_that_never_wrote_the_size_makes_no_row_without_samples(tmp_path: Path, riff: int | None) -> None:
    """Python's own module begins a file with 0 samples, and says how many only at the end."""
    content = np.arange(100, dtype="<i2").tobytes()
    (tmp_path / "a.wav").write_bytes(wav(content, size=0, riff=riff))
    block = read(tmp_path / "a.wav", "wav")
    if riff == 0:
        assert len(block.columns["samples"][0]) == 100
    else:
        (failed,) = block.failed
        assert failed.message == "the recording is cut off: its header says that it has no samples, and more follows"


@pytest.mark.parametrize("form", ["RF64", "W64", "AU", "AU little", "SVX"])
def test_a_file_that_is_cut_fails_in_the_words_for_wav(tmp_path: Path, form: str) -> None:
    content = io.BytesIO()
    name, *order = form.split()
    endian = order[0].upper() if order else None
    soundfile.write(content, np.arange(-50, 50, dtype=np.int16), 16000, "PCM_16", format=name, endian=endian)
    whole = content.getvalue()
    (tmp_path / "a").write_bytes(whole)
    assert len(samples(tmp_path / "a", "audio")) == 100
    (tmp_path / "a").write_bytes(whole[:-60])
    (failed,) = read(tmp_path / "a", "audio").failed
    assert failed.message == "the recording is cut off: it holds 140 of 200 bytes of samples"


@pytest.mark.parametrize(("form", "place", "size"), [("AU", 8, b"\xff" * 4), ("W64", -208, b"\xff" * 7 + b"\x7f")])
def test_files_of_open_length_in_other_containers_are_read_to_their_end(
    tmp_path: Path, form: str, place: int, size: bytes
) -> None:
    """As ffmpeg writes them into pipes."""
    content = io.BytesIO()
    soundfile.write(content, np.arange(-50, 50, dtype=np.int16), 16000, "PCM_16", format=form)
    whole = bytearray(content.getvalue())
    place %= len(whole)
    whole[place : place + len(size)] = size
    (tmp_path / "a").write_bytes(whole)
    assert len(samples(tmp_path / "a", "audio")) == 100
