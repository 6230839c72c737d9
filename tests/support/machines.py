"""Machines for the `when` of profiles: made to be this one, or described in a device file; and random conditions."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml
from hypothesis import strategies as st

from ortdeploy.facts.variants import OfferedDevice, Traits
from ortdeploy.manifest.loader import LoadOptions
from ortdeploy.plan.steps import PlannedProvider
from ortdeploy.planning.devices import variants
from ortdeploy.planning.devices.offered_devices import built_in_device
from ortdeploy.planning.remembered import nothing_to_do
from ortdeploy.providers.catalogue import full_name, short_name

GIB = 1024**3
FIELDS = ("name", "labels", "architecture", "system", "memory", "cores", "opens")
"""What a device file may leave out."""


@dataclass
class Machine:
    """A machine; `offered` are the providers of its package, `opens` those with a device behind them."""

    name: str = "box"
    labels: dict[str, str] = field(default_factory=dict)
    architecture: str = "aarch64"
    system: str = "linux"
    memory: int = 8 * GIB
    cores: int = 4
    offered: tuple[str, ...] = ("CUDA", "Tensorrt", "CPU")
    opens: tuple[str, ...] = ("CPU",)
    tried: list[str] = field(default_factory=list)

    def device_file(self, *left_out: str) -> str:
        """Return a device file of it, without some fields."""
        told: dict[str, Any] = {"device_version": 1, "name": self.name, "labels": self.labels, "devices": []}
        told["runtime"] = {"version": "1.32.0", "providers": [full_name(one) for one in self.offered]}
        told["runtime"] |= {"opens": list(self.opens), "max_ir_version": 13}
        told["machine"] = {"architecture": self.architecture, "system": self.system, "cores": self.cores}
        told["machine"] |= {"total_memory_bytes": self.memory, "online_cores": self.cores, "memory_bytes": self.memory}
        places = {"memory": "total_memory_bytes", "cores": "online_cores"}
        for name in left_out:
            part = told["runtime"] if name == "opens" else told if name in {"name", "labels"} else told["machine"]
            part.pop(places.get(name, name))
        return yaml.safe_dump(told)

    def become(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make this process believe that it runs there."""

        def traits(options: LoadOptions) -> Traits:
            return Traits(
                name=options.device_name or self.name,
                labels=options.labels or self.labels,
                architecture=self.architecture,
                system=self.system,
                memory=self.memory,
                cores=self.cores,
            )

        def offered() -> list[tuple[OfferedDevice, PlannedProvider]]:
            names = [full_name(one) for one in self.offered]
            return [(built_in_device(name), PlannedProvider(name=name, options={})) for name in names]

        def does_open(provider: PlannedProvider) -> bool:
            self.tried.append(short_name(provider.name))
            return short_name(provider.name) in self.opens

        monkeypatch.setenv("ORTDEPLOY_DEVICE", self.name)
        monkeypatch.setenv("ORTDEPLOY_LABELS", ",".join(f"{key}={value}" for key, value in self.labels.items()))
        monkeypatch.setattr(variants, "traits_here", traits)
        monkeypatch.setattr(variants, "offered_here", offered)
        monkeypatch.setattr(variants, "does_open", does_open)
        there = [(f"/dev/{name}", number, True, 0) for number, name in enumerate(self.opens)]
        monkeypatch.setattr(nothing_to_do, "_devices", lambda: iter(there))


PROVIDERS = ("CUDA", "Tensorrt", "CPU")
machines = st.builds(
    Machine,
    name=st.sampled_from(["box-1", "box-2"]),
    labels=st.dictionaries(st.sampled_from(["line", "site"]), st.sampled_from(["paint", "wood"])),
    architecture=st.sampled_from(["aarch64", "x86_64"]),
    system=st.sampled_from(["linux", "windows"]),
    memory=st.integers(1, 4).map(lambda size: size * GIB),
    cores=st.integers(1, 3),
    opens=st.sets(st.sampled_from(["CUDA", "Tensorrt"])).map(lambda some: (*sorted(some), "CPU")),
)
_words = {"line": ["paint", "wood"], "site": ["paint", "wood"]}


def _some(words: list[str]) -> st.SearchStrategy[Any]:
    return st.sampled_from(words) | st.lists(st.sampled_from(words), min_size=1, unique=True)


def _range(unit: str) -> st.SearchStrategy[str]:
    one = st.builds(
        lambda sign, size: f"{sign} {size}{unit}", st.sampled_from([">=", ">", "<", "<="]), st.integers(1, 4)
    )
    return one | st.builds(lambda low, high: f"{low}, {high}", one, one)


_keys: dict[str, st.SearchStrategy[Any]] = {
    "architecture": _some(["aarch64", "x86_64"]),
    "system": _some(["linux", "windows"]),
    "memory": _range("GiB"),
    "cores": _range(""),
    "name": st.sampled_from(["box-*", "box-1", "other"]),
    "labels": st.dictionaries(st.sampled_from(["line", "site"]), _some(["paint", "wood"]), min_size=1),
    "provider": st.sampled_from(PROVIDERS) | st.lists(st.sampled_from(PROVIDERS), min_size=1, unique=True),
    "device": st.sampled_from([{"provider": "CUDA"}, {"kind": "GPU"}, {"vendor": "NVIDIA", "provider": "T*"}]),
}
_plain = st.lists(st.sampled_from(sorted(_keys)), min_size=1, max_size=3, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: _keys[name] for name in names})
)
whens = st.builds(
    lambda keys, excluded: {**keys, **({"not": excluded} if excluded else {})}, _plain, st.none() | _plain
)
"""Random conditions of one profile."""


def holds(when: dict[str, Any], machine: Machine, unknown: set[str] = frozenset()) -> bool | None:  # type: ignore[assignment]
    """Say if a condition holds, in a way of its own; None if it depends on what is unknown."""
    answers = [_key_holds(key, value, machine, unknown) for key, value in when.items()]
    return False if False in answers else None if None in answers else True


def _key_holds(key: str, value: Any, machine: Machine, unknown: set[str]) -> bool | None:
    listed = value if isinstance(value, list) else [value]
    match key:
        case "not":
            inner = holds(value, machine, unknown)
            return None if inner is None else not inner
        case "provider":
            if "opens" not in unknown:
                return set(listed) <= set(machine.opens)
            return True if listed == ["CPU"] else None
        case "device":
            alike = {"CUDA", "Tensorrt"} - ({"CUDA"} if "vendor" in value else set())
            alike &= {"CUDA"} if value.get("provider") == "CUDA" else alike
            return None if "opens" in unknown else bool(alike & set(machine.opens))
        case "labels":
            here = machine.labels
            fits = all(here.get(k) in (v if isinstance(v, list) else [v]) for k, v in value.items())
            return None if "labels" in unknown else fits
        case "name":
            return None if "name" in unknown else machine.name.startswith("box") and value in {"box-*", machine.name}
        case "memory" | "cores":
            if key in unknown:
                return None
            own, unit = (machine.memory, GIB) if key == "memory" else (machine.cores, 1)
            return all(_compare(own, one.split(), unit) for one in value.split(", "))
    return None if key in unknown else getattr(machine, key) in listed


def _compare(own: int, words: list[str], unit: int) -> bool:
    sign, bound = words[0], int(words[1].removesuffix("GiB")) * unit
    return {">=": own >= bound, ">": own > bound, "<": own < bound, "<=": own <= bound}[sign]
