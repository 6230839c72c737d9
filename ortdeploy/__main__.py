"""`python -m ortdeploy`, and the program of that name."""


def run() -> None:
    """Be the program. Ctrl-C ends it without a word already while it is loaded."""
    try:
        from ortdeploy.cli.main import run as be_the_program  # noqa: PLC0415  inside of the block
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    be_the_program()


if __name__ == "__main__":
    run()
