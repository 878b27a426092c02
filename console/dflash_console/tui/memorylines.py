"""Memory of a server as lines of bars: one for each GPU, or the process where there is no GPU. Pure."""

from __future__ import annotations

from dflash_backend.core.samples import GpuSample, ServerSnapshot
from dflash_console.tui.figures import MISSING, bar_pieces, gib, gpu_share, percent
from dflash_console.tui.safetext import Pieces, clean

_GAP = 2
_SMALLEST = 9
_PART_NAMES = {"weights": "weights", "kv_cache": "KV", "graphs": "graphs"}


def memory_title(server: ServerSnapshot) -> str:
    """What the bars are, in words."""
    if server.gpus:
        names = sorted({gpu.name for gpu in server.gpus})
        count = len(server.gpus)
        name = names[0] if len(names) == 1 else f"{len(names)} kinds of GPU"
        share = gpu_share(server.gpus)
        return f"GPU memory   {count}x {name}   {percent(share) if share is not None else MISSING}"
    return "memory of the process   no GPU"


def memory_lines(server: ServerSnapshot, width: int, most: int) -> list[Pieces]:
    """At most ``most`` lines of ``width`` cells; GPUs go into as many columns as that needs."""
    if not server.gpus:
        note = server.gpu_note or "no GPU figures"
        words: list[Pieces] = [((note, "dim"),)]
        if server.rss_mib is not None:
            words.insert(0, ((f"resident {gib(server.rss_mib)} GiB", "text"),))
        return words[:most]
    count = len(server.gpus)
    parts = _parts(server)
    room = most - 1 if parts and most > 2 else most
    columns = max(1, -(-count // max(1, room)))
    columns = max(1, min(columns, (width + _GAP) // (_SMALLEST + _GAP)))
    cell = (width - _GAP * (columns - 1)) // columns
    rows = -(-count // columns)
    lines: list[Pieces] = []
    for row in range(rows):
        pieces: Pieces = ()
        for column in range(columns):
            index = column * rows + row if rows <= most else row * columns + column
            if index < count:
                pieces += ((" " * _GAP, "dim"),) if column else ()
                pieces += _gpu(server.gpus[index], cell)
        lines.append(pieces)
    if parts and len(lines) < most:
        lines.append(parts)
    if len(lines) > most:
        hidden = count - (most - 1) * columns
        lines = [*lines[: most - 1], ((f"… {hidden} more: a larger window shows them", "dim"),)]
    return lines


def _gpu(gpu: GpuSample, width: int) -> Pieces:
    share = gpu_share((gpu,))
    head = f"{gpu.index:>2} " if width >= 16 else f"{gpu.index} "
    words = f" {percent(share):>4}"
    if gpu.health not in ("ok", "unknown"):
        return (
            (head, "bad"),
            (clean(gpu.health)[: max(0, width - len(head))].ljust(max(0, width - len(head))), "bad"),
        )
    if width >= 34:
        words += f"  {gib(gpu.memory_used_mib):>5}/{gib(gpu.memory_total_mib)} GiB"
    if width >= 52:
        util = MISSING if gpu.utilization_pct is None else f"{gpu.utilization_pct:.0f}%"
        power = MISSING if gpu.power_w is None else f"{gpu.power_w:.0f}"
        heat = MISSING if gpu.temperature_c is None else f"{gpu.temperature_c:.0f}"
        words += f"  {util:>4} {power:>4} W {heat:>3} °C"
    room = max(1, width - len(head) - len(words))
    drawn = bar_pieces(share, room) or ((" " * room, "dim"),)
    return ((head, "dim"), *drawn, (words, "text" if share is not None else "dim"))


def _parts(server: ServerSnapshot) -> Pieces:
    memory = server.settings.memory_mib if server.settings else {}
    known = [(name, memory[key]) for key, name in _PART_NAMES.items() if key in memory]
    if not known:
        return ()
    pieces: Pieces = (("per GPU  ", "dim"),)
    for name, mib in known:
        pieces += ((f"{name} ", "dim"), (f"{gib(mib)}", "text"), ("   ", "dim"))
    return (*pieces, ("GiB", "dim"))
