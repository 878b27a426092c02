"""Listening TCP ports, cheaply: the kernel is asked for listening sockets alone.

Reading /proc/net/tcp walks every connection of the machine: milliseconds on a busy or large one. The
kernel's socket diagnosis (netlink, ``inet_diag``) answers in some ten microseconds; where it is not to be had
(a sandbox, an old kernel) /proc is read after all.
"""

from __future__ import annotations

import socket
import struct

from dflash_backend.hostside import _sockets

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
REQUEST_DUMP = 0x301
DONE, ERROR = 3, 2
LISTEN = 1 << 10
HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port id
ASKED = struct.Struct("=BBBBI48x")  # family, protocol, extensions, padding, states, socket id
PORT_AT, INODE_AT = 4, 68
"""Where an inet_diag_msg holds the local port (network order) and the inode."""
TIMEOUT_S = 2.0


def listening() -> dict[int, int]:
    """Port -> inode of a socket that listens on it, on any address."""
    try:
        found = ask(socket.AF_INET)
        for port, inode in ask(socket.AF_INET6).items():
            found.setdefault(port, inode)
        return found
    except (OSError, struct.error, AttributeError):
        return {one.port: one.inode for one in _sockets.listeners()}


def ask(family: int) -> dict[int, int]:
    """Asks the kernel for one address family. Raises OSError, also for an answer that ends early."""
    found: dict[int, int] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as channel:
        channel.settimeout(TIMEOUT_S)
        body = ASKED.pack(family, socket.IPPROTO_TCP, 0, 0, LISTEN)
        channel.send(HEADER.pack(HEADER.size + len(body), SOCK_DIAG_BY_FAMILY, REQUEST_DUMP, 1, 0) + body)
        while True:
            answer = channel.recv(65536)
            at = 0
            while at < len(answer):
                length, kind, _, _, _ = HEADER.unpack_from(answer, at)
                if kind == DONE:
                    return found
                if kind == ERROR or length < HEADER.size:
                    raise OSError("the kernel does not tell its sockets")
                start = at + HEADER.size
                (port,) = struct.unpack_from("!H", answer, start + PORT_AT)
                (inode,) = struct.unpack_from("=I", answer, start + INODE_AT)
                found.setdefault(port, inode)
                at += (length + 3) & ~3
