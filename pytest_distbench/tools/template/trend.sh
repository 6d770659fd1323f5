cd "$RUNNER_TEMP/distbench-history"
if [ -z "$(ls records)" ]; then echo "::notice title=distbench::no history: no run of this branch has kept a record"; exit 0; fi
distbench history records --format markdown | tee -a "$GITHUB_STEP_SUMMARY"
distbench history records --points --all --format csv -o history.csv
