#!/bin/sh
# A rank that does what files in its folder say; the folder is its argument.
#   <attempt>.<rank>.start   it writes: when it started (ns), allocation, process, world size, store, cards
#   <attempt>.<rank>.exit    it reads: ends with the code in there
#   mark                     there: it marks progress
#   end                      there: it ends well
#   gentle                   there at its start: asked to leave, it ends with 0
# Else a signal ends it, as it does any program that does not care.
set -eu
[ ! -e "$1/gentle" ] || trap 'echo "rank $RANK leaves"; exit 0' TERM USR1
me="$1/$MUSTER_ATTEMPT.$RANK"
echo "$(date +%s%N) $NOMAD_ALLOC_ID $$ $WORLD_SIZE $MASTER_ADDR:$MASTER_PORT ${CUDA_VISIBLE_DEVICES:-none}" >>"$me.start"
echo "rank $RANK of $WORLD_SIZE started in attempt $MUSTER_ATTEMPT"
step=0
while [ ! -e "$1/end" ]; do
  if [ -e "$me.exit" ]; then
    echo "rank $RANK ends with $(cat "$me.exit")"
    exit "$(cat "$me.exit")"
  fi
  if [ -e "$1/mark" ]; then
    step=$((step + 1))
    echo "step $step" >>"$MUSTER_PROGRESS_FILE"
  fi
  sleep 0.1
done
echo "rank $RANK is done"
