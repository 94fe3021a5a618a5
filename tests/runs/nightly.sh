#!/usr/bin/env bash
# Run all that landings run in part, on a clone of the commit that is checked out, so that the tree
# may change meanwhile. The last line says what ran, of which commit, and what failed. The clone with
# its environment stays in INFERENCE_STORE_NIGHTLY_CACHE for the next time.
set -euo pipefail
cd "$(dirname "$0")/../.."
origin=$PWD commit=$(git rev-parse HEAD)
.ci/packages
cache=${INFERENCE_STORE_NIGHTLY_CACHE:-$HOME/.cache/inference-store/nightly}
unset INFERENCE_STORE_NIGHTLY_CACHE  # no setting of the store: its commands would refuse it
mkdir -p "$cache"
exec {lock}>"$cache/.lock"
flock --nonblock "$lock" || { echo "another nightly runs in $cache"; exit 1; }
[ -d "$cache/tree" ] || git clone --quiet "$origin" "$cache/tree"
cd "$cache/tree"
git fetch --quiet "$origin" "$commit"
git checkout --quiet --force --detach "$commit"
git clean --quiet -fd

export INFERENCE_STORE_TEST_STEPS="$cache/steps" INFERENCE_STORE_TEST_FAILURES="$cache/failures"
export KILLS=each CI=true
rm -f "$INFERENCE_STORE_TEST_STEPS" "$INFERENCE_STORE_TEST_FAILURES"
touch "$INFERENCE_STORE_TEST_STEPS"
[ -n "${CITUS:-}" ] || [ ! -x "$origin/../shared/citus/build.sh" ] || export CITUS=$origin/../shared/citus
code=0
make --keep-going RING=nightly nightly-here || code=$?
.venv/bin/python -m tests.runs.steps --table
[ ! -s "$INFERENCE_STORE_TEST_FAILURES" ] || cat "$INFERENCE_STORE_TEST_FAILURES"
.venv/bin/python -m tests.runs.steps --sum "nightly of ${commit:0:12} in $((SECONDS / 60)) min"
exit $code
