"""Signatures of bundles: statements of OpenSSF Model Signing, made by whichever tool of that format.

A signature is a JSON text with a DSSE envelope, whose payload is an in-toto statement that lists files with their
SHA-256. It counts if a known key has made it, and if it lists exactly the files of the bundle. Keys are public keys on
an elliptic curve; one that is listed in two files is one key.
"""

import base64
import binascii
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ortdeploy.bundles.description import NAME, Description, is_digest, objection_to_name, shown
from ortdeploy.bundles.layout import strict_json
from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.shell import pip_install

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://model_signing/signature/v1.0"
_MOST_SIGNATURES = 100


class Key(Struct, frozen=True, kw_only=True):
    """A public key: the file that has it, and the SHA-256 of the key itself."""

    file: str
    fingerprint: str
    key: "SSlibKey"


class Envelope(Struct, frozen=True, kw_only=True):
    """A statement whose form is right: the bytes that are signed, the signatures, and the files that it lists."""

    signed: bytes
    signatures: tuple[bytes, ...]
    files: Mapping[str, str]


def read_key(raw: bytes, file: str) -> Key:
    """Return a public key in PEM. Raises OrtdeployError."""
    try:
        from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415  an extra
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey  # noqa: PLC0415
        from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415
            Encoding,
            PublicFormat,
            load_pem_public_key,
        )
        from securesystemslib.signer import SSlibKey  # noqa: PLC0415
    except ImportError as error:
        raise OrtdeployError(f"signatures cannot be verified here: {pip_install('ortdeploy[signing]')}") from error
    try:
        public = load_pem_public_key(raw)
        if not isinstance(public, EllipticCurvePublicKey):
            raise OrtdeployError(f"{file} is a public key, and none on an elliptic curve, which alone are taken")
        fingerprint = hashlib.sha256(public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()
        return Key(file=file, fingerprint=fingerprint, key=SSlibKey.from_crypto(public, keyid=fingerprint))
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise OrtdeployError(f"{file} is no public key in PEM that is known here: {error}") from error


def read_envelope(raw: bytes, what: str) -> Envelope:
    """Read a signature; nobody has verified it yet. Raises OrtdeployError."""
    document = _mapping(strict_json(raw, what), what)
    inner = _mapping(document.get("dsseEnvelope", document), what)
    payload, kind = _bytes(inner.get("payload"), what), inner.get("payloadType")
    if kind != PAYLOAD_TYPE:
        raise OrtdeployError(f"{what} has a payload of the type {shown(str(kind))}, and not {PAYLOAD_TYPE}")
    listed = inner.get("signatures")
    if not isinstance(listed, list) or not 1 <= len(listed) <= _MOST_SIGNATURES:
        raise OrtdeployError(f"{what} has no signature, or too many")
    return Envelope(
        signed=b"DSSEv1 %d %b %d %b" % (len(kind), kind.encode(), len(payload), payload),
        signatures=tuple(_bytes(_mapping(one, what).get("sig"), what) for one in listed),
        files=_files(_mapping(strict_json(payload, what), what), what),
    )


def signers(envelope: Envelope, keys: Iterable[Key]) -> dict[str, Key]:
    """Return the keys that have made a signature of an envelope, by their fingerprints."""
    from securesystemslib.exceptions import UnverifiedSignatureError  # noqa: PLC0415  an extra; a key is there, so it is too
    from securesystemslib.signer import Signature  # noqa: PLC0415

    found: dict[str, Key] = {}
    for key in keys:
        for signature in envelope.signatures:
            try:
                key.key.verify_signature(Signature(key.fingerprint, signature.hex()), envelope.signed)
            except UnverifiedSignatureError:
                continue
            found.setdefault(key.fingerprint, key)
    return found


def objection_to_files(envelope: Envelope, description: Description, identity: str) -> str | None:
    """Say which file a statement has otherwise than the bundle; None if both have the same."""
    own = {**description.digests, NAME: identity}
    for name, digest in own.items():
        if name not in envelope.files:
            return f"it does not list {shown(name)}"
        if envelope.files[name] != digest:
            return f"it lists another {shown(name)}"
    other = next((name for name in envelope.files if name not in own), None)
    return None if other is None else f"it lists {shown(other)}, which the bundle does not have"


def _files(statement: Mapping[str, Any], what: str) -> dict[str, str]:
    """Return the files of a statement with their digests. Raises OrtdeployError."""
    predicate = _mapping(statement.get("predicate"), what)
    form = _mapping(predicate.get("serialization"), what)
    wanted = (
        (statement.get("_type"), STATEMENT),
        (statement.get("predicateType"), PREDICATE),
        (form.get("method"), "files"),
        (form.get("hash_type"), "sha256"),
    )
    for value, known in wanted:
        if value != known:
            raise OrtdeployError(f"{what} says {shown(str(value))} where {known} is taken alone")
    found: dict[str, str] = {}
    for one in _list(predicate.get("resources"), what):
        file = _mapping(one, what)
        name, digest = file.get("name"), file.get("digest")
        if not isinstance(name, str) or objection_to_name(name) is not None:
            raise OrtdeployError(f"{what} lists {shown(str(name))}, which is no name of a file")
        if file.get("algorithm") != "sha256" or not isinstance(digest, str) or not is_digest(digest):
            raise OrtdeployError(f"{what} has no SHA-256 of {shown(name)}")
        if name in found:
            raise OrtdeployError(f"{what} lists {shown(name)} twice")
        found[name] = digest
    subject = _list(statement.get("subject"), what)
    digests = [_mapping(_mapping(one, what).get("digest"), what).get("sha256") for one in subject]
    if digests != [_together(found.values())]:
        raise OrtdeployError(f"the subject of {what} is not the digest of the files that it lists")
    return found


def _together(digests: Iterable[str]) -> str:
    return hashlib.sha256(b"".join(map(bytes.fromhex, digests))).hexdigest()


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise OrtdeployError(f"{what} is no signature of a model")
    return value


def _list(value: Any, what: str) -> Sequence[Any]:
    if not isinstance(value, list):
        raise OrtdeployError(f"{what} is no signature of a model")
    return value


def _bytes(value: Any, what: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise OrtdeployError(f"{what} has no base64 where it must") from error
