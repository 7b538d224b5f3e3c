#!/usr/bin/env bash
# Makes the virtual environment that main.py runs in, with the SDK version that the automation service asks for.
set -euo pipefail
cd "$(dirname "$0")"

if .venv/bin/python -c 'from importlib.metadata import version as v; v("openhands-sdk"), v("openhands-tools"), v("openhands-workspace")' 2>/dev/null; then
	exit 0
fi

answer=$(curl -fsS --max-time 20 --retry 3 --retry-connrefused "${AUTOMATION_API_URL:?is not set}/sdk-version")
version=$(printf '%s' "$answer" | sed -n 's/.*"version"[[:space:]]*:[[:space:]]*"\([0-9A-Za-z.+-]*\)".*/\1/p')
if [ -z "$version" ]; then
	echo "setup.sh: no SDK version in the answer of the automation service" >&2
	exit 1
fi
packages=("openhands-sdk==$version" "openhands-tools==$version" "openhands-workspace==$version")

if command -v uv >/dev/null; then
	uv venv --quiet --python 3.12 .venv
	uv pip install --quiet --python .venv/bin/python "${packages[@]}"
else
	python3 -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check "${packages[@]}"
fi
