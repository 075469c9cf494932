#!/bin/sh
# `make release-arm64`: the bundle for arm64, built on an amd64 host of Debian 12, as root. qemu-user runs all that is of arm64, in a
# user namespace in which alone it is registered; what compiles and compresses is of this host, which takes a tenth of the time.
# Other targets of the Makefile: packaging/arm64.sh TARGET...
set -eu

cd "$(dirname "$0")/.."
work=$PWD/.build/arm64
root=$work/root
packages=ca-certificates,python3-venv,dpkg-dev,gcc,libc6-dev,git,make,rpm,zstd,libssl-dev,libffi-dev,libsqlite3-dev,zlib1g-dev
# Of this host, over the same of arm64: the compiler, and what compresses.
programs='/usr/bin/aarch64-linux-gnu-gcc-12 /usr/bin/aarch64-linux-gnu-as /usr/bin/aarch64-linux-gnu-ld.bfd
    /usr/bin/zstd /usr/bin/dpkg-deb /usr/bin/rpmbuild'
libraries='/lib64 /usr/lib/x86_64-linux-gnu /usr/lib/gcc-cross /usr/aarch64-linux-gnu'

for command in mmdebstrap:mmdebstrap qemu-aarch64-static:qemu-user-static aarch64-linux-gnu-gcc-12:gcc-12-aarch64-linux-gnu \
    zstd:zstd rpmbuild:rpm; do
    command -v "${command%:*}" >/dev/null || { echo "arm64 cannot be built here: apt-get install ${command#*:}" >&2; exit 1; }
done
[ "$(id -u)" -eq 0 ] || { echo 'arm64 is built by root, since a chroot is used: sudo make release-arm64' >&2; exit 1; }

# The tree as it is committed, for which everything is built under the time of that commit.
prepare() {
    mkdir -p "$root/build/source" dist
    find "$root/build/source" -mindepth 1 -maxdepth 1 ! -name .build ! -name .venv -exec rm -rf {} +
    git archive HEAD | tar -x -C "$root/build/source"
    git log -1 --format=%ct >"$root/build/epoch"
}

# Inside the namespaces.
enter() {
    mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
    printf '%s' ':qemu-aarch64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:/usr/bin/qemu-aarch64-static:OCF' \
        >/proc/sys/fs/binfmt_misc/register
    if [ ! -d "$root" ]; then
        rm -rf "$root.new"
        mmdebstrap --quiet --mode=root --architectures=arm64 --variant=minbase --include="$packages" bookworm "$root.new"
        mv "$root.new" "$root"
    fi
    prepare
    mount --bind "$root" "$root" # a chroot that is no mount point could make no mounts of its own private
    for folder in /proc /dev /sys; do mount --rbind "$folder" "$root$folder"; done
    for file in /etc/resolv.conf /etc/hosts /etc/ssl/certs/ca-certificates.crt; do cp "$file" "$root$file"; done
    for folder in $libraries; do mkdir -p "$root$folder"; mount --bind "$folder" "$root$folder"; done
    for file in $programs; do mount --bind "$file" "$root$file"; done
    SOURCE_DATE_EPOCH=$(cat "$root/build/epoch") chroot "$root" make --directory=/build/source "$@"
    cp -r "$root/build/source/dist/." dist/
}

case ${1:-} in
    --inside) shift; enter "$@"; exit ;;
    '') set -- bundle ;;
esac

# Every user of the host is one there, which takes a process outside that says so.
gate=$work/gate
mkdir -p "$work"
rm -f "$gate"
mkfifo "$gate"
unshare --user --mount sh -c 'read -r _ <"$1"; shift; exec sh "$@"' sh "$gate" "$0" --inside "$@" &
inner=$!
while [ "$(readlink "/proc/$inner/ns/user")" = "$(readlink /proc/self/ns/user)" ]; do sleep 0.1; done
echo '0 0 4294967295' >"/proc/$inner/uid_map"
echo '0 0 4294967295' >"/proc/$inner/gid_map"
echo >"$gate"
wait "$inner"
