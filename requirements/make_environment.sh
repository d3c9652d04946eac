#!/usr/bin/env bash
# Build the virtual environment of a library from its lock file: requirements/make_environment.sh NAME
# It lies in the folder that FEATURECONTRACT_VENVS names (.venvs by default) and is kept while its lock file is the same.
set -eu
cd "$(dirname "$0")/.."
name=$1
folder=${FEATURECONTRACT_VENVS:-.venvs}/$name
lock=requirements/$name.txt
if cmp -s "$lock" "$folder/lock.txt"; then exit 0; fi
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
test -x "$folder/bin/python" || "${PYTHON:-python3}" -m venv "$folder"
for attempt in 1 2 3; do
  if "$folder/bin/python" -m pip install --quiet --no-deps -r "$lock"; then
    cp "$lock" "$folder/lock.txt"
    exit 0
  fi
  echo "$name: attempt $attempt to install its packages failed" >&2
  sleep 5
done
echo "NOT RUN $name: its packages could not be installed" >&2
exit 3
