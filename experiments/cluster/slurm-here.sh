#!/usr/bin/env bash
# Slurm on this one machine, to try slurm.sh: controller and node as root, no authentication, no systemd. For a container or
# a test machine only. Debian: apt-get install slurmctld slurmd slurm-client
#
#   experiments/cluster/slurm-here.sh        start it (again); `slurm-here.sh stop` ends it
set -euo pipefail

state=${STATE:-/tmp/slurm-here}
config=$state/slurm.conf

stop() {
  for daemon in slurmd slurmctld; do
    if [ -f "$state/$daemon.pid" ]; then kill "$(cat "$state/$daemon.pid")" 2>/dev/null || true; fi
  done
}
if [ "${1:-}" = stop ]; then
  stop
  exit
fi
stop
mkdir -p "$state/ctld" "$state/d"
memory=$(awk '/MemTotal/ {print int($2 / 1024)}' /proc/meminfo)
cat >"$config" <<CONFIG
ClusterName=here
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
SlurmctldPidFile=$state/slurmctld.pid
SlurmdPidFile=$state/slurmd.pid
StateSaveLocation=$state/ctld
SlurmdSpoolDir=$state/d
SlurmctldLogFile=$state/slurmctld.log
SlurmdLogFile=$state/slurmd.log
SlurmctldPort=16817
SlurmdPort=16818
NodeName=$(hostname -s) NodeAddr=127.0.0.1 CPUs=$(nproc) RealMemory=$memory State=UNKNOWN
PartitionName=here Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONFIG
export SLURM_CONF=$config
slurmctld -f "$config"
slurmd -f "$config"
for _ in $(seq 50); do
  if sinfo -h -o %T 2>/dev/null | grep -q idle; then
    echo "export SLURM_CONF=$config"
    exit
  fi
  sleep 0.2
done
echo "the node did not come up: see $state/slurmctld.log and $state/slurmd.log" >&2
tail -5 "$state/slurmctld.log" "$state/slurmd.log" >&2
exit 1
