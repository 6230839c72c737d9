"""`ortdeploy retry`: run the failed rows of a job again, and put those that succeed into their parts."""

from ortdeploy.cli.commands.apply import run

__all__ = ["run"]
