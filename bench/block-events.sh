# shellcheck shell=bash
# Records what a block device is asked to write, discard and flush, for `lacuna flash-model --block-events`: the kernel's
# own events of that device alone, in a tracing instance of the script's own. Sourced. Needs root and tracefs.
#
#   events_possible             whether the kernel can
#   events_start DEVICE FILE    records into FILE from now on
#   events_stop                 until now; FILE is complete then
#   events_remove               gives everything back; idempotent
#
# Wants `work`, a directory in which tracefs is mounted meanwhile.

EVENTS_INSTANCE=
EVENTS_PID=
# A reader that falls behind by that much on one processor loses events, and the model refuses the record.
EVENTS_BUFFER_KB=16384

events_possible() {
    local possible=0
    mkdir -p "$work/tracefs"
    mount -t tracefs tracefs "$work/tracefs" 2>/dev/null || return 1
    [ -d "$work/tracefs/events/block/block_rq_complete" ] || possible=1
    umount "$work/tracefs"
    return "$possible"
}

events_start() {
    local device=$1 file=$2 major minor event
    mount -t tracefs tracefs "$work/tracefs"
    EVENTS_INSTANCE=$work/tracefs/instances/lacuna-$$
    mkdir "$EVENTS_INSTANCE"
    echo "$EVENTS_BUFFER_KB" >"$EVENTS_INSTANCE/buffer_size_kb"
    IFS=: read -r major minor <"/sys/block/${device#/dev/}/dev"
    event=$EVENTS_INSTANCE/events/block/block_rq_complete
    echo "dev == $((major << 20 | minor))" >"$event/filter"
    sed "/tracing_mark_write: end of $$/Q" "$EVENTS_INSTANCE/trace_pipe" >"$file" &
    EVENTS_PID=$!
    echo 1 >"$event/enable"
}

# The pipe gives events by time and never ends by itself; so the last one is a mark.
events_stop() {
    echo 0 >"$EVENTS_INSTANCE/events/block/block_rq_complete/enable"
    echo "end of $$" >"$EVENTS_INSTANCE/trace_marker"
    wait "$EVENTS_PID"
    EVENTS_PID=
    events_remove
}

events_remove() {
    if [ -n "$EVENTS_PID" ]; then
        kill "$EVENTS_PID" || true
        wait "$EVENTS_PID" || true
        EVENTS_PID=
    fi 2>/dev/null
    if [ -n "$EVENTS_INSTANCE" ]; then
        rmdir "$EVENTS_INSTANCE" || true
        umount "$work/tracefs" || true
        EVENTS_INSTANCE=
    fi
}
