# Pushes a branch with what was recorded, and opens a pull request. It takes JSON files and text, and no code.
measured=$RUNNER_TEMP/distbench-measured
branch=baselines/$HOST-$GITHUB_RUN_ID-$GITHUB_RUN_ATTEMPT
git switch --create "$branch"
git apply --index --include='*.json' "$measured/baselines.patch"
git -c user.name='github-actions[bot]' -c user.email='41898282+github-actions[bot]@users.noreply.github.com' \
  commit --message "New baselines of $HOST, measured in run $GITHUB_RUN_ID"
gh auth setup-git
git push origin "$branch"
head -c 60000 "$measured/changes.md" > "$RUNNER_TEMP/body.md"
if ! gh pr create --base "$GITHUB_REF_NAME" --head "$branch" --title "New baselines of $HOST" --body-file "$RUNNER_TEMP/body.md"; then
  echo "::error title=distbench::$branch is pushed, and GitHub refused to open its pull request. Turn on Settings > Actions >" \
    "General > Allow GitHub Actions to create and approve pull requests, or open it by hand:" \
    "$GITHUB_SERVER_URL/$GITHUB_REPOSITORY/compare/$GITHUB_REF_NAME...$branch"
  exit 1
fi
