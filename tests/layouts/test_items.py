"""Items without a test file: which models, under which layouts, and what is refused."""

from __future__ import annotations

import pytest

from pytest_distbench import layouts
from pytest_distbench.errors import ConfigurationError
from pytest_distbench.layouts import LAYOUT_NAMES, items
from pytest_distbench.layouts.layouts import LAYOUTS
from pytest_distbench.plugin.names import rerun_command

MAKE = "def make():\n    raise AssertionError('collecting makes no model')\n"


def collected(pytester: pytest.Pytester, *arguments: str) -> list[str]:
    result = pytester.runpytest_inprocess("--collect-only", "-q", "--world-size=2", *arguments)
    assert result.ret == 0
    return [line for line in result.outlines if line.endswith("]")]


def test_the_layouts_are_those_of_more_than_one_rank() -> None:
    assert {*LAYOUT_NAMES} == {*LAYOUTS} - {"one"}


def test_each_model_under_each_layout_is_an_item_and_test_files_are_not_collected(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_other="def test_other():\n    pass\n")

    found = collected(pytester, "--distbench-model=transformers:qwen3,glm-4", "--distbench-full")

    assert found == [f"transformers::{name}[{each}-ws2]" for name in ("qwen3", "glm_4") for each in LAYOUT_NAMES]


def test_with_a_path_its_tests_are_collected_too(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(mine=MAKE, test_other="def test_other(distbench):\n    pass\n")

    found = collected(pytester, "--distbench-model=mine.py::make", "test_other.py", "-k", "ddp or other")

    assert found == ["test_other.py::test_other[ws2]", "mine.py::make[ddp-ws2]"]


def test_a_command_for_one_item_names_its_model_alone(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(mine=MAKE)
    models = "--distbench-model=transformers:llama,modernllama,mine.py::make"
    found, _ = pytester.inline_genitems(models, "--world-size=2")

    assert [rerun_command(item.config, item) for item in found if "ddp" in item.name] == [
        f"pytest -k '{name}[ddp-ws2]' --distbench-model {model} --collect-only --world-size=2"
        for name, model in [
            ("llama", "transformers:llama"),
            ("modernllama", "transformers:modernllama"),
            ("make", "mine.py::make"),
        ]
    ]


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("qwen3", "'qwen3'; wanted transformers:NAME[,NAME], or file.py::make"),
        ("timm:resnet50", "'timm:resnet50'; wanted transformers:NAME[,NAME], or file.py::make"),
        ("transformers:", "'transformers:'; wanted "),
        ("mine.py::", "'mine.py::'; wanted "),
    ],
)
def test_what_names_no_model_is_refused(text: str, refusal: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        items.read_models(text)

    assert refusal in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        (["--distbench-model=gone.py::make"], "*there is no file*gone.py*"),
        (["--distbench-model=,"], "*--distbench-model: ','; wanted*"),
        (["--distbench-model=transformers:llama", "--distbench-update"], "*nothing is stored of it*"),
    ],
)
def test_a_run_that_cannot_be_meant_is_a_usage_error(
    pytester: pytest.Pytester, arguments: list[str], refusal: str
) -> None:
    result = pytester.runpytest_inprocess(*arguments)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([refusal])


@pytest.mark.parametrize(("found", "reason"), [("4.57.1", "found 4.57.1"), ("", "which is not installed")])
def test_without_the_release_that_is_known_a_model_is_not_run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, found: str, reason: str
) -> None:
    def version(name: str) -> str:
        if not found:
            raise layouts.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(layouts, "version", version)
    result = pytester.runpytest_inprocess("--distbench-model=transformers:llama", "-k", "ddp", "-rs")

    result.assert_outcomes(skipped=1, deselected=len(LAYOUT_NAMES) - 1)
    result.stdout.fnmatch_lines([f"*not run: needs transformers 5.24, {reason}: pip install *[[]models[]]*"])
