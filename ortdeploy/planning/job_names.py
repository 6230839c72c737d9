"""Which jobs --job and --exclude mean."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from ortdeploy.diagnostics import UsageError, did_you_mean


def check_job_name(job: str, known: Sequence[str], flag: str = "--job") -> None:
    """Refuse a --job, or another flag, that names no job. Raises UsageError."""
    if job not in known:
        raise UsageError(f'{flag}: there is no job "{job}". {did_you_mean(job, known)}')


def select_jobs(wanted: Sequence[str] | None, excluded: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """Return the jobs that --job names, or all, without those of --exclude, by name or glob. Raises UsageError."""
    for flag, names in (("--job", wanted or ()), ("--exclude", excluded)):
        for name in names:
            if not _matching([name], known):
                check_job_name(name, known, flag)
    chosen = chosen_jobs(wanted, excluded, known)
    if excluded and not chosen:
        raise UsageError("--exclude leaves no job")
    return chosen


def chosen_jobs(wanted: Sequence[str] | None, excluded: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """Return the jobs that are wanted, in the order of the manifest; names that are no jobs are passed over."""
    left_out = _matching(excluded, known)
    return tuple(name for name in (known if wanted is None else _matching(wanted, known)) if name not in left_out)


def _matching(wanted: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in known if any(name == one or fnmatchcase(name, one) for one in wanted))
