"""What is said of a whole number that a provider would narrow from 64 bits to 32."""

Limits = tuple[float, float]

IN_32_BITS: dict[str, Limits] = {
    "int64": (float(-(2**31)), float(2**31 - 1)),
    "uint64": (0.0, float(2**32 - 1)),
}
"""The values of an element type that are the same in 32 bits."""


def because_narrowed(dtype: str | None, limits: Limits) -> str:
    """Return the rest of a message on limits that follow from a provider; empty if they do not."""
    narrow = IN_32_BITS.get(dtype or "")
    if narrow is None or limits[1] != narrow[1]:
        return ""
    return (
        ": a provider of its model computes whole numbers of 64 bits with 32, and gives others without an error. Feed "
        "smaller numbers, such as the difference from a first one, or run the model on the CPU"
    )
