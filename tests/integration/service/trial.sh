#!/bin/sh
# Run by systemd after topod.service, in an emulated machine: what becomes of the shipped unit. Lines that begin with @trial are facts for the test.
say() { printf '@trial %s\n' "$*"; }
shown() { systemctl show topod.service -p "$1" --value; }
status() { topoctl status -o json 2>/dev/null | tr -d '\n '; }
# Until a command succeeds; the test gives up on whoever never does.
until_ok() { until "$@" >/dev/null 2>&1; do sleep 0.2; done; }
another() { pid=$(shown MainPID); [ "$pid" != 0 ] && [ "$pid" != "$1" ] && [ "$(shown ActiveState)" = active ]; }

say "started state=$(shown ActiveState)/$(shown SubState) type=$(shown Type) restarts=$(shown NRestarts)"
say "status $(shown StatusText)"
pid=$(shown MainPID)
grep -E '^(Uid|CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/$pid/status | while read -r name value rest; do say "process $name $value"; done
say "process user $(stat -c %U /proc/$pid)"
say "socket $(stat -c '%U:%G %a' /run/topod/topod.sock)"
say "served $(status)"
journalctl -u topod -o json --output-fields=MESSAGE,MESSAGE_ID,GENERATION,VERDICT,SYSLOG_IDENTIFIER,PRIORITY --no-pager | while read -r line; do say "journal $line"; done

# Who is not of the group may not ask; who is, may.
setpriv --reuid=nobody --regid=nogroup --clear-groups topoctl status >/dev/null 2>&1; say "stranger $?"
setpriv --reuid=nobody --regid=nogroup --groups="$(getent group topod | cut -d: -f3)" topoctl status >/dev/null 2>&1; say "member $?"

# Metrics at this host's own address, which is all that the unit lets through.
say "metrics $(bash -c 'exec 3<>/dev/tcp/127.0.0.1/9835; printf "GET /metrics HTTP/1.0\r\n\r\n" >&3; grep -c ^topod_ <&3')"

# Reload: the machine named anew in the configuration is read.
sed -i 's/four.json/eight.json/' /etc/topod/topod.toml
systemctl reload topod; say "reload $?"
until_ok sh -c 'topoctl status -o json | tr -d "\n " | grep -q "\"gpus\":8"'
say "reloaded pid=$([ "$(shown MainPID)" = "$pid" ] && echo same || echo other) state=$(shown ActiveState)"
say "served $(status)"
say "status $(shown StatusText)"

# Killed: it comes back, and what it publishes has the generation that it had.
kill -9 "$pid"; until_ok another "$pid"
say "killed state=$(shown ActiveState) restarts=$(shown NRestarts)"
until_ok topoctl status
say "served $(status)"

# Stopped: the watchdog ends it.
pid=$(shown MainPID)
kill -STOP "$pid"; until_ok another "$pid"
say "hung state=$(shown ActiveState) restarts=$(shown NRestarts)"
journalctl -u topod --no-pager -o cat | grep -i watchdog | while read -r line; do say "watchdog $line"; done
until_ok topoctl status
say "served $(status)"

# A mistake in the configuration: the place is in the journal; a reload keeps what was, a start fails.
echo 'poll_seconds = "often"' >> /etc/topod/topod.toml
systemctl reload topod
until_ok sh -c 'journalctl -u topod --no-pager -o cat | grep -q "topod.toml:3:"'
say "mistaken state=$(shown ActiveState)"
systemctl restart topod >/dev/null 2>&1; say "restart $?"
journalctl -u topod --no-pager -o cat | grep "topod.toml:3:" | while read -r line; do say "mistake $line"; done
sed -i '$d' /etc/topod/topod.toml
systemctl reset-failed topod; systemctl restart topod; say "mended $?"

# Socket activation: nothing runs until somebody asks.
systemctl stop topod; say "stopped $(shown Result) $(shown ActiveState)"
systemctl start topod.socket; say "listening $?"
say "waiting $(shown ActiveState) $(stat -c '%U:%G %a' /run/topod/topod.sock)"
until_ok topoctl status
say "activated $(shown ActiveState)"
systemctl restart topod; topoctl status >/dev/null 2>&1; say "kept $?"
systemctl stop topod.socket topod; say "stopped $(shown Result) $(shown ActiveState)"
systemctl --failed --no-legend --plain | while read -r line; do say "failed $line"; done
say end
systemctl poweroff --force >/dev/null 2>&1
