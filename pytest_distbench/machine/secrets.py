"""What must not be stored: secrets, known by their name, by their shape, or by what stands before them in a text.

Numbers are no secrets (``max_tokens=512``); nor are texts that only sound like some (``tokenizer=gpt2``).
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MASK = "***"

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")

_ALWAYS = re.compile(
    r"(?:.*(?:token|secret|passwd|passphrase|pwd|(?:api|access|secret|private|auth|signing|ssh|rsa|master|session)key)"
    r"|.*password.*|(?:db|user|admin|root|smtp)pass|passcode|otp"
    r"|pswd|creds?|credentials?|bearer|jwt|auth|oauth|authorization|pat|cookie|sig|signature)s?"
)
"""A word that names a secret, also run together with others: ``hftoken``."""

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
"""Words beside *key* and *token* that make them parts of a model, of a table, or of an exception's name."""
_LONGEST_NAME = 200
_PASSWORDS = re.compile(r".*(?:passw|pwd|pswd|passphrase|passcode)", re.IGNORECASE)
"""Of these digits are secrets too."""
_OF_ACCOUNTS = re.compile(r"(?:.*user(?:name|id)?|login|account(?:name|id)?|accessid|clientid|principal)s?")
"""Names, words run together, of what object stores take an access key id for, beside the secret that belongs to it."""
_KEY_ID = re.compile(r"[A-Z0-9]{16,32}|[0-9a-f]{32}")
_HINTS = frozenset({"session", "webhook", "license", "licence", "login", "client", "sas"})
"""Words that make a text of random letters and digits a secret."""

# Every repetition below is possessive or has a limit: what a test passes may be megabytes of anything.
_USER_INFO = re.compile(r"(?<=://)(?::\S{1,500}|[^\s/:@]{1,200}:(?!\d+/)\S{0,500}|[^\s/]{0,500})@")
_SCHEME = re.compile(r"\b((?i:bearer|basic))(\s{1,8})(?=\S{0,200}[\dA-Z]|\S{16})[\w.~+/=-]{6,}+")
_HEADER = re.compile(
    r"""(?i)(\b(?:proxy-)?authorization["']?\s{0,8}[:=]\s{0,8}["']?|\b(?:set-)?cookie["']?\s{0,8}:\s{0,8}["']?)"""
    r"""[^"'\r\n]++"""
)
_NAME = re.compile(r"""(?<![\w.-])([\w.-]++)\\?["']?\s{0,8}(?::=|=>|==?|:|%3[Dd])\s{0,8}(?:[|>][+-]?\s{1,8})?""")
"""A name, and what stands between it and its value: in YAML also the mark of a block."""
_VALUE = re.compile(
    r"""(?P<open>(?:\$|[bru]{0,2})(?P<quote>"{3}|'{3}|\\?["']))(?P<quoted>.{0,4000}?)(?P=quote)"""
    r"""|(?P<group>\[[^\]]{0,4000}\]|\{[^}]{0,4000}\}|\([^)]{0,4000}\))"""
    r"""|(?P<bare>[^\s,;&"'\\{}\[\]()]{1,4000}+)""",
    re.DOTALL,
)
_OPTION = re.compile(r"(?<!\S)((?:sshpass\s{1,8}-|--?)[A-Za-z][\w-]{0,200}+)(\s{1,8})([^\s-]\S*+)")
_OF_USERS = frozenset({"-u", "--user", "--proxy-user"})
"""Options whose value is a name, a colon and a password."""
_SPOKEN = re.compile(
    r"""(?i)(?<![\w.-])([\w.-]{0,60}(?:password|passwd|passphrase|passcode|secret|token)["']?)"""
    r"""(\t\s{0,8}|>\s{0,8}|,\s{0,8}["']|\s{1,8}(?:is\s{1,8})?)([^\s<>"',;]{1,4000}+)"""
)
"""A name and a value without a sign between them: in prose, a netrc, XML, a list, a table with tabs."""
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
"""Formats whose makers have given them a mark, as secret scanners know them."""

LEAST_KNOWN = 8
"""Characters of a secret that is masked wherever it stands."""
_OF_SHELLS = frozenset({"PWD", "OLDPWD"})
"""Names of variables that sound like a password's, and are folders."""
_LEAST_SPOKEN = 6
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
            named = is_secret or is_secret_name(str(value.get("name", "")))  # {"name": "TOKEN", "value": ...}
            return {
                k: _masked(inner, str(k), is_secret=is_secret or is_secret_name(str(k)) or (named and k == "value"))
                for k, inner in value.items()
            }
        case [str(first), str(second)] if _is_spoken(first, ",", second):
            return [first, MASK]
        case list():
            return [
                [inner[0], _masked(inner[1], inner[0], is_secret=True)]
                if _is_secret_header(inner)
                else _masked(inner, name, is_secret=is_secret or _asks_for_a_secret(before, inner))
                for before, inner in zip(["", *value], value)  # noqa: B905 the last has none behind it
            ]
        case str() if value and (is_secret or _looks_secret(name, value)):
            return MASK
        case str():
            return mask_text(value)
        case int() if is_secret and not isinstance(value, bool) and _PASSWORDS.match(name):
            return MASK
    return value


def _is_secret_header(value: object) -> bool:
    """Whether one of a list's elements is a name and its value, as HTTP headers and ``dict.items`` come."""
    match value:
        case [str(name), _]:
            return not name.startswith("-") and is_secret_name(name)
    return False


def _asks_for_a_secret(before: object, argument: object) -> bool:
    """Whether an argument is the value of the option that stands before it."""
    is_option = isinstance(before, str) and before.startswith("-") and "=" not in before
    return is_option and not str(argument).startswith("--") and is_secret_name(str(before))


def mask_arguments(arguments: Sequence[str]) -> list[str]:
    """A command line as it may be stored: ``--api-key X``, ``--api-key=X`` and ``api.key=X`` are masked."""
    options = [f"sshpass {b}" if a.endswith("sshpass") else b for a, b in itertools.pairwise(["", "", *arguments])]
    return [_of_option(option, argument) for option, argument in zip(options, arguments, strict=False)]


def _of_option(option: str, value: str) -> str:
    """A word of a command line as it may be stored, behind an option or any other word."""
    if "=" in option or value.startswith("--") or not option.startswith(("-", "sshpass -")):
        return mask_text(value)
    user, colon, secret = value.partition(":")
    if option in _OF_USERS and secret and not _is_number(secret):
        return f"{user}{colon}{MASK}"
    is_secret = option == "sshpass -p" or is_secret_name(option) or _looks_secret(option, value)
    return MASK if is_secret else mask_text(value)


def _is_spoken(name: str, between: str, value: str) -> bool:
    """Whether a value is secret that follows a name like a word: it has to look like one, and be told of a password."""
    looks_secret = len(value) >= _LEAST_SPOKEN and re.search(r"\d", value) and re.search(r"[A-Za-z]", value)
    is_apart = not between.isspace() or "\t" in between
    return bool(looks_secret) and is_secret_name(name) and (is_apart or _PASSWORDS.match(name) is not None)


def mask_text(text: str) -> str:
    """A text without the secrets in it: in addresses, headers, JSON, connection strings, or by their format."""
    text = _KNOWN.sub(MASK, text)
    text = _USER_INFO.sub("", text)
    text = _HEADER.sub(rf"\1{MASK}", text)
    text = _SCHEME.sub(rf"\1\2{MASK}", text)
    text = _mask_pairs(text)
    text = _SPOKEN.sub(lambda m: f"{m[1]}{m[2]}{MASK}" if _is_spoken(m[1], m[2], m[3]) else m[0], text)
    return _OPTION.sub(lambda m: f"{m[1]}{m[2]}{_of_option(' '.join(m[1].split()), m[3])}", text)


def secret_values(variables: Mapping[str, str]) -> list[str]:
    """The values of environment variables that are secret by their names, the longest first; of several lines each.

    One of fewer than 8 characters may be part of any word; a number, and the path of something, are no secrets.
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
    """A text without values that are known to be secret (:func:`secret_values`)."""
    for value in values:
        text = text.replace(value, MASK)
    return text


def is_secret_name(name: str) -> bool:
    """Whether what has this name is a secret: by its words, however they are written together."""
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
    """Mask values behind the name of a secret: ``token=X``, ``"token": "X"``, and within a value, ``--opt=token=X``."""
    parts = []
    at = start = 0
    while name := _NAME.search(text, start):
        start = name.end()
        word = name[1].rpartition(".")[2]
        if not (is_secret_name(word) or _hints_at_a_secret(word) or _is_of_an_account(word)):
            continue
        value = _VALUE.match(text, start)
        if value is None or not _is_secret_pair(word, value):
            continue
        parts += [text[at:start], value["open"] or "", MASK, value["quote"] or ""]
        at = start = value.end()
    return "".join([*parts, text[at:]])


def _is_secret_pair(name: str, value: re.Match[str]) -> bool:
    content = value["quoted"] if value["quote"] else value["group"] or value["bare"]
    if not content or content == MASK:
        return False
    if is_secret_name(name):
        return not _is_number(content) or (content.isdigit() and _PASSWORDS.match(name) is not None)
    return _looks_secret(name, content)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text.lower() in ("true", "false", "none", "null")
    return True


def _looks_secret(name: str, value: str) -> bool:
    """Whether a value under a harmless name is a secret by what both look like together."""
    return _is_random_where_hinted(name, value) or (
        _is_of_an_account(name) and _KEY_ID.fullmatch(value) is not None and not _is_number(value)
    )


def _is_of_an_account(name: str) -> bool:
    return len(name) <= _LONGEST_NAME and _OF_ACCOUNTS.fullmatch("".join(_WORD.findall(name)).lower()) is not None


def _hints_at_a_secret(name: str) -> bool:
    return len(name) <= _LONGEST_NAME and not _HINTS.isdisjoint(word.lower() for word in _WORD.findall(name))


def _is_random_where_hinted(name: str, value: str) -> bool:
    if not _hints_at_a_secret(name) or len(value) < _LEAST_RANDOM or not re.fullmatch(r"[\w+/=.~-]+", value):
        return False
    if re.search(r"[A-Za-z]{8}", value) or not (re.search(r"\d", value) and re.search(r"[A-Za-z]", value)):
        return False  # words, or a number
    bits = -sum(n / len(value) * math.log2(n / len(value)) for n in Counter(value).values())
    return bits >= _LEAST_BITS
