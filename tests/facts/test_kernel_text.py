"""Kernel definitions survive as lines of text, in which device files have them."""

from ortdeploy.facts.host import Kernel
from ortdeploy.facts.kernel_text import dump_kernels, parse_kernels
from ortdeploy.runtime.kernels import KnownKernels


def test_kernels_survive_as_text() -> None:
    for kernels in KnownKernels({}).values():
        assert parse_kernels(dump_kernels(kernels)) == dict(sorted(kernels.items()))
    assert parse_kernels({"a.B": ["1-", "2-3 T=x|y"]}) == {
        "a.B": (
            Kernel(first=1, last=2147483647, types={}),
            Kernel(first=2, last=3, types={"T": frozenset({"x", "y"})}),
        )
    }
