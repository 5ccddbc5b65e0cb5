#!/bin/sh
# A rank that does what files in its folder say; the folder is its argument.
#   <attempt>.<rank>.start   it writes: when it started (ns), allocation, process, world size, store, cards
#   <attempt>.<rank>.exit    it reads: ends with the code in there
#   mark                     there: it marks progress
#   end                      there: it ends well
#   saving                   there: the checkpoint takes as long as it is there
#   complete                 there: it says then that its work is complete, whatever it was asked
#   gentle                   there at its start: asked to leave, it ends with 0
#   saves                    there at its start: asked to leave, it marks a checkpoint and ends with 0, unless
#   linger                   is there, which lets it go on as if it had not heard
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
  if [ -e "$1/saves" ] && [ -e "$MUSTER_PREEMPT_FILE" ] && [ ! -e "$1/linger" ]; then
    echo "checkpoint begin $step" >>"$MUSTER_PROGRESS_FILE"
    while [ -e "$1/saving" ]; do sleep 0.1; done
    echo "checkpoint end $step" >>"$MUSTER_PROGRESS_FILE"
    echo "rank $RANK leaves after step $step"
    exit 0
  fi
  if [ -e "$1/mark" ]; then
    step=$((step + 1))
    echo "step $step" >>"$MUSTER_PROGRESS_FILE"
  fi
  sleep 0.1
done
[ ! -e "$1/complete" ] || echo complete >>"$MUSTER_PROGRESS_FILE"
echo "rank $RANK is done"
