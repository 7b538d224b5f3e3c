#!/usr/bin/env bash
# Runs every test. Installs what they need where it is missing (bare Debian: as root or with sudo), starts one PostgreSQL
# cluster and one Docker engine for the run and stops them again. Stages have a budget in minutes: set-up over its own only
# warns, any other stage or the whole over theirs fails.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly SETUP_MINUTES=4 PACKAGES_MINUTES=12 BLACKBOX_MINUTES=13 TOTAL_MINUTES=25
readonly COVERAGE_FLOOR=76 # per cent of statements (S1-063)
readonly POSTGRES_MAJOR=15 # the oldest that is tested; a newer one that Debian brings will do

export GOFLAGS="${GOFLAGS:-} -buildvcs=false" # a checkout may belong to another user
scratch=$(mktemp -d)
chmod 755 "$scratch" # the cluster's user has to get in
failures=()

say() { printf '%s\n' "$*"; }
die() { say "tests/run.sh: $*" >&2; exit 1; }

# stage NAME MINUTES COMMAND… runs one stage within its budget.
stage() {
	local name=$1 minutes=$2 began=$SECONDS status=0
	shift 2
	say "== $name: budget $minutes min"
	"$@" || status=$?
	local took=$((SECONDS - began))
	say "== $name: $((took / 60)) min $((took % 60)) s of $minutes min, $([ $status = 0 ] && echo passed || echo "failed")"
	if [ $status != 0 ]; then
		failures+=("$name")
	elif [ $took -gt $((minutes * 60)) ]; then
		if [ "$name" = set-up ]; then
			say "warning: set-up went over its budget"
		else
			failures+=("$name went over its budget")
		fi
	fi
}

# within MINUTES COMMAND… ends a command that would run away. It runs beside the shell, so that an interrupt ends it at once.
running=
within() {
	local minutes=$1 status=0
	shift
	timeout --kill-after=30 $((minutes * 60 + 30)) "$@" &
	running=$!
	wait $running || status=$?
	running=
	return $status
}

# --- set-up ---

as_root() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	elif command -v sudo >/dev/null; then
		sudo -n "$@"
	else
		die "need root or sudo for: $*"
	fi
}

# apt_install PACKAGE… without starting what it brings.
apt_install() {
	command -v apt-get >/dev/null || die "cannot install $*: this is no Debian; install them by hand"
	say "installing $*"
	as_root mkdir -p /etc/postgresql-common
	[ -e /etc/postgresql-common/createcluster.conf ] ||
		echo 'create_main_cluster = false' | as_root tee /etc/postgresql-common/createcluster.conf >/dev/null
	as_root apt-get update -qq
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
		-o Dpkg::Options::=--force-confold -o DPkg::Lock::Timeout=120 "$@" >"$scratch/apt.log" 2>&1 || {
		tail -20 "$scratch/apt.log"
		die "could not install $*"
	}
}

# postgres_bin prints the folder of the server's programs, or nothing.
postgres_bin() {
	local dir major
	for dir in /usr/lib/postgresql/*/bin /usr/local/pgsql/bin; do
		[ -x "$dir/initdb" ] || continue
		major=$("$dir/postgres" --version | sed -E 's/^[^0-9]*([0-9]+).*/\1/')
		if [ "$major" -ge $POSTGRES_MAJOR ]; then
			echo "$dir"
			return
		fi
	done
}

can_compile_c() { echo 'int main(void){return 0;}' | gcc -x c -include stdlib.h -o "$scratch/cc" - 2>/dev/null; }

need_tools() {
	local missing=()
	command -v go >/dev/null || die "need Go 1.26 or newer in PATH"
	can_compile_c || missing+=(gcc libc6-dev)
	[ -n "$(postgres_bin)" ] || missing+=(postgresql)
	if [ ${#missing[@]} -gt 0 ]; then
		apt_install "${missing[@]}"
	fi
}

# as_cluster_user runs a command as a user that PostgreSQL accepts: it refuses root.
as_cluster_user() {
	if [ "$(id -u)" != 0 ]; then
		"$@"
		return
	fi
	if ! id postgres >/dev/null 2>&1; then
		useradd --system --no-create-home --shell /usr/sbin/nologin postgres
	fi
	setpriv --reuid=postgres --regid="$(id -g postgres)" --init-groups -- "$@"
}

start_postgres() {
	local bin data=$scratch/cluster port tries
	bin=$(postgres_bin)
	mkdir "$data"
	[ "$(id -u)" != 0 ] || chown postgres: "$data"
	(cd / && as_cluster_user "$bin/initdb" --pgdata="$data/data" --username=postgres --auth=trust --encoding=UTF8 \
		--locale=C.UTF-8 --no-sync >"$scratch/initdb.log") || { cat "$scratch/initdb.log"; die "initdb failed"; }
	for tries in 1 2 3 4 5; do
		port=$((20000 + RANDOM % 12000))
		if (cd / && as_cluster_user "$bin/pg_ctl" start --pgdata="$data/data" --log="$data/log" --silent --wait --timeout=60 \
			--options="-p $port -c listen_addresses=127.0.0.1 -c unix_socket_directories=$data -c max_connections=300 \
			-c fsync=off -c synchronous_commit=off -c full_page_writes=off -c timezone=UTC" </dev/null >/dev/null 2>&1); then
			export TEST_POSTGRES_URL="postgres://postgres@127.0.0.1:$port/postgres?sslmode=disable"
			say "PostgreSQL: $TEST_POSTGRES_URL"
			return
		fi
		say "no PostgreSQL on port $port (try $tries)"
	done
	cat "$data/log"
	die "could not start PostgreSQL"
}

# stop_postgres ends our own cluster, by its pid.
stop_postgres() {
	local pidfile=$scratch/cluster/data/postmaster.pid pid
	[ -e "$pidfile" ] || return 0
	pid=$(head -n 1 "$pidfile")
	kill -INT "$pid" 2>/dev/null || return 0
	for _ in $(seq 100); do
		kill -0 "$pid" 2>/dev/null || return 0
		sleep 0.1
	done
	kill -QUIT "$pid" 2>/dev/null || true
}

# need_docker installs and starts an engine of this run's own, with its data, its socket and its bridge. It leaves the host's
# firewall alone: published ports are on loopback, and boxes need nothing beyond the host. An engine that the caller names is
# used as it is.
need_docker() {
	local missing=() tool dir=$scratch/docker bridge=auto$$ subnet="10.$((200 + RANDOM % 50)).$((RANDOM % 256))"
	[ -z "${TEST_DOCKER_HOST:-}" ] || return 0
	for tool in dockerd:docker.io ip:iproute2 busybox:busybox-static; do
		[ -n "$(PATH=$PATH:/usr/sbin:/sbin command -v "${tool%%:*}")" ] || missing+=("${tool##*:}")
	done
	if [ ${#missing[@]} -gt 0 ]; then
		apt_install "${missing[@]}"
	fi
	command -v docker >/dev/null || apt_install docker-cli # a package of its own from Debian 13 on
	mkdir "$dir"
	as_root ip link add name "$bridge" type bridge && docker_bridge=$bridge &&
		as_root ip address add "$subnet.1/24" dev "$bridge" && as_root ip link set "$bridge" up &&
		as_root sh -c "exec dockerd --data-root '$dir/data' --exec-root '$dir/exec' --pidfile '$dir/pid' --host 'unix://$dir/sock' \
			--group '$(id -gn)' --bridge '$bridge' --iptables=false --ip-forward=false >'$dir/log' 2>&1 &" || {
		no_docker "could not prepare a Docker engine"
		return
	}
	for _ in $(seq 300); do
		if docker --host "unix://$dir/sock" info >/dev/null 2>&1; then
			export TEST_DOCKER_HOST=unix://$dir/sock
			say "Docker: $TEST_DOCKER_HOST, $(docker --host "$TEST_DOCKER_HOST" info --format '{{.ServerVersion}} on {{.Driver}}')"
			return
		fi
		sleep 0.1
	done
	tail -n 20 "$dir/log"
	no_docker "the Docker engine does not start here"
}

no_docker() {
	[ "${CI:-}" != true ] || die "$1"
	say "$1: the tests that need one are skipped"
}

# stop_docker ends our own engine, by its pid, and removes its bridge.
stop_docker() {
	local pid
	[ -n "${docker_bridge:-}" ] || return 0
	if pid=$(cat "$scratch/docker/pid" 2>/dev/null); then
		as_root kill -TERM "$pid" 2>/dev/null || true
		for _ in $(seq 300); do
			as_root kill -0 "$pid" 2>/dev/null || break
			sleep 0.1
		done
	fi
	as_root ip link delete "$docker_bridge" 2>/dev/null || true
	# the engine leaves the network name space of its containers mounted
	awk -v under="$scratch/docker/" 'index($2, under) == 1 { print $2 }' /proc/mounts | sort -r | while read -r mount; do
		as_root umount "$mount" || true
	done
	as_root rm -rf "$scratch/docker" || true
}

tidy() {
	[ -z "$running" ] || kill "$running" 2>/dev/null || true
	stop_postgres
	stop_docker
	rm -rf "$scratch" || true
}
trap tidy EXIT
trap 'exit 130' INT TERM HUP

# python_of prints a Python of at least 3.12 that can make virtual environments: one of PATH, or one that pyenv has installed.
python_of() {
	local candidate
	for candidate in python3.12 python3.13 python3.14 python3 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[2-9]*/bin/python3; do
		if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1; then
			echo "$candidate"
			return
		fi
	done
}

# need_python makes the environment with the real agent server and SDK of OpenHands, once for each list of requirements; the
# tests that use it find it by its variable.
need_python() {
	local wanted=tests/python/requirements.txt python cache venv
	python=$(python_of)
	if [ -z "$python" ] && command -v apt-get >/dev/null; then
		apt_install python3 python3-venv # new enough from Debian 13 on
		python=$(python_of)
	fi
	if [ -z "$python" ]; then
		[ "${CI:-}" != true ] || die "need Python 3.12 or newer, in PATH or under pyenv"
		say "no Python 3.12 or newer: the tests with the real agent server are skipped"
		return
	fi
	cache=${XDG_CACHE_HOME:-$HOME/.cache}/automation-tests
	venv=$cache/python-$("$python" -c 'import platform; print(platform.python_version())')-$(sha256sum "$wanted" | cut -c1-12)
	mkdir -p "$cache"
	(
		flock 9
		[ ! -e "$venv/complete" ] || exit 0
		say "making $venv"
		rm -rf "$venv"
		"$python" -m venv "$venv" && "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade pip &&
			"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r "$wanted" && touch "$venv/complete"
	) 9>"$cache/lock" || {
		[ "${CI:-}" != true ] || die "could not install $wanted"
		say "could not install $wanted: the tests with the real agent server are skipped"
		return
	}
	export AUTOMATION_TEST_PYTHON=$venv/bin/python
}

# set_up also compiles what the stages share, so that their budgets are for tests.
set_up() {
	need_tools && start_postgres && need_docker && need_python && go version && go build ./... && go build -race ./...
}

# --- packages ---

packages() { go list ./... | grep -vE '/tests(/|$)'; }

test_packages() {
	# shellcheck disable=SC2046
	within $PACKAGES_MINUTES go test -race -count=1 -timeout "${PACKAGES_MINUTES}m" \
		-covermode=atomic -coverpkg=./... -coverprofile="$scratch/packages.out" $(packages)
}

# --- black box, and volume cases at their full size ---

test_blackbox() {
	local status=0 dirs
	mkdir "$scratch/coverage"
	go test -count=1 -v -run 'EveryStatement' ./tests | grep -v '^[=-]' || status=1
	GOCOVERDIR=$scratch/coverage within $BLACKBOX_MINUTES \
		go test -count=1 -parallel 8 -timeout "${BLACKBOX_MINUTES}m" ./tests/... || status=1 # they mostly wait
	dirs=$(grep -rlE --include='*_test.go' '^func Test\w*Volume' . | xargs -r -n 1 dirname | sort -u)
	# shellcheck disable=SC2086
	[ -z "$dirs" ] || within $BLACKBOX_MINUTES \
		go test -count=1 -timeout "${BLACKBOX_MINUTES}m" -run Volume $dirs || status=1
	return $status
}

# --- coverage of both stages together ---

check_coverage() {
	local total
	go tool covdata textfmt -i="$scratch/coverage" -o="$scratch/blackbox.out" || return 1
	tail -n +2 "$scratch/blackbox.out" | cat "$scratch/packages.out" - >"$scratch/cover.out"
	total=$(go tool cover -func="$scratch/cover.out" | awk '/^total:/ { sub("%", "", $3); print $3 }')
	say "statement coverage over all packages: $total % (floor $COVERAGE_FLOOR %)"
	awk -v total="$total" -v floor=$COVERAGE_FLOOR 'BEGIN { exit !(total >= floor) }'
}

# --- the run ---

stage set-up $SETUP_MINUTES set_up
if [ ${#failures[@]} = 0 ]; then
	stage packages $PACKAGES_MINUTES test_packages
	stage 'black box' $BLACKBOX_MINUTES test_blackbox
	[ ${#failures[@]} -gt 0 ] || stage coverage 1 check_coverage
fi
[ $SECONDS -le $((TOTAL_MINUTES * 60)) ] || failures+=("the whole went over its budget of $TOTAL_MINUTES min")
say "== all: $((SECONDS / 60)) min $((SECONDS % 60)) s of $TOTAL_MINUTES min"
if [ ${#failures[@]} -gt 0 ]; then
	printf 'FAIL %s\n' "${failures[@]}"
	exit 1
fi
say "PASS every stage"
