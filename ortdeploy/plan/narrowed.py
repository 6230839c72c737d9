"""What is said of a value that a provider would narrow."""


def because_narrowed(provider: str | None) -> str:
    """Return the rest of a message on limits that follow from a provider; empty if they do not."""
    if provider is None:
        return ""
    return (
        f", for {provider} computes whole numbers of 64 bits with 32, and gives others without an error. Feed smaller "
        "numbers, such as the difference from a first one, or run the model on the CPU"
    )
