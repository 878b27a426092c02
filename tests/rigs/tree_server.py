"""A server for the tests: listens, and has the kinds of children that real inference servers leave behind.

    tree_server.py PORT PIDS [FEATURE...]

Writes the pids of everything it started to the JSON file PIDS once it listens. Features:
    child          a child in the server's group
    orphan         a grandchild in the group whose parent is gone
    own-session    a grandchild in a session and group of its own, parent gone
    own-session-clean   the same, and without the environment of the server
    ignore-term    server and children ignore SIGTERM
    exit=CODE      ends with this code instead of serving
    crash          the server kills itself once everything stands, the others stay
    lines=N        prints N numbered lines first
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time

SLEEP = """
import signal, time
if {ignore}:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(600)
"""


def sleeper(kind: str) -> int:
    """Starts a process of the wanted kind; returns its pid."""
    came, told = os.pipe()
    first = os.fork()
    if first == 0:
        own = kind.startswith("own-session")
        if own:
            os.setsid()
        if own or kind == "orphan":
            second = os.fork()
            if second:
                os._exit(0)
        os.write(told, str(os.getpid()).encode())
        os.close(told)
        os.close(came)
        code = SLEEP.format(ignore="ignore-term" in sys.argv)
        env = {} if kind.endswith("clean") else dict(os.environ)
        os.execve(sys.executable, [sys.executable, "-c", code, kind], env)
    os.close(told)
    pid = int(os.read(came, 32))
    os.close(came)
    if kind != "child":
        os.waitpid(first, 0)
    return pid


def main() -> None:
    """Does what the features say."""
    port, pids_file, *features = sys.argv[1:]
    values = dict(feature.split("=", 1) for feature in features if "=" in feature)
    if "ignore-term" in features:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for number in range(int(values.get("lines", 0))):
        print(
            f"line {number:08d} of the log, as long as a usual one of a scheduler: #running-req: 1",
            flush=number % 1000 == 0,
        )
    if "exit" in values:
        print("last words", flush=True)
        sys.exit(int(values["exit"]))
    kinds = [kind for kind in ("child", "orphan", "own-session", "own-session-clean") if kind in features]
    pids = {"server": os.getpid(), **{kind: sleeper(kind) for kind in kinds}}
    with socket.create_server(("127.0.0.1", int(port))):
        with open(pids_file + ".new", "w") as stream:
            json.dump(pids, stream)
        os.replace(pids_file + ".new", pids_file)
        print("listening", flush=True)
        if "crash" in features:
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            time.sleep(600)


main()
