"""Text hygiene at the boundary: remote text is hostile until it has passed through here.

Measured on Textual 8.2.8: OSC, CSI, C1 and bidi characters in text reach the terminal byte for byte, so
nothing that came over SSH or HTTP may reach a widget, a file or a terminal before ``sanitise``.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Mapping

MAX_LINE = 8192
"""Characters kept of one log line; the rest is cut and counted."""

_SEQUENCES = re.compile(
    r"(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"  # OSC DCS SOS PM APC
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # CSI
    r"|\x1b[ -/]*[0-~]?"  # every other escape
)
_CONTROLS = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"  # C0 without tab, LF, CR; DEL; C1
    "\u00ad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890-\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202f\u205f-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff\ud800-\udfff]"
)
_SUSPECT = re.compile(r"[^\t\n -~]")
_NEWLINES = re.compile(r"\r\n?|\n")


def sanitise(text: str | bytes, *, multiline: bool = True, limit: int | None = None) -> str:
    """Removes everything that a terminal might obey; what is left is text.

    Dropped: escape sequences (7 and 8 bit, also cut off ones), C0 but tab and newline, DEL, C1, bidi
    controls, zero-width and variation characters, lone surrogates. Bytes are read as UTF-8 with U+FFFD for
    what is not. A lone CR counts as a newline. With ``multiline=False`` newlines and tabs become spaces.
    ``limit`` cuts the result, in characters, and ends it in ``…``. Never raises.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    if _SUSPECT.search(text):
        text = _SEQUENCES.sub("", text)
        text = _CONTROLS.sub("", text)
        text = _NEWLINES.sub("\n", text)
    if not multiline:
        text = text.replace("\n", " ").replace("\t", " ")
    if limit is not None and len(text) > limit:
        text = text[: max(0, limit - 1)] + "…"
    return text


class LineDecoder:
    """Turns a byte stream into clean lines: any chunking, invalid UTF-8, split escapes, endless lines.

    CR separates lines as LF does, so that each step of a progress bar is a line of its own; empty lines
    between the two are dropped. A line over ``max_line`` characters is cut and says how much is missing.
    Memory is bounded by ``max_line`` and one chunk.
    """

    def __init__(self, max_line: int = MAX_LINE) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._max = max_line
        self._rest = ""
        self._dropped = 0

    def feed(self, chunk: bytes) -> list[str]:
        """Complete lines that end in this chunk, sanitised, without line ends."""
        text = self._rest + self._decoder.decode(chunk)
        parts = _NEWLINES.split(text)
        self._rest = parts.pop()
        lines = [line for line in map(self._finish, parts) if line]
        if len(self._rest) > self._max:
            # Kept a little longer than shown, so that an escape split over chunks is still recognised.
            keep = self._max + 256
            self._dropped += max(0, len(self._rest) - keep)
            self._rest = self._rest[:keep]
        return lines

    def close(self) -> list[str]:
        """The unfinished last line, if there is one."""
        text = self._rest + self._decoder.decode(b"", final=True)
        self._rest = ""
        return [line for line in [self._finish(text)] if line]

    def _finish(self, raw: str) -> str:
        clean = sanitise(raw, multiline=False)
        missing = self._dropped + max(0, len(clean) - self._max)
        self._dropped = 0
        return f"{clean[: self._max]}… (+{missing} characters cut)" if missing else clean


REDACTED = "«redacted»"

_SECRET_WORDS = frozenset(
    "key keys token tokens password passwd passphrase secret secrets credential apikey bearer".split()
)
_NOT_SECRET = frozenset(
    # Names of SGLang that hold such a word and no secret.
    "mask_token bos_token eos_token pad_token unk_token num_tokens max_tokens stop_token think_end_token "
    "ssl_keyfile ssl_ca_certs enable_custom_logit_processor kv_transfer_key token max_new_tokens "
    "keyerror".split()
)
_WORD_SPLIT = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")


def is_secret_name(name: str) -> bool:
    """True when a setting of this name may hold a secret: a word of it is key, token, password or alike."""
    plain = name.strip("-").replace("-", "_").lower()
    if plain in _NOT_SECRET:
        return False
    return any(word.lower() in _SECRET_WORDS for word in _WORD_SPLIT.split(name) if word)


def redact_mapping(value: object, *, name: str = "") -> object:
    """A copy of decoded JSON in which every string under a secret name is replaced, at any depth.

    Numbers, booleans and nulls stay: no secret is one, and ``max_total_tokens`` must not vanish.
    """
    if isinstance(value, Mapping):
        return {str(key): redact_mapping(item, name=str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact_mapping(item, name=name) for item in value]
    if isinstance(value, str):
        return REDACTED if value and is_secret_name(name) else redact(value)
    return value


_OPTION = re.compile(
    r"(?P<head>--(?P<name>[A-Za-z][A-Za-z0-9-]*)(?:=|\s+))(?P<value>'[^']*'|\"[^\"]*\"|[^\s'\",\]]+)"
)
_LISTED = re.compile(
    r"(?P<head>['\"]--(?P<name>[A-Za-z][A-Za-z0-9-]*)['\"],\s*)(?P<value>'[^']*'|\"[^\"]*\")"
)
_ASSIGNED = re.compile(
    r"(?P<head>(?<![A-Za-z0-9_])['\"]?(?P<name>[A-Za-z_][A-Za-z0-9_]*)['\"]?\s*[=:]\s*)(?P<value>'[^']*'|\"[^\"]*\")"
)
_ENVIRONMENT = re.compile(
    r"(?P<head>(?<![A-Za-z0-9_])(?P<name>[A-Z][A-Z0-9_]*(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD))=)(?P<value>[^\s'\"]+)"
)
_BEARER = re.compile(r"(?P<head>\b[Bb]earer\s+)(?P<value>[A-Za-z0-9._~+/=-]{8,})")
_WELL_KNOWN = re.compile(r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,})\b")


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """``text`` without the secrets that SGLang prints (``--api-key X``, ``api_key='X'``, ``Bearer X``, …).

    ``secrets`` are known values that are removed wherever they stand; shorter ones than four characters are
    left, since they would eat ordinary text.
    """
    for secret in sorted({s for s in secrets if len(s) >= 4}, key=len, reverse=True):
        text = text.replace(secret, REDACTED)

    def named(match: re.Match[str]) -> str:
        value = match["value"]
        quote = value[0] if value[0] in "'\"" else ""
        inner = value.strip("'\"")
        # A count is no secret: --max-total-tokens 8192.
        if inner in ("", REDACTED, "None") or inner.isdigit() or not is_secret_name(match["name"]):
            return match[0]
        return f"{match['head']}{quote}{REDACTED}{quote}"

    if "--" in text:
        text = _OPTION.sub(named, text)
        text = _LISTED.sub(named, text)
    if "=" in text or ":" in text:
        text = _ASSIGNED.sub(named, text)
        text = _ENVIRONMENT.sub(lambda m: m["head"] + REDACTED, text)
    text = _BEARER.sub(lambda m: m["head"] + REDACTED, text)
    return _WELL_KNOWN.sub(REDACTED, text)


def redact_argv(argv: Iterable[str], secrets: Iterable[str] = ()) -> list[str]:
    """A command line without secrets: values of options with a secret's name, and known values."""
    known = tuple(secrets)
    out: list[str] = []
    hidden = False
    for part in argv:
        name, equals, value = part.partition("=")
        secret = part.startswith("--") and is_secret_name(name)
        if hidden and not part.startswith("--") and not part.isdigit():
            out.append(REDACTED)
        elif secret and value and not value.isdigit():
            out.append(f"{name}={REDACTED}")
        else:
            out.append(redact(part, known))
        hidden = secret and not equals
    return out
