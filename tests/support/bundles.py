"""Bundles to try: small ones without a deployment that runs, their signatures, and ways to damage them."""

import base64
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from ortdeploy.bundles.description import NAME, BundledFile, Description, Needs, dump, identity
from ortdeploy.bundles.layout import write_bundle
from ortdeploy.bundles.statement import PAYLOAD_TYPE, PREDICATE, STATEMENT

FILES = {"digits.yaml": b"version: 1\nname: digits\n", "models/digits.onnx": bytes(range(256)) * 20}


def describe(files: Mapping[str, bytes] = FILES, **other: Any) -> Description:
    """Describe a bundle of these files, the first of which is the manifest."""
    listed = tuple(
        BundledFile(
            name=name,
            sha256=hashlib.sha256(raw).hexdigest(),
            size=len(raw),
            kind="weight" if name.endswith(".onnx") else "code" if name.endswith(".so") else "config",
        )
        for name, raw in sorted(files.items())
    )
    about: dict[str, Any] = {
        "format_version": 1,
        "name": "digits",
        "version": 1,
        "label": "",
        "manifest": next(iter(files)),
        "overlays": (),
        "profiles": (),
        "base": True,
        "needs": Needs(ortdeploy="0.0.0", allow_code=any(one.kind == "code" for one in listed)),
        "files": listed,
    }
    return Description(**{**about, **other})


def write(
    target: Path,
    description: Description | None = None,
    files: Mapping[str, bytes] = FILES,
    signatures: Mapping[str, bytes] | None = None,
) -> str:
    """Write a bundle, and return the digest of its manifest."""
    sources = target.with_name(f"{target.name}.sources")
    for name, raw in files.items():
        (sources / name).parent.mkdir(parents=True, exist_ok=True)
        (sources / name).write_bytes(raw)
    return write_bundle(
        target, description or describe(files), {name: sources / name for name in files}, signatures or {}
    )


def statement_of(description: Description, digest: str) -> dict[str, Any]:
    """Return the statement that a signature of a bundle must have, as a tool of the format makes it."""
    files = sorted({**description.digests, NAME: digest}.items())
    together = hashlib.sha256(b"".join(bytes.fromhex(one) for _, one in files)).hexdigest()
    return {
        "_type": STATEMENT,
        "subject": [{"name": description.name, "digest": {"sha256": together}}],
        "predicateType": PREDICATE,
        "predicate": {
            "serialization": {"method": "files", "hash_type": "sha256", "allow_symlinks": False, "ignore_paths": []},
            "resources": [{"name": name, "digest": one, "algorithm": "sha256"} for name, one in files],
        },
    }


class Signer:
    """A key pair, and signatures in the form of OpenSSF Model Signing."""

    def __init__(self, curve: ec.EllipticCurve | None = None) -> None:
        """Make a key."""
        self._key = ec.generate_private_key(curve or ec.SECP256R1())
        hash_ = {256: hashes.SHA256(), 384: hashes.SHA384(), 521: hashes.SHA512()}[self._key.curve.key_size]
        self._algorithm = ec.ECDSA(hash_)

    @property
    def public(self) -> bytes:
        """The public key in PEM."""
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        return self._key.public_key().public_bytes(serialization.Encoding.PEM, form)

    def sign(self, description: Description) -> bytes:
        """Sign a bundle."""
        return self.sign_statement(statement_of(description, identity(dump(description))))

    def sign_statement(self, statement: Any, payload_type: str = PAYLOAD_TYPE) -> bytes:
        """Sign any statement."""
        payload = json.dumps(statement).encode()
        signed = b"DSSEv1 %d %b %d %b" % (len(payload_type), payload_type.encode(), len(payload), payload)
        envelope = {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": payload_type,
            "signatures": [{"keyid": "", "sig": base64.b64encode(self._key.sign(signed, self._algorithm)).decode()}],
        }
        return json.dumps(
            {"mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json", "dsseEnvelope": envelope}
        ).encode()


def resign_layout(folder: Path, change: Any) -> None:
    """Change the parsed manifest of a layout in a folder, and name the new one in its index."""
    index = json.loads((folder / "index.json").read_text())
    entry = index["manifests"][0]
    blobs = folder / "blobs/sha256"
    manifest = json.loads((blobs / entry["digest"].removeprefix("sha256:")).read_text())
    config = json.loads((blobs / manifest["config"]["digest"].removeprefix("sha256:")).read_text())
    change(index, manifest, config)

    def put(value: Any) -> dict[str, Any]:
        raw = json.dumps(value).encode()
        digest = hashlib.sha256(raw).hexdigest()
        (blobs / digest).write_bytes(raw)
        return {"digest": f"sha256:{digest}", "size": len(raw)}

    if manifest.get("config") and config:
        manifest["config"].update(put(config))
    entry.update(put(manifest) if "digest" in entry else {})
    (folder / "index.json").write_text(json.dumps(index))
