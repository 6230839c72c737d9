"""A device, or its maker, is no provider; what to write is said."""

import pytest

from ortdeploy.providers import catalogue
from ortdeploy.providers.catalogue import PROVIDERS, find_provider, providers_of


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("GPU", "CUDA for NVIDIA"), ("gpu:0", "CUDA for NVIDIA"), ("NVIDIA", "CUDA, or Tensorrt"), ("npu", "QNN"),
        ("MPS", "CoreML"), ("M1", "CoreML"), ("cuda:1", "CUDA, and its device"), ("vulkan", "WebGpu"), ("Jetson", "CUDA"),
    ],
)  # fmt: skip
def test_what_to_write_is_said(name: str, written: str) -> None:
    assert (providers_of(name) or "").startswith(written)


def test_other_names_mean_nothing() -> None:
    assert providers_of("cudda") is None
    assert providers_of("7") is None
    assert all(find_provider(one) is None for one in (*catalogue._OF_HARDWARE, *catalogue._CALLED))  # noqa: SLF001  no provider is hidden
    assert all(one in catalogue._OF_HARDWARE for one in catalogue._CALLED.values())  # noqa: SLF001  each leads somewhere
    assert all(find_provider(provider.short) is provider for provider in PROVIDERS)
