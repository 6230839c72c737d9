"""`ortdeploy retry`: run the failed rows of a job again, and put those with a result into their parts."""

from ortdeploy.cli.commands.apply import run

__all__ = ["run"]
