#!/usr/bin/env bash
# A private PostgreSQL and Redis for this checkout. They do not affect other servers on the
# machine: they have their own data, random passwords and free loopback ports.
#
#   scripts/dev.sh with CMD...   start what is needed, run CMD with the two URLs set, and
#                                stop the servers when the last such command has ended
#   scripts/dev.sh up | down     start and leave running | stop
#   scripts/dev.sh status | env  what runs | the two URLs as shell assignments
#   scripts/dev.sh reset         stop, and delete all data
#   scripts/dev.sh compiler      install a C compiler if missing (the race detector needs one)
#   scripts/dev.sh browser       install Chromium and curl if missing (tests/browser needs them)
#   scripts/dev.sh gateways      install the gateways that tests/gateways runs, if missing
#   scripts/dev.sh node          install Node.js and npm if missing (the tests of the TypeScript client need them)
#   scripts/dev.sh python        install Python and the packages that the tests of the Python client use, if missing
#
# These servers keep their data in .dev/, and CMD gets their URLs in WEIR_DATABASE_URL and
# WEIR_REDIS_URL. With --test as the first argument, it is another pair in .dev/test/, disposable and
# tuned for speed, with the URLs in WEIR_TEST_DATABASE_URL and WEIR_TEST_REDIS_URL.
#
# Order of preference: both URLs already set > Docker Compose, if an engine answers >
# installed binaries > apt-get (as root, or with passwordless sudo).
# WEIR_DEV_BACKEND=compose|native forces one. PG_BIN names a folder of PostgreSQL binaries.
set -euo pipefail
umask 077

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
BASE=$ROOT/.dev
DEV=$BASE VARS=WEIR_ KIND=dev
HINT= # what to do about something missing, where it cannot be installed
if [ "${1:-}" = --test ]; then shift; DEV=$BASE/test VARS=WEIR_TEST_ KIND=test; fi
PROJECT=weir-$KIND-$(printf %s "$ROOT" | cksum | cut -d' ' -f1)
DATABASE_VAR=${VARS}DATABASE_URL REDIS_VAR=${VARS}REDIS_URL
say() { printf 'dev: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# ---------------------------------------------------------------- locks
# Two kernel locks, which the kernel releases after a crash: fd 9 serializes starts and stops, and
# every user of the servers shares fd 8. Daemons and CMD get neither (8>&- 9>&-).
HAVE_FLOCK=$(command -v flock || true)
lock() {
  # 711: if Postgres runs as another user, it needs access to its data below
  { mkdir -p "$DEV" && chmod 711 "$BASE" "$DEV"; } 2>/dev/null ||
    die "$DEV belongs to another user: run 'sudo scripts/dev.sh reset'"
  exec 9>"$DEV/lock"
  [ -z "$HAVE_FLOCK" ] || flock -w 300 9 || die "another dev.sh holds $DEV/lock"
}
unlock() { exec 9>&-; }
lease() { exec 8>"$DEV/users"; [ -z "$HAVE_FLOCK" ] || flock -s 8; }
last_user() { [ -n "$HAVE_FLOCK" ] && [ ! -e "$DEV/pinned" ] && flock -n -x 8; }

# ---------------------------------------------------------------- small helpers
port_busy() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
free_port() { # below the ephemeral range, so that no outgoing connection can take it
  local p
  for _ in $(seq 50); do
    p=$((20000 + (RANDOM * 32768 + RANDOM) % 10000))
    port_busy "$p" || { echo "$p"; return 0; }
  done
  die "no free port found"
}
secret() { od -An -N16 -tx1 /dev/urandom | tr -d ' \n'; }

# ---------------------------------------------------------------- finding or installing binaries
find_pg() { # prints the directory of initdb, pg_ctl and postgres (newest first)
  local d
  if [ -n "${PG_BIN:-}" ]; then echo "$PG_BIN"; return 0; fi
  for d in $(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -t/ -k5 -Vr) \
           $(ls -d /opt/homebrew/opt/postgresql@*/bin /usr/local/opt/postgresql@*/bin 2>/dev/null | sort -Vr) \
           "$(dirname "$(command -v pg_ctl 2>/dev/null || echo /x/x)")" /usr/pgsql-*/bin; do
    if [ -x "$d/initdb" ] && [ -x "$d/pg_ctl" ] && [ -x "$d/postgres" ]; then echo "$d"; return 0; fi
  done
  return 1
}
find_redis() { command -v redis-server || command -v valkey-server; }
find_browser() { # as tests/browser looks for one
  if [ -n "${WEIR_TEST_CHROMIUM:-}" ]; then command -v "$WEIR_TEST_CHROMIUM"; return; fi
  command -v chromium-headless-shell || command -v chromium || command -v chromium-browser || command -v google-chrome
}

# The programs of tests/gateways, and the modules that their configurations use. The tests run the
# commands of the documentation with curl.
GATEWAYS=(curl nginx libnginx-mod-http-js libnginx-mod-http-lua haproxy caddy apache2 lua-socket varnish varnish-modules stunnel4)

# The programs and packages of the tests of the Python client.
PYTHON=(python3 python3-flask python3-starlette python3-fastapi python3-build python3-setuptools python3-wheel mypy)

apt_install() {
  local sudo=()
  command -v apt-get >/dev/null || die "missing: $*$HINT"
  if [ "$(id -u)" != 0 ]; then
    sudo -n true 2>/dev/null || die "missing: $*. Run: sudo apt-get install $*$HINT"
    sudo=(sudo -n)
  fi
  say "installing $* with apt-get"
  # no default cluster, and no system service of the packages: this script runs its own
  if [ ! -e /etc/postgresql-common/createcluster.conf ]; then
    "${sudo[@]}" mkdir -p /etc/postgresql-common
    echo "create_main_cluster = false" | "${sudo[@]}" tee /etc/postgresql-common/createcluster.conf >/dev/null
    "${sudo[@]}" chmod 755 /etc/postgresql-common
    "${sudo[@]}" chmod 644 /etc/postgresql-common/createcluster.conf
  fi
  local policy=
  if [ ! -e /usr/sbin/policy-rc.d ]; then
    printf '#!/bin/sh\nexit 101\n' | "${sudo[@]}" tee /usr/sbin/policy-rc.d >/dev/null
    "${sudo[@]}" chmod 755 /usr/sbin/policy-rc.d
    policy=1
  fi
  local rc=0
  local install=(env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@") # another apt-get may be at work
  { (umask 022; "${sudo[@]}" "${install[@]}") || # without lists of packages, or with old ones: get them
    (umask 022; "${sudo[@]}" apt-get update -qq -o Acquire::Retries=3 && "${sudo[@]}" "${install[@]}"); } \
    >"$DEV/apt.log" 2>&1 8>&- 9>&- || rc=$?
  [ -z "$policy" ] || "${sudo[@]}" rm -f /usr/sbin/policy-rc.d
  [ $rc = 0 ] || { tail -5 "$DEV/apt.log" >&2; die "apt-get failed; its log is $DEV/apt.log"; }
}

# ---------------------------------------------------------------- native: PostgreSQL
# Postgres refuses to run as root, so root gives the data directory to the user `postgres` (or
# nobody). If that user cannot access the checkout (/root is 0700), the data is in /var/tmp. The
# data of tests is in memory, if there is enough: hundreds of databases are created and dropped,
# and a file system on a disk takes a tenth of all time for that. In both cases .dev/pg is a link.
memory_to_spare() { # whether /dev/shm has 4 GiB, and the machine 6 GiB, to spare
  [ "$KIND" = test ] && [ -w /dev/shm ] && [ -r /proc/meminfo ] &&
    [ "$(df -Pk /dev/shm | awk 'NR == 2 { print $4 }')" -ge 4194304 ] &&
    [ "$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)" -ge 6291456 ]
}
elsewhere() { # use a folder of ours outside the checkout for the data
  [ -d "$1/$PROJECT" ] || mkdir "$1/$PROJECT" || die "cannot create $1/$PROJECT"
  [ -O "$1/$PROJECT" ] || die "$1/$PROJECT belongs to another user: delete it"
  chmod 711 "$1/$PROJECT"
  PGDATA=$1/$PROJECT/pg
  [ -L "$DEV/pg" ] || ln -s "$PGDATA" "$DEV/pg"
}
native_paths() {
  PGBIN=$(find_pg) || return 1
  AS=() PGDATA=$DEV/pg
  if [ "$(id -u)" = 0 ]; then
    local u=postgres
    id -u postgres >/dev/null 2>&1 || u=nobody
    AS=(setpriv "--reuid=$(id -u $u)" "--regid=$(id -g $u)" --clear-groups --)
    if [ ! -e "$DEV/pg" ] && ! memory_to_spare && ! "${AS[@]}" test -x "$DEV"; then elsewhere /var/tmp; fi
  fi
  if [ -L "$DEV/pg" ]; then
    elsewhere "$(dirname "$(dirname "$(readlink "$DEV/pg")")")" # a restart of the machine may have emptied it
  elif [ ! -e "$DEV/pg" ] && memory_to_spare; then
    elsewhere /dev/shm
  fi
}
pg() { # run a Postgres tool in a folder that its user can enter, without our locks
  (cd / && "${AS[@]}" "$PGBIN/$1" "${@:2}") 8>&- 9>&-
}
pg_running() {
  local pid
  pid=$(head -1 "$PGDATA/postmaster.pid" 2>/dev/null) || return 1
  # if PID 1 reaps no processes (in many containers), a killed server stays a zombie that looks alive
  case $(cut -d')' -f2 "/proc/$pid/stat" 2>/dev/null) in " Z"*) rm -f "$PGDATA/postmaster.pid"; return 1 ;; esac
  pg pg_ctl -D "$PGDATA" status >/dev/null 2>&1
}
pg_init() { # $1: the major version
  say "setting up PostgreSQL $1"
  rm -rf "${PGDATA:?}"
  mkdir -p "$PGDATA"
  local pw sync=()
  pw=$(secret)
  printf '%s\n' "$pw" >"$PGDATA.pw"
  [ $KIND = dev ] || sync=(--no-sync)
  [ ${#AS[@]} = 0 ] || chown "$("${AS[@]}" id -u):$("${AS[@]}" id -g)" "$PGDATA" "$PGDATA.pw"
  { pg initdb -D "$PGDATA" -U weir -A scram-sha-256 --pwfile="$PGDATA.pw" -E UTF8 --locale=C.UTF-8 "${sync[@]}" &&
    echo 'CREATE DATABASE weir' | pg postgres --single -F -j -D "$PGDATA" postgres; } \
    >"$DEV/initdb.log" 2>&1 || { tail -5 "$DEV/initdb.log" >&2; rm -rf "$PGDATA"; die "initdb failed"; }
  printf %s "$pw" >"$DEV/pg.password"
  rm -f "$PGDATA.pw"
}
pg_start() {
  local major
  major=$("$PGBIN/postgres" --version | grep -oE '[0-9]+' | head -1)
  [ "$major" -ge 15 ] || die "PostgreSQL $major is too old (15 or newer, please)"
  if [ -s "$PGDATA/PG_VERSION" ] && [ ! -s "$DEV/pg.password" ]; then # .dev/ was deleted by hand, the data was not
    if pg_running; then pg pg_ctl -D "$PGDATA" -s -m immediate stop || true; fi
    rm -rf "${PGDATA:?}"
  fi
  if [ -s "$PGDATA/PG_VERSION" ] && [ "$(cat "$PGDATA/PG_VERSION")" != "$major" ]; then
    die "$PGDATA was made by PostgreSQL $(cat "$PGDATA/PG_VERSION"), this is $major: run 'make clean-dev'"
  fi
  if ! pg_running; then
    [ -s "$PGDATA/PG_VERSION" ] || pg_init "$major"
    local settings="-c listen_addresses=127.0.0.1 -c unix_socket_directories= -c jit=off -c log_min_messages=warning"
    if [ $KIND = test ]; then
      # disposable: it survives a crash of Postgres, not of the machine; many packages test concurrently
      settings+=" -c fsync=off -c synchronous_commit=off -c full_page_writes=off -c max_connections=400 -c shared_buffers=128MB"
    fi
    local try port
    port=$(cat "$DEV/pg.port" 2>/dev/null || free_port)
    for try in 1 2 3; do
      if port_busy "$port"; then port=$(free_port); fi
      if pg pg_ctl -D "$PGDATA" -s -w -t 30 -l "$PGDATA/server.log" -o "-c port=$port $settings" start </dev/null >/dev/null 2>&1; then
        echo "$port" >"$DEV/pg.port"
        break
      fi
      [ $try != 3 ] || { tail -5 "$PGDATA/server.log" >&2; die "PostgreSQL did not start"; }
      port=$(free_port)
    done
  fi
  DATABASE_URL="postgres://weir:$(cat "$DEV/pg.password")@127.0.0.1:$(cat "$DEV/pg.port")/weir?sslmode=disable"
}

# ---------------------------------------------------------------- native: Redis
redis_running() {
  local pid
  pid=$(cat "$DEV/redis.pid" 2>/dev/null) || return 1
  kill -0 "$pid" 2>/dev/null && port_busy "$(cat "$DEV/redis.port" 2>/dev/null || echo 1)"
}
redis_settings() { # $1: port. They go in on standard input, so the password is in no process list
  printf '%s\n' "port $1" "bind 127.0.0.1" "requirepass $(cat "$DEV/redis.password")" "daemonize yes" \
    "dir \"$DEV/redis\"" "pidfile \"$DEV/redis.pid\"" "logfile \"$DEV/redis.log\"" 'save ""' "maxmemory-policy noeviction"
  if [ $KIND = test ]; then echo "appendonly no"; else echo "appendonly yes"; fi
}
redis_start() {
  if ! redis_running; then
    local bin try port
    bin=$(find_redis)
    mkdir -p "$DEV/redis"
    [ -s "$DEV/redis.password" ] || secret >"$DEV/redis.password"
    port=$(cat "$DEV/redis.port" 2>/dev/null || free_port)
    for try in 1 2 3; do
      if port_busy "$port"; then port=$(free_port); fi
      rm -f "$DEV/redis.pid"
      redis_settings "$port" | "$bin" - >/dev/null 2>&1 8>&- 9>&- || true
      for _ in $(seq 100); do
        if [ -s "$DEV/redis.pid" ] && port_busy "$port"; then echo "$port" >"$DEV/redis.port"; break 2; fi
        sleep 0.05
      done
      [ $try != 3 ] || { tail -5 "$DEV/redis.log" >&2; die "Redis did not start"; }
      port=$(free_port)
    done
  fi
  REDIS_URL="redis://default:$(cat "$DEV/redis.password")@127.0.0.1:$(cat "$DEV/redis.port")/0"
}

native_up() {
  echo native >"$DEV/backend"
  local missing=()
  find_pg >/dev/null || missing+=(postgresql)
  find_redis >/dev/null || missing+=(redis-server)
  HINT=" (PostgreSQL 15 or newer, Redis 7.0 or newer, or start Docker)"
  [ ${#missing[@]} = 0 ] || apt_install "${missing[@]}"
  native_paths
  pg_start
  redis_start
}
native_down() {
  if native_paths && pg_running; then
    pg pg_ctl -D "$PGDATA" -s -w -m fast stop >/dev/null 2>&1 || pg pg_ctl -D "$PGDATA" -s -m immediate stop || true
  fi
  if redis_running; then
    kill "$(cat "$DEV/redis.pid")" 2>/dev/null || true
    for _ in $(seq 100); do redis_running || break; sleep 0.05; done
  fi
  rm -f "$DEV/redis.pid"
}

# ---------------------------------------------------------------- Docker Compose
compose() { docker compose -p "$PROJECT" -f "$ROOT/docker-compose.yml" "$@" 8>&- 9>&-; }
engine() {
  local t=()
  if command -v timeout >/dev/null; then t=(timeout 5); fi # a dead remote engine must not hang us
  command -v docker >/dev/null && "${t[@]}" docker info >/dev/null 2>&1 && docker compose version >/dev/null 2>&1
}
compose_up() {
  export POSTGRES_PORT=0 REDIS_PORT=0 # 0: any free port
  echo compose >"$DEV/backend"
  if ! compose up -d --wait --wait-timeout 120 --quiet-pull postgres redis >"$DEV/compose.log" 2>&1; then
    compose down >/dev/null 2>&1 || true
    rm -f "$DEV/backend"
    return 1
  fi
  local pg rd
  pg=$(compose port postgres 5432)
  rd=$(compose port redis 6379)
  DATABASE_URL="postgres://weir:weir@127.0.0.1:${pg##*:}/weir?sslmode=disable"
  REDIS_URL="redis://:weir@127.0.0.1:${rd##*:}/0"
}

# ---------------------------------------------------------------- commands
up() { # call with the lock held
  case ${WEIR_DEV_BACKEND:-$(cat "$DEV/backend" 2>/dev/null || echo auto)} in
    compose) engine || die "no Docker engine answers; start it, or run 'make clean-dev' to set up again"
             compose_up || { tail -5 "$DEV/compose.log" >&2; die "docker compose could not start the services"; } ;;
    native) native_up ;;
    *) if ! engine; then native_up
       elif ! compose_up; then say "docker compose failed (see $DEV/compose.log): using local binaries"; native_up; fi ;;
  esac
  printf '%s=%s\n%s=%s\n' "$DATABASE_VAR" "'$DATABASE_URL'" "$REDIS_VAR" "'$REDIS_URL'" >"$DEV/env"
  # the login owns the private Postgres, and is a superuser there
  if [ $KIND = dev ]; then echo WEIR_ALLOW_SUPERUSER=true >>"$DEV/env"; fi
}
down() { case $(cat "$DEV/backend" 2>/dev/null || echo native) in compose) compose stop >/dev/null 2>&1 || true ;; *) native_down ;; esac; }
release() { # also runs from a trap: no bare `return` here, it would return an older status
  lock
  if last_user; then down; fi
  unlock
}
reset() {
  [ -d "$DEV" ] || return 0
  lock
  down
  case $(cat "$DEV/backend" 2>/dev/null) in compose) compose down -v >/dev/null 2>&1 || true ;; esac
  if [ -L "$DEV/pg" ]; then rm -rf "/var/tmp/${PROJECT:?}" "/dev/shm/${PROJECT:?}"; fi
  rm -rf "${DEV:?}"
  unlock
}

# Runs CMD in its own process group and forwards each signal to it once, whether the signal was sent
# to this script alone or, as by Ctrl-C, to all processes of the terminal. Sets RC to its exit code.
run_command() {
  local child= early= signalled
  forward() { # a signal that arrives before the command has a process ID is sent when it has one
    signalled=1
    if [ -n "$child" ]; then kill -"$1" -- "-$child" 2>/dev/null || true; else early=$1; fi
  }
  trap 'forward INT' INT
  trap 'forward TERM' TERM HUP
  set -m
  "$@" 8>&- 9>&- <&0 &
  child=$!
  set +m
  if [ -n "$early" ]; then forward "$early"; fi
  while :; do
    signalled= RC=0
    wait "$child" || RC=$?
    [ -n "$signalled" ] || break
  done
  trap '' INT TERM HUP # let nothing interrupt the stopping of the servers
}

cmd=${1:-help}
[ $# = 0 ] || shift
case $cmd in
  with)
    [ $# -gt 0 ] || die "with: which command?"
    if [ -n "${!DATABASE_VAR:-}" ] && [ -n "${!REDIS_VAR:-}" ]; then exec "$@"; fi
    [ -z "${!DATABASE_VAR:-}${!REDIS_VAR:-}" ] || die "set both $DATABASE_VAR and $REDIS_VAR, or neither"
    lock; lease
    trap release EXIT
    up; unlock
    export "$DATABASE_VAR=$DATABASE_URL" "$REDIS_VAR=$REDIS_URL"
    if [ $KIND = dev ]; then export WEIR_ALLOW_SUPERUSER=true; fi
    run_command "$@"
    exit "$RC" ;;
  up) lock; : >"$DEV/pinned"; up; unlock; cat "$DEV/env" ;;
  down) [ -d "$DEV" ] || exit 0; lock; rm -f "$DEV/pinned"; down; unlock ;;
  reset)
    if [ $KIND = dev ] && [ -d "$BASE/test" ]; then "${BASH_SOURCE[0]}" --test reset; fi
    reset ;;
  compiler)
    command -v "${CC:-gcc}" >/dev/null && exit 0
    lock; apt_install gcc libc6-dev; unlock ;;
  browser)
    missing=()
    find_browser >/dev/null || { missing+=(chromium-headless-shell); HINT=" (or set WEIR_TEST_CHROMIUM to a Chromium or Chrome)"; }
    command -v curl >/dev/null || missing+=(curl) # pages offer commands with it, which the walks run
    [ ${#missing[@]} -gt 0 ] || exit 0
    lock
    (apt_install "${missing[@]}") || # not every system has it without a user interface
      apt_install "${missing[@]/chromium-headless-shell/chromium}"
    unlock ;;
  gateways)
    missing=()
    for package in "${GATEWAYS[@]}"; do
      [ "$(dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null)" = "ii " ] || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || exit 0
    HINT=" (packages of Debian 12)"
    lock; apt_install "${missing[@]}"; unlock ;;
  node)
    missing=()
    { command -v node && node -e 'process.exit(parseInt(process.versions.node) < 18 ? 1 : 0)'; } >/dev/null || missing+=(nodejs)
    command -v npm >/dev/null || missing+=(npm)
    [ ${#missing[@]} -gt 0 ] || exit 0
    HINT=" (Node.js 18 or newer)"
    lock; apt_install "${missing[@]}"; unlock ;;
  python)
    missing=()
    for package in "${PYTHON[@]}"; do
      [ "$(dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null)" = "ii " ] || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || exit 0
    HINT=" (packages of Debian 12)"
    lock; apt_install "${missing[@]}"; unlock ;;
  env) [ -e "$DEV/env" ] || die "nothing set up yet"; cat "$DEV/env" ;;
  status)
    [ -e "$DEV/backend" ] || die "nothing set up yet"
    echo "backend: $(cat "$DEV/backend")"
    if [ "$(cat "$DEV/backend")" = native ]; then
      if native_paths && pg_running; then echo "postgres: 127.0.0.1:$(cat "$DEV/pg.port")"; else echo "postgres: stopped"; fi
      if redis_running; then echo "redis: 127.0.0.1:$(cat "$DEV/redis.port")"; else echo "redis: stopped"; fi
    else compose ps; fi ;;
  *) sed -n '2,/^set /{/^set /!p}' "$0" | cut -c3-; exit 2 ;;
esac
