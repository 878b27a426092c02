"""The plugin's wheel: its own small distribution, made from the package's files with nothing but a zip.

The same files give the same bytes, so the hash names the content. The entry point that makes SGLang load the
plugin is declared here and nowhere else: the console's own distribution has none.
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

import dflash_sglang

DISTRIBUTION = "dflash-sglang"
PACKAGE = "dflash_sglang"
ENTRY_POINT = "dflash_sglang"
"""Name in the group ``sglang.srt.plugins``: what SGLANG_PLUGINS must contain when it is set."""

GROUP = "sglang.srt.plugins"
_WHEEL = b"Wheel-Version: 1.0\nGenerator: dflash-console\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_FILES = (".py", ".json", ".typed")


@dataclass(frozen=True)
class Wheel:
    """A built wheel. ``sha256`` is of ``data``, in hexadecimal."""

    filename: str
    version: str
    sha256: str
    data: bytes


def build() -> Wheel:
    """Builds the wheel from the installed package."""
    return pack(dflash_sglang.__version__, dict(_package_files()))


def pack(version: str, package: Mapping[str, bytes]) -> Wheel:
    """A wheel of this distribution with the package's files given by name."""
    name = DISTRIBUTION.replace("-", "_")
    files = {f"{PACKAGE}/{path}": data for path, data in package.items()}
    info = f"{name}-{version}.dist-info"
    files[f"{info}/METADATA"] = _metadata(version)
    files[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: dflash-console\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    files[f"{info}/entry_points.txt"] = (
        f"[sglang.srt.plugins]\n{ENTRY_POINT} = {PACKAGE}.entry:register\n".encode()
    )
    files[f"{info}/top_level.txt"] = f"{PACKAGE}\n".encode()
    record = "".join(f"{path},sha256={_digest(data)},{len(data)}\n" for path, data in sorted(files.items()))
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path, data in sorted(files.items()):
            entry = zipfile.ZipInfo(path, date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data)
    data = out.getvalue()
    return Wheel(f"{name}-{version}-py3-none-any.whl", version, hashlib.sha256(data).hexdigest(), data)


def _package_files() -> list[tuple[str, bytes]]:
    folder = resources.files(PACKAGE)
    return sorted(
        (item.name, item.read_bytes())
        for item in folder.iterdir()
        if item.is_file() and item.name.endswith(_FILES)
    )


def _metadata(version: str) -> bytes:
    return (
        "Metadata-Version: 2.1\n"
        f"Name: {DISTRIBUTION}\n"
        f"Version: {version}\n"
        "Summary: SGLang plugin: DFlash drafter windows that hold\n"
        "License: MIT\n"
        "Requires-Python: >=3.10\n"
    ).encode()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
