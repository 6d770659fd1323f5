"""``distbench ci``: steps of GitHub jobs that publish what another job has measured or recorded.

A job with a token that may write runs these, and none of the measured code: it takes JSON and text. They run ``gh`` and
``git``, and need no torch.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from pytest_distbench import git
from pytest_distbench.commands import NegativeError, Subcommand, add_commands
from pytest_distbench.errors import DistbenchError
from pytest_distbench.report.formats import COMMENT_MARK, escape_annotation, write_comment
from pytest_distbench.store.files import read_run_record

_BOT = ("-c", "user.name=github-actions[bot]", "-c", "user.email=41898282+github-actions[bot]@users.noreply.github.com")
_LONGEST_BODY = 60_000  # of a pull request; GitHub takes 65,536 characters


def _comment(options: argparse.Namespace) -> Iterator[str]:
    del options
    number = git.pull_request()
    if not number:
        _annotate("notice", "no comment: this is no pull request, and no branch pull-request/NUMBER")
        return
    measured = _given("distbench-measured/run.json")
    if not measured.is_file():
        _annotate("notice", "no comment: nothing was measured")
        return
    written = io.BytesIO()
    try:
        write_comment(read_run_record(measured), written)
    except DistbenchError as error:
        _annotate("notice", f"no comment: {error}")
        return
    mark = COMMENT_MARK.replace(" -->", f" {_artifact()} -->")
    body = _given("body.md")
    body.write_text(written.getvalue().decode().replace(COMMENT_MARK, mark, 1))
    place = f"repos/{_variable('GITHUB_REPOSITORY')}/issues"
    known = [c["id"] for c in _rows(f"{place}/{number}/comments", ".[]") if _is_ours(c, mark)]
    send = ["PATCH", f"{place}/comments/{known[0]}"] if known else ["POST", f"{place}/{number}/comments"]
    if _gh("api", "--method", *send, "--field", f"body=@{body}", "--silent").returncode:
        refused = "this job may not write one (a fork's may not; others need pull-requests: write)"
        _annotate("notice", f"no comment: {refused}; the summary has the same")
        return
    yield f"{'replaced' if known else 'wrote'} the comment on pull request {number}"


def _is_ours(comment: dict[str, Any], mark: str) -> bool:
    return str(comment["user"]["type"]) == "Bot" and str(comment["body"]).startswith(mark)


def _publish(options: argparse.Namespace) -> Iterator[str]:
    return _comment(options) if git.pull_request() else _history(options)


def _history(options: argparse.Namespace) -> Iterator[str]:
    del options
    folder = _given("distbench-history")
    records = folder / "records"
    records.mkdir(parents=True, exist_ok=True)
    place = f"repos/{_variable('GITHUB_REPOSITORY')}/actions/artifacts"
    for row in _rows(f"{place}?name={_artifact()}&per_page=100", ".artifacts[]"):
        run = row["workflow_run"]  # a fork's branch may have the same name
        is_own = run["head_repository_id"] == run["repository_id"]
        if row["expired"] or not is_own or run["head_branch"] != _variable("GITHUB_REF_NAME"):
            continue
        try:
            kept = zipfile.ZipFile(io.BytesIO(_gh("api", f"{place}/{row['id']}/zip").stdout)).read("run.json")
        except (zipfile.BadZipFile, KeyError):
            _annotate("notice", f"the history is without artifact {row['id']}, which has no run record to download")
        else:
            (records / f"{row['id']}.json").write_bytes(kept)
    if not any(records.iterdir()):
        _annotate("notice", "no history: no run of this branch has kept a record")
        return
    trends = _distbench("history", str(records), "--format", "markdown")
    _append("GITHUB_STEP_SUMMARY", trends)
    yield from trends.splitlines()
    _distbench("history", str(records), "--points", "--all", "--format", "csv", "-o", str(folder / "history.csv"))


def _changes(options: argparse.Namespace) -> Iterator[str]:
    del options
    out = _given("distbench-out")
    if not (out / "run.json").is_file():
        return
    folder = read_run_record(out / "run.json").settings.get("baselines", "baselines")
    Path(folder).mkdir(parents=True, exist_ok=True)
    if git.why_ignored(Path(folder, "any.json")):
        _annotate("error", f".gitignore has {folder}, and baselines are committed: take it out of there")
        raise NegativeError
    changes = _distbench("baseline", "diff", "--baselines", folder, "--markdown")
    if failed := list(_failed(out / "junit.xml")):
        lines = "\n".join(failed).replace("```", "'''")
        changes += f"\nThese tests failed, and nothing of them was recorded:\n\n```text\n{lines}\n```\n"
    (out / "changes.md").write_text(changes)
    _append("GITHUB_STEP_SUMMARY", changes)
    _git("add", "--all", "--", folder)
    patch = _git("diff", "--cached", "--binary")
    (out / "baselines.patch").write_text(patch, errors="surrogateescape")
    if patch:
        _append("GITHUB_OUTPUT", "recorded=true\n")
    yield from changes.splitlines()


def _failed(junit: Path) -> Iterator[str]:
    for case in ElementTree.parse(junit).iter("testcase") if junit.is_file() else ():
        for found in [*case.findall("failure"), *case.findall("error")][:1]:
            message = found.get("message", "").partition("\n")[0]
            yield f"{case.get('classname')}.{case.get('name')}: {message}"


def _propose(options: argparse.Namespace) -> Iterator[str]:
    """Push a branch with the recorded baselines, and open a pull request, from JSON files and text alone."""
    del options
    host, run, attempt, base = map(_variable, ("HOST", "GITHUB_RUN_ID", "GITHUB_RUN_ATTEMPT", "GITHUB_REF_NAME"))
    branch, title = f"baselines/{host}-{run}-{attempt}", f"New baselines of {host}"
    _git("switch", "--create", branch)
    _git("apply", "--index", "--include=*.json", str(_given("distbench-measured/baselines.patch").resolve()))
    _git(*_BOT, "commit", "--message", f"{title}, measured in run {run}")
    if (done := _gh("auth", "setup-git")).returncode:
        raise DistbenchError(f"gh auth setup-git: {_said(done)}")
    _git("push", "origin", branch)
    body = _given("body.md")
    body.write_bytes(_given("distbench-measured/changes.md").read_bytes()[:_LONGEST_BODY])
    done = _gh("pr", "create", "--base", base, "--head", branch, "--title", title, "--body-file", str(body))
    if done.returncode:
        place = f"{_variable('GITHUB_SERVER_URL')}/{_variable('GITHUB_REPOSITORY')}/compare/{base}...{branch}"
        _annotate(
            "error",
            f"{branch} is pushed, and GitHub refused to open its pull request ({_said(done)}). Turn on Settings > "
            "Actions > General > Allow GitHub Actions to create and approve pull requests, or open it by hand: "
            f"{place}",
        )
        raise NegativeError
    yield f"pushed {branch}, and opened {done.stdout.decode().strip()}"


def _variable(name: str) -> str:
    if not (value := os.environ.get(name, "")):
        raise DistbenchError(f"{name} is not set: distbench ci is for jobs of GitHub Actions, which set it")
    return value


def _given(name: str) -> Path:
    return Path(_variable("RUNNER_TEMP"), name)


def _artifact() -> str:
    return os.environ.get("ARTIFACT", "distbench")


def _annotate(kind: str, text: str) -> None:
    """Print an annotation of the run directly: the command line would escape it."""
    print(f"::{kind} title=distbench::{escape_annotation(text)}", flush=True)


def _append(variable: str, text: str) -> None:
    with Path(_variable(variable)).open("a") as file:
        file.write(text)


def _gh(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["gh", *arguments], stdin=subprocess.DEVNULL, capture_output=True, check=False)


def _rows(place: str, what: str) -> list[dict[str, Any]]:
    done = _gh("api", "--paginate", place, "--jq", what)  # a row on a line, of all pages
    if done.returncode:
        _annotate("notice", f"gh api {place}: {_said(done)}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def _said(done: subprocess.CompletedProcess[bytes]) -> str:
    return done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"


def _git(*arguments: str) -> str:
    done = git.run(Path(), *arguments)
    if done.returncode:
        raise DistbenchError(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout


def _distbench(*arguments: str) -> str:
    """Return what a command prints; the command reports its errors itself."""
    command = [sys.executable, "-P", "-m", "pytest_distbench", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise NegativeError(done.returncode)
    return done.stdout


def _no_options(parser: argparse.ArgumentParser) -> None:
    del parser


_COMMANDS = {
    "publish": Subcommand("comment on a pull request; elsewhere write the history", _no_options, _publish),
    "comment": Subcommand(
        "keep one comment on the pull request for each $ARTIFACT up to date",
        _no_options,
        _comment,
    ),
    "history": Subcommand(
        "write the trend of each metric over what runs of this branch have kept as $ARTIFACT",
        _no_options,
        _history,
    ),
    "changes": Subcommand(
        "write what a run recorded as a patch and a table",
        _no_options,
        _changes,
    ),
    "propose": Subcommand(
        "push that patch as a branch of $HOST, and open a pull request",
        _no_options,
        _propose,
    ),
}

CI = Subcommand(
    "steps of GitHub's workflows, on distbench-out and distbench-measured in $RUNNER_TEMP",
    lambda parser: add_commands(parser, _COMMANDS),
)
