"""How long `ortdeploy validate` takes for a 6,000-line manifest and for a folder of 1,000 manifests."""

import sys
import tempfile
from pathlib import Path

from measure import describe_machine, interleaved, ortdeploy, seconds

MODELS = 375
ROUNDS = 5
ENTRY = """\
  m{n}:
    path: models/m{n}.onnx
    providers: [CPU]
    session:
      intra_op_num_threads: 2
    inputs:
      image:
        dtype: float32
        shape: [batch, 1, 8, 8]
"""
JOB = """\
  j{n}:
    model: m{n}
    input:
      path: inbox/{n}
    batch: {{size: 8}}
    output:
      path: outbox/j{n}
"""


def manifest(models: int) -> str:
    """Return a manifest with so many models and jobs, 16 lines each."""
    numbers = range(models)
    entries = "".join(ENTRY.format(n=n) for n in numbers)
    return f"version: 1\nmodels:\n{entries}jobs:\n{''.join(JOB.format(n=n) for n in numbers)}"


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        large = folder / "large.yaml"
        large.write_text(manifest(MODELS))
        many = folder / "many"
        many.mkdir()
        for number in range(1000):
            (many / f"{number:04}.yaml").write_text(manifest(1))
        lines = len(large.read_text().splitlines())
        parse = f"import yaml; yaml.load(open({str(large)!r}), yaml.CSafeLoader)"
        cases = {
            "yaml alone": lambda: seconds([sys.executable, "-c", parse]),
            "large": lambda: seconds(ortdeploy("validate", str(large))),
            "many": lambda: seconds(ortdeploy("validate", str(many))),
        }
        found = interleaved(cases, ROUNDS)
    print(f"{describe_machine()}; medians of {ROUNDS}")
    ratio = found.ratio("large", "yaml alone")
    print(f"one manifest of {lines:,} lines: {found['large']:.2f} s, {ratio:.1f} times PyYAML's C loader alone")
    print(f"a folder of 1,000 manifests: {found['many']:.2f} s, {found['many']:.2f} ms each")


if __name__ == "__main__":
    main()
