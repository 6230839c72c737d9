"""Golden data sets on disk.

There are two layouts. That of the onnx project's test data has test_data_set_N/input_K.pb and output_K.pb with tensors,
sequences, maps and optional values, in the order of the graph's inputs and outputs. The other one has inputs.npz and
outputs.npz with arrays by name.
"""

import re
from pathlib import Path

from ortdeploy.files.names import is_file

INPUTS, OUTPUTS = "inputs.npz", "outputs.npz"
_SET = re.compile(r"test_data_set_([0-9]+)\Z")


def find_sets(folder: Path) -> tuple[Path, ...]:
    """Return the data sets of a checks folder in the order of their numbers; the folder itself if it is one."""
    numbered = [(int(match[1]), path) for path in folder.glob("*") if (match := _SET.match(path.name))]
    if numbered:
        return tuple(path for _, path in sorted(numbered))
    return (folder,) if is_file(folder / "input_0.pb") or is_file(folder / INPUTS) else ()


def why_nothing_compares(folder: Path, shown: str) -> str | None:
    """Say why a checks folder can prove nothing: it has no data set, or one without outputs. None if it can."""
    sets = find_sets(folder)
    if not sets:
        return f"There is no test_data_set_N, input_0.pb or inputs.npz in {shown}."
    bare = next((one for one in sets if not is_file(one / OUTPUTS) and not any(one.glob("output_*.pb"))), None)
    return f"{bare.relative_to(folder.parent).as_posix()} has no outputs to compare with." if bare else None
