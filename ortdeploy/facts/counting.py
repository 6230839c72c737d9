"""What planning does to learn how many rows a job has."""

from enum import StrEnum


class Counting(StrEnum):
    """What planning does to learn the number of rows in text files, which only reading tells for sure."""

    NOT = "not"
    """Nothing: what an index tells is known."""
    READ = "read"
    """Read them, for a plan that fixes the parts of its jobs."""
    TOLD = "told"
    """Believe the saved plan that is planned again; read what it does not tell."""
