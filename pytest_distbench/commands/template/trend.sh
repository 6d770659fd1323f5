cd "$RUNNER_TEMP/distbench-history"
distbench history records --format markdown | tee -a "$GITHUB_STEP_SUMMARY"
distbench history records --points --all --format csv -o history.csv
