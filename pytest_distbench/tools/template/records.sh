# Collects the run records that runs of this branch have kept: not a fork's, whose branch may have the same name.
records=$RUNNER_TEMP/distbench-history/records
mkdir -p "$records"
ours='.workflow_run.head_branch == env.GITHUB_REF_NAME and .workflow_run.head_repository_id == .workflow_run.repository_id'
gh api --paginate "repos/$GITHUB_REPOSITORY/actions/artifacts?name=$ARTIFACT-record&per_page=100" \
  --jq ".artifacts[] | select((.expired | not) and $ours) | .id" > "$RUNNER_TEMP/ids"
while read -r id; do
  gh api "repos/$GITHUB_REPOSITORY/actions/artifacts/$id/zip" > "$RUNNER_TEMP/record.zip" &&
    python -m zipfile -e "$RUNNER_TEMP/record.zip" "$records/$id" ||
    echo "::notice title=distbench::the history is without artifact $id, which could not be downloaded"
done < "$RUNNER_TEMP/ids"
