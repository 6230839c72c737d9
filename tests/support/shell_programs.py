"""The program `ortdeploy` for shells and scripts of tests: each call is a fork of this process, which has all loaded.

A shell starts a small script, which hands its folder, environment, arguments and streams to a server, a fork of this
process. The server forks the program, and tells the script how that has ended. If the script ends first, as by a signal
to its group, the program gets that signal too.
"""

import ast
import importlib
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from support.forks import CAN_FORK, Fork, be_the_program

_ASKING = """\
#!{python} -IS
import _socket, os, sys
server = _socket.socket(_socket.AF_UNIX)
server.connect({address!r})
streams = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
request = repr((os.getcwd(), dict(os.environ), sys.argv[1:])).encode()
server.sendmsg([request], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
server.shutdown(_socket.SHUT_WR)
code = int(server.recv(16))
if code < 0:
    os.kill(os.getpid(), -code)
os._exit(code)
"""
_OF_MOST_COMMANDS = (
    "onnx", "onnxruntime", "ortdeploy.cli.children.apply", "ortdeploy.cli.commands.plan", "ortdeploy.graph.model",
    "ortdeploy.planning.workflow", "ortdeploy.jobs.executor", "ortdeploy.runtime.probe", "ortdeploy.runtime.session",
)  # fmt: skip
_PLAIN = '#!/bin/sh\nexec "{python}" -m ortdeploy "$@"\n'


@contextmanager
def shell_program(folder: Path) -> Iterator[Path]:
    """Put the program into a folder, for the variable PATH, and return the folder."""
    program, address = folder / "ortdeploy", str(folder / "server")
    program.write_text((_ASKING if CAN_FORK else _PLAIN).format(python=sys.executable, address=address))
    program.chmod(0o755)
    if not CAN_FORK:
        yield folder
        return
    for module in _OF_MOST_COMMANDS:
        importlib.import_module(module)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        here = (listening.fileno(),)
        with Fork(lambda: _serve(listening), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=here) as server:
            yield folder
            server.kill()


def _serve(listening: socket.socket) -> None:
    """Be the program for whoever asks, until the process of the tests ends, which holds the other end of the input."""
    waiting = select.poll()
    for one in (listening, sys.stdin):
        waiting.register(one, select.POLLIN)
    running: dict[int, tuple[Fork, socket.socket]] = {}
    while True:
        for number, _ in waiting.poll():
            if number == sys.stdin.fileno():
                return
            if number == listening.fileno():
                asking, _ = listening.accept()
                program = _begin(asking)
                ended = os.pidfd_open(program.pid)
                running |= {ended: (program, asking), asking.fileno(): (program, asking)}
                waiting.register(ended, select.POLLIN)
                waiting.register(asking, 0)  # whether it is hung up
            elif number in running:
                program, asking = running.pop(number)
                waiting.unregister(number)
                if number == asking.fileno():
                    program.terminate()
                    continue
                os.close(number)
                with suppress(OSError):  # it has ended
                    asking.sendall(f"{program.wait()}".encode())
                if running.pop(asking.fileno(), None):
                    waiting.unregister(asking)
                asking.close()


def _begin(asking: socket.socket) -> Fork:
    first, streams, _, _ = socket.recv_fds(asking, 1 << 16, 3)
    rest = iter(lambda: asking.recv(1 << 16), b"")
    cwd, environment, arguments = ast.literal_eval(b"".join([first, *rest]).decode())
    taken, printed, said = streams
    program = Fork(
        lambda: be_the_program(arguments),
        cwd=cwd, env=environment, stdin=taken, stdout=printed, stderr=said, start_new_session=True,
    )  # fmt: skip
    for one in streams:
        os.close(one)
    return program
