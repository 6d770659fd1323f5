# Writes what was recorded as a patch and a table, and which tests failed. The run record says where baselines are.
out=$RUNNER_TEMP/distbench-out
if [ ! -f "$out/run.json" ]; then exit 0; fi
folder=$(python -c 'import json, sys; print(json.load(open(sys.argv[1]))["settings"].get("baselines", "baselines"))' "$out/run.json")
mkdir -p "$folder"
if git check-ignore --quiet "$folder/any.json"; then
  echo "::error title=distbench::.gitignore has $folder, and baselines are committed: take it out of there"
  exit 1
fi
{
  distbench baseline diff --baselines "$folder" --markdown
  if grep -E '^(FAILED|ERROR) ' "$out/pytest.txt" > "$out/failed.txt"; then
    printf '\nThese tests failed, and nothing of them was recorded:\n\n```text\n%s\n```\n' "$(cat "$out/failed.txt")"
  fi
} > "$out/changes.md"
cat "$out/changes.md" >> "$GITHUB_STEP_SUMMARY"
git add --all -- "$folder"
git diff --cached --binary > "$out/baselines.patch"
if [ -s "$out/baselines.patch" ]; then echo recorded=true >> "$GITHUB_OUTPUT"; fi
