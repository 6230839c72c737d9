"""Writes the clip of deployments/video.yaml: digits that make_digits.py held out from training move over a page.

Each digit moves in a line of its own, at a speed of its own, and turns at the edges of the page.

Run: python deployments/make_clip.py
"""

import csv
from pathlib import Path

import av
import numpy as np
from PIL import Image

HERE = Path(__file__).parent
FRAMES, RATE, HEIGHT, WIDTH, LINES = 60, 25, 64, 112, (8, 26, 44)


def main() -> None:
    """Write the clip."""
    with (HERE / "digits/labels.csv").open(encoding="utf-8", newline="") as file:
        paths = [row["path"] for row in csv.DictReader(file)]
    scans = [np.asarray(Image.open(HERE / path).convert("L")) for path in paths[: len(LINES)]]
    (HERE / "clips").mkdir(exist_ok=True)
    with av.open(str(HERE / "clips/digits.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=RATE)
        stream.height, stream.width, stream.pix_fmt, stream.bit_rate = HEIGHT, WIDTH, "yuv420p", 200_000
        for number in range(FRAMES):
            page = np.zeros((HEIGHT, WIDTH), np.uint8)
            for place, (top, scan) in enumerate(zip(LINES, scans, strict=True)):
                way = 4 + number * (place + 1) // 2
                room = WIDTH - 16
                left = 4 + abs((way + room) % (2 * room) - room)
                page[top : top + 8, left : left + 8] = scan
            frame = av.VideoFrame.from_ndarray(page, format="gray")
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


if __name__ == "__main__":
    main()
