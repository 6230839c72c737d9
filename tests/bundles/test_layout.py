import hashlib
import io
import json
import os
import shutil
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.bundles import FILES, Signer, describe, resign_layout, write

from ortdeploy.bundles import carrier
from ortdeploy.bundles.carrier import tar_header
from ortdeploy.bundles.description import BundledFile, dump, identity
from ortdeploy.bundles.layout import Bundle, open_bundle
from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.names import names_bundle


def read_all(path: Path) -> tuple[str, dict[str, bytes]]:
    """Return the id of a bundle and its files."""
    with open_bundle(path) as bundle:
        return bundle.id, {file.name: _read(bundle, file) for file in bundle.description.files}


def _read(bundle: Bundle, file: BundledFile) -> bytes:
    with bundle.opened(file) as opened:
        return opened.read()


@pytest.mark.parametrize("name", ["digits.tar", "digits"])
def test_a_bundle_is_read_as_it_was_written(tmp_path: Path, name: str) -> None:
    write(tmp_path / name)
    assert names_bundle(str(tmp_path / name))
    assert read_all(tmp_path / name) == (identity(dump(describe())), FILES)


@pytest.mark.skipif(os.name == "nt", reason="folders need no sync there")
@pytest.mark.parametrize("name", ["bundle", "bundle.tar"])
def test_a_bundle_is_on_the_stick_when_it_has_its_name(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, real = set[int](), os.fsync

    def fsync(descriptor: int) -> None:
        real(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        write(tmp_path / name)
    assert {one.stat().st_ino for one in (tmp_path / name, *(tmp_path / name).rglob("*"), tmp_path)} <= synced


def test_two_machines_write_the_same_bytes_as_tar_and_the_same_digests_as_folder(tmp_path: Path) -> None:
    first = write(tmp_path / "a.tar")
    os.utime(tmp_path / "a.tar.sources/digits.yaml", (1, 1))
    assert write(tmp_path / "b.tar") == write(tmp_path / "c") == first
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


def test_a_signature_changes_the_manifest_and_not_the_id(tmp_path: Path) -> None:
    signature = Signer().sign(describe())
    assert write(tmp_path / "plain.tar") != write(tmp_path / "signed.tar", signatures={"model.sig": signature})
    assert read_all(tmp_path / "plain.tar") == read_all(tmp_path / "signed.tar")
    with open_bundle(tmp_path / "signed.tar") as bundle:
        assert dict(bundle.signatures) == {"model.sig": signature}


def test_a_signature_may_lie_beside(tmp_path: Path) -> None:
    write(tmp_path / "digits.tar")
    (tmp_path / "digits.tar.sig").write_bytes(b"{}")
    with open_bundle(tmp_path / "digits.tar") as bundle:
        assert dict(bundle.signatures) == {"digits.tar.sig": b"{}"}


def test_a_tar_that_others_have_packed_is_read(tmp_path: Path) -> None:
    write(tmp_path / "digits")
    with tarfile.open(tmp_path / "other.tar", "w", format=tarfile.GNU_FORMAT) as tar:
        tar.add(tmp_path / "digits", ".")
    assert read_all(tmp_path / "other.tar") == read_all(tmp_path / "digits")


def test_of_several_manifests_a_tag_chooses(tmp_path: Path) -> None:
    write(tmp_path / "digits")
    index = json.loads((tmp_path / "digits/index.json").read_text())
    index["manifests"].append({**index["manifests"][0], "annotations": {"org.opencontainers.image.ref.name": "next"}})
    (tmp_path / "digits/index.json").write_text(json.dumps(index))
    with pytest.raises(OrtdeployError, match=r"choose one with --tag: \"1 next\""), open_bundle(tmp_path / "digits"):
        pass
    with pytest.raises(OrtdeployError, match='no tag "old"'), open_bundle(tmp_path / "digits", "old"):
        pass
    with open_bundle(tmp_path / "digits", "next") as bundle:
        assert bundle.description == describe()


def test_a_source_that_changes_while_the_bundle_is_made_leaves_nothing(tmp_path: Path) -> None:
    files = {**FILES, "digits.yaml": b"other"}
    for name in ("digits.tar", "digits"):
        with pytest.raises(OrtdeployError, match="was changed while"):
            write(tmp_path / name, describe(), files)
        assert not [one for one in tmp_path.iterdir() if not one.name.endswith(".sources")]


def _layer(manifest: dict[str, Any], name: str) -> dict[str, Any]:
    own: dict[str, Any] = next(
        one for one in manifest["layers"] if one["annotations"]["org.cncf.model.filepath"] == name
    )
    return own


def _rename(manifest: dict[str, Any], name: str, title: str, new: str) -> None:
    _layer(manifest, name)["annotations"][title] = new


HOSTILE: dict[str, tuple[Callable[[dict[str, Any], dict[str, Any], dict[str, Any]], Any], str]] = {
    "nested index": (lambda i, _m, _c: i["manifests"][0].update(mediaType="application/vnd.oci.image.index.v1+json"), "of the type"),
    "no manifest": (lambda i, _m, _c: i.update(manifests=[{}][:0] or [{"digest": 1}]), "digest"),
    "sha512": (lambda _i, m, _c: m["layers"][0].update(digest="sha512:" + "0" * 128), "only sha256"),
    "urls": (lambda _i, m, _c: m["layers"][1].update(urls=["https://example.org/x"]), "has urls"),
    "data": (lambda _i, m, _c: m["layers"][1].update(data="e30="), "has data"),
    "urls of the config": (lambda _i, m, _c: m["config"].update(urls=[]), "has urls"),
    "large description": (lambda _i, m, _c: _layer(m, "deployment.json").update(size=5 * 1024 * 1024), "and 4,194,304 are the most"),
    "negative size": (lambda _i, m, _c: m["layers"][0].update(size=-1), "has no size"),
    "size as text": (lambda _i, m, _c: m["layers"][0].update(size="1"), "has no size"),
    "size as boolean": (lambda _i, m, _c: m["layers"][0].update(size=True), "has no size"),
    "other size": (lambda _i, m, _c: _layer(m, "models/digits.onnx").update(size=1), "is not the file"),
    "other type": (lambda _i, m, _c: _layer(m, "models/digits.onnx").update(mediaType="application/vnd.cncf.model.weight.v1.tar"), "is not the file"),
    "no type": (lambda _i, m, _c: _layer(m, "models/digits.onnx").pop("mediaType"), "is not the file"),
    "other artifact": (lambda _i, m, _c: m.update(artifactType="application/vnd.oci.image"), "not that of a model"),
    "too many layers": (lambda _i, m, _c: m.update(layers=m["layers"] * 5000), "too long"),
    "no layers": (lambda _i, m, _c: m.pop("layers"), "no list of layers"),
    "layer without a name": (lambda _i, m, _c: m["layers"][0].pop("annotations"), "has not one name"),
    "two names": (lambda _i, m, _c: _rename(m, "models/digits.onnx", "org.opencontainers.image.title", "x"), "has not one name"),
    "one name twice": (lambda _i, m, _c: m["layers"].append(m["layers"][0]), "twice"),
    "missing file": (lambda _i, m, c: (m["layers"].pop(), c["modelfs"]["diffIds"].pop()), "is no layer"),
    "config of others": (lambda _i, _m, c: c["modelfs"]["diffIds"].reverse(), "does not list"),
    "unlisted file": (
        lambda _i, m, c: (
            m["layers"].append({**m["layers"][0], "annotations": {"org.cncf.model.filepath": "x.so", "org.opencontainers.image.title": "x.so"}}),
            c["modelfs"]["diffIds"].append(m["layers"][0]["digest"]),
        ),
        "neither in deployment.json nor a signature",
    ),
    "no description": (
        lambda _i, m, c: (m["layers"].pop(0), c["modelfs"]["diffIds"].pop(0)),
        r"deployment\.json is not described",
    ),
}  # fmt: skip


def test_an_archive_that_ends_early_is_named(tmp_path: Path) -> None:
    whole, cut = tmp_path / "digits.tar", tmp_path / "cut.tar"
    write(whole)
    for size in (1, 5000):
        cut.write_bytes(whole.read_bytes()[:size])
        with pytest.raises(OrtdeployError, match="the copy was cut off") as refused, open_bundle(cut):
            pass
        assert str(refused.value).startswith(f"{cut} is no bundle: the archive ")


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_layout_is_refused_in_words(tmp_path: Path, case: str) -> None:
    change, why = HOSTILE[case]
    write(tmp_path / "digits")
    resign_layout(tmp_path / "digits", change)
    with pytest.raises(OrtdeployError, match=why) as refused, open_bundle(tmp_path / "digits"):
        pass
    assert str(refused.value).startswith(f"{tmp_path / 'digits'} is no bundle: ")


def test_blobs_that_are_cut_missing_other_or_links_are_named(tmp_path: Path) -> None:
    write(tmp_path / "digits")
    digest = hashlib.sha256(FILES["models/digits.onnx"]).hexdigest()
    own = tmp_path / "digits/blobs/sha256" / digest
    damages: list[tuple[Callable[[], object], str]] = [
        (
            lambda: own.write_bytes(b"short"),
            rf"5 bytes of 5,120 in blobs/sha256/{digest}\. The copy is damaged; remove",
        ),
        (own.unlink, "missing"),
        (lambda: own.symlink_to("/etc/passwd"), "link"),
        (own.unlink, "missing"),
        (own.mkdir, "not a regular file"),
    ]
    for damage, why in damages:
        damage()
        with open_bundle(tmp_path / "digits") as bundle, pytest.raises(OrtdeployError, match=why):
            bundle.opened(bundle.description.files[1])
    shutil.rmtree(tmp_path / "digits/blobs/sha256")
    (tmp_path / "digits/blobs/sha256").symlink_to("/tmp")  # noqa: S108
    with pytest.raises(OrtdeployError, match="link"), open_bundle(tmp_path / "digits"):
        pass


def test_a_folder_that_may_not_be_looked_into_or_a_pipe_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "digits")
    (tmp_path / "digits/index.json").unlink()
    os.mkfifo(tmp_path / "digits/index.json")
    with pytest.raises(OrtdeployError, match="not a regular file"), open_bundle(tmp_path / "digits"):
        pass
    with pytest.raises(OrtdeployError, match="cannot be read"), open_bundle(tmp_path / "none.tar"):
        pass


def _packed(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for info, raw in members:
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))
    return path


def test_a_tar_with_a_member_twice_a_link_or_no_end_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "digits.tar")
    raw = (tmp_path / "digits.tar").read_bytes()
    link = tarfile.TarInfo("index.json")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    large = tar_header("index.json", 5 * 1024**2) + bytes(5 * 1024**2) + bytes(1024)
    cases = {
        "twice": raw[:-1024] + tar_header("index.json", 0) + bytes(1024),
        "no regular member": _packed(tmp_path / "link.tar", (link, b"")).read_bytes(),
        "cut off": raw[:-3000],
        "damaged header": raw[:200] + b"x" + raw[201:],
        "has more than 4,194,304": large,
        "too large a header": b"".join([_pax(2 * 1024**2)]),
    }
    for why, changed in cases.items():
        (tmp_path / "hostile.tar").write_bytes(changed)
        with pytest.raises(OrtdeployError, match=why), open_bundle(tmp_path / "hostile.tar"):
            pass


def _pax(size: int) -> bytes:
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, size
    return info.tobuf() + bytes(size)


def test_a_sparse_file_of_10_gib_in_a_tar_takes_no_memory_that_grows_with_it(tmp_path: Path) -> None:
    size = 10 * 1024**3
    name = carrier.blob("0" * 64)
    header = tar_header(name, size)
    assert len(header) == 3 * 512  # an extended header says the size
    path = tmp_path / "huge.tar"
    with path.open("wb") as file:
        file.write(header)
        file.seek(size, os.SEEK_CUR)
        file.write(tar_header("index.json", 2) + b"{}" + bytes(510) + bytes(1024))
    tracemalloc.start()
    try:
        with carrier.open_carrier(path) as opened:
            assert opened.size(name) == size
            with opened.opened("index.json") as index:
                assert index.read() == b"{}"
            with opened.opened(name) as file:
                assert file.read(10_000_000) == bytes(10_000_000)
        assert tracemalloc.get_traced_memory()[1] < 40_000_000
    finally:
        tracemalloc.stop()


def test_an_extended_header_says_sizes_from_8_gib_on_and_no_others() -> None:
    assert [len(tar_header("x", size)) // 512 for size in (0, 8 * 1024**3 - 1, 8 * 1024**3)] == [1, 1, 3]


def test_what_a_killed_maker_left_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / ".digits.partial/blobs").mkdir(parents=True)
    (tmp_path / ".digits.partial/blobs/old").write_bytes(b"old")
    write(tmp_path / "digits")
    assert read_all(tmp_path / "digits")[1] == FILES
    assert not (tmp_path / "digits/blobs/old").exists()
