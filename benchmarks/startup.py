"""How long `ortdeploy --help` and `ortdeploy validate` take beyond an empty Python start."""

import sys
from pathlib import Path

from measure import describe_machine, interleaved, ortdeploy, seconds

EXAMPLE = str(Path(__file__).parent.parent / "deployments/digits.yaml")
ROUNDS = 15


def main() -> None:
    """Measure and print."""
    cases = {
        "empty": lambda: seconds([sys.executable, "-c", "pass"]),
        "--help": lambda: seconds(ortdeploy("--help")),
        "validate": lambda: seconds(ortdeploy("validate", EXAMPLE)),
    }
    found = interleaved(cases, ROUNDS)
    print(f"{describe_machine()}; medians of {ROUNDS}")
    for name in ("--help", "validate"):
        beyond = (found[name] - found["empty"]) * 1000
        print(f"{name:9} {found[name] * 1000:6.0f} ms: {beyond:.0f} ms beyond an empty start")


if __name__ == "__main__":
    main()
