"""Opens a page in Qt's Chromium, without a screen or a network, and prints what a script in it says, as JSON."""

import os
import sys
from typing import Any

os.environ |= {
    "QT_QPA_PLATFORM": "offscreen",
    "QTWEBENGINE_DISABLE_SANDBOX": "1",
    "QTWEBENGINE_CHROMIUM_FLAGS": "--no-sandbox --disable-gpu",
}

from PyQt6.QtCore import QTimer, QUrl
from PyQt6.QtWebEngineCore import QWebEngineUrlRequestInterceptor
from PyQt6.QtWebEngineWidgets import QWebEngineView
from PyQt6.QtWidgets import QApplication

asked: list[str] = []


class Listener(QWebEngineUrlRequestInterceptor):
    """Takes note of everything that the page asks for."""

    def interceptRequest(self, info: Any) -> None:  # noqa: N802  Qt's name
        asked.append(info.requestUrl().toString())


def main(page: str, script: str, width: str = "1000") -> None:
    """Load the page in a window of so many pixels, run the script in it, print its result and the number of requests."""
    application = QApplication(sys.argv[:1])
    view = QWebEngineView()
    view.resize(int(width), 1400)
    listener = Listener()
    view.page().profile().setUrlRequestInterceptor(listener)

    def show(result: str) -> None:
        sys.stdout.write(f"{len(asked)} {result}\n")
        sys.stdout.flush()
        os._exit(0)  # Qt's own end needs a display server's patience

    view.loadFinished.connect(lambda _ok: view.page().runJavaScript(script, show))
    view.load(QUrl.fromLocalFile(page))
    view.show()
    QTimer.singleShot(60_000, lambda: os._exit(1))
    application.exec()


if __name__ == "__main__":
    main(*sys.argv[1:])
