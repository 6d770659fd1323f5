# Keeps one comment for each artifact up to date. It takes nothing but text from the job that measured.
say() { echo "::notice title=distbench::no comment: $1"; }
if [[ $GITHUB_REF_NAME =~ ^pull-request/([0-9]+)$ ]]; then NUMBER=${BASH_REMATCH[1]}; fi
if [ -z "$NUMBER" ]; then say "this is no pull request, and no branch pull-request/NUMBER"; exit 0; fi
measured=$RUNNER_TEMP/distbench-measured/comment.md
if [ ! -f "$measured" ]; then say "nothing was measured"; exit 0; fi
body=$RUNNER_TEMP/body.md
{ echo "<!-- distbench $ARTIFACT -->"; head -c 65000 "$measured" | tail -n +2; } > "$body"
comments="repos/$GITHUB_REPOSITORY/issues/$NUMBER/comments"
mine='.[] | select(.user.type == "Bot" and (.body | startswith("<!-- distbench \(env.ARTIFACT) -->"))) | .id'
known=$(gh api --paginate "$comments" --jq "$mine" | head -n 1) || true
if [ -n "$known" ]; then
  send=(--method PATCH "repos/$GITHUB_REPOSITORY/issues/comments/$known")
else
  send=(--method POST "$comments")
fi
gh api "${send[@]}" --field body=@"$body" --silent ||
  say "this job may not write one (a fork's may not; others need pull-requests: write); the summary has the same"
