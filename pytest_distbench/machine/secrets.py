"""Secrets, which must not be stored: known by their name, their maker's mark, or as user and password of a URL.

Numbers (``max_tokens=512``) and texts that only sound like secrets (``tokenizer=gpt2``) are none.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MASK = "***"

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")

_ALWAYS = re.compile(
    r"(?:.*(?:token|secret|passwd|passphrase|pwd|(?:api|access|secret|private|auth|signing|ssh|rsa|master|session)key)"
    r"|.*password.*|(?:db|user|admin|root|smtp)pass|passcode|otp"
    r"|pswd|creds?|credentials?|bearer|jwt|auth|oauth|authorization|pat|cookie|sig|signature)s?"
)
"""Pattern of a word that names a secret, also run together with others: ``hftoken``."""

_OF_KEYS = frozenset(
    {"api", "access", "secret", "private", "ssh", "auth", "signing", "encryption", "master", "account"}
)
_OF_PASS = frozenset({"db", "user", "smtp", "ftp", "http", "admin", "root", "login", "ssh", "my"})
_HARMLESS = frozenset({
    "bos", "cache", "cls", "count", "dict", "dim", "dims", "dir", "end", "eos", "error", "exception", "file", "folder",
    "foreign", "group",
    "image", "index", "kind", "len", "length", "level", "mask", "max", "metric", "min", "mode", "name", "num", "pad",
    "padding", "path", "per", "primary", "query", "sep", "size", "sort", "special", "start", "state", "stop", "type",
    "unk", "video", "vocab", "warning",
})  # fmt: skip
"""Words with which *key* and *token* belong to a model, a table, or an exception's name."""
_LONGEST_NAME = 200
_PASSWORDS = re.compile(r".*(?:passw|pwd|pswd|passphrase|passcode)", re.IGNORECASE)  # of these digits are secrets too

# Every repetition below is possessive or has a limit: what a test passes may be megabytes of anything.
_USER_INFO = re.compile(r"(?<=://)(?::\S{1,500}|[^\s/:@]{1,200}:(?!\d+/)\S{0,500}|[^\s/]{0,500})@")
_HEADER = re.compile(
    r"""(?i)(\b(?:proxy-)?authorization["']?\s{0,8}[:=]\s{0,8}["']?|\b(?:set-)?cookie["']?\s{0,8}:\s{0,8}["']?)"""
    r"""[^"'\r\n]++"""
)
_NAME = re.compile(r"""(?<![\w.-])([\w.-]++)\\?["']?\s{0,8}(?::=|=>|==?|:|%3[Dd])\s{0,8}(?:[|>][+-]?\s{1,8})?""")
"""Pattern of a name and of the separator before its value, such as ``: ``; in YAML also the mark of a block."""
_VALUE = re.compile(
    r"""(?P<open>(?:\$|[bru]{0,2})(?P<quote>"{3}|'{3}|\\?["']))(?P<quoted>.{0,4000}?)(?P=quote)"""
    r"""|(?P<group>\[[^\]]{0,4000}\]|\{[^}]{0,4000}\}|\([^)]{0,4000}\))"""
    r"""|(?P<bare>[^\s,;&"'\\{}\[\]()]{1,4000}+)""",
    re.DOTALL,
)
_OPTION = re.compile(r"(?<!\S)(--?[A-Za-z][\w-]{0,200}+)(\s{1,8})([^\s-]\S*+)")
_KNOWN = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----|$)"
    r"|https://hooks\.slack\.com/services/\S++|https://(?:\w{1,20}\.)?discord(?:app)?\.com/api/webhooks/\S++"
    r"|(?<![\w-])(?:"
    r"A(?:BIA|CCA|GPA|IDA|IPA|KIA|NPA|NVA|PKA|ROA|SCA|SIA)[A-Z0-9]{16}\b"  # Amazon
    r"|AIza[\w-]{35}|ya29\.[\w-]{20,}+|GOCSPX-[\w-]{20,}+|GOOG(?:[A-Z0-9]{57}|[A-Z0-9]{20})\b"  # Google
    r"|[A-Za-z0-9+/]{86}==|[\w~.-]{3}\dQ~[\w~.-]{31,34}"  # Azure: of a storage account, of an application
    r"|gh[pousr]_[A-Za-z0-9]{20,}+|github_pat_\w{20,}+"
    r"|gl(?:pat|ptt|dt|rt|cbt)-[\w-]{16,}+"  # GitLab
    r"|hf_[A-Za-z0-9]{20,}+|api_org_[A-Za-z0-9]{20,}+|r8_[A-Za-z0-9]{20,}+|rpa_[A-Z0-9]{20,}+|wandb_v1_\w{20,}+"
    r"|sk-[\w-]{16,}+|[srp]k_(?:live|test)_[A-Za-z0-9]{10,}+|gsk_\w{20,}+|xai-\w{20,}+"  # OpenAI and others
    r"|xox[abeoprs]-[\w-]{10,}+|xapp-[\w-]{10,}+|\d{8,10}:AA[\w-]{30,}+"
    r"|npm_[A-Za-z0-9]{20,}+|pypi-[\w-]{16,}+|dckr_pat_[\w-]{16,}+|dop_v1_[0-9a-f]{32,}+|nvapi-[\w-]{20,}+"
    r"|dapi[0-9a-f]{32}|hvs\.[\w-]{20,}+|shp(?:at|ca|pa|ss)_\w{20,}+|sntrys_\w{20,}+|ATATT3x\S{20,}+|tskey-\w+-\S{16,}+"
    r"|SG\.[\w-]{16,}+\.[\w-]{16,}+|key-[0-9a-f]{32}\b|AGE-SECRET-KEY-1\w++|lin_api_\w{20,}+|whsec_[\w+/]{20,}+|glsa_\w{20,}+"
    r"|ey[JK][\w-]{8,}+\.[\w-]{8,}+(?:\.[\w-]*+)?)",  # JSON Web Tokens
    re.DOTALL,
)
"""Pattern of secrets that are recognised by their format, such as ``ghp_...``, as secret scanners do."""

LEAST_KNOWN = 8  # characters of a secret that is masked wherever it stands
_OF_SHELLS = frozenset({"PWD", "OLDPWD"})  # names of variables that sound like a password's, and are folders


def mask_secrets(value: Any) -> Any:
    """A parameter as it may be stored; what a mapping or list with a secret's name holds is secret too."""
    return _masked(value, "", is_secret=False)


def _masked(value: Any, name: str, *, is_secret: bool) -> Any:
    match value:
        case dict():
            named = is_secret or is_secret_name(str(value.get("name", "")))  # {"name": "TOKEN", "value": ...}
            return {
                k: _masked(inner, str(k), is_secret=is_secret or is_secret_name(str(k)) or (named and k == "value"))
                for k, inner in value.items()
            }
        case list():
            found = []
            for before, inner in zip(["", *value], value):  # noqa: B905 the last has none behind it
                match inner:
                    case [str(header), text] if not header.startswith("-") and is_secret_name(header):
                        found.append([header, _masked(text, header, is_secret=True)])  # of HTTP, of ``dict.items``
                    case _:
                        is_option = isinstance(before, str) and before.startswith("-") and "=" not in before
                        asks = is_option and not str(inner).startswith("--") and is_secret_name(before)
                        found.append(_masked(inner, name, is_secret=is_secret or asks))
            return found
        case str() if value and is_secret:
            return MASK
        case str():
            return mask_text(value)
        case int() if is_secret and not isinstance(value, bool) and _PASSWORDS.match(name):
            return MASK
    return value


def mask_arguments(arguments: Sequence[str]) -> list[str]:
    """A command line as it may be stored: ``--api-key X``, ``--api-key=X`` and ``api.key=X`` are masked."""
    return [_of_option(option, argument) for option, argument in itertools.pairwise(["", *arguments])]


def _of_option(option: str, value: str) -> str:
    is_option = option.startswith("-") and "=" not in option and not value.startswith("--")
    return MASK if is_option and is_secret_name(option) else mask_text(value)


def mask_text(text: str) -> str:
    """Mask the secrets in a text: in addresses, headers, JSON, connection strings, or by their format."""
    text = _KNOWN.sub(MASK, text)
    text = _USER_INFO.sub("", text)
    text = _HEADER.sub(rf"\1{MASK}", text)
    text = _mask_pairs(text)
    return _OPTION.sub(lambda m: f"{m[1]}{m[2]}{_of_option(m[1], m[3])}", text)


def secret_values(variables: Mapping[str, str]) -> list[str]:
    """Values of environment variables with secret names, the longest first, line by line.

    Fewer than 8 characters may be part of any word; numbers and paths are no secrets.
    """
    found = {
        line.strip()
        for name, value in variables.items()
        if name not in _OF_SHELLS and is_secret_name(name) and not (os.path.isabs(value) and os.path.lexists(value))
        for line in value.splitlines()
        if len(line.strip()) >= LEAST_KNOWN and (not _is_number(line) or _PASSWORDS.match(name))
    }
    return sorted(found, key=lambda value: (-len(value), value))


def mask_values(text: str, values: Iterable[str]) -> str:
    """Mask values that are known to be secret (:func:`secret_values`)."""
    for value in values:
        text = text.replace(value, MASK)
    return text


def is_secret_name(name: str) -> bool:
    words = [word.lower() for word in _WORD.findall(name)] if len(name) <= _LONGEST_NAME else []
    if found := [word for word in words if _ALWAYS.fullmatch(word)]:
        is_of_a_text = not _HARMLESS.isdisjoint(words) and {word.removesuffix("s") for word in found} == {"token"}
        return not (is_of_a_text or words[-1] in _HARMLESS)
    if words and words[-1] == "keys":
        return not _OF_KEYS.isdisjoint(words)
    if "key" in words:
        is_of_a_model = not _HARMLESS.isdisjoint(words) and _OF_KEYS.isdisjoint(words[: words.index("key")])
        return not (is_of_a_model or words[-1] in _HARMLESS)
    return words == ["pass"] or (words[-1:] == ["pass"] and not _OF_PASS.isdisjoint(words))


def _mask_pairs(text: str) -> str:
    """Mask values behind a secret's name: ``token=X``, ``"token": "X"``, ``--opt=token=X``."""
    parts = []
    at = start = 0
    while name := _NAME.search(text, start):
        start = name.end()
        word = name[1].rpartition(".")[2]
        if not is_secret_name(word):
            continue
        value = _VALUE.match(text, start)
        content = "" if value is None else value["quoted"] if value["quote"] else value["group"] or value["bare"]
        if value is None or not content or content == MASK:
            continue
        if _is_number(content) and not (content.isdigit() and _PASSWORDS.match(word)):
            continue
        parts += [text[at:start], value["open"] or "", MASK, value["quote"] or ""]
        at = start = value.end()
    return "".join([*parts, text[at:]])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text.lower() in ("true", "false", "none", "null")
    return True
