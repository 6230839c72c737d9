"""Opens a page in Qt's Chromium, without a screen or a network, and prints what a script in it says, as JSON.

python browser.py PAGE SCRIPT [WIDTH [light|dark PICTURE]]; a script that says the page's height makes a whole picture.
"""

import os
import sys
from typing import Any

os.environ |= {
    "QT_QPA_PLATFORM": "offscreen",
    "QTWEBENGINE_DISABLE_SANDBOX": "1",
    "QTWEBENGINE_CHROMIUM_FLAGS": (
        "--no-sandbox --disable-gpu --blink-settings=preferredColorScheme=" + ("0" if "dark" in sys.argv[4:5] else "1")
    ),
}

from PyQt6.QtCore import QTimer, QUrl
from PyQt6.QtWebEngineCore import QWebEngineSettings, QWebEngineUrlRequestInterceptor
from PyQt6.QtWebEngineWidgets import QWebEngineView
from PyQt6.QtWidgets import QApplication

asked: list[str] = []


class Listener(QWebEngineUrlRequestInterceptor):
    """Takes note of everything that the page asks for."""

    def interceptRequest(self, info: Any) -> None:  # noqa: N802  Qt's name
        asked.append(info.requestUrl().toString())


def main(page: str, script: str, width: str = "1000", _scheme: str = "light", picture: str = "") -> None:
    """Load the page in a window of so many pixels, run the script in it, print its result and the number of requests.

    With the path of a picture, draw the page into it, as high as the script says.
    """
    application = QApplication(sys.argv[:1])
    view = QWebEngineView()
    view.resize(int(width), 1400)
    view.settings().setAttribute(QWebEngineSettings.WebAttribute.ShowScrollBars, False)
    listener = Listener()
    view.page().profile().setUrlRequestInterceptor(listener)

    def show(result: str) -> None:
        sys.stdout.write(f"{len(asked)} {result}\n")
        sys.stdout.flush()
        if not picture:
            os._exit(0)  # Qt's own end needs a display server's patience
        view.resize(int(width), int(result))
        QTimer.singleShot(1500, draw)  # until the page is painted anew

    def draw() -> None:
        os._exit(0 if view.grab().save(picture) else 1)

    view.loadFinished.connect(lambda _ok: view.page().runJavaScript(script, show))
    view.load(QUrl.fromLocalFile(page))
    view.show()
    QTimer.singleShot(60_000, lambda: os._exit(1))
    application.exec()


if __name__ == "__main__":
    main(*sys.argv[1:])
