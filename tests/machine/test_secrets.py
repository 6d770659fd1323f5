"""What may be stored: no secret, by name, mark or place in a URL; and everything else as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_distbench.machine import secrets
from pytest_distbench.machine.secrets import MASK, mask_arguments, mask_secrets, mask_text

PLAIN = "s3cr3tValue"
"""A secret without a shape: only a name or a place gives it away."""

SECRET_NAMES = [
    "api_key", "apikey", "api-key", "apiKey", "API_KEY", "MYAPIKEY", "myapikey", "x-api-key", "X_API_KEY", "key",
    "token", "tokens", "authtoken", "auth_token", "authToken", "access_token", "accesstoken", "refresh_token",
    "HFTOKEN", "hf_token", "HF_TOKEN", "mytoken", "github_token", "GITHUB_TOKEN", "-Dtoken", "--token", "--hf-token",
    "wandb_api_key", "WANDB_API_KEY", "secret", "secrets", "client_secret", "clientSecret", "AWS_SECRET_ACCESS_KEY",
    "aws_secret_key", "secretkey", "secret_key", "accesskey", "access_key", "access_key_id", "private_key",
    "privatekey", "ssh_key", "signing_key", "encryption_key", "account_key", "api_keys", "password", "PASSWORD",
    "passwd", "password1", "db_password", "dbpassword", "pwd", "PWD", "NCCL_PWD", "pass", "--pass", "db_pass",
    "smtp_pass", "passphrase", "--pwd", "--creds", "creds", "credential", "credentials", "cred", "bearer", "--bearer",
    "jwt", "--jwt", "auth", "oauth", "authorization", "PYTORCH_PAT", "github_pat", "cookie", "session_cookie", "sig",
    "signature",
]  # fmt: skip

HARMLESS = """
    tokenizer = gpt2
    api_key_file = /run/secrets/api
    max_tokens = 512
    eos_token = </s>
    tokens_per_step = 4k
    key_padding_mask = causal
    sort_key = loss
    state_dict_key = model
    keyboard = us
    author = ada
    forward_pass = eager
    path = /data/cifar10
    signal = SIGTERM
    pin_memory = true
    url = https://host/data.tar?version=2&split=train
    commit = 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b
    sha256 = 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
    optimizer = sgd,lr=0.1,momentum=0.9
    note = basic training of the bearer network
    model = sk-learn-digits
    run_id = run-2026-11-22
    message = use the token embedding: key and value are shared
    json = {"lr": 0.1, "tokenizer": "gpt2"}
    mail = ada@example.org
"""
"""Name and value, a line each."""

HARMLESS_VALUES = [tuple(line.strip().split(" = ", 1)) for line in HARMLESS.strip().splitlines()]

IN_TEXTS = [
    "https://me:{}@host/x",
    "https://{}@host/x",
    "https://host/x?a=1&access_token={}&b=2",
    "s3://bucket/x?X-Amz-Signature={}",
    "Authorization: Bearer {}",
    "X-Api-Key: {}",
    "Cookie: session={}",
    "host=db user=me password={} dbname=x",
    "redis://:{}@host:6379/0",
    '{{"a": {{"client_secret":"{}"}}, "lr": 0.1}}',
    "{{'password': b'{}'}}",
    '{{\\"api_key\\": \\"{}\\"}}',
    "--env=HF_TOKEN={}",
    "train.py --lr 0.1 --hf-token {}",
    "export WANDB_API_KEY={}",
    "token%3D{}",
    "token := {}",
    "password: >-\n  {}",
    'token = """{}"""',
    "PASSWORD=$'{}'",
]

SHAPES = [  # put together here, so that no scanner of repositories takes them for real ones
    "AKIA" + "IOSFODNN7EXAMPLE",
    "AIza" + "Sy0123456789abcdefghijklmnopqrstuvwx",
    "ghp_" + "a1B2" * 9,
    "github" + "_pat_" + "11ABCDEFG0" * 4,
    "glpat-" + "a1B2c3D4e5F6g7H8i9J0",
    "hf_" + "aBcD" * 9,
    "sk-" + "ant-api03-" + "a1B2" * 10,
    "xox" + "b-123456789012-abcdefGHIJ",
    "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxMjM0NTY3ODkwIn0" + ".dozjgNryP4J3jVmNHl0w5N",
    "-----BEGIN " + "RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\n-----END " + "RSA PRIVATE KEY-----",
]


def test_secrets_of_names_options_and_texts_are_masked_and_the_rest_is_there() -> None:
    for name in SECRET_NAMES:
        assert secrets.is_secret_name(name), name
        assert mask_secrets({name: PLAIN, "lr": 0.1}) == {name: MASK, "lr": 0.1}
        assert mask_secrets({"a": [{name: [PLAIN]}]}) == {"a": [{name: [MASK]}]}

    for name in SECRET_NAMES:
        if not name.startswith("-"):
            assert mask_arguments([f"--{name}={PLAIN}", "x"]) == [f"--{name}={MASK}", "x"]
            assert mask_arguments([f"--{name}", PLAIN, "x"]) == [f"--{name}", MASK, "x"]

    for text in IN_TEXTS:
        masked = mask_text(text.format(PLAIN))

        assert PLAIN not in masked, text
        assert masked.endswith(text.format("|").partition("|")[2].removeprefix("@"))  # what stands behind it
        assert mask_secrets({"a": text.format(PLAIN)}) == {"a": masked}

    assert mask_text(f"KeyError: 'token={PLAIN}'") == f"KeyError: 'token={MASK}'"
    assert mask_text(f"KeyError: '{SHAPES[0]}'") == f"KeyError: '{MASK}'"


@pytest.mark.parametrize("text", ["{}", "x {} y", "a=1,b={}", '{{"note": "{}"}}'])
def test_what_has_the_shape_of_a_secret_is_masked_wherever_it_stands(text: str) -> None:
    for secret in SHAPES:
        assert secret not in mask_text(text.format(secret))
        assert secret[:30] not in str(mask_secrets({"note": text.format(secret)}))
        assert secret[:30] not in str(mask_arguments(["--note", text.format(secret)]))


def test_what_is_harmless_or_a_number_stays_readable() -> None:
    for name, value in HARMLESS_VALUES:
        assert mask_secrets({name: value}) == {name: value}
        assert mask_arguments([f"--{name}={value}", f"--{name}", value]) == [f"--{name}={value}", f"--{name}", value]
    for value in (5, 0.5, True, None, 2**40):
        assert mask_secrets({"token": value}) == {"token": value}
        assert mask_text(f"--max-token={value}") == f"--max-token={value}"


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_what_is_masked_keeps_its_form_and_can_be_stored(value: Any) -> None:
    masked = mask_secrets({"a": value})

    assert type(masked["a"]) is type(value)
    assert json.loads(json.dumps(masked)) == masked


@pytest.mark.parametrize(
    ("given", "masked"),
    [
        ({"argv": ["--token", "S", 3]}, {"argv": ["--token", MASK, 3]}),
        ({"headers": [["X-Auth-Token", "S"]]}, {"headers": [["X-Auth-Token", MASK]]}),
        ({"env": [{"name": "HF_TOKEN", "value": "S"}]}, {"env": [{"name": "HF_TOKEN", "value": MASK}]}),
        ({"password": 12345678}, {"password": MASK}),
        ({"note": '{"tokens": ["S", "S"]}'}, {"note": f'{{"tokens": {MASK}}}'}),
        ({"note": "Server=x;Password={S};"}, {"note": f"Server=x;Password={MASK};"}),
        ({"note": "password=12345678"}, {"note": f"password={MASK}"}),
        # Names in a list are no secrets of each other
        ({"projections": ["key", "value"]}, {"projections": ["key", "value"]}),
        ({"projections": ["token", "position"]}, {"projections": ["token", "position"]}),
        ({"projections": [["query", "key"], 3]}, {"projections": [["query", "key"], 3]}),
    ],
)
def test_secrets_in_pairs_and_sequences_are_masked(given: object, masked: object) -> None:
    assert mask_secrets(given) == masked


def test_values_of_variables_with_the_name_of_a_secret_are_known(tmp_path: Path) -> None:
    variables = {
        "HF_TOKEN": PLAIN,
        "GITHUB_TOKEN": f"{PLAIN} and more",
        "DB_PASSWORD": "12345678",
        "SSH_KEY": "-----BEGIN-----\n  abcdefgh\n",
        "API_TOKEN": "short",
        "EMPTY_TOKEN": "",
        "MAX_TOKENS": "87654321",
        "NOTE": "harmless text",
        "SSH_AUTH_SOCK": str(tmp_path),
        "PWD": "/a/folder",
        "OLDPWD": "/gone/folder",
    }
    values = secrets.secret_values(variables)

    assert values == [f"{PLAIN} and more", "-----BEGIN-----", PLAIN, "12345678", "abcdefgh"]
    assert secrets.mask_values(f"x {PLAIN} and more, {PLAIN}y short", values) == f"x {MASK}, {MASK}y short"


@pytest.mark.timeout(60)
def test_megabytes_of_anything_take_no_more_than_a_moment() -> None:
    """It hung for hours on one word of some thousand letters."""
    for unit in (*'aA1 ="-.{', "a=", "token=", "://", "a:", '\\"', "--a ", "ey", "-----BEGIN ", "a-"):
        mask_text(unit * (200_000 // len(unit)))


@given(st.text())
def test_a_text_that_was_masked_is_masked_no_further(text: str) -> None:
    assert mask_text(mask_text(text)) == mask_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "token 5 of 10",
        "password is required",
        "the password must have 8letters",
        "use the token embedding2 now",
        "secret sauce1 of the layer3 block",
        "unexpected key layer1.weight",
        "docker run -u 1000:1000 image",
        "--user ada",
        'projections = ["token", "position"]',
        "KeyError: 'loss'",
        "TokenError: 'x'",
        "InvalidTokenException: bad",
        "key_error = 3",
    ],
)
def test_words_next_to_the_name_of_a_secret_stay_readable(text: str) -> None:
    assert mask_text(text) == text
    assert mask_arguments(text.split(" ")) == text.split(" ")
