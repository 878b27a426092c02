"""A model's config.json on the host: in a folder, in the Hugging Face cache, or built into the engine."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from dflash_backend.hostside._search_path import SearchPath, read_bounded, said

MAX_CONFIG = 4 << 20
"""Bytes of a config.json; the largest real ones are far below 100 kB."""
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_BUILTIN = "builtin:"


def find_config(
    model: str, revision: str, env: Mapping[str, str], cwd: str, path: SearchPath
) -> dict[str, Any]:
    """``{"where", "data"}`` or ``{"problem"}``: why there is none to read."""
    where, problem = _place(model, revision, env, cwd, path)
    if not where:
        return {"problem": problem}
    try:
        return {"where": where, "data": read_bounded(where, MAX_CONFIG), "note": problem}
    except OSError as error:
        return {"problem": said(where, error)}


def _place(model: str, revision: str, env: Mapping[str, str], cwd: str, path: SearchPath) -> tuple[str, str]:
    """(the file, a note) or ("", why there is none)."""
    if model.startswith(_BUILTIN):
        return _builtin(model[len(_BUILTIN) :], path)
    local = os.path.join(cwd, os.path.expanduser(model))
    if os.path.isdir(local):
        return os.path.join(local, "config.json"), ""
    if os.path.isfile(local):
        return "", local + " is a single file: a config.json stands in a model's folder"
    if os.path.isabs(model) or model.startswith(("~", ".")) or _HUB_ID.fullmatch(model) is None:
        try:
            os.stat(local)
        except OSError as error:
            return "", said(local, error)
        return "", local + " is no model's folder"
    return _in_hub(model, revision, env)


def _builtin(part: str, path: SearchPath) -> tuple[str, str]:
    if part not in ("target", "drafter"):
        return "", "there is no built-in model " + part
    for copy in path.copies("dflash_engine"):
        if "folder" in copy:
            return os.path.join(copy["folder"], "data", "reference_pair", part, "config.json"), ""
    return "", "the reference engine is not installed in this interpreter"


def hub_folders(env: Mapping[str, str]) -> list[str]:
    """Hugging Face caches in the order in which huggingface_hub takes them."""
    home = env.get("HOME") or os.path.expanduser("~")
    cache = env.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    root = env.get("HF_HOME") or os.path.join(cache, "huggingface")
    named = [env.get("HF_HUB_CACHE"), env.get("HUGGINGFACE_HUB_CACHE"), os.path.join(root, "hub")]
    found: list[str] = []
    for folder in named:
        if folder and os.path.expanduser(folder) not in found:
            found.append(os.path.expanduser(folder))
    return found


def _in_hub(model: str, revision: str, env: Mapping[str, str]) -> tuple[str, str]:
    looked = []
    for hub in hub_folders(env):
        folder = os.path.join(hub, "models--" + model.replace("/", "--"))
        looked.append(folder)
        if not os.path.isdir(folder):
            continue
        wanted = revision or "main"
        snapshots = os.path.join(folder, "snapshots")
        if _COMMIT.fullmatch(wanted):
            return os.path.join(snapshots, wanted, "config.json"), ""
        try:
            with open(os.path.join(folder, "refs", wanted), encoding="ascii", errors="replace") as stream:
                commit = stream.read(200).strip()
        except OSError as error:
            commit = ""
            problem = said(os.path.join(folder, "refs", wanted), error)
        else:
            problem = f"refs/{wanted} holds no commit"
        if _COMMIT.fullmatch(commit):
            return os.path.join(snapshots, commit, "config.json"), ""
        try:
            there = sorted(os.listdir(snapshots))
        except OSError as error:
            return "", said(snapshots, error)
        if len(there) == 1 and not revision:
            note = problem + "; the only snapshot there was read"
            return os.path.join(snapshots, there[0], "config.json"), note
        return "", f"{problem}; {len(there)} snapshots there, which one is served is not known"
    return "", f"{model} is in no Hugging Face cache on the host (looked in {', '.join(looked)})"
