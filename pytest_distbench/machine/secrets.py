"""What must not be stored: secrets, known by their name, by their shape, or by what stands before them in a text.

Numbers are no secrets (``max_tokens=512``); nor are texts that only sound like some (``tokenizer=gpt2``).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

MASK = "***"

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")

_ALWAYS = re.compile(
    r"(?:.*(?:token|secret|password|passwd|passphrase|apikey|accesskey|secretkey|privatekey|authkey|signingkey)"
    r"|pwd|pswd|creds?|credentials?|bearer|jwt|auth|oauth|authorization|pat|cookie|sig|signature)s?"
)
"""A word that names a secret, also run together with others: ``hftoken``."""

_OF_KEYS = frozenset(
    {"api", "access", "secret", "private", "ssh", "auth", "signing", "encryption", "master", "account"}
)
_OF_PASS = frozenset({"db", "user", "smtp", "ftp", "http", "admin", "root", "login", "ssh", "my"})
_HARMLESS = frozenset({
    "bos", "cache", "cls", "count", "dict", "dim", "dims", "dir", "end", "eos", "file", "folder", "foreign", "group",
    "image", "index", "kind", "len", "length", "level", "mask", "max", "metric", "min", "mode", "name", "num", "pad",
    "padding", "path", "per", "primary", "query", "sep", "size", "sort", "special", "start", "state", "stop", "type",
    "unk", "value", "video", "vocab",
})  # fmt: skip
"""Words beside *key* and *token* that make them parts of a model or a table."""
_HINTS = frozenset({"session", "webhook", "license", "licence", "login", "client", "sas"})
"""Words that make a text of random letters and digits a secret."""

_USER_INFO = re.compile(r"(?<=://)(?:[^\s/:@]*:(?!\d+/)\S*|[^\s/]*)@")
_SCHEME = re.compile(r"\b((?i:bearer|basic))(\s+)(?=\S*[\dA-Z]|\S{16})[\w.~+/=-]{6,}")
_HEADER = re.compile(
    r"""(?i)(\b(?:proxy-)?authorization["']?\s*[:=]\s*["']?|\b(?:set-)?cookie["']?\s*:\s*["']?)[^"'\r\n]+"""
)
_PAIR = re.compile(
    r"""(?P<name>[\w.-]*[A-Za-z][\w.-]*)(?P<between>\\?["']?\s*[:=]\s*)"""
    r"""(?:(?P<quote>\\?["'])(?P<quoted>.*?)(?P=quote)|(?P<bare>[^\s,;&"'\\{}\[\]()]+))"""
)
_OPTION = re.compile(r"""(?P<name>(?<!\S)--?[A-Za-z][\w-]*)(?P<blank>\s+)(?P<value>[^\s-]\S*)""")
_KNOWN = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)"
    r"|\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16}\b"  # Amazon
    r"|\bAIza[\w-]{35}|\bya29\.[\w-]{20,}|\bGOCSPX-[\w-]{20,}"  # Google
    r"|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}"
    r"|\bgl(?:pat|ptt|dt|rt|cbt)-[\w-]{16,}"  # GitLab
    r"|\bhf_[A-Za-z0-9]{20,}|\bapi_org_[A-Za-z0-9]{20,}"  # Hugging Face
    r"|\bsk-(?:proj-|ant-|or-|live-|test-)?[\w-]{16,}|\b[srp]k_(?:live|test)_[A-Za-z0-9]{10,}"  # OpenAI and others
    r"|\bxox[abeoprs]-[\w-]{10,}|\bxapp-[\w-]{10,}|https://hooks\.slack\.com/services/\S+"
    r"|\bnpm_[A-Za-z0-9]{20,}|\bpypi-[\w-]{16,}|\bdckr_pat_[\w-]{16,}|\bdop_v1_[0-9a-f]{32,}|\bnvapi-[\w-]{20,}"
    r"|\bSG\.[\w-]{16,}\.[\w-]{16,}|\bkey-[0-9a-f]{32}\b|\bAGE-SECRET-KEY-1\w+|\blin_api_\w{20,}|\bglsa_\w{20,}"
    r"|\bey[JK][\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?",  # JSON Web Tokens
    re.DOTALL,
)
"""Formats whose makers have given them a mark, as secret scanners know them."""

_LEAST_RANDOM = 20
_LEAST_BITS = 3.3
"""Per character: 20 random letters and digits have about 4, words and numbers with separators about 3 or less."""


def mask_secrets(value: Any, name: str = "") -> Any:
    """A parameter as it may be stored.

    Args:
        value: numbers, texts, lists and mappings of these.
        name: of the parameter; what a mapping or list with a secret's name holds is secret whatever its own name.
    """
    return _masked(value, name, is_secret=is_secret_name(name))


def _masked(value: Any, name: str, *, is_secret: bool) -> Any:
    match value:
        case dict():
            return {
                k: _masked(inner, str(k), is_secret=is_secret or is_secret_name(str(k))) for k, inner in value.items()
            }
        case list() if not is_secret and all(isinstance(inner, str) for inner in value):
            return mask_arguments(value)
        case list():
            return [_masked(inner, name, is_secret=is_secret) for inner in value]
        case str() if value and (is_secret or _is_random_where_hinted(name, value)):
            return MASK
        case str():
            return mask_text(value)
    return value


def mask_arguments(arguments: Sequence[str]) -> list[str]:
    """A command line as it may be stored: ``--api-key X``, ``--api-key=X`` and ``api.key=X`` are masked."""
    found = []
    before = ""
    for argument in arguments:
        if before.startswith("-") and "=" not in before and not argument.startswith("--") and is_secret_name(before):
            found.append(MASK)
        else:
            found.append(mask_text(argument))
        before = argument
    return found


def mask_text(text: str) -> str:
    """A text without the secrets in it: in addresses, headers, JSON, connection strings, or by their format."""
    text = _KNOWN.sub(MASK, text)
    text = _USER_INFO.sub("", text)
    text = _HEADER.sub(rf"\1{MASK}", text)
    text = _SCHEME.sub(rf"\1\2{MASK}", text)
    text = _PAIR.sub(_mask_pair, text)
    return _OPTION.sub(lambda m: f"{m['name']}{m['blank']}{MASK}" if is_secret_name(m["name"]) else m[0], text)


def is_secret_name(name: str) -> bool:
    """Whether what has this name is a secret: by its words, however they are written together."""
    words = [word.lower() for word in _WORD.findall(name)]
    if found := [word for word in words if _ALWAYS.fullmatch(word)]:
        is_of_a_text = not _HARMLESS.isdisjoint(words) and {word.removesuffix("s") for word in found} == {"token"}
        return not (is_of_a_text or words[-1] in _HARMLESS)
    if words and words[-1] == "keys":
        return not _OF_KEYS.isdisjoint(words)
    if "key" in words:
        return _HARMLESS.isdisjoint(words) or not _OF_KEYS.isdisjoint(words[: words.index("key")])
    return words == ["pass"] or (words[-1:] == ["pass"] and not _OF_PASS.isdisjoint(words))


def _mask_pair(found: re.Match[str]) -> str:
    name = found["name"].rpartition(".")[2] if "." in found["name"] else found["name"]
    value = found["quoted"] if found["quote"] else found["bare"]
    if not value or value == MASK or not (is_secret_name(name) or _is_random_where_hinted(name, value)):
        # The value may hold a pair itself: --opt=key=X
        inner = _PAIR.sub(_mask_pair, value) if value else value
        quote = found["quote"] or ""
        return f"{found['name']}{found['between']}{quote}{inner}{quote}"
    if _is_number(value):
        return found[0]
    quote = found["quote"] or ""
    return f"{found['name']}{found['between']}{quote}{MASK}{quote}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text.lower() in ("true", "false", "none", "null")
    return True


def _is_random_where_hinted(name: str, value: str) -> bool:
    words = {word.lower() for word in _WORD.findall(name)}
    if _HINTS.isdisjoint(words) or len(value) < _LEAST_RANDOM or not re.fullmatch(r"[\w+/=.~-]+", value):
        return False
    if re.search(r"[A-Za-z]{8}", value) or not (re.search(r"\d", value) and re.search(r"[A-Za-z]", value)):
        return False  # words, or a number
    bits = -sum(n / len(value) * math.log2(n / len(value)) for n in Counter(value).values())
    return bits >= _LEAST_BITS
