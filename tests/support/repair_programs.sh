#!/bin/sh
# systemctl, nvidia-smi, modprobe, scontrol and a site's reboot command of a repair host, by the name of the link to this file.
# Each call is a line of `calls`, each change of the host a line of `effects`. `kill` has "CALL HOW": at that call the helper, which is the
# parent, is killed: `both` with this program before it does anything, `alone` before it does what it should, `after` when it has done so.
PATH=/usr/bin:/bin
folder=${0%/*}/..
cd "$folder" || exit 1
name=${0##*/}
echo "$name $*" >> calls
how=
if [ -e kill ]; then
    read -r call way < kill
    set_of_calls=0
    while read -r _; do set_of_calls=$((set_of_calls + 1)); done < calls
    [ "$set_of_calls" != "$call" ] || { how=$way; rm kill; }
fi
case $how in
both) kill -9 "$PPID"; exit 137 ;;
alone) kill -9 "$PPID" ;;
esac

unit_blocks() {
    apart=
    for unit in "$@"; do
        state= requires=
        [ -e "units/$unit" ] && read -r state requires < "units/$unit"
        [ -z "$apart" ] || echo
        apart=yes
        echo "Id=$unit"
        if [ -n "$state" ]; then echo LoadState=loaded; else echo LoadState=not-found; fi
        echo "ActiveState=${state:-inactive}"
        echo "RequiredBy=$requires"
    done
}

becomes() { # UNIT STATE
    requires=
    [ -e "units/$1" ] && read -r _ requires < "units/$1"
    echo "$2 $requires" > "units/$1"
    [ "$2" = active ] || for one in $requires; do (becomes "$one" "$2"); done
}

reset() {
    read -r mode < reset
    case $mode in
    in_use) echo "GPU $1: In use by another client"; exit 255 ;;
    hangs) trap '' TERM; sleep 600; exit 1 ;;
    waits) echo "$PPID" > waiting.new; mv waiting.new waiting; while [ ! -e go ]; do sleep 0.01; done; one=$1 ;;
    wrong) one=00000000:28:00.0 ;;
    *) one=$1 ;;
    esac
    echo "reset ${one:-all}" >> effects
    [ ! -e control.after ] || mv control.after control
    for one in ${one:-00000000:1B:00.0 00000000:28:00.0}; do echo "GPU $one was successfully reset."; done
    echo 'All done.'
}

code=0
case $name in
systemctl)
    shift 2
    verb=$1
    shift
    if [ -e "fails.$verb" ]; then echo "Job for $1 failed"; exit 1; fi
    case $verb in
    show) shift; unit_blocks "$@" ;;
    stop) echo "stop $1" >> effects; becomes "$1" inactive ;;
    start) becomes "$1" active ;;
    restart) echo "restart $1" >> effects; becomes "$1" active ;;
    esac ;;
nvidia-smi)
    case "$*" in
    *-pm*) echo "pm $*" >> effects ;;
    "--gpu-reset -i "*) reset "$3" ;;
    --gpu-reset) reset "" ;;
    esac ;;
modprobe)
    if [ "$1" = -r ]; then
        if [ -e module-in-use ]; then echo "modprobe: FATAL: Module $2 is in use."; code=1; else echo "unload $2" >> effects; rm -r "sys/module/$2"; fi
    elif [ ! -e "sys/module/$1" ]; then
        echo "load $1" >> effects
        mkdir "sys/module/$1"
        echo live > "sys/module/$1/initstate"
    fi ;;
scontrol)
    if [ -e fails.reboot ]; then
        echo 'scontrol: error: Unable to contact slurm controller (connect failure)'
        exit 1
    fi
    echo "$*" >> effects
    ;;
rebooter) echo "reboot: $GPUWARDEN_REASON" >> effects ;;
esac
[ "$how" != after ] || kill -9 "$PPID"
exit "$code"
