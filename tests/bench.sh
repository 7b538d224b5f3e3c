#!/usr/bin/env bash
# Measures this service, and the Python service that it stands beside, and writes the medians into docs/BENCHMARKS.md. It makes
# what it needs: a PostgreSQL cluster that keeps its promises (unless TEST_POSTGRES_URL names one) and an environment with
# openhands-automation from PyPI. RUNS says how often (3), BENCH which benchmarks (a pattern, all), SHORT=1 looks whether they
# run at all, at a hundredth of their size, and writes nothing. Last, where nothing was picked, come the tests that are too long
# for make test: kills at every time of every point, storms of them, and days under load with flat memory; MATRIX=0 leaves them out.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly PEER=openhands-automation==1.26.0 POSTGRES_MAJOR=15
runs=${RUNS:-3} pattern=${BENCH:-.} short=${SHORT:-}
scratch=$(mktemp -d)
chmod 755 "$scratch"

die() { printf 'tests/bench.sh: %s\n' "$*" >&2; exit 1; }

as_cluster_user() {
	if [ "$(id -u)" = 0 ]; then
		setpriv --reuid=postgres --regid="$(id -g postgres)" --init-groups -- "$@"
	else
		"$@"
	fi
}

stop() {
	[ ! -e "$scratch/data/postmaster.pid" ] || kill -INT "$(head -n 1 "$scratch/data/postmaster.pid")" 2>/dev/null || true
	wait
	rm -rf "$scratch"
}
trap stop EXIT

start_postgres() {
	local bin=/usr/lib/postgresql/$POSTGRES_MAJOR/bin port=$((20000 + RANDOM % 12000))
	[ -x "$bin/initdb" ] || die "need PostgreSQL $POSTGRES_MAJOR (make test installs it) or TEST_POSTGRES_URL"
	mkdir "$scratch/data"
	[ "$(id -u)" != 0 ] || chown postgres: "$scratch/data"
	(cd / && as_cluster_user "$bin/initdb" --pgdata="$scratch/data" --username=postgres --auth=trust --encoding=UTF8 --locale=C.UTF-8 >/dev/null)
	(cd / && as_cluster_user "$bin/pg_ctl" start --pgdata="$scratch/data" --log="$scratch/data/log" --silent --wait \
		--options="-p $port -c listen_addresses=127.0.0.1 -c unix_socket_directories=$scratch/data -c timezone=UTC -c max_connections=300" </dev/null >/dev/null 2>&1) ||
		die "could not start PostgreSQL"
	export TEST_POSTGRES_URL="postgres://postgres@127.0.0.1:$port/postgres?sslmode=disable"
}

# need_peer makes the environment of the Python service once.
need_peer() {
	local candidate python= venv=${XDG_CACHE_HOME:-$HOME/.cache}/automation-bench/$PEER
	for candidate in python3.12 python3.13 python3.14 python3 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[2-9]*/bin/python3; do
		if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1; then
			python=$candidate
			break
		fi
	done
	[ -n "$python" ] || die "need Python 3.12 or newer for the Python service"
	if [ ! -e "$venv/complete" ]; then
		printf 'making %s\n' "$venv"
		rm -rf "$venv"
		mkdir -p "$(dirname "$venv")"
		"$python" -m venv "$venv"
		"$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$PEER"
		touch "$venv/complete"
	fi
	export AUTOMATION_BENCH_PYTHON=$venv/bin/python
}

facts() {
	printf 'Measured on %s: %s processors (%s), %s MiB of memory, %s, %s, %s on %s; load before: %s. `make bench`, %s runs.' \
		"$(date -u +%F)" "$(nproc)" "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)" \
		"$(awk '/MemTotal/ { print int($2 / 1024) }' /proc/meminfo)" "$(uname -sr)" "$(go env GOVERSION)" \
		"$(git log -1 --format=%h)" "$(df --output=fstype "${TMPDIR:-/tmp}" | tail -n 1)" "$(cut -d ' ' -f 1-3 /proc/loadavg)" "$runs"
}

FACTS=$(facts)
export FACTS
[ -n "${TEST_POSTGRES_URL:-}" ] || start_postgres
need_peer
: >"$scratch/output"
# All benchmarks once, then all again: what the machine does meanwhile meets ours and the Python service alike.
for ((n = 1; n <= runs; n++)); do
	go test -run '^$' -bench "$pattern" -benchtime 1x -count 1 -timeout 0 ${short:+-short} ./tests/bench | tee -a "$scratch/output"
done
[ -n "$short" ] || go run ./tests/bench/table docs/BENCHMARKS.md <"$scratch/output"
[ -n "$short${BENCH:-}" ] || [ "${MATRIX:-1}" = 0 ] || go test -tags matrix -count 1 -timeout 3h -run Matrix ./tests
