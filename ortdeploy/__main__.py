"""`python -m ortdeploy`."""

from ortdeploy.cli.main import run

if __name__ == "__main__":
    run()
