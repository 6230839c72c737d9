import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from support.bundles import FILES, Signer, describe, statement_of

from ortdeploy.bundles.description import dump, identity
from ortdeploy.bundles.policy import Allowed, Policy, trust
from ortdeploy.bundles.statement import read_envelope, read_key
from ortdeploy.diagnostics import OrtdeployError

DATA = Path(__file__).parent.parent / "data/bundles"
OURS, OTHER = Signer(), Signer()
BUNDLE = describe()
ID = identity(dump(BUNDLE))


def policy(*keys: bytes, **other: Any) -> Policy:
    """Return a policy that allows the deployment with these keys."""
    about: dict[str, Any] = {"oldest_version": 1, "allow_code": False, **other}
    allowed = Allowed(keys=tuple(read_key(key, f"{number}.pub") for number, key in enumerate(keys)), **about)
    return Policy(path="policy.yaml", deployments={"digits": allowed}, manifests=(), refuse=frozenset(), keep=None)


@pytest.mark.parametrize("curve", [ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1()])
def test_a_signature_of_a_known_key_is_trusted(curve: ec.EllipticCurve) -> None:
    signer = Signer(curve)
    reasons = trust([policy(OTHER.public, signer.public)], BUNDLE, ID, {"model.sig": signer.sign(BUNDLE)})
    assert reasons == ('"model.sig" is signed by 1.pub',)


def test_a_signature_that_model_signing_has_made_is_trusted() -> None:
    allowed = policy((DATA / "key.pub").read_bytes())
    assert trust([allowed], BUNDLE, ID, {"model.sig": (DATA / "model.sig").read_bytes()})


def test_a_bad_signature_beside_a_good_one_harms_nothing() -> None:
    signatures = {"a.sig": b"{", "b.sig": OTHER.sign(BUNDLE), "c.sig": OURS.sign(BUNDLE)}
    assert trust([policy(OURS.public)], BUNDLE, ID, signatures) == ('"c.sig" is signed by 0.pub',)


def test_one_key_in_two_files_is_one_key() -> None:
    allowed = policy(OURS.public, OURS.public).deployments["digits"]
    assert len({key.fingerprint for key in allowed.keys}) == 1


def test_without_a_policy_everything_is_trusted() -> None:
    assert trust([], BUNDLE, ID, {}) == ()


@pytest.mark.parametrize(
    ("policies", "signatures", "why"),
    [
        ([policy(OURS.public)], {}, "has no signature"),
        ([policy(OURS.public)], {"model.sig": OTHER.sign(BUNDLE)}, "none of the keys"),
        ([policy(OURS.public)], {"model.sig": OURS.sign(describe(version=2))}, 'lists another "deployment.json"'),
        ([policy(OURS.public)], {"model.sig": OURS.sign(describe({**FILES, "more": b""}))}, "lists another"),
        ([policy(OURS.public, oldest_version=2)], {"model.sig": OURS.sign(BUNDLE)}, 'version 2 of "digits" and later'),
        ([policy()], {"model.sig": OURS.sign(BUNDLE)}, "none of the keys"),
        ([policy(OURS.public), policy(OTHER.public)], {"model.sig": OURS.sign(BUNDLE)}, "none of the keys"),
        ([Policy(path="p", deployments={}, manifests=(), refuse=frozenset(), keep=None)], {}, "allows no deployment"),
        ([Policy(path="p", deployments=policy(OURS.public).deployments, manifests=(), refuse=frozenset({ID}), keep=None)], {"model.sig": OURS.sign(BUNDLE)}, "refuses the bundle"),
    ],
)  # fmt: skip
def test_what_a_policy_does_not_allow_is_refused(
    policies: list[Policy], signatures: dict[str, bytes], why: str
) -> None:
    with pytest.raises(OrtdeployError, match=why):
        trust(policies, BUNDLE, ID, signatures)


def test_libraries_need_the_word_of_the_policy() -> None:
    with_code = describe({**FILES, "ops.so": b"\x7fELF"})
    identity_, signatures = identity(dump(with_code)), {"model.sig": OURS.sign(with_code)}
    with pytest.raises(OrtdeployError, match="allow_code"):
        trust([policy(OURS.public)], with_code, identity_, signatures)
    assert trust([policy(OURS.public, allow_code=True)], with_code, identity_, signatures)


def _predicate(statement: dict[str, Any], **new: Any) -> None:
    statement["predicate"]["serialization"].update(new)


def _first(statement: dict[str, Any], **new: Any) -> None:
    statement["predicate"]["resources"][0].update(new)


@pytest.mark.parametrize(
    "change",
    [
        lambda one: one.update(_type="https://in-toto.io/Statement/v0.1"),
        lambda one: one.update(predicateType="https://model_signing/signature/v0.1"),
        lambda one: _predicate(one, method="shards"),
        lambda one: _predicate(one, hash_type="blake2b"),
        lambda one: _first(one, algorithm="blake2b"),
        lambda one: _first(one, name="../deployment.json"),
        lambda one: _first(one, digest="0"),
        lambda one: one["predicate"]["resources"].append(one["predicate"]["resources"][0]),
        lambda one: one["predicate"].update(resources={}),
        lambda one: one.update(subject=[]),
        lambda one: one["subject"][0]["digest"].update(sha256="0" * 64),
        lambda one: one.update(predicate=None),
    ],
)
def test_other_statements_are_refused_even_if_they_are_signed(change: Callable[[Any], Any]) -> None:
    statement = statement_of(BUNDLE, ID)
    change(statement)
    with pytest.raises(OrtdeployError, match=r"model\.sig"):
        trust([policy(OURS.public)], BUNDLE, ID, {"model.sig": OURS.sign_statement(statement)})


def test_a_payload_of_another_type_or_damaged_text_is_refused() -> None:
    raw = OURS.sign_statement(statement_of(BUNDLE, ID), "text/plain")
    for text in (raw, b"[]", b"{}", b"\xff", raw.replace(b'"payload": "', b'"payload": "*', 1), b'{"a":1,"a":2}'):
        with pytest.raises(OrtdeployError):
            read_envelope(text, "model.sig")


def test_only_keys_on_elliptic_curves_are_taken() -> None:
    form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    other = ed25519.Ed25519PrivateKey.generate().public_key().public_bytes(*form)
    strange = ec.generate_private_key(ec.SECP256K1()).public_key().public_bytes(*form)
    for raw in (other, strange, b"", b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", b"\xff"):
        with pytest.raises(OrtdeployError, match=r"old\.pub"):
            read_key(raw, "old.pub")


def test_an_envelope_may_stand_alone() -> None:
    inner = json.loads(OURS.sign(BUNDLE))["dsseEnvelope"]
    assert base64.b64decode(inner["payload"])
    assert trust([policy(OURS.public)], BUNDLE, ID, {"model.sig": json.dumps(inner).encode()})
