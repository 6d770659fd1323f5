"""What the texts of torch, gloo, NCCL and CUDA say of the rank that met them."""

from __future__ import annotations

import pytest
from support.nccl_texts import TEXTS

from pytest_distbench.launch.diagnosis.texts import SIGNS, last_error, read


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_is_read_for_what_it_is(name: str) -> None:
    text, kind, meaning = TEXTS[name]
    sign = read(text)

    assert sign is not None
    assert (sign.kind, sign.meaning) == (kind, meaning)


def test_every_cause_has_a_next_step() -> None:
    assert [sign.text for sign in SIGNS if sign.kind == "cause" and not (sign.meaning and sign.advice)] == []


@pytest.mark.parametrize(
    "text", ["ValueError: bad number 42", "RuntimeError: size mismatch", "OSError: [Errno 28] No space left on device"]
)
def test_what_is_not_known_is_no_sign(text: str) -> None:
    assert read(text) is None


def test_nccls_latest_warning_stands_behind_torchs_words() -> None:
    assert last_error(TEXTS["full shared memory"][0]).startswith("Error while creating shared memory segment /dev/shm/")
    assert last_error("NCCL error: internal error") == ""
