"""`ortdeploy retry`: run the failed rows of a job once more, and put those that give a result now into their parts."""

from ortdeploy.cli.commands.apply import run

__all__ = ["run"]
