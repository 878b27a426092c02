#!/bin/sh
# Stays with one run: starts the server in a session of its own, waits for it, records how it ended.
# usage: sh supervisor.sh FOLDER PYTHON LOG_CAP_KIB [forward]
#
# It is in a session and group of its own, so it outlives the console, the SSH connection and the signals
# that end the server. With "forward" (under systemd) TERM is handed on to the server's group.
# Signals are caught and not ignored: what is ignored here would be ignored in the server too.
set -u
umask 077
cd -- "$1" || exit 125
python=$2
cap=$3
forward=${4:-}
child=
interrupted=

on_term() {
    interrupted=1
    if [ -n "$forward" ] && [ -n "$child" ]; then
        kill -s TERM -- "-$child" 2>/dev/null
    fi
}
trap 'interrupted=1' HUP INT QUIT USR1 USR2 PIPE
trap on_term TERM
exec </dev/null >>log 2>&1 || exit 125

# Room for the last record is taken now, so that it can be written on a full disk.
printf '%120s\n' '' >.exit || exit 125

read -r stat </proc/$$/stat || exit 125
set -- ${stat##*) }
read -r boot </proc/sys/kernel/random/boot_id
printf 'pid=%s\nstart=%s\nboot_id=%s\npgid=%s\nsession=%s\n' "$$" "${20}" "$boot" "$3" "$4" >.supervisor &&
    mv -f .supervisor supervisor || exit 125

# A log over the cap is kept once as log.1 and emptied. The server appends, so it goes on at the new end.
# What it prints between the last copy and the cut (well under a millisecond of work) is lost.
bound_log() {
    bytes=$(wc -c <log 2>/dev/null) || return
    [ "$bytes" -gt $((cap * 1024)) ] || return
    if cp log .log.1; then
        copied=$(wc -c <.log.1)
        tail -c "+$((copied + 1))" log >>.log.1
        mv -f .log.1 log.1
        : >log
    else
        # No room for a copy: rather the older half of the story than a full disk.
        rm -f .log.1 log.1
        [ "$bytes" -le $((cap * 2048)) ] || : >log
    fi
}
(
    trap 'kill "$pause"; exit' TERM
    while kill -0 "$$"; do
        sleep 5 &
        pause=$!
        wait "$pause"
        bound_log
    done
) >/dev/null 2>&1 &
keeper=$!

"$python" -I -S ./child.py &
child=$!
exec >/dev/null 2>&1 # the log is the server's alone: the shell would add "Terminated"
while :; do
    interrupted=
    wait "$child"
    code=$?
    [ -n "$interrupted" ] || break
    # wait was ended by a signal to this shell; a child that is still there is waited for again.
    kill -0 "$child" 2>/dev/null || break
done

# A process that begins now tells the time on the clock that start times are in.
now=$(cat /proc/self/stat)
set -- ${now##*) }
printf '%s %s %s\n' "$code" "$(date +%s.%N)" "${20}" 1<>.exit && mv -f .exit exit
kill "$keeper" 2>/dev/null
exit "$code"
