"""The evidence: what was hooked, on which source, and what each draft layer really attends to.

The report is one JSON object, made once the draft worker stands, from the live layers. It appears

* in the start-up log (tensor-parallel rank 0), on one line: ``dflash-sglang: windows {json}``;
* in /server_info as ``internal_states[i]["dflash_sglang"]``, one per scheduler.

    {"schema": 1, "plugin": "0.1.0", "sglang": "0.5.11",
     "mode": "patched",
     "hooks": [{"name": "sglang.srt.models.dflash:DFlashAttention.__init__",
                "fingerprint": "5d066dc2b2f13a72"}, ...],
     "sources": [...],
     "draft_backend": "triton", "cached": null,
     "layers": [{"layer": 0, "declared": 256, "attended": 256, "causal": true}, ...],
     "note": null}

``mode``: *patched* windows set by this plugin (0.5.11 to 0.5.13.post1) · *verified* set by SGLang itself and
read back from its layers (0.5.14 and later) · *unverified* the same, but the layers could not be read,
``note`` says why · *off* DFLASH_SGLANG_WINDOWS=off, SGLang's own behaviour, read back · *idle* no DFLASH
drafter in this server. ``hooks`` are the functions wrapped, ``sources`` those relied upon. ``cached`` is the
number of tokens that the draft cache keeps visible (the draft window flag), null for all. ``declared`` is a
layer's window in the drafter's config, ``attended`` what the layer was built with; both count the query
itself, null is no limit. A layer sees the smaller of ``attended`` and ``cached``. Keys may be added; none
changes its meaning.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from . import __version__
from .windows import LayerWindow

SCHEMA = 1
LOG_PREFIX = "dflash-sglang: windows "
INTERNAL_STATE_KEY = "dflash_sglang"


def build(
    *,
    mode: str,
    sglang: str,
    hooks: Iterable[tuple[str, str]] = (),
    sources: Iterable[tuple[str, str]] = (),
    draft_backend: str | None = None,
    cached: int | None = None,
    declared: Sequence[LayerWindow] | None = None,
    attended: Sequence[LayerWindow] | None = None,
    note: str | None = None,
) -> dict[str, Any]:
    """The report as plain JSON types. ``hooks`` and ``sources`` are (name, fingerprint) pairs."""
    wanted = {layer.layer: layer.window for layer in declared or ()}
    return {
        "schema": SCHEMA,
        "plugin": __version__,
        "sglang": sglang,
        "mode": mode,
        "hooks": [{"name": name, "fingerprint": fingerprint} for name, fingerprint in hooks],
        "sources": [{"name": name, "fingerprint": fingerprint} for name, fingerprint in sources],
        "draft_backend": draft_backend,
        "cached": cached,
        "layers": [
            {
                "layer": layer.layer,
                "declared": wanted.get(layer.layer),
                "attended": layer.window,
                "causal": layer.causal,
            }
            for layer in attended or ()
        ],
        "note": note,
    }


def log_line(report: dict[str, Any]) -> str:
    """The report as its log line."""
    return LOG_PREFIX + json.dumps(report, separators=(",", ":"))
