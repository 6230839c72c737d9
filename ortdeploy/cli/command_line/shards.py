"""Which shard this process is: by `--shard I/N`, or by the variables of a scheduler."""

import re
from collections.abc import Mapping

from ortdeploy.diagnostics import UsageError
from ortdeploy.plan.part_table import Shard

_SHARD = re.compile(r"([0-9]{1,9})/([0-9]{1,9})")
COUNT = "ORTDEPLOY_SHARDS"
"""The variable with the number of shards, for schedulers without one, such as Kubernetes Indexed Jobs."""


def parse_shard(text: str, environment: Mapping[str, str]) -> Shard:
    """Return the shard of a flag; for `auto`, that of the scheduler's variables. Raises UsageError."""
    if text == "auto":
        return _of_scheduler(environment)
    found = _SHARD.fullmatch(text)
    if found is None:
        raise UsageError(f"--shard {text}: write I/N, as in 0/16 for the first of sixteen, or auto")
    return _checked(int(found[1]), int(found[2]), f"--shard {text}")


def _of_scheduler(environment: Mapping[str, str]) -> Shard:
    if "JOB_COMPLETION_INDEX" in environment:
        index = _number(environment, "JOB_COMPLETION_INDEX")
        if COUNT not in environment:
            raise UsageError(f"--shard auto: JOB_COMPLETION_INDEX is {index}; set {COUNT} to the number of completions")
        return _checked(index, _number(environment, COUNT), "--shard auto")
    if "SLURM_ARRAY_TASK_ID" in environment:
        first, step = _number(environment, "SLURM_ARRAY_TASK_MIN"), _number(environment, "SLURM_ARRAY_TASK_STEP", 1)
        count = _number(environment, "SLURM_ARRAY_TASK_COUNT")
        last = _number(environment, "SLURM_ARRAY_TASK_MAX", first + (count - 1) * step)
        if last != first + (count - 1) * step:
            raise UsageError(
                f"--shard auto: the array has {count} tasks from {first} to {last}, and not in steps of {step}, so "
                "they do not say which shard each of them is. Write it, with the count of the whole array: --shard "
                '"$SLURM_ARRAY_TASK_ID/16" if that is 0-15'
            )
        index, odd = divmod(_number(environment, "SLURM_ARRAY_TASK_ID") - first, max(step, 1))
        if odd:
            raise UsageError(f"--shard auto: SLURM_ARRAY_TASK_ID is not {first} and a multiple of {step} more")
        return _checked(index, count, "--shard auto")
    raise UsageError(
        "--shard auto: neither JOB_COMPLETION_INDEX (Kubernetes) nor SLURM_ARRAY_TASK_ID (Slurm) is set; write I/N"
    )


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isascii() or not text.isdecimal():
        raise UsageError(f"--shard auto: {name} is {text!r}, which is no number")
    return int(text)


def _checked(index: int, count: int, said: str) -> Shard:
    if not 0 <= index < count:
        raise UsageError(f"{said}: shards are counted from 0, so {index}/{count} is none of {count}")
    return Shard(index=index, count=count)
