"""Damaged and forged bundles: none is accepted that differs in a byte that the signature covers, and none is a bug."""

import hashlib
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.bundles import FILES, Signer, describe, resign_layout, write
from support.effort import effort

from ortdeploy.bundles.description import dump, identity, parse
from ortdeploy.bundles.layout import open_bundle
from ortdeploy.bundles.policy import Allowed, Policy, trust
from ortdeploy.bundles.statement import read_key
from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.planning.versions.policy_file import read_policies

OURS = Signer()
POLICY = Policy(
    path="policy.yaml",
    deployments={"digits": Allowed(keys=(read_key(OURS.public, "our.pub"),), oldest_version=1, allow_code=False)},
    manifests=(),
    refuse=frozenset(),
    keep=None,
)
ID = identity(dump(describe()))
MANY = effort(60, 10_000)
VALUES: list[Any] = [None, True, 0, -1, 1.5, 2**64, "", "..", "x" * 300, [], {}, "sha256:", "\ud800", [[]], "\x00"]


def taken(path: Path) -> bool:
    """Return whether a bundle is trusted and whole; if so, it must be ours to the byte."""
    with open_bundle(path) as bundle:
        trust([POLICY], bundle.description, bundle.id, bundle.signatures)
        found = {}
        for file in bundle.description.files:
            with bundle.opened(file) as opened:
                found[file.name] = opened.read()
            if hashlib.sha256(found[file.name]).hexdigest() != file.sha256:
                raise OrtdeployError("the store refuses it")
    assert (bundle.id, found) == (ID, FILES)
    return True


def refusal(do: Callable[[], object]) -> str:
    """Return why something is refused, in words of a length to be read; nothing if it is not."""
    try:
        do()
    except OrtdeployError as error:
        assert 0 < len(str(error)) < 2000  # noqa: PT017  of thousands
        return str(error)
    return ""


def spoil_bytes(draw: random.Random, raw: bytes) -> bytes:
    """Return other bytes: one flipped, some cut out, some doubled, or the end cut off."""
    at = draw.randrange(len(raw)) if raw else 0
    length = draw.choice([1, 2, 40])
    return draw.choice(
        [
            raw[:at] + bytes([raw[at] ^ 1 << draw.randrange(8)]) + raw[at + 1 :] if raw else b"x",
            raw[:at] + raw[at + length :],
            raw[:at] + raw[at : at + length] * 2 + raw[at + length :],
            raw[:at],
            raw + b" ",
        ]
    )


def spoil_value(draw: random.Random, value: Any) -> Any:
    """Return a JSON value in which one thing is another, is gone, or is there twice."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice(list(value))
        other = {name: one for name, one in value.items() if name != key}
        return draw.choice(
            [{**value, key: spoil_value(draw, value[key])}] * 6 + [other, {**other, f"{key}x": value[key]}]
        )
    if isinstance(value, list) and value and draw.random() < 0.9:
        at = draw.randrange(len(value))
        changed = [*value[:at], spoil_value(draw, value[at]), *value[at + 1 :]]
        return draw.choice([changed] * 6 + [[*value[:at], *value[at + 1 :]], [*value, value[at]], value[::-1]])
    if isinstance(value, str) and value and draw.random() < 0.6:
        return spoil_bytes(draw, value.encode()).decode(errors="replace")
    if isinstance(value, int) and draw.random() < 0.6:
        return value + draw.choice([-1, 1, 2**33])
    return draw.choice(VALUES)


def spoil_file(draw: random.Random, folder: Path) -> None:
    """Change the bytes of a file of a layout, under its old name."""
    path = draw.choice(sorted(one for one in folder.rglob("*") if one.is_file()))
    path.write_bytes(spoil_bytes(draw, path.read_bytes()))


def spoil_documents(draw: random.Random, folder: Path) -> None:
    """Change a value of index, manifest or config, and name the result by its new digest."""

    def change(*documents: dict[str, Any]) -> None:
        one = draw.choice(documents)
        changed = spoil_value(draw, one)
        one.clear()
        one.update(changed if isinstance(changed, dict) else {})

    try:
        resign_layout(folder, change)
    except (KeyError, IndexError, AttributeError, TypeError, UnicodeError):  # nothing is left to name it by
        index = folder / "index.json"
        index.write_bytes(spoil_bytes(draw, index.read_bytes()))


def spoil_layer(draw: random.Random, folder: Path) -> None:
    """Change the content of a layer, and name it by its new digest in manifest and config."""

    def change(_index: dict[str, Any], manifest: dict[str, Any], config: dict[str, Any]) -> None:
        at = draw.randrange(len(manifest["layers"]))
        layer = manifest["layers"][at]
        raw = (folder / "blobs/sha256" / layer["digest"].removeprefix("sha256:")).read_bytes()
        name = layer["annotations"]["org.cncf.model.filepath"]
        if name.endswith((".json", ".sig")) and draw.random() < 0.7:
            text = json.dumps(spoil_value(draw, json.loads(raw)), sort_keys=True, separators=(",", ":"))
            raw = f"{text}\n".encode()
        else:
            raw = spoil_bytes(draw, raw)
        digest = hashlib.sha256(raw).hexdigest()
        (folder / "blobs/sha256" / digest).write_bytes(raw)
        layer.update(digest=f"sha256:{digest}", size=len(raw))
        config["modelfs"]["diffIds"][at] = f"sha256:{digest}"

    resign_layout(folder, change)


@pytest.mark.parametrize("spoil", [spoil_file, spoil_documents, spoil_layer])
def test_no_layout_is_taken_that_differs_in_what_is_signed(
    tmp_path: Path, spoil: Callable[[random.Random, Path], None]
) -> None:
    write(tmp_path / "digits", signatures={"model.sig": OURS.sign(describe())})
    assert taken(tmp_path / "digits")
    refused = 0
    for seed in range(MANY // 3):
        folder = tmp_path / "changed"
        shutil.copytree(tmp_path / "digits", folder)
        spoil(random.Random(seed), folder)  # noqa: S311  it draws examples
        refused += bool(refusal(lambda: taken(folder)))  # noqa: B023  called at once
        shutil.rmtree(folder)
    assert refused


def test_no_archive_is_taken_that_differs_in_what_is_signed(tmp_path: Path) -> None:
    write(tmp_path / "digits.tar", signatures={"model.sig": OURS.sign(describe())})
    raw = (tmp_path / "digits.tar").read_bytes()
    assert taken(tmp_path / "digits.tar")
    for seed in range(MANY):
        (tmp_path / "changed.tar").write_bytes(spoil_bytes(random.Random(seed), raw))  # noqa: S311
        refusal(lambda: taken(tmp_path / "changed.tar"))


def test_a_description_is_taken_only_in_the_bytes_that_make_its_id() -> None:
    raw = dump(describe())
    for seed in range(MANY):
        draw = random.Random(seed)  # noqa: S311
        value = json.dumps(spoil_value(draw, json.loads(raw)), sort_keys=True, separators=(",", ":"))
        changed = draw.choice([spoil_bytes(draw, raw), f"{value}\n".encode()])
        assert refusal(lambda: parse(changed)) or dump(parse(changed)) == changed  # noqa: B023  called at once


def test_a_signature_is_taken_only_for_what_it_signs() -> None:
    raw = OURS.sign(describe())
    for seed in range(MANY):
        draw = random.Random(seed)  # noqa: S311
        changed = draw.choice([spoil_bytes(draw, raw), json.dumps(spoil_value(draw, json.loads(raw))).encode()])
        other = describe(version=draw.choice([1, 2]))
        signatures = {"model.sig": changed}
        refused = refusal(lambda: trust([POLICY], other, identity(dump(other)), signatures))  # noqa: B023
        assert refused or other == describe()


def test_no_policy_is_a_bug(tmp_path: Path) -> None:
    (tmp_path / "our.pub").write_bytes(OURS.public)
    text = b"""version: 1
deployments: {digits: {keys: [our.pub], oldest_version: 41, allow_code: false}}
manifests: [/srv/line]
refuse: ["sha256:0000000000000000000000000000000000000000000000000000000000000000"]
keep: 3
"""
    path = tmp_path / "policy.yaml"
    path.write_bytes(text)
    assert read_policies(str(path))[-1].deployments["digits"].oldest_version == 41
    for seed in range(MANY):
        path.write_bytes(spoil_bytes(random.Random(seed), text))  # noqa: S311
        refused = refusal(lambda: read_policies(str(path)))
        assert not refused or "the policy cannot be used, so nothing runs" in refused
        found = {} if refused else read_policies(str(path))[-1].deployments
        keys = {key.fingerprint for one in found.values() for key in one.keys}
        assert keys <= {POLICY.deployments["digits"].keys[0].fingerprint}
