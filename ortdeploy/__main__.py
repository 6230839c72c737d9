"""`python -m ortdeploy`."""

from ortdeploy.cli import run

if __name__ == "__main__":
    run()
